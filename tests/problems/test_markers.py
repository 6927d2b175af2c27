"""Tests of ``missing-values`` with markers for all columns and for single columns."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from problems.data import DataError, DataSpec, Preprocessing, load
from problems.data.markers import Markers, parse_markers
from problems.data.own import read_own
from problems.data.preprocessing import Feature, describe_text
from tests.refusals import refuses

NAMES = st.text(st.sampled_from(list('ab 7,:|"[]')), min_size=1, max_size=5)


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


@given(st.lists(NAMES, unique=True, max_size=3), st.dictionaries(NAMES, st.lists(NAMES, unique=True, min_size=1)))
def test_markers_are_read_as_they_are_written(everywhere: list[str], by_column: dict[str, list[str]]) -> None:
    items = [*map(quoted, everywhere), *(f"{quoted(n)}: {' | '.join(map(quoted, m))}" for n, m in by_column.items())]
    expected = Markers(tuple(everywhere), tuple((name, tuple(markers)) for name, markers in by_column.items()))
    assert parse_markers(" , ".join(items)) == expected


def test_plain_markers_are_read_as_before() -> None:
    assert parse_markers('-9, ?,"a,b",x[1|2],n/a') == Markers(("-9", "?", "a,b", "x[1|2]", "n/a"))
    assert parse_markers("smoker:97|98, ?, smoker:99").by_column == (("smoker", ("97", "98", "99")),)
    assert parse_markers("") == Markers()


@pytest.mark.parametrize("text", ["smoker:", ":97", "smoker:97||98", "smoker:97|97", "?,?", "smoker:97,,?", '"a:1'])
def test_markers_that_cannot_be_read_are_refused(text: str) -> None:
    with refuses(DataError, "missing-values: got .*column:marker.marker"):
        parse_markers(text)


def write(folder: Path) -> str:
    n = np.arange(60)
    smoker = np.where(n % 6 == 0, 97, n % 2)
    table = pd.DataFrame(
        {"age": 80 + n * 7 % 20, "smoker": smoker, "job": np.where(n % 5, "baker", "?"), "y": n % 3 // 2}
    )
    table.to_csv(folder / "t.csv", index=False)
    return str(folder / "t.csv")


def test_a_marker_of_one_column_leaves_other_columns_alone(tmp_path: Path) -> None:
    spec = DataSpec("csv", write(tmp_path), label_column="y", missing="indicator", missing_values="?,smoker:97|98")
    data = load(spec, 2)
    assert data.columns is not None
    assert data.columns.names == ("age", "smoker", "job=baker", "smoker missing", "job missing")
    assert data.notes == ("missing-values: cells of 60 rows that became missing: 'smoker' 10, 'job' 12",)
    rows = pd.DataFrame({"age": [97, 98], "smoker": [97, 1], "job": ["?", "baker"]})
    read_again = Preprocessing.from_json(json.loads(json.dumps(data.columns.to_json())))
    assert read_again == data.columns
    assert read_again.features(rows)[:, 3:].tolist() == [[1, 1], [0, 0]]
    assert read_again.features(rows)[0, 0] > 0.5  # an age of 97 stays
    with refuses(DataError, "missing-values: got markers of 'smokre', which .*t.csv lacks, allowed: columns age"):
        load(replace(spec, missing_values="smokre:97"), 2)
    with refuses(DataError, "'?', allowed: no value that feature-columns lists"):
        load(replace(spec, feature_columns="job[?|baker]", missing_values="job:?"), 2)
    assert load(replace(spec, feature_columns="age,job[?|baker]", missing_values="age:?", missing="mean"), 2).notes == (
        "missing-values: cells of 60 rows that became missing: 'age' 0",
    )


def test_a_site_may_lack_a_column_that_has_markers(tmp_path: Path) -> None:
    columns = "age,smoker,job[baker|*]"
    spec = DataSpec("csv", "", partition="own", label_column="y", feature_columns=columns, missing="mean")
    rows = read_own(write(tmp_path), replace(spec, missing_values="smoker:97,weight:999"), 0)
    assert rows.notes == ("missing-values: cells of 60 rows that became missing: 'smoker' 10",)


def test_columns_of_an_older_run_are_read() -> None:
    value = Preprocessing((Feature("x", "number"),), missing_values=("a:b",)).to_json()
    del value["column_markers"]
    assert Preprocessing.from_json(value).markers_of("a") == ("a:b",)


def test_columns_that_become_categories_are_listed(tmp_path: Path) -> None:
    data = load(DataSpec("csv", write(tmp_path), label_column="y", feature_columns="age,job[?|*],smoker"), 2)
    assert data.columns is not None
    line = "columns that become categories, with the number of their values: 'job' (1 and all others)"
    assert describe_text(data.columns) == [line]
    assert describe_text(replace(data.columns, outputs=data.columns.outputs[:1])) == []
