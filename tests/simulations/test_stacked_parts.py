"""Tests of the parts of stacked cohorts against the single parts that they replace."""

import time
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Message, RecordDict
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from problems.models import FlatModel, build_model
from problems.models.networks import SaddleNetwork
from problems.penalties import PENALTIES, PenaltySettings, make_penalty
from problems.randomness import Purpose, stream
from problems.sampling import EpochSampler
from problems.site import Site
from simulations.engines.flower_internals import make_reply, set_message_id
from simulations.engines.grid import task_identity
from simulations.engines.stacked import gathering
from simulations.engines.stacked.carries import Apart, NotAlikeError, join, split
from simulations.engines.stacked.networks import StackedNetwork
from simulations.engines.stacked.picked import PickedRows
from simulations.engines.stacked.samples import StackedPenalty
from simulations.engines.stacked.streams import draw_rows, shuffle

WORD = st.integers(0, 2**32 - 1)
CLIENTS, ROWS, FEATURES = 4, 5, 6


@given(
    seed=st.integers(0, 2**34),
    addresses=st.lists(st.tuples(WORD, WORD, WORD), min_size=1, max_size=5),
    size=st.integers(0, 300),
)
def test_orders_are_those_of_the_streams(seed: int, addresses: list[tuple[int, ...]], size: int) -> None:
    arrays = [np.arange(size + number) * 3 for number in range(len(addresses))]
    ends = np.cumsum([*map(len, arrays)])
    values = shuffle(seed, Purpose.SAMPLES, np.array(addresses), np.concatenate(arrays), ends)
    shuffled = np.split(values, ends)
    for address, array, order in zip(addresses, arrays, shuffled, strict=False):
        expected = array[stream(seed, Purpose.SAMPLES, *address).permutation(len(array))]
        np.testing.assert_array_equal(order, expected)


@given(sizes=st.lists(st.integers(3, 30), min_size=1, max_size=4), start=st.integers(0, 20), steps=st.integers(1, 20))
def test_rows_are_those_of_the_samplers(sizes: list[int], start: int, steps: int) -> None:
    def samplers() -> list[EpochSampler]:
        return [EpochSampler(np.arange(n) + 7, 3, 11, Purpose.POSITIVES, site) for site, n in enumerate(sizes)]

    given_samplers = samplers()
    for numbers in (range(start, start + steps), range(start + steps, start + 2 * steps)):  # the last batch is short
        for sampler, rows in zip(samplers(), draw_rows(given_samplers, numbers), strict=True):
            np.testing.assert_array_equal(rows, np.concatenate([sampler.batch(number) for number in numbers]))


@given(
    sizes=st.lists(st.integers(2, 12), min_size=1, max_size=4),
    steps=st.integers(1, 6),
    steps_at_once=st.integers(1, 6),
    seed=st.integers(0, 99),
)
def test_gathered_batches_are_each_site_s_rows(sizes: list[int], steps: int, steps_at_once: int, seed: int) -> None:
    drawn, b = np.random.default_rng(seed), 2
    sites = [Site.from_arrays(n, drawn.normal(size=(n, 3)), drawn.integers(2, size=n)) for n in sizes]
    rows = np.stack([drawn.integers(n, size=steps * b) for n in sizes])
    with pytest.MonkeyPatch.context() as patch:  # both ways of gathering, for small sites and for large sites
        patch.setattr(gathering, "GATHERED", steps_at_once * len(sizes) * b * 3 * 4)
        for step, (features, labels) in enumerate(gathering.Gatherer().batches(sites, rows, b)):
            for place, site in enumerate(sites):
                own = rows[place, step * b : (step + 1) * b]
                assert torch.equal(features[place], site.features[own])
                assert torch.equal(labels[place], site.labels[own])
    assert step == steps - 1


def networks(name: str) -> tuple[FlatModel, StackedNetwork, Tensor, Tensor]:
    """Return a model whose vector has entries after the network's weights, also stacked; weights (C, d), features (C,
    b, p)."""
    model = FlatModel(SaddleNetwork(build_model(name, (FEATURES,), 0)), dtype=torch.float64)
    drawn = torch.Generator().manual_seed(3)
    weights = torch.randn(CLIENTS, model.dim, dtype=torch.float64, generator=drawn)
    features = torch.randn(CLIENTS, ROWS, FEATURES, dtype=torch.float64, generator=drawn)
    assert model.dense is not None
    return model, StackedNetwork(model.dense, weights), weights, features


DENSE = pytest.mark.parametrize("name", ["linear", "linear-no-intercept", "mlp"])


@DENSE
def test_scores_and_gradients_are_each_client_s(name: str) -> None:
    model, stacked, weights, features = networks(name)
    scores, pull = stacked.forward(weights, features)
    slopes = torch.cos(scores)
    for client, gradient in enumerate(pull(slopes)):
        own, back = model.forward(weights[client], features[client])
        torch.testing.assert_close(scores[client], own)
        torch.testing.assert_close(gradient, back(slopes[client]))
    moved = weights + 0.3 * pull(slopes)
    stacked.forward(weights, features)[1](slopes, into=weights, alpha=0.3)  # into the weights themselves
    torch.testing.assert_close(weights, moved)


