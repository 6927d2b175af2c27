"""Tests of warnings of sentinels, leaks, far cells and other units; clean tables cause none."""

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from apps.run_directory.missing import Watch
from problems.data import DataSpec, load
from problems.data.agreement import measure
from problems.data.doubts import find_leaks, find_sentinels
from problems.data.own import read_own
from problems.data.preprocessing import Feature, Preprocessing
from problems.data.units import find_strange_sites

RNG = np.random.default_rng(0)
N = 240
LABELS = np.arange(N) % 3 // 2


def table() -> pd.DataFrame:
    """Return a table that causes no warning."""
    rng = np.random.default_rng(1)
    return pd.DataFrame({"age": rng.integers(18, 100, N), "crp": rng.lognormal(0, 1.5, N), "y": LABELS})


def said(frame: pd.DataFrame, folder: Path, caplog: pytest.LogCaptureFixture, **keys: Any) -> str:
    """Return the warnings of reading a table."""
    frame.to_csv(folder / "t.csv", index=False)
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        load(DataSpec("csv", str(folder / "t.csv"), label_column="y", **keys), 3)
    return "\n".join(caplog.messages)


@pytest.mark.parametrize(
    ("cells", "found"),
    [
        ([0, 1, 2, 96, 98], [96, 98]),
        ([0, 1, 2, 97, 98, 99], [97, 98, 99]),
        ([1, 2, 9], [9]),
        ([150, 171, 190, 999], [999]),
        ([0.5, 1.5, 7.5, 9999], [9999]),
        ([-5, 2, 3, -999], [-999]),
        ([60, 75, 90, 97, 98, 99], []),
        ([*range(18, 100), 999], [999]),
        ([0, 1], []),
        ([1, 2, 3, 4, 5, 6, 7, 8, 9], []),
        ([0, 1, 2, 3, 8], []),
        ([0, 99], []),
        ([990, 995, 998, 999], []),
        ([100, 6000, 9999], []),
    ],
)
def test_values_far_from_all_others_are_sentinels(cells: list[float], found: list[float]) -> None:
    assert find_sentinels(np.array(cells * 9, dtype=float)) == found


@given(st.lists(st.integers(0, 100), min_size=2), st.sampled_from([999.0, 9999.0, 99999.0]))
def test_a_sentinel_is_found_beside_any_small_numbers(cells: list[int], sentinel: float) -> None:
    numbers = np.array([*cells, 1, 2], dtype=float)
    assert sentinel in find_sentinels(np.array([*numbers, sentinel, sentinel]))
    assert sentinel not in find_sentinels(np.array([*numbers, sentinel]))  # one cell may be a typing error


def test_sentinels_are_warned_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    frame = table()
    assert said(frame, tmp_path, caplog) == ""
    frame["smoker"] = np.where(np.arange(N) % 10 == 0, 98, LABELS ^ (np.arange(N) % 2))
    frame["seen"] = [f"{2010 + i % 9}-01-31" if i % 20 else "9999-12-31" for i in range(N)]
    text = said(frame, tmp_path, caplog)
    assert "columns contain 'smoker' 98 (24 of 240), 'seen' 9999-12-31 (12 of 240), far from all other cells" in text
    assert "'smoker' 98" not in said(frame, tmp_path, caplog, missing="mean", missing_values="smoker:98")


@pytest.mark.parametrize("seed", range(20))
def test_columns_of_noise_separate_no_labels(seed: int) -> None:
    rng = np.random.default_rng(seed)
    for rows in (6, 20, 100):
        labels = (np.arange(rows) % 3 == 0).astype(np.int8)
        values = rng.normal(size=(rows, 300))
        values[rng.random(values.shape) < 0.3] = np.nan
        assert find_leaks([f"{i}" for i in range(300)], values, labels, labels.astype(np.int64)) == []


def test_columns_with_the_answer_are_warned_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    rng = np.random.default_rng(0)
    frame = table().assign(
        cost=LABELS * 10.0, near=LABELS * 5 + rng.random(N), outcome=np.where(LABELS, "dead", "alive")
    )
    frame["death"] = np.where(LABELS & (np.arange(N) % 2), rng.integers(1, 90, N), np.nan)
    text = said(frame, tmp_path, caplog, missing="mean")
    assert (
        "columns that alone separate positive from negative labels, and may contain the answer: 'cost' (negative"
        in text
    )
    assert "rows up to 0, positive rows from 10), 'near' (" in text
    assert "'outcome' (" in text
    assert "'death' (" in text
    assert "cells, in positive rows only)" in text
    assert "'age'" not in text
    grades = frame.assign(y=np.arange(N) % 4, cost=np.arange(N) % 4 * 10)[["age", "cost", "y"]]
    assert "'cost' (one value for each label)" in said(grades, tmp_path, caplog, positive_label="2")
    read_own(
        str(tmp_path / "t.csv"),
        DataSpec("csv", partition="own", label_column="y", positive_label="2,3"),
        0,
    )
    assert caplog.messages[-1].count("'cost'") == 1


