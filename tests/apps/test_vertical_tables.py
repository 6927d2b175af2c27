"""A party's own file: the names, order and split of rows, the encoding of columns, and errors."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from apps.config import ConfigError, parse_run_config
from apps.parties.column_use import ColumnUse
from apps.parties.data import data_loader
from apps.parties.table import PartyTable
from problems.data import DataError, DataSpec
from problems.data.disturb import split_rows
from problems.data.formats.tables import from_frames
from tests.refusals import refuses, spell
from vertical.problem.objectives import make_objective

USE = ColumnUse(labels=("label", "y"), fewest_columns=1)
SPEC = DataSpec("csv", test_fraction=0.25, seed=3, scale="range")


def table(path: Path, columns: dict[str, Any], spec: DataSpec = SPEC, **options: Any) -> PartyTable:
    pd.DataFrame(columns).to_csv(path / "party.csv", index=False)
    problem = make_objective(options.pop("problem", "logistic"))
    return PartyTable(path / "party.csv", spec, options.pop("id_column", "id"), problem, use=USE, **options)


def rows_of(count: int) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    return {"id": rng.permutation(count), "a": rng.normal(size=count), "b": rng.integers(0, 9, count)}


def in_order(columns: dict[str, Any]) -> np.ndarray:
    """Return the file's rows in the order of their ids as text."""
    return np.argsort([str(name) for name in columns["id"]])


def test_rows_are_in_the_order_of_their_ids_as_the_file_writes_them(tmp_path: Path) -> None:
    party = table(tmp_path, {"id": ["b", "10", "9", "a"], "x": [1.0, 2.0, 3.0, 4.0]})
    assert list(party.ids(None)) == ["10", "9", "a", "b"]
    assert list(party.ids(np.array([3, 0]))) == ["b", "10"]
    (tmp_path / "party.csv").write_text("id,x\n007,1\n7,2\n70,3\n")
    party = PartyTable(tmp_path / "party.csv", SPEC, "id", make_objective("logistic"), use=USE)
    assert list(party.ids(None)) == ["007", "7", "70"]


def test_errors_which_peers_and_server_read_quote_no_cell_and_no_label(tmp_path: Path) -> None:
    jobs = [f"job {n % 40}" for n in range(400)]
    with refuses(DataError, "text of 40 different values") as caught:
        table(tmp_path, rows_of(400) | {"job": jobs})
    with refuses(DataError, "nothing for 20 labels, allowed: one or several labels; 20 different labels") as other:
        table(tmp_path, rows_of(40) | {"label": [f"salary {n % 20}" for n in range(40)]})
    assert "job 1" not in spell(caught.value)
    assert "salary" not in spell(other.value)


def test_columns_that_are_no_features_are_named_at_once(tmp_path: Path) -> None:
    columns = rows_of(40) | {"second_id": [f"p{n}" for n in range(40)], "gap": [None] + [1.0] * 39}
    with pytest.raises(DataError) as caught:
        table(tmp_path, columns)
    assert "column 'second_id': got a column that looks like an id, allowed: features; list the column" in spell(
        caught.value
    )
    assert "column 'gap': got 1 of 40 cells missing" in spell(caught.value)


def test_numbers_are_scaled_by_the_training_rows(tmp_path: Path) -> None:
    columns = rows_of(40)
    party = table(tmp_path, columns | {"constant": 5.0})
    holding, (kept, *_) = party.holding(None), party.preprocessing(None).outputs
    train, test = split_rows(40, 0.25, 3, "vertical split")
    raw = columns["a"][in_order(columns)]
    low, high = raw[train].min(), raw[train].max()
    assert (kept.mean, kept.deviation) == (low, high - low)
    for rows, part in ((train, holding.features), (test, holding.test_features)):
        np.testing.assert_allclose(part[:, 0], (raw[rows] - low) / (high - low), atol=1e-14)
        assert not part[:, 2].any()


def test_a_party_with_the_label_column_holds_labels(tmp_path: Path) -> None:
    columns = rows_of(8)
    assert not table(tmp_path, columns).labelled
    assert table(tmp_path, columns).holding(None).labels is None
    train, test = split_rows(8, 0.25, 3, "vertical split")
    regression = {"spec": replace(SPEC, label_column="y"), "problem": "ridge"}
    for name, labels, wanted, options in (
        ("label", columns["id"] % 2, np.where(columns["id"] % 2 == 1, 1.0, -1.0), {}),
        ("y", columns["a"] * 2, columns["a"] * 2, regression),
    ):
        party = table(tmp_path, columns | {name: labels}, **options)
        assert party.labelled
        assert party.names == ["a", "b"]
        holding, wanted = party.holding(None), wanted[in_order(columns)]
        np.testing.assert_array_equal(holding.labels, wanted[train])
        np.testing.assert_array_equal(holding.test_labels, wanted[test])


