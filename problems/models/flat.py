"""`FlatModel`: a torch module whose parameters, gradient and buffers are one contiguous vector each.

An update rule is then a line on `model.parameters`, a payload is an array, and torch computes on views:

    weights = model.parameters                          # (d,)
    scores, pull = model.forward(weights, features)     # (b,)
    pull(slopes(scores), into=weights, alpha=-learning_rate)

Messages contain `[parameters]`, or `[parameters, buffers]` for a model with batch norm or frozen parts. "Parameters"
are only the trained parameters. If they share a tensor, they count once, under the first of their names. "Buffers" are
the persistent floating-point buffers (running means and variances), followed by the frozen parameters, so no algorithm
moves these. Integer buffers (batch norm's `num_batches_tracked`) are not sent: every `load` resets them to their
initial values.

Batch norms in eval mode within a module in train mode are frozen: they stay in eval mode.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property, partial

import numpy as np
import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor, nn
from torch.autograd import Variable
from torch.func import functional_call, grad_and_value, vmap
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd
from torch.utils.checkpoint import checkpoint

from problems.models.dense import Pullback, add_scaled, dense_network
from problems.models.loss_scale import LossScale
from problems.models.vectors import NUMPY_DTYPES, AnyArray, Copy, FloatArray, cut, flatten, on_host, spans
from problems.models.zoo import ModelError, check_module

# Batch sizes of predictions. On a CPU, larger batches halve the speed, since their activations are reallocated.
_CPU_BATCH, _DEVICE_BATCH = 128, 4096
# Samples whose gradients are in memory at a time, if there is no closed form for their lengths.
_RECORDS = 32
# packages whose modules draw no random numbers, except dropout
_DRAW_NOTHING = ("torch.nn.", "problems.models.", "monai.", "torchvision.models.", "torchvision.ops.misc")


class FlatModel:
    """A module with flat vectors of its parameters, gradient and buffers.

    The object moves and casts the module, and sets train or eval mode, so do not use the module elsewhere.

    Args:
        module: A map from features `(b, *shape)` to raw logits `(b,)`, or `(b, outputs)` with several outputs, from
            `problems.models.build_model`.
        dtype: `torch.float32` or `torch.float64`.
        device: The device of the vectors.
        outputs: The number of logits of a sample.
        precision: The type of the layers' computations in train mode, by PyTorch's autocast. None: ``dtype``. float16
            has a `LossScale`, which restarts with each `load`.
        parts: The number of parts in which a batch is scored. With several parts, a backward pass computes one part's
            activations at a time, again, so only one part's activations are in memory.
        keeps_norms: Whether each client keeps its batch norms, see `clients.local_norms`.

    Attributes:
        parameters, gradient: The flat vectors. Change them only in place, and not between `scores` and the `vjp` of
            these scores, since autograd does not notice the change.
        buffers: The flat buffers. May be empty.
        statistics: The first part of `buffers`, which training changes. May be empty.
        num_frozen, frozen_names: The number and the names of the other entries of `buffers`, which nothing changes.
        parameter_names, parameter_shapes, spans: Each parameter's name, shape and slice of `parameters`.
        layout: The names and shapes of the parts of `parameters`.
        norm_names: The names of the trained batch norms' entries in the module's `state_dict`.
        stochastic: Whether a forward pass may draw random numbers, as dropout does.

    Raises:
        ModelError: The module has no trained parameters, parameters that are not floating point, or a batch norm with
            `momentum=None`, whose average needs a count that is not sent.
        ValueError: The dtype is neither float32 nor float64.

    Example:
        >>> from problems.models import build_model
        >>> model = FlatModel(build_model("linear", input_shape=(64,), seed=0))
        >>> model.parameters.shape, list(model.parameter_names)
        (torch.Size([65]), ['output.weight', 'output.bias'])
    """

    parameters: Float[Tensor, "d"]
    gradient: Float[Tensor, "d"]
    buffers: Float[Tensor, "buffers"]
    statistics: Float[Tensor, "statistics"]

    def __init__(
        self,
        module: nn.Module,
        *,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        outputs: int = 1,
        precision: torch.dtype | None = None,
        parts: int = 1,
        keeps_norms: bool = False,
    ) -> None:
        if dtype not in NUMPY_DTYPES:
            raise ValueError(f"dtype must be torch.float32 or torch.float64, got {dtype}")
        check_module(module)
        self.module = module.to(device=device, dtype=dtype)
        self.dtype, self.outputs, self.precision, self.parts = dtype, outputs, precision, parts
        self.keeps_norms = keeps_norms
        self.loss_scale = LossScale() if precision == torch.float16 else None
        self.stochastic = any(_may_draw(child) for child in module.modules())
        self.dense = dense_network(module) if outputs == 1 else None
        persistent: dict[str, Tensor] = {
            name: value for name, value in module.state_dict(keep_vars=True).items() if isinstance(value, Tensor)
        }
        tensors = dict(module.named_parameters())  # a tensor with two names occurs once
        parameters = {name: value for name, value in tensors.items() if value.requires_grad}
        buffers = {
            name: value for name, value in module.named_buffers() if name in persistent and value.is_floating_point()
        }
        self._still = _frozen_norms(module)
        norms = {f"{name}." for name, child in module.named_modules() if isinstance(child, _BatchNorm)}
        norms -= {f"{name}." for name, child in module.named_modules() if child in self._still}
        self.norm_names = frozenset(name for name in persistent if name.startswith(tuple(norms)))
        still = {id(value) for norm in self._still for value in norm.buffers()}
        statistics = {name: value for name, value in buffers.items() if id(value) not in still}
        others = {name: value for name, value in (tensors | buffers).items() if name not in parameters | statistics}
        self._members = list(parameters.values())
        self.parameter_names = tuple(parameters)
        self.parameter_shapes = tuple(tuple(value.shape) for value in self._members)
        self.spans = spans(self.parameter_shapes)
        self.layout = tuple(zip(self.parameter_names, self.parameter_shapes, strict=True))

        self.parameters = flatten(self._members, dtype, device)
        self.gradient = torch.zeros_like(self.parameters)
        self.buffers = flatten((*statistics.values(), *others.values()), dtype, device)
        self.num_frozen = sum(value.numel() for value in others.values())
        self.frozen_names = tuple(others)
        self.dim = self.parameters.numel()
        self.num_buffers = self.buffers.numel()
        self.statistics = self.buffers[: self.num_buffers - self.num_frozen]
        self.device = self.parameters.device
        # the vector of which the module's parameters are currently views
        self._seen = self.parameters
        gradients = cut(self.gradient, self.parameter_shapes)
        self._trained = list(zip(self._members, gradients, strict=True))
        self._bind_gradient()

        self._buffer_addresses = {name: value.data_ptr() for name, value in buffers.items()}
        self._shapes = [self.parameter_shapes, [tuple(value.shape) for value in (statistics | others).values()]]
        # The vector and the part of each tensor, by the tensor's identity, since a tensor may have several names.
        indices = {
            id(tensor): (vector, part)
            for vector, tensors in enumerate((parameters.values(), (statistics | others).values()))
            for part, tensor in enumerate(tensors)
        }
        self._indices = {name: indices[id(value)] for name, value in persistent.items() if id(value) in indices}
        self._fixed = {name: (value, value.clone()) for name, value in persistent.items() if id(value) not in indices}
        # The destination of `load`: the vectors themselves, or pinned memory that a GPU copies asynchronously.
        vectors, pinned = (self.parameters, self.buffers), self.device.type == "cuda"
        self._hosts = [torch.empty(v.shape, dtype=dtype, pin_memory=True) if pinned else v for v in vectors]
        # Immutable arrays already known to be finite: clients of a round that share a process receive the same bytes.
        self._finite: dict[str, FloatArray] = {}

    @cached_property
    def norm_entries(self) -> Int64[np.ndarray, "w"]:
        """The indices of the trained batch norms' entries in `parameters`."""
        parts = zip(self.parameter_names, self.spans, strict=True)
        indices = [np.arange(span.start, span.stop) for name, span in parts if name in self.norm_names]
        return np.concatenate([np.arange(0), *indices])

    def load(self, arrays: Sequence[FloatArray]) -> None:
        """Copy received arrays into the vectors, in place: `[parameters]`, or `[parameters, buffers]` with buffers.

        If an array is invalid, nothing changes.

        Args:
            arrays: Flat arrays of the vectors' lengths and of any float dtype.

        Raises:
            ValueError: The count, a shape or a kind of dtype is wrong, or a value is not finite in the model's dtype.
        """
        for vector, host, array in zip(
            (self.parameters, self.buffers), self._hosts, self._check_arrays(arrays), strict=False
        ):
            np.copyto(host.numpy(), array)
            if host is not vector:
                vector.copy_(host, non_blocking=True)
        if self.loss_scale is not None:
            self.loss_scale.restart()
        if self._fixed:
            with torch.no_grad():
                for buffer, initial in self._fixed.values():
                    buffer.copy_(initial)

    def arrays(self, copy: Copy = np.array) -> list[Float[np.ndarray, "_"]]:
        """Return copies of `[parameters]`, or of `[parameters, buffers]` if there are buffers.

        Args:
            copy: The function that makes the copies.

        Raises:
            ModelError: The module has replaced a buffer instead of changing it in place.
        """
        if self.num_buffers == 0:
            return [copy(on_host(self.parameters))]
        buffers = dict(self.module.named_buffers())
        for name, address in self._buffer_addresses.items():
            if buffers[name].data_ptr() != address:
                got, allowed = f"another tensor for its buffer '{name}'", "the same tensor all the time"
                raise ModelError("model", got=got, allowed=allowed, hint="change buffers in place, as with copy_()")
        return [copy(on_host(self.parameters)), copy(on_host(self.buffers))]

    def scores(
        self, features: Float[Tensor, "b *shape"], weights: Float[Tensor, "d"] | None = None
    ) -> Float[Tensor, "b *outputs"]:
        """Score features in train mode, with an autograd graph. Batch norm updates its running statistics.

        Args:
            features: Features on any device and of any float dtype.
            weights: The weights to use. None: the model's own weights.
        """
        weights = self.parameters if weights is None else weights
        self.show(weights)
        self._enter_train_mode()
        features = features.to(self.device, self.dtype)
        with torch.autocast(self.device.type, self.precision, enabled=self.precision is not None):
            if (parts := min(self.parts, len(features))) > 1:
                repeat = partial(
                    checkpoint, self.module, use_reentrant=False, context_fn=partial(_repeat, self, weights)
                )
                scores = torch.cat([repeat(chunk) for chunk in features.tensor_split(parts)])
            else:
                scores = self.module(features)
        return scores.to(self.dtype)

    def forward(
        self, weights: Float[Tensor, "d"], features: Float[Tensor, "b *shape"]
    ) -> tuple[Float[Tensor, "b *outputs"], Pullback]:
        """Score features in train mode under given weights, like `torch.func.vjp`.

        Args:
            weights: The weights to use instead of the model's own.
            features: Features on any device and of any float dtype.

        Returns:
            The scores, without a graph, and a function `pull`. Call it once, before the weights change. `pull(slopes)`
            returns the gradient of the sum of slopes `(b,)` times scores, see `vjp`. `pull(slopes, into=vector,
            alpha=alpha)` adds alpha times this gradient to a vector `(d,)` in place, which may be the weights.
        """
        if self.dense is not None:
            rows = features if features.ndim == 2 else features.flatten(1)
            if rows.dtype != self.dtype or rows.device != self.device:
                rows = rows.to(self.device, self.dtype)
            return self.dense.forward(weights, rows, self.gradient)
        scores = self.scores(features, weights)

        def pull(slopes: Tensor, into: Tensor | None = None, alpha: float = 1.0) -> Tensor:
            return add_scaled(self.vjp(scores, slopes), into, alpha)

        return scores.detach(), pull

    def forward_records(
        self, weights: Float[Tensor, "d"], features: Float[Tensor, "b *shape"]
    ) -> tuple[Float[Tensor, "b"], Float64[Tensor, "b"], Pullback]:
        """Score features like `forward`, and return the length of each sample's gradient, for differential privacy.

        Args:
            weights: The weights to use instead of the model's own.
            features: The samples' features. Not empty, and `check_records` must accept the model.

        Returns:
            The scores; the length of each score's gradient, not finite if an intermediate value is not; and `pull` as
            in `forward`, without the arguments ``into`` and ``alpha``.
        """
        features = features.to(self.device, self.dtype)
        if self.dense is not None:
            scores, pull = self.forward(weights, features)
            return scores, self.dense.record_lengths(weights, features.flatten(1)), pull
        self.show(weights)
        self._enter_train_mode()
        trained = {name: value.detach() for name, value in zip(self.parameter_names, self._members, strict=True)}

        def score(trained: dict[str, Tensor], sample: Tensor) -> Tensor:
            scores: Tensor = functional_call(self.module, trained, (sample.unsqueeze(0),))
            return scores.squeeze(0)

        each = vmap(grad_and_value(score), in_dims=(None, 0), chunk_size=_RECORDS)
        parts, scores = each(trained, features)
        gradients = self.gradient.new_zeros(len(features), self.dim)
        for name, span in zip(self.parameter_names, self.spans, strict=True):
            gradients[:, span] = parts[name].reshape(len(features), -1)

        def add_up(slopes: Tensor) -> Tensor:
            return torch.mv(gradients.t(), slopes, out=self.gradient)

        return scores, gradients.double().norm(dim=1), add_up

    def check_records(self) -> None:
        """Check that each sample's score depends only on that sample and the weights.

        Raises:
            ModelError: Samples of a batch affect each other (batch norm), or scores are random (dropout).
        """
        norms = [child for child in self.module.modules() if isinstance(child, _BatchNorm)]
        if self.stochastic or len(self.statistics) or len(norms) > len(self._still):
            got = f"{type(self.module).__name__}, whose scores in training are random or depend on the whole batch"
            allowed = "a network without dropout and batch norm, of PyTorch's or this project's layers"
            hint = "choose linear, mlp or a network with group norm, or set batch-norm to frozen"
            raise ModelError("model", got=got, allowed=allowed, hint=hint)

    def predict(self, features: Float[Tensor, "n *shape"]) -> Float[Tensor, "n *outputs"]:
        """Score features in eval mode, in batches and without a graph."""
        batch_size = _CPU_BATCH if self.device.type == "cpu" else _DEVICE_BATCH
        self.show(self.parameters)
        if self.module.training:
            self.module.eval()
        # created outside inference mode, so the caller can use the result in a graph
        shape = (len(features),) if self.outputs == 1 else (len(features), self.outputs)
        predictions = torch.empty(shape, dtype=self.dtype, device=self.device)
        with torch.inference_mode():
            for start in range(0, len(features), batch_size):
                batch = features[start : start + batch_size].to(self.device, self.dtype)
                predictions[start : start + batch_size] = self.module(batch)
        return predictions

    def vjp(self, scores: Float[Tensor, "b *outputs"], weights: Float[Tensor, "b *outputs"]) -> Float[Tensor, "d"]:
        """Return `sum_i weights_i * grad scores_i`.

        Args:
            scores: The result of `scores`. Its graph is freed.
            weights: The factors of the scores, such as the slopes of a loss.

        Returns:
            `self.gradient` itself, overwritten by the next call.
        """
        if self.loss_scale is None:
            return self._pull_back(scores, weights)
        return self.loss_scale.unscale(lambda factor: self._pull_back(scores, weights * factor, again=True))

    def _pull_back(self, scores: Tensor, weights: Tensor, *, again: bool = False) -> Float[Tensor, "d"]:
        """Compute `vjp`.

        Args:
            scores: The scores.
            weights: Their factors.
            again: Whether to keep the graph for another call.
        """
        self.gradient.zero_()
        self._bind_gradient()
        # torch.autograd.backward first compares the shapes as symbols, which takes a fifth of a small network's step
        Variable._execution_engine.run_backward(
            (scores,), (weights,), again, False, (), allow_unreachable=True, accumulate_grad=True
        )
        return self.gradient

    def name_arrays(self, arrays: Sequence[FloatArray]) -> dict[str, AnyArray]:
        """Cut flat arrays from `arrays` into the entries of the module's `state_dict`.

        The model's own values are neither read nor changed.

        Raises:
            ValueError: See `load`.
        """
        parts = [cut(vector, shapes) for vector, shapes in zip(self._check_arrays(arrays), self._shapes, strict=False)]
        entries: dict[str, AnyArray] = {name: parts[vector][i].copy() for name, (vector, i) in self._indices.items()}
        return entries | {name: np.array(on_host(initial)) for name, (_, initial) in self._fixed.items()}

    def _enter_train_mode(self) -> None:
        if self.module.training:
            return
        self.module.train()  # walks over all modules
        for norm in self._still:
            norm.eval()

    def show(self, weights: Float[Tensor, "d"]) -> None:
        """Make the module's parameters views of a vector of weights."""
        if weights is self._seen:
            return
        for parameter, span in zip(self._members, self.spans, strict=True):
            parameter.data = weights[span].view(parameter.shape)
        self._seen = weights

    def _bind_gradient(self) -> None:
        """Make every `.grad` a view of `gradient`, to which autograd then adds.

        Called before each backward pass, since a call of `module.zero_grad()` removes the views.
        """
        for parameter, gradient in self._trained:
            if parameter.grad is not gradient:
                parameter.grad = gradient

    def _check_arrays(self, arrays: Sequence[FloatArray]) -> list[FloatArray]:
        """Check flat arrays, and return them in the model's dtype, copied only if their dtype differs.

        Raises:
            ValueError: See `load`.
        """
        expected = {"parameters": self.dim} | ({"buffers": self.num_buffers} if self.num_buffers else {})
        if len(arrays) != len(expected):
            raise ValueError(f"expected {len(expected)} arrays, [{', '.join(expected)}], got {len(arrays)}")
        staged = []
        for (name, size), array in zip(expected.items(), arrays, strict=True):
            if not isinstance(array, np.ndarray):
                raise ValueError(f"{name}: expected a NumPy array, got {type(array).__name__}")
            if array.dtype.kind != "f":
                raise ValueError(f"{name}: expected a float dtype, got {array.dtype}")
            if array.shape != (size,):
                raise ValueError(f"{name}: expected shape {(size,)}, got {array.shape}")
            with np.errstate(over="ignore"):  # an overflow becomes infinite and is refused below
                value = array.astype(NUMPY_DTYPES[self.dtype], copy=False)
            known = self._finite.get(name)
            if known is None or value.__array_interface__ != known.__array_interface__:
                if infinite := size - int(np.count_nonzero(np.isfinite(value))):
                    raise ValueError(f"{name}: expected finite values, got {infinite} of {size} that are not")
                if _shows_bytes(value):
                    self._finite[name] = value
            staged.append(value)
        return staged


