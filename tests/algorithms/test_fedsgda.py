"""FedSGDA with its four estimators: message by message against the NumPy reference, the special cases that must
coincide, lost replies, resumed runs, what travels, networks with batch norm and dropout, and wrong input."""

from __future__ import annotations

import threading
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Error, Message

from apps import resources
from apps.client_app import app as client_app
from apps.config import ConfigError, Scalar, parse_run_config
from apps.server_app import RunFailedError
from apps.server_app import app as server_app
from clients.base import Site
from clients.fedsgda import FedSGDAClient, FedSGDAStormClient
from payloads.fedsgda import GRADIENTS, FedSGDADown, FedSGDASettings, LocalGradient
from payloads.handshake import SiteReport
from payloads.record import Payload
from payloads.settings import TrainingSettings
from payloads.wire import PAYLOAD, PHASE
from problems.minimax import AUCOracle, FunctionOracle, SyntheticPL
from problems.models import FlatModel, build_model
from problems.models.saddle import SaddleNetwork
from problems.randomness import Purpose, stream
from problems.sampling import EpochSampler
from strategies.estimators import Storm
from strategies.fedsgda import FedSGDA, FedSGDAMB, FedSGDASPIDER, FedSGDASTORM, FedSGDASVRG
from strategies.roster import Roster, StrategyError
from tests.algorithms import minimax_problems
from tests.battery.federation import Exchange, Run, Wiretap, federate, flat_config, model_of, save_npz, serve, sites_of
from tests.reference import minimax
from tests.reference.minimax import Array, Index, Problem

CLOSE: dict[str, float] = {"rtol": 1e-10, "atol": 1e-10}
EXACT: dict[str, float] = {"rtol": 1e-12, "atol": 1e-12}
NAMES = ("mb", "storm", "spider", "svrg")
CLIENTS, ROUNDS, STEPS, PERIOD = 6, 8, 3, 3
KEYS: dict[str, Scalar] = {
    "dtype": "float64",
    "num-server-rounds": ROUNDS,
    "evaluate-every": 100,
    "local-steps": STEPS,
    "batch-size": 7,
    "fraction-train": 0.5,
    "seed": 3,
    "fedsgda.alpha-constant": 0.6,
    "fedsgda.period": PERIOD,
    "fedsgda.large-batch": 4,
}
PL: dict[str, Scalar] = {"dataset": "synthetic-pl", "fedsgda.primal-step": 0.002, "fedsgda.dual-step": 0.005}
AUC: dict[str, Scalar] = {"fedsgda.primal-step": 0.2, "fedsgda.dual-step": 0.5}
USER = "tests.algorithms.minimax_problems:"

each_estimator = pytest.mark.parametrize("name", NAMES)


@pytest.fixture
def unequal(tmp_path: Path) -> dict[str, Scalar]:
    """Sites of 1 to 98 samples, some of one class only."""
    rng = np.random.default_rng(5)
    labels = (rng.random(150) < 0.3).astype(int)
    saved = save_npz(tmp_path / "unequal.npz", rng.normal(size=(150, 3)) + 0.7 * labels[:, None], labels)
    return {**saved, "partition": "positives-skewed", "partition-alpha": 0.2, "model": "linear"}


# A finished run, and the reference fed with its clients and its batches.


class Robust:
    """`minimax_problems.Robust`, its gradient written out."""

    def __init__(self, features: list[Array], labels: list[Array]) -> None:
        self.features, self.labels, self.num_clients = features, labels, len(features)
        self.primal_dim = self.dual_dim = features[0].shape[1]

    def value(self, i: int, z: Array, rows: Index | None = None) -> float:
        chosen = slice(None) if rows is None else rows
        x, y = np.split(z, 2)
        rest = (self.features[i][chosen] + y) @ x - self.labels[i][chosen]  # (n,)
        return float(np.mean(rest**2) / 2 - 2 * (y @ y))

    def gradient(self, i: int, z: Array, rows: Index | None = None) -> Array:
        chosen = slice(None) if rows is None else rows
        moved, (x, y) = self.features[i][chosen] + np.split(z, 2)[1], np.split(z, 2)
        rest = moved @ x - self.labels[i][chosen]  # (n,)
        return np.concatenate([(moved * rest[:, None]).mean(0), rest.mean() * x - 4 * y])


def down_of(exchange: Exchange) -> FedSGDADown:
    """The payload of a message; empty where none was sent."""
    records = exchange.message.content.config_records
    return FedSGDADown.from_record(records[PAYLOAD]) if PAYLOAD in records else FedSGDADown()


def gradient_of(exchange: Exchange) -> Array:
    return LocalGradient.from_record(exchange.reply.content.config_records[PAYLOAD]).gradient


class Losses:
    """Replaces a share of the replies by errors, at random, and keeps which."""

    def __init__(self, share: float, seed: int) -> None:
        self.share, self.rng = share, np.random.default_rng(seed)
        self.lost: set[tuple[int, str, int]] = set()

    def __call__(self, exchange: Exchange) -> Message:
        if self.rng.random() >= self.share:
            return exchange.reply
        self.lost.add((exchange.server_round, exchange.phase, exchange.partition))
        return Message(Error(2, "lost"), reply_to=exchange.message)


