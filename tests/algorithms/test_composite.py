"""Composite FL, FedMid, FedDA and Fast-FedDA: whole runs step by step against the NumPy reference, what must hold of
the method, its solutions, what travels, warnings, and networks."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sklearn
import torch
from flwr.app import Message
from packaging.version import Version
from sklearn.linear_model import ElasticNet, Lasso, LogisticRegression
from torch import Tensor, nn

from apps import resources
from apps.client_app import STATE
from apps.client_app import app as client_app
from apps.config import Scalar, parse_run_config
from apps.registry import ALGORITHMS
from apps.server_app import app as server_app
from clients.base import Site
from payloads.composite import SMOOTHNESS, CompositeSettings, CorrectionState, Smoothness, StepSizes
from payloads.settings import TrainingSettings
from payloads.wire import ARRAYS, CONFIG, METRICS, PAYLOAD
from problems.models import FlatModel, build_model
from problems.objectives.classification import SAMPLE_LOSSES
from problems.objectives.composite import LinearObjective
from problems.optimum import minimise
from problems.penalties import PENALTIES, Penalty, make_penalty
from problems.randomness import Purpose
from problems.sampling import EpochSampler
from simulations.engine import FIRST_NODE_ID
from strategies.replies import Reply
from tests.algorithms.test_sgdm import BATCH_NORM
from tests.battery.federation import Exchange, Run, Wiretap, flat_config, model_of, save_npz, serve
from tests.reference import composite
from tests.reference.composite import Prox, Smooth
from tests.reference.minimax import Array, Rows

CLOSE: dict[str, float] = {"rtol": 1e-11, "atol": 1e-12}
SITES, ROUNDS, STEPS, DIM = 4, 5, 3, 6
FAMILY = ["composite", "fedmid", "fedda", "fast-fedda"]
each = pytest.mark.parametrize("strategy", FAMILY)
KEYS: dict[str, Scalar] = {
    "strategy": "composite",
    "dtype": "float64",
    "model": "linear",
    "num-server-rounds": ROUNDS,
    "local-steps": STEPS,
    "batch-size": 0,
    "learning-rate": 0.2,
    "seed": 3,
    "checkpoint-every": 0,
    "composite.weight": 0.12,
    "composite.ridge": 0.03,
}
DROPS: dict[str, Scalar] = {"lr-decay": 0.5, "lr-decay-every": 2}  # inside rounds


def save_sites(path: Path, rows: int = 90) -> dict[str, Scalar]:
    """Sites of unequal sizes, unequal shares of positives and unequal features."""
    rng = np.random.default_rng(5)
    features = rng.normal(size=(rows, DIM)) + 0.5 * (np.arange(rows) % 3 == 0)[:, None]
    labels = (features @ [1.0, -0.8, 0.6, 0.0, 0.1, 0.0] + rng.normal(size=rows) > 0.3).astype(int)
    return {**save_npz(path, features, labels), "partition": "positives-skewed", "partition-alpha": 0.6}


@pytest.fixture
def data(tmp_path: Path) -> dict[str, Scalar]:
    return save_sites(tmp_path / "data.npz")


class Recorder(Wiretap):
    """A wiretap that keeps what each client knows after each exchange, by round and partition."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.states: dict[tuple[int, int], CorrectionState] = {}

    def _heard(self, reply: Message) -> Message:
        before = len(self.exchanges)
        heard = super()._heard(reply)
        for exchange in self.exchanges[before:]:
            records = self._contexts[FIRST_NODE_ID + exchange.partition].state.config_records
            if STATE in records:
                kept = CorrectionState.from_record(records[STATE])
                self.states[exchange.server_round, exchange.partition] = kept
        return heard


class Played:
    """A whole run of the apps, what was on its wires, and what the reference needs to repeat it."""

    def __init__(
        self,
        folder: Path,
        flat: dict[str, Scalar],
        clients: int = SITES,
        tamper: Callable[[Exchange], Message] | None = None,
        grid: type[Recorder] = Recorder,
        **options: Any,
    ) -> None:
        path = folder / f"run-{len(list(folder.glob('run-*')))}"
        flat = flat_config(path, {**KEYS, **flat})
        self.config = parse_run_config(flat)
        self.training, self.settings, self.clients = self.config.training, self.config.family, clients
        assert isinstance(self.settings, CompositeSettings)
        self.run = Run(path)
        self.grid = grid(client_app, clients, flat, tamper=tamper, **options)
        serve(self.grid, server_app, flat)
        self.data = resources.federated_data(self.config.data, clients)
        self.sizes = [len(self.data.client(i)) for i in range(clients)]

    def exchanges(self, server_round: int) -> list[Exchange]:
        return [e for e in self.grid.exchanges if e.server_round == server_round and not e.phase]

    @property
    def rounds(self) -> int:
        return self.training.num_server_rounds

    @cached_property
    def sent(self) -> list[Array]:
        """(d,) the model that went down in each round: x-bar, of FedDA and Fast-FedDA the dual point."""
        return [model_of(self.exchanges(r)[0].message)[0].copy() for r in range(1, self.rounds + 1)]

    @property
    def output(self) -> Array:
        """(d,) what the run saved."""
        return np.concatenate([value.ravel() for _, value in sorted(self.run.model.items(), reverse=True)])

    # for the reference

    @property
    def intercept(self) -> bool:
        return self.config.run.model == "linear"

    def problem(self, client: int | None = None) -> Smooth:
        """f, or the f_i of one client alone; its ridge term spares the bias unless the run's parameters are "all"."""
        chosen = range(self.clients) if client is None else [client]
        shares = [self.data.client(i) for i in chosen]
        features = [share.features.astype(np.float64) for share in shares]
        ridge: Any = np.full(DIM, self.settings.ridge)
        if self.intercept:
            features = [np.column_stack([A, np.ones(len(A))]) for A in features]
            ridge = np.append(ridge, self.settings.ridge if self.settings.parameters == "all" else 0.0)
        labels = [2.0 * share.labels - 1.0 for share in shares]
        loss = {"cross-entropy": "logistic", "squared-error": "squared"}[self.training.loss]
        return Smooth(features, labels, ridge, loss)

    def prox(self) -> Prox:
        """That of the run's penalty, on the weights alone or on all."""
        s, groups = self.settings, {"rows": [range(DIM)], "columns": [[j] for j in range(DIM)]}
        known = {
            "none": composite.none,
            "l1": lambda: composite.l1(s.weight),
            "elastic-net": lambda: composite.elastic_net(s.weight, s.ratio),
            "group-lasso": lambda: composite.group_lasso(s.weight, groups[s.groups]),
            "box": lambda: composite.box(s.lower, s.upper),
        }
        inner = known[s.penalty]()
        if not self.intercept or s.parameters == "all":
            return inner
        return lambda x, step: np.append(inner(x[:-1], step), x[-1])

    def rows(self, server_round: int) -> Rows:
        """The product's batches of a round."""
        return lambda i, t: self.batch(i, (server_round - 1) * self.training.local_steps + t)

    def batch(self, client: int, iteration: int) -> Array | None:
        training, count = self.training, self.sizes[client]
        if training.batch_size == 0 or training.batch_size >= count:
            return None
        sampler = EpochSampler(np.arange(count), training.batch_size, training.seed, Purpose.SAMPLES, client)
        return sampler.batch(iteration)

    def eta(self, server_round: int) -> float:
        """The learning rate of a round's first local iteration, written out."""
        training, first = self.training, (server_round - 1) * self.training.local_steps
        total = training.num_server_rounds * training.local_steps
        drops = first // training.lr_decay_every if training.lr_decay_every else 0
        drops += sum(first >= float(part) * total for part in training.lr_decay_at.split(",") if part)
        return training.learning_rate * training.lr_decay**drops

    @property
    def parts(self) -> tuple[Smooth, Prox, int, float]:
        return self.problem(), self.prox(), self.training.local_steps, self.training.server_learning_rate

    def alone(self, server_round: int) -> Callable[[int], tuple[Smooth, Rows]]:
        """The problem of one client, and its batches."""
        rows = self.rows(server_round)
        return lambda i: (self.problem(i), lambda _, t: rows(i, t))


