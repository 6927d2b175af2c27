"""Tests of csv and parquet on small tables written here."""

from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from problems.data import DataError, DataSpec, load
from tests.refusals import refuses, spell, states


def frame(count: int = 40) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    return pd.DataFrame(
        {
            "age": rng.integers(20, 80, count),
            "job": np.array(["nurse", "baker", "judge"])[np.arange(count) % 3],
            "constant": 0.1,
            "label": np.arange(count) % 4 // 3,
        }
    )


def write_table(table: pd.DataFrame, path: Path) -> str:
    if path.suffix == ".parquet":
        table.to_parquet(path)
    else:
        table.to_csv(path, index=False)
    return str(path)


@pytest.mark.parametrize(
    ("dataset", "name", "as_folder"),
    [("csv", "t.csv", True), ("csv", "t.csv.gz", False), ("csv", "t.csv.gz", True), ("parquet", "t.parquet", True)],
)
def test_tables(tmp_path: Path, dataset: str, name: str, as_folder: bool) -> None:
    path = write_table(frame(), tmp_path / name)
    data = load(DataSpec(dataset=dataset, data_dir=str(tmp_path) if as_folder else path), 2)
    assert data.input_shape == (5,)
    assert (len(data.train), len(data.train.positives), len(data.test), len(data.test.positives)) == (32, 8, 8, 2)
    ages = data.train.features[:, 0]
    assert (ages.mean(), ages.std()) == (pytest.approx(0.0, abs=1e-6), pytest.approx(1.0, abs=1e-5))
    assert (data.train.features[:, 1:4].sum(axis=1) == 1.0).all()
    assert (data.train.features[:, 4] == 0.0).all()


def test_a_tables_own_test_file_takes_the_training_statistics(tmp_path: Path) -> None:
    train = pd.DataFrame({"x": [0.0, 2.0, 0.0, 2.0], "t": ["a", "b", "a", "b"], "y": ["no", "no", "yes", "yes"]})
    test = pd.DataFrame({"y": ["no", "yes"], "t": ["a", "new"], "x": [5.0, 1.0]})
    train.to_csv(tmp_path / "train.csv", index=False)
    test.to_csv(tmp_path / "test.csv", index=False)
    spec = DataSpec(dataset="csv", data_dir=str(tmp_path), label_column="y", partition="consecutive")
    data = load(spec, 1)
    np.testing.assert_array_equal(data.train.features, [[-1, 1, 0], [1, 0, 1], [-1, 1, 0], [1, 0, 1]])
    np.testing.assert_array_equal(data.test.features, [[4, 1, 0], [0, 0, 0]])
    np.testing.assert_array_equal(data.train.labels, [0, 0, 1, 1])
    test.rename(columns={"x": "z"}).to_csv(tmp_path / "test.csv", index=False)
    with refuses(DataError, "test.csv: got other columns than .*train.csv: x, z"):
        load(spec, 1)
    test.drop(columns="y").to_csv(tmp_path / "test.csv", index=False)
    with refuses(DataError, "label-column: got 'y', .*choose a column of .*train.csv and .*test.csv"):
        load(replace(spec, feature_columns="x,t"), 1)


@pytest.mark.parametrize("keys", [{}, {"validation_fraction": 0.25}, {"imbalance": 0.22}])
def test_the_sites_that_a_column_names_are_natural_ones(tmp_path: Path, keys: dict[str, float]) -> None:
    wards = np.array([10, 9, 2])[np.random.default_rng(1).choice(3, 60, p=[0.2, 0.3, 0.5])]
    table = frame(60).assign(age=np.arange(60) + 0.5, ward=wards)
    path = write_table(table, tmp_path / "t.csv")
    spec = DataSpec("csv", path, partition="natural", site_column="ward", scale="none", **keys)  # type: ignore[arg-type]
    data = load(spec, 3)
    assert data.input_shape == (5,)  # age, three jobs and the constant
    for client, ward in enumerate((2, 9, 10)):  # by value
        rows = data.client(client).features[:, 0].astype(int)
        assert (wards[rows] == ward).all()
        assert len(rows) > 0.4 * (wards == ward).sum()
    with refuses(DataError, "number of clients: got 4, allowed: at most 3, since 3 sites have training rows"):
        load(spec, 4)
    write_table(table.assign(ward=table["ward"].where(table["age"] > 2)), tmp_path / "t.csv")
    with refuses(DataError, "column 'ward': got 2 of 60 missing"):
        load(spec, 3)
    write_table(table.assign(ward=["a"] * 59 + ["b"]), tmp_path / "t.csv")
    with refuses(DataError, "'natural' over 2 clients, which leaves client 1 without a sample"):
        load(DataSpec("csv", path, partition="natural", site_column="ward"), 2)  # b's only row is a test row


