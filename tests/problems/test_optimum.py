"""Tests of the minimum of f + g against closed forms, Newton's method and scikit-learn."""

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
    """Return (n, d) features and (n,) labels of 0 and 1."""
    rng = np.random.default_rng(seed)
    features = rng.normal(size=(count, dim)) * np.linspace(0.3, 1.5, dim)
    labels = (features[:, : dim // 4].sum(axis=1) + rng.normal(size=count) > 0).astype(np.float64)
    return torch.from_numpy(features), torch.from_numpy(labels)


def logistic(features: Tensor, labels: Tensor, ridge: float) -> Smooth:
    """Return the mean logistic loss plus ridge / 2 ||x||^2."""

    def smooth(x: Tensor) -> tuple[float, Tensor]:
        scores = features @ x
        value = float((functional.softplus(scores) - labels * scores).mean()) + ridge / 2 * float(x @ x)
        return value, features.T @ (torch.sigmoid(scores) - labels) / len(labels) + ridge * x

    return smooth


def squares(features: Tensor, targets: Tensor) -> Smooth:
    """Return 1 / (2 n) ||A x - b||^2, as in scikit-learn."""

    def smooth(x: Tensor) -> tuple[float, Tensor]:
        rest = features @ x - targets
        return float(rest @ rest) / 2 / len(targets), features.T @ rest / len(targets)

    return smooth


def newton(features: Tensor, labels: Tensor, ridge: float) -> Tensor:
    """Return the minimum of `logistic`."""
    x = torch.zeros(features.shape[1], dtype=torch.float64)
    smooth, identity = logistic(features, labels, ridge), torch.eye(len(x), dtype=torch.float64)
    for _ in range(30):
        p = torch.sigmoid(features @ x)
        hessian = features.T @ (features * (p * (1 - p))[:, None]) / len(labels) + ridge * identity
        x = x - torch.linalg.solve(hessian, smooth(x)[1])
    return x


@pytest.mark.parametrize("convexity", [0.0, 0.01])
def test_logistic_regression_to_the_last_digits(convexity: float) -> None:
    features, labels = samples()
    lipschitz = smoothness(features) / 4 / len(labels) + 0.01
    smooth, expected = logistic(features, labels, 0.01), newton(features, labels, 0.01)
    start = torch.full((60,), 0.1, dtype=torch.float64)
    found = minimise(smooth, NoPenalty(), start, lipschitz=lipschitz, convexity=convexity)
    assert found.converged
    assert torch.equal(start, torch.full_like(start, 0.1))
    assert found.residual <= (1e-14 if convexity == 0 else 60**0.5 * 8 * 2.3e-16)
    # the residual bounds the error only if the method knows the convexity: the condition number is about 100
    accuracy = 3e-12 if convexity == 0 else 3e-14
    assert float((found.point - expected).norm()) <= accuracy * float(expected.norm())
    assert found.value == pytest.approx(smooth(expected)[0], rel=1e-14)
    assert 50 < found.iterations < 400


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


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("seed", range(2))
def test_every_penalty_is_solved(name: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    features = torch.from_numpy(rng.normal(size=(40, DIM)))
    targets = features @ torch.from_numpy(rng.normal(size=DIM)) + torch.from_numpy(rng.normal(size=40))
    smooth, penalty = squares(features, targets), ALL[name]
    eigenvalues = np.linalg.eigvalsh(features.T @ features / 40)
    start = torch.from_numpy(rng.normal(size=DIM))
    found = minimise(smooth, penalty, start, lipschitz=float(eigenvalues[-1]), convexity=float(eigenvalues[0]))
    assert found.converged
    assert penalty.distance(found.point, smooth(found.point)[1]) < 1e-12
    assert found.value == smooth(found.point)[0] + penalty.value(found.point)
    for _ in range(5):  # no point of the domain is better, by the margin of strong convexity
        other = penalty.prox(found.point + 0.3 * torch.from_numpy(rng.normal(size=DIM)), 1e-3)
        better = smooth(other)[0] + penalty.value(other) - found.value
        assert better >= 0.99 * eigenvalues[0] / 2 * float((other - found.point).norm()) ** 2


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
