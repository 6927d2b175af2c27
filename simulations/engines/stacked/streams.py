"""The random orders of many clients' samples at once, equal to `problems.randomness.stream` but many times as fast.

A small site spends most of an epoch's time on making its generator, and drawing from it goes through Python. Here the
seeds of all generators are computed together, with the arithmetic of NumPy's `SeedSequence`, and a compiled loop draws
like NumPy's generator `PCG64` and its method `Generator.permutation`.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from problems.kernels import jit
from problems.randomness import Purpose, stream
from problems.sampling import EpochSampler, Indices

Words = NDArray[np.uint32]
_SHIFT = np.uint32(16)
_LEFT, _RIGHT = np.uint32(0xCA01F9DD), np.uint32(0x4973F715)
_MIXED, _MADE = (0x43B0D7E5, 0x931E8875), (0x8B51F9DD, 0x58F38DED)
# the two halves of PCG64's multiplier; numba would turn a mix of uint64 and plain numbers into floats
_HIGH, _LOW = np.uint64(0x2360ED051FC65DA4), np.uint64(0x4385DF649FCCF645)
_HALF, _LOWER, _ONE = np.uint64(32), np.uint64(2**32 - 1), np.uint64(1)
_WORD = 2**32
_POOL = 4


class _Hash:
    """NumPy's hash of 32-bit words, whose constant changes from call to call."""

    def __init__(self, start: int, factor: int) -> None:
        self.constant, self.factor = start, factor

    def __call__(self, words: Words) -> Words:
        words = words ^ np.uint32(self.constant)
        self.constant = self.constant * self.factor % _WORD
        words *= np.uint32(self.constant)
        mixed: Words = words ^ (words >> _SHIFT)
        return mixed


def _mix(one: Words, other: Words) -> Words:
    mixed: Words = _LEFT * one - _RIGHT * other
    return mixed ^ (mixed >> _SHIFT)


def seed_words(entropy: Sequence[Words]) -> list[Words]:
    """Return eight 32-bit words (m,) for each of m seed sequences: ``SeedSequence(...).generate_state(8)``.

    Args:
        entropy: The entropy of each sequence, k >= 4 words, as k arrays (m,).
    """
    mix_in = _Hash(*_MIXED)
    pool = [mix_in(words) for words in entropy[:_POOL]]
    for source in range(_POOL):
        for target in range(_POOL):
            if source != target:
                pool[target] = _mix(pool[target], mix_in(pool[source]))
    for words in entropy[_POOL:]:
        pool = [_mix(mixed, mix_in(words)) for mixed in pool]
    draw = _Hash(*_MADE)
    return [draw(pool[place % _POOL]) for place in range(2 * _POOL)]


@jit()
def _step(high: Any, low: Any, add_high: Any, add_low: Any) -> tuple[Any, Any]:
    """Return the next 128-bit state, high and low half (uint64): state * multiplier + increment."""
    a, b, c, d = low >> _HALF, low & _LOWER, _LOW >> _HALF, _LOW & _LOWER
    cross = (b * d >> _HALF) + (a * d & _LOWER) + (b * c & _LOWER)
    carried = a * c + (a * d >> _HALF) + (b * c >> _HALF) + (cross >> _HALF)
    new_low = low * _LOW + add_low
    carry = _ONE if new_low < add_low else np.uint64(0)
    return carried + high * _LOW + low * _HIGH + add_high + carry, new_low


