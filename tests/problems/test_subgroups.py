"""The key ``subgroups``: its syntax, the groups of rows as pandas computes them, and errors that name the fault."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from problems.data import DataError, DataSpec, load
from problems.data.own import read_own
from problems.data.subgroups import parse_subgroups


def write(path: Path, rows: int = 200) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {
            "x": rng.normal(size=rows),
            "sex": rng.choice(["f", "m", "d", None], rows, p=[0.5, 0.4, 0.05, 0.05]),
            "age": np.where(rng.random(rows) < 0.1, np.nan, rng.integers(10, 95, rows)),
            "label": rng.integers(0, 2, rows),
        }
    )
    frame.to_csv(path, index=False)
    return frame


def spec(path: Path, subgroups: str) -> DataSpec:
    return DataSpec(dataset="csv", data_dir=str(path), drop_columns="sex, age", subgroups=subgroups)


def test_groups_of_columns_that_are_not_features(tmp_path: Path) -> None:
    frame = write(tmp_path / "a.csv")
    data = load(spec(tmp_path / "a.csv", "sex[f|m], age(18, 65, 80)"), 2)
    sex, age = data.subgroups
    assert sex.names == ("f", "m", "other", "missing")
    assert age.names == ("< 18", "18 to < 65", "65 to < 80", ">= 80", "missing")
    assert data.input_shape == (1,)
    assert data.test.subgroups is not None
    own = replace(
        spec(tmp_path / "a.csv", "sex[f|m], age(18, 65, 80)"), partition="own", data_dir="", positive_label="1"
    )
    site = read_own(str(tmp_path / "a.csv"), own, 0)
    assert site.subgroups is not None
    words = frame["sex"].where(frame["sex"].isin(["f", "m"]) | frame["sex"].isna(), "other").fillna("missing")
    assert [sex.names[code] for code in site.subgroups[:, 0]] == words.tolist()
    parts = pd.cut(frame["age"], [-np.inf, 18, 65, 80, np.inf], right=False).cat.codes.replace(-1, 4)
    assert site.subgroups[:, 1].tolist() == parts.tolist()


def test_values_are_found_or_taken_from_feature_columns(tmp_path: Path) -> None:
    write(tmp_path / "a.csv")
    found = load(spec(tmp_path / "a.csv", "sex"), 2).subgroups
    assert found[0].values == ("d", "f", "m")
    listed = replace(
        spec(tmp_path / "a.csv", "sex"), drop_columns="age", feature_columns="x, sex[f|m|*]", missing="mean"
    )
    assert load(listed, 2).subgroups[0].values == ("f", "m")
    heart = DataSpec(dataset="heart-disease", partition="natural", subgroups="sex, age(50, 60)")
    assert [each.names for each in load(heart, 4).subgroups] == [
        ("0", "1", "other", "missing"),
        ("< 50", "50 to < 60", ">= 60", "missing"),
    ]


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("age(65, 18)", "whose borders are not ascending numbers"),
        ("age(18, old)", "whose borders are not ascending numbers"),
        ("age()", "whose borders are not ascending numbers"),
        ("age(18", "'(18' after 'age'"),
        ("sex, sex[f|m]", "column 'sex' twice"),
        ("sex,,age(18)", "'', which is not a column"),
        ("sex[f|f]", "whose values are not different texts"),
        (", ".join(f"c{place}" for place in range(11)), "11 columns, of at most 10"),
        ("age(18) x", "'age(18) x', which is not a column"),
        ('"weight, kg"(50, 80), sex', ""),
    ],
)
def test_syntax(text: str, fault: str) -> None:
    if fault:
        with pytest.raises(DataError, match=re.escape(fault)):
            parse_subgroups(text)
    else:
        assert [each.column for each in parse_subgroups(text)] == ["weight, kg", "sex"]


def test_columns_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    write(path)
    for text, fault in (
        ("height(1)", "got 'height'; allowed: columns x, sex, age, label"),
        ("age", "'age' with"),
        ("sex(1)", "that are text"),
        ("label", "columns except the label"),
    ):
        with pytest.raises(DataError, match=re.escape(fault)):
            load(spec(path, text), 2)
    with pytest.raises(DataError, match="which is not a table"):
        load(DataSpec(dataset="digits", subgroups="x"), 2)
    with pytest.raises(DataError, match="without values"):
        read_own(str(path), replace(spec(path, "sex"), partition="own", data_dir="", positive_label="1"), 0)
