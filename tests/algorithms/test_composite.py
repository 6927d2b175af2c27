"""Composite FL, FedCanon, FedMid, FedDA and Fast-FedDA: whole runs step by step against the NumPy reference.

Further tests: the methods' properties, their solutions, messages, warnings, and networks.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import ConfigRecord, Message
from torch import nn

from apps.config import Scalar
from apps.guards.memory import STATE
from apps.registry import ALGORITHMS
from clients.base import Site
from methods.composite import CorrectionState
from methods.penalised import SMOOTHNESS, CompositeSettings, Smoothness
from methods.samples import sample_batches
from methods.scaffold import ControlVariate
from payloads.settings import TrainingSettings
from payloads.wire import METRICS, PAYLOAD, ROUND
from problems.models import FlatModel, build_model
from problems.penalties import PENALTIES
from simulations.engines.grid import FIRST_NODE_ID
from strategies.rounds.replies import Reply
from tests.algorithms.helpers import roster_of
from tests.algorithms.watched import DROPS, Watched, lost
from tests.battery.federation import Wiretap, model_of, save_npz
from tests.reference import composite
from tests.reference.composite import Prox, Smooth
from tests.reference.minimax import Array, Rows

CLOSE: dict[str, float] = {"rtol": 1e-11, "atol": 1e-12}
SITES, ROUNDS, STEPS, DIM = 4, 5, 3, 6
FAMILY = ["composite", "fedcanon", "fedmid", "fedda", "fast-fedda"]
each = pytest.mark.parametrize("strategy", FAMILY)
KEYS: dict[str, Scalar] = {
    "strategy": "composite",
    "dtype": "float64",
    "model": "linear",
    "num-server-rounds": ROUNDS,
    "evaluate-every": 1,
    "local-steps": STEPS,
    "batch-size": 0,
    "learning-rate": 0.2,
    "seed": 3,
    "checkpoint-every": 0,
    "composite.weight": 0.12,
    "composite.ridge": 0.03,
}


def save_sites(path: Path, rows: int = 90) -> dict[str, Scalar]:
    """Save sites of unequal sizes, unequal shares of positives and unequal features."""
    rng = np.random.default_rng(5)
    features = rng.normal(size=(rows, DIM)) + 0.5 * (np.arange(rows) % 3 == 0)[:, None]
    labels = (features @ [1.0, -0.8, 0.6, 0.0, 0.1, 0.0] + rng.normal(size=rows) > 0.3).astype(int)
    return {**save_npz(path, features, labels), "partition": "positives-skewed", "partition-alpha": 0.6}


@pytest.fixture
def data(tmp_path: Path) -> dict[str, Scalar]:
    return save_sites(tmp_path / "data.npz")


class Recorder(Wiretap):
    """A wiretap that records each client's state after each exchange, by round and partition."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.states: dict[tuple[int, int], ConfigRecord] = {}

    def _heard(self, reply: Message) -> Message:
        before = len(self.exchanges)
        heard = super()._heard(reply)
        for exchange in self.exchanges[before:]:
            records = self._contexts[FIRST_NODE_ID + exchange.partition].state.config_records
            if STATE in records:
                self.states[exchange.server_round, exchange.partition] = records[STATE]
        return heard