# Step by step against the reference: every message, every state, the output.


def assert_composite(one: Played) -> None:
    problem, prox, tau, eta_g = one.parts
    state = composite.composite_start(problem, one.sent[0])
    for r in range(1, one.rounds + 1):
        eta = one.eta(r)
        start = prox(state.x_bar, eta * eta_g * tau if state.step is None else state.step)
        new = composite.composite_round(problem, state, prox, one.rows(r), tau, eta, eta_g)
        for e in one.exchanges(r):
            correction, gradient = state.corrections[e.partition], new.gradients[e.partition]
            np.testing.assert_allclose(model_of(e.message)[0], state.x_bar, **CLOSE)
            # the sum of a client's steps
            z_hat = start - eta * tau * (gradient + correction)
            np.testing.assert_allclose(model_of(e.reply)[0], z_hat, **CLOSE)
            kept = one.grid.states[r, e.partition]
            assert kept.server_round.tolist() == [r]
            np.testing.assert_allclose(kept.correction, correction, **CLOSE)
            np.testing.assert_allclose(kept.carried, start / (eta * eta_g * tau) - gradient, **CLOSE)
        state = new
    np.testing.assert_allclose(one.output, composite.composite_point(state, prox), **CLOSE)


def assert_fedmid(one: Played) -> None:
    problem, prox, tau, eta_g = one.parts
    x = one.sent[0]
    for r in range(1, one.rounds + 1):
        alone = one.alone(r)
        for e in one.exchanges(r):
            np.testing.assert_allclose(model_of(e.message)[0], x, **CLOSE)
            own, rows = alone(e.partition)
            end = composite.fedmid_round(own, x, prox, rows, tau, one.eta(r), 1.0, "none")
            np.testing.assert_allclose(model_of(e.reply)[0], end, **CLOSE)
        x = composite.fedmid_round(problem, x, prox, one.rows(r), tau, one.eta(r), eta_g)
    np.testing.assert_allclose(one.output, x, **CLOSE)


def assert_fedda(one: Played) -> None:
    problem, prox, tau, eta_g = one.parts
    state = composite.FedDA(one.sent[0])
    for r in range(1, one.rounds + 1):
        alone = one.alone(r)
        for e in one.exchanges(r):
            np.testing.assert_allclose(model_of(e.message)[0], state.z, **CLOSE)
            own, rows = alone(e.partition)
            end = composite.fedda_round(own, state, prox, rows, tau, one.eta(r)).z
            np.testing.assert_allclose(model_of(e.reply)[0], end, **CLOSE)
        state = composite.fedda_round(problem, state, prox, one.rows(r), tau, one.eta(r), eta_g)
    np.testing.assert_allclose(one.output, composite.fedda_point(state, prox), **CLOSE)


def assert_fast_fedda(one: Played) -> None:
    problem, prox, tau, _ = one.parts
    s = one.settings
    gamma = 1 / one.training.learning_rate if s.anchor_weight == "auto" else s.anchor_weight
    mu = s.ridge if s.strong_convexity == "auto" else s.strong_convexity
    state, dual = composite.fast_fedda_start(one.sent[0]), gamma * one.sent[0]
    for r in range(1, one.rounds + 1):
        alone, t = one.alone(r), (r - 1) * tau
        for e in one.exchanges(r):
            # v = D / b_t
            np.testing.assert_allclose(model_of(e.message)[0], dual / (gamma + mu * t / 2), **CLOSE)
            own, rows = alone(e.partition)
            end, count = composite.fast_fedda_dual_round(own, dual, t, prox, rows, tau, gamma, mu)
            np.testing.assert_allclose(model_of(e.reply)[0], end / (gamma + mu * count / 2), **CLOSE)
        dual, _ = composite.fast_fedda_dual_round(problem, dual, t, prox, one.rows(r), tau, gamma, mu)
        state = composite.fast_fedda_round(problem, state, prox, one.rows(r), tau, gamma, mu)
    np.testing.assert_allclose(one.output, composite.fast_fedda_point(state, prox, gamma, mu), **CLOSE)


