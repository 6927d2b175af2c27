"""Flat vectors that hold arrays one after another, and views of their parts."""

from __future__ import annotations

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
