"""Tests of the way from raw rows to features, in training and for new rows: cells of every kind, and its JSON."""

import datetime
import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from problems.data import DataError, DataSpec, Preprocessing, load
from problems.data.preprocessing import Feature
from tests.refusals import refuses, spell

numbers = st.floats(-1e6, 1e6).map(lambda x: round(x, 3))


@st.composite
def preprocessings(draw: st.DrawFn) -> Preprocessing:
    """Return numbers a, dates b, truths c and text d, of which some have features for missing cells."""
    features = []
    for name, kind in (("a", "number"), ("b", "date"), ("c", "boolean")):
        transform = draw(st.sampled_from(["none", "log", "quantile"]))
        quantiles = tuple(sorted(draw(st.lists(numbers, min_size=1, max_size=5)))) if transform == "quantile" else ()
        deviation = draw(st.one_of(st.just(0.0), st.floats(0.1, 1e3)))
        fields = {"mean": draw(numbers), "deviation": deviation, "fill": draw(numbers), "quantiles": quantiles}
        features.append(Feature(name, kind, transform=transform, **fields))  # type: ignore[arg-type]
    features += [Feature("d", "category", "x"), Feature("d", "category", "1"), Feature("d", "other", "*")]
    features += [Feature(name, "missing") for name in draw(st.sets(st.sampled_from("abcd")))]
    return Preprocessing(tuple(features), "indicator", ("-9", "?"), "log", "label", ("yes", "1"))


RAW = pd.DataFrame(
    {
        "d": ["x", 1, "z", None, "?"],
        "e": "further",
        "c": [True, False, "false", None, "TRUE"],
        "a": ["-9.0", 2, "3.5", "?", -4],
        "b": ["1970-01-02", "1970-01-03T12:00", "1969-12-31 00:00:00+00:00", "?", None],
    }
)
# a, b, c, and d as x, 1, other
NUMBERS = np.array(
    [
        [np.nan, 1, 1, 1, 0, 0],
        [2, 2.5, 0, 0, 1, 0],
        [3.5, -1, 0, 0, 0, 1],
        [np.nan] * 6,
        [-4, np.nan, 1, np.nan, np.nan, np.nan],
    ]
)


@given(preprocessings())
def test_every_kind_of_cell_and_its_json(preprocessing: Preprocessing) -> None:
    np.testing.assert_array_equal(preprocessing.encode(RAW), NUMBERS)
    features = preprocessing.features(RAW)
    assert features.dtype == np.float32
    assert (np.abs(features[:, :3]) <= 1e6).all()
    np.testing.assert_array_equal(features[:, 3:6], np.nan_to_num(NUMBERS[:, 3:]))
    for place, feature in enumerate(preprocessing.outputs[6:], start=6):
        gaps = np.isnan(NUMBERS[:, "abcd".index(feature.column)])
        np.testing.assert_array_equal(features[:, place], gaps)
    kept = Preprocessing.from_json(json.loads(json.dumps(preprocessing.to_json(), allow_nan=False)))
    assert kept == preprocessing
    np.testing.assert_array_equal(kept.features(RAW[["c", "b", "a", "d"]].iloc[::-1]), features[::-1])


def test_the_formula_of_a_feature() -> None:
    raw = pd.DataFrame({"x": [-3.0, 0.0, 1.5, 2.0, 9.0, None]})

    def values(**changes: Any) -> list[float]:
        return Preprocessing((Feature("x", "number", **changes),), "mean").features(raw)[:, 0].tolist()

    log = [-np.log(4), 0, np.log(2.5), np.log(3), np.log(10), np.log(2)]
    assert values(transform="log", fill=1.0, mean=1.0, deviation=2.0) == pytest.approx([(x - 1) / 2 for x in log])
    # levels from 1/5 to 4/5: clipped, the middle of two knots, halfway between two others
    levels = [0.2, 0.3, 0.55, 0.6, 0.8, 0.4 + 0.2 * 0.25]
    assert values(transform="quantile", quantiles=(0.0, 0.0, 2.0, 6.0), fill=0.5) == pytest.approx(levels)
    assert values(mean=1e308, deviation=1e-308) == [-1e6] * 6
    assert values(mean=2.0, deviation=0.0) == [0.0] * 6


