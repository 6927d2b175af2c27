"""`Oracle`: an object that computes one site's f_i and its gradients at flat points z = (x, y).

The minimax methods (`methods.minimax`) use every problem in this form. f_i is minimised over x and maximised over y.
"""

import copy
from collections.abc import Iterable, Sequence
from typing import Any, Protocol, Self

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor

from problems.minimax.problem import PAGE, MinimaxProblem, ProblemError
from problems.models.vectors import NUMPY_DTYPES, Copy, FloatArray
from problems.sampling import Indices, on_device


class Oracle(Protocol):
    """One site's f_i: its gradients at any point, and the point that the site's client moves.

    f_i depends on the other sites only through two numbers, `prior` and `weight`, which `weigh` sets in a copy.

    Attributes:
        parameters: The client's point z, changed in place.
        device: The device of the point.
        primal_dim: The length p of x. The last d - p entries of z are y.
        num_samples: The number of the site's samples.
        prior: The share of positives in all sites' samples. NaN until `weigh` sets it.
        weight: omega_i, the weight of the site's samples in f_i.
        buffers: The values that the computation of a gradient changes (batch-norm statistics). May be empty.
        stochastic: Whether a gradient draws random numbers (dropout).
    """

    parameters: Float[Tensor, "d"]
    device: torch.device
    primal_dim: int
    num_samples: int
    prior: float = float("nan")
    weight: float = 1.0
    buffers: Float[Tensor, "buffers"]
    stochastic: bool

    def load(self, arrays: Sequence[FloatArray]) -> None:
        """Set the client's point.

        Args:
            arrays: The point and, if there are any, the buffers, each flat.

        Raises:
            ValueError: The arrays do not fit.
        """

    def arrays(self, copy: Copy = np.array) -> list[Float[np.ndarray, "_"]]:
        """Return the client's point and, if there are any, the buffers.

        Args:
            copy: The function that makes the returned copies.
        """

    def value(self) -> float:
        """Return f_i at the client's point, over all samples."""

    def gradient(self, z: Float[Tensor, "d"], rows: Int64[np.ndarray, "b"] | None) -> Float[Tensor, "d"]:
        """Return the gradient of f_i(.; rows).

        Args:
            z: The point.
            rows: The samples' row numbers. None: all samples.

        Returns:
            A tensor that is valid until the next call.
        """

    def batch_gradients(
        self, z: Float[Tensor, "d"], batches: Iterable[Int64[np.ndarray, "b"]]
    ) -> Sequence[Float[Tensor, "d"]] | None:
        """Return the gradients at the same point for several batches.

        Args:
            z: The point.
            batches: The row numbers of each batch's samples; all batches have the same size.

        Returns:
            A gradient for each batch. None: the caller must compute the gradients one by one, with `peek`.
        """
        return None

    def weigh(self, prior: float, weight: float = 1.0) -> Self:
        """Return a copy with another prior and weight. The copy shares the point and the network.

        Args:
            prior: The share of positives in all sites' samples.
            weight: omega_i.
        """
        weighted = copy.copy(self)
        weighted.prior, weighted.weight = prior, weight
        return weighted


def peek(f: Oracle, z: Float[Tensor, "*stack d"], rows: Indices | None) -> Float[Tensor, "*stack d"]:
    """Return a gradient without side effects, in a new tensor.

    Batch-norm statistics and the states of torch's generators are restored, so the next gradient uses the same dropout.

    Args:
        f: The oracle.
        z: See `Oracle.gradient`.
        rows: See `Oracle.gradient`.
    """
    statistics = f.buffers.clone()
    with torch.random.fork_rng([f.device] if f.device.type == "cuda" else [], enabled=f.stochastic):
        gradient = f.gradient(z, rows).clone()
    f.buffers.copy_(statistics)
    return gradient