def test_some_rows_in_an_order_of_their_own(tmp_path: Path) -> None:
    party = table(tmp_path, {"id": list("abcdef"), "x": [0.0, 10.0, 20.0, 30.0, 40.0, 50.0], "label": [0, 1] * 3})
    rows = np.array([5, 1, 3, 0])
    holding = party.holding(rows)
    train, _ = split_rows(4, 0.25, 3, "vertical split")
    raw, signs = np.array([50.0, 10.0, 30.0, 0.0]), np.array([1.0, 1.0, 1.0, -1.0])
    low, high = raw[train].min(), raw[train].max()
    np.testing.assert_allclose(holding.features[:, 0], (raw[train] - low) / (high - low))
    assert holding.labels.tolist() == signs[train].tolist()
    assert party.holding(None).features.shape == (4, 1)  # two of six rows are test rows


def test_the_split_is_the_seed_s() -> None:
    one, again, other = (split_rows(50, 0.2, seed, "vertical split")[1] for seed in (1, 1, 2))
    assert np.array_equal(one, again)
    assert not np.array_equal(one, other)
    with refuses(DataError, "rows: got 1, allowed: two or more"):
        split_rows(1, 0.2, 0, "vertical split")


@pytest.mark.parametrize(
    ("columns", "told"),
    [
        ({"name": [1, 2], "x": [1.0, 2.0]}, "no column 'id', allowed: the columns name, x; set vfb2.id-column"),
        ({"id": [1, 2, 1], "x": [1.0, 2.0, 3.0]}, "1 ids more than once, such as in rows 1 and 3"),
        ({"id": ["a", None], "x": [1.0, 2.0]}, "1 of 2 ids missing"),
        ({"id": [1, 2, 3], "x": [1.0, np.nan, 3.0]}, "column 'x': got 1 of 3 cells missing"),
        ({"id": [1, 2], "town": ["x", None]}, "column 'town': got 1 of 2 cells missing"),
        ({"id": [1, 2], "label": [0, 1]}, "no column except id and label"),
        ({"id": [1, 2, 3], "x": [1.0, 2.0, 3.0], "label": ["u", "v", "w"]}, "positive-label: got nothing for 3 labels"),
        ({"id": [1, 2, 3], "x": [1.0, 2.0, 3.0], "label": [0, 1, None]}, "labels: got 1 of 3 missing"),
    ],
)
def test_a_file_that_cannot_be_used_says_why(columns: dict[str, Any], told: str, tmp_path: Path) -> None:
    with refuses(DataError, told):
        table(tmp_path, columns)


@pytest.mark.parametrize("keys", [{"feature_columns": "others"}, {"drop_columns": "a,b"}])
def test_a_party_of_whose_columns_none_is_chosen_hears_of_the_keys(keys: dict[str, Any], tmp_path: Path) -> None:
    with refuses(DataError, "no column except id and label, after feature-columns and drop-columns"):
        table(tmp_path, rows_of(4), replace(SPEC, **keys))


def test_parties_hold_out_the_same_validation_rows(tmp_path: Path) -> None:
    """The validation rows depend on the number of rows only, with or without labels; no part contains test rows."""
    spec = replace(SPEC, validation_fraction=0.2)
    columns = rows_of(80)
    party = table(tmp_path, columns, spec)
    held, fitted = party.holding(None), party.preprocessing(None)
    labelled = table(tmp_path, {**columns, "label": np.arange(80) % 2}, spec).holding(None)
    np.testing.assert_array_equal(labelled.features, held.features)
    np.testing.assert_array_equal(labelled.test_features, held.test_features)
    train, _ = split_rows(80, 0.25, 3, "vertical split")
    inside, outside = (train[rows] for rows in split_rows(60, 0.2, 3, "vertical validation split"))
    assert (len(inside), len(outside)) == (48, 12)
    raw = np.stack([columns["a"], columns["b"]], axis=1)[in_order(columns)]
    for rows, part in ((inside, held.features), (outside, held.test_features)):
        np.testing.assert_array_equal(part, fitted.transform(raw[rows]))


