"""Data sets with their columns spread over parties: the rows of `problems.data.load`, nothing lost, sparse kept so."""

from __future__ import annotations

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
from problems.vertical.blocks import Features
from problems.vertical.data import load_vertical
from problems.vertical.synthetic import sparse_like_news20

Array = NDArray[np.float64]

REAL = Path(__file__).parents[2] / ".." / "shared" / "data"
needs_real = pytest.mark.skipif(not REAL.is_dir(), reason=f"the real data sets are not at {REAL}")


def dense(features: Features) -> Array:
    return features if isinstance(features, np.ndarray) else features.toarray()


def sorted_rows(features: Features, labels: Array) -> Array:
    table = np.column_stack([dense(features).astype(np.float32), labels])
    return table[np.lexsort(table.T)]


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
        assert isinstance(train, np.ndarray)
        assert train.flags.c_contiguous


def test_seeds_deal_differently_and_equal_arguments_equally() -> None:
    first, again = (load_vertical(DataSpec(dataset="breast-cancer", seed=1), 4) for _ in range(2))
    other = load_vertical(DataSpec(dataset="breast-cancer", seed=2), 4)
    assert [c.tolist() for c in first.columns] == [c.tolist() for c in again.columns]
    np.testing.assert_array_equal(dense(first.train_features), dense(again.train_features))
    assert [c.tolist() for c in first.columns] != [c.tolist() for c in other.columns]
    assert not np.array_equal(np.concatenate(first.columns), np.arange(30))


