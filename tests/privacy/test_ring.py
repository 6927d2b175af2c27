"""Tests of rings: the precision of encoding, and rejected values."""

from fractions import Fraction
from typing import Literal

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from privacy.ring import Ring, RingOverflowError

RING = Ring(64, 40)
LIMIT = 2.0**22

inside = st.floats(min_value=-LIMIT, max_value=LIMIT, exclude_min=True, exclude_max=True)


@given(st.lists(inside, min_size=1, max_size=20))
def test_a_value_comes_back_within_half_a_unit_of_the_last_bit(values: list[float]) -> None:
    for value, back in zip(values, RING.decode(RING.encode(values)), strict=True):
        assert abs(Fraction(float(back)) - Fraction(value)) <= Fraction(1, 2 ** (RING.fraction_bits + 1))
        assert abs(value) < 2**12 or float(back) == value


@given(st.lists(inside, min_size=1, max_size=20))
def test_an_element_is_the_rounded_multiple_of_two_to_the_forty(values: list[float]) -> None:
    elements = RING.encode(values)
    assert elements.dtype == np.uint64
    assert elements.shape == (len(values),)
    assert elements.tolist() == [round(Fraction(value) * 2**40) % 2**64 for value in values]


@given(st.integers(1, 40), st.data())
def test_a_sum_of_elements_is_the_sum_of_the_values(parties: int, data: st.DataObject) -> None:
    bound = RING.limit_for(parties)
    value = st.floats(-bound, bound, exclude_min=True, exclude_max=True)
    values = data.draw(st.lists(value, min_size=parties, max_size=parties))
    total = sum((RING.encode([value], bound) for value in values), np.zeros(1, dtype=np.uint64))
    exact = sum(map(Fraction, values), Fraction(0))
    # q roundings on the way in, and one rounding of the result on the way out
    allowed = Fraction(parties, 2**41) + abs(exact) / 2**53
    assert abs(Fraction(float(RING.decode(total)[0])) - exact) <= allowed * (1 + Fraction(1, 2**50))


def test_the_largest_values_of_every_party_do_not_wrap() -> None:
    for parties in range(1, 65):
        largest = np.nextafter(RING.limit_for(parties), 0)
        for sign in (1, -1):
            total = np.full(parties, RING.encode([sign * largest], RING.limit_for(parties))[0]).sum(keepdims=True)
            assert RING.decode(total)[0] == pytest.approx(sign * parties * largest, rel=1e-12)


@pytest.mark.parametrize("value", [LIMIT, -LIMIT, 1e300, np.inf, -np.inf])
def test_a_value_from_the_limit_on_is_refused(value: float) -> None:
    with pytest.raises(RingOverflowError, match=r"value 1 of 3 is .*\+-4\.1943e\+06"):
        RING.encode([0.0, value, 1.0])
    assert issubclass(RingOverflowError, ValueError)


def test_the_limit_can_be_lowered() -> None:
    assert RING.decode(RING.encode([9.75], limit=10)) == 9.75
    for value in (10.0, -10.0):
        with pytest.raises(RingOverflowError, match=f"is {value:g}, but a masked sum allows values within \\+-10"):
            RING.encode([value], limit=10)
    for limit in (0.0, -1.0, 2.0**23 * 1.01, np.nan, np.inf):
        with pytest.raises(ValueError, match="limit .* is not in"):
            RING.encode([0.5], limit=limit)


@example(bits=32, limit=1.0, terms=1)
@given(bits=st.sampled_from([32, 64]), limit=st.floats(1e-3, 1e4), terms=st.integers(1, 5000))
def test_the_finest_ring_holds_the_sum_of_the_largest_values_and_no_finer_one_does(
    bits: Literal[32, 64], limit: float, terms: int
) -> None:
    ring = Ring.fitting(bits, limit, terms)
    assert ring.capacity / 4 < limit * terms < ring.capacity
    largest = np.nextafter(limit, 0)
    total = ring.encode(np.full(1, largest), limit).astype(np.uint64) * np.uint64(terms)
    assert ring.decode(total.astype(ring.dtype))[0] == pytest.approx(terms * largest, abs=terms / 2**ring.fraction_bits)


def test_a_ring_that_cannot_hold_a_sum_is_refused() -> None:
    with pytest.raises(ValueError, match=r"sums of 1000 values within \+-1e\+09 do not fit into 32 bits"):
        Ring.fitting(32, 1e9, 1000)