def test_slices_in_the_files_order_are_so_with_validation_rows_of_each_site(tmp_path: Path) -> None:
    path = write_table(frame(60).assign(age=np.arange(60) + 0.5, ward=np.arange(60) % 3), tmp_path / "t.csv")
    spec = DataSpec("csv", path, partition="consecutive", site_column="ward", scale="none", validation_fraction=0.25)
    slices = [load(spec, 4).client(place).features[:, 0] for place in range(4)]
    assert (np.diff(np.concatenate(slices)) > 0).all()


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"site_column": "ward"}, "site-column: got 'ward', allowed: columns age, job, constant; choose a column of"),
        ({"site_column": "label"}, "site-column: got 'label', allowed: columns age, job, constant; choose"),
        ({"dataset": "npz", "site_column": "ward"}, "site-column: got 'ward', allowed: '' unless dataset is csv or"),
        ({"partition": "own", "site_column": "ward"}, "site-column: got 'ward'"),
        ({"partition": "natural"}, "'natural' with dataset 'csv', which has no sites"),
    ],
)
def test_a_site_column_that_cannot_be(tmp_path: Path, keys: dict[str, str], message: str) -> None:
    spec = DataSpec("csv", write_table(frame(), tmp_path / "t.csv"))
    with refuses(DataError, message):
        load(replace(spec, **keys), 2)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"label": None}, "column 'label': got 40 of 40 labels missing"),
        ({"age": [1.0] * 39 + [np.inf]}, "column 'age': got 1 of 40 cells that are not finite, the first in row 40"),
        (
            {"job": ["a"] * 39 + [None]},
            "column 'job': got 1 of 40 cells missing, the first in row 40, allowed: no missing cells; set missing to",
        ),
        ({"label": [0, 1, 2, 3] * 10}, "positive-label: got nothing for 4 labels, .* occur: 0, 1, 2, 3; set positive"),
        ({"label": 1}, "positive-label: got nothing for 1 labels, .*labels that occur: 1; set positive-label"),
        (
            {"label": [1] + [0] * 39},
            "labels: got 1 positive, allowed: at least one row of each class for the training set and one for",
        ),
    ],
)
def test_table_errors(tmp_path: Path, change: dict[str, object], message: str) -> None:
    path = write_table(frame().assign(**change), tmp_path / "t.csv")
    with refuses(DataError, message):
        load(DataSpec(dataset="csv", data_dir=path), 2)


N = np.arange(40)


@pytest.mark.parametrize(
    ("values", "told"),
    [
        (
            ["?" if n % 9 == 7 else str(n) for n in N],
            "numbers as text except for 4 of 40, the first in row 8, allowed:",
        ),
        (["?"] * 38 + ["1", "2.5"], "numbers as text except for 38 of 40, the first in row 1, allowed:"),
        ([f"{n},5" for n in N], "numbers with decimal commas, allowed: decimal points"),
        ([f"{n % 7},125" for n in N], "numbers with decimal commas, allowed: decimal points"),
        ([f"{500 + 300 * n:,}.5" for n in N], "numbers with commas between thousands, allowed: numbers without"),
        ([f"{n % 18 + 10}.{n % 3 + 10}.1970" for n in N], "dates in the form 00.00.0000, allowed: dates in the form 0"),
        (
            [f"1970/1/{n % 18 + 10} noon" for n in N],
            "dates in the form 0000/0/00, allowed: dates in the form 0000-00-00",
        ),
        (["soon" if n == 2 else f"1970-01-{n % 18 + 10}" for n in N], "dates except for 1 of 40, the first in row 3"),
        (
            ["1970-02-30" if n == 2 else f"1970-01-{n % 18 + 10}" for n in N],
            "1 of 40 cells that are not dates, the first",
        ),
        (
            [f"case {n % 21}" for n in N],
            "a column that looks like an id, allowed: features; list the column in drop-columns",
        ),
        (N + 1, "a column that looks like an id, allowed: features; list the column in drop-columns"),
        (N + 1001, "a column that looks like an id, allowed: features; list the column in drop-columns"),
    ],
)
def test_columns_that_are_no_categories(values: object, told: str, tmp_path: Path) -> None:
    for name in ("t.csv", "t.parquet"):
        path = write_table(frame().assign(strange=values), tmp_path / name)
        with pytest.raises(DataError) as caught:
            load(DataSpec(dataset=name[2:], data_dir=path), 2)
        assert f"column 'strange': got {told}" in spell(caught.value)
        assert not {"case", "noon", "soon"} & set(spell(caught.value).replace("'", " ").split())