class _Repetition:
    """The context of repetitions of a forward pass: the same weights and mode, and running statistics as before it."""

    def __init__(self, model: FlatModel, weights: Float[Tensor, "d"]) -> None:
        self.model, self.weights = model, weights

    def __enter__(self) -> None:
        self.model.show(self.weights)
        self.model._enter_train_mode()
        self.statistics = self.model.statistics.clone()

    def __exit__(self, *error: object) -> None:
        self.model.statistics.copy_(self.statistics)


def _repeat(model: FlatModel, weights: Float[Tensor, "d"]) -> tuple[AbstractContextManager[None], _Repetition]:
    """Return the contexts of a forward pass and of its repetitions, see `torch.utils.checkpoint`."""
    return nullcontext(), _Repetition(model, weights)


def _frozen_norms(module: nn.Module) -> list[_BatchNorm]:
    """Return the batch norms that stay in eval mode while the module trains."""
    norms = [child for child in module.modules() if isinstance(child, _BatchNorm)]
    return [norm for norm in norms if module.training and not norm.training]


def _may_draw(module: nn.Module) -> bool:
    """Return whether a forward pass may draw random numbers: always true for modules from unknown packages."""
    return isinstance(module, _DropoutNd | nn.RReLU) or not type(module).__module__.startswith(_DRAW_NOTHING)


def _shows_bytes(array: FloatArray) -> bool:
    """Return whether an array is a view of a `bytes` object, which is immutable."""
    below: object = array
    while isinstance(below, np.ndarray):
        below = below.base
    return isinstance(below, bytes)
