"""CoDA and CODASCA: step by step against the NumPy reference, their stages, what travels, and their special cases."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ConfigRecord, Message

from apps import resources
from apps.client_app import app as client_app
from apps.config import ConfigError, Scalar, parse_run_config
from payloads.coda import (
    CLASS_SCORES,
    ClassScores,
    CodaDown,
    CodascaDown,
    CodaSettings,
    ControlChange,
    Stage,
    StageState,
    stage_of,
)
from payloads.record import Payload
from payloads.settings import TrainingSettings
from payloads.wire import CONFIG, PAYLOAD, PHASE, model_arrays, model_record, payload_record
from problems.randomness import Purpose, stream
from problems.sampling import EpochSampler
from simulations.engine import task_identity
from strategies.base import PayloadStrategy
from strategies.coda import Coda, Codasca, StagewiseStrategy
from tests.battery.federation import Exchange, Wiretap, federate, model_of, save_npz
from tests.reference import minimax
from tests.reference.minimax import Array

CLOSE: dict[str, float] = {"rtol": 1e-10, "atol": 1e-10}
EXACT: dict[str, float] = {"rtol": 1e-12, "atol": 1e-12}
SITES, ROUNDS, STEPS = 4, 6, 3
KEYS: dict[str, Scalar] = {
    "dtype": "float64",
    "model": "linear",
    "num-server-rounds": ROUNDS,
    "local-steps": STEPS,
    "batch-size": 5,
    "learning-rate": 0.2,
    "seed": 3,
}


@pytest.fixture(autouse=True)
def _identity() -> Iterator[None]:
    with task_identity():
        yield


@pytest.fixture
def data(tmp_path: Path) -> dict[str, Scalar]:
    """Sites of unequal sizes and unequal shares of positives."""
    rng = np.random.default_rng(5)
    labels = (rng.random(110) < np.linspace(0.1, 0.7, 110)).astype(int)
    return {**save_npz(tmp_path / "data.npz", rng.normal(size=(110, 3)) + 0.7 * labels[:, None], labels)} | {
        "partition": "positives-skewed"
    }


def decoded(kind: type[Payload], message: Message) -> Any:
    return kind.from_record(message.content.config_records[PAYLOAD])


class Saddle:
    """A federation of a minimax strategy in this process, round by round, from a point that is nowhere zero."""

    def __init__(self, flat: dict[str, Scalar], clients: int = SITES, tamper: Any = None) -> None:
        self.config = parse_run_config(flat)
        self.training, self.settings = self.config.training, self.config.family
        self.strategy: Any = self.fresh()
        self.grid = Wiretap(client_app, clients, flat, tamper=tamper)
        self.data = resources.federated_data(self.config.data, clients)
        if resources.is_problem(self.config):
            size = 2 * self.data.input_shape[1]
        else:
            size = resources.new_model(self.config, self.data.input_shape).dim
        self.start: Array = np.random.default_rng(1).normal(0, 0.5, size)
        self.model = model_record([self.start.astype(self.training.dtype)])

    def fresh(self) -> PayloadStrategy:
        return self.config.algorithm.strategy(self.training, self.settings)

    def round(self, server_round: int) -> Array:
        """One round; its point (d,)."""
        messages = list(self.strategy.configure_train(server_round, self.model, ConfigRecord(), self.grid))
        arrays, _ = self.strategy.aggregate_train(server_round, list(self.grid.send_and_receive(messages)))
        assert arrays is not None
        self.model = arrays
        return self.point

    def rounds(self, count: int = ROUNDS) -> list[Array]:
        return [self.round(server_round) for server_round in range(1, count + 1)]

    @property
    def point(self) -> Array:
        return model_arrays(self.model)[0].copy()

    def exchanges(self, server_round: int, phase: str = "") -> list[Exchange]:
        """The exchanges of a round's own, or of the phase before it."""
        chosen = [e for e in self.grid.exchanges if e.server_round == server_round]
        return [e for e in chosen if e.message.content.config_records[CONFIG].get(PHASE, "") == phase]

    # for the reference

    def problem(self) -> Any:
        shares = [self.data.client(i) for i in range(self.data.num_clients)]
        if resources.is_problem(self.config):
            return minimax.SyntheticPL(np.stack([share.features for share in shares]))
        labels = [share.labels.astype(int) for share in shares]
        return minimax.SaddleAUC(
            [share.features for share in shares],
            labels,
            float(np.concatenate(labels).mean()),
            sigmoid=self.training.score == "sigmoid",
        )

    def participants(self, server_round: int) -> list[int]:
        count = max(1, round(self.training.fraction_train * self.data.num_clients))
        if count == self.data.num_clients:
            return list(range(count))
        rng = stream(self.training.seed, Purpose.SAMPLE_CLIENTS, server_round)
        return sorted(rng.choice(self.data.num_clients, count, replace=False).tolist())

    def batch(self, client: int, iteration: int) -> Array:
        """The product's batch of an iteration, counted over the run."""
        training, everyone = self.training, np.arange(len(self.data.client(client).labels))
        return EpochSampler(everyone, training.batch_size, training.seed, Purpose.SAMPLES, client).batch(iteration)

    def rate(self, iteration: int) -> float:
        """learning-rate * lr-decay^(t // lr-decay-every), written out."""
        every = self.training.lr_decay_every
        return self.training.learning_rate * (self.training.lr_decay ** (iteration // every) if every else 1.0)


class Stages:
    """References, factors and restarts of the stages, in NumPy."""

    def __init__(self, one: Saddle, settings: CodaSettings) -> None:
        self.one, self.settings, self.problem = one, settings, one.problem()
        noise = stream(one.training.seed, Purpose.REFERENCE_NOISE).normal(0, settings.reference_noise, len(one.start))
        self.reference = noise if settings.reference_noise else one.start
        self.points: list[Array] = []

    @property
    def dual_scale(self) -> float:
        if not self.settings.scaled_dual:
            return 1.0
        p: float = self.problem.prior
        return 1 / (p * (1 - p))

    def begin(self, t: int, z: Array) -> tuple[Array, float]:
        """Round t from 0 at z: the point it starts from and the factor of its steps."""
        settings = self.settings
        stage, first, factor = minimax.coda_stage(t, settings.stage_rounds, settings.stage_growth, settings.stage_decay)
        if stage and t == first:
            self.reference, self.points = np.mean(self.points, axis=0), []
            if settings.restart_dual and isinstance(self.problem, minimax.SaddleAUC):
                asked = self.one.participants(t + 1)
                scores = [self.problem.scores(z, self.problem.features[i]) for i in asked]
                labels = np.concatenate([self.problem.labels[i] for i in asked])
                if 0 < labels.sum() < len(labels):
                    z = np.append(z[:-1], minimax.best_saddle(np.concatenate(scores), labels)[2])
        return z, factor


def coda_reference(one: Saddle, settings: CodaSettings) -> Iterator[Array]:
    z, stages, problem = one.start, Stages(one, settings), one.problem()
    for t in range(ROUNDS):
        z, factor = stages.begin(t, z)
        ends = []
        for i in range(problem.num_clients):
            end = z
            for iteration in range(t * STEPS, (t + 1) * STEPS):
                step, batch = one.rate(iteration) * factor, one.batch(i, iteration)
                pull = (settings.proximal, stages.reference, stages.dual_scale)
                end = minimax.coda_round(problem, end, [i], lambda i, k, b=batch: b, 1, step, step, *pull)
            ends.append(end)
        z = np.mean(ends, axis=0)
        stages.points.append(z)
        yield z


def codasca_reference(one: Saddle, settings: CodaSettings) -> Iterator[minimax.Codasca]:
    stages, problem = Stages(one, settings), one.problem()
    state = minimax.codasca_start(problem, one.start)
    for t in range(ROUNDS):
        z, factor = stages.begin(t, state.z)
        step = one.rate(t * STEPS) * factor
        state = minimax.codasca_round(
            problem,
            state._replace(z=z),
            one.participants(t + 1),
            lambda i, k, t=t: one.batch(i, t * STEPS + k),
            STEPS,
            step,
            step,
            settings.proximal,
            stages.reference,
            one.training.server_learning_rate,
            stages.dual_scale,
        )
        stages.points.append(state.z)
        yield state


# Step by step.

STAGES: dict[str, Scalar] = {"coda.stage-rounds": 1, "coda.stage-growth": 1.5, "coda.stage-decay": 1.7}
VARIANTS: dict[str, dict[str, Scalar]] = {
    "base": {"coda.proximal": 0.3},
    "no-proximal": {"coda.proximal": 0.0, **STAGES},
    "stages": {"coda.proximal": 0.5, **STAGES},
    "long-stages": {"coda.proximal": 0.5, **STAGES, "coda.stage-rounds": 2},
    "no-restart": {"coda.proximal": 0.5, **STAGES, "coda.restart-dual": False},
    "scaled-dual": {"coda.proximal": 0.2, **STAGES, "coda.scaled-dual": True},
    "noise": {"coda.proximal": 0.4, **STAGES, "coda.reference-noise": 0.3},
    "sigmoid": {"coda.proximal": 0.1, **STAGES, "score": "sigmoid"},
    "drops": {"coda.proximal": 0.1, "lr-decay": 0.5, "lr-decay-every": STEPS},
}
PL: dict[str, Scalar] = {"dataset": "synthetic-pl", "learning-rate": 0.01, "coda.proximal": 2.0, **STAGES}


@pytest.mark.parametrize("variant", VARIANTS)
def test_coda_follows_the_reference(variant: str, data: dict[str, Scalar]) -> None:
    one = Saddle({**KEYS, **data, "strategy": "coda", **VARIANTS[variant]})
    for server_round, expected in enumerate(coda_reference(one, one.settings), start=1):
        np.testing.assert_allclose(one.round(server_round), expected, **CLOSE)


def test_coda_drops_the_learning_rate_inside_a_round(data: dict[str, Scalar]) -> None:
    one = Saddle({**KEYS, **data, "strategy": "coda", "lr-decay": 0.5, "lr-decay-every": 2})
    for server_round, expected in enumerate(coda_reference(one, one.settings), start=1):
        np.testing.assert_allclose(one.round(server_round), expected, **CLOSE)


def test_coda_follows_the_reference_on_a_problem_of_its_own() -> None:
    one = Saddle({**KEYS, "strategy": "coda", **PL}, clients=3)
    for server_round, expected in enumerate(coda_reference(one, one.settings), start=1):
        np.testing.assert_allclose(one.round(server_round), expected, **CLOSE)
    assert [e for r in range(ROUNDS) for e in one.exchanges(r, CLASS_SCORES)] == []


CODASCA_VARIANTS = VARIANTS | {
    "server-step": {"coda.proximal": 0.5, **STAGES, "server-learning-rate": 0.7},
    "half": {"coda.proximal": 0.5, **STAGES, "fraction-train": 0.5, "server-learning-rate": 1.2},
}


@pytest.mark.parametrize("variant", CODASCA_VARIANTS)
def test_codasca_follows_the_reference(variant: str, data: dict[str, Scalar]) -> None:
    assert_codasca_follows(Saddle({**KEYS, **data, "strategy": "codasca", **CODASCA_VARIANTS[variant]}))


def test_codasca_follows_the_reference_on_a_problem_of_its_own() -> None:
    assert_codasca_follows(Saddle({**KEYS, "strategy": "codasca", **PL}, clients=3))


def assert_codasca_follows(one: Saddle) -> None:
    known = np.zeros((one.data.num_clients, len(one.start)))
    for server_round, expected in enumerate(codasca_reference(one, one.settings), start=1):
        np.testing.assert_allclose(one.round(server_round), expected.z, **CLOSE)
        np.testing.assert_allclose(one.strategy.control, expected.control, **CLOSE)
        np.testing.assert_allclose(one.strategy.control, expected.controls.mean(0), **CLOSE)
        for exchange in one.exchanges(server_round):
            known[exchange.partition] += decoded(ControlChange, exchange.reply).change
        np.testing.assert_allclose(known, expected.controls, **CLOSE)


@pytest.mark.parametrize("more", [{}, STAGES, {"coda.scaled-dual": True, "lr-decay": 0.5, "lr-decay-every": 2}])
def test_one_client_of_codasca_is_coda(more: dict[str, Scalar], data: dict[str, Scalar]) -> None:
    common = {**KEYS, **data, "partition": "iid", "coda.proximal": 0.0, **more}
    left, right = (Saddle({**common, "strategy": name}, clients=1) for name in ("coda", "codasca"))
    for a, b in zip(left.rounds(), right.rounds(), strict=True):
        np.testing.assert_allclose(a, b, **EXACT)


def test_the_first_round_of_codasca_is_coda_s(data: dict[str, Scalar]) -> None:
    common = {**KEYS, **data, "coda.proximal": 0.0}
    left, right = (Saddle({**common, "strategy": name}) for name in ("coda", "codasca"))
    np.testing.assert_allclose(left.round(1), right.round(1), **EXACT)
    assert np.abs(left.round(2) - right.round(2)).max() > 1e-3


# Stages.


@pytest.mark.parametrize(
    ("rounds", "growth", "stages"),
    [
        (0, 1.0, [0, 0, 0, 0, 0, 0, 0, 0, 0, 0]),
        (1, 1.0, [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]),
        (3, 1.0, [0, 0, 0, 1, 1, 1, 2, 2, 2, 3]),
        (1, 2.0, [0, 1, 1, 2, 2, 2, 2, 3, 3, 3]),
        (1, 1.5, [0, 1, 1, 2, 2, 3, 3, 3, 4, 4]),  # 1, 1.5, 2.25, 3.375, 5.06 rounds
        (2, 1e300, [0, 0, 1, 1, 1, 1, 1, 1, 1, 1]),
    ],
)
def test_the_stage_of_a_round(rounds: int, growth: float, stages: list[int]) -> None:
    settings = CodaSettings(stage_rounds=rounds, stage_growth=growth)
    found = [stage_of(server_round, settings) for server_round in range(1, 11)]
    assert [stage.index for stage in found] == stages
    assert [stage.first for stage in found] == [stages.index(stage) + 1 for stage in stages]
    if growth < 1e300:
        assert [minimax.coda_stage(t, rounds, growth, 3.0)[0] for t in range(10)] == stages


def test_a_thousand_stages_shrink_the_steps_to_nothing_and_fail_nowhere() -> None:
    settings = CodaSettings(stage_rounds=1, stage_decay=1e3)
    assert stage_of(1000, settings) == Stage(999, 1000)
    assert settings.stage_decay ** -stage_of(1000, settings).index == 0.0


def test_the_reference_is_the_mean_of_the_stage_before(data: dict[str, Scalar]) -> None:
    one = Saddle({**KEYS, **data, "strategy": "coda", "coda.stage-rounds": 2})
    points = one.rounds(5)
    sent = [decoded(CodaDown, one.exchanges(r)[0].message).reference for r in range(1, 6)]
    assert sent[0] is None  # the point that came down
    np.testing.assert_array_equal(sent[1], one.start)
    np.testing.assert_allclose(sent[2], (points[0] + points[1]) / 2, **EXACT)
    np.testing.assert_array_equal(sent[2], sent[3])
    np.testing.assert_allclose(sent[4], (points[2] + points[3]) / 2, **EXACT)
    np.testing.assert_array_equal(one.strategy.total, points[4])


@pytest.mark.parametrize(("name", "kind"), [("coda", CodaDown), ("codasca", CodascaDown)])
def test_a_reference_travels_only_where_it_matters(name: str, kind: type, data: dict[str, Scalar]) -> None:
    def sent(**more: Any) -> list[bool]:
        one = Saddle({**KEYS, **data, "strategy": name, **{key.replace("_", "-"): v for key, v in more.items()}})
        one.rounds(4)
        down = [decoded(kind, e.message) for r in range(1, 5) for e in one.exchanges(r)]
        assert all(payload.class_counts.sum() == 110 for payload in down)
        if name == "codasca":
            assert [payload.control is not None for payload in down[::SITES]] == [False, True, True, True]
        flags = [payload.reference is not None for payload in down]
        return flags[::SITES]

    assert sent() == [False, True, True, True]
    assert sent(**{"coda.proximal": 0.0, **STAGES}) == [False] * 4
    assert sent(**{"coda.reference-noise": 0.01}) == [True] * 4
    # the mean of one point is the point, and lambda, restarted, has no reference
    assert sent(**{"coda.stage-rounds": 1}) == [False] * 4


def test_the_noise_is_the_seed_s(data: dict[str, Scalar]) -> None:
    keys = {**KEYS, **data, "strategy": "coda", "coda.reference-noise": 0.01}
    references = []
    for seed in (0, 0, 1):
        one = Saddle({**keys, "seed": seed})
        one.round(1)
        references.append(one.strategy.reference)
    np.testing.assert_array_equal(references[0], references[1])
    assert (references[0] != references[2]).all()
    assert 0.003 < references[0].std() < 0.03


@pytest.mark.parametrize("name", ["coda", "codasca"])
@pytest.mark.parametrize("score", ["logit", "sigmoid"])
def test_a_new_stage_starts_from_the_best_lambda(name: str, score: str, data: dict[str, Scalar]) -> None:
    one = Saddle({**KEYS, **data, "strategy": name, "coda.stage-rounds": 2, "score": score})
    points = [one.start, *one.rounds(5)]
    problem, labels = one.problem(), np.concatenate(one.problem().labels)
    for server_round in range(1, 6):
        before = points[server_round - 1]
        (sent,) = {model_of(e.message)[0].tobytes() for e in one.exchanges(server_round)}
        asked = one.exchanges(server_round, CLASS_SCORES)
        if server_round in (3, 5):
            scores = np.concatenate([problem.scores(before, X) for X in problem.features])
            expected = np.append(before[:-1], minimax.best_saddle(scores, labels)[2])
            assert np.abs(expected[-1] - before[-1]) > 1e-6
            np.testing.assert_allclose(np.frombuffer(sent), expected, **EXACT)
            np.testing.assert_array_equal(np.frombuffer(sent)[:-1], before[:-1])
            assert [e.partition for e in asked] == list(range(SITES))
            assert all(model_of(e.message)[0].tobytes() == before.tobytes() for e in asked)
            assert all(not model_of(e.reply) for e in asked)
        else:
            assert sent == before.tobytes()
            assert asked == []


def test_the_clients_of_the_round_are_asked_for_their_scores(data: dict[str, Scalar]) -> None:
    one = Saddle({**KEYS, **data, "strategy": "codasca", "coda.stage-rounds": 1, "fraction-train": 0.5})
    one.rounds(4)
    for server_round in range(2, 5):
        asked = [[e.partition for e in one.exchanges(server_round, phase)] for phase in ("", CLASS_SCORES)]
        assert asked == [one.participants(server_round)] * 2


def test_lambda_stays_where_one_class_answers(data: dict[str, Scalar]) -> None:
    def only_negatives(exchange: Exchange) -> Message:
        if exchange.message.content.config_records[CONFIG].get(PHASE) == CLASS_SCORES:
            scores = ClassScores(sums=np.array([1.0, 0.0]), counts=np.array([4, 0]))
            exchange.reply.content[PAYLOAD] = scores.to_record()
        return exchange.reply

    one = Saddle({**KEYS, **data, "strategy": "coda", "coda.stage-rounds": 1}, tamper=only_negatives)
    before = one.round(1)
    one.round(2)
    assert model_of(one.exchanges(2)[0].message)[0].tobytes() == before.tobytes()


def test_impossible_counts_are_dropped(data: dict[str, Scalar]) -> None:
    def negative(exchange: Exchange) -> Message:
        if exchange.message.content.config_records[CONFIG].get(PHASE) == CLASS_SCORES and exchange.partition == 1:
            scores = ClassScores(sums=np.array([1.0, 1.0]), counts=np.array([4, -1]))
            exchange.reply.content[PAYLOAD] = payload_record(scores)
        return exchange.reply

    one = Saddle({**KEYS, **data, "strategy": "coda", "coda.stage-rounds": 1}, tamper=negative)
    one.rounds(2)
    expected = "class-scores phase: ClassScores.counts: got [4, -1], expected numbers >= 0"
    assert one.strategy.report.dropped == {1: expected}


def test_a_lost_reply_leaves_c_off_the_mean(data: dict[str, Scalar]) -> None:
    """Client 1 trains in round 2 and its reply is lost: c misses its change, over N, from then on."""
    lost: list[Array] = []

    def lose(exchange: Exchange) -> Message:
        if (exchange.server_round, exchange.partition) == (2, 1):
            lost.append(decoded(ControlChange, exchange.reply).change)
            del exchange.reply.content[PAYLOAD]
        return exchange.reply

    one = Saddle({**KEYS, **data, "strategy": "codasca"}, tamper=lose)
    total = np.zeros((SITES, len(one.start)))
    for server_round in range(1, 5):
        one.round(server_round)
        for e in one.exchanges(server_round):
            total[e.partition] += (
                lost[0] if (server_round, e.partition) == (2, 1) else decoded(ControlChange, e.reply).change
            )
    np.testing.assert_allclose(one.strategy.control, total.mean(0) - lost[0] / SITES, **EXACT)
    assert np.abs(lost[0]).max() > 1e-3


# State and number types.


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("name", "kind"), [("coda", CodaDown), ("codasca", CodascaDown)])
def test_the_wire_has_the_run_s_number_type_and_the_server_float64(
    name: str, kind: type[Payload], dtype: str, data: dict[str, Scalar]
) -> None:
    one = Saddle({**KEYS, **data, "strategy": name, "dtype": dtype, "coda.stage-rounds": 2})
    one.rounds(5)
    for exchange in one.grid.exchanges:
        phase = exchange.message.content.config_records[CONFIG].get(PHASE)
        found = [] if phase else list(decoded(kind, exchange.message).arrays().values())
        if PAYLOAD in exchange.reply.content.config_records:
            found += decoded(ClassScores if phase else ControlChange, exchange.reply).arrays().values()
        assert {value.dtype.name for value in found} <= {dtype, "int64"}
        models = [model_of(exchange.message), model_of(exchange.reply)]
        assert {array.dtype.name for arrays in models for array in arrays} == {dtype}
    state = one.strategy.snapshot()
    assert {value.dtype.name for value in state.arrays().values()} == {"float64"}
    assert sorted(state.arrays()) == ["control", "reference", "total"][name == "coda" :]


@pytest.mark.parametrize("name", ["coda", "codasca"])
def test_a_restored_strategy_goes_on_to_the_bit(name: str, data: dict[str, Scalar]) -> None:
    """After every round: inside a stage, at its end, in its first round."""
    one = Saddle({**KEYS, **data, "strategy": name, "dtype": "float32", **STAGES, "coda.reference-noise": 0.1})
    whole = one.rounds()
    other = Saddle({**KEYS, **data, "strategy": name, "dtype": "float32", **STAGES, "coda.reference-noise": 0.1})
    for server_round, expected in enumerate(whole, start=1):
        assert other.round(server_round).tobytes() == expected.tobytes()
        state = other.strategy.snapshot()
        assert isinstance(state, StageState)
        other.strategy = other.fresh()
        other.strategy.join(other.grid)
        other.strategy.restore(StageState(**{k: v.copy() for k, v in state.arrays().items()}).check())
    assert any((a != b).any() for a, b in pairwise(whole))


def test_without_a_pull_coda_has_no_state(data: dict[str, Scalar]) -> None:
    one = Saddle({**KEYS, **data, "strategy": "coda", "coda.proximal": 0.0, **STAGES})
    one.rounds(3)
    assert one.strategy.snapshot() is None


@pytest.mark.parametrize(("name", "fraction"), [("coda", 1.0), ("codasca", 1.0), ("codasca", 0.5)])
@pytest.mark.parametrize("cut", [2, 3, 4])
def test_a_resumed_run_is_the_whole_one(
    name: str, fraction: float, cut: int, data: dict[str, Scalar], tmp_path: Path
) -> None:
    config = {**data, "strategy": name, "fraction-train": fraction, "checkpoint-every": cut, "num-server-rounds": 6}
    config |= {"coda.stage-rounds": 2, "coda.stage-growth": 1.5, "coda.proximal": 0.5}
    whole, _ = federate(tmp_path / "whole", config, SITES)
    federate(tmp_path / "parts", {**config, "num-server-rounds": cut}, SITES)
    parts, _ = federate(tmp_path / "parts", {**config, "resume": True}, SITES)
    assert parts.untimed == whole.untimed
    assert parts.model_bytes == whole.model_bytes


def test_a_client_that_fails_is_not_averaged(data: dict[str, Scalar]) -> None:
    def fail(exchange: Exchange) -> Message:
        if exchange.partition == 2:
            del exchange.reply.content["metrics"]
        return exchange.reply

    one = Saddle({**KEYS, **data, "strategy": "coda"}, tamper=fail)
    point = one.round(1)
    replies = [model_of(e.reply)[0] for e in one.exchanges(1) if e.partition != 2]
    np.testing.assert_allclose(point, np.mean(replies, axis=0), **EXACT)


# Errors.


@pytest.mark.parametrize(
    ("values", "parts"),
    [
        ({"strategy": "coda", "fraction-train": 0.5}, ["fraction-train: got 0.5", "'coda'", "must be 1.0"]),
        ({"coda.proximal": -0.1}, ["coda.proximal: got -0.1", "number >= 0"]),
        ({"coda.stage-rounds": 1.0}, ["coda.stage-rounds: got 1.0", "integer >= 0"]),
        ({"coda.stage-growth": 0.5}, ["coda.stage-growth: got 0.5", "number >= 1"]),
        ({"coda.stage-decay": 0.1}, ["coda.stage-decay: got 0.1", "number >= 1"]),
        ({"coda.restart-dual": 1}, ["coda.restart-dual: got 1", "true", "false"]),
        ({"coda.scaled-dual": "no"}, ["coda.scaled-dual: got 'no'", "true", "false"]),
        ({"coda.reference-noise": -1.0}, ["coda.reference-noise: got -1.0", "number >= 0"]),
        ({"strategy": "codasca", "loss": "psm"}, ["loss: got 'psm'", "auc-minimax"]),
    ],
)
def test_a_refusal_names_key_value_and_what_is_allowed(values: dict[str, Scalar], parts: list[str]) -> None:
    with pytest.raises(ConfigError) as refused:
        parse_run_config(values)
    assert [part for part in parts if part not in str(refused.value)] == []


def test_the_halves_have_defaults_of_their_own() -> None:
    for kind in (Coda, Codasca):
        strategy = kind()
        assert isinstance(strategy, StagewiseStrategy)
        assert (strategy.coda, strategy.training) == (CodaSettings(), TrainingSettings())
        assert strategy.snapshot() is None
    assert Coda.needs_all_clients
    assert not Codasca.needs_all_clients
