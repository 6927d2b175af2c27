"""The synthetic nonconvex-PL problem (Xie, Zhang, Zhang, Shen, Qian: "A Federated Learning Framework for
Nonconvex-PL Minimax Problems", Section 6.1)."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor

from problems.minimax.oracle import FunctionOracle
from problems.minimax.problem import MinimaxProblem

SYNTHETIC_PL = "synthetic-pl"
_CHUNK = 4096  # samples whose (n, p) intermediate values are in memory at a time


class SyntheticPL(MinimaxProblem):
    """F(x, y; a, b, c) = sum_l (1 - exp(-(x_l - a_l)^2 / (2 nu))) + (x - a)^T b b^T (y - c) - mu/2 ||y - c||^2.

    Args:
        data: The samples' a, b and c.
        labels: Without effect.
        nu: The width of the bumps, > 0.
        mu: The curvature in y, > 0.
    """

    def __init__(
        self, data: Float[Tensor, "n 3 p"], labels: Tensor | None = None, nu: float = 1.0, mu: float = 1.0
    ) -> None:
        self.data, self.nu, self.mu = data, nu, mu
        self.num_samples, _, self.primal_dim = data.shape
        self.dual_dim = self.primal_dim

    def value(self, x: Float[Tensor, "p"], y: Float[Tensor, "p"], rows: Int64[Tensor, "b"] | None) -> Float[Tensor, ""]:
        a, b, c = (self.data if rows is None else self.data[rows]).unbind(1)
        bumps = (1 - torch.exp((x - a) ** 2 / (-2 * self.nu))).sum(1)
        coupling = ((x - a) * b).sum(1) * (b * (y - c)).sum(1)
        return (bumps + coupling - self.mu / 2 * ((y - c) ** 2).sum(1)).mean()

    def gradients(
        self, x: Float[Tensor, "p"], y: Float[Tensor, "p"], rows: Int64[Tensor, "b"] | None
    ) -> tuple[Float[Tensor, "p"], Float[Tensor, "p"]]:
        data = self.data if rows is None else self.data.index_select(0, rows)
        return _gradients(torch.exp, torch.stack((x, y)), data, self.nu, self.mu)

    def batch_gradients(
        self, x: Float[Tensor, "p"], y: Float[Tensor, "p"], rows: Int64[Tensor, "K b"]
    ) -> tuple[Float[Tensor, "K p"], Float[Tensor, "K p"]]:
        data = self.data.index_select(0, rows.reshape(-1)).view(*rows.shape, 3, -1)
        return _gradients(torch.exp, torch.stack((x, y)), data, self.nu, self.mu)

    def grad_phi(self, x: Float[Tensor, "p"]) -> Float[Tensor, "p"]:
        """Return grad Phi(x) = grad_x f(x, y*(x)), equation (3), for f the mean over this object's samples.

        f is quadratic and strongly concave in y: y*(x) = mean c + (1/mu) mean b b^T (x - a).
        """
        coupled, bumps, c = self._moments(x)
        y = c + coupled / self.mu
        _, b, own_c = self.data.unbind(1)
        return bumps + (b * ((y - own_c) * b).sum(1, keepdim=True)).mean(0)

    def metrics(self, x: Float[Tensor, "p"], y: Float[Tensor, "p"]) -> dict[str, float]:
        return {"grad_phi_sq": float(self.grad_phi(x).square().sum())}

    def _moments(self, x: Float[Tensor, "p"]) -> tuple[Float[Tensor, "p"], Float[Tensor, "p"], Float[Tensor, "p"]]:
        """Return mean b b^T (x - a), the gradient of the mean bump, and mean c."""
        sums = [torch.zeros_like(x) for _ in range(3)]
        for data in torch.split(self.data, _CHUNK):
            a, b, c = data.unbind(1)
            away = x - a
            sums[0] += (b * (b * away).sum(1, keepdim=True)).sum(0)
            sums[1] += (away * torch.exp(away * away * (-0.5 / self.nu))).sum(0) / self.nu
            sums[2] += c.sum(0)
        return sums[0] / self.num_samples, sums[1] / self.num_samples, sums[2] / self.num_samples


def _gradients(exp: Any, point: Any, data: Any, nu: float, mu: float) -> tuple[Any, Any]:
    """Return the gradients in x and y, (..., p) each, at the point (2, p), over data (..., b, 3, p); NumPy or torch."""
    away = point - data[..., ::2, :]  # (..., b, 2, p): x - a, y - c
    from_a, from_c, b = away[..., 0, :], away[..., 1, :], data[..., 1, :]
    inner = (away @ b[..., None])[..., None, :, :, 0]  # (..., 1, b, 2): their products with b
    primal = (inner[..., 1] @ b)[..., 0, :] + (from_a * exp(from_a * from_a * (-0.5 / nu))).sum(-2) / nu
    dual = (inner[..., 0] @ b)[..., 0, :] - mu * from_c.sum(-2)
    return primal / b.shape[-2], dual / b.shape[-2]


class SyntheticPLOracle(FunctionOracle):
    """The oracle of `SyntheticPL` on a CPU. It uses NumPy, which takes a third of torch's time for 5 samples."""

    def __init__(self, problem: SyntheticPL) -> None:
        super().__init__(problem, dtype=problem.data.dtype, device=problem.data.device)
        self._data = problem.data.numpy()
        self._constants = problem.nu, problem.mu

    def gradient(self, z: Float[Tensor, "d"], rows: Int64[np.ndarray, "b"] | None) -> Float[Tensor, "d"]:
        return self._compute(z, self._data if rows is None else self._data[rows])

    def batch_gradients(
        self, z: Float[Tensor, "d"], batches: Iterable[Int64[np.ndarray, "b"]]
    ) -> Sequence[Float[Tensor, "d"]] | None:
        rows = list(batches)
        return self._compute(z, self._data[np.stack(rows)]).unbind() if rows else None

    def _compute(self, z: Float[Tensor, "d"], data: Float[np.ndarray, "*stack b 3 p"]) -> Float[Tensor, "*stack d"]:
        """Return the gradients at z of the means over samples."""
        with np.errstate(over="ignore", invalid="ignore"):  # the receiver refuses values that are not finite
            gradients = _gradients(np.exp, z.numpy().reshape(2, -1), data, *self._constants)
        return torch.from_numpy(np.concatenate(gradients, axis=-1))
