"""Tests that docs/vertical-leaks.md shows the output of `python -m benchmarks.attacks` and names every
demonstration."""

import re

import pytest

from benchmarks.attacks.__main__ import DEMONSTRATIONS
from tests.docs.markdown import PROJECT, blocks

PAGE = PROJECT / "docs" / "vertical-leaks.md"
# values drawn from the system's generator, which differ in each run
DRAWN = ("pairwise masks: largest correlation", "correlation, ring")
VOTES = "labels right by a vote", "labels right in one run"  # shares of 4,000 labels: four deviations are 0.028
ROUNDING = 1e-4  # below this a number is a rounding error, and only its magnitude is compared


def shown() -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, float]] = {}
    for block in blocks(PAGE):
        heading, *lines = block.text.splitlines()
        if block.language or "  measured" not in heading:
            continue
        rows = [re.fullmatch(r"(.+?) {2,}(\S+)", line) for line in lines]
        found[heading.split()[0]] = {row[1]: float(row[2]) for row in rows if row}
    return found


def test_every_demonstration_is_shown() -> None:
    assert list(shown()) == list(DEMONSTRATIONS)


@pytest.mark.parametrize("name", DEMONSTRATIONS)
def test_the_numbers_are_those_measured(name: str) -> None:
    written, measured = shown()[name], DEMONSTRATIONS[name]()
    assert list(written) == list(measured)
    for what, value in measured.items():
        if what.startswith(DRAWN):
            assert abs(written[what]) < 0.13, what
        elif what.startswith(VOTES):
            assert written[what] == pytest.approx(value, abs=0.028), what
        elif abs(value) < ROUNDING:
            assert abs(written[what]) < ROUNDING, what
        else:
            assert written[what] == pytest.approx(value, rel=1e-2), what
