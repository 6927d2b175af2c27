"""Stacking of carries: the tensors of many clients' carries as one tensor with a first axis of clients, and back.

A carry is the frozen dataclass of values that a method passes from one local step to the next.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields, is_dataclass
from functools import partial
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from payloads.record import IntArray, take_row

T = TypeVar("T")


class Apart(tuple[Any, ...]):
    """One value for each client, for values that differ between clients and that local steps do not use.

    Such values are, for example, a client's own NumPy arrays. Arithmetic with this class raises TypeError, so a local
    step that uses such a value fails.
    """


class NotAlikeError(ValueError):
    """The error about clients that cannot be stacked, and therefore train one by one."""


def stack(carries: Sequence[T]) -> T:
    """Return one carry for all clients: stacked tensors (C, ...), and the values that all clients share.

    Raises:
        NotAlikeError: A field contains tensors of different shapes, or has a tensor only for some clients. Or a carry
            is neither a dataclass nor a tensor.
    """
    first, kind = carries[0], type(carries[0])
    if isinstance(first, Tensor):
        return join(list(carries))  # type: ignore[no-any-return]
    if not is_dataclass(first):
        raise NotAlikeError(f"{type(first).__name__} is neither a dataclass nor a tensor")
    return kind(**{field.name: join([getattr(c, field.name) for c in carries]) for field in fields(first)})


def unstack(carry: T, count: int) -> list[T]:
    """Return the carries of ``count`` clients; the inverse of `stack`. Their tensors are views of one CPU tensor."""
    if isinstance(carry, Tensor):
        return list(split(carry, count))
    parts = {field.name: split(getattr(carry, field.name), count) for field in fields(carry)}  # type: ignore[arg-type]
    return [type(carry)(**{name: values[client] for name, values in parts.items()}) for client in range(count)]


def join(values: list[Any]) -> Any:
    """Return one value for all clients: stacked tensors, a shared value, or else `Apart`."""
    first = values[0]
    tensors = sum(isinstance(value, Tensor) for value in values)
    if tensors:
        if tensors < len(values) or any(value.shape != first.shape for value in values):
            raise NotAlikeError("tensors of different shapes, or only for some clients")
        block = first._base
        return block if _are_rows(values, block) else torch.stack(values)
    if isinstance(first, list):  # a history of the steps, which is empty before the first step
        assert not any(values), "a history has entries before the first step"
        return []
    return first if all(_same(value, first) for value in values) else Apart(values)


def merge(carries: Sequence[T], places: Sequence[IntArray]) -> T:
    """Return one carry for all clients from stacked carries of some of them.

    Args:
        carries: The stacked carries.
        places: For each of them, the places of its clients among all.

    Raises:
        NotAlikeError: The carries differ in a value that has no axis of clients.
    """
    if len(carries) == 1:
        return carries[0]
    order = np.argsort(np.concatenate(places))
    merged: dict[str, Any] = {}
    for field in fields(carries[0]):  # type: ignore[arg-type]
        values = [getattr(carry, field.name) for carry in carries]
        if isinstance(values[0], Tensor):
            merged[field.name] = torch.cat(values)[torch.from_numpy(order)]
        elif isinstance(values[0], np.ndarray):
            merged[field.name] = np.concatenate(values)[order]
        else:
            merged[field.name] = join(values)
            if isinstance(merged[field.name], Apart):
                raise NotAlikeError(f"the carries differ in {field.name}")
    return type(carries[0])(**merged)


def stack_records(records: Sequence[Any]) -> Any:
    """Return one record of the clients' records, whose floats have a first axis of clients. None for records None.

    Raises:
        NotAlikeError: Floats have different shapes, or another value differs between the clients.
    """
    if records[0] is None:
        return None
    columns = {name: [getattr(record, name) for record in records] for name in records[0].arrays()}
    fields: dict[str, Any] = {}
    for name, values in columns.items():
        first = values[0]
        if any(value is None or value.shape != first.shape for value in values):
            raise NotAlikeError(f"the clients' records differ in the shape of {name}")
        if first.dtype.kind != "f" and any((value != first).any() for value in values):
            raise NotAlikeError(f"the clients' records differ in {name}")
        fields[name] = np.stack(values) if first.dtype.kind == "f" else first
    return type(records[0])(**fields)


def take_record(record: Any, row: int) -> Any:
    """Return a client's record from the record of all clients; the inverse of `stack_records`."""
    return None if record is None else type(record)(**take_row(record.arrays(), row))


def split(value: Any, count: int) -> Sequence[Any]:
    """Return the values of ``count`` clients; the inverse of `join`."""
    if isinstance(value, Tensor):
        return value.cpu().unbind()
    if isinstance(value, list):  # a history with a record of tensors for each step; each client gets one joined record
        columns = [None if steps[0] is None else torch.cat(steps, 1) for steps in zip(*value, strict=True)]
        parts = [split(column, count) for column in columns]
        if not value:
            return [[]] * count
        return [[type(value[0])(*(part[client] for part in parts))] for client in range(count)]
    return value if isinstance(value, Apart) else [value] * count


def _are_rows(values: list[Tensor], block: Tensor | None) -> bool:
    """Return whether tensors of one shape are the rows of a block, in their order, so no copy is needed."""
    if block is None or block.shape != (len(values), *values[0].shape) or not block.is_contiguous():
        return False
    begin, row = block.data_ptr(), block.stride(0) * block.element_size()
    return all(value._base is block and value.data_ptr() == begin + index * row for index, value in enumerate(values))


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, partial) and isinstance(b, partial):
        return (a.func, a.args, a.keywords) == (b.func, b.args, b.keywords)
    return a is b or (isinstance(a, bool | int | float | str | Callable) and a == b)
