"""Tests of data sets from a user's function."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from problems.data import DataError, DataSpec, load, read_own
from tests.refusals import refuses, spell

LOADERS = """
import numpy as np, pandas as pd, torch
from pathlib import Path
from PIL import Image
from torch.utils.data import Dataset, IterableDataset, Subset

X = np.random.default_rng(0).normal(size=(40, 2, 3)).astype(np.float32)
y = np.arange(40) % 4 // 3
number = 3

class Rows(Dataset):
    def __init__(self, X=X, y=y):
        self.X, self.y = X, y
    def __len__(self):
        return len(self.y)
    def __getitem__(self, row):
        sample = self.X[row]
        picture = isinstance(sample, Image.Image)
        return sample if picture else torch.tensor(sample, requires_grad=True), torch.tensor(self.y[row])

class Items(Rows):
    def __getitem__(self, row):
        return self.X[row]

class Noisy(Rows):
    def __getitem__(self, row):
        return torch.tensor(self.X[row]) + torch.randn(2, 3) * (row > 30), self.y[row]

class Gaps(Rows):
    def __getitem__(self, row):
        return torch.full((2, 3), float("nan")), "positive" if self.y[row] else "negative"

class Endless(IterableDataset):
    def __iter__(self):
        yield X[0], 0

def arrays(): return X, y
def lists(): return [X.tolist(), y.tolist()]
def tensors(**given): return torch.tensor(X), torch.tensor(y)
def rows(seed, data_dir): return Rows()
def split(): return X[:30], y[:30], X[30:], y[30:]
def two(): return Rows(X[:30], y[:30]), Subset(Rows(), range(30, 40))
def pictures():
    images = np.arange(40 * 12, dtype=np.uint8).reshape(40, 3, 4)
    return Rows([Image.fromarray(image) for image in images], y)

def table(data_dir):
    frame = pd.read_csv(data_dir)
    return frame[["a", "b"]], frame["label"]
def told(data_dir, seed): return np.array([[seed, len(data_dir)]] * 10), np.arange(10) % 2

def noisy(): return Noisy()
def gaps(): return Gaps()
def three(): return X, y, X
def nothing(): return None
def text(): return np.array([["a"]]), [1]
def short(): return X, y[:3]
def mixed(): return Rows([*X[:39], X[39, :1]], y)
def unlike(): return X[:30], y[:30], X[30:, :1], y[30:]
def items(): return Items()
def endless(): return Endless()
def fails(data_dir): raise RuntimeError(f"no such table: {Path(data_dir).read_text() if data_dir else ''}")
def asks(path): return X, y
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the name of an importable module of loaders."""
    (tmp_path / "data_test_loaders.py").write_text(LOADERS)
    monkeypatch.syspath_prepend(tmp_path)
    return "data_test_loaders"


@pytest.mark.parametrize("changes", [{}, {"label_noise": 0.2, "validation_fraction": 0.25, "partition": "dirichlet"}])
@pytest.mark.parametrize("names", [("arrays", "lists", "tensors", "rows"), ("split", "two")], ids=["one", "two"])
def test_a_loaders_arrays_go_the_way_of_npz(
    here: str, tmp_path: Path, names: tuple[str, ...], changes: dict[str, Any]
) -> None:
    module = __import__(here)
    parts = getattr(module, names[0])()
    np.savez(tmp_path / "a.npz", **dict(zip(("X", "y", "X_test", "y_test"), parts, strict=False)))
    spec = DataSpec("npz", str(tmp_path / "a.npz"), positive_label="0", seed=3, **changes)
    expected = load(spec, 2)
    for name in names:
        got = load(replace(spec, dataset=f"{here}:{name}", data_dir=""), 2)
        for one, other in ((got.client(0), expected.client(0)), (got.test, expected.test)):
            np.testing.assert_array_equal(one.features, other.features)
            np.testing.assert_array_equal(one.labels, other.labels)


def test_pictures_are_pixels_with_their_channel_first(here: str) -> None:
    data = load(DataSpec(f"{here}:pictures"), 1)
    assert data.input_shape == (1, 3, 4)
    assert data.train.features.max() <= 1.0


def test_a_loader_is_told_where_the_data_are_and_the_seed(here: str) -> None:
    data = load(DataSpec(f"{here}:told", "12345", seed=7), 1)
    np.testing.assert_array_equal(data.train.features[0], [7, 5])


def test_a_site_loads_its_own_path(here: str, tmp_path: Path) -> None:
    path = tmp_path / "site.csv"
    path.write_text("a,b,label\n" + "".join(f"{row},{row % 3},{row % 2}\n" for row in range(20)))
    spec = DataSpec(f"{here}:table", partition="own")
    rows = read_own(str(path), spec, 1)
    assert (len(rows.train_rows), len(rows.test_rows), rows.preprocessing) == (16, 4, None)
    np.testing.assert_array_equal(rows.features[:, 0], np.arange(20))
    np.testing.assert_array_equal(rows.labels, np.arange(20) % 2)
    with refuses(DataError, r"'data_test_loaders:fails', which failed \(RuntimeError\)") as caught:
        read_own(str(path), replace(spec, dataset=f"{here}:fails"), 1)
    assert "site.csv" not in spell(caught.value)  # the error text of the site's own function stays at the site


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("missing", "module 'data_test_loaders' has no attribute 'missing', allowed: 'package.module:loader', where"),
        ("number", "a int, which is not callable"),
        ("three", r"which returned a tuple of 3, allowed: \(X, y\), \(X, y, X_test, y_test\), a torch Dataset"),
        ("nothing", "which returned a NoneType, allowed"),
        ("text", r"features of shape \(1, 1\) and type <U1, allowed: numbers of shape \(rows, columns\)"),
        ("short", r"features \(40, 2, 3\) and labels \(3,\), which do not belong together"),
        ("mixed", r"item 39 has \(1, 3\) float32 and item 0 \(2, 3\) float32, allowed: features of equal shape"),
        ("unlike", r"training features \(2, 3\) float32 but test features \(1, 3\) float32"),
        ("items", r"item 0 is a ndarray, allowed: \(features, label\) for each item"),
        ("endless", "whose Dataset has no length, allowed: a map-style Dataset"),
        ("fails", r"which failed \(RuntimeError: no such table:\)"),
        ("asks", r"which failed \(TypeError: asks\(\) missing 1 required positional argument: 'path'\)"),
    ],
)
def test_a_loader_that_gives_no_data_is_named(here: str, name: str, message: str) -> None:
    with refuses(DataError, message) as caught:
        load(DataSpec(f"{here}:{name}"), 1)
    assert f"data_test_loaders:{name}" in spell(caught.value) or name == "missing"
    assert "docs/data.md" in spell(caught.value)


def test_a_module_that_is_not_there_is_named() -> None:
    with refuses(DataError, "dataset: got 'no_such:x': cannot import 'no_such'"):
        load(DataSpec("no_such:x"), 1)


def test_items_that_change_between_reads_are_reported(here: str, caplog: pytest.LogCaptureFixture) -> None:
    load(DataSpec(f"{here}:noisy"), 2)
    told = "2 of 8 items differ when they are read again: each item is read once"
    assert [record.getMessage() for record in caplog.records if told in record.getMessage()]
    caplog.clear()
    load(DataSpec(f"{here}:rows"), 2)
    load(DataSpec(f"{here}:pictures"), 2)
    with refuses(DataError, "not finite"):  # missing numbers count as equal in both calls
        load(DataSpec(f"{here}:gaps"), 2)
    assert not caplog.records
