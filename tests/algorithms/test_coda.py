"""CoDA and CODASCA: step by step against the NumPy reference, their stages, their messages, and their special cases."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Message

from apps.config import Scalar
from methods.coda import CLASS_SCORES, ClassScores, CodaDown, CodaSettings, StageState, follow_stage
from methods.codasca import CodascaDown
from methods.method import Plan
from methods.scaffold import ControlChange
from payloads.settings import TrainingSettings
from payloads.wire import PAYLOAD
from problems.minimax import AUC_MINIMAX
from problems.randomness import Purpose, stream
from tests.algorithms.watched import CLOSE, EXACT, SITES, STEPS, Watched, lost
from tests.battery.federation import Exchange, model_of
from tests.reference import minimax
from tests.reference.minimax import Array

ROUNDS = 6
KEYS: dict[str, Scalar] = {"num-server-rounds": ROUNDS, "learning-rate": 0.2}


class Stages:
    """References, factors and restarts of the stages, in NumPy."""

    def __init__(self, one: Watched, problem: Any) -> None:
        self.one, self.settings, self.problem = one, one.settings, problem
        spread, start = self.settings.reference_noise, one.models[0]
        noise = stream(one.training.seed, Purpose.REFERENCE_NOISE).normal(0, spread, len(start))
        self.reference = noise if spread else start
        self.points: list[Array] = []

    @property
    def dual_scale(self) -> float:
        p: float = getattr(self.problem, "prior", 0.0)
        return 1 / (p * (1 - p)) if self.settings.scaled_dual else 1.0

    def begin(self, t: int, z: Array) -> tuple[Array, float]:
        """Return round t's starting point after z (t from 0), checked against its messages, and its step factor."""
        one, settings = self.one, self.settings
        stage, first, factor = minimax.coda_stage(t, settings.stage_rounds, settings.stage_growth, settings.stage_decay)
        asked: list[int] = []
        if stage and t == first:
            self.reference, self.points = np.mean(self.points, axis=0), []
            if settings.restart_dual and isinstance(self.problem, minimax.SaddleAUC):
                asked = one.participants(t + 1)
                scores = np.concatenate([self.problem.scores(z, self.problem.features[i]) for i in asked])
                labels = np.concatenate([self.problem.labels[i] for i in asked])
                z = np.append(z[:-1], minimax.best_saddle(scores, labels)[2])
        assert [e.partition for e in one.exchanges(t + 1, CLASS_SCORES)] == asked
        for e in one.exchanges(t + 1):
            np.testing.assert_allclose(model_of(e.message)[0], z, **CLOSE)
        return z, factor


def coda_reference(one: Watched) -> Iterator[Array]:
    problem, z = one.saddle(), one.models[0]
    stages = Stages(one, problem)
    for t in range(ROUNDS):
        z, factor = stages.begin(t, z)
        ends = []
        for i in one.participants(t + 1):
            end = z
            for iteration in range(t * STEPS, (t + 1) * STEPS):
                step, batch = one.rate(iteration) * factor, one.batch(i, iteration)
                pull = (one.settings.proximal, stages.reference, stages.dual_scale)
                end = minimax.coda_round(problem, end, [i], lambda i, k, b=batch: b, 1, step, step, *pull)
            ends.append(end)
        z = np.mean(ends, axis=0)
        stages.points.append(z)
        yield z


def codasca_reference(one: Watched) -> Iterator[minimax.Codasca]:
    """Yield the state after each round. A client whose reply was lost has moved its c_i; the server learns nothing."""
    problem = one.saddle()
    stages, state = Stages(one, problem), minimax.codasca_start(problem, one.models[0])
    for t in range(ROUNDS):
        z, factor = stages.begin(t, state.z)
        step, rows = one.rate(t * STEPS) * factor, lambda i, k, t=t: one.batch(i, t * STEPS + k)
        rest = (rows, STEPS, step, step, one.settings.proximal, stages.reference)
        scale = {"server_step": one.training.server_learning_rate, "scale_dual": stages.dual_scale}
        before = state._replace(z=z)
        everyone = minimax.codasca_round(problem, before, one.participants(t + 1), *rest, **scale)
        learnt = minimax.codasca_round(problem, before, one.answered(t + 1), *rest, **scale)
        state = learnt._replace(controls=everyone.controls)
        stages.points.append(state.z)
        yield state


