"""Gradients of one site's f_i at flat points z = (x, y), the form in which the algorithms use every problem."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from problems.minimax.problem import PAGE, MinimaxProblem, ProblemError
from problems.models.flat import NUMPY_DTYPES, Copy, FloatArray
from problems.sampling import Indices, on_device


class Oracle(Protocol):
    """A point that a client moves, and the gradients of its f_i.

    Attributes:
        parameters: (d,) the current point z, changed in place.
        primal_dim: p; the last d - p entries are the dual block.
        num_samples: n.
        has_buffers: whether a gradient leaves something behind (batch-norm statistics).
        stochastic: whether a gradient draws random numbers (dropout).
    """

    parameters: Tensor
    device: torch.device
    primal_dim: int
    num_samples: int
    has_buffers: bool
    stochastic: bool

    def load(self, arrays: Sequence[FloatArray]) -> None:
        """Set the current point (and the buffers)."""

    def arrays(self, copy: Copy = np.array) -> list[FloatArray]:
        """The current point (and the buffers), as copies that ``copy`` makes."""

    def inform(self, prior: float, weight: float = 1.0) -> None:
        """Tell p, the share of positives, and omega_i, what the site's samples count in f_i; 1 until told."""

    def value(self) -> float:
        """f_i at the current point, over all samples."""

    def gradient(self, rows: Indices | None) -> Tensor:
        """(d,) the gradient of f_i(.; rows) at the current point; all samples where ``rows`` is None.

        Valid until the next call.
        """

    def gradient_at(self, point: Tensor, rows: Indices | None) -> Tensor:
        """(d,) likewise at another point, which leaves no trace; a tensor of its own."""

    def gradients_at(self, point: Tensor, batches: Sequence[Indices]) -> Iterator[Tensor]:
        """`gradient_at` for batches of one size, one after the other."""


def direction(oracle: Oracle, primal_step: float, dual_step: float) -> Tensor:
    """(d,) what a gradient is multiplied by in a step: -primal_step in the primal block, +dual_step in the dual."""
    signs = torch.empty_like(oracle.parameters)
    signs[: oracle.primal_dim] = -primal_step
    signs[oracle.primal_dim :] = dual_step
    return signs


class FunctionOracle:
    """The oracle of a `MinimaxProblem`.

    Raises:
        ProblemError: gradients whose shapes are not (p,) and (q,), or that are not tensors.
    """

    has_buffers = False

    def __init__(self, problem: MinimaxProblem, *, dtype: torch.dtype, device: torch.device) -> None:
        self.problem = problem
        self.device = device
        self.stochastic = problem.stochastic
        self.primal_dim, self.num_samples, self.weight = problem.primal_dim, problem.num_samples, 1.0
        self.parameters = torch.zeros(problem.primal_dim + problem.dual_dim, dtype=dtype, device=device)
        begin = problem.start()
        if begin is not None:
            self.parameters.copy_(torch.cat(self._blocks("start", begin)))

    def load(self, arrays: Sequence[FloatArray]) -> None:
        if len(arrays) != 1 or arrays[0].shape != tuple(self.parameters.shape):
            shapes = [array.shape for array in arrays]
            raise ValueError(f"expected one array of shape {tuple(self.parameters.shape)}, got {shapes}")
        self.parameters.copy_(torch.from_numpy(arrays[0].astype(NUMPY_DTYPES[self.parameters.dtype])))

    def arrays(self, copy: Copy = np.array) -> list[FloatArray]:
        return [copy(self.parameters.detach().cpu().numpy())]

    def inform(self, prior: float, weight: float = 1.0) -> None:
        """A problem of one's own has no classes; f_i is the problem's value times omega_i, whole."""
        self.weight = weight

    def value(self) -> float:
        x, y = self._split(self.parameters)
        with torch.no_grad():
            return self.weight * float(self.problem.checked_value(x, y, None))

    def metrics(self) -> dict[str, float]:
        """The problem's own metrics at the current point."""
        with torch.no_grad():
            return dict(self.problem.metrics(*self._split(self.parameters)))

    def gradient(self, rows: Indices | None) -> Tensor:
        return self.gradient_at(self.parameters, rows)

    def gradient_at(self, point: Tensor, rows: Indices | None) -> Tensor:
        x, y = self._split(point)
        selected = None if rows is None else on_device(rows, self.device)
        return torch.cat(self._blocks("gradients", self.problem.gradients(x, y, selected))).mul_(self.weight)

    def gradients_at(self, point: Tensor, batches: Sequence[Indices]) -> Iterator[Tensor]:
        if not batches:
            return iter(())
        x, y = self._split(point)
        together = self.problem.batch_gradients(x, y, on_device(np.stack(batches), self.device))
        if together is None:
            return (self.gradient_at(point, rows) for rows in batches)
        return iter(torch.cat(together, dim=1).mul_(self.weight))

    def _split(self, point: Tensor) -> tuple[Tensor, Tensor]:
        return point[: self.primal_dim], point[self.primal_dim :]

    def _blocks(self, what: str, blocks: Any) -> tuple[Tensor, Tensor]:
        expected = ((self.primal_dim,), (len(self.parameters) - self.primal_dim,))
        if not (isinstance(blocks, tuple) and len(blocks) == 2 and all(isinstance(b, Tensor) for b in blocks)):
            raise ProblemError(
                f"{type(self.problem).__name__}.{what}",
                got=type(blocks).__name__,
                allowed="a pair of tensors (x, y)",
                hint=f"see {PAGE}",
            )
        shapes = tuple(tuple(block.shape) for block in blocks)
        if shapes != expected:
            raise ProblemError(
                f"{type(self.problem).__name__}.{what}",
                got=f"shapes {shapes[0]} and {shapes[1]}",
                allowed=f"{expected[0]} in x and {expected[1]} in y",
                hint=f"see {PAGE}",
            )
        return blocks
