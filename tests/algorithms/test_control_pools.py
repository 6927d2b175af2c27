"""The controls of FedX in `benchmarks.control_pools`: pools that say less about other sites' scores."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.control_pools import PERMUTED, PERMUTED_FEDX2, UNIFORM, UNIFORM_FEDX2
from methods.predictions import FedXPool, FedXState

from .helpers import Case, Federation
from .small_run import SmallRun

SCORES = "positive_scores", "partner_scores"


def sent(row: Any, federation: Federation, state: FedXState) -> FedXPool:
    """Return the pool that a row's server sends in round 2."""
    exchanges = row.strategy.method.server.round(np.zeros(3), state, federation.strategy.plan(2))
    return next(exchanges).down


@pytest.mark.parametrize("row", [UNIFORM, PERMUTED, UNIFORM_FEDX2, PERMUTED_FEDX2])
def test_a_control_forgets_the_classes_of_the_scores(row: Any) -> None:
    federation = Federation(Case("fedx2", "kl-opauc"))
    federation.step()
    state = federation.strategy.state
    known = np.concatenate([getattr(state, name) for name in SCORES])
    exchanged = dict(zip(SCORES, np.split(known[::-1], [len(state.positive_scores)]), strict=True))
    pools = [sent(row, federation, one) for one in (state, dataclasses.replace(state, **exchanged))]
    first, second = (np.concatenate([getattr(pool, name) for name in SCORES]) for pool in pools)
    assert pools[0].positive_u is None
    assert len(first) == len(known)
    assert (first != known).any()
    if row in (UNIFORM, UNIFORM_FEDX2):
        np.testing.assert_array_equal(first, second)  # they depend on the range of the scores alone
        assert known.min() <= first.min()
        assert first.max() <= known.max()
    else:
        np.testing.assert_array_equal(np.sort(first), np.sort(known))


def test_a_control_trains_another_model_than_fedx1(tmp_path: Path) -> None:
    rows = {"fedx1": "fedx1", "control": "benchmarks.control_pools:PERMUTED"}
    for name in rows:
        (tmp_path / name).mkdir()
    models = [SmallRun(tmp_path / name, {"strategy": row}).models for name, row in rows.items()]
    np.testing.assert_array_equal(models[0][0], models[1][0])
    assert np.isfinite(models[1]).all()
    assert (models[0][1] != models[1][1]).any()
