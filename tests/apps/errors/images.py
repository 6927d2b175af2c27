"""Errors of the files of images: class folders, IDX files, STL-10's and CIFAR's batches."""

from __future__ import annotations

import gzip
import io
import pickle

import numpy as np

from tests.apps.errors.data import PAGE, data


def image(size: tuple[int, int]) -> bytes:
    from PIL import Image

    buffer = io.BytesIO()
    Image.new("L", size).save(buffer, "PNG")
    return buffer.getvalue()


def idx(*shape: int, count: int | None = None) -> bytes:
    size = int(np.prod(shape)) if count is None else count
    return bytes([0, 0, 8, len(shape)]) + np.array(shape, ">u4").tobytes() + bytes(size)


FASHION = {
    "train-images-idx3-ubyte": idx(3, 28, 28),
    "train-labels-idx1-ubyte": idx(3),
    "t10k-images-idx3-ubyte": idx(3, 28, 28),
    "t10k-labels-idx1-ubyte": idx(3),
}
CIFAR = ["data_batch_1", "data_batch_2", "data_batch_3", "data_batch_4", "data_batch_5", "test_batch"]
BATCH = pickle.dumps({b"data": np.zeros((2, 3072), np.uint8), b"labels": [0, 1]})

ROWS = [
    # images
    data("no image", "image-folder", says=("{tmp}/data", "no images", "train/<class>/", PAGE), files={"a.txt": ""}),
    data(
        "image that is none",
        "image-folder",
        says=("{tmp}/data/train/a/1.png", "cannot be read as an image", "replace it", "remove it"),
        files={"train/a/1.png": b"no", "train/b/2.png": b"no"},
    ),
    data(
        "images of two sizes",
        "image-folder",
        says=("{tmp}/data/train/b/2.png", "differ in size", "one size", PAGE),
        files={"train/a/1.png": image((8, 8)), "train/b/2.png": image((9, 8))},
    ),
    data(
        "class of the test alone",
        "image-folder",
        says=("{tmp}/data", "test classes without training images", "train/", PAGE),
        files={"train/a/1.png": image((8, 8)), "test/b/2.png": image((8, 8))},
    ),
    data(
        "not an IDX file",
        "fashion-mnist",
        says=("{tmp}/data/train-images-idx3-ubyte", "starts with 6e 6f", "expected 00 00 08", PAGE),
        files={**FASHION, "train-images-idx3-ubyte": b"nonsense"},
    ),
    data(
        "truncated IDX file",
        "fashion-mnist",
        says=("{tmp}/data/train-labels-idx1-ubyte", "3 bytes announced, 2 there", "damaged", "fetch it again"),
        files={**FASHION, "train-labels-idx1-ubyte": idx(3, count=2)},
    ),
    data(
        "labels of other images",
        "fashion-mnist",
        says=("{tmp}/data", "(4,)", "expected one a row", PAGE),
        files={**FASHION, "train-labels-idx1-ubyte": idx(4)},
    ),
    data(
        "unreadable packed file",
        "fashion-mnist",
        says=("{tmp}/data/t10k-labels-idx1-ubyte.gz", "cannot be read", "packed where it ends in .gz", PAGE),
        files={
            **{name: value for name, value in FASHION.items() if "t10k-labels" not in name},
            "t10k-labels-idx1-ubyte.gz": gzip.compress(idx(3))[:-4],
        },
    ),
    data(
        "STL-10 of other labels",
        "stl10",
        says=("{tmp}/data/train_X.bin", "holds 1 images", "expected as many", PAGE),
        files={"train_X.bin": bytes(3 * 96 * 96), "train_y.bin": bytes(2), "test_X.bin": b"", "test_y.bin": b""},
    ),
    data(
        "batches that are missing",
        "cifar10",
        says=("{tmp}/data", "lacks data_batch_2", "data_batch_5", "unpack the archive again"),
        files={"data_batch_1": b"x"},
    ),
    data(
        "batch that is none",
        "cifar10",
        says=(
            "{tmp}/data/data_batch_1",
            "is not a CIFAR batch",
            "arrays of data and labels",
            "unpack the archive again",
        ),
        files=dict.fromkeys(CIFAR, b"x"),
    ),
    data(
        "batch of another shape",
        "cifar10",
        says=("{tmp}/data/data_batch_1", "got (2, 5) uint8", "expected data (2, 3072)", "unpack the archive again"),
        files={
            **dict.fromkeys(CIFAR, BATCH),
            "data_batch_1": pickle.dumps({b"data": np.zeros((2, 5), np.uint8), b"labels": [0, 1]}),
        },
    ),
    data(
        "truncated batch",
        "cifar10",
        says=("{tmp}/data/data_batch_1.bin", "5 bytes", "multiple of 3,073", "unpack the archive again"),
        files=dict.fromkeys([f"{name}.bin" for name in CIFAR], b"12345"),
    ),
]
