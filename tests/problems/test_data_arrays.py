"""Tests of svmlight and npz on small files written here."""

import gzip
from pathlib import Path

import numpy as np
import pytest

from problems.data import DataError, DataSpec, load
from tests.refusals import refuses


def test_svmlight(tmp_path: Path) -> None:
    lines = [f"{'+1' if row % 4 == 3 else '-1'} 1:{row} 3:0.5" for row in range(40)]
    (tmp_path / "train.svm").write_text("\n".join(lines) + "\n")
    data = load(DataSpec(dataset="svmlight", data_dir=str(tmp_path)), 2)
    assert data.input_shape == (3,)
    assert (len(data.train), len(data.train.positives)) == (32, 8)
    assert set(data.train.features[:, 2]) == {0.5}
    (tmp_path / "test.svm.gz").write_bytes(gzip.compress(b"+1 2:7\n-1 5:1\n"))
    both = load(DataSpec(dataset="svmlight", data_dir=str(tmp_path)), 2)
    np.testing.assert_array_equal(both.test.features, [[0, 7, 0, 0, 0], [0, 0, 0, 0, 1]])
    assert len(both.train) == 40
    (tmp_path / "wide.svm").write_text("+1 2000000000:1\n-1 1:1\n")
    with refuses(DataError, "dense features, which need 15 GiB, allowed: at most 8"):
        load(DataSpec(dataset="svmlight", data_dir=str(tmp_path / "wide.svm")), 2)
    (tmp_path / "bad.svm").write_text("+1 one:1\n")
    with refuses(DataError, "cannot be read as svmlight"):
        load(DataSpec(dataset="svmlight", data_dir=str(tmp_path / "bad.svm")), 2)


def test_npz(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    features, labels = np.random.default_rng(0).normal(size=(40, 2, 3)), np.arange(40) % 4 // 3
    spec = DataSpec(dataset="npz", data_dir=str(path), partition="consecutive")
    np.savez(path, X=features, y=labels, X_test=features[:4], y_test=labels[:4])
    data = load(spec, 2)
    np.testing.assert_array_equal(data.train.features, features.astype(np.float32))
    np.testing.assert_array_equal(data.test.features, features[:4].astype(np.float32))
    np.savez(path, features=(features * 10).astype(np.uint8), labels=labels)
    data = load(spec, 2)
    assert (len(data.train), len(data.test), data.input_shape) == (32, 8, (2, 3))
    assert data.train.features.max() <= 1.0


@pytest.mark.parametrize("colours", [(), (3,)])
def test_a_file_of_medmnist(tmp_path: Path, colours: tuple[int, ...]) -> None:
    rng, arrays = np.random.default_rng(0), {}
    for split, count in (("train", 20), ("val", 6), ("test", 8)):
        arrays[f"{split}_images"] = rng.integers(0, 256, (count, 5, 4, *colours), np.uint8)
        arrays[f"{split}_labels"] = (np.arange(count) % 2)[:, None]
    np.savez(tmp_path / "some.npz", **arrays)
    data = load(DataSpec("npz", str(tmp_path), partition="consecutive"), 1)
    assert (len(data.train), len(data.test), data.input_shape) == (26, 8, (*(colours or (1,)), 5, 4))
    images = data.train.features[-6:] * 255
    np.testing.assert_allclose(
        images[:, -1], arrays["val_images"][..., -1] if colours else arrays["val_images"], rtol=1e-6
    )
    np.testing.assert_array_equal(data.train.labels, np.arange(26) % 2)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"a": np.zeros(3)}, "got arrays a, allowed: arrays X and y"),
        ({"X": np.zeros((3, 2))}, "got only one of features and labels: X, allowed: both"),
        (
            {"X": np.zeros((3, 2)), "y": np.zeros(2)},
            r"features \(3, 2\) and labels \(2,\), which do not belong together",
        ),
        (
            {"X": np.zeros(3), "y": np.zeros(3)},
            r"got features of shape \(3,\) and type float64, allowed: numbers of shape \(rows, columns\).*\(rows, 1\)",
        ),
        (
            {"X": np.array([["a", "b"]]), "y": np.zeros(1)},
            r"got features of shape \(1, 2\) and type <U1, .*; convert the features to numbers",
        ),
        ({"X": np.array([[None]]), "y": np.zeros(1)}, "cannot be read as npz"),
        ({"X": np.array([[1.0], [np.nan], [1e300], [2.0]]), "y": np.array([0, 1, 0, 1])}, "2 of 4 samples .* is row 2"),
        ({"X": np.zeros((0, 2)), "y": np.zeros(0)}, "got no sample"),
        (
            {"X": np.zeros((2, 2)), "y": np.arange(2), "X_test": np.zeros((2, 3)), "y_test": np.arange(2)},
            r"training features \(2,\) float64 but test features \(3,\) float64",
        ),
        (
            {"X": np.zeros((2, 2)), "y": np.arange(2), "X_test": np.zeros((2, 2)), "y_test": np.zeros(2)},
            "the test set: got one class only: 0 positives and 2 negatives",
        ),
    ],
)
def test_npz_errors(tmp_path: Path, arrays: dict[str, np.ndarray], message: str) -> None:
    spec = DataSpec(dataset="npz", data_dir=str(tmp_path))
    np.savez(tmp_path / "a.npz", **arrays)
    with refuses(DataError, message):
        load(spec, 2)
    (tmp_path / "a.npz").write_text("no archive")
    with refuses(DataError, r"a.npz: got a file that cannot be read as npz"):
        load(spec, 2)
