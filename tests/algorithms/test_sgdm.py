"""Local SGD with momentum, on the cross-entropy and on the ratio loss: whole runs step by step against the NumPy
reference, special cases, what travels, and refusals. `Watched` and the data serve the other baselines' tests too."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Message
from torch import nn

from apps import resources
from apps.config import ConfigError, Scalar, parse_run_config
from apps.evaluators import make_evaluator
from clients.base import Site
from clients.sgdm import LocalSGDMClient, LocalSGDMRatioClient
from payloads.record import Payload
from payloads.settings import TrainingSettings
from payloads.sgdm import LocalMomentum, SGDMDown, SGDMSettings
from payloads.wire import PAYLOAD
from problems.models import FlatModel, build_model
from problems.objectives.classification import (
    cross_entropy,
    cross_entropy_slope,
    ratio_loss,
    ratio_slope,
    ratio_weights,
)
from problems.randomness import Purpose, stream
from problems.sampling import EpochSampler
from strategies.roster import StrategyError
from strategies.sgdm import LocalSGDM, LocalSGDMRatio
from tests.algorithms.helpers import roster_of
from tests.battery.federation import Exchange, federate, flat_config, model_of, save_npz
from tests.reference import scgdam
from tests.reference.minimax import Array

CLOSE: dict[str, float] = {"rtol": 1e-10, "atol": 1e-10}
EXACT: dict[str, float] = {"rtol": 1e-12, "atol": 1e-12}
SITES, ROUNDS, STEPS, ROWS = 4, 5, 3, 110
KEYS: dict[str, Scalar] = {
    "dtype": "float64",
    "model": "linear",
    "num-server-rounds": ROUNDS,
    "local-steps": STEPS,
    "batch-size": 5,
    "learning-rate": 0.3,
    "seed": 3,
    "checkpoint-every": 0,
}
DROPS: dict[str, Scalar] = {"lr-decay": 0.5, "lr-decay-every": 2}  # inside rounds
Tamper = Callable[[Exchange], Message]


class WithBatchNorm(nn.Module):
    """A linear score of normalised features: six buffers."""

    def __init__(self, input_shape: tuple[int, ...]) -> None:
        super().__init__()
        self.norm, self.output = nn.BatchNorm1d(*input_shape), nn.Linear(*input_shape, 1)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.output(self.norm(features))
        return scores.squeeze(1)


BATCH_NORM: dict[str, Scalar] = {"model": f"{__name__}:WithBatchNorm"}


def rows_of(labels: Sequence[int], path: Path) -> dict[str, Scalar]:
    """Three Gaussian features a row, by their label."""
    rng, positive = np.random.default_rng(5), np.asarray(labels)
    return save_npz(path, rng.normal(size=(len(positive), 3)) + 0.7 * positive[:, None], positive)


@pytest.fixture
def data(tmp_path: Path) -> dict[str, Scalar]:
    """Sites of unequal sizes and unequal shares of positives, one without any."""
    labels = (np.arange(ROWS) % 10 < 3).astype(int)
    return {**rows_of(labels.tolist(), tmp_path / "data.npz"), "partition": "positives-skewed", "partition-alpha": 0.6}


class Watched:
    """A whole run, what was on its wires, and what the reference needs to repeat it."""

    def __init__(
        self, folder: Path, flat: dict[str, Scalar], clients: int = SITES, tamper: Tamper | None = None
    ) -> None:
        path = folder / f"run-{len(list(folder.glob('run-*')))}"
        self.run, self.tap = federate(path, {**KEYS, **flat}, clients, tamper)
        self.config = parse_run_config(flat_config(path, {**KEYS, **flat}))
        self.training, self.settings, self.clients = self.config.training, self.config.family, clients
        self.data = resources.federated_data(self.config.data, clients)
        self.sizes = [len(self.data.client(i).labels) for i in range(clients)]

    @cached_property
    def models(self) -> list[Array]:
        """(d,) the model before round 1 and after every round, of the linear model."""
        sent = [model_of(self.exchanges(r)[0].message)[0].copy() for r in range(1, self.rounds + 1)]
        last = self.run.model
        return [*sent, np.append(last["output.weight"], last["output.bias"])]

    @property
    def rounds(self) -> int:
        return self.training.num_server_rounds

    def exchanges(self, server_round: int) -> list[Exchange]:
        return [e for e in self.tap.exchanges if e.server_round == server_round]

    def sent(self, server_round: int, kind: type[Payload]) -> Any:
        """The one payload that all of a round's clients got."""
        payloads = [e.message.content.config_records.get(PAYLOAD) for e in self.exchanges(server_round)]
        assert all(payload == payloads[0] for payload in payloads)
        return None if payloads[0] is None else kind.from_record(payloads[0])

    def returned(self, server_round: int, kind: type[Payload]) -> dict[int, Any]:
        """The payload of every reply of a round, by partition."""
        replies = {e.partition: e.reply.content.config_records for e in self.exchanges(server_round)}
        return {i: kind.from_record(records[PAYLOAD]) for i, records in sorted(replies.items()) if PAYLOAD in records}

    # for the reference

    def problem(self) -> scgdam.CompositionalAUC:
        shares = [self.data.client(i) for i in range(self.clients)]
        features = [share.features.astype(np.float64) for share in shares]
        return scgdam.CompositionalAUC(features, [share.labels.astype(int) for share in shares], 0.5, 0.0)

    def counts(self) -> Array:
        """Negatives and positives of all sites."""
        return np.bincount(np.concatenate([self.data.client(i).labels for i in range(self.clients)]).astype(int))

    def participants(self, server_round: int) -> list[int]:
        count = max(1, round(self.training.fraction_train * self.clients))
        if count == self.clients:
            return list(range(count))
        rng = stream(self.training.seed, Purpose.SAMPLE_CLIENTS, server_round)
        return sorted(rng.choice(self.clients, count, replace=False).tolist())

    def answered(self, server_round: int) -> list[int]:
        dropped = {int(site) for site in self.run.lines[server_round]["dropped"]}
        return [i for i in self.participants(server_round) if i not in dropped]

    def batch(self, client: int, iteration: int) -> Array:
        """The product's batch of an iteration, counted over the run."""
        training, everyone = self.training, np.arange(self.sizes[client])
        return EpochSampler(everyone, training.batch_size, training.seed, Purpose.SAMPLES, client).batch(iteration)

    def rates(self, server_round: int) -> list[float]:
        """The learning rates of a round's steps, written out."""
        training, total = self.training, self.rounds * self.training.local_steps
        iterations = range((server_round - 1) * training.local_steps, server_round * training.local_steps)
        places = [float(part) * total for part in training.lr_decay_at.split(",") if part]
        drops = [
            (t // training.lr_decay_every if training.lr_decay_every else 0) + sum(t >= place for place in places)
            for t in iterations
        ]
        return [training.learning_rate * training.lr_decay**count for count in drops]


def lost(server_round: int, partition: int) -> Tamper:
    """That client trains in that round, and its reply cannot be read."""

    def tamper(exchange: Exchange) -> Message:
        if (exchange.server_round, exchange.partition) == (server_round, partition):
            del exchange.reply.content["metrics"]
        return exchange.reply

    return tamper


def reference(one: Watched) -> Iterator[tuple[Array, Array]]:
    """(w, m) after every round."""
    problem, settings, w, momentum = one.problem(), one.settings, one.models[0], None
    weights = None
    if one.config.run.strategy == "local-sgdm-rl":
        weights = scgdam.ratio_weights(one.counts(), settings.ratio_alpha, settings.ratio_beta)
    for r in range(1, one.rounds + 1):
        rest = ((r - 1) * STEPS, one.rates(r), settings.momentum, weights)
        w, momentum = scgdam.localsgdm_round(problem, w, momentum, one.answered(r), one.batch, STEPS, *rest)
        yield w, momentum


def assert_follows(one: Watched) -> None:
    expected = list(reference(one))
    for r, (w, _) in enumerate(expected, start=1):
        np.testing.assert_allclose(one.models[r], w, **CLOSE)
    for r, (_, momentum) in enumerate(expected[:-1], start=1):
        np.testing.assert_allclose(one.sent(r + 1, SGDMDown).momentum, momentum, **CLOSE)
    assert np.abs(one.models[-1] - one.models[0]).max() > 0.05


# Step by step.

VARIANTS: dict[str, dict[str, Scalar]] = {
    "base": {},
    "drops": {**DROPS, "sgdm.momentum": 0.4},
    "drops-at": {"lr-decay": 0.1, "lr-decay-at": "0.3,0.75"},
    "half": {"fraction-train": 0.5, "sgdm.momentum": 0.7, **DROPS},
    "no-memory": {"sgdm.momentum": 1.0},
    "weights": {"sgdm.ratio-alpha": 0.3, "sgdm.ratio-beta": 0.9},
    "full-batch": {"batch-size": 0},
}
both = pytest.mark.parametrize("name", ["local-sgdm", "local-sgdm-rl"])


def test_the_sites_are_unequal(data: dict[str, Scalar], tmp_path: Path) -> None:
    one = Watched(tmp_path, {**data, "strategy": "local-sgdm", "num-server-rounds": 1})
    positives = [int(one.data.client(i).labels.sum()) for i in range(SITES)]
    assert len(set(one.sizes)) == SITES
    assert min(positives) == 0
    assert one.counts().tolist() == [77, 33]


@both
@pytest.mark.parametrize("variant", VARIANTS)
def test_it_follows_the_reference(name: str, variant: str, data: dict[str, Scalar], tmp_path: Path) -> None:
    assert_follows(Watched(tmp_path, {**data, "strategy": name, **VARIANTS[variant]}))


@both
def test_it_follows_the_reference_where_every_site_has_one_class(name: str, tmp_path: Path) -> None:
    labels = rows_of([0] * 60 + [1] * 20, tmp_path / "data.npz")
    assert_follows(Watched(tmp_path, {**labels, "strategy": name}))


@both
def test_it_follows_the_reference_where_a_reply_is_lost(name: str, data: dict[str, Scalar], tmp_path: Path) -> None:
    one = Watched(tmp_path, {**data, "strategy": name}, tamper=lost(2, 1))
    assert [list(line["dropped"]) for line in one.run.lines[1:]] == [[], ["1"], [], [], []]
    assert_follows(one)


# Special cases.


@pytest.mark.parametrize("more", [{}, DROPS, {"fraction-train": 0.5}])
def test_without_memory_it_is_local_sgd(more: dict[str, Scalar], data: dict[str, Scalar], tmp_path: Path) -> None:
    one = Watched(tmp_path, {**data, **more, "strategy": "local-sgdm", "sgdm.momentum": 1.0})
    other = Watched(tmp_path, {**data, **more, "strategy": "local-sgd"})
    np.testing.assert_array_equal(one.models, other.models)


def test_without_the_ratio_it_is_the_cross_entropy(data: dict[str, Scalar], tmp_path: Path) -> None:
    one = Watched(tmp_path, {**data, "strategy": "local-sgdm"})
    other = Watched(tmp_path, {**data, "strategy": "local-sgdm-rl", "sgdm.ratio-beta": 0.0})
    np.testing.assert_array_equal(one.models, other.models)


def test_on_balanced_classes_the_ratio_loss_is_a_scaled_cross_entropy(tmp_path: Path) -> None:
    balanced = {**rows_of([0, 1] * 40, tmp_path / "data.npz"), "partition": "positives-skewed"}
    one = Watched(tmp_path, {**balanced, "strategy": "local-sgdm-rl", "sgdm.ratio-alpha": 0.5, "sgdm.ratio-beta": 0.25})
    other = Watched(tmp_path, {**balanced, "strategy": "local-sgdm", "learning-rate": 0.3 * 0.75})
    np.testing.assert_allclose(one.models, other.models, **EXACT)


def test_the_rare_class_weighs_more(data: dict[str, Scalar], tmp_path: Path) -> None:
    """Raising its weight raises the scores."""
    ends = [
        Watched(tmp_path, {**data, "strategy": "local-sgdm-rl", "sgdm.ratio-beta": beta}).models[-1]
        for beta in (0.0, 0.5, 2.0)
    ]
    assert ends[0][-1] < ends[1][-1] < ends[2][-1]


def test_a_client_on_its_own_takes_the_ratio_of_its_own_classes() -> None:
    labels = np.array([0, 0, 0, 1, 1])
    site = Site.from_arrays(0, np.random.default_rng(0).normal(size=(5, 2)), labels, dtype=torch.float64)
    ends = []
    for inbox in (None, SGDMDown(class_counts=np.array([30, 20])), SGDMDown(class_counts=np.array([20, 30]))):
        model = FlatModel(build_model("linear", (2,), 0), dtype=torch.float64)
        client = LocalSGDMRatioClient(site, model, TrainingSettings(dtype="float64"))
        client.inbox = inbox
        ends.append(client.fit([np.zeros(3)], {"server-round": 1})[0][0])
    np.testing.assert_array_equal(ends[0], ends[1])
    assert np.abs(ends[0] - ends[2]).max() > 1e-4


# The loss.


def test_the_weights_are_those_of_the_reference() -> None:
    for counts in ([77, 33], [3, 900], [1, 1]):
        np.testing.assert_allclose(ratio_weights(counts, 0.7, 0.2), scgdam.ratio_weights(counts, 0.7, 0.2), rtol=1e-15)
    assert ratio_weights(np.array([90, 10]), 1.0, 0.1) == (1.0 + 0.1 / 9, 1.0 + 0.1 * 9)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_value_and_slope_of_the_ratio_loss(dtype: torch.dtype) -> None:
    rng = np.random.default_rng(1)
    logits, labels = rng.normal(0, 3, 12), (np.arange(12) < 4).astype(float)
    weights = (0.8, 2.5)
    entropies = np.logaddexp(0, logits) - labels * logits
    expected = np.mean(np.where(labels == 1, 2.5, 0.8) * entropies)
    scores, targets = torch.tensor(logits, dtype=dtype, requires_grad=True), torch.tensor(labels, dtype=dtype)
    value = ratio_loss(scores, targets, weights)
    assert value.dtype is dtype
    tolerance = 1e-6 if dtype is torch.float32 else 1e-14
    assert float(value.detach()) == pytest.approx(expected, rel=tolerance)
    value.backward()
    slope = ratio_slope(scores.detach(), targets, weights)
    torch.testing.assert_close(slope / 12, scores.grad, rtol=10 * tolerance, atol=tolerance)
    assert slope.dtype is dtype


def test_equal_weights_scale_the_cross_entropy() -> None:
    logits, labels = torch.tensor([2.0, -1.0, 0.5, 0.0]).double(), torch.tensor([1.0, 0.0, 0.0, 1.0]).double()
    torch.testing.assert_close(ratio_loss(logits, labels, (3.0, 3.0)), 3 * cross_entropy(logits, labels))
    torch.testing.assert_close(ratio_slope(logits, labels, (3.0, 3.0)), 3 * cross_entropy_slope(logits, labels))
    assert torch.equal(ratio_slope(logits, labels, (1.0, 1.0)), cross_entropy_slope(logits, labels))


def test_the_reported_loss_has_the_test_set_s_own_ratio(tmp_path: Path) -> None:
    config: dict[str, Scalar] = {"dataset": "digits", "num-server-rounds": 1}
    config |= {"sgdm.ratio-alpha": 0.5, "sgdm.ratio-beta": 2.0}
    one = Watched(tmp_path, {**config, "strategy": "local-sgdm-rl"})
    test = one.data.test
    positives, n = int(test.labels.sum()), len(test.labels)
    assert positives / n < 0.2
    logits = test.features.reshape(n, -1).astype(float) @ one.models[1][:-1] + one.models[1][-1]
    weight = np.where(
        test.labels == 1, 0.5 + 2.0 * (n - positives) / positives, 0.5 + 2.0 * positives / (n - positives)
    )
    expected = np.mean(weight * (np.logaddexp(0, logits) - test.labels * logits))
    assert one.run.lines[1]["loss"] == pytest.approx(expected, rel=1e-9)
    entropy = make_evaluator(parse_run_config({**KEYS, "dataset": "digits", "strategy": "local-sgdm"}), one.data)
    assert entropy([one.models[1]])["loss"] == pytest.approx(np.mean(np.logaddexp(0, logits) - test.labels * logits))


# What travels and what is kept.


@both
def test_the_momentum_travels_both_ways_and_is_averaged(name: str, data: dict[str, Scalar], tmp_path: Path) -> None:
    one = Watched(tmp_path, {**data, "strategy": name})
    sent = [one.sent(r, SGDMDown) for r in range(1, ROUNDS + 1)]
    assert sent[0].momentum is None
    counts = None if name == "local-sgdm" else [77, 33]
    assert [None if p.class_counts is None else p.class_counts.tolist() for p in sent] == [counts] * ROUNDS
    for r in range(1, ROUNDS):
        returned = [payload.momentum for payload in one.returned(r, LocalMomentum).values()]
        assert len(returned) == SITES
        np.testing.assert_allclose(sent[r].momentum, np.mean(returned, axis=0), **EXACT)


@both
def test_the_bytes_of_a_round(name: str, data: dict[str, Scalar], tmp_path: Path) -> None:
    vector, counts = 4 * 8, 16 if name == "local-sgdm-rl" else 0
    one = Watched(tmp_path, {**data, "strategy": name})
    assert [line["bytes_up"] for line in one.run.lines[1:]] == [SITES * 2 * vector] * ROUNDS
    down = [line["bytes_down"] for line in one.run.lines[1:]]
    assert down == [SITES * (vector + counts), *[SITES * (2 * vector + counts)] * (ROUNDS - 1)]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_momentum_has_the_run_s_number_type(dtype: str, data: dict[str, Scalar], tmp_path: Path) -> None:
    one = Watched(tmp_path, {**data, "strategy": "local-sgdm-rl", "dtype": dtype})
    found = [one.sent(r, SGDMDown).momentum for r in range(2, ROUNDS + 1)]
    found += [payload.momentum for payload in one.returned(1, LocalMomentum).values()]
    assert {momentum.dtype.name for momentum in found} == {dtype}


@pytest.mark.parametrize("name", ["local-sgdm", "local-sgdm-rl", "scaffold", "fedprox"])
def test_buffers_are_averaged_with_the_model(name: str, data: dict[str, Scalar], tmp_path: Path) -> None:
    server: dict[str, Scalar] = {"server-learning-rate": 0.5} if name == "scaffold" else {}
    one = Watched(tmp_path, {**data, **BATCH_NORM, **server, "strategy": name, "batch-size": 0})
    weights = np.array(one.sizes) if name == "fedprox" else np.ones(SITES)
    for r in range(1, ROUNDS):
        replies = [model_of(e.reply) for e in sorted(one.exchanges(r), key=lambda e: e.partition)]
        buffers, vectors = (np.average([reply[part] for reply in replies], axis=0, weights=weights) for part in (1, 0))
        (before, _), after = model_of(one.exchanges(r)[0].message), model_of(one.exchanges(r + 1)[0].message)
        np.testing.assert_allclose(after[1], buffers, **EXACT)
        np.testing.assert_allclose(after[0], (before + vectors) / 2 if server else vectors, **EXACT)
    assert buffers.shape == (6,)
    assert np.abs(buffers[:3]).max() > 0.1


@both
@pytest.mark.parametrize("fraction", [1.0, 0.5])
@pytest.mark.parametrize("cut", [1, 3])
def test_a_resumed_run_is_the_whole_one(
    name: str, fraction: float, cut: int, data: dict[str, Scalar], tmp_path: Path
) -> None:
    config = {**KEYS, **data, "strategy": name, "fraction-train": fraction, "dtype": "float32"}
    config |= {"checkpoint-every": cut}
    whole, _ = federate(tmp_path / "whole", config, SITES)
    federate(tmp_path / "parts", {**config, "num-server-rounds": cut}, SITES)
    parts, _ = federate(tmp_path / "parts", {**config, "resume": True}, SITES)
    assert parts.untimed == whole.untimed
    assert parts.model_bytes == whole.model_bytes


# Errors.


@pytest.mark.parametrize(
    ("labels", "told"), [([[0, 0], [0]], "0 positives and 3 negatives"), ([[1], [1]], "2 positives and 0 negatives")]
)
def test_the_ratio_loss_needs_both_classes_somewhere(labels: list[list[int]], told: str) -> None:
    sites = [Site.from_arrays(i, np.ones((len(held), 2)), np.array(held)) for i, held in enumerate(labels)]
    roster, training = roster_of(sites), TrainingSettings(batch_size=1)
    LocalSGDM(training).meet(roster)
    with pytest.raises(StrategyError, match=f"all sites together: the ratio loss needs both classes, got {told}"):
        LocalSGDMRatio(training).meet(roster)


@pytest.mark.parametrize(
    ("values", "parts"),
    [
        ({"sgdm.momentum": 0.0}, ["sgdm.momentum: got 0.0", "(0, 1]"]),
        ({"sgdm.momentum": 1.1}, ["sgdm.momentum: got 1.1", "(0, 1]"]),
        ({"sgdm.ratio-alpha": -0.1}, ["sgdm.ratio-alpha: got -0.1", "number >= 0"]),
        ({"sgdm.ratio-beta": "1"}, ["sgdm.ratio-beta: got '1'", "number >= 0"]),
        (
            {"loss": "ratio-loss"},
            ["loss: got 'ratio-loss'", "'local-sgdm' allows auto, cross-entropy", "local-sgdm-rl"],
        ),
        ({"strategy": "local-sgdm-rl", "loss": "cross-entropy"}, ["loss: got 'cross-entropy'", "auto, ratio-loss"]),
        ({"loss": "ratio"}, ["loss: got 'ratio'", "ratio-loss", "did you mean"]),
    ],
)
def test_a_refusal_names_key_value_and_what_is_allowed(values: dict[str, Scalar], parts: list[str]) -> None:
    with pytest.raises(ConfigError) as refused:
        parse_run_config({"strategy": "local-sgdm", **values})
    assert [part for part in parts if part not in str(refused.value)] == []


def test_more_than_all_samples_a_batch_is_refused(data: dict[str, Scalar], tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="batch-size: got 111, but all 4 sites together hold 110 samples"):
        Watched(tmp_path, {**data, "strategy": "local-sgdm-rl", "batch-size": 111})


def test_the_halves_have_defaults_of_their_own() -> None:
    for kind, loss in ((LocalSGDM, "cross-entropy"), (LocalSGDMRatio, "ratio-loss")):
        strategy = kind()
        assert (strategy.settings, strategy.loss, strategy.snapshot()) == (SGDMSettings(), loss, None)
        assert strategy.down(1).arrays() == {}
    assert (LocalSGDMClient.default_loss, LocalSGDMRatioClient.default_loss) == ("cross-entropy", "ratio-loss")
