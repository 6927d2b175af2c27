"""SCAFFOLD: whole runs step by step against the NumPy reference, its special cases, and its state."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from apps.config import Scalar
from clients.base import Site
from clients.scoring import ScaffoldClient
from methods.samples import sample_batches
from methods.scaffold import ControlChange, ControlVariate
from payloads.settings import TrainingSettings
from payloads.wire import ROUND
from problems.models import FlatModel, build_model
from strategies.local_sgd import Scaffold
from strategies.rounds.replies import Reply
from tests.algorithms.helpers import roster_of
from tests.algorithms.test_sgdm import problem_of
from tests.algorithms.watched import CLOSE, DROPS, EXACT, STEPS, Watched, lost
from tests.reference import scgdam


def reference(one: Watched) -> Iterator[scgdam.Scaffold]:
    """Yield the state after each round. A client whose reply was lost has moved its c_i; the server learns nothing."""
    problem = problem_of(one)
    state = scgdam.scaffold_start(problem, one.models[0])
    for r in range(1, one.rounds + 1):
        rest = (lambda i, k, r=r: one.batch(i, (r - 1) * STEPS + k), STEPS, one.rates(r))
        everyone = scgdam.scaffold_round(problem, state, one.participants(r), *rest)
        learnt = scgdam.scaffold_round(problem, state, one.answered(r), *rest, one.training.server_learning_rate)
        state = learnt._replace(controls=everyone.controls)
        yield state


def assert_follows(one: Watched) -> None:
    """Assert that models, c, and the c_i agree. The c_i are sums of the changes sent, including lost replies."""
    assert one.told(1, ControlVariate) is None
    controls = np.zeros((one.clients, len(one.models[0])))
    for r, state in enumerate(reference(one), start=1):
        np.testing.assert_allclose(one.models[r], state.w, **CLOSE)
        for i, payload in one.returned(r, ControlChange).items():
            controls[i] += payload.change
        np.testing.assert_allclose(controls, state.controls, **CLOSE)
        if r < one.rounds:
            np.testing.assert_allclose(one.told(r + 1, ControlVariate).control, state.control, **CLOSE)
    assert np.abs(one.models[-1] - one.models[0]).max() > 0.05


VARIANTS: dict[str, dict[str, Scalar]] = {
    "base": {},
    "drops": DROPS,
    "drops-at": {"lr-decay": 0.1, "lr-decay-at": "0.3,0.75"},
    "half": {"fraction-train": 0.5, **DROPS, "num-server-rounds": 8},
    "half-server-step": {"fraction-train": 0.5, "server-learning-rate": 1.4, "num-server-rounds": 8},
    "full-batch": {"batch-size": 0, "learning-rate": 0.7, "server-learning-rate": 0.6},
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_it_follows_the_reference(variant: str, data: dict[str, Scalar], tmp_path: Path) -> None:
    assert_follows(Watched(tmp_path, {**data, "strategy": "scaffold", **VARIANTS[variant]}))


@pytest.mark.parametrize(("fraction", "partition"), [(1.0, 1), (0.5, None)])
def test_it_follows_the_reference_where_a_reply_is_lost(
    fraction: float, partition: int | None, data: dict[str, Scalar], tmp_path: Path
) -> None:
    config: dict[str, Scalar] = {**data, "strategy": "scaffold", "fraction-train": fraction}
    if partition is None:
        partition = Watched(tmp_path, config).participants(2)[-1]
    one = Watched(tmp_path, config, tamper=lost(2, partition))
    assert [list(line["dropped"]) for line in one.run.lines[1:]] == [[], [str(partition)], [], [], []]
    assert_follows(one)


# Special cases.


@pytest.mark.parametrize("more", [{}, DROPS])
def test_one_client_is_local_sgd(more: dict[str, Scalar], data: dict[str, Scalar], tmp_path: Path) -> None:
    one, other = (
        Watched(tmp_path, {**data, **more, "strategy": name}, clients=1) for name in ("scaffold", "local-sgd")
    )
    np.testing.assert_allclose(one.models, other.models, **EXACT)
    np.testing.assert_allclose(one.models[1:3], other.models[1:3], rtol=0, atol=1e-14)


# State.


def make_client(**training: float) -> ScaffoldClient:
    rng = np.random.default_rng(0)
    site = Site.from_arrays(0, rng.normal(size=(8, 2)), np.arange(8) % 2)
    return ScaffoldClient(site, FlatModel(build_model("linear", (2,), 0)), TrainingSettings(batch_size=4, **training))


def test_the_control_of_tiny_steps_keeps_its_digits() -> None:
    """In float32, w_0 - w_K has two digits for steps of 1e-6, and none for steps of zero."""
    start = np.array([1.0, -2.0, 0.5], np.float32)
    controls = []
    for rate in (1e-6, 1e-60):
        client = make_client(learning_rate=rate, local_steps=2)
        client.fit([start], {"server-round": 1})
        controls.append(client.state.control)
    drained = make_client(local_steps=2, lr_decay=1e-200, lr_decay_every=1)
    drained.fit([start], {"server-round": 3})
    gradients = []
    for task in (drained.task({ROUND: 1}), drained.task({ROUND: 3})):
        batches = sample_batches(task, None)
        gradients.append([task.f.gradient(torch.tensor(start), batch).numpy().copy() for _, batch in batches])
    for control in controls:
        np.testing.assert_allclose(control, np.mean(gradients[0], axis=0), rtol=1e-5)
    np.testing.assert_allclose(drained.state.control, gradients[1][-1], rtol=1e-5)
    np.testing.assert_array_equal(drained.model.arrays()[0], start)


def test_the_server_keeps_c_in_float64_whatever_travels() -> None:
    strategy = Scaffold(TrainingSettings(server_learning_rate=0.7))
    strategy.roster = roster_of([Site.from_arrays(i, np.ones((2, 1)), np.array([0, 1])) for i in range(3)])
    strategy.model = [np.zeros(4, np.float32)]
    change = ControlChange(change=np.full(4, 0.1, np.float32))
    (model,), _ = strategy.combine(1, [Reply(i, [np.ones(4, np.float32)], change, 2) for i in range(3)])
    state, down = strategy.snapshot(), strategy.down(2)
    assert state is not None
    assert down is not None
    assert (model.dtype, state.control.dtype, down.control.dtype) == (np.float32, np.float64, np.float32)
