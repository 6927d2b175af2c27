"""Named sets that are not there, and the hub behind flwr-datasets."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from problems.data import DataError, DataSpec, load
from problems.data.formats import images as readers


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
    with pytest.raises(DataError, match=f"^data set '{name}': got no such files in data-dir '{tmp_path}'") as caught:
        load(DataSpec(dataset=name, data_dir=str(tmp_path)), 2)
    assert file in str(caught.value)
    assert page in str(caught.value)


def test_without_a_folder_and_a_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_copy(path: str) -> None:
        raise ConnectionError(f"Couldn't reach {path}\nand more lines")

    assert not readers._reachable("http://127.0.0.1:9")
    monkeypatch.setattr(readers, "_reachable", lambda address: False)
    monkeypatch.setattr(readers, "_splits", no_copy)
    with pytest.raises(DataError, match="data set 'stl10': got no data-dir") as caught:
        load(DataSpec(dataset="stl10"), 2)
    message = str(caught.value)
    assert "no network and no local copy (ConnectionError: Couldn't reach tanganke/stl10)" in message
    assert "stl10_binary.tar.gz" in message


def test_the_hubs_images_and_labels(monkeypatch: pytest.MonkeyPatch) -> None:
    datasets = pytest.importorskip("datasets")
    images = np.random.default_rng(0).integers(0, 256, size=(10, 32, 32, 3), dtype=np.uint8)
    split = datasets.Dataset.from_dict(
        {"img": [Image.fromarray(image) for image in images], "label": list(range(10))},
        features=datasets.Features({"img": datasets.Image(), "label": datasets.Value("int64")}),
    )
    monkeypatch.setattr(readers, "_reachable", lambda address: True)
    monkeypatch.setattr(readers, "_splits", lambda path: (split, split))
    data = load(DataSpec(dataset="cifar10", partition="consecutive"), 2)
    np.testing.assert_allclose(data.train.features, images.transpose(0, 3, 1, 2) / np.float32(255))
    np.testing.assert_array_equal(data.test.labels, np.arange(10) < 5)


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