def test_all_columns_that_are_no_features_are_named_at_once(tmp_path: Path) -> None:
    table = frame(200).assign(gap=[None, *range(199)], mrn=-np.arange(200))
    table["PatientID"] = [f"p{n % 30}" for n in range(200)]
    table["text gap"] = ["a", None] * 100
    table["ward"] = [f"w{n % 33}" for n in range(200)]
    table.loc[3, "label"] = None
    table["Unnamed: 9"] = 1
    table.to_csv(tmp_path / "t.csv")
    spec = DataSpec(dataset="csv", data_dir=str(tmp_path / "t.csv"))
    with pytest.raises(DataError) as caught:
        load(spec, 2)
    text = spell(caught.value)
    for column, got in {
        "label": "1 of 200 labels missing",
        "Unnamed: 9": "no name in the file",
        "gap": "1 of 200 cells missing, the first in row 1",
        "text gap": "100 of 200 cells missing, the first in row 2",
        "PatientID": "a column that looks like an id",
        "mrn": "a column that looks like an id",
        "ward": "text of 33 different values, allowed: at most 32",
    }.items():
        assert states(text, f"column {column!r}: got {got}")
    assert str(caught.value).count("list the column in drop-columns, or list other columns") == 1
    assert "with * for all others, as in ward[w0|w1|*]" in text
    assert not {"'age'", "'Unnamed: 0'"} & set(text.replace(":", " :").split())
    table["label"] = frame(200)["label"]
    table.to_csv(tmp_path / "t.csv")
    listed = "|".join(f"w{n}" for n in range(33))
    data = load(replace(spec, feature_columns=f"age,ward[{listed}]"), 2)
    assert data.input_shape == (34,)


def test_what_may_stand_for_missing_values_is_warned_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    table = frame().assign(pulse=[-9, -9, *range(60, 98)], shift=[-9, -1, *range(38)])
    load(DataSpec(dataset="csv", data_dir=write_table(table, tmp_path / "t.csv")), 2)
    told = "columns contain 'pulse' -9 (2 of 40) and no other negative number: if this number means missing, list it in"
    assert caplog.messages == [f"{told} missing-values"]


