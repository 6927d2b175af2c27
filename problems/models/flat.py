"""`FlatModel`: a torch module whose parameters, gradient and buffers are one contiguous vector each.

An update rule is then one line on `model.parameters` and a payload one array, while torch computes on views:

    weights = model.parameters                          # (d,)
    scores, pull = model.forward(weights, features)     # (batch,)
    pull(slopes(scores), into=weights, alpha=-learning_rate)

What travels is `[parameters]`, or `[parameters, buffers]` for a model with batch norm. Frozen parameters
(`requires_grad=False`) travel as well and have a zero gradient. Parameters that share one tensor count once,
under the first of their names. Buffers here are the persistent floating-point ones (running means and
variances). Integer buffers (batch norm's `num_batches_tracked`) do not travel: every `load` puts them back to
what the module came with.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import nn
from torch.autograd import Variable
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd

from problems.models.dense import Pullback, add_scaled, dense_network
from problems.models.zoo import PAGE, ModelError

Layout = tuple[tuple[str, tuple[int, ...]], ...]
NUMPY_DTYPES: dict[torch.dtype, type[np.floating]] = {torch.float32: np.float32, torch.float64: np.float64}

# Of predictions. On a CPU larger activations come fresh from the system every time, which halves the speed.
_CPU_BATCH, _DEVICE_BATCH = 128, 4096

AnyArray = npt.NDArray[Any]
FloatArray = npt.NDArray[np.floating]
Copy = Callable[[FloatArray], FloatArray]


@dataclass(frozen=True)
class _Slot:
    """Where a named array lies in its flat vector."""

    vector: int  # 0 for the parameters, 1 for the buffers
    start: int
    shape: tuple[int, ...]

    @property
    def stop(self) -> int:
        return self.start + math.prod(self.shape)


class FlatModel:
    """A module seen as flat vectors. It takes the module over: moves it, casts it, sets train or eval mode.

    Parameters
    ----------
    module
        Maps `(batch, *input_shape)` to raw logits `(batch,)`, as `problems.models.build_model` makes it.
    dtype
        `torch.float32` or `torch.float64`.
    device
        Where the vectors live.

    Attributes
    ----------
    parameters, gradient
        `(d,)`: change them in place only. Autograd does not see such a change, so make none between `scores`
        and the `vjp` of these scores.
    buffers
        `(b,)`, b may be 0.
    frozen
        The parts `(start, stop)` of `parameters` that are not trained.
    stochastic
        Whether a forward pass may draw random numbers, as dropout does.
    parameter_names, parameter_shapes, buffer_names, buffer_shapes
        In the order of the vectors.
    layout
        Names and shapes of the parts of `parameters`, frozen ones as one-dimensional, like the biases that penalties
        spare.

    Raises
    ------
    ModelError
        A module with no parameters, with parameters that are not floating point, or with a batch norm of
        `momentum=None`, whose average needs a count that does not travel.
    ValueError
        Another dtype.
    """

    def __init__(
        self, module: nn.Module, *, dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu"
    ) -> None:
        if dtype not in NUMPY_DTYPES:
            raise ValueError(f"dtype must be torch.float32 or torch.float64, got {dtype}")
        _check_module(module)
        self.module = module.to(device=device, dtype=dtype)
        self.dtype = dtype
        persistent: dict[str, torch.Tensor] = {
            name: value for name, value in module.state_dict(keep_vars=True).items() if isinstance(value, torch.Tensor)
        }
        parameters = dict(module.named_parameters())  # a tensor with two names comes once
        buffers = {
            name: value for name, value in module.named_buffers() if name in persistent and value.is_floating_point()
        }
        self.parameter_names = tuple(parameters)
        self.parameter_shapes = tuple(tuple(value.shape) for value in parameters.values())
        self.layout: Layout = tuple(
            (name, shape if value.requires_grad else (value.numel(),))
            for (name, value), shape in zip(parameters.items(), self.parameter_shapes, strict=True)
        )
        self.buffer_names = tuple(buffers)
        self.buffer_shapes = tuple(tuple(value.shape) for value in buffers.values())

        self.parameters = _flatten(parameters.values(), dtype, device)  # (d,)
        self.gradient = torch.zeros_like(self.parameters)  # (d,)
        self.buffers = _flatten(buffers.values(), dtype, device)  # (b,)
        self.dim = self.parameters.numel()
        self.num_buffers = self.buffers.numel()
        self.device = self.parameters.device

        gradients = _views(self.gradient, self.parameter_shapes)
        self._trained = [
            (parameter, gradient)
            for parameter, gradient in zip(parameters.values(), gradients, strict=True)
            if parameter.requires_grad
        ]
        self._bind_gradient()
        stops = list(accumulate((math.prod(shape) for shape in self.parameter_shapes), initial=0))
        self.frozen = tuple(
            ends
            for ends, parameter in zip(pairwise(stops), parameters.values(), strict=True)
            if not parameter.requires_grad
        )
        self._dense = dense_network(module)
        self._members = list(parameters.values())
        # The vector whose parts the module's parameters are at present.
        self._seen = self.parameters

        slots: dict[int, _Slot] = {}  # by the tensor's identity, for tensors with several names
        members: list[list[torch.Tensor]] = [list(parameters.values()), list(buffers.values())]
        for vector, tensors in enumerate(members):
            start = 0
            for tensor in tensors:
                slots[id(tensor)] = _Slot(vector, start, tuple(tensor.shape))
                start += tensor.numel()
        self._slots = {name: slots[id(value)] for name, value in persistent.items() if id(value) in slots}
        self.stochastic = any(_may_draw(child) for child in module.modules())
        # Where `load` writes: the vectors themselves, or pinned memory from which a device copies by itself.
        vectors = (self.parameters, self.buffers)
        pinned = self.device.type == "cuda"
        self._hosts = [torch.empty(v.shape, dtype=dtype, pin_memory=True) if pinned else v for v in vectors]
        self._host_arrays = [host.numpy() for host in self._hosts]
        # Found finite before, and unchangeable: the clients of a round that share a process are sent the same bytes.
        self._finite: dict[str, FloatArray] = {}
        self._fixed = {name: (value, value.clone()) for name, value in persistent.items() if id(value) not in slots}

    def load(self, arrays: Sequence[FloatArray]) -> None:
        """Copy `[parameters]` (`[parameters, buffers]` if there are buffers) into the vectors, in place.

        Arrays are `(d,)` and `(b,)`, of any float dtype. Nothing is changed when one of them is refused.

        Raises
        ------
        ValueError
            Wrong count, shape or kind of dtype, or a value that is not finite in the model's dtype.
        """
        staged = self._checked(arrays)
        vectors = (self.parameters, self.buffers)
        for vector, host, written, array in zip(vectors, self._hosts, self._host_arrays, staged, strict=False):
            np.copyto(written, array)
            if host is not vector:
                vector.copy_(host, non_blocking=True)
        if self._fixed:
            with torch.no_grad():
                for buffer, initial in self._fixed.values():
                    buffer.copy_(initial)

    def arrays(self, copy: Copy = np.array) -> list[FloatArray]:
        """Return independent copies: `[parameters]`, and `buffers` after it if there are any.

        Parameters
        ----------
        copy
            What copies an array, where the model's own memory would be returned otherwise.

        Raises
        ------
        ModelError
            A module that replaced one of its buffers in `forward` instead of changing it in place: the vector
            then misses it.
        """
        if self.num_buffers == 0:
            return [copy(self.point())]
        buffers = dict(self.module.named_buffers())
        for name, view in zip(self.buffer_names, _views(self.buffers, self.buffer_shapes), strict=True):
            if buffers[name].data_ptr() != view.data_ptr():
                raise ModelError(
                    "model",
                    got=f"another tensor for its buffer '{name}'",
                    allowed="the same tensor all the time",
                    hint="change buffers in place, as with copy_()",
                )
        return [copy(self.point()), copy(_on_host(self.buffers))]

    def point(self) -> FloatArray:
        """Return the parameters `(d,)`; on a CPU their own memory, to be read before it changes."""
        return self._host_arrays[0] if self.device.type == "cpu" else _on_host(self.parameters)

    def scores(self, features: torch.Tensor, weights: torch.Tensor | None = None) -> torch.Tensor:
        """Score features `(batch, *input_shape)` in train mode: raw logits `(batch,)` with their graph.

        Features are cast to the model's dtype and device. Batch norm updates its running statistics. The weights
        `(d,)` are the model's own where none are given.
        """
        self._show(self.parameters if weights is None else weights)
        if not self.module.training:  # walks over all modules
            self.module.train()
        scores: torch.Tensor = self.module(features.to(self.device, self.dtype))
        return scores

    def forward(self, weights: torch.Tensor, features: torch.Tensor) -> tuple[torch.Tensor, Pullback]:
        """Score features `(batch, *input_shape)` in train mode under any weights `(d,)`; as `torch.func.vjp`.

        Returns
        -------
        scores
            `(batch,)`, without a graph.
        pull
            `pull(slopes)`, for slopes `(batch,)`, is `sum_i slopes_i * grad scores_i`, `(d,)`: `self.gradient` itself,
            overwritten by the next call. `pull(slopes, into=vector, alpha=alpha)` adds alpha times that to a vector
            `(d,)` in place, which may be the weights. It is called once, and before anything changes the weights.
        """
        if self._dense is not None:
            rows = features if features.ndim == 2 else features.flatten(1)
            if rows.dtype != self.dtype or rows.device != self.device:
                rows = rows.to(self.device, self.dtype)
            return self._dense.forward(weights, rows, self.gradient)
        scores = self.scores(features, weights)

        def pull(slopes: torch.Tensor, into: torch.Tensor | None = None, alpha: float = 1.0) -> torch.Tensor:
            return add_scaled(self.vjp(scores, slopes), into, alpha)

        return scores.detach(), pull

    def predict(self, features: torch.Tensor, batch_size: int | None = None) -> torch.Tensor:
        """Score features `(n, *input_shape)` in eval mode, in batches: raw logits `(n,)` without a graph."""
        if batch_size is None:
            batch_size = _CPU_BATCH if self.device.type == "cpu" else _DEVICE_BATCH
        self._show(self.parameters)
        if self.module.training:
            self.module.eval()
        # Made outside inference mode, so that the result may take part in a graph later.
        predictions = torch.empty(len(features), dtype=self.dtype, device=self.device)
        with torch.inference_mode():
            for start in range(0, len(features), batch_size):
                batch = features[start : start + batch_size].to(self.device, self.dtype)
                predictions[start : start + batch_size] = self.module(batch)
        return predictions

    def vjp(self, scores: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        """Return `sum_i weights_i * grad scores_i`, `(d,)`, for scores and weights `(batch,)`.

        This is `self.gradient` itself, overwritten by the next call. The graph of `scores` is freed.
        """
        self.gradient.zero_()
        self._bind_gradient()
        # torch.autograd.backward first compares the shapes as symbols, which takes a fifth of a small network's step
        Variable._execution_engine.run_backward(
            (scores,), (weights,), False, False, (), allow_unreachable=True, accumulate_grad=True
        )
        return self.gradient

    def named(self, arrays: Sequence[FloatArray]) -> dict[str, AnyArray]:
        """Cut flat arrays, as `arrays` returns them, into the entries of the module's `state_dict`.

        The current values are neither read nor changed; integer buffers are those the module came with.

        Raises
        ------
        ValueError
            As `load`.
        """
        vectors = self._checked(arrays)
        named: dict[str, AnyArray] = {
            name: vectors[slot.vector][slot.start : slot.stop].reshape(slot.shape).copy()
            for name, slot in self._slots.items()
        }
        return named | {name: np.array(_on_host(initial)) for name, (_, initial) in self._fixed.items()}

    def state_dict(self) -> dict[str, AnyArray]:
        """Return the current values under the names of the module's `state_dict`, for the model file."""
        return self.named(self.arrays())

    def load_named(self, arrays: Mapping[str, AnyArray]) -> None:
        """Load what `named` or `state_dict` returned. Integer buffers may be there and are not read.

        Raises
        ------
        ValueError
            Names missing or unknown, two values for one shared tensor, a wrong shape, and as `load`.
        """
        missing = sorted(self._slots.keys() - arrays.keys())
        unknown = sorted(arrays.keys() - self._slots.keys() - self._fixed.keys())
        if missing or unknown:
            raise ValueError(f"the names do not fit the model: missing {missing}, unknown {unknown}")
        pieces: dict[_Slot, FloatArray] = {}
        for name, slot in self._slots.items():
            piece = _check_array(arrays[name], slot.shape, f"'{name}'")
            if slot in pieces and not np.array_equal(pieces[slot], piece):
                raise ValueError(f"'{name}' shares its tensor with another name, but the two values differ")
            pieces.setdefault(slot, piece)
        vectors = [
            np.empty(self.dim, NUMPY_DTYPES[self.dtype]),
            np.empty(self.num_buffers, NUMPY_DTYPES[self.dtype]),
        ]
        with np.errstate(over="ignore"):  # an overflow becomes infinite and is refused by load
            for slot, piece in pieces.items():
                vectors[slot.vector][slot.start : slot.stop] = piece.reshape(-1)
        self.load(vectors if self.num_buffers else vectors[:1])

    def _show(self, weights: torch.Tensor) -> None:
        """Make the module's parameters parts of a vector of weights."""
        if weights is self._seen:
            return
        for parameter, view in zip(self._members, _views(weights, self.parameter_shapes), strict=True):
            parameter.data = view
        self._seen = weights

    def _bind_gradient(self) -> None:
        """Make every `.grad` a view of `gradient`, into which autograd then adds.

        Repeated before each backward pass: a `module.zero_grad()` from outside drops the views, and autograd
        would fill tensors of its own.
        """
        for parameter, gradient in self._trained:
            if parameter.grad is not gradient:
                parameter.grad = gradient

    def _checked(self, arrays: Sequence[FloatArray]) -> list[FloatArray]:
        """Return flat arrays in the model's dtype, copied only to change it, or raise ValueError."""
        expected = {"parameters": self.dim} | ({"buffers": self.num_buffers} if self.num_buffers else {})
        if len(arrays) != len(expected):
            raise ValueError(f"expected {len(expected)} arrays, [{', '.join(expected)}], got {len(arrays)}")
        staged = []
        for (name, size), array in zip(expected.items(), arrays, strict=True):
            value = _check_array(array, (size,), name)
            if value.dtype != NUMPY_DTYPES[self.dtype]:
                with np.errstate(over="ignore"):  # an overflow becomes infinite and is refused below
                    value = value.astype(NUMPY_DTYPES[self.dtype])
            if not _same_place(value, self._finite.get(name)):
                infinite = value.size - int(np.count_nonzero(np.isfinite(value)))
                if infinite:
                    raise ValueError(f"{name}: expected finite values, got {infinite} of {size} that are not")
                if _shows_bytes(value):
                    self._finite[name] = value
            staged.append(value)
        return staged


