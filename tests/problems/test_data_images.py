"""Tests of image readers on small files written here: IDX, CIFAR batches, STL-10, class folders."""

import gzip
import os
import pickle
import struct
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from problems.data import DataError, DataSpec, load
from problems.data.formats.cifar import _ArraysOnly
from problems.data.formats.images import read_idx
from tests.refusals import refuses


def write_idx(path: Path, array: np.ndarray) -> None:
    content = struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + array.tobytes()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)


def pixels(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, size=shape, dtype=np.uint8)


@pytest.mark.parametrize(("ending", "below"), [("", ""), (".gz", "raw")])
def test_fashion_mnist_idx(tmp_path: Path, ending: str, below: str) -> None:
    home = tmp_path / below
    home.mkdir(exist_ok=True)
    images, labels = pixels(20, 28, 28), np.arange(20, dtype=np.uint8) % 10
    for split, count in (("train", 20), ("t10k", 10)):
        write_idx(home / f"{split}-images-idx3-ubyte{ending}", images[:count])
        write_idx(home / f"{split}-labels-idx1-ubyte{ending}", labels[:count])
    data = load(DataSpec(dataset="fashion-mnist", data_dir=str(tmp_path), partition="consecutive"), 2)
    assert data.input_shape == (1, 28, 28)
    np.testing.assert_allclose(data.train.features[:, 0], images / np.float32(255))
    np.testing.assert_array_equal(data.train.labels, labels < 5)
    np.testing.assert_array_equal(data.test.features, data.train.features[:10])


def test_idx_damage_is_named(tmp_path: Path) -> None:
    path = tmp_path / "images"
    write_idx(path, pixels(3, 4, 4))
    path.write_bytes(path.read_bytes()[:-5])
    with refuses(DataError, "damaged file of 43 bytes, allowed: 48 bytes"):
        read_idx(path)
    path.write_bytes(b"\x00\x00\x0d\x01abc")
    with refuses(DataError, "a file that starts with 00 00 0d 01, allowed: an IDX file"):
        read_idx(path)
    (tmp_path / "images.gz").write_bytes(b"no gzip")
    with refuses(DataError, "cannot be read"):
        read_idx(tmp_path / "images.gz")


def cifar_batches(home: Path, names: list[str], key: bytes, form: str, label_bytes: int) -> list[np.ndarray]:
    home.mkdir()
    kept = []
    for index, name in enumerate(names):
        images = np.random.default_rng(index).integers(0, 256, size=(10, 3072), dtype=np.uint8)
        labels = np.arange(10)
        if form == "python":
            batch = {b"data": images, key: labels.tolist(), b"filenames": [b"a.png"] * 10}
            (home / name).write_bytes(pickle.dumps(batch, protocol=2))
        else:
            prefix = np.zeros((10, label_bytes), dtype=np.uint8)
            prefix[:, -1] = labels
            (home / f"{name}.bin").write_bytes(np.concatenate((prefix, images), axis=1).tobytes())
        kept.append(images)
    return kept