@pytest.mark.parametrize("scale", ["standard", "quantile", "log", "none"])
def test_scales_and_fills_are_those_of_a_table_with_all_rows(scale: str, tmp_path: Path) -> None:
    """A site of a horizontal run computes the same from these training rows; a gap in any row adds a feature."""
    columns = rows_of(80)
    order, train = in_order(columns), split_rows(80, 0.25, 3, "vertical split")[0]
    gap = np.where(np.arange(80) == order[train[5]], np.nan, columns["a"])
    outside = np.where(np.arange(80) == order[np.setdiff1d(np.arange(80), train)[0]], np.nan, columns["b"])
    columns |= {"a": gap, "b": outside, "town": ["x", "y"] * 40, "spare": 1.0}
    spec = replace(SPEC, scale=scale, missing="indicator", drop_columns="spare,elsewhere", feature_columns="*,far[1|2]")
    party = table(tmp_path, columns, spec)
    assert party.names == ["a", "b", "town=x", "town=y", "a missing", "b missing"]
    frame = pd.read_csv(tmp_path / "party.csv").iloc[order].reset_index(drop=True)
    whole = replace(spec, drop_columns="spare", feature_columns="")
    source = from_frames(frame.drop(columns="id").assign(label=[0, 1] * 40), None, ("", None), whole)
    expected, fitted = source.features(train)
    np.testing.assert_allclose(party.holding(None).features[:, :5], expected[train], rtol=1e-6, atol=1e-6)
    assert party.preprocessing(None).outputs[:5] == fitted.outputs
    assert party.holding(None).test_features[:, 5].sum() == 1
    assert not party.holding(None).features[:, 5].any()


def test_bins_are_of_all_rows_of_the_file_and_one_group(tmp_path: Path) -> None:
    columns = rows_of(640) | {"town": ["x", "y"] * 320, "gap": np.where(np.arange(640) % 3, np.arange(640.0), np.nan)}
    spec = replace(SPEC, scale="bins", bins=4, missing="indicator", drop_columns="b")
    party = table(tmp_path, columns, spec)
    quarters = np.quantile(columns["a"], [0.25, 0.5, 0.75])
    train = split_rows(100, 0.25, 3, "vertical split")[0]
    rows = np.arange(100)  # for example the common rows
    features = party.holding(rows).features
    in_bins = np.searchsorted(quarters, columns["a"][in_order(columns)][train])
    np.testing.assert_array_equal(features[:, :4], np.eye(4)[in_bins])
    assert party.names[4:] == ["town=x", "town=y", *party.names[6:10], "gap missing"]
    assert party.holding(rows).groups.tolist() == [0] * 4 + [1] * 2 + [2] * 5
    assert party.columns == features.shape[1] == 11
    assert (features[:, 6:].sum(axis=1) == 1).all()


def test_a_party_with_labels_has_the_intercept(tmp_path: Path) -> None:
    columns = rows_of(20)
    assert table(tmp_path, columns, intercept=True).names == ["a", "b"]
    party = table(tmp_path, columns | {"label": [0, 1] * 10}, intercept=True)
    assert party.names == ["a", "b", "(intercept)"]
    assert (party.holding(None).features[:, 2] == 1).all()


@pytest.mark.parametrize(
    ("key", "value", "problem"),
    [
        ("imbalance", 0.5, "logistic"),
        ("label-noise", 0.1, "logistic"),
        ("positive-label", "1", "ridge"),
        ("data-dir", "/srv/all.csv", "logistic"),
    ],
)
def test_what_a_party_s_own_file_does_not_take_is_refused(key: str, value: Any, problem: str) -> None:
    config = parse_run_config({"strategy": "vfb2-sgd", "dataset": "csv", key: value, "vfb2.problem": problem})
    with refuses(ConfigError, f"{key}: got {value!r}, allowed: .* since "):
        data_loader(config, {"data-path": "/srv/party.csv"}, 0, 3)


def test_a_constant_column_is_zero_by_every_scale(tmp_path: Path) -> None:
    for scale in ("standard", "quantile", "log", "range", "bins"):
        party = table(tmp_path, rows_of(40) | {"c": 5.0}, replace(SPEC, scale=scale))
        made_of = party.preprocessing(None)
        assert made_of.transform(np.array([[0.0, 1.0, 4.99], [0.0, 1.0, 5.01]]))[:, -1].tolist() == [0.0, 0.0]