def _may_draw(module: nn.Module) -> bool:
    """Whether a forward pass may draw random numbers: dropout does, a foreign module may."""
    home = type(module).__module__
    return isinstance(module, _DropoutNd) or not home.startswith(("torch.nn.", "problems.models.", "monai."))


def _check_module(module: nn.Module) -> None:
    """Raise ModelError for a module that flat vectors cannot carry."""
    if not any(True for _ in module.parameters()):
        raise ModelError(
            "model",
            got=f"{type(module).__name__}, which has no parameters to train",
            allowed="one at least",
            hint=f"see {PAGE}",
        )
    for name, parameter in module.named_parameters():
        if not parameter.is_floating_point():
            raise ModelError(
                "model", got=f"parameter '{name}' of {parameter.dtype}", allowed="floating point", hint=f"see {PAGE}"
            )
    for name, child in module.named_modules():
        if isinstance(child, _BatchNorm) and child.track_running_stats and child.momentum is None:
            raise ModelError(
                "model",
                got=f"batch norm '{name}' with momentum=None",
                allowed="a number, since a cumulative average needs its count of batches, and counts do not travel",
                hint="give it one, such as momentum=0.1",
            )


def _shows_bytes(array: FloatArray) -> bool:
    """Whether an array's values lie in an object of bytes, where nobody can change them."""
    below: object = array
    while isinstance(below, np.ndarray):
        below = below.base
    return isinstance(below, bytes)


