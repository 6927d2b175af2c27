"""A site's counts of scores: single rows that are not finite raise no error, and sets of rows have their offsets."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from clients.held_out import DivergedScoresError, score
from clients.set_counts import count_sets
from payloads.held_out import IMPORTANCE_COUNTS, SUBGROUP_COUNTS
from problems.models import FlatModel, build_model
from problems.site import Site

ROWS = 40


def make(features: np.ndarray, weight: float, least: int = 5) -> tuple[FlatModel, list[np.ndarray], Site]:
    """Return a linear model of one feature, its arrays, and a site whose held-out rows are all rows."""
    model = FlatModel(build_model("linear", (1,), 0))
    rows = Site.from_arrays(0, features[:, None].astype(np.float32), np.arange(ROWS) % 2)
    return model, [np.array([weight, 0.0], np.float32)], replace(rows, held_out=rows, least_cell=least)


def test_an_error_does_not_find_the_largest_cell() -> None:
    """A server that raises the weight until a score overflows learns nothing until the least cell of scores does."""
    cells = np.linspace(1.0, 2.0, ROWS)
    cells[-1] = 95.0
    largest = float(np.finfo(np.float32).max)
    model, arrays, site = make(cells, largest / 60)
    counts, replaced = score(model, arrays, site, None)
    assert replaced
    assert counts.negatives.sum() + counts.positives.sum() == ROWS
    model, arrays, site = make(cells, largest / 1.5)
    with pytest.raises(DivergedScoresError):
        score(model, arrays, site, None)


def test_sets_have_the_rows_offsets() -> None:
    model, arrays, site = make(np.zeros(ROWS), 1.0, least=1)
    offsets = torch.where(torch.arange(ROWS) % 2 == 0, -3.0, 3.0)
    rows = replace(site, offsets=offsets, subgroups=np.zeros((ROWS, 1), np.int64))
    site = replace(site, held_out=rows)
    whole, _ = score(model, arrays, site, None)
    for phase in (SUBGROUP_COUNTS, IMPORTANCE_COUNTS):
        counted, _ = count_sets(model, arrays, site, None, phase, 0, sets=1)
        for name in ("negatives", "positives"):
            np.testing.assert_array_equal(getattr(counted, name), getattr(whole, name))
