"""A federation driven by hand, and the NumPy reference with the same indices, compared after each round.

Everything is float64. `Federation` calls clients and a strategy directly, without Flower's runtime; `reference`
runs the plain NumPy version on the batches and draws of the product's own samplers at the same addresses.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any
from unittest.mock import Mock

import numpy as np
import torch
from torch import Tensor, nn

from apps.registry import ALGORITHMS
from clients.base import PayloadClient, Site
from methods.pairwise import FedXSettings, Momentum
from methods.predictions import FedXPool
from payloads.handshake import SiteReport
from payloads.settings import TrainingSettings
from payloads.wire import model_record
from problems.models import FlatModel
from problems.randomness import Purpose
from problems.sampling import EpochSampler, PoolQueue
from strategies.rounds.handshake import Roster
from strategies.rounds.replies import Reply
from tests.reference import fedx
from tests.reference.fedx import Array, Indices

TOLERANCE = {"rtol": 1e-11, "atol": 1e-11}
NUM_FEATURES, HIDDEN = 3, 4

# (positives, negatives) of each client
UNEQUAL = [(9, 14), (0, 12), (3, 20), (6, 5)]  # one site without positives, two with a class smaller than a batch
EQUAL = [(8, 12)] * 4


class Network(nn.Module):
    """A linear model, or with an activation a hidden layer of `HIDDEN` units; returns (batch,) scores."""

    def __init__(self, activation: Callable[[Tensor], Tensor] | None) -> None:
        super().__init__()
        self.activation = activation
        if activation is not None:
            self.hidden = nn.Linear(NUM_FEATURES, HIDDEN)
        self.output = nn.Linear(NUM_FEATURES if activation is None else HIDDEN, 1)

    def forward(self, features: Tensor) -> Tensor:
        hidden = features if self.activation is None else self.activation(self.hidden(features))
        return self.output(hidden).squeeze(1)


@dataclass(frozen=True)
class Scorer:
    """A network in three forms: as a torch module, as h(w, X), and as its Jacobian in NumPy."""

    build: Callable[[], nn.Module]
    score: fedx.Score
    jacobian: fedx.Jacobian

    def model(self) -> FlatModel:
        torch.manual_seed(5)
        return FlatModel(self.build(), dtype=torch.float64)


def _layers(w: Array, features: int) -> tuple[Array, Array, Array, float]:
    hidden = (len(w) - 1) // (features + 2)
    stops = np.cumsum([features * hidden, hidden, hidden])
    matrix, bias, output, constant = np.split(w, stops)
    return matrix.reshape(hidden, features), bias, output, constant[0]


def mlp_scorer(build: Callable[[], nn.Module], activation: Callable, derivative: Callable) -> Scorer:
    """Return the scorer of the MLP. Weights are in the module's order: hidden (m, d), (m,), output (m,), (1,)."""

    def score(w: Array, X: Array) -> Array:
        matrix, bias, output, constant = _layers(w, X.shape[1])
        return activation(X @ matrix.T + bias) @ output + constant

    def jacobian(w: Array, X: Array) -> Array:
        matrix, bias, output, _ = _layers(w, X.shape[1])
        before = X @ matrix.T + bias  # (n, m)
        back = output * derivative(before)
        outer = (back[:, :, None] * X[:, None, :]).reshape(len(X), matrix.size)
        return np.concatenate([outer, back, activation(before), np.ones((len(X), 1))], axis=1)

    return Scorer(build, score, jacobian)


LINEAR = Scorer(
    lambda: Network(None),
    lambda w, X: X @ w[:-1] + w[-1],
    lambda w, X: np.concatenate([X, np.ones((len(X), 1))], axis=1),
)
TANH = mlp_scorer(lambda: Network(torch.tanh), np.tanh, lambda t: 1 - np.tanh(t) ** 2)
RELU = mlp_scorer(lambda: Network(torch.relu), lambda t: np.maximum(t, 0.0), lambda t: (t > 0).astype(float))
SCORERS = {"linear": LINEAR, "tanh": TANH, "relu": RELU}