class Finished:
    """A run that has ended, with all its messages."""

    def __init__(
        self,
        path: Path,
        name: str,
        keys: dict[str, Scalar],
        clients: int = CLIENTS,
        tamper: Callable[[Exchange], Message] | None = None,
    ) -> None:
        flat = {**KEYS, "strategy": f"fedsgda-{name}", **keys}
        self.name, self.clients, self.lost = name, clients, getattr(tamper, "lost", set())
        self.config = parse_run_config(flat_config(path, flat))
        self.training = self.config.training
        assert isinstance(self.config.family, FedSGDASettings)
        self.settings = self.config.family
        self.rounds = self.training.num_server_rounds
        self.run, self.tap = federate(path, flat, clients, tamper)

    def exchanges(self, server_round: int, phase: str = "") -> list[Exchange]:
        """Those of a round's own exchange, or of the gradient phase, whose replies got through."""
        return [
            e
            for e in self.tap.exchanges
            if e.server_round == server_round and e.phase == phase
            if (server_round, phase, e.partition) not in self.lost
        ]

    def places(self, server_round: int, phase: str = "") -> list[int]:
        return [e.partition for e in self.exchanges(server_round, phase)]

    def point(self, t: int) -> Array:
        """z_t, as the clients got it."""
        return model_of(self.exchanges(t + 1)[0].message)[0]

    def estimate(self, t: int) -> Array:
        found = down_of(self.exchanges(t + 1)[0]).estimate
        assert found is not None
        return found

    # for the reference

    @property
    def data(self) -> Any:
        return resources.federated_data(self.config.data, self.clients)

    def problem(self) -> Problem:
        shares = [self.data.client(i) for i in range(self.clients)]
        if self.training.loss == "synthetic-pl":
            return minimax.SyntheticPL(np.stack([share.features for share in shares]).astype(np.float64))
        features = [share.features.astype(np.float64) for share in shares]
        labels = [share.labels.astype(int) for share in shares]
        if self.training.loss != "auc-minimax":
            return Robust(features, labels)
        prior = float(np.concatenate(labels).mean())
        return minimax.SaddleAUC(features, labels, prior, sigmoid=self.training.score == "sigmoid")

    def start(self, problem: Problem) -> Array:
        if self.training.loss == "auc-minimax":
            model = resources.new_model(self.config, self.data.input_shape)
            assert model.parameter_names == (
                *("network.output.weight", "network.output.bias"),
                *("saddle.a", "saddle.b", "saddle.dual"),
            )
            return model.arrays()[0]
        if isinstance(problem, Robust):
            ramp = np.arange(problem.primal_dim)
            return np.concatenate([0.1 * ramp + 0.2, 0.3 - 0.1 * ramp])
        return np.zeros(problem.primal_dim + problem.dual_dim)

    def batch(self, client: int, t: int, k: int) -> Index:
        """The product's batch of local step k of round t."""
        training, everything = self.training, np.arange(len(self.data.client(client).labels))
        sampler = EpochSampler(everything, training.batch_size, training.seed, Purpose.SAMPLES, client)
        return sampler.batch(t * training.local_steps + k)

    @property
    def rho(self) -> float:
        if not isinstance(self.settings.rho, str):
            return self.settings.rho
        return 1 / 3 if self.name == "storm" else 0.0

    def alpha(self, t: int) -> float:
        return minimax.storm_alpha(self.settings.alpha_constant, self.rho, t)

    def starts(self, t: int) -> bool:
        """Whether the estimator takes a large batch in round t."""
        return self.name in ("spider", "svrg") and t % self.settings.period == 0

    def estimator(self) -> minimax.Estimator:
        if self.name == "mb":
            return minimax.MiniBatch()
        if self.name == "storm":
            return minimax.Storm(self.alpha)
        return (minimax.Spider if self.name == "spider" else minimax.Svrg)(self.settings.period)

    def weight(self, t: int) -> float:
        """What the gradient at the second point is multiplied by; 0: there is none."""
        if self.name == "mb" or t == 0 or self.starts(t):
            return 0.0
        return 1 - self.alpha(t) if self.name == "storm" else 1.0


def assert_follows(one: Finished) -> None:
    """Every message of every round is the reference's, and so is the model at the end."""
    problem, estimator, settings = one.problem(), one.estimator(), one.settings
    z = start = previous = snapshot = one.start(problem)
    for t in range(one.rounds):
        asked, active = one.exchanges(t + 1, GRADIENTS), one.exchanges(t + 1)
        mean_gradient = minimax.mean_gradient(problem, [e.partition for e in asked])
        estimate = estimator.update(t, z, previous, mean_gradient)
        snapshot = z if one.starts(t) else snapshot
        weight, second = one.weight(t), snapshot if one.name == "svrg" else previous
        for e in asked:
            np.testing.assert_allclose(model_of(e.message)[0], z, **CLOSE)
            expected = problem.gradient(e.partition, z)
            if weight:
                expected = expected - weight * problem.gradient(e.partition, second)
                np.testing.assert_allclose(down_of(e).reference, second, **CLOSE)
                np.testing.assert_allclose(down_of(e).weight, [weight], **CLOSE)
            else:
                assert down_of(e).reference is down_of(e).weight is None
            np.testing.assert_allclose(gradient_of(e), expected, **CLOSE)
            assert model_of(e.reply) == []
        steps = [minimax.decayed(c, one.rho, t) for c in (settings.primal_step, settings.dual_step)]
        ends = []
        for e in active:
            np.testing.assert_allclose(model_of(e.message)[0], z, **CLOSE)
            np.testing.assert_allclose(down_of(e).estimate, estimate, **CLOSE)
            rows = lambda i, k, t=t: one.batch(i, t, k)  # noqa: E731
            ends.append(
                minimax.fedsgda_round(problem, z, estimate, [e.partition], rows, one.training.local_steps, *steps)
            )
            np.testing.assert_allclose(model_of(e.reply)[0], ends[-1], **CLOSE)
            assert PAYLOAD not in e.reply.content.config_records
        previous, z = z, np.mean(ends, axis=0)
    saved = np.concatenate([np.asarray(one.run.model[key]).ravel() for key in model_names(one)])
    np.testing.assert_allclose(saved, z, **CLOSE)
    assert np.linalg.norm(z - start) > 0.05


def model_names(one: Finished) -> list[str]:
    """The entries of the model file in the order of the flat vector."""
    if one.training.loss != "auc-minimax":
        return ["x", "y"]
    return ["output.weight", "output.bias", "saddle.a", "saddle.b", "saddle.dual"]


# Whole runs against the reference.


@pytest.mark.parametrize("more", [{}, {"fedsgda.large-batch": "auto", "fedsgda.rho": 0.25}], ids=["base", "all-decay"])
@each_estimator
def test_the_synthetic_problem_follows_the_reference(name: str, more: dict[str, Scalar], tmp_path: Path) -> None:
    one = Finished(tmp_path / "run", name, {**PL, **more})
    large = 4 if not more else CLIENTS
    assert [len(one.places(t + 1, GRADIENTS)) for t in range(ROUNDS)] == [
        large if one.starts(t) else 3 for t in range(ROUNDS)
    ]
    assert [len(one.places(t + 1)) for t in range(ROUNDS)] == [3] * ROUNDS
    assert_follows(one)
    assert "grad_phi_sq" in one.run.lines[-1]


@pytest.mark.parametrize(
    "more", [{}, {"score": "sigmoid", "positive-label": "0"}], ids=["logit", "sigmoid-other-class"]
)
@each_estimator
def test_auc_follows_the_reference(
    name: str, more: dict[str, Scalar], unequal: dict[str, Scalar], tmp_path: Path
) -> None:
    one = Finished(tmp_path / "run", name, {**unequal, **AUC, **more})
    counts = [np.bincount(one.data.client(i).labels, minlength=2) for i in range(CLIENTS)]
    assert any(count.min() == 0 for count in counts)
    assert len({count.sum() for count in counts}) > 1
    assert_follows(one)
    for e in one.tap.exchanges:
        np.testing.assert_array_equal(down_of(e).class_counts, np.sum(counts, axis=0))


