"""The random permutations of many clients at once: equal to `problems.randomness.stream`, several times as fast.

Most of the time that a small site needs for an epoch goes into making its generator, not into drawing. Here the seeds
of all generators are computed together, by the arithmetic of NumPy's `SeedSequence` and of the start of its `PCG64`,
which NumPy documents as stable; one generator then takes these states one after another.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from problems.randomness import Purpose, stream
from problems.sampling import EpochSampler, Indices

Words = NDArray[np.uint32]
_SHIFT = np.uint32(16)
_LEFT, _RIGHT = np.uint32(0xCA01F9DD), np.uint32(0x4973F715)
_MIXED, _MADE = (0x43B0D7E5, 0x931E8875), (0x8B51F9DD, 0x58F38DED)
_MULTIPLIER = 0x2360ED051FC65DA44385DF649FCCF645
_WORD, _STATE = 2**32, 2**128
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
    """Eight 32-bit words (m,) for each of m seed sequences: ``SeedSequence(...).generate_state(8)``.

    Args:
        entropy: of k >= 4 words each, as k arrays (m,).
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


def permutations(
    seed: int, purpose: Purpose, keys: NDArray[np.int64], sizes: Sequence[int]
) -> Iterator[NDArray[np.int64]]:
    """``stream(seed, purpose, *keys[i]).permutation(sizes[i])`` for each row i.

    Args:
        keys: (m, k) the rest of the addresses, k >= 2, all below 2**32.
        sizes: (m,) how many numbers are permuted.
    """
    if not 0 <= seed < _WORD:
        for address, size in zip(keys.tolist(), sizes, strict=True):
            yield stream(seed, purpose, *address).permutation(size)
        return
    count = len(keys)
    given = [np.full(count, word, np.uint32) for word in (seed, zlib.crc32(purpose.encode()))]
    words = seed_words([*given, *keys.T.astype(np.uint32)])
    low, high = (np.stack(words[part::2]).astype(object) for part in (0, 1))
    numbers = low + high * _WORD  # (4, m) 64-bit numbers: the halves of the first state and of the increment
    begin, step = numbers[0] * 2**64 + numbers[1], (numbers[2] * 2**64 + numbers[3]) * 2 + 1
    states = ((begin + step) * _MULTIPLIER + step) % _STATE
    steps = step % _STATE
    bits = np.random.PCG64(0)
    generator = np.random.Generator(bits)
    for state, increment, size in zip(states, steps, sizes, strict=True):
        bits.state = {
            "bit_generator": "PCG64",
            "state": {"state": state, "inc": increment},
            "has_uint32": 0,
            "uinteger": 0,
        }
        yield generator.permutation(size)


def epochs_of(sampler: EpochSampler, numbers: range) -> range:
    """The epochs in which consecutive batches, which are not empty, lie."""
    batches = len(sampler.indices) // sampler.batch_size
    return range(numbers[0] // batches, numbers[-1] // batches + 1)


def prefetch(samplers: Sequence[EpochSampler], numbers: range) -> None:
    """Draw the epochs of some consecutive batches, so that each sampler has them in ``drawn``.

    Args:
        samplers: of one seed and purpose.
    """
    missing = []
    for sampler in samplers:
        if sampler.batch_size:
            some = epochs_of(sampler, numbers)
            sampler.drawn = {epoch: order for epoch, order in sampler.drawn.items() if epoch in some}
            missing += [(sampler, epoch) for epoch in some if epoch not in sampler.drawn]
    seed, purpose, _ = samplers[0].address
    keys = np.array([(*sampler.address[2], epoch) for sampler, epoch in missing], np.int64).reshape(-1, 2)
    orders = permutations(seed, purpose, keys, [len(sampler.indices) for sampler, _ in missing])
    for (sampler, epoch), order in zip(missing, orders, strict=True):
        sampler.drawn[epoch] = sampler.indices[order]


def forget(samplers: Sequence[EpochSampler]) -> None:
    """Keep the newest epoch of each sampler only."""
    for sampler in samplers:
        if sampler.drawn:
            newest = max(sampler.drawn)
            sampler.drawn = {newest: sampler.drawn[newest]}


def draw_rows(samplers: Sequence[EpochSampler], numbers: range) -> list[Indices]:
    """The indices (K b,) that each sampler's batches of some K consecutive numbers hold, one batch after another.

    Args:
        samplers: of one seed and purpose, with batches of one size b.
    """
    prefetch(samplers, numbers)
    rows = []
    for sampler in samplers:
        if not (size := sampler.batch_size):
            rows.append(sampler.indices)
            continue
        some, batches = epochs_of(sampler, numbers), len(sampler.indices) // size
        start = (numbers[0] - some[0] * batches) * size
        orders = [sampler.drawn[epoch][: batches * size] for epoch in some]
        rows.append(np.concatenate(orders)[start : start + len(numbers) * size])
    forget(samplers)
    return rows
