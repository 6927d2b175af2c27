"""Tests that the mean of the sites' f_i is the AUC objective of all their samples: reference and product, in
float64."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from problems.minimax import CompositionalOracle, FunctionOracle, Oracle
from problems.models import FlatModel
from problems.models.networks import SaddleNetwork
from problems.objectives.scores import SCORES
from tests.algorithms.minimax_problems import Robust, compose
from tests.reference.minimax import Array, SaddleAUC
from tests.reference.scgdam import CompositionalAUC

EXACT: dict[str, float] = {"rtol": 1e-12, "atol": 1e-12}
RHO, DIM = 0.3, 3
# rows and positives: two sites have one class
SIZES = [(40, 2), (3, 3), (7, 0), (5, 3)]
N, TOTAL = len(SIZES), sum(rows for rows, _ in SIZES)
LABELS = [np.arange(rows) < positives for rows, positives in SIZES]
FEATURES = [np.random.default_rng(rows).normal(0.1 * rows, 1.0, (rows, DIM)) + y[:, None] for (rows, _), y in
            zip(SIZES, LABELS, strict=True)]  # fmt: skip
PRIOR = sum(p for _, p in SIZES) / TOTAL
each_net = pytest.mark.parametrize("net", ["linear", "tanh"])
each_score = pytest.mark.parametrize("score", list(SCORES))


def references(net: str, score: str) -> tuple[CompositionalAUC, ...]:
    """Return the references of the sites, and of their union as one site."""
    union = [np.concatenate(FEATURES)], [np.concatenate(LABELS).astype(int)]
    sites = FEATURES, [y.astype(int) for y in LABELS]
    return tuple(CompositionalAUC(*rows, PRIOR, RHO, score, net=net, hidden=2) for rows in (sites, union))


def network(net: str) -> nn.Module:
    layers = [nn.Linear(DIM, 1)] if net == "linear" else [nn.Linear(DIM, 2), nn.Tanh(), nn.Linear(2, 1)]
    return nn.Sequential(*layers, nn.Flatten(0))


def oracles(net: str, score: str, z: Array) -> list[CompositionalOracle]:
    """Return the sites' oracles at z, with the values that the server would send."""
    found = []
    for X, y in zip(FEATURES, LABELS, strict=True):
        first, second = (FlatModel(SaddleNetwork(network(net)), dtype=torch.float64) for _ in range(2))
        oracle = CompositionalOracle(first, second, torch.tensor(X), torch.tensor(y).double(), score=SCORES[score])
        oracle.load([z])
        found.append(oracle.weigh(PRIOR, N * len(y) / TOTAL))
    return found


def gradient(f: Oracle) -> Tensor:
    """Return the gradient at its client's point, over all samples."""
    return f.gradient(f.parameters, None)


def mean_of(values: Callable[[int], object]) -> Array:
    return np.mean([np.asarray(values(i)) for i in range(N)], axis=0)


def point(problem: SaddleAUC, seed: int) -> Array:
    return np.random.default_rng(seed).normal(0.0, 0.8, problem.primal_dim + 1)


@pytest.mark.parametrize("seed", [0, 1])
@each_score
@each_net
def test_the_mean_over_sites_is_the_union_s(net: str, score: str, seed: int) -> None:
    sites, union = references(net, score)
    z = point(sites, seed)
    product = oracles(net, score, z)
    np.testing.assert_allclose(mean_of(lambda i: sites.value(i, z)), union.value(0, z), **EXACT)
    np.testing.assert_allclose(mean_of(lambda i: sites.gradient(i, z)), union.gradient(0, z), **EXACT)
    np.testing.assert_allclose(mean_of(lambda i: sites.inner(i, z[:-1])), union.inner(0, z[:-1]), **EXACT)
    np.testing.assert_allclose(mean_of(lambda i: product[i].value()), union.value(0, z), **EXACT)
    np.testing.assert_allclose(mean_of(lambda i: gradient(product[i])), union.gradient(0, z), **EXACT)
    # h <- g(x), all of it
    for i, oracle in enumerate(product):
        oracle.load_inner(None, None)
        compose(oracle, np.arange(len(LABELS[i])), 1.0, RHO)
    np.testing.assert_allclose(mean_of(lambda i: product[i].inner.arrays()[0][:-1]), union.inner(0, z[:-1]), **EXACT)


@each_score
@each_net
def test_a_site_s_compositional_step_is_the_reference_s(net: str, score: str) -> None:
    sites, _ = references(net, score)
    z = point(sites, 2)
    h = point(sites, 3)[:-1]
    for i, oracle in enumerate(oracles(net, score, z)):
        oracle.load_inner(h, None)
        gradient, rows = compose(oracle, np.arange(len(LABELS[i])), 0.4, RHO), None
        moved = 0.6 * h + 0.4 * sites.inner(i, z[:-1])
        expected = sites.compositional_gradient(i, z[:-1], moved, z[-1:], rows)
        np.testing.assert_allclose(gradient[:-1], expected, **EXACT)
        np.testing.assert_allclose(gradient[-1:], sites.outer_gradient(i, moved, z[-1:])[1], **EXACT)


def test_a_weight_of_one_is_none_to_the_bit() -> None:
    z = point(references("tanh", "sigmoid")[0], 5)
    weighed, plain = (oracles("tanh", "sigmoid", z)[0].weigh(*known) for known in ((PRIOR, 1.0), (PRIOR,)))
    found = [(one.value(), gradient(one).numpy().tobytes()) for one in (weighed, plain)]
    assert found[0] == found[1]


def test_a_problem_of_one_s_own_is_weighed_whole() -> None:
    """Its value, its gradients, and its gradients at a point for many batches have the weight."""

    def oracle(X: Array, y: Array) -> FunctionOracle:
        problem = Robust(torch.tensor(X), torch.tensor(y).double())
        return FunctionOracle(problem, dtype=torch.float64, device=torch.device("cpu"))

    union, sites = oracle(np.concatenate(FEATURES), np.concatenate(LABELS)), []
    for X, y in zip(FEATURES, LABELS, strict=True):
        sites.append(oracle(X, y).weigh(PRIOR, N * len(y) / TOTAL))
    everyone: list[Oracle] = [*sites, union]
    z = np.random.default_rng(6).normal(size=2 * DIM)
    for one in everyone:
        one.load([z])
    np.testing.assert_allclose(mean_of(lambda i: sites[i].value()), union.value(), **EXACT)
    np.testing.assert_allclose(mean_of(lambda i: gradient(sites[i])), gradient(union), **EXACT)
