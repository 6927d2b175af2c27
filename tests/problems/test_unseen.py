"""Tests that unusable cells of new rows are counted, and that a column with only such cells is rejected."""

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

import florilegium
from problems.data import DataError, DataSpec, load
from problems.data.formats.uci import base_codes
from problems.data.preprocessing import Feature, Preprocessing
from problems.data.unseen import find_unseen
from tests.battery.federation import federate
from tests.refusals import refuses

JOBS = tuple(Feature("job", "category", value) for value in ("baker", "1"))
OPEN = Preprocessing((*JOBS, Feature("age", "number")), missing="mean", missing_values=("?",))
CLOSED = Preprocessing((*JOBS, Feature("job", "other", "*")), missing="mean", missing_values=("?",))
CELLS = st.sampled_from(["baker", " baker ", "Baker", "1", "1.0", 1, 1.0, 2, "nurse", "?", "", None])


@given(st.lists(CELLS, min_size=1, max_size=30))
def test_unseen_cells_are_those_without_a_feature(cells: list[Any]) -> None:
    frame = pd.DataFrame({"job": pd.Series(cells, dtype=object), "age": 1.0})
    values = OPEN.encode(frame)[:, :2]
    bare = int(((values == 0).all(axis=1) & ~np.isnan(values).any(axis=1)).sum())
    found = [one for one in find_unseen(OPEN, frame) if one.cells]
    assert sum(one.rows for one in found) == bare
    assert [one.is_whole for one in found] == ([bare == int((~np.isnan(values[:, 0])).sum())] if bare else [])
    assert not [one for one in find_unseen(CLOSED, frame) if one.cells]


def test_codes_without_a_feature_are_known() -> None:
    ecg = Preprocessing((Feature("restecg", "category", "1"), Feature("restecg", "category", "2")))
    frame = pd.DataFrame({"restecg": [0, 1, 0.0]})
    assert base_codes("uci-credit") == {"SEX": "1"}
    assert not find_unseen(ecg, frame, base_codes("heart-disease"))
    (found,) = find_unseen(ecg, frame)
    assert (found.values, found.rows) == (("0",), 2)
    assert base_codes("csv") == {}


def test_a_column_without_any_cell_is_named() -> None:
    frame = pd.DataFrame({"job": ["?"] * 10, "age": [None] * 10})
    told = [one.describe(quote=True) for one in find_unseen(OPEN, frame)]
    assert told == ["column 'job': all cells are missing", "column 'age': all cells are missing"]
    assert not find_unseen(OPEN, frame[:9])


def test_a_scored_table_with_unseen_categories(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"sex": ["f", "m"] * 50, "age": rng.normal(size=100), "label": rng.integers(2, size=100)})
    frame.to_csv(tmp_path / "a.csv", index=False)
    config = {"dataset": "csv", "data-dir": str(tmp_path / "a.csv"), "strategy": "local-sgd", "model": "linear"}
    run, _ = federate(tmp_path / "run", {**config, "num-server-rounds": 1}, 2)
    model = florilegium.load(run.path)
    scores = model.predict_proba(frame)
    assert "does not know" not in caplog.text
    with caplog.at_level(logging.WARNING):
        model.predict_proba(frame.replace({"sex": {"f": "F"}}))
    told = "column 'sex': 1 value ('F') that the model does not know, in 50 of 100 cells"
    assert f"{told}: they belong to none of its categories" in caplog.text
    upper = frame.assign(sex=frame["sex"].str.upper())
    with refuses(DataError, r"column 'sex': got 2 values \('F', 'M'\) .* in 100 of 100 cells, .*'f', 'm'"):
        model.predict(upper)
    allowed = florilegium.load(run.path, allow_unseen=True)
    assert not np.array_equal(allowed.predict_proba(upper), scores)
    np.testing.assert_array_equal(allowed.predict_proba(frame), scores)


def test_a_test_file_with_other_categories(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    frame = pd.DataFrame({"sex": ["f", "m"] * 20, "age": [*range(20)] * 2, "label": [0, 1, 1, 0] * 10})
    spec = DataSpec("csv", str(tmp_path), positive_label="1")
    frame.to_csv(tmp_path / "train.csv", index=False)
    frame.to_csv(tmp_path / "test.csv", index=False)
    load(spec, 2)
    assert not caplog.records
    frame.assign(sex=["f", "F"] * 20).to_csv(tmp_path / "test.csv", index=False)
    load(spec, 2)
    assert "column 'sex': 20 of 40 cells of the test rows are not in a category of the training rows" in caplog.text
    frame.assign(sex=["M", "F"] * 20).to_csv(tmp_path / "test.csv", index=False)
    with refuses(DataError, "column 'sex': got 40 of 40 cells of the test rows that are not a category"):
        load(spec, 2)
