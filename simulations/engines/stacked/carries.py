"""Frozen records of many clients, stacked on a leading axis and separated again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields, is_dataclass
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor

T = TypeVar("T")


class Apart(tuple[Any, ...]):
    """Values that differ between clients and that no local step reads, such as a client's own NumPy arrays.

    Arithmetic with it raises TypeError, which reveals a step that reads it.
    """


class NotAlikeError(ValueError):
    """Records that cannot be stacked."""


def stack(carries: Sequence[T]) -> T:
    """Return the carry of all clients: stacked tensors (C, ...), and the values that all clients share.

    Raises:
        NotAlikeError: A field contains tensors of different shapes, or a tensor for some clients only; or a carry is
            neither a dataclass nor a tensor.
    """
    first, kind = carries[0], type(carries[0])
    if isinstance(first, Tensor):
        return join(list(carries))  # type: ignore[no-any-return]
    if not is_dataclass(first):
        raise NotAlikeError(f"{type(first).__name__} is neither a dataclass nor a tensor")
    return kind(**{field.name: join([getattr(c, field.name) for c in carries]) for field in fields(first)})


def unstack(carry: T, count: int) -> list[T]:
    """Return the carries of ``count`` clients, whose tensors are views of the stacked tensors (one GPU transfer)."""
    if isinstance(carry, Tensor):
        return list(split(carry, count))
    parts = {field.name: split(getattr(carry, field.name), count) for field in fields(carry)}  # type: ignore[arg-type]
    return [type(carry)(**{name: values[place] for name, values in parts.items()}) for place in range(count)]


def join(values: list[Any]) -> Any:
    """Return one value for all clients: stacked tensors, a shared value, or else `Apart`."""
    first = values[0]
    tensors = sum(isinstance(value, Tensor) for value in values)
    if tensors:
        if tensors < len(values) or any(value.shape != first.shape for value in values):
            raise NotAlikeError("tensors of different shapes, or for some clients only")
        block = first._base
        return block if _are_rows(values, block) else torch.stack(values)
    if isinstance(first, list):  # a history, which begins empty
        assert not any(values), "a history has entries before the first step"
        return []
    return first if all(_same(value, first) for value in values) else Apart(values)


def split(value: Any, count: int) -> Sequence[Any]:
    """Return the values of ``count`` clients; the inverse of `join`."""
    if isinstance(value, Tensor):
        return value.cpu().unbind()
    if isinstance(value, list):  # records of tensors, one for each step: each client gets one record for all steps
        columns = [None if some[0] is None else torch.cat(some, 1) for some in zip(*value, strict=True)]
        parts = [split(column, count) for column in columns]
        return [[type(value[0])(*(part[place] for part in parts))] for place in range(count)] if value else [[]] * count
    return value if isinstance(value, Apart) else [value] * count


def _are_rows(values: list[Tensor], block: Tensor | None) -> bool:
    """Return whether some tensors of one shape are all rows of a block, in their order."""
    if block is None or block.shape != (len(values), *values[0].shape) or not block.is_contiguous():
        return False
    begin, row = block.data_ptr(), block.stride(0) * block.element_size()
    return all(value._base is block and value.data_ptr() == begin + place * row for place, value in enumerate(values))


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, partial) and isinstance(other, partial):
        return (one.func, one.args, one.keywords) == (other.func, other.args, other.keywords)
    return one is other or (isinstance(one, bool | int | float | str | Callable) and one == other)