@pytest.mark.parametrize(("dtype", "error"), [(torch.float64, 1e-12), (torch.float32, 1e-5)])
@pytest.mark.parametrize("name", ["linear", "linear-no-intercept"])
def test_rows_that_are_not_copied_give_the_same_gradients(name: str, dtype: torch.dtype, error: float) -> None:
    model, _, weights, features = networks(name)
    assert model.dense is not None
    weights, table = weights.to(dtype), features.flatten(0, 1).to(dtype)
    rows = np.random.default_rng(0).integers(0, len(table), (CLIENTS, 7))
    found, expected = [], []
    for batch, results in ((PickedRows(table, rows), found), (table[torch.from_numpy(rows)], expected)):
        stacked = StackedNetwork(model.dense, weights)
        scores, pull = stacked.forward(weights, batch)
        results += [scores, pull(scores.cos()).clone(), pull(scores.cos(), into=weights.clone(), alpha=-0.3)]
    for own, other in zip(found, expected, strict=True):
        torch.testing.assert_close(own, other, rtol=error, atol=error)


@DENSE
def test_curvature_is_autograd_s(name: str) -> None:
    model, stacked, weights, features = networks(name)
    direction = torch.sin(torch.arange(weights.numel(), dtype=torch.float64)).view_as(weights)
    scores, _ = stacked.forward(weights, features)
    found = stacked.curve(weights, features, direction, scores.cos(), -scores.sin())  # of the sum of sin(score)
    for client in range(CLIENTS):

        def loss(w: Tensor, client: int = client) -> Tensor:
            parts = zip(model.parameter_names, model.spans, model.parameter_shapes, strict=True)
            named = {parameter: w[span].view(shape) for parameter, span, shape in parts}
            scores: Tensor = torch.func.functional_call(model.module, named, (features[client],))
            return scores.sin().sum()

        _, product = torch.autograd.functional.hvp(loss, weights[client], direction[client])
        torch.testing.assert_close(found[client], product)


@pytest.mark.parametrize("name", PENALTIES)
def test_a_penalty_s_prox_is_each_client_s(name: str) -> None:
    bounds: dict[str, Any] = {"lower": "-0.5", "upper": "0.5"} if name == "box" else {}
    settings = PenaltySettings(penalty=name, weight=0.4, radius=0.7, **bounds)
    penalty = make_penalty(settings, (("weight", (3, 4)), ("bias", (3,))))
    points = torch.randn(CLIENTS, 15, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    expected = torch.stack([penalty.prox(point, 0.8) for point in points])
    torch.testing.assert_close(StackedPenalty(penalty).prox(points, 0.8, out=points), expected, rtol=0, atol=0)


def test_values_are_joined_and_split() -> None:
    tensors, arrays = [torch.arange(3.0), torch.ones(3)], [np.zeros(2), np.ones(1)]
    assert join(tensors).shape == (2, 3)
    for place, part in enumerate(split(join(tensors), 2)):
        assert part.equal(tensors[place])
    assert (join([0.5, 0.5]), join([None, None])) == (0.5, None)
    apart = join(arrays)
    assert isinstance(apart, Apart)
    assert split(apart, 2) == (*arrays,)
    with pytest.raises(TypeError):
        apart * 2.0
    for unlike in ([torch.ones(2), torch.ones(3)], [torch.ones(2), None]):
        with pytest.raises(NotAlikeError):
            join(unlike)


def test_a_reply_is_the_one_that_flower_makes(monkeypatch: pytest.MonkeyPatch) -> None:
    with task_identity():
        message = Message(RecordDict(), 7, "train", group_id="3")
        message.metadata.delivered_at = "in-process"
        set_message_id(message, "message-1")
        monkeypatch.setattr(time, "time", lambda: message.metadata.created_at + 2)
        made, by_flower = make_reply(RecordDict(), message), Message(RecordDict(), reply_to=message)
    moved = {"_created_at", "_ttl"}
    assert vars(made.metadata).keys() == vars(by_flower.metadata).keys()
    assert all(value == vars(made.metadata)[key] for key, value in vars(by_flower.metadata).items() if key not in moved)
    assert made.metadata.ttl == pytest.approx(message.metadata.ttl - 2)
    assert (made.has_error(), made.has_content()) == (False, True)
    assert message.metadata.message_id == "message-1"


def test_rows_of_one_block_are_not_copied() -> None:
    block = torch.rand(3, 4)
    rows = list(block.unbind())
    assert join(rows) is block
    for others in (rows[::-1], rows[:2], [rows[0], rows[0], rows[2]]):
        assert torch.equal(join(others), torch.stack(others))