@pytest.mark.parametrize("more", [{"fedsgda.rho": 0.4}, {"batch-size": 0, "local-steps": 1}], ids=["decay", "one-step"])
@each_estimator
def test_a_problem_of_the_user_s_own_follows_the_reference(
    name: str, more: dict[str, Scalar], unequal: dict[str, Scalar], tmp_path: Path
) -> None:
    steps = {"fedsgda.primal-step": 0.05, "fedsgda.dual-step": 0.1}
    assert_follows(Finished(tmp_path / "run", name, {**unequal, **steps, **more, "loss": USER + "Robust"}))


@each_estimator
def test_both_phases_draw_for_themselves(name: str, tmp_path: Path) -> None:
    one = Finished(tmp_path / "run", name, {**PL, "local-steps": 1, "num-server-rounds": 12})
    phases = {"gradient clients": GRADIENTS, "sample clients": ""}
    for t in range(12):
        for word, phase in phases.items():
            count = 4 if one.starts(t) and phase == GRADIENTS else 3
            expected = sorted(stream(3, word, t + 1).choice(CLIENTS, count, replace=False).tolist())
            assert one.places(t + 1, phase) == expected
    both = [len({*one.places(r, GRADIENTS)} & {*one.places(r)}) for r in range(1, 13)]
    assert len(set(both)) > 1  # neither the same clients nor others on purpose


def test_one_seed_draws_the_same_clients_whatever_the_estimator(tmp_path: Path) -> None:
    runs = [Finished(tmp_path / name, name, {**PL, "fedsgda.large-batch": 3}) for name in NAMES]
    drawn = [[one.places(r, phase) for r in range(1, ROUNDS + 1) for phase in (GRADIENTS, "")] for one in runs]
    assert drawn[1:] == drawn[:-1]


# What must hold.


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("problem", ["pl", "auc"])
def test_1_storm_without_memory_and_periods_of_one_are_the_minibatch_estimator(
    problem: str, dtype: str, unequal: dict[str, Scalar], tmp_path: Path
) -> None:
    common = {**(PL if problem == "pl" else {**unequal, **AUC}), "fedsgda.rho": 0.3, "dtype": dtype}
    common |= {"evaluate-every": 1}
    common |= {"fedsgda.alpha-constant": 1e9, "fedsgda.period": 1, "fedsgda.large-batch": 3}
    first, *others = (Finished(tmp_path / name, name, common).run for name in NAMES)
    assert len(set(first.untimed)) == ROUNDS + 1
    for run in others:
        assert run.untimed == first.untimed
        assert run.model_bytes == first.model_bytes


@pytest.mark.parametrize("problem", ["pl", "auc", "user"])
@each_estimator
def test_2_one_local_step_is_along_the_estimate_whatever_the_batch(
    name: str, problem: str, unequal: dict[str, Scalar], tmp_path: Path
) -> None:
    keys = {"pl": PL, "auc": {**unequal, **AUC}, "user": {**unequal, **AUC, "loss": USER + "Robust"}}[problem]
    runs = []
    for batch_size in (1, 0):
        more = {"local-steps": 1, "batch-size": batch_size, "fedsgda.rho": 0.2, "num-server-rounds": 5}
        one = Finished(tmp_path / f"{batch_size}", name, {**keys, **more})
        p = one.problem().primal_dim
        for t in range(5):
            (end,) = {model_of(e.reply)[0].tobytes() for e in one.exchanges(t + 1)}
            shrink = (t + 1) ** 0.2
            u, v = one.estimate(t)[:p], one.estimate(t)[p:]
            eta, gamma = one.settings.primal_step / shrink, one.settings.dual_step / shrink
            expected = one.point(t) + np.concatenate([-eta * u, gamma * v])
            np.testing.assert_allclose(np.frombuffer(end), expected, **EXACT)
        runs.append(one.run)
    assert runs[0].untimed == runs[1].untimed


@each_estimator
def test_2_with_all_clients_it_is_deterministic_descent_ascent(name: str, tmp_path: Path) -> None:
    more = {"local-steps": 1, "fraction-train": 1.0, "fedsgda.large-batch": "auto", "fedsgda.rho": 0.0}
    one = Finished(tmp_path / "run", name, {**PL, **more})
    problem = one.problem()
    z = np.zeros(200)
    for _ in range(ROUNDS):
        gradient = np.mean([problem.gradient(i, z) for i in range(CLIENTS)], axis=0)
        z = z + np.repeat([-0.002, 0.005], 100) * gradient
    np.testing.assert_allclose(np.concatenate([one.run.model["x"], one.run.model["y"]]), z, **CLOSE)


MEMORIES = [
    *(("storm", {"fedsgda.alpha-constant": c, "fedsgda.rho": rho}) for c in (1e-3, 0.7, 3.0) for rho in (0.0, 0.6)),
    *((name, {"fedsgda.period": period}) for name in ("spider", "svrg") for period in (3, 100)),
]


@pytest.mark.parametrize(
    ("problem", "name", "more"), [*(("auc", *memory) for memory in MEMORIES), *(("pl", *m) for m in MEMORIES[1::4])]
)
def test_3_with_all_clients_the_estimate_is_the_gradient(
    problem: str, name: str, more: dict[str, Scalar], unequal: dict[str, Scalar], tmp_path: Path
) -> None:
    keys = PL if problem == "pl" else {**unequal, **AUC}
    one = Finished(tmp_path / "run", name, {**keys, "fraction-train": 1.0, "fedsgda.large-batch": "auto", **more})
    gradient = minimax.mean_gradient(one.problem(), range(CLIENTS))
    for t in range(ROUNDS):
        np.testing.assert_allclose(one.estimate(t), gradient(one.point(t)), **CLOSE)
    assert np.abs(one.point(ROUNDS - 1) - one.point(0)).max() > 1e-3


@pytest.mark.parametrize("clients", [1, 3])
def test_4_the_closed_form_gradient_of_phi(clients: int) -> None:
    rng = np.random.default_rng(2)
    data = rng.normal(size=(clients, 1, 3, 5)) + 0.3 * rng.normal(size=(clients, 6, 3, 5))
    problem = SyntheticPL(torch.from_numpy(data.reshape(-1, 3, 5)), nu=0.7, mu=1.3)
    reference = minimax.SyntheticPL(data, nu=0.7, mu=1.3)

    def phi(x: Array) -> float:
        point = torch.from_numpy(x)
        return float(problem.value(point, problem.maximiser(point), None))

    for x in rng.normal(size=(4, 5)):
        point = torch.from_numpy(x)
        found, best = problem.grad_phi(point).numpy(), problem.maximiser(point)
        differences = np.array([(phi(x + h) - phi(x - h)) / 2e-5 for h in 1e-5 * np.eye(5)])
        assert np.linalg.norm(found - differences) <= 1e-6 * np.linalg.norm(differences)
        np.testing.assert_allclose(found, reference.grad_phi(x), **EXACT)
        np.testing.assert_allclose(best.numpy(), reference.maximiser(x), **EXACT)
        primal, dual = problem.gradients(point, best, None)
        np.testing.assert_allclose(dual.numpy(), 0, atol=1e-12)
        np.testing.assert_allclose(primal.numpy(), found, **EXACT)
        metrics = problem.metrics(point, torch.zeros(5))
        assert metrics == {"grad_phi_sq": pytest.approx(found @ found, rel=1e-12)}


