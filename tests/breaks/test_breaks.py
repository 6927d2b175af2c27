"""The list of breaks fits the tree that it breaks."""

from collections import Counter

import pytest

from .listing import ROOT, Break, read_breaks

BREAKS = list(read_breaks())


def test_names_are_unique() -> None:
    assert [name for name, count in Counter(one.name for one in BREAKS).items() if count > 1] == []


@pytest.mark.parametrize("one", BREAKS, ids=lambda one: one.name)
def test_a_break_can_be_made_and_tried(one: Break) -> None:
    one.broken(ROOT)