@jit()
def _shuffle(values: Indices, ends: Indices, numbers: NDArray[np.uint64]) -> None:
    """Shuffle consecutive parts of ``values`` (n,), the i-th up to ``ends[i]``, each with its own generator.

    Args:
        numbers: The (m, 4) halves of each generator's initial number and increment.
    """
    begin = 0
    for part in range(len(ends)):
        add_high = numbers[part, 2] << _ONE | numbers[part, 3] >> np.uint64(63)
        add_low = numbers[part, 3] << _ONE | _ONE
        low = add_low + numbers[part, 1]
        carry = _ONE if low < add_low else np.uint64(0)
        high, low = _step(add_high + numbers[part, 0] + carry, low, add_high, add_low)
        rest, has_rest = np.uint64(0), False  # the upper half of a drawn number is used next
        for place in range(ends[part] - begin - 1, 0, -1):
            limit, mask = np.uint64(place), np.uint64(place)
            for shift in (1, 2, 4, 8, 16):
                mask |= mask >> np.uint64(shift)
            drawn = limit + _ONE
            while drawn > limit:
                if has_rest:
                    drawn, has_rest = rest & mask, False
                    continue
                high, low = _step(high, low, add_high, add_low)
                mixed, turn = high ^ low, high >> np.uint64(58)
                mixed = mixed >> turn | mixed << (np.uint64(64) - turn & np.uint64(63))
                rest, has_rest = mixed >> _HALF, True
                drawn = mixed & _LOWER & mask
            other = begin + np.int64(drawn)
            values[begin + place], values[other] = values[other], values[begin + place]
        begin = ends[part]


def shuffle(seed: int, purpose: Purpose, keys: NDArray[np.int64], arrays: Sequence[Indices]) -> Indices:
    """Return the joined ``arrays[i][stream(seed, purpose, *keys[i]).permutation(len(arrays[i]))]`` for all i.

    Args:
        keys: The (m, k) remaining parts of the addresses, k >= 2, all below 2**32.
        arrays: The m >= 1 arrays, each of less than 2**32 indices.
    """
    values = np.concatenate(arrays)
    ends = np.cumsum([len(array) for array in arrays])
    if not 0 <= seed < _WORD:
        for part, key in zip(np.split(values, ends[:-1]), keys.tolist(), strict=True):
            part[:] = part[stream(seed, purpose, *key).permutation(len(part))]
        return values
    given = [np.full(len(keys), word, np.uint32) for word in (seed, zlib.crc32(purpose.encode()))]
    words = seed_words([*given, *keys.T.astype(np.uint32)])
    halves = zip(words[::2], words[1::2], strict=True)
    numbers = np.stack([low | high.astype(np.uint64) << _HALF for low, high in halves], axis=1)
    _shuffle(values, ends, numbers)
    return values


def draw_epochs(samplers: Sequence[EpochSampler], numbers: range) -> list[tuple[range, Indices]]:
    """Return each sampler's epochs for its batches of consecutive numbers, and their orders (epochs, n).

    Args:
        samplers: Samplers of one seed and purpose, whose batches are not empty.
    """
    seed, purpose, _ = samplers[0].address
    batches = [len(sampler.indices) // sampler.batch_size for sampler in samplers]
    epochs = [range(numbers[0] // count, numbers[-1] // count + 1) for count in batches]
    counts = [len(some) for some in epochs]
    sites = np.repeat([sampler.address[2] for sampler in samplers], counts, axis=0)
    keys = np.column_stack([sites, np.concatenate(epochs)])
    arrays = [sampler.indices for sampler, count in zip(samplers, counts, strict=True) for _ in range(count)]
    values, drawn, begin = shuffle(seed, purpose, keys, arrays), [], 0
    for sampler, some in zip(samplers, epochs, strict=True):
        end = begin + len(some) * len(sampler.indices)
        drawn.append((some, values[begin:end].reshape(len(some), -1)))
        begin = end
    return drawn


def draw_rows(samplers: Sequence[EpochSampler], numbers: range) -> Indices:
    """Return the (C, K b) rows of each sampler's batches of K consecutive numbers, joined.

    Args:
        samplers: The C samplers of one seed and purpose, with batches of one size b.
    """
    size = samplers[0].batch_size
    rows = np.empty((len(samplers), len(numbers) * size), np.int64)
    if size:
        for own, (epochs, orders) in zip(rows, draw_epochs(samplers, numbers), strict=True):
            batches = orders.shape[1] // size
            start = (numbers[0] - epochs[0] * batches) * size
            own[:] = orders[:, : batches * size].ravel()[start : start + len(own)]
    return rows