def make_sites(sizes: Sequence[tuple[int, int]] = UNEQUAL, scale: float = 1.0) -> list[Site]:
    """Return sites of shuffled Gaussian classes, which overlap at scale 1."""
    rng = np.random.default_rng(11)
    sites = []
    for partition, (n1, n2) in enumerate(sizes):
        labels = rng.permutation(np.repeat([1, 0], [n1, n2]))
        features = scale * rng.normal(np.where(labels == 1, 0.3, -0.3)[:, None], 1.0, (n1 + n2, NUM_FEATURES))
        sites.append(Site.from_arrays(partition, features, labels, dtype=torch.float64))
    return sites


def roster_of(sites: Sequence[Site]) -> Roster:
    reports = tuple(
        SiteReport(
            identity=np.array([site.partition_id, len(sites)]),
            class_counts=np.array(site.class_counts),
        )
        for site in sites
    )
    return Roster(tuple(range(1, len(sites) + 1)), reports)


@dataclass(frozen=True)
class Case:
    """A configuration of an algorithm, for the product and for the reference."""

    strategy: str
    loss: str
    scorer: str = "tanh"
    sizes: tuple[tuple[int, int], ...] = tuple(UNEQUAL)
    options: tuple[tuple[str, Any], ...] = ()
    training: tuple[tuple[str, Any], ...] = ()

    @property
    def settings(self) -> FedXSettings:
        batches = {"positive_batch_size": 4, "negative_batch_size": 6}
        return FedXSettings(**(batches | dict(self.options)))

    @property
    def common(self) -> TrainingSettings:
        common = {
            "num_server_rounds": 6,
            "local_steps": 3,
            "learning_rate": 0.2,
            "batch_size": 7,
            "seed": 3,
            "score": "logit",
        }
        # the references take plain means over the clients; other tests check weighted means
        weights: dict[str, Any] = {} if self.strategy.startswith("fedx") else {"client_weights": "equal"}
        return TrainingSettings(dtype="float64", loss=self.loss, **(common | weights | dict(self.training)))

    @property
    def objective(self) -> fedx.Objective:
        s = self.settings
        return fedx.objective(self.loss, s.margin, s.lambda_, s.power, s.surrogate.replace("auto", "squared-hinge"))

    def __str__(self) -> str:
        extras = [f"{name}={value}" for name, value in self.options + self.training]
        sizes = "equal" if len(set(self.sizes)) == 1 else "unequal"
        return "-".join([self.strategy, self.loss, self.scorer, sizes, *extras])


class Federation:
    """Clients and a strategy of a registered algorithm, whose messages are passed by hand."""

    def __init__(self, case: Case, sites: Sequence[Site] | None = None, start: Array | None = None) -> None:
        row = ALGORITHMS[case.strategy]
        settings = case.settings if row.table == "fedx" else None
        self.case = case
        self.sites = list(sites or make_sites(case.sizes))
        self.models = [SCORERS[case.scorer].model() for _ in self.sites]
        self.clients: list[PayloadClient] = [
            row.client(site, model, case.common, settings) for site, model in zip(self.sites, self.models, strict=True)
        ]
        self.strategy: Any = row.strategy(case.common, settings)
        self.strategy.roster = roster_of(self.sites)
        self.strategy.meet(self.strategy.roster)
        self.arrays = self.models[0].arrays() if start is None else [start]
        self.round = 0
        self.strategy.model = self.arrays
        self.strategy.ask = lambda server_round, places, *asked: [self.call(place) for place in places]
        self.strategy.prologue(model_record(self.arrays), Mock())

    @property
    def w(self) -> Array:
        return self.arrays[0]

    @property
    def pool(self) -> FedXPool:
        """The pool that the next round's clients would get."""
        self.strategy.model = self.arrays
        return self.strategy.down(self.round + 1)

    def participants(self, server_round: int) -> list[int]:
        training = self.case.common
        return roster_of(self.sites).sample(training, server_round)

    def call(self, place: int, payload: Any = None) -> Reply:
        client = self.clients[place]
        client.inbox = payload
        arrays, examples, _ = client.fit(self.arrays, {"server-round": self.round})
        return Reply(place, arrays, client.outbox, examples)

    def step(self) -> list[Reply]:
        """Run a round and return its replies."""
        self.round += 1
        self.strategy.model = self.arrays
        payload = self.strategy.down(self.round)
        replies = [self.call(place, payload) for place in self.participants(self.round)]
        self.arrays, _ = self.strategy.combine(self.round, replies)
        return replies

    def u(self, place: int) -> Array:
        """Return the (n1, k) table of a client, NaN for rows without an observation."""
        state = self.clients[place].state
        return np.where(state.observed[:, None], state.u, np.nan)