class Played(Watched):
    """A whole run, and the data that the reference needs to repeat it."""

    keys: Mapping[str, Scalar] = {**Watched.keys, **KEYS}
    wiretap = Recorder

    @property
    def sent(self) -> list[Array]:
        """(d,) the model sent in each round: x-bar; for FedDA and Fast-FedDA the dual point."""
        return self.models[:-1]

    @property
    def output(self) -> Array:
        """(d,) the saved model."""
        return self.models[-1]

    # for the reference

    @property
    def intercept(self) -> bool:
        return self.config.run.model == "linear"

    def problem(self, client: int | None = None) -> Smooth:
        """Return f, or f_i of one client; its ridge term omits the bias unless the run's parameters are "all"."""
        chosen = slice(None) if client is None else slice(client, client + 1)
        features, labels = (parts[chosen] for parts in self.shares)
        ridge: Any = np.full(DIM, self.settings.ridge)
        if self.intercept:
            features = [np.column_stack([A, np.ones(len(A))]) for A in features]
            ridge = np.append(ridge, self.settings.ridge if self.settings.parameters == "all" else 0.0)
        loss = {"cross-entropy": "logistic", "squared-error": "squared"}[self.training.loss]
        return Smooth(features, [2.0 * b - 1.0 for b in labels], ridge, loss)

    def prox(self) -> Prox:
        """Return the prox of the run's penalty, on the weights alone or on all parameters."""
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
        """Return the product's batches of a round; None: all of a site's samples."""
        first, size = (server_round - 1) * self.training.local_steps, self.training.batch_size
        return lambda i, t: self.batch(i, first + t) if 0 < size < self.sizes[i] else None

    def eta(self, server_round: int) -> float:
        """Return the learning rate of a round's first local iteration."""
        return self.rate((server_round - 1) * self.training.local_steps)

    @property
    def parts(self) -> tuple[Smooth, Prox, int, float]:
        return self.problem(), self.prox(), self.training.local_steps, self.training.server_learning_rate

    def alone(self, server_round: int) -> Callable[[int], tuple[Smooth, Rows]]:
        """Return the problem and the batches of a single client."""
        rows = self.rows(server_round)
        return lambda i: (self.problem(i), lambda _, t: rows(i, t))


# Step by step against the reference: all messages, all states, the output.


def assert_composite(one: Played) -> None:
    problem, prox, tau, eta_g = one.parts
    state = composite.composite_start(problem, one.models[0])
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
            kept = CorrectionState.from_record(one.grid.states[r, e.partition])
            assert kept.server_round.tolist() == [r]
            np.testing.assert_allclose(kept.correction, correction, **CLOSE)
            np.testing.assert_allclose(kept.start, start, **CLOSE)
            np.testing.assert_allclose(kept.gradient, gradient, **CLOSE)
        state = new
    np.testing.assert_allclose(one.output, composite.composite_point(state, prox), **CLOSE)


def assert_fedcanon(one: Played) -> None:
    problem, prox, tau, eta_g = one.parts
    state = composite.fedcanon_start(problem, one.models[0])
    for r in range(1, one.rounds + 1):
        clients, answered, eta = one.participants(r), one.answered(r), one.eta(r)
        ends, means = composite.fedcanon_ends(problem, state, clients, one.rows(r), tau, eta)
        received = one.told(r, ControlVariate)
        assert (received is None) == (r == 1)
        for e in one.exchanges(r):
            np.testing.assert_allclose(model_of(e.message)[0], state.x, **CLOSE)
            np.testing.assert_allclose(model_of(e.reply)[0], ends[e.partition], **CLOSE)
            assert PAYLOAD not in e.reply.content
            kept = ControlVariate.from_record(one.grid.states[r, e.partition])
            np.testing.assert_allclose(kept.control, means[e.partition], **CLOSE)
        if r > 1:
            np.testing.assert_allclose(received.control, state.control + state.subgradient, **CLOSE)
        state = composite.fedcanon_round(problem, state, prox, clients, one.rows(r), tau, eta, eta_g, answered)
    np.testing.assert_allclose(one.output, state.x, **CLOSE)


def assert_fedmid(one: Played) -> None:
    problem, prox, tau, eta_g = one.parts
    x = one.models[0]
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
    state = composite.FedDA(one.models[0])
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
    state = composite.fast_fedda_start(one.models[0])
    for r in range(1, one.rounds + 1):
        alone = one.alone(r)
        for e in one.exchanges(r):
            np.testing.assert_allclose(model_of(e.message)[0], composite.fast_fedda_dual(state, gamma, mu), **CLOSE)
            own, rows = alone(e.partition)
            end = composite.fast_fedda_round(own, state, prox, rows, tau, gamma, mu)
            np.testing.assert_allclose(model_of(e.reply)[0], composite.fast_fedda_dual(end, gamma, mu), **CLOSE)
        state = composite.fast_fedda_round(problem, state, prox, one.rows(r), tau, gamma, mu)
    np.testing.assert_allclose(one.output, composite.fast_fedda_point(state, prox, gamma, mu), **CLOSE)


