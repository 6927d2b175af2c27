"""Tests that the list of deliberate mistakes fits the code: each mistake can be inserted."""

from collections import Counter

import pytest

from .listing import ROOT, Break, read_breaks

BREAKS = list(read_breaks())


def test_names_are_unique() -> None:
    assert [name for name, count in Counter(entry.name for entry in BREAKS).items() if count > 1] == []


@pytest.mark.parametrize("entry", BREAKS, ids=lambda entry: entry.name)
def test_a_break_can_be_inserted(entry: Break) -> None:
    entry.broken(ROOT)