FOLLOW = {
    "composite": assert_composite,
    "fedmid": assert_fedmid,
    "fedda": assert_fedda,
    "fast-fedda": assert_fast_fedda,
}
VARIANTS: dict[str, dict[str, Scalar]] = {
    "full": {},
    "batches": {"batch-size": 4},
    "batches-some-sites": {"batch-size": 20, "server-learning-rate": 1.4},
    "server-step": {"server-learning-rate": 0.6, "composite.parameters": "all"},
    "no-intercept": {"model": "linear-no-intercept", "server-learning-rate": 1.4, "loss": "squared-error"},
    "one-step": {"local-steps": 1, "learning-rate": 0.4, "batch-size": 4},
    "drops": {**DROPS, "server-learning-rate": 1.3, "num-server-rounds": 7},
    "drops-at": {"lr-decay": 0.3, "lr-decay-at": "0.3,0.7", "batch-size": 4, "loss": "squared-error"},
    "squared-error": {"loss": "squared-error", "batch-size": 4, "composite.parameters": "output.weight"},
    "elastic-net": {"composite.penalty": "elastic-net", "composite.ratio": 0.6, "composite.weight": 0.3, **DROPS},
    "box": {"composite.penalty": "box", "composite.lower": -0.1, "composite.upper": 0.15, "batch-size": 4},
    "group-lasso": {"composite.penalty": "group-lasso", "server-learning-rate": 0.7},
    "columns": {"composite.penalty": "group-lasso", "composite.groups": "columns", "loss": "squared-error"},
    "none": {"composite.penalty": "none", "batch-size": 4, "composite.ridge": 0.0},
}
OWN: dict[str, dict[str, Scalar]] = {
    "gamma": {"composite.anchor-weight": 7.5, "batch-size": 4},
    "mu": {"composite.strong-convexity": 0.4, **DROPS},
    "no-convexity": {"composite.strong-convexity": 0.0, "server-learning-rate": 1.4},
}
CASES = [(name, variant) for name in FAMILY for variant in VARIANTS] + [("fast-fedda", variant) for variant in OWN]


@pytest.mark.parametrize(("strategy", "variant"), CASES)
def test_it_follows_the_reference(strategy: str, variant: str, data: dict[str, Scalar], tmp_path: Path) -> None:
    one = Played(tmp_path, {**data, "strategy": strategy, **(VARIANTS | OWN)[variant]})
    assert len(set(one.sizes)) == SITES
    assert min(one.sizes) < 20 < max(one.sizes)
    FOLLOW[strategy](one)
    moved = [np.abs(after - before).max() for before, after in pairwise(one.sent)]
    assert min(moved) > 1e-4
    assert np.abs(one.output - one.sent[0]).max() > 0.05


def test_the_proxes_of_the_variants_are_at_work(data: dict[str, Scalar], tmp_path: Path) -> None:
    """Zeros and bounds are met in the runs above, so that a prox left out would show."""
    for variant in ("full", "elastic-net", "columns"):
        assert 0 < np.count_nonzero(Played(tmp_path, {**data, **VARIANTS[variant]}).output[:DIM]) < DIM
    output = Played(tmp_path, {**data, **VARIANTS["box"]}).output[:DIM]
    assert {-0.1, 0.15} <= set(output.tolist())
    assert min(output) == -0.1


def test_a_batch_of_all_samples_is_all_of_them_in_their_order() -> None:
    """To the bit, so that a site smaller than the batch computes what it does with full gradients."""
    problem, runs = make((12, 12)), {}
    for size in (0, 11, 12, 40):
        one = hand(problem, L1, start=START, local_steps=3, batch_size=size)
        batches = [batch for _, batch in one.clients[0].steps(1)]
        assert [len(batch) for batch in batches] == [11] * 3 if size == 11 else batches == [None] * 3
        runs[size] = one.rounds(4)[-1]
    assert runs[0].tobytes() == runs[12].tobytes() == runs[40].tobytes()
    assert far(runs[11], runs[0]) > 1e-3


# Step sizes.


def test_the_steps_of_a_round_are_those_of_its_first_iteration() -> None:
    drops = {"lr_decay": 0.5, "lr_decay_every": 4}
    training = TrainingSettings(learning_rate=0.8, local_steps=3, server_learning_rate=1.5, **drops)
    sizes = StepSizes(training, CompositeSettings())
    # rounds begin at iterations 0, 3, 6, 9, 12, after 0, 0, 1, 2, 3 drops
    assert [sizes.local(r) for r in range(1, 6)] == [0.8, 0.8, 0.4, 0.2, 0.1]
    between = [0.8 * 4.5, 0.8 * 4.5, 0.4 * 4.5, 0.2 * 4.5, 0.1 * 4.5]
    np.testing.assert_allclose([sizes.between(r) for r in range(6)], [between[0], *between], rtol=1e-15)
    np.testing.assert_allclose([sizes.until(r) for r in range(6)], [0.0, *np.cumsum(between)], rtol=1e-15)


def test_without_drops_the_sum_of_the_steps_is_a_product() -> None:
    sizes = StepSizes(TrainingSettings(learning_rate=0.8, local_steps=3), CompositeSettings())
    np.testing.assert_allclose([sizes.until(r) for r in range(4)], [0.0, 2.4, 4.8, 7.2], rtol=1e-15)


def test_fast_fedda_s_steps() -> None:
    training = TrainingSettings(learning_rate=0.25)
    own = StepSizes(training, CompositeSettings(ridge=0.5))
    # b_t = 1/0.25 + 0.5 t/2 = 4, 4.25, 5
    assert [own.weight(t) for t in (0, 1, 4)] == [4.0, 4.25, 5.0]
    assert [own.averaged(t) for t in (0, 1, 4)] == [0.0, 1 / 4.25, 0.8]
    given = StepSizes(training, CompositeSettings(ridge=0.5, anchor_weight=2.0, strong_convexity=3.0))
    # b_t = 2 + 3 t/2
    assert [given.weight(t) for t in (0, 1, 4)] == [2.0, 3.5, 8.0]


# By hand, for long runs.


