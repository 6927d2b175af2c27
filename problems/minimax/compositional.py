"""Compositional deep AUC maximisation (Zhang, Zhang, Yang, Souvenir, Gao, "Federated Compositional Deep AUC
Maximization", NeurIPS 2023, equations (1)-(3); Yuan, Guo, Chawla, Yang, "Compositional Training for End-to-End Deep
AUC Maximization", ICLR 2022), over any model and data set.

x = (w, w1, w2) and y = w3; f is the saddle function of `problems.minimax.auc`, with a = w1, b = w2, lambda = w3, and

    g(x; rows) = (w - rho grad CE(w; rows), w1, w2),    grad g(x; rows)^T q = q - rho H_CE(w; rows) q  (on w).

CE is the mean cross-entropy of the network's raw outputs over the batch, also if f uses another `score`. It is
multiplied by omega_i like the terms of f_i, so the plain mean of g_i over the sites is g of all samples.
"""

from collections.abc import Callable, Iterable
from functools import cache
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from problems.minimax.auc import AUCOracle
from problems.models.flat import FlatModel
from problems.objectives.scores import SCORES, Score

COMPOSITIONAL_AUC = "compositional-auc"
# q -> grad g^T q
Pull = Callable[[Float[Tensor, "*stack d"]], Float[Tensor, "*stack d"]]


class CompositionalOracle(AUCOracle):
    """The oracle of f(g(x), y), with two networks that have their own batch-norm statistics.

    The network ``model`` is at the point (x, y). The network ``inner``, another `FlatModel` of a `SaddleNetwork`, is at
    (h, y), where h estimates g(x). The methods inherited from `AUCOracle`, such as `gradient`, compute f at (x, y),
    without g.
    """

    def __init__(
        self,
        model: FlatModel,
        inner: FlatModel,
        features: Float[Tensor, "n *shape"],
        labels: Float[Tensor, "n *findings"],
        *,
        score: Score = SCORES["logit"],
    ) -> None:
        super().__init__(model, features, labels, score=score)
        self.inner = inner
        # the trained parameters' tensors, and their slices of a flat vector
        self._weights = [weight for weight in model.module.parameters() if weight.requires_grad]
        self._parts = list(zip(model.spans, model.parameter_shapes, strict=True))
        if model.device.type == "cpu":
            _keep_freed_memory()

    def load_inner(
        self, h: Float[np.ndarray, "p"] | None, buffers: Float[np.ndarray, "buffers"] | None
    ) -> Float[Tensor, "d"]:
        """Set the point of the second network.

        Args:
            h: h without y. None: h and the statistics become x and the statistics of ``model``.
            buffers: The batch-norm statistics at h. None: the network has none.

        Returns:
            The point (h, y).
        """
        if h is None:
            self.inner.load(self.model.arrays())
        else:
            point = np.append(h, self.parameters[self.primal_dim :].cpu().numpy().astype(h.dtype))
            self.inner.load([point] if buffers is None else [point, buffers])
            frozen = len(self.model.statistics)  # the first of the frozen entries
            self.inner.buffers[frozen:] = self.model.buffers[frozen:]
        return self.inner.parameters

    def inner_buffers(self) -> Float[np.ndarray, "buffers"] | None:
        """Return a copy of the batch-norm statistics at h. None: the network has no batch norm."""
        return self.inner.arrays()[1] if self.inner.num_buffers else None

    def descend(
        self, z: Float[Tensor, "d"], rows: Int64[np.ndarray, "b"], rho: float, *, exact: bool = True
    ) -> tuple[Float[Tensor, "d"], Pull]:
        """Compute g, and the function that pulls a gradient back through g.

        Args:
            z: The point (x, y).
            rows: The samples' row numbers.
            rho: The step size of g.
            exact: Whether to use the Hessian of the cross-entropy. If not, grad g is replaced by the identity.

        Returns:
            The point (g(x; rows), y), and a function that turns q into grad g(x; rows)^T q in place and returns q. Call
            this function once, before z changes. Other points may be descended from in between.
        """
        features, labels = self._batch(rows)
        if not (exact and rho > 0):
            logits, pull = self.model.forward(z, features)  # (n,)
            return torch.sub(z, pull(self._errors(logits, labels)), alpha=rho), lambda q: q
        with _LeanBatchNorm():
            logits = self.model.scores(features, z)
        errors = self._errors(logits, labels)
        gradients = torch.autograd.grad(logits, self._weights, errors, create_graph=True, allow_unused=True)
        used = [i for i, gradient in enumerate(gradients) if gradient is not None]
        weights, descents = [self._weights[i] for i in used], [gradients[i] for i in used]
        parts = [self._parts[i] for i in used]
        point = z.clone()
        for (span, shape), descent in zip(parts, descents, strict=True):
            point[span].view(shape).sub_(descent.detach(), alpha=rho)

        def pull_back(q: Tensor) -> Tensor:
            self.model.show(z)
            directions = [q[span].view(shape) for span, shape in parts]
            products = torch.autograd.grad(descents, weights, directions)
            for direction, product in zip(directions, products, strict=True):
                direction.add_(product, alpha=-rho)  # q - rho H q
            return q

        return point, pull_back

    def outer_gradient(self, h: Float[Tensor, "d"], rows: Int64[np.ndarray, "b"]) -> Float[Tensor, "d"]:
        """Return the gradients of f(h, y; rows) in h and in y.

        Args:
            h: The point (h, y) of ``inner``.
            rows: The samples' row numbers.

        Returns:
            A tensor that is valid until the next call.
        """
        return self._gradient(self.inner, h, *self._batch(rows))

    def _errors(
        self, logits: Float[Tensor, "*stack n"], labels: Float[Tensor, "*stack n"]
    ) -> Float[Tensor, "*stack n"]:
        """Return the derivatives of CE in the logits."""
        errors: Tensor = self.weight * (torch.sigmoid(logits) - labels) / labels.shape[-1]
        return errors