def _same_place(one: FloatArray, other: FloatArray | None) -> bool:
    return other is not None and _address(one) == _address(other) and one.strides == other.strides


def _address(array: FloatArray) -> int:
    address: int = array.__array_interface__["data"][0]  # .ctypes.data makes an object in Python
    return address


def _check_array(array: AnyArray, shape: tuple[int, ...], name: str) -> FloatArray:
    """Return `array` if it is a float array of `shape`, or raise ValueError."""
    if not isinstance(array, np.ndarray):
        raise ValueError(f"{name}: expected a NumPy array, got {type(array).__name__}")
    if array.dtype.kind != "f":
        raise ValueError(f"{name}: expected a float dtype, got {array.dtype}")
    if array.shape != shape:
        raise ValueError(f"{name}: expected shape {shape}, got {array.shape}")
    return cast(FloatArray, array)


def _flatten(tensors: Iterable[torch.Tensor], dtype: torch.dtype, device: torch.device | str) -> torch.Tensor:
    """Copy the tensors one after another into a new vector, and make each a view of its part."""
    tensors = list(tensors)
    flat = torch.empty(sum(tensor.numel() for tensor in tensors), dtype=dtype, device=device)
    views = _views(flat, [tuple(tensor.shape) for tensor in tensors])
    for tensor, view in zip(tensors, views, strict=True):
        tensor.grad = None
        view.copy_(tensor.detach())
        tensor.data = view
    return flat


def _views(flat: torch.Tensor, shapes: Sequence[tuple[int, ...]]) -> list[torch.Tensor]:
    """Cut a vector into consecutive views of the given shapes."""
    stops = list(accumulate((math.prod(shape) for shape in shapes), initial=0))
    return [flat[start:stop].view(shape) for (start, stop), shape in zip(pairwise(stops), shapes, strict=True)]


def _on_host(tensor: torch.Tensor) -> AnyArray:
    """Return the values on the host: the tensor's own memory where that is there."""
    array: AnyArray = tensor.detach().cpu().numpy()
    return array