# Step by step.

STAGES: dict[str, Scalar] = {"coda.stage-rounds": 1, "coda.stage-growth": 1.5, "coda.stage-decay": 1.7}
PL: dict[str, Scalar] = {"dataset": "synthetic-pl", "learning-rate": 0.01, "coda.proximal": 2.0, **STAGES}
VARIANTS: dict[str, dict[str, Scalar]] = {
    "base": {"coda.proximal": 0.3},
    "no-proximal": {"coda.proximal": 0.0, **STAGES},
    "stages": {"coda.proximal": 0.5, **STAGES},
    "long-stages": {"coda.proximal": 0.5, **STAGES, "coda.stage-rounds": 2},
    "no-restart": {"coda.proximal": 0.5, **STAGES, "coda.restart-dual": False},
    "scaled-dual": {"coda.proximal": 0.2, **STAGES, "coda.scaled-dual": True},
    "noise": {"coda.proximal": 0.4, **STAGES, "coda.reference-noise": 0.3},
    "sigmoid": {"coda.proximal": 0.1, **STAGES, "score": "sigmoid"},
    "half": {"coda.proximal": 0.5, **STAGES, "fraction-train": 0.5},
    "drops": {"coda.proximal": 0.1, "lr-decay": 0.5, "lr-decay-every": STEPS},
}


@pytest.mark.parametrize("variant", [*VARIANTS, "drops-inside"])
def test_coda_follows_the_reference(variant: str, data: dict[str, Scalar], tmp_path: Path) -> None:
    more = VARIANTS.get(variant, {"lr-decay": 0.5, "lr-decay-every": 2})
    one = Watched(tmp_path, {**KEYS, **data, "strategy": "coda", **more})
    np.testing.assert_allclose(one.models[1:], list(coda_reference(one)), **CLOSE)
    assert np.abs(one.models[-1] - one.models[0]).max() > 0.05


def test_coda_follows_the_reference_on_a_problem_of_its_own(tmp_path: Path) -> None:
    one = Watched(tmp_path, {**KEYS, "strategy": "coda", **PL}, clients=3)
    np.testing.assert_allclose(one.models[1:], list(coda_reference(one)), **CLOSE)


def assert_codasca_follows(one: Watched) -> None:
    known = np.zeros((one.clients, len(one.models[0])))
    for r, expected in enumerate(codasca_reference(one), start=1):
        np.testing.assert_allclose(one.models[r], expected.z, **CLOSE)
        for i, payload in one.returned(r, ControlChange).items():
            known[i] += payload.change
        np.testing.assert_allclose(known, expected.controls, **CLOSE)
        if r < ROUNDS:
            np.testing.assert_allclose(one.told(r + 1, CodascaDown).control, expected.control, **CLOSE)


CODASCA_VARIANTS = VARIANTS | {
    "server-step": {"coda.proximal": 0.5, **STAGES, "server-learning-rate": 0.7},
    "half-server-step": {"coda.proximal": 0.5, **STAGES, "fraction-train": 0.5, "server-learning-rate": 1.2},
}


@pytest.mark.parametrize("variant", CODASCA_VARIANTS)
def test_codasca_follows_the_reference(variant: str, data: dict[str, Scalar], tmp_path: Path) -> None:
    assert_codasca_follows(Watched(tmp_path, {**KEYS, **data, "strategy": "codasca", **CODASCA_VARIANTS[variant]}))


