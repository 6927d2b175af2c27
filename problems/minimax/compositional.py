"""Compositional deep AUC maximisation (Zhang, Zhang, Yang, Souvenir, Gao, "Federated Compositional Deep AUC
Maximization", NeurIPS 2023, equations (1)-(3); Yuan, Guo, Chawla, Yang, "Compositional Training for End-to-End Deep
AUC Maximization", ICLR 2022), over any model and data set.

x = (w, w1, w2) and y = w3; f is the saddle function of `problems.minimax.auc`, with a = w1, b = w2, lambda = w3, and

    g(x; rows) = (w - rho grad CE(w; rows), w1, w2),    grad g(x; rows)^T q = q - rho H_CE(w; rows) q  (on w).

CE is the cross-entropy of the network's raw output, whatever `score` makes of it in f: its mean over the
batch, times omega_i as the terms of f_i, so that the plain mean of g_i over the sites is g of all samples.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from problems.minimax.auc import AUCOracle
from problems.models.flat import FlatModel, FloatArray
from problems.objectives.scores import SCORES, Score
from problems.sampling import Indices, on_device

COMPOSITIONAL_AUC = "compositional-auc"


class CompositionalOracle(AUCOracle):
    """The oracle of f(g(x), y): `parameters` is (x, y), and a second network stands at (h, y), h an estimate of g(x).

    What `AUCOracle` has, its gradients among it, is f at (x, y), without g.

    Args:
        model: a `FlatModel` of a `SaddleNetwork`, for w.
        inner: another one, for h.
        features: as of `AUCOracle`.
        labels: as of `AUCOracle`.
        score: as of `AUCOracle`.
    """

    def __init__(
        self, model: FlatModel, inner: FlatModel, features: Tensor, labels: Tensor, *, score: Score = SCORES["logit"]
    ) -> None:
        super().__init__(model, features, labels, score=score)
        self.inner = inner
        self._outer = AUCOracle(inner, features, labels, score=score)
        # tensor by tensor: the weights at w, those at h, and the gradient at h
        self._weights = [weight for weight in model.module.parameters() if weight.requires_grad]
        self._estimates = _trained(inner, inner.parameters)
        self._directions = _trained(inner, inner.gradient)
        if model.device.type == "cpu":
            _keep_freed_memory()

    def inform(self, prior: float, weight: float = 1.0) -> None:
        super().inform(prior, weight)
        self._outer.inform(prior, weight)

    def load_inner(self, h: FloatArray | None, buffers: FloatArray | None) -> None:
        """Set h (p,) and the batch-norm statistics (b,) at it; without h, to x and the statistics at w."""
        if h is None:
            self.inner.load(self.model.arrays())
        else:
            point = np.append(h, h.dtype.type(self.parameters[-1].item()))
            self.inner.load([point] if buffers is None else [point, buffers])

    def inner_arrays(self) -> tuple[FloatArray, FloatArray | None]:
        """h (p,) and the statistics at it, if there are any, as copies."""
        point, *buffers = self.inner.arrays()
        return point[: self.primal_dim], buffers[0] if buffers else None

    def compose(
        self, rows: Indices, weight: float, rho: float, *, exact: bool = True, outer_rows: Indices | None = None
    ) -> Tensor:
        """h <- (1 - weight) h + weight g(x; rows), then the gradients at the new h.

        Args:
            rows: the batch xi of g.
            exact: with the Hessian of the cross-entropy; else grad g counts as the identity.
            outer_rows: the batch zeta of f, where it is another.

        Returns:
            (d,) grad g(x; rows)^T grad_h f(h, y) and grad_y f(h, y). Valid until the next call.
        """
        features, labels = self._batch(rows)
        curved = exact and rho > 0
        mode: AbstractContextManager[object] = _LeanBatchNorm() if curved else nullcontext()
        with mode:
            logits = self.model.scores(features)  # (n,)
        errors = self.weight * (torch.sigmoid(logits) - labels) / len(labels)  # d CE / d logits
        descent = torch.autograd.grad(logits, self._weights, errors, create_graph=curved, allow_unused=True)
        reached = [i for i, gradient in enumerate(descent) if gradient is not None]

        h, p = self.inner.parameters, self.primal_dim
        h.lerp_(self.parameters, weight)
        for i in reached:
            self._estimates[i].add_(descent[i].detach(), alpha=-weight * rho)
        h[p:] = self.parameters[p:]  # y

        gradient = self._outer._gradient(*((features, labels) if outer_rows is None else self._batch(outer_rows)))
        if curved:
            q = [self._directions[i] for i in reached]
            products = torch.autograd.grad([descent[i] for i in reached], [self._weights[i] for i in reached], q)
            for direction, product in zip(q, products, strict=True):
                direction.add_(product, alpha=-rho)  # q - rho H q
        return gradient

    def _batch(self, rows: Indices) -> tuple[Tensor, Tensor]:
        selected = on_device(rows, self.device)
        return self.features[selected], self.labels[selected]


def _trained(model: FlatModel, vector: Tensor) -> list[Tensor]:
    """The parts of a flat vector (d,) that belong to trained parameters, in their shapes and without a copy."""
    parts = torch.split(vector, [math.prod(shape) for shape in model.parameter_shapes])
    of_parameters = zip(parts, model.parameter_shapes, model.module.parameters(), strict=True)
    return [part.view(shape) for part, shape, parameter in of_parameters if parameter.requires_grad]


@cache
def _keep_freed_memory() -> None:
    """Free one large block, by which glibc sets how much freed memory it keeps: up to 64 MiB.

    Else it hands the memory of each step's graph back to the system, and faulting it in again is a fifth of a step.
    """
    torch.empty(31 * 2**20, dtype=torch.uint8)  # just below the largest block that it adapts to


class _LeanBatchNorm(TorchFunctionMode):
    """Batch norms that train under this mode are `_BatchNorm`; nothing else changes."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Iterable[type], args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func is functional.batch_norm:
            return _batch_norm(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))