def test_4_the_metric_of_a_run_is_that_of_its_model(tmp_path: Path) -> None:
    one = Finished(tmp_path / "run", "mb", PL)
    problem = one.problem()
    assert isinstance(problem, minimax.SyntheticPL)
    z = np.concatenate([one.run.model["x"], one.run.model["y"]])
    assert one.run.lines[-1]["grad_phi_sq"] == pytest.approx(problem.grad_phi_sq(z[:100]), rel=1e-10)
    loss = np.mean([problem.value(i, z) for i in range(CLIENTS)])
    assert one.run.lines[-1]["loss"] == pytest.approx(loss, rel=1e-10)
    assert one.run.lines[0]["grad_phi_sq"] == pytest.approx(problem.grad_phi_sq(np.zeros(100)), rel=1e-10)


@each_estimator
def test_5_identical_clients_are_one_client(name: str, tmp_path: Path) -> None:
    labels = [0, 1, 0, 0, 1, 0, 0, 0, 1, 0, 0, 1]
    features = np.random.default_rng(8).normal(size=(12, 3)) + np.array(labels)[:, None]
    points = []
    for copies in (1, 4):
        data = save_npz(tmp_path / f"{copies}.npz", np.tile(features, (copies, 1)), np.tile(labels, copies))
        keys = {**data, **AUC, "model": "linear", "batch-size": 0, "fedsgda.large-batch": "auto", "fedsgda.rho": 0.0}
        one = Finished(tmp_path / f"{copies}", name, keys, clients=copies)
        points.append(np.concatenate([np.ravel(one.run.model[key]) for key in model_names(one)]))
    np.testing.assert_allclose(points[1], points[0], **EXACT)
    # the correction vanishes: plain descent ascent on one client's f, K steps a round
    problem = one.problem()
    z = one.start(problem)
    for _ in range(ROUNDS * STEPS):
        z = z + minimax.direction(problem, 0.2, 0.5) * problem.gradient(0, z)
    np.testing.assert_allclose(points[0], z, **CLOSE)


def least_squares(path: Path) -> tuple[dict[str, Scalar], Array]:
    """Six sites of 20 samples whose own minimisers differ, and the minimiser of their mean."""
    rng = np.random.default_rng(4)
    features = (rng.normal(size=(6, 20, 3)) + rng.normal(size=(6, 1, 3))).reshape(-1, 3).astype(np.float32)
    labels = (features @ [1.0, -0.5, 0.3] + rng.normal(size=120) + np.repeat(rng.normal(size=6), 20) > 0).astype(int)
    solution = np.linalg.lstsq(features.astype(np.float64), labels.astype(np.float64), rcond=None)[0]
    return {**save_npz(path, features, labels), "loss": USER + "LeastSquares"}, solution


def test_5_without_a_dual_storm_finds_the_minimiser(tmp_path: Path) -> None:
    keys, solution = least_squares(tmp_path / "data.npz")
    keys |= {"fedsgda.primal-step": 0.2, "fedsgda.rho": 0.1, "fraction-train": 1.0}
    one = Finished(tmp_path / "run", "storm", {**keys, "num-server-rounds": 50})
    assert one.run.model["y"].shape == (0,)
    np.testing.assert_allclose(one.run.model["x"], solution, rtol=0, atol=1e-9)


def test_5_without_a_dual_storm_reduces_the_variance(tmp_path: Path) -> None:
    """Half of the clients a round: it stays nearer to the minimiser than the minibatch estimator does."""
    keys, solution = least_squares(tmp_path / "data.npz")
    keys |= {"fedsgda.rho": 0.2, "fedsgda.alpha-constant": 0.3, "num-server-rounds": 80}
    distance = {}
    for name in ("mb", "storm"):
        one = Finished(tmp_path / name, name, keys)
        distance[name] = np.mean([np.linalg.norm(one.point(t) - solution) for t in range(40, 80)])
    assert distance["storm"] < 0.75 * distance["mb"]


# Lost replies.


@pytest.mark.parametrize("replace", [False, True], ids=["averaged", "replaced"])
@each_estimator
def test_the_estimate_is_of_those_who_answered(
    name: str, replace: bool, unequal: dict[str, Scalar], tmp_path: Path
) -> None:
    losses = Losses(0.3, seed=1)
    keys = {**unequal, **AUC, "num-server-rounds": 12, "fraction-train": 0.67, "fedsgda.large-batch": 5}
    one = Finished(tmp_path / "run", name, {**keys, "replace-dropped": replace}, tamper=losses)
    assert_follows(one)
    assert {phase for _, phase, _ in losses.lost} == {"", GRADIENTS}
    assert np.isfinite(one.run.numbers()).all()
    for line in one.run.lines[1:]:
        server_round = line["round"]
        lost = {phase: [i for r, p, i in losses.lost if (r, p) == (server_round, phase)] for phase in ("", GRADIENTS)}
        assert line["dropped"] == {
            str(i): "; ".join(
                text for phase, text in ((GRADIENTS, "gradients phase: lost"), ("", "lost")) if i in lost[phase]
            )
            for i in {*lost[""], *lost[GRADIENTS]}
        }
        assert line["clients_answered"] == len(one.places(server_round))
        assert line["clients_asked"] == len(one.places(server_round)) + len(lost[""])
        if not replace:
            assert line["clients_asked"] == 4
    answered = [len(one.places(t + 1, GRADIENTS)) for t in range(12)]
    wanted = [5 if one.starts(t) else 4 for t in range(12)]
    if replace:  # six clients: fewer only where more than the spare ones were lost
        assert sum(a == b for a, b in zip(answered, wanted, strict=True)) >= 8
    else:
        assert answered != wanted


# Resumed runs.


