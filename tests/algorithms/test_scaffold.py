"""SCAFFOLD: whole runs step by step against the NumPy reference, its special cases, what travels, and what is kept."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from apps.config import ConfigError, Scalar, parse_run_config
from apps.registry import ALGORITHMS
from clients.base import Site
from clients.scaffold import ScaffoldClient
from payloads.coda import ControlChange, ControlVariate
from payloads.record import PayloadError
from payloads.settings import TrainingSettings
from problems.models import FlatModel, build_model
from strategies.replies import Reply
from strategies.scaffold import Scaffold
from tests.algorithms.helpers import roster_of
from tests.algorithms.test_sgdm import (
    CLOSE,
    DROPS,
    EXACT,
    KEYS,
    ROUNDS,
    SITES,
    STEPS,
    Watched,
    data,
    lost,
    rows_of,
)
from tests.battery.federation import federate, model_of
from tests.reference import scgdam

__all__ = ["data"]  # fixture


def reference(one: Watched) -> Iterator[scgdam.Scaffold]:
    """The state after every round. A client whose reply was lost has moved its c_i; the server learns nothing."""
    problem = one.problem()
    state = scgdam.scaffold_start(problem, one.models[0])
    for r in range(1, one.rounds + 1):
        rest = (lambda i, k, r=r: one.batch(i, (r - 1) * STEPS + k), STEPS, one.rates(r))
        everyone = scgdam.scaffold_round(problem, state, one.participants(r), *rest)
        learnt = scgdam.scaffold_round(problem, state, one.answered(r), *rest, one.training.server_learning_rate)
        state = learnt._replace(controls=everyone.controls)
        yield state


def assert_follows(one: Watched) -> None:
    """Models, c, and the c_i that the changes on the wire add up to, lost ones included."""
    controls = np.zeros((one.clients, len(one.models[0])))
    for r, state in enumerate(reference(one), start=1):
        np.testing.assert_allclose(one.models[r], state.w, **CLOSE)
        for i, payload in one.returned(r, ControlChange).items():
            controls[i] += payload.change
        np.testing.assert_allclose(controls, state.controls, **CLOSE)
        if r < one.rounds:
            np.testing.assert_allclose(one.sent(r + 1, ControlVariate).control, state.control, **CLOSE)
    assert np.abs(one.models[-1] - one.models[0]).max() > 0.05


# Step by step.

VARIANTS: dict[str, dict[str, Scalar]] = {
    "base": {},
    "drops": DROPS,
    "drops-at": {"lr-decay": 0.1, "lr-decay-at": "0.3,0.75"},
    "server-step": {"server-learning-rate": 0.6},
    "half": {"fraction-train": 0.5, **DROPS, "num-server-rounds": 8},
    "half-server-step": {"fraction-train": 0.5, "server-learning-rate": 1.4, "num-server-rounds": 8},
    "one-step": {"batch-size": 0, "learning-rate": 0.7},
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_it_follows_the_reference(variant: str, data: dict[str, Scalar], tmp_path: Path) -> None:
    assert_follows(Watched(tmp_path, {**data, "strategy": "scaffold", **VARIANTS[variant]}))


def test_it_follows_the_reference_where_every_site_has_one_class(tmp_path: Path) -> None:
    labels = rows_of([0] * 60 + [1] * 20, tmp_path / "data.npz")
    assert_follows(Watched(tmp_path, {**labels, "strategy": "scaffold"}))


@pytest.mark.parametrize("fraction", [1.0, 0.5])
def test_it_follows_the_reference_where_a_reply_is_lost(
    fraction: float, data: dict[str, Scalar], tmp_path: Path
) -> None:
    config: dict[str, Scalar] = {**data, "strategy": "scaffold", "fraction-train": fraction}
    partition = Watched(tmp_path, config).participants(2)[-1]
    one = Watched(tmp_path, config, tamper=lost(2, partition))
    assert [list(line["dropped"]) for line in one.run.lines[1:]] == [[], [str(partition)], [], [], []]
    assert_follows(one)
    controls, missing = np.zeros(4), one.returned(2, ControlChange)[partition].change
    for r in range(1, ROUNDS):
        controls += sum(payload.change for payload in one.returned(r, ControlChange).values()) / SITES
    np.testing.assert_allclose(one.sent(ROUNDS, ControlVariate).control, controls - missing / SITES, **EXACT)


@pytest.mark.parametrize("variant", ["base", "drops", "half", "server-step"])
def test_the_control_is_option_two_s(variant: str, data: dict[str, Scalar], tmp_path: Path) -> None:
    """c_i_new - c_i = (w_0 - w_K) / (sum of the step sizes) - c, of what was on the wire; c is the mean of all c_i."""
    one = Watched(tmp_path, {**data, "strategy": "scaffold", **VARIANTS[variant]})
    total = np.zeros(4)
    for r in range(1, one.rounds + 1):
        told = one.sent(r, ControlVariate)
        control = np.zeros(4) if told is None else told.control
        np.testing.assert_allclose(control, total / SITES, **EXACT)
        for e in one.exchanges(r):
            moved = model_of(e.message)[0] - model_of(e.reply)[0]
            change = one.returned(r, ControlChange)[e.partition].change
            np.testing.assert_allclose(change, moved / sum(one.rates(r)) - control, **CLOSE)
            total += change


# Special cases.


@pytest.mark.parametrize("more", [{}, DROPS])
def test_one_client_is_local_sgd(more: dict[str, Scalar], data: dict[str, Scalar], tmp_path: Path) -> None:
    one, other = (
        Watched(tmp_path, {**data, **more, "strategy": name}, clients=1) for name in ("scaffold", "local-sgd")
    )
    np.testing.assert_allclose(one.models, other.models, **EXACT)
    np.testing.assert_allclose(one.models[1:3], other.models[1:3], rtol=0, atol=1e-14)


def test_clients_with_the_same_samples_are_local_sgd(tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    labels = np.tile([0, 1, 0, 0, 1], SITES)
    features = np.tile(rng.normal(size=(5, 3)), (SITES, 1)).astype(np.float32)
    test = {"X_test": features[:5], "y_test": labels[:5]}
    np.savez(tmp_path / "data.npz", X=features, y=labels, **test)
    same: dict[str, Scalar] = {"dataset": "npz", "data-dir": str(tmp_path / "data.npz"), "partition": "consecutive"}
    one, other = (
        Watched(tmp_path, {**same, **DROPS, "batch-size": 0, "strategy": name}) for name in ("scaffold", "local-sgd")
    )
    np.testing.assert_allclose(one.models, other.models, **EXACT)
    for r in range(1, ROUNDS + 1):
        first, *others = (payload.change for payload in one.returned(r, ControlChange).values())
        for change in others:
            np.testing.assert_allclose(change, first, **EXACT)


def test_the_first_round_is_local_sgd_s(data: dict[str, Scalar], tmp_path: Path) -> None:
    one, other = (Watched(tmp_path, {**data, "strategy": name}) for name in ("scaffold", "local-sgd"))
    for mine, theirs in zip(one.exchanges(1), other.exchanges(1), strict=True):
        np.testing.assert_array_equal(model_of(mine.reply)[0], model_of(theirs.reply)[0])
    np.testing.assert_allclose(one.models[1], other.models[1], **EXACT)
    assert np.abs(one.models[2] - other.models[2]).max() > 1e-3


def test_the_controls_undo_the_sites_drift(data: dict[str, Scalar], tmp_path: Path) -> None:
    """On full batches the mean gradient vanishes at SCAFFOLD's limit, and not at local SGD's."""
    keys: dict[str, Scalar] = {"batch-size": 0, "num-server-rounds": 100, "evaluate-every": 100, "local-steps": 10}
    norms = []
    for name in ("scaffold", "local-sgd"):
        one = Watched(tmp_path, {**data, **keys, "strategy": name})
        gradients = [one.problem().ce_gradient(i, one.models[-1]) for i in range(SITES)]
        norms.append(np.linalg.norm(np.mean(gradients, axis=0)))
    assert norms[0] < 1e-4
    assert norms[1] > 5e-3


# What travels and what is kept.


def test_the_bytes_of_a_round(data: dict[str, Scalar], tmp_path: Path) -> None:
    vector = 4 * 8
    one = Watched(tmp_path, {**data, "strategy": "scaffold"})
    assert one.sent(1, ControlVariate) is None
    assert [line["bytes_up"] for line in one.run.lines[1:]] == [SITES * 2 * vector] * ROUNDS
    assert [line["bytes_down"] for line in one.run.lines[1:]] == [SITES * vector, *[SITES * 2 * vector] * (ROUNDS - 1)]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_wire_has_the_run_s_number_type(dtype: str, data: dict[str, Scalar], tmp_path: Path) -> None:
    one = Watched(tmp_path, {**data, "strategy": "scaffold", "dtype": dtype})
    found = [one.sent(r, ControlVariate).control for r in range(2, ROUNDS + 1)]
    found += [payload.change for r in range(1, ROUNDS + 1) for payload in one.returned(r, ControlChange).values()]
    assert {array.dtype.name for array in found} == {dtype}


def test_the_server_keeps_c_in_float64_and_goes_on_to_the_bit() -> None:
    rng = np.random.default_rng(4)
    sites = [Site.from_arrays(i, np.ones((2, 1)), np.array([0, 1])) for i in range(3)]
    whole, cut = (Scaffold(TrainingSettings(server_learning_rate=0.7)) for _ in range(2))
    for strategy in (whole, cut):
        strategy.roster = roster_of(sites)
        strategy._model = [np.zeros(4, np.float32)]
    assert whole.snapshot() is None
    for r in range(1, 5):
        replies = [
            Reply(i, [rng.normal(size=4).astype(np.float32)], ControlChange(change=rng.normal(size=4).astype("f")), 2)
            for i in range(3)
        ]
        answers = [strategy.combine(r, replies)[0][0] for strategy in (whole, cut)]
        assert answers[0].tobytes() == answers[1].tobytes()
        assert answers[0].dtype == np.float32
        state = cut.snapshot()
        assert state is not None
        assert state.control.dtype == np.float64
        cut = Scaffold(cut.training)
        cut.roster, cut._model = whole.roster, [answers[0]]
        whole._model = [answers[0]]
        cut.restore(ControlVariate(control=state.control.copy()).check())
        assert whole.down(r + 1).control.tobytes() == cut.down(r + 1).control.tobytes()
        assert cut.down(r + 1).control.dtype == np.float32


@pytest.mark.parametrize("fraction", [1.0, 0.5])
@pytest.mark.parametrize("cut", [1, 3])
def test_a_resumed_run_is_the_whole_one(fraction: float, cut: int, data: dict[str, Scalar], tmp_path: Path) -> None:
    config = {**KEYS, **data, "strategy": "scaffold", "fraction-train": fraction, "dtype": "float32"}
    config |= {"checkpoint-every": cut}
    whole, _ = federate(tmp_path / "whole", config, SITES)
    federate(tmp_path / "parts", {**config, "num-server-rounds": cut}, SITES)
    parts, _ = federate(tmp_path / "parts", {**config, "resume": True}, SITES)
    assert parts.untimed == whole.untimed
    assert parts.model_bytes == whole.model_bytes


def make_client(**training: float) -> ScaffoldClient:
    rng = np.random.default_rng(0)
    site = Site.from_arrays(0, rng.normal(size=(8, 2)), np.arange(8) % 2)
    return ScaffoldClient(site, FlatModel(build_model("linear", (2,), 0)), TrainingSettings(batch_size=4, **training))


def test_a_control_of_another_model_is_refused() -> None:
    client = make_client()
    client.state = ControlVariate(control=np.zeros(7, np.float32))
    with pytest.raises(PayloadError, match=r"ControlVariate.control: got shape \(7,\), expected \(3\)"):
        client.fit([np.zeros(3, np.float32)], {"server-round": 1})


def test_the_control_of_tiny_steps_keeps_its_digits() -> None:
    """In float32, w_0 - w_K of steps of 1e-6 has two digits; of steps of zero there is none."""
    start = np.array([1.0, -2.0, 0.5], np.float32)
    controls = []
    for rate in (1e-6, 1e-60):
        client = make_client(learning_rate=rate, local_steps=2)
        client.fit([start], {"server-round": 1})
        controls.append(client.state.control)
    drained = make_client(local_steps=2, lr_decay=1e-200, lr_decay_every=1)
    drained.fit([start], {"server-round": 3})
    gradients = []
    for batch in (drained.steps(1), drained.steps(3)):
        drained.model.load([start])
        gradients.append([drained.gradient(rows).numpy().copy() for _, rows in batch])
    for control in controls:
        np.testing.assert_allclose(control, np.mean(gradients[0], axis=0), rtol=1e-5)
    np.testing.assert_allclose(drained.state.control, gradients[1][-1], rtol=1e-5)
    np.testing.assert_array_equal(drained.model.arrays()[0], start)


# Errors.


@pytest.mark.parametrize(
    ("values", "parts"),
    [
        ({"server-learning-rate": 0.0}, ["server-learning-rate: got 0.0", "number > 0"]),
        ({"loss": "ratio-loss"}, ["loss: got 'ratio-loss'", "'scaffold' allows auto, cross-entropy"]),
    ],
)
def test_a_refusal_names_key_value_and_what_is_allowed(values: dict[str, Scalar], parts: list[str]) -> None:
    with pytest.raises(ConfigError) as refused:
        parse_run_config({"strategy": "scaffold", **values})
    assert [part for part in parts if part not in str(refused.value)] == []


def test_any_fraction_of_the_clients_may_train() -> None:
    assert not ALGORITHMS["scaffold"].strategy.needs_all_clients
    assert parse_run_config({"strategy": "scaffold", "fraction-train": 0.1}).training.fraction_train == 0.1
