"""Tests of rows to be scored: files that need no labels, and errors that would make their features wrong."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from problems.data import DataError, DataSpec, SampleFormat
from problems.data.formats.new_rows import read_array_rows
from tests.refusals import refuses

VECTOR = SampleFormat((3,), False, ("0",), ("1",))
SVMLIGHT = DataSpec("svmlight")


@pytest.mark.parametrize(
    ("text", "keys", "first"),
    [
        ("1 0:5 2:1\n0 1:1\n", {}, [5, 0, 1]),  # an index 0 shows that indices start at 0
        ("1 1:5 3:1\n0 2:1\n", {}, [5, 0, 1]),  # an index equal to the width shows that they start at 1
        ("1 1:5\n0 2:1\n", {"feature_columns": "3"}, [5, 0, 0]),  # as in training
        ("1 1:5\n0 2:1\n", {"partition": "own"}, [5, 0, 0]),
    ],
)
def test_svmlight_indices_mean_what_they_meant(
    tmp_path: Path, text: str, keys: dict[str, Any], first: list[int]
) -> None:
    (tmp_path / "new.svm").write_text(text)
    found = read_array_rows(tmp_path / "new.svm", VECTOR, DataSpec("svmlight", **keys))
    assert np.asarray(found.features)[0].tolist() == first
    assert found.labels is not None
    assert found.labels.tolist() == [1, 0]


@pytest.mark.parametrize(
    ("text", "keys", "told"),
    [
        ("1 1:5\n0 2:1\n", {}, "indices between 1 and 2, which do not show whether they start at 0 or at 1"),
        ("1 0:5\n", {"feature_columns": "3"}, "got indices from 0 to 2, allowed: 3 features"),
        ("1 0:5 3:1\n", {}, "got indices from 0 to 3, allowed: 3 features"),
        ("1 7:1\n", {}, "cannot be read as svmlight"),
    ],
)
def test_svmlight_of_other_features_is_refused(tmp_path: Path, text: str, keys: dict[str, Any], told: str) -> None:
    (tmp_path / "new.svm").write_text(text)
    with refuses(DataError, re.escape(told)):
        read_array_rows(tmp_path / "new.svm", VECTOR, DataSpec("svmlight", **keys))


def test_npz_without_labels_and_with_a_test_split(tmp_path: Path) -> None:
    rows = np.arange(12.0).reshape(4, 3)
    np.savez(tmp_path / "a.npz", features=rows)
    found = read_array_rows(tmp_path / "a.npz", VECTOR, SVMLIGHT)
    assert found.labels is None
    np.testing.assert_array_equal(found.features, rows)
    np.savez(tmp_path / "b.npz", X=rows, y=[0, 1, 0, 1], X_test=rows[:2], y_test=[1, 0])
    found = read_array_rows(tmp_path / "b.npz", VECTOR, SVMLIGHT)
    assert (len(found), np.asarray(found.labels).tolist()) == (2, [1, 0])
    np.savez(tmp_path / "c.npz", y=[0, 1])
    with refuses(DataError, r"got arrays y, allowed: arrays X \(or features\)"):
        read_array_rows(tmp_path / "c.npz", VECTOR, SVMLIGHT)
    np.savez(tmp_path / "d.npz", X=rows, y=[0])
    with refuses(DataError, "do not belong together"):
        read_array_rows(tmp_path / "d.npz", VECTOR, SVMLIGHT)


def test_images_beside_class_folders_are_not_left_out_silently(tmp_path: Path) -> None:
    for name in ("cat/1.png", "2.png"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    with refuses(DataError, "got images next to class folders"):
        read_array_rows(tmp_path, SampleFormat((1, 8, 8), True, (), ()), SVMLIGHT)


def test_samples_are_scaled_as_in_training() -> None:
    bytes_ = np.array([[0, 51], [255, 0]], np.uint8)
    pixels, numbers = (SampleFormat((2,), kind, ("0",), ("1",)) for kind in (True, False))
    np.testing.assert_array_equal(pixels.scale(bytes_), bytes_ / np.float32(255))
    np.testing.assert_array_equal(pixels.scale(bytes_ / 255), bytes_ / np.float32(255))
    np.testing.assert_array_equal(numbers.scale(bytes_), bytes_.astype(np.float32))
    with refuses(DataError, "1 of 2 samples that are not finite"):
        numbers.scale(np.array([[0, 1], [np.nan, 0]]))
    assert SampleFormat.from_json(pixels.to_json()) == pixels
    with refuses(DataError, "samples: got {'shape': 3}"):
        SampleFormat.from_json({"shape": 3})


def test_labels_are_those_of_the_training() -> None:
    form = SampleFormat((2,), False, ("0", "3"), ("1", "2"))
    assert form.encode_labels(np.array([2.0, 0.0, 1.0, 3.0])).tolist() == [1, 0, 1, 0]
    with refuses(DataError, "got '4', which did not occur in training, allowed: negative: 0, 3; positive: 1, 2"):
        form.encode_labels(np.array(["4", "0"]))