@pytest.mark.parametrize(("problem", "cut"), [("pl", 1), ("pl", 2), ("pl", 3), ("pl", 5), ("auc", 2)])
@each_estimator
def test_a_resumed_run_is_the_whole_one(
    name: str, problem: str, cut: int, unequal: dict[str, Scalar], tmp_path: Path
) -> None:
    """Periods begin in rounds 1, 4 and 7: after 3 rounds at an end, else in the middle."""
    keys = {**KEYS, **(PL if problem == "pl" else {**unequal, **AUC}), "strategy": f"fedsgda-{name}"}
    keys |= {"dtype": "float32", "checkpoint-every": cut, "num-server-rounds": 7, "evaluate-every": 1}
    whole, _ = federate(tmp_path / "whole", keys, CLIENTS)
    federate(tmp_path / "parts", {**keys, "num-server-rounds": cut}, CLIENTS)
    parts, _ = federate(tmp_path / "parts", {**keys, "resume": True}, CLIENTS)
    assert [line["round"] for line in parts.lines] == list(range(8))
    assert parts.untimed == whole.untimed
    assert parts.model_bytes == whole.model_bytes


# What travels.

MODEL, COUNTS, NUMBER = 200 * 8, 2 * 8, 8  # bytes of z, of the class counts and of a weight


@each_estimator
def test_a_gradient_phase_sends_what_its_estimator_needs(name: str, tmp_path: Path) -> None:
    one = Finished(tmp_path / "run", name, PL)
    for t in range(ROUNDS):
        asked, active = one.exchanges(t + 1, GRADIENTS), one.exchanges(t + 1)
        second = one.weight(t) > 0
        assert [PAYLOAD in e.message.content.config_records for e in asked] == [second] * len(asked)
        assert {tuple(down_of(e).arrays()) for e in asked} == {("reference", "weight") if second else ()}
        assert {tuple(down_of(e).arrays()) for e in active} == {("estimate",)}
        down = len(asked) * (MODEL + (MODEL + NUMBER) * second) + len(active) * 2 * MODEL
        up = len(asked) * MODEL + len(active) * MODEL
        assert (one.run.lines[t + 1]["bytes_down"], one.run.lines[t + 1]["bytes_up"]) == (down, up)


@each_estimator
def test_auc_s_class_counts_travel_too(name: str, unequal: dict[str, Scalar], tmp_path: Path) -> None:
    one = Finished(tmp_path / "run", name, {**unequal, **AUC})
    model = 7 * 8  # three weights and a bias; a, b and lambda
    for t in range(ROUNDS):
        asked, active = one.exchanges(t + 1, GRADIENTS), one.exchanges(t + 1)
        second = one.weight(t) > 0
        sent = {tuple(down_of(e).arrays()) for e in asked}
        assert sent == {("class_counts", "reference", "weight") if second else ("class_counts",)}
        down = len(asked) * (model + COUNTS + (model + NUMBER) * second) + len(active) * (2 * model + COUNTS)
        up = len(asked) * model + len(active) * model
        assert (one.run.lines[t + 1]["bytes_down"], one.run.lines[t + 1]["bytes_up"]) == (down, up)


def test_storm_without_memory_sends_no_reference(tmp_path: Path) -> None:
    """alpha_t = min(1, 2 / (t + 1)^(2/3)) falls below 1 where t + 1 > 2^1.5 = 2.83."""
    one = Finished(tmp_path / "run", "storm", {**PL, "fedsgda.alpha-constant": 2.0})
    sent = [down_of(one.exchanges(t + 1, GRADIENTS)[0]) for t in range(ROUNDS)]
    assert [down.reference is not None for down in sent] == [False, False] + [True] * (ROUNDS - 2)
    weights = [float(down.weight[0]) for down in sent if down.weight is not None]
    np.testing.assert_allclose(weights, [1 - 2 / (t + 1) ** (2 / 3) for t in range(2, ROUNDS)], **EXACT)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@each_estimator
def test_the_wire_has_the_run_s_number_type_and_the_server_float64(name: str, dtype: str, tmp_path: Path) -> None:
    kept: list[Payload | None] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FedSGDA, "snapshot", lambda self: kept.append(self.estimator.snapshot()) or kept[-1])
        one = Finished(tmp_path / "run", name, {**PL, "dtype": dtype, "checkpoint-every": 1, "num-server-rounds": 3})
    for e in one.tap.exchanges:
        floats = [*model_of(e.message), *model_of(e.reply), *down_of(e).arrays().values()]
        floats += [gradient_of(e)] if e.phase else []
        assert {value.dtype.name for value in floats} == {dtype}
    states = [state.arrays() for state in kept if state is not None]
    assert states
    assert {value.dtype.name for state in states for value in state.values()} == {"float64"}
    fields = ["previous", "estimate"] + ["snapshot", "snapshot_gradient"] * (name == "svrg")
    assert all(list(state) == fields for state in states)


# Networks with batch norm and with dropout.


@pytest.fixture
def even(tmp_path: Path) -> dict[str, Scalar]:
    """Four equal sites."""
    return {**sites_of([[0, 1, 0] * 8] * 4, tmp_path / "even.npz"), **AUC, "fedsgda.large-batch": 3}


@pytest.mark.parametrize("network", ["normed", "dropped", "normed_and_dropped"])
@each_estimator
def test_other_networks_train_the_same_on_any_number_of_threads(
    name: str, network: str, even: dict[str, Scalar], tmp_path: Path
) -> None:
    keys = {**KEYS, **even, "strategy": f"fedsgda-{name}", "model": USER + network, "num-server-rounds": 4}
    keys |= {"evaluate-every": 1}
    runs = []
    for threads in (1, 4):
        path = tmp_path / f"{threads}"
        grid = Wiretap(client_app, 4, flat_config(path, keys), threads=threads)
        serve(grid, server_app, flat_config(path, keys))
        grid.close()
        runs.append(Run(path))
    assert runs[0].untimed == runs[1].untimed
    assert runs[0].model_bytes == runs[1].model_bytes
    assert [line["dropped"] for line in runs[0].lines] == [{}] * 5
    assert np.isfinite(runs[0].numbers()).all()
    assert len({line["loss"] for line in runs[0].lines}) == 5


@pytest.mark.parametrize("network", ["normed", "dropped", "normed_and_dropped"])
def test_the_first_step_is_along_the_estimate_exactly(network: str, even: dict[str, Scalar], tmp_path: Path) -> None:
    """Both gradients of a step are of one batch and one dropout mask: to the bit, so that all clients end alike."""
    one = Finished(tmp_path / "run", "mb", {**even, "model": USER + network, "local-steps": 1}, clients=4)
    for t in range(ROUNDS):
        (end,) = {model_of(e.reply)[0].tobytes() for e in one.exchanges(t + 1)}
        expected = one.point(t) + np.append(-0.2 * one.estimate(t)[:-1], 0.5 * one.estimate(t)[-1])
        np.testing.assert_allclose(np.frombuffer(end), expected, **EXACT)


