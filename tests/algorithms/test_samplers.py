"""Properties of the samplers: batches without replacement within an epoch, whatever the order of requests."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from problems.randomness import Purpose, stream
from problems.sampling import EpochSampler, PoolQueue

settings.register_profile("samplers", deadline=None, max_examples=60, derandomize=True)
LAW = settings.get_profile("samplers")

sizes = st.integers(1, 23)
seeds = st.integers(0, 2**32)


def sampler(count: int, batch_size: int, seed: int = 0, *keys: int) -> EpochSampler:
    return EpochSampler(np.arange(100, 100 + count), batch_size, seed, Purpose.POSITIVES, *keys)


@LAW
@given(count=sizes, batch_size=st.integers(0, 30), seed=seeds, epoch=st.integers(0, 5))
def test_an_epoch_visits_an_index_once_and_drops_the_incomplete_batch(
    count: int, batch_size: int, seed: int, epoch: int
) -> None:
    made = sampler(count, batch_size, seed)
    size = count if batch_size == 0 else min(batch_size, count)
    per_epoch = count // size
    batches = [made.batch(epoch * per_epoch + place) for place in range(per_epoch)]
    assert [len(batch) for batch in batches] == [size] * per_epoch
    visited = np.concatenate(batches)
    assert len(set(visited)) == len(visited) == count - count % size
    assert set(visited) <= set(range(100, 100 + count))


@LAW
@given(count=sizes, batch_size=st.integers(1, 30), seed=seeds, order=st.permutations(range(12)))
def test_a_batch_does_not_depend_on_the_batches_before_it(
    count: int, batch_size: int, seed: int, order: list[int]
) -> None:
    forward, jumping = sampler(count, batch_size, seed, 4), sampler(count, batch_size, seed, 4)
    expected = [forward.batch(position).copy() for position in range(12)]
    for position in order:
        np.testing.assert_array_equal(jumping.batch(position), expected[position])


def test_epochs_clients_classes_and_seeds_differ() -> None:
    """20 indices in one batch: the same order twice has probability 1 / 20!."""
    orders = [
        sampler(20, 20, 0, 0).batch(0),
        sampler(20, 20, 0, 0).batch(1),
        sampler(20, 20, 0, 1).batch(0),
        sampler(20, 20, 1, 0).batch(0),
        EpochSampler(np.arange(100, 120), 20, 0, Purpose.PARTNERS, 0).batch(0),
    ]
    assert len({tuple(order) for order in orders}) == 5


def test_every_order_of_an_epoch_is_equally_likely() -> None:
    """Chi-square for 6 orders of 3 indices in 6,000 epochs, 5 degrees of freedom, is below its 0.99999 quantile."""
    made = sampler(3, 3)
    orders, counts = np.unique([made.batch(position) for position in range(6000)], axis=0, return_counts=True)
    assert len(orders) == 6
    assert np.sum((counts - 1000) ** 2 / 1000) < 30.9


@LAW
@given(size=sizes, counts=st.lists(st.integers(1, 9), min_size=1, max_size=12), seed=seeds)
def test_the_pool_visits_every_entry_once_before_repeating(size: int, counts: list[int], seed: int) -> None:
    queue = PoolQueue(size, seed, Purpose.POSITIVE_POOL, 0, 1)
    taken = [queue.take(count) for count in counts]
    assert [len(part) for part in taken] == [min(count, size) for count in counts]
    walked = np.concatenate(taken)
    for start in range(0, len(walked), size):  # each lap of the queue is a permutation, the last one a part of it
        lap = walked[start : start + size]
        assert len(set(lap)) == len(lap)
        assert set(lap) <= set(range(size))


@LAW
@given(size=sizes, excess=st.integers(0, 20), seed=seeds)
def test_a_draw_larger_than_the_pool_is_the_pool(size: int, excess: int, seed: int) -> None:
    queue = PoolQueue(size, seed, Purpose.PARTNER_POOL, 3)
    for _ in range(3):
        assert sorted(queue.take(size + excess)) == list(range(size))


def test_every_lap_client_and_round_has_an_order_of_its_own() -> None:
    """20 entries a lap: the same order twice has probability 1 / 20!."""
    queues = [
        PoolQueue(20, 0, Purpose.POSITIVE_POOL, client, server_round)
        for client, server_round in ((0, 1), (0, 2), (1, 1))
    ]
    laps = [tuple(queue.take(20)) for queue in queues for _ in range(2)]
    assert len(set(laps)) == 6


@LAW
@given(
    one=st.tuples(st.integers(0, 3), st.sampled_from(Purpose), st.integers(0, 3), st.integers(0, 3)),
    other=st.tuples(st.integers(0, 3), st.sampled_from(Purpose), st.integers(0, 3), st.integers(0, 3)),
)
def test_a_stream_is_its_address(one: tuple, other: tuple) -> None:
    same = np.array_equal(stream(*one).integers(2**62, size=4), stream(*other).integers(2**62, size=4))
    assert same == (one == other)