def test_arrays_with_the_answer_are_warned_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    features = np.random.default_rng(0).normal(size=(N, 4))
    features[:, 2] = -LABELS
    np.savez(tmp_path / "a.npz", X=features, y=LABELS)
    load(DataSpec("npz", str(tmp_path / "a.npz")), 2)
    assert "'feature 2' (positive rows up to -1, negative rows from 0)" in caplog.text


def test_a_few_cells_far_away_are_warned_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    frame = table()
    frame.loc[3, "crp"] = 1e6
    text = said(frame, tmp_path, caplog)
    assert "columns in which a few extreme cells decide the scale: 'crp' (deviation 7" in text
    assert "97 % of cells from" in text
    assert said(frame, tmp_path, caplog, scale="quantile") == said(frame, tmp_path, caplog, scale="log") == ""


def measured(cells: list[NDArray[np.float64]], **keys: Any) -> list[tuple[int, str]]:
    columns = Preprocessing((Feature("weight", "number"),), **keys)
    sites = [measure(columns, site[:, None]) for site in cells]
    return find_strange_sites(columns, [site for site in sites if site is not None])


def weights(*factors: float) -> list[NDArray[np.float64]]:
    rng = np.random.default_rng(0)
    return [factor * rng.normal(80, 15, 200) for factor in factors]


@pytest.mark.parametrize("keys", [{}, {"scale": "log"}, {"scale": "quantile"}, {"scale": "none", "missing": "median"}])
@pytest.mark.parametrize(
    ("factors", "strange"),
    [
        ((1, 1, 2.2046), [2]),
        ((2.2046, 1, 1, 1), [0]),
        ((1, 2.2046), [1]),
        ((1, 1, 2.2046, 1, 2.2046), [2, 4]),
        ((1, 1, 1, 0.001), [3]),
        ((1, 1.2, 0.9, 1.3, 0.8), []),
        ((1, 1.5, 2.2, 3, 4.5), []),
        ((1,), []),
    ],
)
def test_a_site_with_another_unit_is_found(
    factors: tuple[float, ...], strange: list[int], keys: dict[str, Any]
) -> None:
    found = measured(weights(*factors), **keys)
    assert [site for site, _ in found] == strange
    assert all(text.startswith("'weight' (centre ") for _, text in found)


def test_sites_that_differ_as_sites_do_are_not_found() -> None:
    rng = np.random.default_rng(0)
    flags = [(rng.random(200) < share).astype(float) for share in (0.01, 0.02, 0.01, 0.9)]
    assert measured(flags) == []
    assert measured([np.full(50, 300.0), np.full(50, 300.0), np.full(50, 900.0)]) == []
    assert measured([rng.poisson(rate, 200).astype(float) for rate in (1, 1, 2, 6)]) == []
    assert measured([rng.normal(mean, 15, 200) for mean in (60, 65, 55, 8)]) == []  # one hospital for children
    kelvin = [rng.normal(37, 0.7, 200), rng.normal(310, 0.7, 200), rng.normal(36.8, 0.7, 200)]
    assert [site for site, _ in measured(kelvin)] == [1]


def test_a_site_of_a_site_column_is_warned_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    ward = np.arange(N) % 3 * 10
    rng = np.random.default_rng(2)
    frame = table().assign(ward=ward, weight=rng.normal(80, 15, N) * np.where(ward == 20, 2.2046, 1))
    keys = {"site_column": "ward", "partition": "natural"}
    text = said(frame, tmp_path, caplog, **keys)
    assert (
        "sites whose numbers are far from the numbers of all other sites, perhaps in another unit: site 2: 'weight'"
        in text
    )
    frame["weight"] = rng.normal(80, 15, N)
    assert said(frame, tmp_path, caplog, **keys) == ""


def test_an_auc_near_1_in_the_first_rounds_is_remarked_once() -> None:
    def take(watch: Watch, server_round: int, auc: float) -> list[str]:
        return watch.take({"round": server_round, "dropped": {}, "auc": auc}, [0])

    watch = Watch("", "learning-rate")
    assert [take(watch, 0, 1.0), take(watch, 1, 0.998)] == [[], []]
    (text,) = take(watch, 2, 0.9995)
    assert "auc is above 0.999 after so few rounds: check whether a column contains the answer" in text
    assert [take(watch, 3, 1.0), take(Watch("", ""), 4, 1.0)] == [[], []]


def test_nothing_is_found_in_a_spec_without_doubts(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    spec = DataSpec("breast-cancer")
    load(spec, 2)
    load(replace(spec, dataset="digits"), 2)
    assert caplog.messages == []