def _batch_norm(
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    channels = input.shape[1]
    if not training or input.numel() == channels:  # of one value a channel it says that there is no variance
        return functional.batch_norm(input, running_mean, running_var, weight, bias, training, momentum, eps)
    weight = input.new_ones(channels) if weight is None else weight
    bias = input.new_zeros(channels) if bias is None else bias
    output: Tensor = _BatchNorm.apply(input, weight, bias, running_mean, running_var, momentum, eps)  # type: ignore[no-untyped-call]
    return output


class _BatchNorm(torch.autograd.Function):
    """Batch norm in train mode, PyTorch's own kernels, whose gradient has a derivative in few passes.

    PyTorch composes that derivative of two dozen full-size operations, a quarter of an exact step.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor,
        running_mean: Tensor | None,
        running_var: Tensor | None,
        momentum: float,
        eps: float,
    ) -> Any:
        output, mean, scale = torch.ops.aten.native_batch_norm(
            x, weight, bias, running_mean, running_var, True, momentum, eps
        )
        ctx.save_for_backward(x, weight, mean, scale)
        return output

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> Any:
        return *_BatchNormGradient.apply(upstream, *ctx.saved_tensors), None, None, None, None  # type: ignore[no-untyped-call]


class _BatchNormGradient(torch.autograd.Function):
    """(g, x, w) -> (c P g, sum g z, sum g) for upstream gradients g and weights w, with the normalised input

        z = (x - mean) r,   r = 1 / std,   c = w r,   P v = v - mean(v) - z mean(v z),

    sums and means over the n values of a channel. For gradients (X, W, B) of these three its derivative is

        in g:  c P X + W z + B
        in w:  r S,   S = sum X P g
        in x:  r P(A g + D X) - c r S z / n,   A = W - c sum(X z) / n,   D = -c sum(g z) / n.
    """

    @staticmethod
    def forward(ctx: Any, g: Tensor, x: Tensor, weight: Tensor, mean: Tensor, r: Tensor) -> Any:
        to_x, to_weight, to_bias = _gradients(g, x, weight, mean, r, (True, True, True))
        ctx.save_for_backward(g, x, weight, mean, r, to_weight, to_bias)
        return to_x, to_weight, to_bias

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, X: Tensor, W: Tensor, B: Tensor) -> Any:
        g, x, weight, mean, r, gz, g_sum = ctx.saved_tensors
        n, c = x.numel() // x.shape[1], weight * r
        _, Xz, X_sum = _gradients(X, x, weight, mean, r, (False, True, True))
        _, Xg, _ = _gradients(X, g, weight, torch.zeros_like(mean), torch.ones_like(r), (False, True, False))
        S = Xg - (X_sum * g_sum + Xz * gz) / n
        A, D = W - c * Xz / n, -c * gz / n

        def combined(constant: Tensor, *terms: tuple[Tensor, Tensor]) -> Tensor:
            """A channel's constant plus terms of a factor a channel and a full-size tensor."""
            (factor, values), *others = terms
            shape = (1, -1, *[1] * (x.ndim - 2))
            total = torch.addcmul(constant.view(shape), values, factor.view(shape))
            for factor, values in others:
                total.addcmul_(values, factor.view(shape))
            return total

        # z = r x - r mean
        to_g = combined(B - c * X_sum / n - A * r * mean, (A * r, x), (c, X))
        z_factor = r * (A * gz + D * Xz + c * S) / n
        to_x = combined(
            z_factor * r * mean - r * (A * g_sum + D * X_sum) / n, (-z_factor * r, x), (r * A, g), (r * D, X)
        )
        return to_g, to_x, r * S, None, None


def _gradients(
    g: Tensor, x: Tensor, weight: Tensor, mean: Tensor, r: Tensor, wanted: tuple[bool, bool, bool]
) -> tuple[Tensor, Tensor, Tensor]:
    """What of (c P g, sum g z, sum g) is wanted."""
    found: tuple[Tensor, Tensor, Tensor] = torch.ops.aten.native_batch_norm_backward(
        g, x, weight, None, None, mean, r, True, 0.0, wanted
    )
    return found
