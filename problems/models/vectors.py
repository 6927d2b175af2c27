"""Flat vectors that hold arrays one after another, views of their parts, and means over clients, plain or weighted."""

import math
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate, pairwise
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

# names and shapes of the consecutive parts of a vector
Layout = Sequence[tuple[str, tuple[int, ...]]]
NUMPY_DTYPES: dict[torch.dtype, type[np.floating]] = {torch.float32: np.float32, torch.float64: np.float64}

AnyArray = NDArray[Any]
FloatArray = NDArray[np.floating]
Copy = Callable[[FloatArray], FloatArray]
Vector = TypeVar("Vector", torch.Tensor, AnyArray)
# (k,) float64; ones give the plain mean, bit for bit
Weights = NDArray[np.float64]


def spans(shapes: Iterable[tuple[int, ...]]) -> list[slice]:
    """Where arrays of these shapes lie in the flat vector that holds them one after another."""
    stops = accumulate((math.prod(shape) for shape in shapes), initial=0)
    return [slice(start, stop) for start, stop in pairwise(stops)]


def flatten(tensors: Iterable[torch.Tensor], dtype: torch.dtype, device: torch.device | str) -> torch.Tensor:
    """Copy the tensors one after another into a new vector, and make each a view of its part."""
    tensors = list(tensors)
    flat = torch.empty(sum(tensor.numel() for tensor in tensors), dtype=dtype, device=device)
    for tensor, view in zip(tensors, cut(flat, [tuple(tensor.shape) for tensor in tensors]), strict=True):
        tensor.grad = None
        view.copy_(tensor.detach())
        tensor.data = view
    return flat


def cut(flat: Vector, shapes: Iterable[tuple[int, ...]]) -> list[Vector]:
    """Views of the consecutive parts of a vector, each with its shape."""
    shapes = list(shapes)
    return [flat[span].reshape(shape) for span, shape in zip(spans(shapes), shapes, strict=True)]


def on_host(tensor: torch.Tensor) -> AnyArray:
    """The values on the host; for a tensor on the CPU, its own memory."""
    array: AnyArray = tensor.cpu().numpy()
    return array


def mean(values: Sequence[FloatArray], weights: Weights | None = None) -> FloatArray:
    """The mean of equal-shaped arrays, accumulated in float64 and rounded once."""
    averaged: FloatArray = exact_mean(values, weights).astype(values[0].dtype)
    return averaged


def exact_mean(values: Sequence[FloatArray], weights: Weights | None = None) -> NDArray[np.float64]:
    """The mean of k equal-shaped arrays in float64, plain or weighted by (k,) weights of mean 1."""
    total = np.zeros(values[0].shape, dtype=np.float64)
    for place, value in enumerate(values):
        total += value if weights is None else weights[place] * value.astype(np.float64)
    return total / len(values)


def pooled_moments(
    counts: NDArray[np.float64], means: NDArray[np.float64], variances: NDArray[np.float64]
) -> tuple[Any, Any]:
    """Mean and variance of N pooled samples, from their sizes (N,), means (N, ...) and variances (N, ...).

    m = sum n_i m_i / n and v = sum n_i (v_i + (m_i - m)^2) / n; both are 0 if all samples are empty.
    """
    weights = counts.reshape(-1, *[1] * (means.ndim - 1))
    total = max(counts.sum(), 1.0)
    mean = (weights * means).sum(axis=0) / total
    return mean, (weights * (variances + (means - mean) ** 2)).sum(axis=0) / total