class Hand:
    """A strategy and its clients without Flower; labels are -1 and +1.

    Args:
        penalty: settings of the table ``composite``.
        training: common settings; float64, full gradients and one round's steps unless given.
        change: what is done to each client before the first round.
    """

    def __init__(
        self,
        features: Sequence[Array],
        labels: Sequence[Array],
        penalty: dict[str, Any],
        strategy: str = "composite",
        start: Array | None = None,
        module: nn.Module | None = None,
        change: Callable[[Any], None] = lambda client: None,
        **training: Any,
    ) -> None:
        row = ALGORITHMS[strategy]
        self.training = TrainingSettings(**{"dtype": "float64", "batch_size": 0, "num_server_rounds": 10**4} | training)
        self.settings = CompositeSettings(**penalty)
        module = module or build_model("linear-no-intercept", features[0].shape[1:], 0)
        self.model = FlatModel(module, dtype=torch.float64)
        sites = [
            Site.from_arrays(i, A, (b + 1) / 2, dtype=torch.float64)
            for i, (A, b) in enumerate(zip(features, labels, strict=True))
        ]
        self.clients: list[Any] = [row.client(site, self.model, self.training, self.settings) for site in sites]
        for client in self.clients:
            change(client)
        self.strategy: Any = row.strategy(self.training, self.settings)
        self.strategy.layout = self.model.layout
        self.arrays = self.model.arrays() if start is None else [start]
        self.number = 0

    def round(self) -> Array:
        """One round; the output after it."""
        self.number += 1
        self.strategy._model = self.arrays
        answers = [client.fit(self.arrays, {"server-round": self.number}) for client in self.clients]
        replies = [Reply(place, arrays, None, count) for place, (arrays, count, _) in enumerate(answers)]
        self.arrays, _ = self.strategy.combine(self.number, replies)
        return self.output

    def rounds(self, count: int) -> list[Array]:
        """The outputs after some rounds."""
        return [self.round() for _ in range(count)]

    @property
    def output(self) -> Array:
        return self.strategy.output(self.number, self.arrays)[0]

    @property
    def corrections(self) -> Array:
        """(n, d) c_i of the round just made."""
        return np.stack([client.state.correction for client in self.clients])


def make(sizes: Sequence[int] = (12, 12, 12, 12), squared: bool = False, ridge: float = 0.1, dim: int = DIM) -> Smooth:
    """Sites with features and label rules of their own, labels -1 and +1."""
    rng = np.random.default_rng(4)
    features, labels = [], []
    for i, size in enumerate(sizes):
        A = rng.normal(0.3 * i, 1.0, (size, dim))
        b = np.sign(A @ rng.normal(0.3, 1.0, dim) + 0.5 * rng.normal(size=size))
        features.append(A)
        labels.append(b)
    return Smooth(features, labels, ridge, "squared" if squared else "logistic")


def hand(problem: Smooth, penalty: dict[str, Any], **options: Any) -> Hand:
    loss = "squared-error" if problem.loss == "squared" else "cross-entropy"
    penalty = {"ridge": problem.ridge, **penalty}
    return Hand(problem.features, problem.labels, penalty, **{"loss": loss, "learning_rate": 0.2} | options)


L1 = {"penalty": "l1", "weight": 0.05}
PAIRS: dict[str, tuple[dict[str, Any], Prox]] = {
    "none": ({"penalty": "none"}, composite.none()),
    "l1": (L1, composite.l1(0.05)),
    "l2": ({"penalty": "l2", "weight": 0.3}, composite.squared_l2(0.3)),
    "elastic-net": ({"penalty": "elastic-net", "weight": 0.1, "ratio": 0.4}, composite.elastic_net(0.1, 0.4)),
    "group-lasso": ({"penalty": "group-lasso", "weight": 0.05}, composite.group_lasso(0.05, [range(DIM)])),
    "nuclear-norm": ({"penalty": "nuclear-norm", "weight": 0.05}, composite.nuclear_norm(0.05, (1, DIM))),
    "box": ({"penalty": "box", "lower": -0.2, "upper": 0.3}, composite.box(-0.2, 0.3)),
    "l2-ball": ({"penalty": "l2-ball", "radius": 0.4}, composite.l2_ball(0.4)),
    "simplex": ({"penalty": "simplex", "radius": 1.2}, composite.simplex(1.2)),
    "nonnegative": ({"penalty": "nonnegative"}, composite.nonnegative()),
}
each_penalty = pytest.mark.parametrize("name", PAIRS)
START = np.random.default_rng(0).normal(0.0, 0.8, DIM)


def far(got: Array, other: Array) -> float:
    return float(np.max(np.abs(got - other)))


def test_every_penalty_is_tried() -> None:
    assert set(PAIRS) == set(PENALTIES)


# What must hold, 1 to 5.


@pytest.mark.parametrize("more", [{}, {"batch_size": 3}, {"batch_size": 3, "server_learning_rate": 1.7}])
@pytest.mark.parametrize("drops", [{}, {"lr_decay": 0.8, "lr_decay_every": 7}])
@pytest.mark.parametrize("name", ["l1", "box"])
def test_1_corrections_sum_to_zero(name: str, more: dict[str, Any], drops: dict[str, Any]) -> None:
    one = hand(make((12, 3, 40, 7)), PAIRS[name][0], start=START, local_steps=4, **more, **drops)
    for r in range(1, 25):
        one.round()
        assert np.abs(one.corrections.mean(axis=0)).max() < 1e-13
        assert np.abs(one.corrections).max() == 0 if r == 1 else np.abs(one.corrections).max() > 0.01