@pytest.mark.parametrize("form", ["python", "binary"])
@pytest.mark.parametrize(
    ("name", "names", "key", "label_bytes"),
    [
        ("cifar10", [*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"], b"labels", 1),
        ("cifar100", ["train", "test"], b"fine_labels", 2),
    ],
)
def test_cifar(tmp_path: Path, form: str, name: str, names: list[str], key: bytes, label_bytes: int) -> None:
    batches = cifar_batches(tmp_path / "unpacked", names, key, form, label_bytes)
    spec = DataSpec(dataset=name, data_dir=str(tmp_path), partition="consecutive")
    data = load(spec, 2)
    expected = np.concatenate(batches[:-1]).reshape(-1, 3, 32, 32) / np.float32(255)
    np.testing.assert_allclose(data.train.features, expected)
    np.testing.assert_array_equal(data.train.labels, np.tile(np.arange(10) < 5, len(names) - 1))
    np.testing.assert_allclose(data.test.features, batches[-1].reshape(-1, 3, 32, 32) / np.float32(255))
    last = next((tmp_path / "unpacked").glob("test*"))
    last.unlink()
    with refuses(DataError, f"lacks {last.name}, .*; unpack the archive again"):
        load(spec, 2)


def test_a_pickle_that_runs_code_is_refused(tmp_path: Path) -> None:
    class Harm:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return os.mkdir, (str(tmp_path / "harmed"),)

    for name in ("train", "test"):
        (tmp_path / name).write_bytes(pickle.dumps({b"data": Harm()}, protocol=2))
    with refuses(DataError, "mkdir is not allowed in a CIFAR batch"):
        load(DataSpec(dataset="cifar100", data_dir=str(tmp_path)), 2)
    assert not (tmp_path / "harmed").exists()
    assert all(callable(allowed) for allowed in _ArraysOnly._allowed.values())


def test_stl10_binary_is_stored_column_by_column(tmp_path: Path) -> None:
    images = pixels(20, 3, 96, 96)
    for split in ("train", "test"):
        (tmp_path / f"{split}_X.bin").write_bytes(images.transpose(0, 1, 3, 2).tobytes())
        (tmp_path / f"{split}_y.bin").write_bytes((np.arange(20, dtype=np.uint8) % 10 + 1).tobytes())
    spec = DataSpec(dataset="stl10", data_dir=str(tmp_path), partition="consecutive")
    data = load(spec, 2)
    np.testing.assert_allclose(data.train.features, images / np.float32(255))
    np.testing.assert_array_equal(data.train.labels, np.arange(20) % 10 < 5)
    (tmp_path / "train_y.bin").write_bytes(b"\x01\x02")
    with refuses(DataError, r"train_X.bin: got 20 images, and 2 labels in train_y.bin"):
        load(spec, 2)


def write_folders(root: Path, classes: list[str], mode: str = "RGB", count: int = 4, size: int = 6) -> None:
    rng = np.random.default_rng(0)
    for name in classes:
        (root / name).mkdir(parents=True)
        for index in range(count):
            shape = (size, size, 3) if mode == "RGB" else (size, size)
            image = Image.fromarray(rng.integers(0, 256, size=shape, dtype=np.uint8))
            image.save(root / name / f"{index}.png")


@pytest.mark.parametrize(("mode", "channels", "own_test"), [("RGB", 3, True), ("L", 1, False)])
def test_image_folders(tmp_path: Path, mode: str, channels: int, own_test: bool) -> None:
    write_folders(tmp_path / "train", ["cat", "dog"], mode)
    if own_test:
        write_folders(tmp_path / "test", ["cat", "dog"], mode, count=3)
    data = load(DataSpec(dataset="image-folder", data_dir=str(tmp_path)), 2)
    assert data.input_shape == (channels, 6, 6)
    assert (len(data.train), len(data.test)) == ((8, 6) if own_test else (6, 2))
    first = np.asarray(Image.open(tmp_path / "train" / "dog" / "0.png"))
    first = first[None] if mode == "L" else first.transpose(2, 0, 1)
    everything = {image.tobytes() for image in (*data.train.features, *data.test.features)}
    assert (first / np.float32(255)).astype(np.float32).tobytes() in everything
    cats = load(DataSpec(dataset="image-folder", data_dir=str(tmp_path), positive_label="cat"), 2)
    assert len(cats.train.positives) == len(data.train.negatives)


def test_image_folder_errors(tmp_path: Path) -> None:
    spec = DataSpec(dataset="image-folder", data_dir=str(tmp_path))
    with refuses(DataError, "got no folders of images"):
        load(spec, 2)
    write_folders(tmp_path / "train", ["a", "b"])
    write_folders(tmp_path / "test", ["c"])
    with refuses(DataError, r"test classes without training images: c"):
        load(spec, 2)
    Image.new("RGB", (9, 9)).save(tmp_path / "train" / "a" / "big.png")
    (tmp_path / "test" / "c").rename(tmp_path / "test" / "a")
    with refuses(DataError, r"got .* of \(6, 6\), and .*big.png of \(9, 9\), allowed: images of equal size"):
        load(spec, 2)
    (tmp_path / "train" / "a" / "big.png").write_text("no image")
    with refuses(DataError, r"train/a: got .*big\.png, which cannot be read as an image"):
        load(spec, 2)