def partners(site: Site, loss: str) -> Array:
    return np.arange(len(site)) if loss == "auprc" else site.negatives


def reference_clients(sites: Sequence[Site], loss: str) -> list[fedx.Client]:
    clients = []
    for site in sites:
        X, y, second = site.features.numpy(), site.labels.numpy(), partners(site, loss)
        clients.append((X[site.positives], X[second], y[second]))
    return clients


def batches_of(
    case: Case,
    sites: Sequence[Site],
    first_round: int,
    purposes: tuple[Purpose, Purpose] = (Purpose.POSITIVES, Purpose.PARTNERS),
) -> Indices:
    """Return the product's batches, as indices of X1 and X2; `first_round` is the round that takes batch 0."""
    seed, steps, settings = case.common.seed, case.common.local_steps, case.settings
    sizes = (settings.positive_batch_size, settings.negative_batch_size)
    samplers = {
        site.partition_id: [
            EpochSampler(np.arange(count), size, seed, purpose, site.partition_id)
            for count, size, purpose in zip(
                (len(site.positives), len(partners(site, case.loss))), sizes, purposes, strict=True
            )
        ]
        for site in sites
    }

    def batches(client: int, server_round: int, step: int) -> tuple[Array, Array]:
        first, second = samplers[client]
        position = (server_round - first_round) * steps + step
        return first.batch(position), second.batch(position)

    return batches


def draws_of(case: Case, records: list[fedx.Round]) -> Indices:
    """Return the product's draws from the pool after the last round in `records`."""
    seed, steps, settings = case.common.seed, case.common.local_steps, case.settings

    def draws(client: int, server_round: int, step: int) -> tuple[Array, Array]:
        pools = records[server_round - 1].positives, records[server_round - 1].partners
        sizes = settings.positive_batch_size, settings.negative_batch_size
        taken = []
        for pool, size, purpose in zip(pools, sizes, (Purpose.POSITIVE_POOL, Purpose.PARTNER_POOL), strict=True):
            queue = PoolQueue(len(pool.score), seed, purpose, client, server_round)
            taken.append([queue.take(size) for _ in range(steps)][step])
        return taken[0], taken[1]

    return draws


def reference(case: Case, sites: Sequence[Site], w: Array, scorer: Scorer | None = None) -> Iterator[fedx.Round]:
    """Yield the rounds of the NumPy version of a case."""
    training, settings, scorer = case.common, case.settings, scorer or SCORERS[case.scorer]
    roster, records = roster_of(sites), []
    shared: dict[str, Any] = {
        "score": scorer.score,
        "jacobian": scorer.jacobian,
        "w": w,
        "rounds": training.num_server_rounds,
        "local_steps": training.local_steps,
        "learning_rate": decayed(training),
        "participants": lambda r: roster.sample(training, r),
    }
    if case.strategy == "local-sgd":
        samplers = [
            EpochSampler(np.arange(len(s)), training.batch_size, training.seed, Purpose.SAMPLES, s.partition_id)
            for s in sites
        ]
        shared["clients"] = [(site.features.numpy(), site.labels.numpy()) for site in sites]
        shared["batches"] = lambda i, r, k: samplers[i].batch((r - 1) * training.local_steps + k)
        yield from fedx.local_sgd(**shared)
        return
    shared |= {"objective": case.objective, "clients": reference_clients(sites, case.loss)}
    if case.strategy == "local-pair":
        shared |= {"batches": batches_of(case, sites, 1), "gamma": settings.gamma, "beta": settings.beta}
        yield from fedx.local_pair(**shared)
        return
    shared |= {"batches": batches_of(case, sites, 0), "draws": draws_of(case, records), "tau": settings.tau}
    if case.strategy == "fedx2":
        shared |= {"gamma": settings.gamma, "beta": settings.beta}
    for record in (fedx.fedx1 if case.strategy == "fedx1" else fedx.fedx2)(**shared):
        records.append(record)
        yield record


