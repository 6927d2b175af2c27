"""Tests of arrays that may be larger than memory, and of data sets of such arrays."""

import mmap
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from apps.sites import resources
from problems.data import DataError, DataSpec, load, read_own
from problems.data import mapped as module
from problems.data.mapped import allocate, concatenate, largest_in_memory
from problems.data.samples import Samples, as_float32, check_finite, take_float32
from problems.site import Site
from tests.battery.federation import federate
from tests.refusals import refuses

LOADERS = """
import numpy as np, torch
from pathlib import Path
from torch.utils.data import Dataset

class Rows(Dataset):
    def __init__(self, X, y): self.X, self.y = X, y
    def __len__(self): return len(self.y)
    def __getitem__(self, row): return self.X[row], self.y[row]

def file(data_dir): return np.load(data_dir, mmap_mode="r"), np.arange(90) % 3 // 2
def halves(data_dir): return sum(([X[a:b], y[a:b]] for X, y in [file(data_dir)] for a, b in [(0, 60), (60, 90)]), [])
def rows(data_dir): return Rows(*file(data_dir))
"""


@pytest.fixture
def mapping(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Return a function that maps every array that is not empty and makes work run three numbers at a time."""

    def begin() -> None:
        resources._federated_data.cache_clear()
        resources._site.cache_clear()
        monkeypatch.setattr(module, "ALWAYS", 0)
        monkeypatch.setattr(module, "largest_in_memory", lambda: 0)
        monkeypatch.setattr(module, "SLICE", 12)

    return begin


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, str]:
    """Return the name of a module of loaders and the file that they read; the folder for temporary files starts
    empty."""
    (tmp_path / "mapped_test_loaders.py").write_text(LOADERS)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    np.save(tmp_path / "rows.npy", np.random.default_rng(0).normal(size=(90, 2, 3)) + np.arange(90)[:, None, None] % 3)
    return "mapped_test_loaders", str(tmp_path / "rows.npy")


def is_mapped(array: Any) -> bool:
    while isinstance(array, np.ndarray):
        array = array.base
    return isinstance(array.obj if isinstance(array, memoryview) else array, mmap.mmap)


@pytest.mark.parametrize("name", ["file", "halves", "rows"])
@pytest.mark.parametrize("changes", [{}, {"client_shift": 0.1, "validation_fraction": 0.3, "partition": "sorted-90"}])
def test_mapped_data_are_the_same(
    here: tuple[str, str], mapping: Callable[[], None], name: str, changes: dict[str, Any]
) -> None:
    spec = DataSpec(f"{here[0]}:{name}", here[1], **changes)

    def parts() -> list[Samples]:
        data = load(spec, 2)
        return [data.client(1), data.test, data.evaluated]

    before = parts()
    mapping()
    after = parts()
    for one, other in zip(before, after, strict=True):
        assert (is_mapped(one.features), is_mapped(other.features)) == (False, True)
        assert one.features.tobytes() == other.features.tobytes()
        assert one.labels.tobytes() == other.labels.tobytes()
    site = Site.from_arrays(1, after[0].features, after[0].labels)
    assert site.features.data_ptr() == after[0].features.ctypes.data  # the site has no copy
    assert list((Path(here[1]).parent / "temporary").iterdir()) == []


def test_a_site_maps_its_own_rows(here: tuple[str, str], mapping: Callable[[], None]) -> None:
    spec = DataSpec(f"{here[0]}:file", partition="own")
    before = read_own(here[1], spec, 0)
    mapping()
    one, other = (rows.samples(rows.train_rows, None).features for rows in (before, read_own(here[1], spec, 0)))
    assert is_mapped(other)
    assert one.tobytes() == other.tobytes()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_run_on_mapped_data_is_the_same(
    here: tuple[str, str], mapping: Callable[[], None], tmp_path: Path, dtype: str
) -> None:
    config = {"strategy": "local-sgd", "dataset": f"{here[0]}:rows", "data-dir": here[1], "dtype": dtype}
    before, _ = federate(tmp_path / "before", config)
    mapping()
    after, _ = federate(tmp_path / "after", config)
    stacked, _ = federate(tmp_path / "stacked", config, stack=3)
    assert after.untimed == before.untimed
    assert after.model_bytes == before.model_bytes
    for name, values in before.model.items():
        np.testing.assert_allclose(stacked.model[name], values, rtol=1e-5)


@pytest.mark.parametrize("dtype", [np.uint8, np.int64, np.float32, np.float64])
def test_slices_give_what_the_whole_gives(mapping: Callable[[], None], dtype: type) -> None:
    features = np.random.default_rng(0).integers(0, 256, size=(11, 2, 1)).astype(dtype)
    rows = np.array([3, 3, 10, 0, 7])
    expected = as_float32(features[rows])
    mapping()
    assert take_float32(features, rows).tobytes() == expected.tobytes()
    np.testing.assert_array_equal(concatenate([features[:4], features[4:]]), features)
    assert take_float32(features, rows[:0]).shape == (0, 2, 1)


def test_a_number_that_is_not_finite_is_found_in_any_slice(mapping: Callable[[], None]) -> None:
    features = np.zeros((11, 4))
    mapping()
    check_finite(features)
    features[[6, 9], 2] = 1e39, np.nan
    with refuses(DataError, "2 of 11 samples that are not finite in float32, the first is row 7"):
        check_finite(features)


def test_hugging_face_columns_are_mapped(mapping: Callable[[], None], tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    columns = {"x": np.arange(600).reshape(300, 2).tolist(), "label": [0, 1] * 150}
    datasets.Dataset.from_dict(columns).save_to_disk(tmp_path / "good")
    spec = DataSpec(f"hf:{tmp_path}/good", partition="consecutive")
    before = load(spec, 2)
    mapping()
    after = load(spec, 2)
    assert is_mapped(after.test.features)
    assert after.train.features.tobytes() == before.train.features.tobytes()
    bad = datasets.Dataset.from_dict({**columns, "x": [*columns["x"][:299], [7]]})
    bad.save_to_disk(tmp_path / "bad")
    with refuses(DataError, r"column 'x': got rows of \(2,\) and \(1,\), allowed: equal shapes"):
        load(replace(spec, dataset=f"hf:{tmp_path}/bad"), 2)
    missing = bad.select(range(2)).map(
        lambda row: {"x": [1, None]},
        features=datasets.Features({"x": datasets.List(datasets.Value("uint8")), "label": datasets.Value("int64")}),
    )
    missing.save_to_disk(tmp_path / "missing")
    with refuses(DataError, "column 'x': got arrays with missing numbers or rows"):
        load(replace(spec, dataset=f"hf:{tmp_path}/missing"), 2)


def test_a_disk_that_is_too_small_is_named() -> None:
    with refuses(DataError, r"^TMPDIR: got /.*no room for a file of 1125899\.9 GB.*a folder on a larger disk"):
        allocate((2**50,), np.uint8)


def test_the_largest_array_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MEMINFO", tmp_path / "meminfo")
    monkeypatch.setattr(module, "CGROUP", tmp_path)
    assert largest_in_memory() > module.ALWAYS  # a share of all memory, if free memory is unknown
    (tmp_path / "meminfo").write_text("MemTotal:  16000000 kB\nMemFree:  1 kB\nMemAvailable:    8000000 kB\n")
    assert largest_in_memory() == 0.25 * 8_000_000 * 1024
    (tmp_path / "memory.current").write_text("1000000000\n")
    (tmp_path / "memory.max").write_text("max\n")
    assert largest_in_memory() == 0.25 * 8_000_000 * 1024
    (tmp_path / "memory.max").write_text("3000000000\n")
    assert largest_in_memory() == 0.25 * 2e9
    (tmp_path / "memory.max").write_text("1000000000\n")
    assert largest_in_memory() == module.ALWAYS


PROGRAM = """
import resource, sys
import numpy as np
from problems.data import DataSpec, load, mapped

rows = np.lib.format.open_memmap("rows.npy", mode="w+", dtype=np.float32, shape=(2**16, 2**10))
def loader(): return rows, np.arange(2**16) % 2
load(DataSpec(), 1)
size = int(open("/proc/self/status").read().split("VmData:")[1].split()[0]) * 1024
resource.setrlimit(resource.RLIMIT_DATA, (size + 2**27, resource.RLIM_INFINITY))
mapped.ALWAYS, mapped.SHARE = 2**24, 0
data = load(DataSpec("__main__:loader"), 8)
print(data.client(7).features.sum(), data.train.features.nbytes + data.test.features.nbytes)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the limit on memory leaves out mapped files on Linux only")
def test_data_of_twice_the_memory_are_read(tmp_path: Path) -> None:
    """256 MB of rows, mapped and arranged, in a process that may allocate 128 MB."""
    root = str(Path(__file__).parents[2])
    program = [sys.executable, "-c", f"import sys; sys.path.insert(0, {root!r})\n{PROGRAM}"]
    done = subprocess.run(program, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.stdout == f"0.0 {2**28}\n", done.stderr
    assert "in temporary files in" in done.stderr