def test_a_name_that_occurs_twice(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("age,job,age,label\n" + "1,a,2,0\n3,b,4,1\n" * 20)
    with refuses(
        DataError, r"t\.csv: got column 'age' more than once, allowed: different names; rename the repeated columns"
    ):
        load(DataSpec(dataset="csv", data_dir=str(tmp_path)), 2)


def test_labels_compare_as_text(tmp_path: Path) -> None:
    table, third = frame().drop(columns="job"), np.arange(40) % 4 // 3
    for labels, wanted, positives in (
        (third * 2.0 - 1, "", 8),
        (third * 2.0 - 1, "+1", 8),
        (third * 2.0 - 1, "-1", 24),
        (third == 1, "True", 8),
        (np.array(["a,b", "c"])[third], "a,b", 24),
        (np.array([2, 10])[third], "", 8),
    ):
        path = write_table(table.assign(label=labels), tmp_path / "t.csv")
        data = load(DataSpec(dataset="csv", data_dir=path, positive_label=wanted), 2)
        assert len(data.train.positives) == positives


def test_folders_with_too_few_or_too_many_files(tmp_path: Path) -> None:
    def refuses_file(dataset: str, name: str, message: str) -> None:
        with refuses(DataError, message):
            load(DataSpec(dataset=dataset, data_dir=str(tmp_path / name)), 2)

    refuses_file("csv", "", r"got no file in data-dir .*, allowed: a single file \(.csv, .csv.gz, .csv.zip")
    for name in ("a.csv", "b.csv"):
        write_table(frame(), tmp_path / name)
    refuses_file("csv", "", r"got a.csv, b.csv in data-dir .*, allowed: a single file")
    refuses_file("csv", "nowhere", "data-dir: got .*nowhere', which does not exist")
    (tmp_path / "empty.csv").write_text("")
    refuses_file("csv", "empty.csv", r"empty.csv: got an empty file, allowed: a file with a table")
    (tmp_path / "t.parquet").write_text("no parquet")
    refuses_file("parquet", "t.parquet", r"t.parquet: got a file that cannot be read as a table")


def test_rows_of_more_cells_than_names(tmp_path: Path) -> None:
    """Pandas would take the first cells for an index, and shift every column."""
    (tmp_path / "t.csv").write_text("age,bmi,label\n" + "".join(f"{20 + i},{i},{i % 2},\n" for i in range(20)))
    with refuses(DataError, "got 4 cells in line 2, allowed: 3 cells in each line"):
        load(DataSpec("csv", str(tmp_path / "t.csv")), 2)


def test_parquet_has_decimal_numbers_and_lists(tmp_path: Path) -> None:
    prices = [None if n == 3 else Decimal(n) / 4 for n in range(40)]
    path = write_table(frame().assign(price=prices, seen=[[n, 1] for n in range(40)]), tmp_path / "t.parquet")
    spec = DataSpec("parquet", path, missing="mean", scale="none")
    with refuses(DataError, "column 'seen': got cells that are lists or the like, allowed: a single value"):
        load(spec, 1)
    data = load(replace(spec, drop_columns="seen", feature_columns="price"), 1)
    known = np.concatenate([data.train.features, data.test.features])[:, 0]
    assert np.isin(np.arange(40) / 4, known).sum() == 39


def test_listed_values_are_those_of_the_file(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The values look like numbers or truths, or contain spaces; a whole number may be written as 2.0."""
    cells = {"a": ["007", "012"], "b": ["true", "false"], "c": [" nurse", "baker "], "d": ["1", "2.0"], "e": ["x", "y"]}
    table = pd.DataFrame({name: values * 20 for name, values in cells.items()})
    path = write_table(table.assign(label=[0, 0, 1, 1] * 10), tmp_path / "t.csv")
    columns = "a[007|012],b[true|false],c[nurse|baker],d[1|2],e[X|Y]"
    data = load(DataSpec("csv", path, feature_columns=columns), 1)
    seen = np.concatenate([data.train.features, data.test.features]).sum(axis=0)
    assert seen.tolist() == [20.0] * 8 + [0.0] * 2
    assert "column 'e' has 40 of 40 cells that are not listed in feature-columns" in caplog.text


def test_what_means_missing_is_not_looked_for_in_labels_and_sites(tmp_path: Path) -> None:
    table = frame().assign(label=[-1, 1] * 20, site=[9, 9, 8, 8] * 10)
    path = write_table(table, tmp_path / "t.csv")
    spec = DataSpec("csv", path, partition="natural", site_column="site", missing="mean", missing_values="-1,9")
    assert sum(len(load(spec, 2).client(place)) for place in (0, 1)) == 32


@pytest.mark.parametrize("marker", ["?", "-9", " "])
def test_a_label_that_means_missing_is_no_class(marker: str, tmp_path: Path) -> None:
    table = frame().assign(label=["yes", "no", "no", marker] * 10)
    spec = DataSpec("csv", write_table(table, tmp_path / "t.csv"), missing="mean", missing_values="?,-9")
    with refuses(DataError, "column 'label': got 10 of 40 labels missing"):
        load(replace(spec, positive_label="yes"), 2)


def test_an_id_that_begins_anew_in_the_test_file(tmp_path: Path) -> None:
    for name, rows in (("train.csv", 40), ("test.csv", 20)):
        write_table(frame(rows).assign(number=np.arange(rows)), tmp_path / name)
    with refuses(DataError, "column 'number': got a column that looks like an id"):
        load(DataSpec("csv", str(tmp_path)), 2)
