"""The minimum of f + g against closed forms, Newton's method and scikit-learn."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from problems.optimum import minimise, smoothness
from problems.penalties import (
    L1,
    Box,
    ElasticNet,
    GroupLasso,
    L2Ball,
    NonNegative,
    NoPenalty,
    NuclearNorm,
    OnParameters,
    Penalty,
    Simplex,
    SquaredL2,
)

Smooth = Callable[[Tensor], tuple[float, Tensor]]


def samples(count: int = 300, dim: int = 60, seed: int = 0) -> tuple[Tensor, Tensor]:
    """(n, d) features and (n,) labels of 0 and 1."""
    rng = np.random.default_rng(seed)
    features = rng.normal(size=(count, dim)) * np.linspace(0.3, 1.5, dim)
    labels = (features[:, : dim // 4].sum(axis=1) + rng.normal(size=count) > 0).astype(np.float64)
    return torch.from_numpy(features), torch.from_numpy(labels)


def logistic(features: Tensor, labels: Tensor, ridge: float) -> Smooth:
    """The mean logistic loss plus ridge / 2 ||x||^2."""

    def smooth(x: Tensor) -> tuple[float, Tensor]:
        scores = features @ x
        value = float((functional.softplus(scores) - labels * scores).mean()) + ridge / 2 * float(x @ x)
        return value, features.T @ (torch.sigmoid(scores) - labels) / len(labels) + ridge * x

    return smooth


def squares(features: Tensor, targets: Tensor) -> Smooth:
    """1 / (2 n) ||A x - b||^2, as scikit-learn has it."""

    def smooth(x: Tensor) -> tuple[float, Tensor]:
        rest = features @ x - targets
        return float(rest @ rest) / 2 / len(targets), features.T @ rest / len(targets)

    return smooth


def newton(features: Tensor, labels: Tensor, ridge: float) -> Tensor:
    """The minimum of `logistic`."""
    x = torch.zeros(features.shape[1], dtype=torch.float64)
    smooth, identity = logistic(features, labels, ridge), torch.eye(len(x), dtype=torch.float64)
    for _ in range(30):
        p = torch.sigmoid(features @ x)
        hessian = features.T @ (features * (p * (1 - p))[:, None]) / len(labels) + ridge * identity
        x = x - torch.linalg.solve(hessian, smooth(x)[1])
    return x


each_way = pytest.mark.parametrize("given", [True, False], ids=["lipschitz", "backtracking"])


@each_way
@pytest.mark.parametrize("convexity", [0.0, 0.01])
def test_logistic_regression_to_the_last_digits(given: bool, convexity: float) -> None:
    features, labels = samples()
    lipschitz = smoothness(features) / 4 / len(labels) + 0.01 if given else None
    smooth, expected = logistic(features, labels, 0.01), newton(features, labels, 0.01)
    start = torch.full((60,), 0.1, dtype=torch.float64)
    found = minimise(smooth, NoPenalty(), start, lipschitz=lipschitz, convexity=convexity)
    assert found.converged
    assert torch.equal(start, torch.full_like(start, 0.1))
    assert found.residual <= (1e-14 if convexity == 0 else 60**0.5 * 8 * 2.3e-16)
    # the point is as good as the residual only if the method knows the convexity: the condition number is about 100
    accuracy = 3e-12 if convexity == 0 else 3e-14
    assert float((found.point - expected).norm()) <= accuracy * float(expected.norm())
    assert found.value == pytest.approx(smooth(expected)[0], rel=1e-14)
    assert 50 < found.iterations < 400


def test_tolerance_0_stops_at_rounding() -> None:
    features, labels = samples()
    expected = newton(features, labels, 0.01)
    found = minimise(logistic(features, labels, 0.01), NoPenalty(), torch.zeros_like(expected), tolerance=0)
    assert found.converged
    assert found.iterations < 1000
    assert float((found.point - expected).norm()) <= 3e-14 * float(expected.norm())


def test_in_float32() -> None:
    features, labels = samples()
    expected = newton(features, labels, 0.1)
    smooth = logistic(features.float(), labels.float(), 0.1)
    found = minimise(smooth, NoPenalty(), torch.zeros(60), convexity=0.1)
    assert found.point.dtype is torch.float32
    assert found.converged
    assert float((found.point - expected).norm()) <= 2e-6 * float(expected.norm())


DIM = 12
ALL: dict[str, Penalty] = {
    "none": NoPenalty(),
    "l1": L1(0.4),
    "l2": SquaredL2(0.4),
    "elastic-net": ElasticNet(0.4, 0.6),
    "group-lasso": GroupLasso(0.6, [0, 1, 2, 3] * 3),
    "nuclear-norm": NuclearNorm(1.2, (3, 4)),
    "box": Box(-0.3, 0.5),
    "l2-ball": L2Ball(0.7),
    "wide-l2-ball": L2Ball(70.0),
    "simplex": Simplex(1.5),
    "nonnegative": NonNegative(),
    "parts": OnParameters(DIM, [(slice(2, 5), Simplex(0.5)), (torch.tensor([8, 1, 0]), L1(0.4))]),
}


@each_way
@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("seed", range(2))
def test_every_penalty_is_solved(name: str, seed: int, given: bool) -> None:
    rng = np.random.default_rng(seed)
    features = torch.from_numpy(rng.normal(size=(40, DIM)))
    targets = features @ torch.from_numpy(rng.normal(size=DIM)) + torch.from_numpy(rng.normal(size=40))
    smooth, penalty = squares(features, targets), ALL[name]
    eigenvalues = np.linalg.eigvalsh(features.T @ features / 40)
    lipschitz = float(eigenvalues[-1]) if given else None
    start = torch.from_numpy(rng.normal(size=DIM))
    found = minimise(smooth, penalty, start, lipschitz=lipschitz, convexity=float(eigenvalues[0]))
    assert found.converged
    assert penalty.distance(found.point, smooth(found.point)[1]) < 1e-12
    assert found.value == smooth(found.point)[0] + penalty.value(found.point)
    for _ in range(5):  # nothing in the domain is better, by as much as the strong convexity says
        other = penalty.prox(found.point + 0.3 * torch.from_numpy(rng.normal(size=DIM)), 1e-3)
        better = smooth(other)[0] + penalty.value(other) - found.value
        assert better >= 0.99 * eigenvalues[0] / 2 * float((other - found.point).norm()) ** 2


# The method.


def ill_conditioned() -> tuple[Smooth, Tensor]:
    """1/2 sum_i h_i (x_i - 1)^2 with h from 1e-4 to 1, and the start 0."""
    h = torch.logspace(-4, 0, 50, dtype=torch.float64)
    return lambda x: (float(h @ (x - 1) ** 2) / 2, h * (x - 1)), torch.zeros(50, dtype=torch.float64)


@pytest.mark.parametrize("convexity", [0.0, 1e-4])
def test_restarts_or_a_known_convexity_make_it_linear(convexity: float) -> None:
    smooth, start = ill_conditioned()
    found = minimise(smooth, NoPenalty(), start, lipschitz=1.0, convexity=convexity)
    assert found.converged
    # sqrt(1e4) log(1e14) = 3224 with the best momentum, 1e4 log(1e14) without any
    assert found.iterations < 4500
    np.testing.assert_allclose(found.point, 1.0, rtol=0, atol=1e-11 if convexity else 1e-9)


def test_backtracking_finds_a_step_where_the_curvature_grows() -> None:
    """f = sum_i sqrt(1e-4 + x_i^2) is nearly linear at the start, and 1e6 times as curved at its minimum 0."""

    def smooth(x: Tensor) -> tuple[float, Tensor]:
        root = torch.sqrt(1e-4 + x**2)
        return float(root.sum()), x / root

    found = minimise(smooth, NoPenalty(), torch.tensor([3.0, -2.0, 1.0], dtype=torch.float64))
    assert found.converged
    np.testing.assert_allclose(found.point, 0.0, rtol=0, atol=1e-14)


def test_the_point_is_what_a_proximal_map_returned() -> None:
    smooth, start = ill_conditioned()
    found = minimise(smooth, Simplex(2), start, lipschitz=1.0, max_iterations=1)
    assert torch.equal(found.point, Simplex(2).prox(start - smooth(start)[1], 1.0))


def test_it_says_that_it_did_not_converge() -> None:
    smooth, start = ill_conditioned()
    found = minimise(smooth, NoPenalty(), start, lipschitz=1.0, max_iterations=100)
    assert not found.converged
    assert found.iterations == 100
    fixed_point = float(smooth(found.point)[1].norm()) / max(1.0, float(found.point.norm()))
    assert fixed_point <= found.residual * 1.1
    assert found.residual > 1e-6


@each_way
def test_an_inexact_gradient_ends_it_unconverged(given: bool) -> None:
    """Noise of 1e-10 in the gradient is a floor far above rounding; taken for curvature it would shrink the step."""
    calls = itertools.count()

    def smooth(x: Tensor) -> tuple[float, Tensor]:
        return float(x @ x) / 2, x - 1 + 1e-10 * torch.sin(torch.arange(5.0, dtype=x.dtype) + next(calls))

    found = minimise(smooth, NoPenalty(), torch.zeros(5, dtype=torch.float64), lipschitz=1.0 if given else None)
    assert not found.converged
    assert found.iterations < 5000
    np.testing.assert_allclose(found.point, 1.0, rtol=0, atol=1e-9)


# The Lipschitz constant.


@pytest.mark.parametrize("shape", [(40, 7), (7, 40), (5, 1)])
@pytest.mark.parametrize("weighted", [True, False])
def test_smoothness_is_the_largest_eigenvalue(shape: tuple[int, int], weighted: bool) -> None:
    rng = np.random.default_rng(4)
    features, weights = rng.normal(size=shape) + 0.1, rng.random(shape[0])
    matrix = features.T @ np.diag(weights if weighted else np.ones(shape[0])) @ features
    found, again = (
        smoothness(torch.from_numpy(features), torch.from_numpy(weights) if weighted else None) for _ in range(2)
    )
    assert found == again == pytest.approx(float(np.linalg.eigvalsh(matrix)[-1]), rel=1e-6)


def test_smoothness_without_a_gap_or_a_matrix() -> None:
    assert smoothness(torch.eye(6)) == pytest.approx(1.0, rel=1e-6)
    close = torch.diag(torch.linspace(0.99, 1.0, 30, dtype=torch.float64).sqrt())
    # 0.871 log(30) / 999 = 0.003
    assert 0.997 < smoothness(close) <= 1.0 + 1e-12
    assert smoothness(torch.zeros(3, 2)) == 0


# What is refused.


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lipschitz": 0.0}, "lipschitz must be > 0 and finite, or None, got 0.0"),
        ({"convexity": -1.0}, "convexity must be >= 0 and finite, got -1.0"),
        ({"tolerance": -1e-9}, "tolerance must be >= 0, got -1e-09"),
        ({"tolerance": math.nan}, "tolerance .* got nan"),
        ({"max_iterations": 0}, "max_iterations must be > 0, got 0"),
        ({"lipschitz": 0.1}, r"gradient is not finite at iteration \d+: diverged"),
    ],
)
def test_bad_arguments(options: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        minimise(lambda x: (float(x @ x) / 2, x), NoPenalty(), torch.ones(2), **options)  # type: ignore[arg-type]


def test_bad_features() -> None:
    with pytest.raises(ValueError, match=r"features must be \(n, d\), got \(3,\)"):
        smoothness(torch.ones(3))
    with pytest.raises(ValueError, match=r"weights must be \(3,\) and >= 0, got \(2,\)"):
        smoothness(torch.ones(3, 2), torch.ones(2))
    with pytest.raises(ValueError, match="or a negative one"):
        smoothness(torch.ones(2, 2), torch.tensor([1.0, -1.0]))
