"""docs/security.md shows what `python -m simulations.leaks` prints, and names every demonstration."""

from __future__ import annotations

import re

import pytest

from clients.vertical.ring import FRACTION_BITS, LIMIT, limit_for
from simulations.leaks import DEMONSTRATIONS
from tests.docs.markdown import PROJECT, blocks

PAGE = PROJECT / "docs" / "security.md"
# what is drawn anew by the system's generator at each run, and so differs
DRAWN = ("pairwise masks: largest correlation", "correlation, ring")
ROUNDING = 1e-4  # below it a number is an error, of which the size alone counts


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
        elif abs(value) < ROUNDING:
            assert abs(written[what]) < ROUNDING, what
        else:
            assert written[what] == pytest.approx(value, rel=1e-2), what


def test_the_precision_of_the_ring() -> None:
    text = " ".join(PAGE.read_text("utf-8").split())
    assert f"round(v 2^{FRACTION_BITS}) modulo 2^64" in text
    assert f"2^-{FRACTION_BITS + 1} = {2.0 ** -(FRACTION_BITS + 1):.1e}" in text
    assert "below 2^23 / q (at most 2^22)" in text
    assert (limit_for(1), limit_for(2), limit_for(8)) == (2.0**22, 2.0**22, 2.0**20)
    assert limit_for(1) == LIMIT