FOLLOW = {
    "composite": assert_composite,
    "fedcanon": assert_fedcanon,
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
SOME: dict[str, dict[str, Scalar]] = {
    "half": {"fraction-train": 0.5, "num-server-rounds": 8, "batch-size": 4},
    "half-server-step": {"fraction-train": 0.5, "num-server-rounds": 8, "server-learning-rate": 1.3, **DROPS},
}
CASES = [(name, variant) for name in FAMILY for variant in VARIANTS]
CASES += [("fast-fedda", variant) for variant in OWN] + [("fedcanon", variant) for variant in SOME]


@pytest.mark.parametrize(("strategy", "variant"), CASES)
def test_it_follows_the_reference(strategy: str, variant: str, data: dict[str, Scalar], tmp_path: Path) -> None:
    one = Played(tmp_path, {**data, "strategy": strategy, **(VARIANTS | OWN | SOME)[variant]})
    assert len(set(one.sizes)) == SITES
    assert min(one.sizes) < 20 < max(one.sizes)
    FOLLOW[strategy](one)
    moved = [np.abs(after - before).max() for before, after in pairwise(one.models[:-1])]
    assert min(moved) > 1e-4
    assert np.abs(one.output - one.models[0]).max() > 0.05
    # the prox has an effect
    if strategy in ("composite", "fedcanon") and variant in ("full", "elastic-net", "columns"):
        assert 0 < np.count_nonzero(one.output[:DIM]) < DIM
    if strategy == "composite" and variant == "box":
        assert {-0.1, 0.15} <= set(one.output[:DIM].tolist())


@pytest.mark.parametrize("fraction", [1.0, 0.5])
def test_fedcanon_follows_the_reference_if_a_reply_is_lost(
    fraction: float, data: dict[str, Scalar], tmp_path: Path
) -> None:
    keys: dict[str, Scalar] = {**data, "strategy": "fedcanon", "fraction-train": fraction}
    partition = Played(tmp_path, keys).participants(2)[-1]
    one = Played(tmp_path, keys, tamper=lost(2, partition))
    assert [list(line["dropped"]) for line in one.run.lines[1:]] == [[], [str(partition)], [], [], []]
    assert_fedcanon(one)


def test_a_batch_of_all_samples_is_all_of_them_in_their_order() -> None:
    """They are equal to the bit, so a site smaller than the batch computes the same as with full gradients."""
    problem, runs = make((12, 12)), {}
    for size in (0, 11, 12, 40):
        one = hand(problem, L1, start=START, local_steps=3, batch_size=size)
        site = one.clients[0].site
        labels = [labels for _, (_, labels) in sample_batches(one.clients[0].task({ROUND: 1}), None)]
        assert [len(part) for part in labels] == [11 if size == 11 else 12] * 3
        assert all((part is site.labels) == (size != 11) for part in labels)
        runs[size] = one.rounds(4)[-1]
    assert runs[0].tobytes() == runs[12].tobytes() == runs[40].tobytes()
    assert far(runs[11], runs[0]) > 1e-3


# By hand, for long runs.


class Hand:
    """A strategy and its clients without Flower; labels are -1 and +1.

    Args:
        penalty: Settings of the table ``composite``.
        training: Common settings. They default to float64, full gradients and one round's steps.
    """

    def __init__(
        self,
        features: Sequence[Array],
        labels: Sequence[Array],
        penalty: dict[str, Any],
        strategy: str = "composite",
        start: Array | None = None,
        module: nn.Module | None = None,
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
        self.strategy: Any = row.strategy(self.training, self.settings)
        self.strategy.layout, self.strategy.roster = self.model.layout, roster_of(sites)
        self.arrays = self.model.arrays() if start is None else [start]
        self.number = 0

    def round(self, chosen: Sequence[int] | None = None) -> Array:
        """Run a round of some clients, by default of all, and return the output after it."""
        self.number += 1
        self.strategy.model = self.arrays
        replies = []
        for place in range(len(self.clients)) if chosen is None else chosen:
            client = self.clients[place]
            client.inbox = self.strategy.down(self.number)
            arrays, count, _ = client.fit(self.arrays, {"server-round": self.number})
            replies.append(Reply(place, arrays, None, count))
        self.arrays, _ = self.strategy.combine(self.number, replies)
        return self.output

    def rounds(self, count: int) -> list[Array]:
        """Return the outputs after some rounds."""
        return [self.round() for _ in range(count)]

    @property
    def output(self) -> Array:
        return self.strategy.output(self.number, self.arrays)[0]


def make(sizes: Sequence[int] = (12, 12, 12, 12), squared: bool = False, ridge: float = 0.1, dim: int = DIM) -> Smooth:
    """Return sites with different features and label rules; labels are -1 and +1."""
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
exact = pytest.mark.parametrize("strategy", ["composite", "fedcanon"])
each_penalty = pytest.mark.parametrize("name", PAIRS)
START = np.random.default_rng(0).normal(0.0, 0.8, DIM)


def far(got: Array, other: Array) -> float:
    return float(np.max(np.abs(got - other)))


def test_every_penalty_is_tried() -> None:
    assert set(PAIRS) == set(PENALTIES)


# Properties of the methods.


@each_penalty
@exact
def test_one_step_is_proximal_gradient_descent(strategy: str, name: str) -> None:
    problem, (penalty, prox), eta_g = make((12, 3, 20, 7)), PAIRS[name], 1.5
    options = {"local_steps": 1, "server_learning_rate": eta_g, "lr_decay": 0.7, "lr_decay_every": 2}
    one = hand(problem, penalty, strategy=strategy, start=START, **options)
    x = prox(START, 0.2 * eta_g) if strategy == "composite" else START
    for r in range(12):
        step = 0.2 * 0.7 ** (r // 2) * eta_g
        x = prox(x - step * problem.mean_gradient(x), step)
        assert far(one.round(), x) < 1e-12
    assert far(x, START) > 0.1


@each_penalty
@exact
def test_the_sites_together_find_the_optimum(strategy: str, name: str) -> None:
    problem, (penalty, prox) = make((12, 5, 20, 9)), PAIRS[name]
    options = {"start": START, "local_steps": 4, "learning_rate": 0.25 / problem.smoothness()}
    x = hand(problem, penalty, strategy=strategy, **options).rounds(200)[-1]
    assert far(x, composite.optimum(problem, prox)) < 1e-7
    if name != "none":  # the solution is not the minimum of f alone
        assert np.linalg.norm(problem.mean_gradient(x)) > 1e-2


def test_fedcanon_finds_the_optimum_with_half_of_the_sites() -> None:
    problem, (penalty, prox) = make((12, 5, 20, 9)), PAIRS["l1"]
    one = hand(problem, penalty, strategy="fedcanon", local_steps=4, learning_rate=0.1 / problem.smoothness())
    rng = np.random.default_rng(0)
    x = [one.round(rng.choice(4, 2, replace=False).tolist()) for _ in range(1000)][-1]
    assert far(x, composite.optimum(problem, prox)) < 1e-9


def test_fedcanon_s_networks_are_stationary() -> None:
    """x = P_s(x - s grad f(x)) at the end, for a nonconvex f."""
    problem = make((12, 5, 20, 9))
    module = build_model("mlp", (DIM,), 0)
    one = hand(problem, L1, strategy="fedcanon", module=module, local_steps=4, learning_rate=0.3)
    x = one.rounds(300)[-1]
    point = torch.tensor(x)
    slopes = [client.task({ROUND: 1}).f.gradient(point, client.site.batch).numpy().copy() for client in one.clients]
    moved = torch.tensor(x - problem.shares @ np.array(slopes))
    penalty = one.clients[0].objective.penalty
    assert far(penalty.prox(moved, 1.0).numpy(), x) < 1e-9
    assert 0 < np.count_nonzero(x) < len(x) / 2


@pytest.mark.parametrize(
    ("strategy", "more"),
    [
        ("composite", {}),
        ("composite", {"batch-size": 4, "server-learning-rate": 1.4}),
        ("fedcanon", {"batch-size": 4, "server-learning-rate": 1.4}),
        ("fedcanon", {"batch-size": 4, "fraction-train": 0.5}),
    ],
)
def test_without_a_penalty_they_are_scaffold(
    strategy: str, more: dict[str, Scalar], data: dict[str, Scalar], tmp_path: Path
) -> None:
    keys: dict[str, Scalar] = {**data, **more, "num-server-rounds": 12}
    one = Played(tmp_path, {**keys, "strategy": strategy, "composite.penalty": "none", "composite.ridge": 0.0})
    other = Watched(tmp_path, {**KEYS, **keys, "strategy": "scaffold"})
    assert max(far(mine, theirs) for mine, theirs in zip(one.sent, other.models, strict=False)) < 1e-12


@pytest.mark.slow
def test_linear_convergence_at_full_size_through_the_apps(tmp_path: Path) -> None:
    """Problem (6) of the paper: n = 30, m = 2000."""
    found = {}
    for strategy in FAMILY:
        keys: dict[str, Scalar] = {"strategy": strategy, "dataset": "synthetic-sparse-logistic", "model": "auto"}
        keys |= {"num-server-rounds": 600, "evaluate-every": 50, "local-steps": 5, "learning-rate": 1.0, "seed": 0}
        keys |= {"composite.weight": 1e-4, "composite.ridge": 1e-2}
        lines = Played(tmp_path, keys, clients=30).run.lines
        found[strategy] = {line["round"]: line["optimality"] for line in lines if "optimality" in line}
    ours = found["composite"]
    assert (ours[400] / ours[200]) ** (1 / 200) == pytest.approx(1 - 5 * 1e-2, abs=0.005)
    assert ours[450] < 1e-10
    assert ours[550] < 1e-12
    stalled = [found["fedmid"][600], found["fedda"][600]]
    assert 0.1 < min(stalled) <= max(stalled) < 0.5
    assert 1e-3 < found["fast-fedda"][600] < min(stalled) / 3


# Messages.


@pytest.mark.parametrize("strategy", FAMILY)
def test_the_exchange_before_round_1(strategy: str, data: dict[str, Scalar], tmp_path: Path) -> None:
    """Every site sends its Lipschitz constant once: a quarter of the largest eigenvalue, and the ridge."""
    one = Played(tmp_path, {**data, "strategy": strategy, "num-server-rounds": 1})
    asked = [e for e in one.grid.exchanges if e.phase]
    if strategy == "fast-fedda":  # its steps shrink without it
        assert asked == []
        return
    assert [(e.server_round, e.phase, e.partition) for e in asked] == [(0, SMOOTHNESS, i) for i in range(SITES)]
    for e in asked:
        assert set(e.reply.content) == {PAYLOAD, METRICS}
        sent = Smoothness.from_record(e.reply.content.config_records[PAYLOAD]).estimate
        A = np.column_stack([one.data.client(e.partition).features, np.ones(one.sizes[e.partition])]).astype(float)
        largest = np.linalg.eigvalsh(A.T @ A / len(A))[-1]
        np.testing.assert_allclose(sent, [largest / 4 + 0.03], rtol=1e-5)
    # a vector down and a number up, in addition to the handshake's four integers
    handshake = 4 * 8
    assert one.run.lines[0]["bytes_down"] == SITES * (DIM + 1) * 8
    assert one.run.lines[0]["bytes_up"] == SITES * (handshake + 8)


# Steps that are too large.


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
    largest = [np.linalg.eigvalsh(matrix)[-1] for matrix in second]
    L = curvature * np.average(largest, weights=probe.sizes) + 0.03
    limit = 2 / L
    keys: dict[str, Scalar] = {**data, "loss": loss, "server-learning-rate": 1.5, "local-steps": 4}
    for strategy in ("composite", "fedmid", "fedda"):
        above = {**keys, "strategy": strategy, "learning-rate": 1.01 * limit / 6}
        (text,) = warnings_of(tmp_path, above, caplog, monkeypatch)
        assert f"learning-rate * server-learning-rate * local-steps = {1.01 * limit:g} is above" in text
        assert f"2 / L = {limit:.4g}" in text
        assert f"L = {L:.4g}, averaged over the sites" in text
        below = {**keys, "strategy": strategy, "learning-rate": 0.99 * limit / 6}
        assert warnings_of(tmp_path, below, caplog, monkeypatch) == []
    keys |= {"strategy": "fast-fedda", "learning-rate": 1.01 * limit / 6}
    assert warnings_of(tmp_path, keys, caplog, monkeypatch) == []
