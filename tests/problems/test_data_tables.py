"""Csv and parquet on small tables written here."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from problems.data import DataError, DataSpec, load


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
    with pytest.raises(DataError, match="test.csv: got other columns than .*train.csv: x, z"):
        load(spec, 1)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"label": None}, "column 'label': got 40 of 40 labels missing"),
        ({"age": [1.0] * 39 + [np.inf]}, "column 'age': got 1 of 40 values missing or not finite, the first in row 40"),
        ({"job": ["a"] * 39 + [None]}, "column 'job': got 1 of 40 values missing"),
        ({"label": [0, 1, 2, 3] * 10}, "positive-label: got nothing for 4 labels, .* occur: 0, 1, 2, 3; set positive"),
        ({"label": 1}, "positive-label: got nothing for 1 labels, .*labels that occur: 1; set positive-label"),
        ({"label": [1] + [0] * 39}, "labels: got 1 positive, allowed: one for the training set and one for the test"),
    ],
)
def test_table_errors(tmp_path: Path, change: dict[str, object], message: str) -> None:
    path = write_table(frame().assign(**change), tmp_path / "t.csv")
    with pytest.raises(DataError, match=message):
        load(DataSpec(dataset="csv", data_dir=path), 2)


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
    def refuses(dataset: str, name: str, message: str) -> None:
        with pytest.raises(DataError, match=message):
            load(DataSpec(dataset=dataset, data_dir=str(tmp_path / name)), 2)

    refuses("csv", "", r"got no file in data-dir .*, allowed: one file \(.csv, .csv.gz\)")
    for name in ("a.csv", "b.csv"):
        write_table(frame(), tmp_path / name)
    refuses("csv", "", r"got a.csv, b.csv in data-dir .*, allowed: one file")
    refuses("csv", "nowhere", "data-dir: got .*nowhere', which does not exist")
    (tmp_path / "empty.csv").write_text("")
    refuses("csv", "empty.csv", r"empty.csv: got a file that cannot be read as a table")
    (tmp_path / "t.parquet").write_text("no parquet")
    refuses("parquet", "t.parquet", r"t.parquet: got a file that cannot be read as a table")
