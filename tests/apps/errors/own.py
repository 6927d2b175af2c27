"""Models and problems of a user's own that cannot be used, each for a reason of its own."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from problems.minimax.problem import MinimaxProblem

NUMBER = 3


class Scores(nn.Module):
    """One score a sample."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.layer = nn.Linear(shape[0], 1)

    def forward(self, features: Tensor) -> Tensor:
        return self.layer(features).squeeze(1)  # type: ignore[no-any-return]


def failing(shape: tuple[int, ...]) -> nn.Module:
    raise KeyError("a factory's own fault")


def nothing(shape: tuple[int, ...]) -> None:
    return None


class Fixed(Scores):
    """No parameters."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        nn.Module.__init__(self)

    def forward(self, features: Tensor) -> Tensor:
        return features.sum(dim=1)


class Failing(Scores):
    """Cannot take its input."""

    def forward(self, features: Tensor) -> Tensor:
        raise RuntimeError("shapes do not fit")


class Pairs(Scores):
    """Two results."""

    def forward(self, features: Tensor) -> Any:
        return super().forward(features), features


class Classes(Scores):
    """Two scores a sample."""

    def forward(self, features: Tensor) -> Tensor:
        return self.layer(features).repeat(1, 2)


class Whole(Scores):
    """A parameter that is not trained in floating point."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__(shape)
        self.counts = nn.ParameterList([nn.Parameter(torch.zeros(1, dtype=torch.int64), requires_grad=False)])


class Cumulative(Scores):
    """Batch norm whose average needs a count."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__(shape)
        self.norm = nn.BatchNorm1d(shape[0], momentum=None)


class Replacing(Scores):
    """A buffer that every training step replaces."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__(shape)
        self.register_buffer("seen", torch.zeros(1))

    def forward(self, features: Tensor) -> Tensor:
        if self.training:
            self.seen = self.seen + 1
        return super().forward(features)


class Problem(MinimaxProblem):
    """A problem that can be used."""

    def __init__(self, features: Tensor, labels: Tensor) -> None:
        self.features, self.labels = features, labels
        self.primal_dim, self.dual_dim, self.num_samples = features.shape[1], 1, len(labels)

    def value(self, x: Tensor, y: Tensor, rows: Tensor | None) -> Tensor:
        return (x**2).sum() - (y**2).sum()


def no_problem(features: Tensor, labels: Tensor) -> int:
    return 3


class WithoutSize(Problem):
    """No number of variables."""

    def __init__(self, features: Tensor, labels: Tensor) -> None:
        super().__init__(features, labels)
        self.primal_dim = 0


class VectorValued(Problem):
    """A value for each variable."""

    def value(self, x: Tensor, y: Tensor, rows: Tensor | None) -> Tensor:
        return x**2


class OneGradient(Problem):
    """One gradient where there are two."""

    def gradients(self, x: Tensor, y: Tensor, rows: Tensor | None) -> Any:
        return x


class LongGradient(Problem):
    """Gradients of other lengths."""

    def gradients(self, x: Tensor, y: Tensor, rows: Tensor | None) -> tuple[Tensor, Tensor]:
        return torch.cat([x, x]), y


class Unbounded(Problem):
    """A value that is not finite."""

    def value(self, x: Tensor, y: Tensor, rows: Tensor | None) -> Tensor:
        return x.sum() / 0