@cache
def _keep_freed_memory() -> None:
    """Free one large block, which makes glibc keep up to 64 MiB of freed memory.

    Otherwise glibc returns the memory of each step's graph to the system. Page faults would then take a fifth of each
    step's time.
    """
    torch.empty(31 * 2**20, dtype=torch.uint8)  # just below the largest block to which glibc adapts


class _LeanBatchNorm(TorchFunctionMode):
    """A context in which batch norm layers in train mode use `_BatchNorm`."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Iterable[type], args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func is functional.batch_norm:
            return _batch_norm(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))


def _batch_norm(
    input: Float[Tensor, "b channels *shape"],
    running_mean: Float[Tensor, "channels"] | None,
    running_var: Float[Tensor, "channels"] | None,
    weight: Float[Tensor, "channels"] | None = None,
    bias: Float[Tensor, "channels"] | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Float[Tensor, "b channels *shape"]:
    channels = input.shape[1]
    if not training or input.numel() == channels:  # PyTorch raises for one value a channel
        return functional.batch_norm(input, running_mean, running_var, weight, bias, training, momentum, eps)
    weight = input.new_ones(channels) if weight is None else weight
    bias = input.new_zeros(channels) if bias is None else bias
    output: Tensor = _BatchNorm.apply(input, weight, bias, running_mean, running_var, momentum, eps)  # type: ignore[no-untyped-call]
    return output


class _BatchNorm(torch.autograd.Function):
    """Batch norm in train mode by PyTorch's own kernels, with a faster second derivative.

    PyTorch's second derivative consists of two dozen full-size operations, which take a quarter of an exact step.
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
    """The gradient of `_BatchNorm`: (g, x, w) -> (c P g, sum g z, sum g).

    g are the upstream gradients, w the layer's weights, and z the normalised input:

        z = (x - mean) r,   r = 1 / std,   c = w r,   P v = v - mean(v) - z mean(v z),

    with sums and means over the n values of a channel. For upstream gradients (X, W, B) of these three outputs, the
    gradients of this function are

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

        def combine(constant: Tensor, *terms: tuple[Tensor, Tensor]) -> Tensor:
            """Add terms to a constant for each channel. A term is a pair: a factor for each channel, and a tensor."""
            (factor, values), *further = terms
            shape = (1, -1, *[1] * (x.ndim - 2))
            total = torch.addcmul(constant.view(shape), values, factor.view(shape))
            for factor, values in further:
                total.addcmul_(values, factor.view(shape))
            return total

        # z = r x - r mean
        to_g = combine(B - c * X_sum / n - A * r * mean, (A * r, x), (c, X))
        z_factor = r * (A * gz + D * Xz + c * S) / n
        to_x = combine(
            z_factor * r * mean - r * (A * g_sum + D * X_sum) / n, (-z_factor * r, x), (r * A, g), (r * D, X)
        )
        return to_g, to_x, r * S, None, None


def _gradients(
    g: Float[Tensor, "b channels *shape"],
    x: Float[Tensor, "b channels *shape"],
    weight: Float[Tensor, "channels"],
    mean: Float[Tensor, "channels"],
    r: Float[Tensor, "channels"],
    wanted: tuple[bool, bool, bool],
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the wanted items of (c P g, sum g z, sum g), see `_BatchNormGradient`."""
    gradients: tuple[Tensor, Tensor, Tensor] = torch.ops.aten.native_batch_norm_backward(
        g, x, weight, None, None, mean, r, True, 0.0, wanted
    )
    return gradients
