"""Tests of the paired t-test of comparisons, its interval, and the verdict of `compare`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from simulations.results.paired import LEAST_SEEDS, Difference, adjust, difference
from tests.programs import Line
from tests.simulations.fabricated import fake

VALUES = st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=2, max_size=10)


def seeds(values: list[float]) -> dict[int, float]:
    return dict(enumerate(values))


@given(VALUES)
@example([(0.0, 0.0), (0.0, 5e-324)])
def test_the_interval_leaves_zero_outside_where_p_is_small(pairs: list[tuple[float, float]]) -> None:
    one, other = (seeds(list(side)) for side in zip(*pairs, strict=True))
    found, back = difference(one, other), difference(other, one)
    assert None not in (found.low, found.high, found.p)
    assert found.low <= found.mean <= found.high  # type: ignore[operator]
    if abs(found.p - 0.05) > 1e-9:  # type: ignore[operator]
        assert (found.low <= 0 <= found.high) == (found.p > 0.05)  # type: ignore[operator]
    assert (back.mean, back.p) == pytest.approx((-found.mean, found.p))
    assert (found.sign is None) == (len(pairs) < LEAST_SEEDS)


def test_a_known_test() -> None:
    """The data are Student's ten patients (1908): extra hours of sleep under two drugs."""
    first = [0.7, -1.6, -0.2, -1.2, -0.1, 3.4, 3.7, 0.8, 0.0, 2.0]
    second = [1.9, 0.8, 1.1, 0.1, -0.1, 4.4, 5.5, 1.6, 4.6, 3.4]
    found = difference(seeds(second), seeds(first))
    assert (found.mean, found.low, found.high) == pytest.approx((1.58, 0.7001, 2.4599), abs=1e-4)
    assert found.p == pytest.approx(0.002833, abs=1e-6)


def test_only_common_seeds_count() -> None:
    assert difference({0: 1.0, 1: 2.0}, {1: 1.5, 2: 9.0}) == Difference(1, 0.5, None, None, None)
    assert difference({0: 1.0}, {1: 1.0}) is None


def test_compare_tells_differences(command: Line, tmp_path: Path) -> None:
    paths = [
        fake(tmp_path / f"{rate}-{seed}", {"learning-rate": rate, "seed": seed}, (0.5, 0.6 + 0.1 * (seed % 2) + gap))
        for rate, gaps in ((0.1, (0.0,) * 5), (0.2, (0.02, 0.03, 0.01, 0.02, 0.03)), (0.3, (0.1, 0.2)))
        for seed, gap in enumerate(gaps)
    ]
    _, out, _ = command("compare", *paths)
    text = out[out.index("auc, seed by seed minus learning-rate=0.1") :].splitlines()
    assert text[2].split() == ["learning-rate=0.2", "+0.0220", "+0.0116", "to", "+0.0324", "0.0042", "5", "above"]
    assert text[3].endswith("no verdict with 2 seeds")
    _, out, _ = command("compare", *paths[:10], "--json")
    (told,) = json.loads(out)["differences"]
    assert (told["runs"], told["less"], told["seeds"]) == ("learning-rate=0.2", "learning-rate=0.1", 5)
    assert "seed by seed" not in command("compare", *paths[:5])[1]


def test_adjusted_p_follow_benjamini_and_hochberg() -> None:
    """The largest p stays; smaller values are at most their rank's share; too few seeds or missing metrics are left
    out."""
    values = [0.01, 0.04, 0.03, 0.5]
    few = Difference(LEAST_SEEDS - 1, 1.0, 0.5, 1.5, 1e-9)
    found = adjust([*(Difference(5, 1.0, 0.0, 2.0, p) for p in values), few, None])
    assert [each.q for each in found[:4] if each] == pytest.approx([0.04, 0.16 / 3, 0.16 / 3, 0.5])
    assert [each.sign for each in found[:4] if each] == [1, 0, 0, 0]
    assert found[4:] == [few, None]
    assert adjust([few, None]) == [few, None]