def test_bins_and_their_json() -> None:
    bounds: list[tuple[float | None, float | None]] = [(None, 0.1), (0.1, 20.0), (20.0, None)]
    bins = [Feature("x", "number", transform="bin", low=a, high=b, fill=float(a is None)) for a, b in bounds]
    table = Preprocessing((*bins, Feature("d", "category", "a")), "mean", scale="bins", bins=3)
    assert table.names == ("x <= 0.1", "x (0.1, 20]", "x > 20", "d=a")
    assert table.inputs == (Feature("x", "number"), table.outputs[3])
    raw = pd.DataFrame({"x": [-1e9, 0.1, 0.11, 20.0, 21.0, None], "d": list("abaaaa")})
    wanted = [[1, 0, 0, 1], [1, 0, 0, 0], [0, 1, 0, 1], [0, 1, 0, 1], [0, 0, 1, 1], [1, 0, 0, 1]]
    kept = Preprocessing.from_json(json.loads(json.dumps(table.to_json(), allow_nan=False)))
    assert kept == table
    assert kept.features(raw).tolist() == wanted


def test_dates_of_all_types_and_times() -> None:
    preprocessing = Preprocessing((Feature("x", "date"),), "mean")
    for cells, days in (
        (["0001-01-01", "9999-12-31", "1969-12-31T18:00-06:00"], [-719162, 2932896, 0]),
        ([pd.Timestamp("1970-01-02T01:00", tz="Europe/Berlin"), None, pd.NaT], [1, np.nan, np.nan]),
        (pd.to_datetime(["1970-01-01 06:00", None]), [0.25, np.nan]),
        ([datetime.date(1970, 1, 11), None, "1970-01-11"], [10, np.nan, 10]),
    ):
        np.testing.assert_array_equal(preprocessing.encode(pd.DataFrame({"x": cells}))[:, 0], days)


@pytest.mark.parametrize(
    ("kind", "cells", "told"),
    [
        (
            "number",
            ["1", "secret", None],
            "column 'x': got 1 of 3 cells that are text, the first in row 2, allowed: num",
        ),
        ("number", [1.0, 2.0, np.inf], "column 'x': got 1 of 3 cells that are not finite, the first in row 3"),
        ("number", [pd.Timestamp(0)] * 3, "column 'x': got dates, allowed: numbers"),
        (
            "boolean",
            [True, 3, None],
            "column 'x': got 1 of 3 cells that are neither true nor false, the first in row 2",
        ),
        ("date", ["1970-01-01", "01.02.1970", "secret"], "column 'x': got 2 of 3 cells that are not dates"),
        ("date", [3, 4, 5], "column 'x': got 3 of 3 cells that are not dates, the first in row 1"),
    ],
)
def test_cells_of_another_kind(kind: Any, cells: list[object], told: str) -> None:
    with pytest.raises(DataError) as caught:
        Preprocessing((Feature("x", kind),), "mean").features(pd.DataFrame({"x": cells}))
    assert told in spell(caught.value)
    assert "secret" not in spell(caught.value)


def test_tables_that_lack_something() -> None:
    preprocessing = Preprocessing((Feature("x", "number"), Feature("y", "category", "a")), missing_values=("?",))
    with refuses(DataError, "table: got no column 'y', allowed: each column once"):
        preprocessing.features(pd.DataFrame({"x": [1]}))
    with refuses(DataError, "table: got more than one column 'x'"):
        preprocessing.features(pd.DataFrame([[1, 2, "a"]], columns=["x", "x", "y"]))
    with refuses(DataError, "column 'y': got 1 of 2 cells missing, the first in row 2, allowed: no missing cells"):
        preprocessing.features(pd.DataFrame({"x": [1, 2], "y": ["a", "?"]}))
    assert preprocessing.features(pd.DataFrame({"x": [], "y": []})).shape == (0, 2)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"version": 2}, "got version 2, allowed: version 1"),
        ({"outputs": []}, "no features"),
        ({"outputs": [{"column": "x"}]}, "outputs.0.kind: Field required"),
        ({"outputs": [{"column": "x", "kind": "numbers"}]}, "outputs.0.kind: Input should be 'number', 'date'"),
        (
            {"outputs": [{"column": "x", "kind": "number", "mean": "1"}]},
            "outputs.0.mean: Input should be a valid number",
        ),
        ({"outputs": [{"column": "x", "kind": "number", "deviation": -1.0}]}, "not finite, below 0 or descending"),
        (
            {"outputs": [{"column": "x", "kind": "number", "transform": "quantile"}]},
            "quantiles that do not fit transform",
        ),
        (
            {"outputs": [{"column": "x", "kind": "number", "transform": "bin"}]},
            "bounds that do not fit transform 'bin'",
        ),
        (
            {"outputs": [{"column": "x", "kind": "number", "transform": "bin", "low": 2.0, "high": 2.0}]},
            "or do not ascend",
        ),
        ({"bins": 10**9}, "1000000000 bins of a number"),
        ({"outputs": [{"column": "x", "kind": "number"}] * 2}, "feature 'x' twice"),
        ({"outputs": [{"column": "x", "kind": "missing"}]}, "features of missing cells before others"),
        ({"outputs": [{"column": "x", "kind": "category"}]}, "of kind 'category' with value ''"),
        ({"missing": "guess"}, "missing: Input should be 'error', 'mean'"),
    ],
)
def test_json_that_is_none(change: dict[str, Any], told: str) -> None:
    value = {**Preprocessing((Feature("x", "number"),)).to_json(), **change}
    with pytest.raises(DataError) as caught:
        Preprocessing.from_json(value)
    assert told in spell(caught.value)
    with refuses(DataError, "got version None"):
        Preprocessing.from_json([value])