def test_codasca_follows_the_reference_on_a_problem_of_its_own(tmp_path: Path) -> None:
    assert_codasca_follows(Watched(tmp_path, {**KEYS, "strategy": "codasca", **PL}, clients=3))


def test_codasca_follows_the_reference_where_a_reply_is_lost(data: dict[str, Scalar], tmp_path: Path) -> None:
    assert_codasca_follows(Watched(tmp_path, {**KEYS, **data, "strategy": "codasca"}, tamper=lost(2, 1)))


@pytest.mark.parametrize("more", [STAGES, {"coda.scaled-dual": True, "lr-decay": 0.5, "lr-decay-every": 2}])
def test_one_client_of_codasca_is_coda(more: dict[str, Scalar], data: dict[str, Scalar], tmp_path: Path) -> None:
    common = {**KEYS, **data, "partition": "iid", "coda.proximal": 0.0, **more}
    left, right = (Watched(tmp_path, {**common, "strategy": name}, clients=1) for name in ("coda", "codasca"))
    np.testing.assert_allclose(left.models, right.models, **EXACT)


# Stages.


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({}, [False, True, True, True]),
        ({"coda.proximal": 0.0, **STAGES}, [False] * 4),
        ({"coda.reference-noise": 0.01}, [True] * 4),
        # one point is its own mean; after its restart, lambda has no reference
        ({"coda.stage-rounds": 1}, [False] * 4),
    ],
)
@pytest.mark.parametrize(("name", "kind"), [("coda", CodaDown), ("codasca", CodascaDown)])
def test_a_reference_travels_only_where_it_matters(
    name: str, kind: Any, more: dict[str, Scalar], expected: list[bool], data: dict[str, Scalar], tmp_path: Path
) -> None:
    one = Watched(tmp_path, {**KEYS, **data, "strategy": name, **more})
    down = [one.told(r, kind) for r in range(1, 5)]
    assert [payload.reference is not None for payload in down] == expected
    assert all(payload.population.tolist() == [0.3, 110 / SITES] for payload in down)
    if name == "codasca":
        assert [payload.control is not None for payload in down] == [False, True, True, True]


def tampered(data: dict[str, Scalar], folder: Path, partitions: range, counts: list[int]) -> Watched:
    """Run CoDA with clients that report these counts of negatives and positives."""

    def tamper(exchange: Exchange) -> Message:
        if exchange.phase == CLASS_SCORES and exchange.partition in partitions:
            scores = ClassScores(sums=np.array([1.0, 1.0]), counts=np.array(counts))
            exchange.reply.content[PAYLOAD] = scores.to_record()
        return exchange.reply

    return Watched(folder, {**KEYS, **data, "strategy": "coda", "coda.stage-rounds": 1}, tamper=tamper)


def test_lambda_stays_where_one_class_answers(data: dict[str, Scalar], tmp_path: Path) -> None:
    one = tampered(data, tmp_path, range(SITES), [4, 0])
    assert all(model_of(e.message)[0].tobytes() == one.models[1].tobytes() for e in one.exchanges(2))


def test_impossible_counts_are_dropped(data: dict[str, Scalar], tmp_path: Path) -> None:
    one = tampered(data, tmp_path, range(1, 2), [4, -1])
    expected = "class-scores phase: ClassScores.counts: got [4, -1], expected numbers >= 0"
    assert one.run.lines[2]["dropped"] == {"1": expected}


# State.


def test_the_server_sums_in_float64() -> None:
    state, training, settings = StageState(), TrainingSettings(dtype="float32"), CodaSettings(stage_rounds=2)
    for server_round in (1, 2):
        plan = Plan(server_round, training, settings, AUC_MINIMAX, np.ones((1, 2), np.int64))
        state = follow_stage(state, np.full(3, 0.1 * server_round, np.float32), plan)
    reference = state.reference
    assert reference is not None
    assert reference.dtype == np.float64
    np.testing.assert_allclose(reference, (np.float32(0.1) + np.float64(np.float32(0.2))) / 2, rtol=1e-15)
