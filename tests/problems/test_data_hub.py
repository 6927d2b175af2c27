"""Tests of missing named sets, and of data sets of Hugging Face."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from problems.data import DataError, DataSpec, load
from problems.data.formats import hub
from tests.refusals import refuses, spell


@pytest.mark.parametrize(
    ("name", "file", "page"),
    [
        ("fashion-mnist", "train-images-idx3-ubyte", "github.com/zalandoresearch/fashion-mnist"),
        ("cifar10", "data_batch_1", "cifar-10-python.tar.gz"),
        ("cifar100", "train.bin", "cifar-100-python.tar.gz"),
        ("stl10", "train_X.bin", "stl10_binary.tar.gz"),
        ("uci-credit", "UCI_Credit_Card.csv.gz", "UCI_Credit_Card.csv, the Kaggle form"),
        ("w8a", "w8a.svm.gz", "LIBSVM"),
    ],
)
def test_one_error_for_a_set_that_is_not_there(tmp_path: Path, name: str, file: str, page: str) -> None:
    with refuses(DataError, f"^data set '{name}': got no such files in data-dir '{tmp_path}'") as caught:
        load(DataSpec(dataset=name, data_dir=str(tmp_path)), 2)
    assert file in spell(caught.value)
    assert page in spell(caught.value)


def test_without_a_folder_and_a_network(monkeypatch: pytest.MonkeyPatch) -> None:
    datasets = pytest.importorskip("datasets")

    def no_copy(path: str, configuration: str | None) -> None:
        raise ConnectionError(f"Couldn't reach {path}\nand more lines")

    assert not hub._reachable("http://127.0.0.1:9")
    monkeypatch.setattr(hub, "_reachable", lambda address: False)
    monkeypatch.setattr(datasets, "load_dataset", no_copy)
    with refuses(DataError, "data set 'stl10': got no data-dir") as caught:
        load(DataSpec(dataset="stl10"), 2)
    message = spell(caught.value)
    assert "no network and no local copy (ConnectionError: Couldn't reach tanganke/stl10)" in message
    assert "stl10_binary.tar.gz" in message
    with refuses(DataError, r"got no network and no local copy .*Couldn't reach a/b\), .*save_to_disk"):
        load(DataSpec(dataset="hf:a/b:c"), 2)


def pictures(count: int, **more: Any) -> tuple[np.ndarray, Any]:
    """Return random coloured images as an array, and as a column ``img`` with the labels 0, 1, ..."""
    datasets = pytest.importorskip("datasets")
    images = np.random.default_rng(0).integers(0, 256, size=(count, 32, 32, 3), dtype=np.uint8)
    columns = {"img": [Image.fromarray(image) for image in images], "label": list(range(count))}
    types = {"img": datasets.Image(), "label": datasets.Value("int64")}
    return images, datasets.Dataset.from_dict(columns, features=datasets.Features(types)).map(lambda row: more)


def test_the_hubs_images_and_labels(monkeypatch: pytest.MonkeyPatch) -> None:
    images, split = pictures(10)
    monkeypatch.setattr(hub, "_open", lambda place: {"train": split, "test": split})
    data = load(DataSpec(dataset="cifar10", partition="consecutive"), 2)
    np.testing.assert_allclose(data.train.features, images.transpose(0, 3, 1, 2) / np.float32(255))
    np.testing.assert_array_equal(data.test.labels, np.arange(10) < 5)


def test_a_table_that_was_saved_is_the_table_of_a_csv(tmp_path: Path) -> None:
    """Its classes are names; its split validation also counts as training rows."""
    datasets = pytest.importorskip("datasets")
    age, sex = np.arange(40.0) ** 2, ["f" if row % 3 else "m" for row in range(40)]
    ill = ["yes" if row % 4 == 1 else "no" for row in range(40)]
    frame = pd.DataFrame({"age": age, "sex": sex, "ill": ill, "town": ["a", "b"] * 20})
    whole = datasets.Dataset.from_pandas(frame).class_encode_column("ill").class_encode_column("sex")
    rows = {"train": range(20), "validation": range(20, 30), "test": range(30, 40)}
    splits = datasets.DatasetDict({name: whole.select(some) for name, some in rows.items()})
    splits.save_to_disk(tmp_path / "saved")
    (tmp_path / "csv").mkdir()
    frame[:30].to_csv(tmp_path / "csv" / "train.csv", index=False)
    frame[30:].to_csv(tmp_path / "csv" / "test.csv", index=False)
    keys = {"label_column": "ill", "site_column": "town", "partition": "natural"}
    ours = load(DataSpec(f"hf:{tmp_path}/saved", **keys), 2)
    theirs = load(DataSpec("csv", f"{tmp_path}/csv", **keys), 2)
    assert (len(ours.train), len(ours.test)) == (30, 10)
    for one, other in ((ours.client(1), theirs.client(1)), (ours.test, theirs.test)):
        np.testing.assert_array_equal(one.features, other.features)
        np.testing.assert_array_equal(one.labels, other.labels)
    assert ours.columns is not None
    assert ours.columns.names == ("age", "sex=f", "sex=m")
    chosen = load(DataSpec(f"hf:{tmp_path}/saved", label_column="ill", feature_columns="age", scale="none"), 2)
    assert sorted(chosen.test.features[:, 0]) == list(age[30:])


def test_one_column_of_images_or_arrays_that_was_saved(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    images, split = pictures(10, vector=[0.5, 1.5], bytes=[51, 255])
    split.cast_column("bytes", datasets.List(datasets.Value("uint8"))).save_to_disk(tmp_path)
    spec = DataSpec(f"hf:{tmp_path}", positive_label="1,2,3", feature_columns="img")
    data = load(spec, 1)
    both = np.concatenate([data.train.features, data.test.features])
    np.testing.assert_allclose(both.sum(axis=(1, 2, 3)).sum(), images.sum() / 255, rtol=1e-5)
    assert data.input_shape == (3, 32, 32)
    np.testing.assert_array_equal(load(replace(spec, feature_columns="vector"), 1).test.features[0], [0.5, 1.5])
    # one-byte numbers are pixels, as in npz
    np.testing.assert_allclose(load(replace(spec, feature_columns="bytes"), 1).test.features[0], [0.2, 1.0])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"feature_columns": "img,vector"},
            "feature-columns: got img, vector, of which 'img' contains images or arrays",
        ),
        ({"feature_columns": "age"}, "feature-columns: got 'age', allowed: existing columns: img, label, vector"),
        ({"label_column": "ill"}, "label-column: got 'ill', allowed: existing columns: img"),
        ({"dataset": "hf:relative/../path/./x", "feature_columns": "img"}, "no network and no local copy|a failure"),
        ({"dataset": "hf:./relative"}, "got ValueError: a relative path"),
        ({"dataset": "hf:/nowhere"}, "'/nowhere': got FileNotFoundError.*allowed: the absolute path of a data set"),
        ({"data_dir": "/tmp"}, "data-dir: got '/tmp', allowed: '', since dataset 'hf:.*' is read from its hub"),
        ({"partition": "own"}, "dataset: got 'hf:.*allowed: csv, .* or 'package.module:loader', since"),
        ({"dataset": "hf:"}, "dataset: got 'hf:', allowed: digits, .*, hf:owner/name"),
    ],
)
def test_what_cannot_be_had_of_hugging_face(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    _, split = pictures(4, vector=[1, 2])
    split.save_to_disk(tmp_path)
    with refuses(DataError, message):
        load(replace(DataSpec(f"hf:{tmp_path}", positive_label="1"), **changes), 1)


def test_flower_is_imported_only_where_it_is_needed() -> None:
    code = (
        "import sys; from problems.data import DataSpec, load; load(DataSpec(), 4); "
        "print([name for name in ('flwr_datasets', 'datasets', 'pandas', 'torch') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=Path(__file__).parents[2]
    )
    assert "flwr_datasets" not in done.stdout
    assert "torch" not in done.stdout
