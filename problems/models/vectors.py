"""Flat vectors of concatenated arrays, views of their parts, and means over clients, plain or weighted."""

import math
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate, pairwise
from typing import Any, TypeVar

import numpy as np
import torch
from jaxtyping import Float, Float64
from numpy.typing import NDArray
from torch import Tensor

# names and shapes of the consecutive parts of a vector
Layout = Sequence[tuple[str, tuple[int, ...]]]
NUMPY_DTYPES: dict[torch.dtype, type[np.floating]] = {torch.float32: np.float32, torch.float64: np.float64}

AnyArray = NDArray[Any]
FloatArray = NDArray[np.floating]
Copy = Callable[[FloatArray], FloatArray]
Vector = TypeVar("Vector", Tensor, AnyArray)
# weights of N clients; if all weights are 1, the mean equals the plain mean bit for bit
Weights = Float64[np.ndarray, "N"]
# number of values in a block that stays in the processor's cache while the clients' values are added to it
_IN_CACHE = 2**16
# number of values of an array for which the time of a NumPy call matters more than the copy of the array
_SMALL = 2**10


def spans(shapes: Iterable[tuple[int, ...]]) -> list[slice]:
    """Return the slice of each array in the flat vector that concatenates arrays of these shapes."""
    stops = accumulate((math.prod(shape) for shape in shapes), initial=0)
    return [slice(start, stop) for start, stop in pairwise(stops)]


def flatten(tensors: Iterable[Tensor], dtype: torch.dtype, device: torch.device | str) -> Float[Tensor, "d"]:
    """Copy tensors one after another into a new vector, and make each tensor a view of its part.

    Args:
        tensors: Tensors of any shapes; they lose their gradients.
        dtype: The type of the vector, and of the tensors from now on.
        device: The device of the vector, and of the tensors from now on.
    """
    tensors = list(tensors)
    flat = torch.empty(sum(tensor.numel() for tensor in tensors), dtype=dtype, device=device)
    for tensor, view in zip(tensors, cut(flat, [tuple(tensor.shape) for tensor in tensors]), strict=True):
        tensor.grad = None
        view.copy_(tensor.detach())
        tensor.data = view
    return flat


def cut(flat: Vector, shapes: Iterable[tuple[int, ...]]) -> list[Vector]:
    """Return views of the consecutive parts of a vector, each with its shape.

    Args:
        flat: (d,), with at least as many entries as the shapes have together.
        shapes: The shapes of the parts, in their order.
    """
    shapes = list(shapes)
    return [flat[span].reshape(shape) for span, shape in zip(spans(shapes), shapes, strict=True)]


def with_end(vector: Float[np.ndarray, "n"], source: Float[np.ndarray, "n"], count: int) -> Float[np.ndarray, "n"]:
    """Return a vector with the last entries of another vector.

    Args:
        vector: The vector.
        source: The source of the last entries.
        count: Their number.
    """
    return np.concatenate((vector[: len(vector) - count], source[len(source) - count :])) if count else vector


def bound_length(vector: Float[np.ndarray, "*shape"], max_length: float) -> Float[np.ndarray, "*shape"]:
    """Return a vector, shortened to a maximum length if it is longer.

    Args:
        vector: The vector, of any shape.
        max_length: The largest Euclidean length, above 0.
    """
    length = float(np.linalg.norm(vector.astype(np.float64)))
    return vector if length <= max_length else (vector * (max_length / length)).astype(vector.dtype)


def on_host(tensor: Tensor) -> AnyArray:
    """Return a tensor's values as an array in the host's memory, without a copy if the tensor is on the CPU."""
    array: AnyArray = tensor.cpu().numpy()
    return array


def mean(values: Sequence[Float[np.ndarray, "*shape"]], weights: Weights | None = None) -> Float[np.ndarray, "*shape"]:
    """Return the mean of the clients' arrays, accumulated in float64 and rounded once to the arrays' type.

    Args:
        values: The arrays, one for each client.
        weights: See `exact_mean`.
    """
    averaged: FloatArray = exact_mean(values, weights).astype(values[0].dtype)
    return averaged


def exact_mean(
    values: Sequence[Float[np.ndarray, "*shape"]], weights: Weights | None = None
) -> Float64[np.ndarray, "*shape"]:
    """Return the mean of the clients' arrays in float64.

    Args:
        values: The arrays, one for each client.
        weights: The clients' weights, with mean 1. None: the plain mean.

    Example:
        >>> exact_mean([np.array([1.0, 2.0]), np.array([3.0, 6.0])]).tolist()
        [2.0, 4.0]
    """
    if values[0].size <= _SMALL:  # one addition for each client would take several times as long
        rows = np.concatenate(values, axis=None).reshape(len(values), -1).astype(np.float64)
        if weights is not None:
            rows *= weights[:, np.newaxis]
        averaged: FloatArray = rows.sum(axis=0).reshape(values[0].shape) / len(values)  # adds the rows in their order
        return averaged
    total = np.zeros(values[0].shape, dtype=np.float64)
    flat, parts = total.reshape(-1), [value.reshape(-1) for value in values]
    for begin in range(0, flat.size, _IN_CACHE):
        block = slice(begin, begin + _IN_CACHE)
        for client, part in enumerate(parts):
            flat[block] += part[block] if weights is None else weights[client] * part[block].astype(np.float64)
    total /= len(values)
    return total