def test_building_a_network_leaves_the_draws_of_another_thread_alone(even: dict[str, Scalar]) -> None:
    """A thread that meets its first message builds its network while another one trains with dropout."""
    config = parse_run_config({**even, "strategy": "fedsgda-mb", "model": USER + "paused"})
    mine = resources.new_model(parse_run_config({**even, "strategy": "fedsgda-mb", "model": USER + "dropped"}), (4,))
    expected = torch.rand(3, generator=torch.Generator().manual_seed(5))
    minimax_problems.BUILDING.clear()
    minimax_problems.GO_ON.clear()
    builder = threading.Thread(target=resources.skeleton, args=(config, (4,)))
    with resources.turn(mine):
        torch.default_generator.manual_seed(5)
        builder.start()
        minimax_problems.BUILDING.wait(0.3)
        drawn = torch.rand(3)
        minimax_problems.GO_ON.set()
    builder.join()
    torch.testing.assert_close(drawn, expected, rtol=0, atol=0)


@pytest.mark.parametrize("network", ["dropped", "normed_and_dropped"])
def test_later_steps_have_one_mask_in_both_gradients_too(network: str, even: dict[str, Scalar], tmp_path: Path) -> None:
    """With tiny steps the points of a round are nearly one, so its corrections are nearly zero."""
    tiny = {"fedsgda.primal-step": 1e-7, "fedsgda.dual-step": 1e-7, "fedsgda.alpha-constant": 1e-9}
    one = Finished(tmp_path / "run", "storm", {**even, **tiny, "model": USER + network, "fedsgda.rho": 0.0}, clients=4)
    for t in range(ROUNDS):
        if t:  # the gradient phase's own difference
            assert max(np.abs(gradient_of(e)).max() for e in one.exchanges(t + 1, GRADIENTS)) < 1e-4
        expected = STEPS * np.append(-1e-7 * one.estimate(t)[:-1], 1e-7 * one.estimate(t)[-1])
        for e in one.exchanges(t + 1):
            np.testing.assert_allclose(model_of(e.reply)[0] - one.point(t), expected, rtol=0, atol=1e-12)
    assert np.abs(one.estimate(0)).max() > 1e-2


def test_batch_norm_sees_every_batch_of_the_local_steps_once(even: dict[str, Scalar], tmp_path: Path) -> None:
    """Its running statistics are those of forward passes on the K batches at the client's own K points."""
    one = Finished(tmp_path / "run", "storm", {**even, "model": USER + "normed", "num-server-rounds": 2}, clients=4)
    rates = [(0.2, 0.5), (0.2 / 2 ** (1 / 3), 0.5 / 2 ** (1 / 3))]
    for t, (eta, gamma) in enumerate(rates):
        for e in one.exchanges(t + 1):
            site = one.data.client(e.partition)
            z, buffers = (array.copy() for array in model_of(e.message))
            mean, variance = np.split(buffers, 2)
            start, move = z.copy(), np.append(np.full(len(z) - 1, -eta), gamma)
            model, other = (network_at("normed", array) for array in (z, start))
            for k in range(STEPS):
                rows = one.batch(e.partition, t, k)
                hidden = site.features[rows].astype(np.float64) @ z[:24].reshape(6, 4).T + z[24:30]  # (7, 6)
                mean, variance = 0.9 * mean + 0.1 * hidden.mean(0), 0.9 * variance + 0.1 * hidden.var(0, ddof=1)
                here, there = (saddle_gradient(m, point, site, rows) for m, point in ((model, z), (other, start)))
                z = z + move * (here - there + one.estimate(t))
            got_point, got_buffers = model_of(e.reply)
            np.testing.assert_allclose(got_point, z, **CLOSE)
            np.testing.assert_allclose(got_buffers, np.concatenate([mean, variance]), **CLOSE)
        means = np.mean([model_of(e.reply)[1] for e in one.exchanges(t + 1)], axis=0)
        if t == 0:
            np.testing.assert_allclose(model_of(one.exchanges(2, GRADIENTS)[0].message)[1], means, **EXACT)
            np.testing.assert_allclose(model_of(one.exchanges(2)[0].message)[1], means, **EXACT)


def network_at(network: str, z: Array) -> FlatModel:
    model = FlatModel(SaddleNetwork(build_model(USER + network, (4,), 0)), dtype=torch.float64)
    model.parameters.copy_(torch.from_numpy(z))
    return model


def saddle_gradient(model: FlatModel, z: Array, site: Any, rows: Index) -> Array:
    """The gradient of (63) on a batch, prior 1/3, by autograd."""
    model.parameters.copy_(torch.from_numpy(z))
    a, b, dual = (torch.tensor(value, dtype=torch.float64, requires_grad=True) for value in z[-3:])
    s, positive = model.scores(torch.from_numpy(site.features[rows])), torch.from_numpy(site.labels[rows] == 1)
    terms = torch.where(
        positive,
        2 / 3 * (s - a) ** 2 - 2 * (1 + dual) * 2 / 3 * s,
        1 / 3 * (s - b) ** 2 + 2 * (1 + dual) * 1 / 3 * s,
    )
    network = [p for name, p in model.module.named_parameters() if name.startswith("network.")]
    found = torch.autograd.grad(terms.mean() - 2 / 9 * dual**2, [*network, a, b, dual])
    return np.concatenate([gradient.numpy().ravel() for gradient in found])


# The halves by hand.


def pl_client(kind: type[FedSGDAClient] = FedSGDAClient, **settings: Any) -> FedSGDAClient:
    data = torch.from_numpy(np.random.default_rng(0).normal(size=(9, 3, 2)))
    site = Site.from_arrays(0, data.numpy(), np.zeros(9), dtype=torch.float64)
    oracle = FunctionOracle(SyntheticPL(data), dtype=torch.float64, device=torch.device("cpu"))
    training = TrainingSettings(local_steps=2, batch_size=4, dtype="float64")
    return kind(site, oracle, training, FedSGDASettings(**settings) if settings else None)


@pytest.mark.parametrize(("kind", "rho"), [(FedSGDAClient, 0.0), (FedSGDAStormClient, 1 / 3)])
def test_the_steps_decay_as_the_estimator_s_theory_asks(kind: type[FedSGDAClient], rho: float) -> None:
    moves = []
    for server_round in (1, 8):
        client = pl_client(kind, primal_step=1e-6, dual_step=3e-6)
        client.inbox = FedSGDADown(estimate=np.ones(4))
        (end,), _, _ = client.fit([np.zeros(4)], {"server-round": server_round})
        moves.append(end)
    np.testing.assert_allclose(moves[0], [-2e-6, -2e-6, 6e-6, 6e-6], rtol=1e-4)
    np.testing.assert_allclose(moves[1], moves[0] / 8**rho, rtol=1e-4)


