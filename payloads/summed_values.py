"""The terms of a secure sum: a reply as a vector of ring elements, and the means that follow from the sum of vectors.

Instead of its model, a client sends the difference from the server's model, which is small. For a field with
``combined="mean"`` the sum is over values times the client's weight in (0, 1], and is divided by the sum of the
weights. If a client has no value of an optional field, the client adds zeros, and its weight does not count. A field
with ``combined="total"`` is a sum of integers.

The last element counts the clients that had to alter their values, for example to clip them. The server sees only the
sum of these counts. An error instead would reveal a fact about the values of a single client.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from payloads.record import FloatArray, IntArray, Payload, not_finite, specs_of
from payloads.secure_sum import MaskedValues
from privacy.ring import Ring

# the number of values that are encoded at once, so the temporary arrays fit into the processor's cache
_PIECE = 2**13
_MEAN, _WEIGHT, _TOTAL = "mean", "weight", "total"


def pack(
    model: Sequence[FloatArray],
    payload: Payload | None,
    ring: Ring,
    limit: float,
    weight: float,
    *,
    altered: bool = False,
) -> tuple[MaskedValues, int]:
    """Return a client's term of the sum, not yet masked.

    Values beyond the limit are clipped to it. If a value is not finite, all values become zeros.

    Args:
        model: The differences from the server's model. Empty if the reply has no model.
        payload: The client's payload, if the reply has one.
        ring: The ring of the sum.
        limit: The largest absolute value of a term.
        weight: The client's weight in a mean.
        altered: Whether the client has already altered values of its reply.

    Returns:
        The term, and the number of values that this function has altered.
    """
    parts, above = list(_parts_of(model, payload)), float(np.nextafter(limit, np.inf))
    changed = 0
    try:
        encoded = [_encode(kind, values, ring, above, weight) for kind, values in parts]
    except ValueError:
        parts, changed = clip(parts, limit, weight)
        encoded = [_encode(kind, values, ring, above, weight) for kind, values in parts]
    pieces = [piece for part in encoded for piece in part]
    elements = np.concatenate([*pieces, np.array([altered or changed > 0], ring.dtype)])
    lengths = np.array([*(values.size for _, values in parts), 1])
    return MaskedValues(elements=elements.view(f"int{ring.bits}"), lengths=lengths), changed


def clip(
    parts: Sequence[tuple[str, NDArray[Any]]], limit: float, weight: float
) -> tuple[list[tuple[str, NDArray[Any]]], int]:
    """Return parts whose products with a weight lie within +-limit, and the number of values that were altered.

    Args:
        parts: Arrays with their kinds. If a value of a mean is not finite, all values of means are replaced by zeros.
        limit: The largest absolute value of a product.
        weight: The weight, from 0 to 1.
    """
    means = [values for kind, values in parts if kind == _MEAN]
    finite = not any(map(not_finite, means))
    bound = limit / weight * (1 - 2.0**-50) if weight else np.inf  # rounding must not exceed the limit
    tame = {
        index: np.clip(values, -bound, bound, dtype=np.float64) if finite else np.zeros_like(values)
        for index, (kind, values) in enumerate(parts)
        if kind == _MEAN
    }
    changed = sum(int((abs(values) > bound).sum()) if finite else values.size for values in means)
    return [(kind, tame.get(index, values)) for index, (kind, values) in enumerate(parts)], changed


def _parts_of(model: Sequence[FloatArray], payload: Payload | None) -> Iterator[tuple[str, NDArray[Any]]]:
    """Yield the parts of a term with their kinds. A weight precedes each optional field: 1 if present, 0 if absent."""
    for values in model:
        yield _MEAN, values
    dim = sum(values.size for values in model[:1])
    for name, spec in () if payload is None else specs_of(type(payload)).items():
        value = getattr(payload, name)
        if spec.combined == "total":
            yield _TOTAL, value
            continue
        if spec.optional:
            yield _WEIGHT, np.zeros(1) if value is None else np.ones(1)
        yield _MEAN, np.zeros(_length(spec.dims, dim)) if value is None else value


def _encode(kind: str, values: NDArray[Any], ring: Ring, above: float, weight: float) -> list[NDArray[Any]]:
    flat = values.ravel()
    if kind == _TOTAL:
        return [flat.astype(np.int64).view(np.uint64).astype(ring.dtype)]
    return [ring.encode(flat[begin : begin + _PIECE], above, weight=weight) for begin in range(0, flat.size, _PIECE)]


def unpack(
    elements: NDArray[Any],
    lengths: IntArray,
    model: int,
    record: type[Payload] | None,
    ring: Ring,
    weights: float,
) -> tuple[list[NDArray[np.float64]], dict[str, NDArray[Any]], int]:
    """Return the means of the model's differences, the means and totals of the payload's fields, and the number of
    clients that altered their values.

    Args:
        elements: The unmasked sum.
        lengths: The lengths of its parts, as in `MaskedValues`.
        model: The number of parts that belong to the model.
        record: The type of the payload.
        ring: The ring of the sum.
        weights: The sum of the clients' weights.
    """
    ends = np.cumsum(lengths)
    parts = iter(np.split(elements, ends[:-1]))
    means = [ring.decode(next(parts)) / weights for _ in range(model)]
    fields: dict[str, NDArray[Any]] = {}
    for name, spec in () if record is None else specs_of(record).items():
        if spec.combined == "total":
            fields[name] = next(parts).view(f"int{ring.bits}")
            continue
        present = float(ring.decode(next(parts))[0]) if spec.optional else weights
        part = next(parts)
        if present > 0 and (len(part) or not spec.optional):
            fields[name] = ring.decode(part) / present
    return means, fields, int(next(parts)[0])


def _length(dims: Sequence[str | int], dim: int) -> int:
    """Return the number of zeros for an absent field: its size if all dimensions are fixed or the model's, else 0."""
    if any(isinstance(letter, str) and letter != "d" for letter in dims):
        return 0
    return int(np.prod([dim if isinstance(length, str) else length for length in dims], dtype=np.int64))