class FunctionOracle(Oracle):
    """The oracle of a `MinimaxProblem`. omega_i multiplies the problem's value, and the share of positives is not used.

    Raises:
        ProblemError: Gradients are not tensors, or do not have the shapes (p,) and (q,).

    Example:
        >>> class Saddle(MinimaxProblem):
        ...     primal_dim, dual_dim, num_samples = 1, 1, 4
        ...
        ...     def value(self, x, y, rows):
        ...         return (x * y).sum()
        >>> oracle = FunctionOracle(Saddle(), dtype=torch.float64, device=torch.device("cpu"))
        >>> oracle.gradient(torch.tensor([2.0, 3.0], dtype=torch.float64), None).tolist()
        [3.0, 2.0]
    """

    def __init__(self, problem: MinimaxProblem, *, dtype: torch.dtype, device: torch.device) -> None:
        self.problem = problem
        self.device = device
        self.stochastic = problem.stochastic
        self.primal_dim, self.num_samples = problem.primal_dim, problem.num_samples
        self.parameters = torch.zeros(problem.primal_dim + problem.dual_dim, dtype=dtype, device=device)
        self.buffers = self.parameters[:0]
        begin = problem.start()
        if begin is not None:
            self.parameters.copy_(torch.cat(self._blocks("start", begin)))

    def load(self, arrays: Sequence[FloatArray]) -> None:
        if len(arrays) != 1 or arrays[0].shape != tuple(self.parameters.shape):
            shapes = [array.shape for array in arrays]
            raise ValueError(f"expected one array of shape {tuple(self.parameters.shape)}, got {shapes}")
        self.parameters.copy_(torch.from_numpy(arrays[0].astype(NUMPY_DTYPES[self.parameters.dtype])))

    def arrays(self, copy: Copy = np.array) -> list[Float[np.ndarray, "d"]]:
        return [copy(self.parameters.detach().cpu().numpy())]

    def value(self) -> float:
        x, y = self._split(self.parameters)
        with torch.no_grad():
            return self.weight * float(self.problem.checked_value(x, y, None))

    def metrics(self) -> dict[str, float]:
        """Return the problem's own metrics at the client's point."""
        with torch.no_grad():
            return dict(self.problem.metrics(*self._split(self.parameters)))

    def gradient(self, z: Float[Tensor, "d"], rows: Int64[np.ndarray, "b"] | None) -> Float[Tensor, "d"]:
        selected = None if rows is None else on_device(rows, self.device)
        return torch.cat(self._blocks("gradients", self.problem.gradients(*self._split(z), selected))).mul_(self.weight)

    def batch_gradients(
        self, z: Float[Tensor, "d"], batches: Iterable[Int64[np.ndarray, "b"]]
    ) -> Sequence[Float[Tensor, "d"]] | None:
        rows = list(batches)
        if not rows:
            return None
        together = self.problem.batch_gradients(*self._split(z), on_device(np.stack(rows), self.device))
        return None if together is None else torch.cat(together, dim=1).mul_(self.weight).unbind()

    def _split(self, point: Float[Tensor, "d"]) -> tuple[Float[Tensor, "p"], Float[Tensor, "q"]]:
        return point[: self.primal_dim], point[self.primal_dim :]

    def _blocks(self, what: str, blocks: Any) -> tuple[Float[Tensor, "p"], Float[Tensor, "q"]]:
        key = f"{type(self.problem).__name__}.{what}"
        expected = ((self.primal_dim,), (len(self.parameters) - self.primal_dim,))
        if not (isinstance(blocks, tuple) and len(blocks) == 2 and all(isinstance(b, Tensor) for b in blocks)):
            got = type(blocks).__name__
            raise ProblemError(key, got=got, allowed="a pair of tensors (x, y)", hint=f"see {PAGE}")
        shapes = tuple(tuple(block.shape) for block in blocks)
        if shapes != expected:
            got, allowed = f"shapes {shapes[0]} and {shapes[1]}", f"{expected[0]} in x and {expected[1]} in y"
            raise ProblemError(key, got=got, allowed=allowed, hint=f"see {PAGE}")
        return blocks
