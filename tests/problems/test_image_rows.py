"""Tests of images that are read when a batch needs them: equal bits, the bound of the cache, and damaged files."""

import pickle
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from apps.config import Scalar
from problems.data import DataError, DataSpec, load
from problems.data.formats.pixels import read_images
from problems.data.image_rows import ImageRows, ImageStore, concatenate, run_in_order
from problems.image_tensor import ImageTensor
from problems.randomness import Purpose
from problems.sampling import EpochSampler
from problems.site import Site
from simulations.scoring.model import load as load_model
from simulations.scoring.rows import read_rows, score_file
from tests.battery.federation import federate
from tests.refusals import refuses

SHAPE = (1, 2, 3)
IMAGE = 24  # bytes


class Reading:
    """A decoder that counts its calls."""

    def __init__(self) -> None:
        self.numbers: list[int] = []
        self.threads = set[str]()

    def __call__(self, number: int) -> np.ndarray:
        self.numbers.append(number)
        self.threads.add(threading.current_thread().name)
        return np.full(SHAPE, number, np.float32)


def make_rows(workers: int, cache: int = 0, count: int = 12) -> tuple[ImageRows, Reading]:
    reading = Reading()
    store = ImageStore(reading, count, SHAPE, np.float32, cache, workers)
    return ImageRows(store, np.arange(count)[::-1]), reading


@pytest.mark.parametrize("workers", [0, 2])
def test_rows_equal_an_array_in_every_selection(workers: int) -> None:
    rows, reading = make_rows(workers, 4 * IMAGE)
    array = np.broadcast_to(np.arange(12.0, dtype=np.float32)[::-1, None, None, None], (12, *SHAPE)).copy()
    assert (rows.shape, rows.ndim, rows.dtype, len(rows)) == (array.shape, 4, array.dtype, 12)
    assert not reading.numbers
    for chosen in (slice(2, 9), slice(None), np.array([3, 3, 0]), np.arange(12) % 2 == 0, 5, -1):
        np.testing.assert_array_equal(np.asarray(rows[chosen]), array[chosen])
    joined = concatenate([rows[:3], rows[8:]])
    assert isinstance(joined, ImageRows)
    np.testing.assert_array_equal(joined, np.concatenate([array[:3], array[8:]]))
    mixed = concatenate([rows[:3], array[8:]])
    np.testing.assert_array_equal(mixed, np.concatenate([array[:3], array[8:]]))
    tensor, expected = ImageTensor(rows, torch.float64, "cpu"), torch.tensor(array, dtype=torch.float64)
    indices = torch.tensor([4, 4, 1])
    net = nn.Linear(6, 1, dtype=torch.float64)
    for select in (
        lambda features: features[1:4],
        lambda features: features[7],
        lambda features: features.index_select(0, indices),
        lambda features: features[indices] + 0,
        lambda features: features.flatten(1),
        lambda features: torch.cat([features, features]),
        lambda features: net(features[2:5].flatten(1)),
    ):
        with torch.inference_mode():
            assert torch.equal(select(tensor), select(expected))
    assert tensor[indices].shape == (3, *SHAPE)
    assert isinstance(tensor[indices], ImageTensor)
    np.testing.assert_array_equal(tensor.numpy(), expected.numpy())


@pytest.mark.parametrize("workers", [0, 2])
def test_the_first_used_images_stay_in_the_cache_up_to_its_bound(workers: int) -> None:
    rows, reading = make_rows(workers, 4 * IMAGE + 23)
    for indices in ([0, 1, 2], [2, 3, 4], [0, 1, 2, 3, 4, 5]):
        rows.read(np.array(indices))
    assert rows.store.cached_bytes == 4 * IMAGE
    assert reading.numbers == [11, 10, 9, 8, 7, 7, 6]
    copy = pickle.loads(pickle.dumps(rows.store.__reduce__()[1][1:]))
    assert copy == (12, SHAPE, np.dtype(np.float32), 4 * IMAGE + 23, workers)


def test_threads_read_the_announced_batches_until_the_end_of_the_round() -> None:
    rows, reading = make_rows(2)
    site = Site.from_arrays(0, rows, np.arange(12) % 2)
    sampler = site.sampler(np.arange(12), 3, 0, Purpose.SAMPLES, end=3)
    plain = EpochSampler(np.arange(12), 3, 0, Purpose.SAMPLES, 0)
    numbers = [(11 - plain.batch(position)).tolist() for position in range(4)]
    for position in range(3):
        assert site.rows(sampler.batch(position))[:, 0, 0, 0].tolist() == numbers[position]
    assert sorted(reading.numbers) == sorted(
        number for batch in numbers[:3] for number in batch
    )  # each once, and no image of batch 3
    assert all(name.startswith("images") for name in reading.threads)


def test_unused_images_that_were_read_ahead_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("problems.data.image_rows.AHEAD", 4 * 2 * IMAGE)
    rows, _ = make_rows(1, count=100)
    for start in range(0, 90, 10):
        rows.store.read_ahead(np.arange(start, start + 10))  # of which two are read
    assert list(rows.store._pending) == [50, 51, 60, 61, 70, 71, 80, 81]


def test_results_come_in_order_and_errors_with_them() -> None:
    def invert(number: int) -> float:
        return 1 / (number - 30)

    results = run_in_order(invert, range(60), 2)
    assert [next(results) for _ in range(30)] == [1 / (number - 30) for number in range(30)]
    with pytest.raises(ZeroDivisionError):
        next(results)


