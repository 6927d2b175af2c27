"""Tests of data sets with their columns spread over parties: all rows of `problems.data.load`, sparse data kept
sparse."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import sparse
from sklearn.datasets import dump_svmlight_file

from problems.data import DataError, DataSpec, load
from tests.programs import REAL, needs_real
from tests.refusals import refuses
from vertical.problem.blocks.base import Features
from vertical.problem.data import VerticalData, load_vertical

Array = NDArray[np.float64]


def dense(features: Features) -> Array:
    return features if isinstance(features, np.ndarray) else features.toarray()


def table(features: Features, labels: Array) -> Array:
    """Return (n, d + 1) features and labels, sorted, for comparisons in any order of the rows."""
    rows = np.column_stack([dense(features), labels])
    return rows[np.lexsort(rows.T)]


def everything(data: VerticalData) -> Array:
    """Return the training and test rows together, sorted."""
    features = np.concatenate([dense(data.train_features), dense(data.test_features)])
    return table(features, np.concatenate([data.train_labels, data.test_labels]))


def write_svmlight(folder: Path, rows: int = 30, columns: int = 9, seed: int = 0) -> tuple[Array, Array]:
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((rows, columns)) * (rng.random((rows, columns)) < 0.3)
    x[0, -1] = x[0, 0] = 1.0
    y = np.where(np.arange(rows) % 3 == 0, 1, -1)
    dump_svmlight_file(x, y, str(folder / "rows.svm"), zero_based=False)
    return x, y.astype(np.float64)


@given(parties=st.integers(1, 30), seed=st.integers(0, 5), partition=st.sampled_from(["random", "consecutive"]))
def test_columns_are_dealt_out_once_and_evenly(parties: int, seed: int, partition: str) -> None:
    data = load_vertical(DataSpec(dataset="breast-cancer", seed=seed), parties, partition=partition)
    assert np.array_equal(np.sort(np.concatenate(data.columns)), np.arange(30))
    sizes = [len(columns) for columns in data.columns]
    assert max(sizes) - min(sizes) <= 1
    assert all((np.diff(columns) > 0).all() and columns.dtype == np.int64 for columns in data.columns)
    if partition == "consecutive":
        assert np.array_equal(np.concatenate(data.columns), np.arange(30))
    for party in (0, parties - 1):
        train, test = data.party(party)
        np.testing.assert_array_equal(train, data.train_features[:, data.columns[party]])
        np.testing.assert_array_equal(test, data.test_features[:, data.columns[party]])
        assert train.flags.c_contiguous


def test_seeds_deal_differently_and_equal_arguments_equally() -> None:
    dealt = [
        np.concatenate(load_vertical(DataSpec(dataset="breast-cancer", seed=seed), 4).columns).tolist()
        for seed in (1, 1, 2)
    ]
    assert dealt[0] == dealt[1] != dealt[2]
    assert dealt[0] != list(range(30))


@pytest.mark.parametrize(
    "spec",
    [
        DataSpec(dataset="breast-cancer", seed=3, imbalance=0.2, label_noise=0.1),
        DataSpec(dataset="digits", positive_label="3, 5", test_fraction=0.4),
        DataSpec(dataset="breast-cancer", seed=3, imbalance=0.2, validation_fraction=0.3),
        DataSpec(dataset="synthetic-offset-sites"),
    ],
    ids=lambda spec: f"{spec.dataset}-{spec.imbalance}-{spec.validation_fraction}",
)
def test_rows_are_those_of_the_other_loader(spec: DataSpec) -> None:
    data, rows = load_vertical(spec, 3), load(spec, 16 if spec.dataset == "synthetic-offset-sites" else 1)
    for features, labels, part in (
        (data.train_features, data.train_labels, rows.train),
        (data.test_features, data.test_labels, rows.evaluated),
    ):
        assert features.dtype == labels.dtype == np.float64
        expected = table(part.features.reshape(len(part), -1), 2.0 * part.labels - 1.0)
        np.testing.assert_array_equal(table(features.astype(np.float32), labels), expected)


def test_svmlight_stays_sparse(tmp_path: Path) -> None:
    x, y = write_svmlight(tmp_path)
    spec = DataSpec(dataset="svmlight", data_dir=str(tmp_path))
    data, other = load_vertical(spec, 4), load(spec, 1)
    for features in (data.train_features, data.test_features, *data.party(2)):
        assert isinstance(features, sparse.csr_array)
        assert features.dtype == np.float64
        assert features.has_canonical_format
    np.testing.assert_allclose(everything(data), table(x, y), rtol=1e-15)
    for party, whole in zip(data.party(2), (data.train_features, data.test_features), strict=True):
        np.testing.assert_array_equal(dense(party), dense(whole)[:, data.columns[2]])
    expected = table(other.test.features, 2.0 * other.test.labels - 1)
    np.testing.assert_array_equal(table(data.test_features.astype(np.float32), data.test_labels), expected)


def test_svmlight_with_a_test_file_keeps_its_split(tmp_path: Path) -> None:
    (tmp_path / "train.svm").write_text("1 1:1 3:2\n-1 2:1\n1 1:4\n")
    (tmp_path / "test.svm").write_text("-1 2:5\n1 4:1\n")
    data = load_vertical(DataSpec(dataset="svmlight", data_dir=str(tmp_path)), 2)
    assert dense(data.train_features).tolist() == [[1, 0, 2, 0], [0, 1, 0, 0], [4, 0, 0, 0]]
    assert dense(data.test_features).tolist() == [[0, 5, 0, 0], [0, 0, 0, 1]]
    assert (data.train_labels.tolist(), data.test_labels.tolist()) == ([1.0, -1.0, 1.0], [-1.0, 1.0])


def test_a_regression_keeps_its_numbers(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((50, 3)), rng.standard_normal(50)
    np.savez(tmp_path / "rows.npz", X=x, y=y)
    spec = DataSpec(dataset="npz", data_dir=str(tmp_path), test_fraction=0.3)
    data, other = (load_vertical(dataclasses.replace(spec, seed=seed), 3, regression=True) for seed in (0, 1))
    assert (len(data.train_labels), len(data.test_labels)) == (35, 15)
    np.testing.assert_array_equal(everything(data), table(x, y))
    assert not np.array_equal(other.test_labels, data.test_labels)


@needs_real
def test_w8a() -> None:
    data = load_vertical(DataSpec(dataset="w8a", data_dir=str(REAL / "w8a" / "w8a.svm.gz")), 12)
    assert isinstance(data.train_features, sparse.csr_array)
    assert data.train_features.nnz + data.test_features.nnz == 579_586
    assert (data.train_features.data == 1.0).all()
    assert ((data.train_labels > 0).sum(), (data.test_labels > 0).sum()) == (1_183, 296)
    assert sum(data.party(party)[1].nnz for party in range(12)) == data.test_features.nnz


@pytest.mark.parametrize(
    ("spec", "changes", "message"),
    [
        ({}, {"parties": 0}, "number of parties: got 0, allowed: 1 or more"),
        ({}, {"parties": 31}, "columns: got 30 for 31 parties"),
        ({}, {"partition": "even"}, "column partition: got 'even', allowed: random, consecutive"),
        ({"dataset": "brest"}, {}, "dataset: got 'brest'"),
        ({"dataset": "synthetic-pl"}, {}, "'synthetic-pl', which is generated separately for each client"),
        ({"partition": "dirichlet"}, {}, "partition: got 'dirichlet', allowed: 'iid', since all parties have all rows"),
        ({"label_noise": 0.1}, {"regression": True}, "label-noise: got 0.1, allowed: 0.0, since labels are numbers"),
        ({"positive_label": "benign"}, {"regression": True}, "positive-label: got .*, allowed: '', since labels"),
        ({}, {"regression": True}, "labels of a regression: got benign, malignant, allowed: numbers"),
        ({"positive_label": "benign, malignant"}, {}, "labels: got 0 negative, allowed: at least one row"),
        ({"dataset": "w8a", "data_dir": "."}, {}, "data set 'w8a': got no"),
        ({"dataset": "csv"}, {}, "set data-dir to the file or its folder"),
    ],
)  # fmt: skip
def test_what_cannot_be_loaded_is_said(
    spec: dict[str, str], changes: dict[str, object], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    arguments: dict[str, object] = {"parties": 3, **changes}
    with refuses(DataError, message):
        load_vertical(DataSpec(**{"dataset": "breast-cancer", **spec}), **arguments)


def test_labels_of_a_regression_that_are_not_finite_are_named(tmp_path: Path) -> None:
    np.savez(tmp_path / "rows.npz", X=np.ones((20, 3)), y=np.array([np.inf, *range(19)]))
    with refuses(DataError, "labels of a regression: got inf, allowed: finite numbers; drop the rows whose label is"):
        load_vertical(DataSpec(dataset="npz", data_dir=str(tmp_path)), 2, regression=True)


def test_features_that_are_not_finite_are_located(tmp_path: Path) -> None:
    x = np.ones((20, 3))
    x[4, 2] = x[7, 2] = np.nan
    np.savez(tmp_path / "rows.npz", X=x, y=np.arange(20) % 2)
    with refuses(DataError, "features: got 2 values that are not finite, in 1 of 3 columns, the first in row 5"):
        load_vertical(DataSpec(dataset="npz", data_dir=str(tmp_path)), 2)
    lines = [f"{index % 2} 1:1 3:{'inf' if index == 5 else 2}" for index in range(20)]
    (tmp_path / "rows.svm").write_text("\n".join(lines))
    with refuses(DataError, "features: got 1 values that are not finite, in 1 of 3 columns, the first in row 6"):
        load_vertical(DataSpec(dataset="svmlight", data_dir=str(tmp_path)), 1)
    (tmp_path / "rows.svm").write_text("1 one:2\n")
    with refuses(DataError, "cannot be read as svmlight"):
        load_vertical(DataSpec(dataset="svmlight", data_dir=str(tmp_path)), 1)
