"""`ImageTensor`: the features of a site whose images are read from their files when a batch needs them."""

import logging
import math
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, Self

import numpy as np
import torch
from jaxtyping import Float, Int64, Real
from torch import Tensor
from torch.utils._pytree import tree_map_only

from problems.data.image_rows import ImageRows
from problems.data.mapped import SLICE
from problems.sampling import on_device

_ATEN = torch.ops.aten
# operations that select rows, if their dimension is 0
_SELECTIONS = (_ATEN.slice.Tensor, _ATEN.select.int, _ATEN.index_select.default)

_log = logging.getLogger(__name__)


class ImageTensor(Tensor):
    """A tensor without memory: the rows that `read`, a slice or ``index_select`` return are read from their files.

    A selection by a tensor of indices is again an `ImageTensor`. All other operations read all rows, into a temporary
    file if they are large, so code that knows only tensors gets correct results.

    Attributes:
        rows: The rows.
    """

    rows: ImageRows

    @staticmethod
    def __new__(cls, rows: ImageRows, dtype: torch.dtype, device: torch.device | str) -> Self:
        """Make the tensor.

        Args:
            rows: The rows.
            dtype: The type of the numbers.
            device: The device of the selected rows.
        """
        made: Self = Tensor._make_wrapper_subclass(cls, rows.shape, dtype=dtype, device=torch.device(device))
        made.rows = rows
        return made

    def read(
        self, indices: Int64[np.ndarray, "b"], following: Int64[np.ndarray, "_"] | None = None
    ) -> Float[Tensor, "b *shape"]:
        """Return rows as an ordinary tensor.

        Args:
            indices: The indices of the rows.
            following: The indices of the rows that will be needed next. None: unknown.

        Raises:
            DataError: See `ImageRows.read`.
        """
        size = max(math.prod(self.shape[1:]) * self.element_size(), 1)
        step = max(SLICE // size, 1)
        with torch.inference_mode(False):  # so the result can be part of a graph, as rows in memory can
            pixels = torch.empty((len(indices), *self.shape[1:]), dtype=self.dtype, device=self.device)
            for start in range(0, len(indices), step):
                end = start + step
                after = indices[end : end + step] if end < len(indices) else following
                pixels[start:end] = torch.from_numpy(self.rows.read(indices[start:end], after))
        return pixels

    def read_ahead(self, indices: Int64[np.ndarray, "_"]) -> None:
        """Let threads read rows that will be needed soon.

        Args:
            indices: The indices of the rows, in the order of their use.
        """
        self.rows.store.read_ahead(self.rows.numbers[indices])

    def whole(self) -> Float[Tensor, "n *shape"]:
        """Return all rows as an ordinary tensor."""
        with torch.inference_mode(False):
            return torch.from_numpy(np.asarray(self.rows)).to(self.device, self.dtype)

    def numpy(self, *, force: bool = False) -> Any:
        """Return all rows as an array."""
        return self.whole().numpy(force=force)

    def __repr__(self, **options: Any) -> str:  # type: ignore[override]
        return f"ImageTensor(shape={tuple(self.shape)}, dtype={self.dtype}, device='{self.device}')"

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Return the result of an operation of PyTorch; see the class."""
        first, rest, options = args[0], args[1:], kwargs or {}
        if func is _ATEN.detach.default:
            return first
        if isinstance(first, ImageTensor) and not options:
            everyone = torch.arange(len(first))
            if func in _SELECTIONS and (not rest or rest[0] == 0):
                rest = tree_map_only(Tensor, Tensor.cpu, rest)
                chosen = func(everyone, *rest).numpy()
                if func is _ATEN.slice.Tensor and len(chosen):  # the next slice is probably the next to be read
                    after = int(chosen[-1]) + 1
                    return first.read(chosen, np.arange(after, min(after + len(chosen), len(first))))
                return first.read(chosen.reshape(-1)).reshape(*chosen.shape, *first.shape[1:])
            if func is _ATEN.index.Tensor and len(rest[0]) == 1:
                chosen = everyone[rest[0][0].cpu()]
                if chosen.dim() == 1:
                    return cls(first.rows[chosen.numpy()], first.dtype, first.device)
        _tell(str(func))
        with torch.inference_mode(False):
            return func(*tree_map_only(cls, cls.whole, tuple(args)), **tree_map_only(cls, cls.whole, dict(options)))


def read_rows(features: Float[Tensor, "n *shape"], indices: Int64[np.ndarray, "b"]) -> Float[Tensor, "b *shape"]:
    """Return some rows of a site's features as an ordinary tensor.

    Args:
        features: The features.
        indices: The indices of the rows.
    """
    if isinstance(features, ImageTensor):
        return features.read(indices)
    # features[rows] takes two to three times as long
    return features.index_select(0, on_device(indices, features.device))


def rows_of(features: Float[Tensor, "n *shape"]) -> Real[np.ndarray, "n *shape"] | ImageRows:
    """Return a site's features as samples have them: an array, or rows of images in files.

    Args:
        features: The features.
    """
    return features.rows if isinstance(features, ImageTensor) else features.cpu().numpy()


def read_all(features: Float[Tensor, "n *shape"]) -> Float[Tensor, "n *shape"]:
    """Return all rows of a site's features as an ordinary tensor.

    Args:
        features: The features.
    """
    return features.whole() if isinstance(features, ImageTensor) else features


@cache
def _tell(operation: str) -> None:
    _log.warning("all images of a site are read at once, since %s needs them", operation)
