"""Tests of the key `borders`: its form, the bins of a run, and the protection of a site's rows."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from apps.config import ConfigError, parse_run_config
from problems.data import OWN, DataError, DataSpec, read_own, validate
from problems.data.agreement import agree, measure
from problems.data.borders import coarsen, parse_borders, write_borders
from tests.battery.federation import federate, patients
from tests.refusals import refuses

MIN_ROWS = 10


def own_spec(**changes: str) -> DataSpec:
    """Return the options of a site with its own file of patients."""
    columns = {"label_column": "ill", "drop_columns": "name", "feature_columns": "*,sex[f|m]", "positive_label": "yes"}
    return DataSpec(dataset="csv", partition=OWN, **{**columns, **changes})


@given(
    st.dictionaries(
        st.text(st.sampled_from('ab ,:|"[]'), min_size=1, max_size=5).filter(lambda name: name == name.strip()),
        st.lists(st.floats(-1e9, 1e9), min_size=1, max_size=5, unique=True).map(sorted),
        max_size=3,
    )
)
def test_borders_are_read_as_they_are_written(borders: dict[str, list[float]]) -> None:
    expected = tuple((name, tuple(numbers)) for name, numbers in borders.items())
    assert parse_borders(write_borders(borders)) == expected


WRONG = ["age", "age:", ":3", "age:3|2", "age:3|3", "age:x", "age:nan", "age:inf", "age:1, age:2", "age:1|", "age:1,"]


@pytest.mark.parametrize("text", [*WRONG, "age:" + "|".join(map(str, range(32)))])
def test_other_borders_are_refused(text: str) -> None:
    with refuses(DataError, "borders: .*allowed: column:number|number, each column once, at most 31 ascending"):
        validate(DataSpec("csv", data_dir="a.csv", scale="bins", borders=text))


def test_borders_need_bins_and_a_column_of_numbers(tmp_path: Path) -> None:
    patients(60, 0).to_csv(tmp_path / "a.csv", index=False)
    with refuses(DataError, "borders: got 'age:3', allowed: '' unless scale is 'bins'; set scale to bins"):
        validate(DataSpec("csv", borders="age:3"))
    for name in ("sex", "nowhere", "name"):
        wrong = own_spec(scale="bins", borders=f"{name}:3")
        with refuses(DataError, f"borders: got borders of '{name}', allowed: columns of numbers or dates: age, weight"):
            read_own(str(tmp_path / "a.csv"), wrong, 0)
    config = {"strategy": "vfb2-sgd", "dataset": "csv", "data-dir": "a.csv", "scale": "bins", "borders": "age:3"}
    with refuses(ConfigError, "borders: got 'age:3', allowed: '', since the clients of strategy 'vfb2-sgd' have"):
        parse_run_config(config)


def test_a_run_has_the_bins(tmp_path: Path) -> None:
    patients(300, 0).to_csv(tmp_path / "all.csv", index=False)
    config = {"dataset": "csv", "data-dir": str(tmp_path / "all.csv"), "label-column": "ill", "drop-columns": "name"}
    config |= {"positive-label": "yes", "strategy": "local-sgd", "scale": "bins", "bins": 4, "borders": "age:40|52.5"}
    run, _ = federate(tmp_path / "run", {**config, "num-server-rounds": 1})
    names = [one["name"] for one in json.loads((run.path / "columns.json").read_text("utf-8"))["outputs"]]
    assert [name for name in names if name.startswith("age")] == ["age <= 40", "age (40, 52.5]", "age > 52.5"]
    assert len([name for name in names if name.startswith("weight")]) == 4


cells = st.lists(st.one_of(st.integers(0, 9), st.floats(-50, 50), st.just(np.nan)), max_size=120)


@given(cells, st.integers(1, 15), st.floats(-50, 50), st.floats(-50, 50))
def test_no_border_and_no_two_borders_separate_few_cells(
    numbers: list[float], min_rows: int, first: float, second: float
) -> None:
    column = np.array(numbers, dtype=float)
    coarse = coarsen(column, min_rows)
    np.testing.assert_array_equal(np.isnan(coarse), np.isnan(column))
    present = coarse[~np.isnan(coarse)]
    _, sizes = np.unique(present, return_counts=True)
    assert (sizes >= min(min_rows, len(present))).all()
    between = (coarse > min(first, second)) & (coarse <= max(first, second))
    assert between.sum() == 0 or between.sum() >= min(min_rows, len(present))
    order = np.argsort(column[~np.isnan(column)], kind="stable")
    assert (np.diff(present[order]) >= 0).all()
    if min_rows == 1:
        np.testing.assert_array_equal(coarse, column)


def test_a_server_cannot_single_out_a_row(tmp_path: Path) -> None:
    """The server knows that one patient is older than all others, and asks with borders around this patient's age."""
    frame = patients(200, 0)
    frame.loc[17, ["age", "ill"]] = [101.5, "yes"]
    frame.to_csv(tmp_path / "site.csv", index=False)

    def train(borders: str) -> np.ndarray:
        rows = read_own(str(tmp_path / "site.csv"), own_spec(scale="bins", borders=borders), 0)
        assert rows.preprocessing is not None
        agreed = agree(rows.preprocessing, [measure(rows.preprocessing, rows.features[rows.train_rows])])
        exact = rows.samples(rows.train_rows, agreed).features
        assert 0 < exact[:, 1].sum() < MIN_ROWS  # without protection the bin has few rows
        return rows.samples(rows.train_rows, agreed, MIN_ROWS).features

    alone = train("age:101|102")
    assert alone[:, :3].sum(axis=0).tolist() == [len(alone), 0, 0]
    np.testing.assert_array_equal(alone[:, :3].sum(axis=1), 1)
    # two requests whose borders differ by this row
    without, together = train("age:85|101.4"), train("age:85|101.6")
    np.testing.assert_array_equal(without, together)


def test_sites_protect_training_rows_only(tmp_path: Path) -> None:
    """A bin with few training rows at each site has no effect on training: its weight stays at 0."""
    for seed in (0, 1):
        frame = patients(120, seed)
        frame.loc[:4, "age"] = 150.0
        frame.to_csv(tmp_path / f"site{seed}.csv", index=False)
    config = {
        "dataset": "csv",
        "partition": "own",
        "label-column": "ill",
        "drop-columns": "name",
        "feature-columns": "*,sex[f|m]",
    }
    config |= {
        "positive-label": "yes",
        "strategy": "local-sgd",
        "model": "linear-no-intercept",
        "borders": "age:50|149",
        "scale": "bins",
    }
    nodes = [{"data-path": str(tmp_path / f"site{seed}.csv")} for seed in (0, 1)]
    run, _ = federate(tmp_path / "run", {**config, "local-steps": 20}, nodes=nodes)
    outputs = json.loads((run.path / "columns.json").read_text("utf-8"))["outputs"]
    weights = dict(zip([one["name"] for one in outputs], run.model["output.weight"][0], strict=True))
    assert weights["age > 149"] == 0
    assert weights["age (50, 149]"] != 0
    assert pd.notna(run.result["metrics"]["auc"])