def test_the_first_step_costs_no_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two steps, the second takes one gradient here and one at the start."""
    taken: list[int] = []

    def counted(oracle: FunctionOracle, point: torch.Tensor, rows: Any) -> torch.Tensor:
        taken.append(len(rows))
        return torch.zeros_like(point)

    client = pl_client()
    monkeypatch.setattr(SyntheticPL, "batch_gradients", lambda *args: None)
    monkeypatch.setattr(FunctionOracle, "gradient_at", counted)
    client.inbox = FedSGDADown(estimate=np.ones(4))
    client.fit([np.zeros(4)], {"server-round": 1})
    assert taken == [4, 4]


def test_the_strategies_and_clients_have_the_same_decay() -> None:
    for strategy, client in (
        (FedSGDAMB, FedSGDAClient),
        (FedSGDASTORM, FedSGDAStormClient),
        (FedSGDASPIDER, FedSGDAClient),
        (FedSGDASVRG, FedSGDAClient),
    ):
        assert strategy().estimator.decay == client.rho
        assert strategy(settings=FedSGDASettings(rho=0.2)).estimator.decay == 0.2
    assert isinstance(FedSGDASTORM().estimator, Storm)


def test_an_update_without_an_estimate_is_refused() -> None:
    with pytest.raises(ValueError, match="FedSGDA's update phase needs the server's estimate"):
        pl_client().fit([np.zeros(4)], {"server-round": 1})


@pytest.mark.parametrize("reference", [None, np.ones(7)], ids=["one-point", "two-points"])
def test_what_was_sent_does_not_change_with_what_comes_next(reference: Array | None) -> None:
    rng = np.random.default_rng(6)
    site = Site.from_arrays(0, rng.normal(size=(8, 3)), np.arange(8) % 2, dtype=torch.float64)
    model = FlatModel(SaddleNetwork(build_model("linear", (3,), 0)), dtype=torch.float64)
    client = FedSGDAClient(site, AUCOracle(model, site.features, site.labels), TrainingSettings(dtype="float64"))
    weight = None if reference is None else np.ones(1)
    client.inbox = FedSGDADown(class_counts=np.array([4, 4]), reference=reference, weight=weight)
    client.fit([rng.normal(size=7)], {"server-round": 1, PHASE: GRADIENTS})
    sent = client.outbox.gradient
    before = sent.copy()
    client.fit([rng.normal(size=7)], {"server-round": 2, PHASE: GRADIENTS})
    np.testing.assert_array_equal(sent, before)


def test_a_client_evaluates_f_i_with_its_own_prior() -> None:
    """The prior of the site, whatever the server said before."""
    rng = np.random.default_rng(6)
    X, labels = rng.normal(size=(8, 3)), np.array([1, 0, 0, 1, 0, 0, 1, 0])
    site = Site.from_arrays(0, X, labels, dtype=torch.float64)
    model = FlatModel(SaddleNetwork(build_model("linear", (3,), 0)), dtype=torch.float64)
    client = FedSGDAClient(site, AUCOracle(model, site.features, site.labels), TrainingSettings(dtype="float64"))
    z = rng.normal(size=7)
    client.inbox = FedSGDADown(class_counts=np.array([9, 1]), estimate=np.zeros(7))
    client.fit([z], {"server-round": 1})
    loss, examples, _ = client.evaluate([z], {})
    assert loss == pytest.approx(minimax.SaddleAUC([X], [labels], 3 / 8).value(0, z), rel=1e-12)
    assert examples == 8


# Wrong input: one clear error each.


@pytest.mark.parametrize(
    ("keys", "parts"),
    [
        ({"fedsgda.period": 0}, ["fedsgda.period: got 0, allowed: ", "an integer >= 1"]),
        ({"fedsgda.period": 1.5}, ["fedsgda.period: got 1.5, allowed: ", "an integer >= 1"]),
        ({"fedsgda.large-batch": 0}, ["fedsgda.large-batch: got 0, allowed: ", "an integer >= 1", "auto"]),
        ({"fedsgda.large-batch": "some"}, ["fedsgda.large-batch: got 'some', allowed: ", "auto"]),
        ({"fedsgda.large-batch": 2.0}, ["fedsgda.large-batch: got 2.0, allowed: ", "an integer >= 1"]),
        ({"fedsgda.rho": 1.0}, ["fedsgda.rho: got 1.0, allowed: ", "in [0, 1)", "auto"]),
        ({"fedsgda.rho": -0.1}, ["fedsgda.rho: got -0.1, allowed: ", "in [0, 1)"]),
        ({"fedsgda.rho": "fast"}, ["fedsgda.rho: got 'fast', allowed: ", "in [0, 1)", "auto"]),
        ({"fedsgda.primal-step": 0.0}, ["fedsgda.primal-step: got 0.0, allowed: ", "> 0"]),
        ({"fedsgda.dual-step": -1.0}, ["fedsgda.dual-step: got -1.0, allowed: ", "> 0"]),
        ({"fedsgda.alpha-constant": 0.0}, ["fedsgda.alpha-constant: got 0.0, allowed: ", "> 0"]),
        (
            {"strategy": "fedx2", "dataset": "synthetic-pl"},
            ["dataset: got 'synthetic-pl'", "'fedx2' cannot solve", "fedsgda-storm"],
        ),
        ({**PL, "loss": "auc-minimax"}, ["loss: got 'auc-minimax'", "'synthetic-pl' is a problem of its own"]),
        ({**PL, "loss": USER + "Robust"}, ["loss: got ", "Robust", "'synthetic-pl' is a problem of its own"]),
        ({**PL, "partition": "dirichlet"}, ["'synthetic-pl' has no labels", "partition must be", "got 'dirichlet'"]),
        ({**PL, "imbalance": 0.1}, ["'synthetic-pl' has no labels", "imbalance must be 0.0, got 0.1"]),
        ({**PL, "label-noise": 0.1}, ["'synthetic-pl' has no labels", "label-noise must be 0.0, got 0.1"]),
        ({**PL, "client-shift": 0.1}, ["'synthetic-pl' has no labels", "client-shift must be 0.0, got 0.1"]),
        ({**PL, "positive-label": "1"}, ["'synthetic-pl' has no labels", "positive-label must be '', got '1'"]),
        ({"loss": "synthetic-pl"}, ["loss: got 'synthetic-pl', allowed: auto"]),
        ({"loss": "no.such.module:Problem"}, ["loss 'no.such.module:Problem': cannot be imported", "factory"]),
        ({"loss": USER + "Missing"}, [f"loss '{USER}Missing': cannot be imported", "no attribute 'Missing'"]),
        ({"loss": ":Robust"}, ["loss ':Robust': cannot be imported", "expected 'package.module:factory'"]),
        ({"loss": USER + "NOT_CALLABLE"}, ["NOT_CALLABLE': is int, expected a class or function"]),
        ({"strategy": "fedx2", "loss": USER + "Robust"}, ["loss: got ", "Robust", "allowed: auto, square"]),
    ],
    ids=lambda value: ",".join(f"{key}={got}" for key, got in value.items()) if isinstance(value, dict) else "",
)
def test_a_refusal_names_key_value_and_what_is_allowed(keys: dict[str, Scalar], parts: list[str]) -> None:
    with pytest.raises(ConfigError) as refused:
        parse_run_config({"strategy": "fedsgda-spider", **keys})
    message = str(refused.value)
    assert [part for part in parts if part not in message] == []
    assert message.count(": got ") <= 1


def test_the_ends_of_the_ranges_are_allowed() -> None:
    keys: dict[str, Scalar] = {"fedsgda.period": 1, "fedsgda.large-batch": 1, "fedsgda.rho": 0.0}
    settings = parse_run_config({"strategy": "fedsgda-svrg", **keys}).family
    assert settings == FedSGDASettings(period=1, large_batch=1, rho=0.0)
    assert parse_run_config({"strategy": "fedsgda-mb", "fedsgda.rho": 0}).family == FedSGDASettings(rho=0)
    for loss in ("auto", "synthetic-pl"):
        assert parse_run_config({"strategy": "fedsgda-mb", **PL, "loss": loss}).training.loss == "synthetic-pl"


def failure(path: Path, name: str, keys: dict[str, Scalar], clients: int = 3) -> str:
    """What a run that cannot be made says."""
    with pytest.raises(RunFailedError) as failed:
        federate(path, {"strategy": f"fedsgda-{name}", **keys}, clients)
    return str(failed.value)


@pytest.mark.parametrize("name", ["spider", "svrg"])
def test_a_large_batch_of_more_clients_than_there_are(name: str, tmp_path: Path) -> None:
    message = failure(tmp_path / "run", name, {**PL, "fedsgda.large-batch": 4})
    told = "there are 3 clients, allowed: at most as many: lower it, or take more clients"
    assert message == f"fedsgda.large-batch: got 4, but {told}"


@pytest.mark.parametrize("name", ["mb", "storm"])
def test_the_others_do_not_look_at_the_large_batch(name: str, tmp_path: Path) -> None:
    run, _ = federate(tmp_path / "run", {"strategy": f"fedsgda-{name}", **PL, "fedsgda.large-batch": 4}, 3)
    assert [line["clients_answered"] for line in run.lines[1:]] == [3, 3, 3]


def test_a_batch_larger_than_all_sites(tmp_path: Path) -> None:
    message = failure(tmp_path / "run", "mb", {**PL, "batch-size": 301})
    assert message == "batch-size: got 301, but all 3 sites together hold 300 samples: lower batch-size"


@pytest.mark.parametrize("counts", [(4, 0), (0, 4)])
def test_auc_needs_both_classes(counts: tuple[int, int]) -> None:
    reports = tuple(SiteReport(identity=np.array([i, 2]), class_counts=np.array(counts)) for i in range(2))
    strategy = FedSGDAMB(TrainingSettings(batch_size=2))
    reason = f"all sites together hold {2 * counts[1]} positives and {2 * counts[0]} negatives; AUC needs both"
    with pytest.raises(StrategyError, match=reason):
        strategy.meet(Roster((1, 2), reports))
    other = FedSGDAMB(TrainingSettings(batch_size=2, loss="synthetic-pl"))
    other.meet(Roster((1, 2), reports))
    assert other.class_counts is None


@each_estimator
def test_more_clients_needed_than_there_are(name: str, tmp_path: Path) -> None:
    message = failure(tmp_path / "run", name, {**PL, "min-train-nodes": 4})
    assert "4 clients are needed (min-train-nodes), 3 are connected" in message


@pytest.mark.parametrize("name", ["spider", "svrg"])
def test_a_large_batch_is_at_least_the_fewest_replies(name: str, tmp_path: Path) -> None:
    """Two clients could never give three good replies."""
    one = Finished(tmp_path / "run", name, {**PL, "min-train-nodes": 5, "fedsgda.large-batch": 2})
    assert [len(one.places(t + 1, GRADIENTS)) for t in range(ROUNDS)] == [5] * ROUNDS


@pytest.mark.parametrize(
    ("problem", "parts"),
    [
        ("not_a_problem", ["not_a_problem': returned Tensor, expected a MinimaxProblem"]),
        ("NoPrimal", ["NoPrimal': primal_dim is 0, expected an integer >= 1"]),
        ("WordPrimal", ["WordPrimal': primal_dim is 'four', expected an integer >= 1"]),
        ("NoSizes", ["NoSizes': primal_dim is None, expected an integer >= 1"]),
        ("NegativeDual", ["NegativeDual': dual_dim is -1, expected an integer >= 0"]),
        ("MisshapenGradients", ["MisshapenGradients.gradients: got shapes (3,) and (0,)", "(4,) in x and (0,) in y"]),
        ("ListedGradients", ["ListedGradients.gradients: got list, expected a pair of tensors (x, y)"]),
        ("VectorValue", ["VectorValue.value: got shape (", "expected a scalar tensor"]),
        ("PlainValue", ["PlainValue.value: got float, expected a scalar tensor"]),
        ("MisshapenStart", ["MisshapenStart.start: got shapes (5,) and (0,)", "expected (4,) in x and (0,) in y"]),
    ],
)
def test_a_broken_problem_is_named_with_what_was_expected(problem: str, parts: list[str], tmp_path: Path) -> None:
    assert hasattr(minimax_problems, problem)
    data = sites_of([[0, 1, 0] * 4] * 3, tmp_path / "data.npz")
    message = failure(tmp_path / "run", "mb", {**data, "loss": USER + problem})
    assert [part for part in parts if part not in message] == []


def test_a_run_that_diverges_says_so(tmp_path: Path) -> None:
    data = sites_of([[0, 1, 0] * 4] * 3, tmp_path / "data.npz")
    keys = {**data, "loss": USER + "LeastSquares", "fedsgda.primal-step": 1e30, "num-server-rounds": 5}
    message = failure(tmp_path / "run", "mb", keys)
    assert "diverged" in message or "not finite" in message


def test_the_points_of_a_run_are_all_different(tmp_path: Path) -> None:
    """No round repeats the one before it."""
    one = Finished(tmp_path / "run", "storm", PL)
    assert all(np.abs(one.point(s) - one.point(t)).max() > 1e-6 for s, t in pairwise(range(ROUNDS)))