def decayed(training: TrainingSettings) -> Callable[[int], float]:
    """Return learning_rate * lr_decay^(t // lr_decay_every), written out."""
    every = training.lr_decay_every
    return lambda t: training.learning_rate * (training.lr_decay ** (t // every) if every else 1.0)


def assert_same_pool(pool: FedXPool, record: fedx.Round) -> None:
    """Assert that scores, weights, labels and u of all entries agree, in order."""
    positives, others = record.positives, record.partners
    close = np.testing.assert_allclose
    close(pool.positive_scores, positives.score, **TOLERANCE)
    close(np.repeat(pool.positive_weights, pool.positive_lengths), positives.weight, **TOLERANCE)
    close(pool.partner_scores, others.score, **TOLERANCE)
    close(np.repeat(pool.partner_weights, pool.partner_lengths), others.weight, **TOLERANCE)
    if pool.partner_labels is not None:
        np.testing.assert_array_equal(pool.partner_labels, others.extra == 1)
    known = ~np.isnan(positives.extra).any(axis=1) if positives.extra.shape[1] else np.zeros(len(positives.score), bool)
    if pool.positive_tracked is None:
        assert pool.positive_u is None
        assert not known.any()
    else:
        np.testing.assert_array_equal(np.repeat(pool.positive_tracked, pool.positive_lengths), known)
    if pool.positive_u is not None:
        close(pool.positive_u[known], positives.extra[known], **TOLERANCE)


def assert_same_momentum(got: Array | None, record: fedx.Round) -> None:
    if record.momentum is None:
        assert got is None
    else:
        np.testing.assert_allclose(got, record.momentum, **TOLERANCE)


def assert_follows_the_reference(case: Case) -> None:
    """Run a case in both versions, and compare everything after each round."""
    federation = Federation(case)
    start = federation.w.copy()
    last_round = 0
    for record in reference(case, federation.sites, start):
        if record.round > 0:
            federation.step()
        last_round = record.round
        np.testing.assert_allclose(federation.w, record.w, **TOLERANCE)
        if case.strategy in ("fedx1", "fedx2"):
            assert_same_pool(federation.pool, record)
            assert_same_momentum(federation.pool.momentum, record)
        if case.strategy == "local-pair":
            down = federation.strategy.down(record.round + 1)
            assert isinstance(down, Momentum)
            assert_same_momentum(down.momentum, record)
        if record.round > 0 and not case.loss.startswith("cross") and not case.objective.linear:
            for place in record.participants:
                np.testing.assert_allclose(federation.u(place), record.steps[place][-1].u, **TOLERANCE)
    assert last_round == case.common.num_server_rounds
    assert np.linalg.norm(federation.w - start) > 1e-2


def flattened(named: dict[str, Any]) -> Array:
    """Return a model's named arrays as one vector, in the order of the names."""
    return np.concatenate([np.asarray(value).ravel() for value in named.values()])


def segments(lengths: Sequence[int]) -> list[slice]:
    """Return the slices of consecutive runs of these lengths."""
    return [slice(start, stop) for start, stop in pairwise(np.cumsum([0, *lengths]))]
