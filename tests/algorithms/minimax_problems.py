"""User-defined problems and networks, for tests that name them by their dotted path; some are invalid."""

from __future__ import annotations

import threading
from collections.abc import Callable

import torch
from torch import Tensor, nn

from methods import scgdam
from problems.minimax import CompositionalOracle, MinimaxProblem
from problems.sampling import Indices


def compose(
    oracle: CompositionalOracle,
    rows: Indices,
    weight: float,
    rho: float,
    *,
    exact: bool = True,
    outer_rows: Indices | None = None,
    levels: int = 1,
) -> Tensor:
    """Run a step of h and compute the gradients with `methods.scgdam.compose`, at the oracle's two points."""
    batch = scgdam.Batch(rows, rows if outer_rows is None else outer_rows)
    settings = scgdam.SCGDAMSettings(rho=rho, hessian="exact" if exact else "identity")
    z, h = oracle.parameters, oracle.inner.parameters
    return scgdam.compose(oracle, z, h, batch, weight, settings, [h.clone() for _ in range(levels - 1)])


# Valid problems.


class LeastSquares(MinimaxProblem):
    """f = mean (a.x - l)^2 / 2 over samples a with labels l; nothing to maximise."""

    def __init__(self, features: Tensor, labels: Tensor) -> None:
        self.features, self.labels = features, labels
        self.primal_dim, self.dual_dim, self.num_samples = features.shape[1], 0, len(labels)

    def value(self, x: Tensor, y: Tensor, rows: Tensor | None) -> Tensor:
        a, labels = (self.features, self.labels) if rows is None else (self.features[rows], self.labels[rows])
        return ((a @ x - labels) ** 2).mean() / 2


class Robust(LeastSquares):
    """f = mean ((a + y).x - l)^2 / 2 - 2 ||y||^2: y disturbs the samples; starts away from zero."""

    def __init__(self, features: Tensor, labels: Tensor) -> None:
        super().__init__(features, labels)
        self.dual_dim = self.primal_dim

    def value(self, x: Tensor, y: Tensor, rows: Tensor | None) -> Tensor:
        a, labels = (self.features, self.labels) if rows is None else (self.features[rows], self.labels[rows])
        return (((a + y) @ x - labels) ** 2).mean() / 2 - 2 * (y @ y)

    def start(self) -> tuple[Tensor, Tensor]:
        ramp = torch.arange(self.primal_dim, dtype=self.features.dtype)
        return 0.1 * ramp + 0.2, 0.3 - 0.1 * ramp


# Invalid problems.


def not_a_problem(features: Tensor, labels: Tensor) -> object:
    """Return something that is not a problem."""
    return features


def with_sizes(**sizes: object) -> Callable[[Tensor, Tensor], LeastSquares]:
    """Return a factory of a problem with these declared sizes."""

    def factory(features: Tensor, labels: Tensor) -> LeastSquares:
        problem = LeastSquares(features, labels)
        vars(problem).update(sizes)
        return problem

    return factory


NoPrimal, WordPrimal, NegativeDual = with_sizes(primal_dim=0), with_sizes(primal_dim="four"), with_sizes(dual_dim=-1)


class NoSizes(MinimaxProblem):
    def __init__(self, features: Tensor, labels: Tensor) -> None:
        pass

    def value(self, x: Tensor, y: Tensor, rows: Tensor | None) -> Tensor:
        return x.sum()


class MisshapenGradients(LeastSquares):
    def gradients(self, x: Tensor, y: Tensor, rows: Tensor | None) -> tuple[Tensor, Tensor]:
        return x[:-1], y


class ListedGradients(LeastSquares):
    def gradients(self, x: Tensor, y: Tensor, rows: Tensor | None) -> tuple[Tensor, Tensor]:
        return [x, y]  # type: ignore[return-value]


class VectorValue(LeastSquares):
    def value(self, x: Tensor, y: Tensor, rows: Tensor | None) -> Tensor:
        return self.features @ x


class PlainValue(LeastSquares):
    def value(self, x: Tensor, y: Tensor, rows: Tensor | None) -> Tensor:
        return 1.5  # type: ignore[return-value]


class MisshapenStart(LeastSquares):
    def start(self) -> tuple[Tensor, Tensor]:
        return torch.zeros(self.primal_dim + 1), torch.zeros(0)


# Networks.

HIDDEN = 6


def normed(input_shape: tuple[int, ...]) -> nn.Module:
    """Return a network with batch norm, whose statistics are sent, too."""
    return nn.Sequential(nn.Linear(*input_shape, HIDDEN), nn.BatchNorm1d(HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, 1))


def dropped(input_shape: tuple[int, ...]) -> nn.Module:
    """Return a network with dropout, which draws random numbers."""
    return nn.Sequential(nn.Linear(*input_shape, HIDDEN), nn.Tanh(), nn.Dropout(0.5), nn.Linear(HIDDEN, 1))


def normed_and_dropped(input_shape: tuple[int, ...]) -> nn.Module:
    """Return a network with batch norm and dropout."""
    return nn.Sequential(
        nn.Linear(*input_shape, HIDDEN), nn.BatchNorm1d(HIDDEN), nn.Tanh(), nn.Dropout(0.5), nn.Linear(HIDDEN, 1)
    )


BUILDING, GO_ON = threading.Event(), threading.Event()


def paused(input_shape: tuple[int, ...]) -> nn.Module:
    """Return `dropped`, after signalling that it is being built and waiting for permission to go on."""
    BUILDING.set()
    GO_ON.wait(5)
    return dropped(input_shape)