@pytest.mark.parametrize(
    "spec",
    [
        DataSpec(dataset="breast-cancer", seed=3),
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
        (data.test_features, data.test_labels, rows.test),
    ):
        assert isinstance(features, np.ndarray)
        assert features.dtype == labels.dtype == np.float64
        expected = sorted_rows(part.features.reshape(len(part), -1), 2.0 * part.labels - 1.0)
        np.testing.assert_array_equal(sorted_rows(features, labels), expected)


def test_classes_are_named() -> None:
    data = load_vertical(DataSpec(dataset="digits", positive_label="3, 5"), 2)
    assert data.classes == tuple("0123456789")
    assert data.positives == ("3", "5")


def test_svmlight_stays_sparse(tmp_path: Path) -> None:
    x, y = write_svmlight(tmp_path)
    data = load_vertical(DataSpec(dataset="svmlight", data_dir=str(tmp_path)), 4)
    for features in (data.train_features, data.test_features, *data.party(2)):
        assert isinstance(features, sparse.csr_array)
        assert features.dtype == np.float64
        assert features.has_canonical_format
    got = np.concatenate([dense(data.train_features), dense(data.test_features)])
    labels = np.concatenate([data.train_labels, data.test_labels])
    table, expected = np.column_stack([got, labels]), np.column_stack([x, y])
    np.testing.assert_allclose(table[np.lexsort(table.T)], expected[np.lexsort(expected.T)], rtol=1e-15)
    train, test = data.party(2)
    np.testing.assert_array_equal(dense(train), dense(data.train_features)[:, data.columns[2]])
    np.testing.assert_array_equal(dense(test), dense(data.test_features)[:, data.columns[2]])
    assert (data.classes, data.positives) == (("-1", "1"), ("1",))
    other = load(DataSpec(dataset="svmlight", data_dir=str(tmp_path)), 1)
    np.testing.assert_array_equal(
        sorted_rows(data.test_features, data.test_labels), sorted_rows(other.test.features, 2.0 * other.test.labels - 1)
    )


def test_svmlight_with_a_test_file_keeps_its_split(tmp_path: Path) -> None:
    (tmp_path / "train.svm").write_text("1 1:1 3:2\n-1 2:1\n1 1:4\n")
    (tmp_path / "test.svm").write_text("-1 2:5\n1 4:1\n")
    data = load_vertical(DataSpec(dataset="svmlight", data_dir=str(tmp_path)), 2)
    assert dense(data.train_features).tolist() == [[1, 0, 2, 0], [0, 1, 0, 0], [4, 0, 0, 0]]
    assert dense(data.test_features).tolist() == [[0, 5, 0, 0], [0, 0, 0, 1]]
    assert (data.train_labels.tolist(), data.test_labels.tolist()) == ([1.0, -1.0, 1.0], [-1.0, 1.0])


def test_pixels_become_fractions(tmp_path: Path) -> None:
    pixels = np.arange(40 * 4, dtype=np.uint8).reshape(40, 2, 2)
    np.savez(tmp_path / "rows.npz", X=pixels, y=np.arange(40) % 2)
    data = load_vertical(DataSpec(dataset="npz", data_dir=str(tmp_path)), 4)
    assert isinstance(data.train_features, np.ndarray)
    assert data.train_features.shape == (32, 4)
    got = np.sort(np.concatenate([data.train_features, data.test_features]).ravel())
    np.testing.assert_array_equal(got, np.arange(160) / 255.0)


def test_a_regression_keeps_its_numbers(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((50, 3)), rng.standard_normal(50)
    np.savez(tmp_path / "rows.npz", X=x, y=y)
    spec = DataSpec(dataset="npz", data_dir=str(tmp_path), test_fraction=0.3)
    data = load_vertical(spec, 3, regression=True)
    assert (len(data.train_labels), len(data.test_labels)) == (35, 15)
    got = np.column_stack([
        np.concatenate([dense(data.train_features), dense(data.test_features)]),
        np.concatenate([data.train_labels, data.test_labels]),
    ])  # fmt: skip
    expected = np.column_stack([x, y])
    np.testing.assert_array_equal(got[np.lexsort(got.T)], expected[np.lexsort(expected.T)])
    assert (data.classes, data.positives) == ((), ())
    again = load_vertical(dataclasses.replace(spec, seed=1), 3, regression=True)
    assert not np.array_equal(again.test_labels, data.test_labels)


def test_a_regression_with_a_test_set_of_its_own(tmp_path: Path) -> None:
    x, y = np.arange(6.0).reshape(3, 2), np.array([0.5, 1.5, 2.5])
    np.savez(tmp_path / "rows.npz", X=x, y=y, X_test=-x[:1], y_test=-y[:1])
    data = load_vertical(DataSpec(dataset="npz", data_dir=str(tmp_path)), 2, regression=True)
    assert (data.train_labels.tolist(), data.test_labels.tolist()) == ([0.5, 1.5, 2.5], [-0.5])


@needs_real
def test_uci_credit() -> None:
    for folder in (REAL, REAL / "uci-credit"):
        data = load_vertical(DataSpec(dataset="uci-credit", data_dir=str(folder)), 8)
        assert isinstance(data.train_features, np.ndarray)
        assert (data.train_features.shape, data.test_features.shape) == ((24_000, 90), (6_000, 90))
        assert ((data.train_labels > 0).sum(), (data.test_labels > 0).sum()) == (5_309, 1_327)
        assert (data.train_features.min(), data.train_features.max()) == (0.0, 1.0)
        assert sorted(len(columns) for columns in data.columns) == [11] * 6 + [12] * 2


@needs_real
def test_w8a() -> None:
    sizes = []
    for folder in (REAL, REAL / "w8a", REAL / "w8a" / "w8a.svm.gz"):
        data = load_vertical(DataSpec(dataset="w8a", data_dir=str(folder)), 12)
        assert isinstance(data.train_features, sparse.csr_array)
        assert isinstance(data.test_features, sparse.csr_array)
        assert data.train_features.shape[1] == 300
        assert data.train_features.nnz + data.test_features.nnz == 579_586
        assert (data.train_features.data == 1.0).all()
        assert len(data.train_labels) + len(data.test_labels) == 49_749
        assert ((data.train_labels > 0).sum(), (data.test_labels > 0).sum()) == (1_183, 296)
        sizes.append(sum(data.party(party)[0].shape[1] for party in range(12)))
        entries = sum(data.party(party)[1].nnz for party in range(12))
        assert entries == data.test_features.nnz
    assert sizes == [300] * 3


@pytest.mark.parametrize(
    ("spec", "changes", "message"),
    [
        ({}, {"parties": 0}, "number of parties: got 0, allowed: 1 or more"),
        ({}, {"parties": 31}, "columns: got 30 for 31 parties"),
        ({}, {"partition": "even"}, "column partition: got 'even', allowed: random, consecutive"),
        ({"dataset": "brest"}, {}, "dataset: got 'brest'"),
        ({"dataset": "synthetic-pl"}, {}, "'synthetic-pl', which is drawn client by client"),
        ({"dataset": "synthetic-sparse-logistic"}, {}, "is drawn client by client"),
        ({"partition": "dirichlet"}, {}, "partition: got 'dirichlet', allowed: 'iid', since parties share all rows"),
        ({"client_shift": 0.1}, {}, "client-shift: got 0.1, allowed: 0.0, since parties share all rows"),
        ({"label_noise": 0.1}, {"regression": True}, "label-noise: got 0.1, allowed: 0.0, since labels are numbers"),
        ({"positive_label": "benign"}, {"regression": True}, "positive-label: got .*, allowed: '', since labels"),
        ({}, {"regression": True}, "labels of a regression: got benign, malignant, allowed: numbers"),
        ({"positive_label": "benign, malignant"}, {}, "the training set has one class only|0 negative"),
        ({"positive_label": "cured"}, {}, "positive-label: got 'cured', which does not occur"),
        ({"dataset": "w8a", "data_dir": "."}, {}, "data set 'w8a': got no"),
        ({"dataset": "csv"}, {}, "set data-dir to the file or its folder"),
    ],
)  # fmt: skip
def test_what_cannot_be_loaded_is_said(
    spec: dict[str, str], changes: dict[str, object], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    arguments: dict[str, object] = {"parties": 3, **changes}
    with pytest.raises(DataError, match=message):
        load_vertical(DataSpec(**{"dataset": "breast-cancer", **spec}), **arguments)


def test_no_such_party() -> None:
    data = load_vertical(DataSpec(dataset="breast-cancer"), 3)
    for party in (-1, 3):
        with pytest.raises(DataError, match=f"party: got {party}, allowed: 0 to 2"):
            data.party(party)


def test_features_that_are_not_finite_are_located(tmp_path: Path) -> None:
    x = np.ones((20, 3))
    x[4, 2] = x[7, 2] = np.nan
    np.savez(tmp_path / "rows.npz", X=x, y=np.arange(20) % 2)
    with pytest.raises(
        DataError, match="features: got 2 that are not finite, in 1 of 3 columns, the first in row 5, column 3"
    ):
        load_vertical(DataSpec(dataset="npz", data_dir=str(tmp_path)), 2)
    lines = [f"{index % 2} 1:1 3:{'inf' if index == 5 else 2}" for index in range(20)]
    (tmp_path / "rows.svm").write_text("\n".join(lines))
    with pytest.raises(
        DataError, match="features: got 1 that are not finite, in 1 of 3 columns, the first in row 6, column 3"
    ):
        load_vertical(DataSpec(dataset="svmlight", data_dir=str(tmp_path)), 1)


def test_a_damaged_svmlight_file(tmp_path: Path) -> None:
    (tmp_path / "rows.svm").write_text("1 one:2\n")
    with pytest.raises(DataError, match="cannot be read as svmlight"):
        load_vertical(DataSpec(dataset="svmlight", data_dir=str(tmp_path)), 1)


@pytest.mark.parametrize("regression", [False, True])
def test_a_test_file_with_one_class(tmp_path: Path, regression: bool) -> None:
    (tmp_path / "train.svm").write_text("1 1:1\n-1 2:1\n")
    (tmp_path / "test.svm").write_text("1 2:5\n1 1:1\n")
    spec = DataSpec(dataset="svmlight", data_dir=str(tmp_path))
    if regression:
        assert load_vertical(spec, 1, regression=True).test_labels.tolist() == [1.0, 1.0]
        return
    with pytest.raises(DataError, match="the test set: got one class only: 2 positives and 0 negatives"):
        load_vertical(spec, 1)


def test_synthetic_rows_look_like_news20() -> None:
    x, y = sparse_like_news20(rows=1_500, columns=20_000, nonzeros=100, seed=1)
    assert x.shape == (1_500, 20_000)
    assert x.has_canonical_format
    assert x.dtype == np.float64
    counts = np.diff(x.indptr)
    assert 60 < counts.mean() < 100
    assert (x.data > 0).all()
    np.testing.assert_allclose(np.sqrt(x.multiply(x).sum(axis=1)), 1.0, rtol=1e-12)
    uses = np.sort(np.bincount(x.indices, minlength=20_000))[::-1]
    assert uses[0] > 1_450
    assert uses[:200].sum() > 0.4 * x.nnz
    assert (uses[10_000:] < 12).all()
    assert set(y.tolist()) == {-1.0, 1.0}
    assert 0.4 < (y > 0).mean() < 0.6


def test_synthetic_rows_are_addressed_by_the_seed() -> None:
    first, again, other = (sparse_like_news20(50, 1_000, 10, seed) for seed in (1, 1, 2))
    np.testing.assert_array_equal(first[0].toarray(), again[0].toarray())
    np.testing.assert_array_equal(first[1], again[1])
    assert (first[0] != other[0]).nnz
    clean, noisy = (sparse_like_news20(2_000, 1_000, 10, 0, noise=noise) for noise in (0.0, 0.3))
    assert np.mean(clean[1] != noisy[1]) == pytest.approx(0.3, abs=0.04)
    np.testing.assert_array_equal(clean[0].toarray(), noisy[0].toarray())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"rows": 0}, "need rows and columns, and 1 to"),
        ({"columns": 5, "nonzeros": 6}, "1 to 5 nonzeros"),
        ({"noise": 0.5}, "noise must be at least 0 and below 0.5, got 0.5"),
    ],
)
def test_bad_shapes_of_synthetic_rows(arguments: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        sparse_like_news20(**arguments)
