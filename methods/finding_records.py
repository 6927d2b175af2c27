"""One record for several findings: the findings' records joined field by field, and the lengths to split it again.

A record of this form has an optional field ``cuts`` (f, l): the length of the part of each of its f other fields that
belongs to each of l findings, -1 for a field that this finding's record does not have. A field ``momentum``, which
belongs to the network, is not joined: it is the same in all records. A record of `EqualParts` needs no lengths, so its
fields can be summed over clients.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from payloads.record import Payload, PayloadError, specs_of

_COMMON = ("cuts", "momentum")


@dataclass(frozen=True, eq=False)
class EqualParts(Payload):
    """A record in which the findings have equally long parts of some fields, along the last axis.

    Attributes:
        parted: The names of these fields. All other fields are common to all findings.
    """

    parted: ClassVar[tuple[str, ...]] = ()


def join_records(records: Sequence[Any]) -> Any:
    """Return the records of several findings as one record.

    Args:
        records: A record of each finding, all of the same kind. Records without ``cuts`` are common to all findings.

    Returns:
        The joined record; the first record if it is common to all findings, or None.
    """
    first = records[0]
    if isinstance(first, EqualParts):
        whole = {name: [getattr(record, name) for record in records] for name in first.parted}
        return replace(first, **{name: np.concatenate(parts, axis=-1) for name, parts in whole.items()})
    if first is None or "cuts" not in specs_of(type(first)):
        return first
    joined, cuts = dict[str, Any](), []
    for name in _fields_of(first):
        parts = [getattr(record, name) for record in records]
        known = [part for part in parts if part is not None]
        joined[name] = np.concatenate(known) if known else None
        cuts.append([-1 if part is None else len(part) for part in parts])
    return replace(first, **joined, cuts=np.array(cuts, np.int64))


def split_records(record: Any, count: int) -> list[Any]:
    """Return the record of each finding.

    Args:
        record: A joined record, a record that is common to all findings, or None.
        count: The number of findings.

    Raises:
        PayloadError: The record is not the joined record of this number of findings.
    """
    if isinstance(record, EqualParts):
        lengths = {name: getattr(record, name).shape[-1] for name in record.parted}
        if any(length % count for length in lengths.values()):
            raise PayloadError(f"{type(record).__name__}: lengths {lengths} of {count} findings, expected multiples")
        equal = {name: np.split(getattr(record, name), count, axis=-1) for name in record.parted}
        return [replace(record, **{name: each[index] for name, each in equal.items()}) for index in range(count)]
    if record is None or "cuts" not in specs_of(type(record)):
        return [record] * count
    names, kind = _fields_of(record), type(record).__name__
    if record.cuts is None or record.cuts.shape != (len(names), count) or (record.cuts < -1).any():
        got = "none" if record.cuts is None else f"{record.cuts.shape}"
        raise PayloadError(f"{kind}.cuts: got {got}, expected lengths of shape {(len(names), count)}")
    parts: list[dict[str, Any]] = [{} for _ in range(count)]
    for name, lengths in zip(names, record.cuts.tolist(), strict=True):
        value, ends = getattr(record, name), np.cumsum([max(length, 0) for length in lengths])
        if (0 if value is None else len(value)) != ends[-1]:
            raise PayloadError(f"{kind}.cuts: the lengths of {name} do not add up to its length")
        for part, length, end in zip(parts, lengths, ends.tolist(), strict=True):
            part[name] = None if length < 0 or value is None else value[end - length : end]
    split = [replace(record, **part, cuts=None) for part in parts]
    return [part.check(finite=False) for part in split]


def _fields_of(record: Any) -> list[str]:
    return [name for name in specs_of(type(record)) if name not in _COMMON]