@each_penalty
@pytest.mark.parametrize("drops", [{}, {"lr_decay": 0.7, "lr_decay_every": 2}])
def test_2_one_step_is_proximal_gradient_descent(name: str, drops: dict[str, Any]) -> None:
    problem, (penalty, prox), eta_g = make((12, 3, 20, 7)), PAIRS[name], 1.5
    one = hand(problem, penalty, start=START, local_steps=1, server_learning_rate=eta_g, **drops)
    x, rate = prox(START, 0.2 * eta_g), 0.2
    for r in range(12):
        step = (rate * 0.7 ** (r // 2) if drops else rate) * eta_g
        x = prox(x - step * problem.mean_gradient(x), step)
        assert far(one.round(), x) < 1e-13
    assert far(x, START) > 0.1


class Constant(Penalty):
    """A penalty whose prox has one parameter in the place of all but one, ``kept``."""

    def __init__(self, inner: Penalty, parameter: float, kept: float) -> None:
        self.inner, self.parameter, self.kept = inner, parameter, kept

    def value(self, x: Tensor) -> float:
        return self.inner.value(x)

    def distance(self, x: Tensor, slope: Tensor) -> float:
        return self.inner.distance(x, slope)

    def _prox(self, x: Tensor, step: float) -> Tensor:
        return self.inner.prox(x, step if step == self.kept else self.parameter)


def constant(parameter: float, between: float) -> Callable[[Any], None]:
    """Clients that prox with one parameter instead of (t + 1) eta, and as ever with eta~ at a round's start."""

    def change(client: Any) -> None:
        client.penalty = Constant(client.penalty, parameter, between)

    return change


@pytest.mark.parametrize("tau", [1, 2, 5])
@each_penalty
def test_3_one_client_stays_at_the_optimum(name: str, tau: int) -> None:
    problem, (penalty, prox), eta_g = make((12,)), PAIRS[name], 1.2
    best = composite.optimum(problem, prox)
    start = best - 0.2 * eta_g * tau * problem.gradient(0, best)
    one = hand(problem, penalty, start=start, local_steps=tau, server_learning_rate=eta_g)
    assert max(far(x, best) for x in one.rounds(6)) < 1e-13


@pytest.mark.parametrize("name", ["l1", "l2", "elastic-net", "group-lasso", "nuclear-norm"])
def test_3_with_the_constant_parameter_it_leaves(name: str) -> None:
    problem, (penalty, prox), tau = make((12,)), PAIRS[name], 5
    best = composite.optimum(problem, prox)
    start = best - 0.2 * tau * problem.gradient(0, best)
    one = hand(problem, penalty, start=start, local_steps=tau, change=constant(0.2 * tau, 0.2 * tau))
    assert far(one.rounds(20)[-1], best) > 1e-4


@pytest.mark.parametrize("more", [{}, {"batch-size": 4}, {"batch-size": 4, "server-learning-rate": 1.4}])
def test_4_without_a_penalty_it_is_scaffold(more: dict[str, Scalar], data: dict[str, Scalar], tmp_path: Path) -> None:
    keys: dict[str, Scalar] = {**data, **more, "num-server-rounds": 12}
    one = Played(tmp_path, {**keys, "composite.penalty": "none", "composite.ridge": 0.0})
    flat = flat_config(tmp_path / "scaffold", {**KEYS, **keys, "strategy": "scaffold"})
    tap = Wiretap(client_app, SITES, flat)
    serve(tap, server_app, flat)
    for r in range(1, 13):
        theirs = [e for e in tap.exchanges if e.server_round == r]
        for mine, other in zip(one.exchanges(r), theirs, strict=True):
            assert far(model_of(mine.message)[0], model_of(other.message)[0]) < 1e-12
            assert far(model_of(mine.reply)[0], model_of(other.reply)[0]) < 1e-12
    assert far(one.sent[-1], one.sent[0]) > 0.1


@each_penalty
def test_4_identical_clients_are_one_worker(name: str) -> None:
    problem, (penalty, _) = make((12,)), PAIRS[name]
    many = Smooth(problem.features * 3, problem.labels * 3, problem.ridge)
    options = {"start": START, "local_steps": 4, "server_learning_rate": 1.2}
    one, three = hand(problem, penalty, **options), hand(many, penalty, **options)
    for _ in range(8):
        assert far(three.round(), one.round()) < 1e-14
        assert np.abs(three.corrections).max() < 1e-14


THETA_1, THETA_2, TAU = 1e-4, 1e-2, 5


@pytest.fixture(scope="module")
def sparse_logistic() -> tuple[Smooth, Array]:
    """Problem (6) with (alpha, beta) = (10, 10), 10 clients of 100 samples, and its optimum."""
    data = composite.synthetic(np.random.default_rng(0), 10, 100, 10.0, 10.0)
    problem = Smooth(*data, ridge=THETA_2)
    return problem, composite.optimum(problem, composite.l1(THETA_1))


def curve(problem: tuple[Smooth, Array], strategy: str, rounds: int, **options: Any) -> list[float]:
    """The optimality after every round with full gradients, tau = 5 and eta = eta_g = 1."""
    smooth, best = problem
    penalty = {"penalty": "l1", "weight": THETA_1}
    one = hand(smooth, penalty, strategy=strategy, local_steps=TAU, learning_rate=1.0, **options)
    return [composite.optimality(x, best) for x in one.rounds(rounds)]


def test_5_linear_convergence_where_the_baselines_stall(sparse_logistic: tuple[Smooth, Array]) -> None:
    ours = curve(sparse_logistic, "composite", 450)
    assert (ours[399] / ours[199]) ** (1 / 200) == pytest.approx(1 - TAU * THETA_2, abs=0.005)
    assert ours[-1] < 1e-10
    fedmid, fedda, fast = (curve(sparse_logistic, name, 450)[-1] for name in ("fedmid", "fedda", "fast-fedda"))
    assert min(fedmid, fedda) > 0.1
    assert 1e-3 < fast < min(fedmid, fedda) / 3


@pytest.mark.parametrize("multiple", [1, TAU])
def test_5_a_constant_local_parameter_loses_exact_convergence(
    multiple: int, sparse_logistic: tuple[Smooth, Array]
) -> None:
    """eta and eta~ in the place of (t + 1) eta."""
    found = curve(sparse_logistic, "composite", 450, change=constant(multiple * 1.0, TAU * 1.0))
    assert found[-1] > 1e-5
    assert found[-1] == pytest.approx(found[349], rel=1e-2)


@pytest.mark.slow
def test_5_at_full_size_through_the_apps(tmp_path: Path) -> None:
    """Problem (6) of the paper: n = 30, m = 2000."""
    found = {}
    for strategy in FAMILY:
        keys: dict[str, Scalar] = {"strategy": strategy, "dataset": "synthetic-sparse-logistic", "model": "auto"}
        keys |= {"num-server-rounds": 600, "evaluate-every": 50, "local-steps": TAU, "learning-rate": 1.0, "seed": 0}
        keys |= {"composite.weight": THETA_1, "composite.ridge": THETA_2}
        lines = Played(tmp_path, keys, clients=30).run.lines
        found[strategy] = {line["round"]: line["optimality"] for line in lines if "optimality" in line}
    ours = found["composite"]
    assert (ours[400] / ours[200]) ** (1 / 200) == pytest.approx(1 - TAU * THETA_2, abs=0.005)
    assert ours[450] < 1e-10
    assert ours[550] < 1e-12
    stalled = [found["fedmid"][600], found["fedda"][600]]
    assert 0.1 < min(stalled) <= max(stalled) < 0.5
    assert 1e-3 < found["fast-fedda"][600] < min(stalled) / 3


# Solutions.


def gradient_at(problem: Smooth, x: Array) -> Tensor:
    return torch.from_numpy(problem.mean_gradient(x))


@pytest.mark.parametrize("squared", [False, True])
@each_penalty
def test_the_output_is_stationary(name: str, squared: bool) -> None:
    """0 is in the subdifferential of f + g, sites being unequal."""
    problem, penalty = make((12, 5, 20, 9), squared), PAIRS[name][0]
    x = hand(problem, penalty, start=START, local_steps=4, learning_rate=0.25 / problem.smoothness()).rounds(200)[-1]
    g = make_penalty(name, [("w", (1, DIM))], **CompositeSettings(**penalty).penalty_options)
    assert g.value(torch.from_numpy(x)) < np.inf
    assert g.distance(torch.from_numpy(x), gradient_at(problem, x)) < 1e-8
    if name != "none":  # it is not the minimum of f alone
        assert float(gradient_at(problem, x).norm()) > 1e-2


class Matrix(nn.Module):
    """The score <W, X> of a matrix."""

    def __init__(self, shape: tuple[int, int]) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(shape))

    def forward(self, features: Tensor) -> Tensor:
        return (features * self.weight).sum((1, 2))


@pytest.mark.parametrize(
    ("penalty", "kept"),
    [
        ({"penalty": "nuclear-norm", "weight": 0.15}, lambda W: np.linalg.matrix_rank(W, tol=1e-9)),
        ({"penalty": "group-lasso", "weight": 0.1}, lambda W: np.count_nonzero(W.any(axis=1))),
        ({"penalty": "group-lasso", "weight": 0.1, "groups": "columns"}, lambda W: np.count_nonzero(W.any(axis=0))),
    ],
)
def test_structure_is_found_in_a_matrix(penalty: dict[str, Any], kept: Callable[[Array], int]) -> None:
    """Labels by the sum of one row, or one column, or of both, which has rank 1: one is kept, exactly, of three."""
    rng, W = np.random.default_rng(1), np.zeros((3, 3))
    W[1 if penalty.get("groups") != "columns" else slice(None), 1 if "groups" in penalty else slice(None)] = 2.0
    features = [rng.normal(0.1 * i, 1.0, (30, 3, 3)) for i in range(3)]
    labels = [np.sign((A * W).sum((1, 2)) + 0.2) for A in features]
    settings = {"ridge": 0.1, **penalty}
    one = Hand(features, labels, settings, module=Matrix((3, 3)), local_steps=4, learning_rate=0.2)
    x = one.rounds(300)[-1]
    flat = Smooth([A.reshape(30, 9) for A in features], labels, 0.1)
    options = CompositeSettings(**penalty).penalty_options
    g = make_penalty(penalty["penalty"], [("weight", (3, 3))], **options)
    assert g.distance(torch.from_numpy(x), gradient_at(flat, x)) < 1e-8
    assert kept(x.reshape(3, 3)) == 1


def test_lasso_and_elastic_net_are_scikit_learn_s() -> None:
    """Equal sites, so that the mean over sites is that over samples; scikit-learn has 1 / (2 n) ||A x - b||^2."""
    problem = make(squared=True, ridge=0.0, dim=8)
    A, b = np.concatenate(problem.features), np.concatenate(problem.labels)
    options = {"fit_intercept": False, "tol": 1e-14, "max_iter": 10**6}
    for theirs, penalty in [
        (Lasso(0.1, **options), {"penalty": "l1", "weight": 0.1}),
        (ElasticNet(alpha=0.2, l1_ratio=0.4, **options), {"penalty": "elastic-net", "weight": 0.2, "ratio": 0.4}),
    ]:
        x = hand(problem, penalty, local_steps=4, learning_rate=0.25 / problem.smoothness()).rounds(500)[-1]
        np.testing.assert_allclose(x, theirs.fit(A, b).coef_, rtol=0, atol=1e-6)
        assert 0 < np.count_nonzero(x) < 8
        assert_minimised(problem, penalty, x)


def test_sparse_logistic_regression_is_scikit_learn_s() -> None:
    problem, weight = make(ridge=0.0, dim=8), 0.05
    A, b = np.concatenate(problem.features), np.concatenate(problem.labels)
    # liblinear minimises ||x||_1 + C * the sum of the losses: C = 1 / (n weight)
    l1 = {"l1_ratio": 1} if Version(sklearn.__version__) >= Version("1.8") else {"penalty": "l1"}
    options = {"solver": "liblinear", "fit_intercept": False, "tol": 1e-13, "max_iter": 10**5, "random_state": 0}
    theirs = LogisticRegression(C=1 / (len(b) * weight), **l1, **options).fit(A, b).coef_[0]
    penalty = {"penalty": "l1", "weight": weight}
    x = hand(problem, penalty, local_steps=4, learning_rate=0.25 / problem.smoothness()).rounds(500)[-1]
    np.testing.assert_allclose(x, theirs, rtol=0, atol=1e-6)
    assert 0 < np.count_nonzero(x) < 8
    assert_minimised(problem, penalty, x)


def assert_minimised(problem: Smooth, penalty: dict[str, Any], x: Array) -> None:
    """`problems.optimum` finds the same."""
    A, b = np.concatenate(problem.features), np.concatenate(problem.labels)
    loss = SAMPLE_LOSSES["squared-error" if problem.loss == "squared" else "cross-entropy"]
    ridge = torch.full((len(x),), problem.ridge, dtype=torch.float64)
    weights = torch.full((len(b),), 1 / len(b), dtype=torch.float64)
    smooth = LinearObjective(torch.from_numpy(A), torch.from_numpy((b + 1) / 2), weights, loss, ridge)
    g = make_penalty(penalty["penalty"], [("w", (1, len(x)))], **CompositeSettings(**penalty).penalty_options)
    found = minimise(smooth, g, torch.zeros(len(x), dtype=torch.float64), lipschitz=smooth.lipschitz)
    assert found.converged
    np.testing.assert_allclose(x, found.point, rtol=0, atol=1e-6)


# What travels.


@each
def test_one_vector_each_way_and_nothing_else(strategy: str, data: dict[str, Scalar], tmp_path: Path) -> None:
    one = Played(tmp_path, {**data, "strategy": strategy})
    row, vector = ALGORITHMS[strategy], (DIM + 1) * 8
    assert (row.strategy.down_type, row.strategy.up_type, row.strategy.state_type) == (None, None, None)
    assert (row.client.down, row.client.up) == (None, None)
    assert row.client.memory is (CorrectionState if strategy == "composite" else None)
    assert row.strategy.phases == row.client.phases == {SMOOTHNESS: Smoothness}
    for r in range(1, ROUNDS + 1):
        assert [e.partition for e in one.exchanges(r)] == list(range(SITES))
        for e in one.exchanges(r):
            assert set(e.message.content) == {ARRAYS, CONFIG}
            assert set(e.message.content[CONFIG]) == {"server-round"}
            assert set(e.reply.content) == {ARRAYS, METRICS}
            assert [len(array) for array in (*model_of(e.message), *model_of(e.reply))] == [DIM + 1] * 2
    for line in one.run.lines[1:]:
        assert (line["bytes_down"], line["bytes_up"]) == (SITES * vector, SITES * vector)


@pytest.mark.parametrize("strategy", FAMILY)
def test_the_exchange_before_round_1(strategy: str, data: dict[str, Scalar], tmp_path: Path) -> None:
    """Every site sends its Lipschitz constant once: a quarter of the largest eigenvalue, and the ridge."""
    one = Played(tmp_path, {**data, "strategy": strategy, "num-server-rounds": 1})
    asked = [e for e in one.grid.exchanges if e.phase]
    if strategy == "fast-fedda":  # its steps shrink by themselves
        assert asked == []
        return
    assert [(e.server_round, e.phase, e.partition) for e in asked] == [(0, SMOOTHNESS, i) for i in range(SITES)]
    for e in asked:
        assert set(e.reply.content) == {PAYLOAD, METRICS}
        told = Smoothness.from_record(e.reply.content.config_records[PAYLOAD]).estimate
        A = np.column_stack([one.data.client(e.partition).features, np.ones(one.sizes[e.partition])]).astype(float)
        largest = np.linalg.eigvalsh(A.T @ A / len(A))[-1]
        np.testing.assert_allclose(told, [largest / 4 + 0.03], rtol=1e-5)
    # a vector down and a number up, beside the handshake's two and two integers
    handshake = 4 * 8
    assert one.run.lines[0]["bytes_down"] == SITES * (DIM + 1) * 8
    assert one.run.lines[0]["bytes_up"] == SITES * (handshake + 8)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_wire_and_the_state_have_the_run_s_number_type(dtype: str, data: dict[str, Scalar], tmp_path: Path) -> None:
    one = Played(tmp_path, {**data, "dtype": dtype})
    arrays = [array for r in range(1, ROUNDS + 1) for e in one.exchanges(r) for array in model_of(e.reply)]
    arrays += [array for kept in one.grid.states.values() for array in (kept.correction, kept.carried)]
    assert len(one.grid.states) == ROUNDS * SITES
    assert {array.dtype.name for array in arrays} == {dtype}


def test_float32_follows_float64_to_its_digits(data: dict[str, Scalar], tmp_path: Path) -> None:
    coarse, fine = (
        Played(tmp_path, {**data, "dtype": dtype, "num-server-rounds": 60}) for dtype in ("float32", "float64")
    )
    assert 0 < far(coarse.output, fine.output) < 1e-5
    assert np.array_equal(coarse.output == 0, fine.output == 0)
    metrics = [one.run.result["metrics"] for one in (coarse, fine)]
    for name in ("optimality", "stationarity", "objective"):
        assert metrics[0][name] == pytest.approx(metrics[1][name], abs=1e-5)


def test_a_box_in_float32_has_a_finite_objective(data: dict[str, Scalar], tmp_path: Path) -> None:
    """0.1 is not a number of float32: the bound it is rounded to lies outside by less than its last digit."""
    keys: dict[str, Scalar] = {"composite.penalty": "box", "composite.lower": -0.1, "composite.upper": 0.1}
    one = Played(tmp_path, {**data, **keys, "dtype": "float32"})
    assert np.float32(0.1) in one.output
    assert float(np.float32(0.1)) > 0.1
    assert all(np.isfinite(line["objective"]) for line in one.run.lines)
    assert np.isfinite(one.run.lines[-1]["stationarity"])


# What is saved.


@each
def test_the_model_file_holds_the_output(strategy: str, data: dict[str, Scalar], tmp_path: Path) -> None:
    """The prox of what a next round would have sent down, zeros and all."""
    keys: dict[str, Scalar] = {**data, "strategy": strategy, "composite.weight": 0.1, "checkpoint-every": ROUNDS}
    one = Played(tmp_path, {**keys, "num-server-rounds": ROUNDS})
    longer = Played(tmp_path, {**keys, "num-server-rounds": ROUNDS + 1, "checkpoint-every": 0})
    half = ALGORITHMS[strategy].strategy(one.training, one.settings)
    half.layout = (("output.weight", (1, DIM)), ("output.bias", (1,)))
    after = longer.sent[ROUNDS]
    np.testing.assert_array_equal(one.output, half.output(ROUNDS, [after])[0])
    assert (one.output[:DIM] == 0).sum() >= 1
    assert one.output[DIM] != 0
    assert one.run.result["metrics"]["nonzeros"] == np.count_nonzero(one.output)
    if strategy != "fedmid":
        assert np.count_nonzero(after) == DIM + 1
    half = ALGORITHMS[strategy].strategy(one.training, one.settings)
    half.layout = (("output.weight", (1, DIM)), ("output.bias", (1,)))
    # round 0: of composite the prox of the initial model, of the others the initial model
    first = longer.sent[0]
    expected = np.append(composite.l1(0.1)(first[:DIM], 0.2 * STEPS), first[DIM])
    np.testing.assert_allclose(half.output(0, [first])[0], expected if strategy == "composite" else first, rtol=1e-15)


def test_buffers_are_averaged(data: dict[str, Scalar], tmp_path: Path) -> None:
    """Batch norm's statistics travel beside the parameters, and their plain mean is kept."""
    one = Played(tmp_path, {**data, **BATCH_NORM, "composite.parameters": "output.weight", "batch-size": 4})
    for r in range(2, ROUNDS + 1):
        ends = [model_of(e.reply)[1] for e in one.exchanges(r - 1)]
        sent = [model_of(e.message)[1] for e in one.exchanges(r)]
        np.testing.assert_allclose(sent, [np.mean(ends, axis=0)] * SITES, **CLOSE)
        assert np.abs(ends[0] - ends[1]).max() > 1e-3


# Steps that are too long.


def warnings_of(
    folder: Path, flat: dict[str, Scalar], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> list[str]:
    monkeypatch.setattr(logging.getLogger("flwr"), "propagate", True)
    caplog.clear()
    with caplog.at_level(logging.WARNING, logger="flwr"):
        Played(folder, {**flat, "num-server-rounds": 1})
    return [message for message in caplog.messages if "2 / L" in message]


@pytest.mark.parametrize("loss", ["cross-entropy", "squared-error"])
def test_steps_above_2_over_l_are_warned_of(
    loss: str,
    data: dict[str, Scalar],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    probe = Played(tmp_path, {**data, "loss": loss, "num-server-rounds": 1})
    second = [A.T @ A / len(A) for A in probe.problem().features]
    curvature = 0.25 if loss == "cross-entropy" else 1.0
    L = curvature * np.mean([np.linalg.eigvalsh(matrix)[-1] for matrix in second]) + 0.03
    limit = 2 / L
    keys: dict[str, Scalar] = {**data, "loss": loss, "server-learning-rate": 1.5, "local-steps": 4}
    for strategy in ("composite", "fedmid", "fedda"):
        above = {**keys, "strategy": strategy, "learning-rate": 1.01 * limit / 6}
        (text,) = warnings_of(tmp_path, above, caplog, monkeypatch)
        assert f"learning-rate * server-learning-rate * local-steps = {1.01 * limit:g} is above" in text
        assert f"2 / L = {limit:.4g}" in text
        assert f"L = {L:.4g}, the mean of the sites'" in text
        below = {**keys, "strategy": strategy, "learning-rate": 0.99 * limit / 6}
        assert warnings_of(tmp_path, below, caplog, monkeypatch) == []
    keys |= {"strategy": "fast-fedda", "learning-rate": 1.01 * limit / 6}
    assert warnings_of(tmp_path, keys, caplog, monkeypatch) == []


def test_networks_are_not_warned_of(
    data: dict[str, Scalar], tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody knows how smooth their loss is."""
    keys: dict[str, Scalar] = {**data, "model": "mlp", "learning-rate": 1.0}
    assert warnings_of(tmp_path, keys, caplog, monkeypatch) == []
    flat = flat_config(tmp_path / "again", {**KEYS, **keys, "num-server-rounds": 1})
    tap = Wiretap(client_app, SITES, flat)
    serve(tap, server_app, flat)
    told = [e.reply.content.config_records[PAYLOAD] for e in tap.exchanges if e.phase]
    assert [Smoothness.from_record(record).estimate for record in told] == [None] * SITES
    assert warnings_of(tmp_path, {**keys, "model": "linear", "learning-rate": 10.0}, caplog, monkeypatch) != []


# Networks.

DIGITS: dict[str, Scalar] = {"dataset": "digits", "model": "mlp", "dtype": "float32", "batch-size": 32}
DIGITS |= {"num-server-rounds": 15, "local-steps": 8, "learning-rate": 0.5, "evaluate-every": 5}
DIGITS |= {"composite.ridge": 0.0}


def test_l1_trains_a_sparse_network(tmp_path: Path) -> None:
    dense, sparse = (
        Played(tmp_path, {**DIGITS, "composite.penalty": name, "composite.weight": 2e-3}) for name in ("none", "l1")
    )
    for one in (dense, sparse):
        assert one.run.lines[0]["auc"] < 0.8
        assert one.run.lines[-1]["auc"] > 0.93
        assert one.run.lines[-1]["objective"] < one.run.lines[0]["objective"]
    weights = sparse.run.model["hidden.weight"]
    assert np.count_nonzero(dense.run.model["hidden.weight"]) == weights.size
    assert np.count_nonzero(weights) < 0.2 * weights.size
    assert np.count_nonzero(sparse.run.model["hidden.bias"]) == len(sparse.run.model["hidden.bias"])
    assert sparse.run.lines[-1]["nonzeros"] == sum(np.count_nonzero(part) for part in sparse.run.model.values())


def test_group_lasso_by_columns_removes_inputs(tmp_path: Path) -> None:
    keys: dict[str, Scalar] = {"composite.penalty": "group-lasso", "composite.groups": "columns"}
    keys |= {"composite.weight": 2e-3, "composite.parameters": "hidden.weight"}
    one = Played(tmp_path, {**DIGITS, **keys})
    weights = one.run.model["hidden.weight"]
    used = weights.any(axis=0)
    assert 10 < used.sum() < 40
    # whole columns; a unit that is never active keeps the zero of a column that came back
    assert np.count_nonzero(weights) > 0.98 * used.sum() * len(weights)
    # what no image has ever shown
    train = np.concatenate([one.data.client(i).features.reshape(one.sizes[i], -1) for i in range(SITES)])
    assert not used[~train.any(axis=0)].any()
    assert one.run.lines[-1]["auc"] > 0.93