# A raw table, from the file to the features.


def rough(rows: int = 60) -> pd.DataFrame:
    """Return a table with gaps of every kind, an index, an id, and text with many values."""
    rng = np.random.default_rng(0)
    place = np.arange(rows)
    return pd.DataFrame(
        {
            "pulse": np.where(place % 6 == 1, -9, rng.integers(50, 99, rows)),
            "smoker": np.where(place % 5 == 0, None, place % 2 == 0),
            "job": [["nurse", "baker", "judge", "?"][n % 4] for n in place],
            "seen": [f"2001-0{n % 3 + 1}-11" for n in place],
            "patient": [f"p{n}" for n in place],
            "label": place % 4 // 3,
        },
        index=rng.permutation(rows) + 7,
    )


@pytest.mark.parametrize("name", ["t.csv", "t.parquet"])
def test_a_rough_table(name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    table = rough()
    if name == "t.csv":
        table.to_csv(tmp_path / name)
    else:
        table.assign(seen=pd.to_datetime(table["seen"])).to_parquet(tmp_path / name)
    keys = {"missing": "indicator", "missing_values": "-9,?", "drop_columns": "patient"}
    data = load(DataSpec(name[2:], str(tmp_path / name), **keys), 2)  # type: ignore[arg-type]
    assert data.columns is not None
    whole = ("pulse", "smoker", "job=baker", "job=judge", "job=nurse", "seen")
    assert data.columns.names == (*whole, "pulse missing", "smoker missing", "job missing")
    left = [f"ignored column 'Unnamed: 0' of {tmp_path / name}, which counts rows and has no name"]
    assert caplog.messages == (left if name == "t.csv" else [])
    features = data.columns.features(table)
    both = np.concatenate([data.train.features, data.test.features])
    np.testing.assert_array_equal(np.sort(features, axis=0), np.sort(both, axis=0))
    gaps = np.stack([table["pulse"] == -9, table["smoker"].isna(), table["job"] == "?"], axis=1)
    np.testing.assert_array_equal(features[:, 6:], gaps)
    assert not features[gaps[:, 2], 2:5].any()
    filled = features[gaps[:, 0], 0]
    assert filled == pytest.approx(0, abs=1e-6)
    with refuses(DataError, "drop-columns: got 'when', which .* lacks, allowed: columns .*pulse"):
        load(DataSpec(name[2:], str(tmp_path / name), drop_columns="when"), 2)


def test_other_values_of_listed_text(tmp_path: Path) -> None:
    table = rough().assign(town=[f"t{n % 40}" for n in range(60)])
    table.to_csv(tmp_path / "t.csv", index=False)
    spec = DataSpec("csv", str(tmp_path / "t.csv"), feature_columns="town[t1|t2|*]")
    columns = load(spec, 2).columns
    assert columns is not None
    np.testing.assert_array_equal(
        columns.features(pd.DataFrame({"town": ["t2", "t7", "new", "t1"]})),
        [[0, 1, 0], [0, 0, 1], [0, 0, 1], [1, 0, 0]],
    )


def test_columns_without_cells(tmp_path: Path) -> None:
    rough().assign(empty=None).to_csv(tmp_path / "t.csv", index=False)
    keys = {"missing": "mean", "missing_values": "-9,?", "drop_columns": "patient"}
    with refuses(DataError, "column 'empty': got missing cells only, allowed: columns with cells; list the"):
        load(DataSpec("csv", str(tmp_path / "t.csv"), **keys), 2)  # type: ignore[arg-type]