def write_images(root: Path, count: int = 30) -> Path:
    """Write 16-bit and 8-bit images, of which 60 need more than a MB after image-size=96."""
    rng = np.random.default_rng(0)
    for number in range(count):
        for split, label in (("train", number % 3 // 2), ("test", number % 2)):
            path = root / split / str(label) / f"{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            values = rng.integers(0, 4096, (8, 9)) if number % 2 else rng.integers(0, 256, (8, 9))
            Image.fromarray(values.astype(np.uint16 if number % 2 else np.uint8)).save(path)
    return root


def test_images_of_a_folder_equal_images_in_memory_and_a_changed_file_is_named(tmp_path: Path) -> None:
    spec = DataSpec("image-folder", str(write_images(tmp_path)), image_size="96")
    known = load(spec, 2)
    expected = load(replace(spec, client_shift=0.5), 2).client(1)
    for workers in (0, 2):
        lazy = load(replace(spec, image_cache=1, read_workers=workers), 2)
        assert lazy.sample_format == known.sample_format
        for ours, theirs in ((lazy.client(1), known.client(1)), (lazy.test, known.test)):
            assert isinstance(ours.features, ImageRows)
            np.testing.assert_array_equal(ours.features, theirs.features)
            assert len(pickle.dumps(ours)) < 20_000
        shifted = replace(spec, image_cache=1, client_shift=0.5)
        np.testing.assert_array_equal(load(shifted, 2).client(1).features, expected.features)
        assert lazy.test.features.store.cached_bytes <= 10**6  # type: ignore[union-attr]
    path = tmp_path / "test" / "0" / "0.png"
    sampled = pickle.loads(pickle.dumps(lazy.test.features))
    path.write_bytes(path.read_bytes()[:60])
    with refuses(DataError, r"0\.png, which cannot be read as an image"):
        sampled.read(np.arange(3))
    with refuses(DataError, r"0\.png, which cannot be read as an image"):  # a new run finds it at the start
        load(replace(spec, image_cache=1), 2)
    image = read_images([tmp_path / "test" / "1" / "1.png"] * 60, size="96", cache=2).pixels
    assert isinstance(image, ImageRows)
    Image.fromarray(np.zeros((3, 3), np.uint8)).save(tmp_path / "test" / "1" / "1.png")
    image.store.decode = replace(image.store.decode, decoder=replace(image.store.decode.decoder, size=None))
    with refuses(DataError, r"1\.png, which has changed since the start"):
        image.read(np.arange(1))


RUNS: list[tuple[str, dict[str, Scalar]]] = [
    ("local-sgd", {"model": "mlp", "batch-size": 4, "augment": "light"}),
    ("local-sgd", {"model": "mlp", "batch-size": 0}),
    ("local-pair", {"model": "mlp", "dtype": "float64", "fedx.positive-batch-size": 4}),
    ("fedx2", {"model": "mlp", "fedx.pool": "histogram", "fedx.positive-batch-size": 4}),
    ("coda", {"model": "mlp", "augment": "light"}),
    ("local-scgdam", {"model": "mlp"}),
    ("composite", {"model": "mlp"}),
]


@pytest.mark.parametrize(("strategy", "more"), RUNS)
def test_runs_from_files_have_the_bytes_of_runs_from_memory(
    strategy: str, more: dict[str, Scalar], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Also stacked, and resumed with another number of threads."""
    files: dict[str, Scalar] = {"dataset": "image-folder", "data-dir": str(write_images(tmp_path)), "image-size": "96"}
    config: dict[str, Scalar] = {"strategy": strategy, **files, "checkpoint-every": 1, "num-server-rounds": 2, **more}
    known, _ = federate(tmp_path / "memory", config, 2)
    lazy = config | {"image-cache": 1}
    runs = [federate(tmp_path / "alone", lazy | {"read-workers": 0}, 2)[0]]
    runs.append(federate(tmp_path / "stacked", lazy, 2, stack=2)[0])
    assert "image-cache: clients train one by one" in caplog.text
    federate(tmp_path / "resumed", lazy | {"num-server-rounds": 1}, 2)
    resumed = config | {"resume": True, "read-workers": 0}
    runs.append(federate(tmp_path / "resumed", resumed, 2)[0])
    for run in runs:
        assert run.untimed == known.untimed
        assert run.model_bytes == known.model_bytes


def test_sites_and_predictions_read_files_as_they_need_them(tmp_path: Path) -> None:
    folder = write_images(tmp_path)
    own: dict[str, Scalar] = {"dataset": "image-folder", "partition": "own", "positive-label": "1", "image-size": "96"}
    nodes: list[dict[str, Scalar]] = [{"data-path": str(folder)}] * 2
    config: dict[str, Scalar] = {"strategy": "local-sgd", "model": "mlp", "num-server-rounds": 2, "checkpoint-every": 1}
    known, _ = federate(tmp_path / "memory", config | own, nodes=nodes)
    run, _ = federate(tmp_path / "files", config | own | {"image-cache": 1}, nodes=nodes)
    assert run.untimed == known.untimed
    assert run.model_bytes == known.model_bytes
    models = [load_model(tmp_path / name) for name in ("memory", "files")]
    assert isinstance(read_rows(models[1], folder).features, ImageRows)
    assert score_file(models[0], folder).equals(score_file(models[1], folder))
