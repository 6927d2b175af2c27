"""A resumed run has the data of its checkpoint, or ends with an error that names the difference and its place."""

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open

from apps.client_app import app as client_app
from apps.config import Scalar
from apps.run_directory.checkpoints import CHECKPOINT_FORMAT, CHECKPOINT_VERSION
from apps.server_app import app as server_app
from apps.sites.files import read_sealed, write_sealed
from problems.data.fingerprints import Fingerprint, digest_rows
from tests.battery.federation import Wiretap, flat_config, serve
from tests.refusals import refuses

Change = Callable[[pd.DataFrame], pd.DataFrame]
KEYS: dict[str, Scalar] = {"strategy": "local-sgd", "dataset": "csv", "model": "linear", "checkpoint-every": 1}
KEYS |= {"num-server-rounds": 2, "batch-size": 8}


def change_value(frame: pd.DataFrame) -> pd.DataFrame:
    return frame.assign(a=[*frame["a"][:-1], 9.5])


def swap_labels(frame: pd.DataFrame) -> pd.DataFrame:
    places = [int(np.flatnonzero(frame["label"] == label)[0]) for label in (0, 1)]
    labels = frame["label"].to_numpy().copy()
    labels[places] = labels[places[::-1]]
    return frame.assign(label=labels)


CHANGES: dict[str, tuple[Change, str]] = {
    "rows": (lambda frame: frame.iloc[:-5], r"other rows \(counts of the parts: 64, 16 before, 60, 15 now\)"),
    "labels": (lambda frame: frame.assign(label=[1, *frame["label"][1:]]), r"other labels \(counts"),
    "swapped": (swap_labels, "other values, labels or order of rows"),
    "value": (change_value, "other values, labels or order of rows"),
    "order": (lambda frame: frame.iloc[::-1], "other values, labels or order of rows"),
    "columns": (lambda frame: frame.rename(columns={"b": "c"}), "other columns"),
}


def table() -> pd.DataFrame:
    rng = np.random.default_rng(0)
    labels = np.arange(80) % 2
    labels[1] = 0
    return pd.DataFrame({"a": rng.normal(size=80), "b": rng.normal(size=80), "label": labels})


@pytest.fixture(scope="module", params=["one file", "own files"])
def begun(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, bool]:
    """Return a folder with a run and its files, and whether each site reads its own file."""
    folder, own = tmp_path_factory.mktemp("begun"), request.param == "own files"
    for name in ("0.csv", "1.csv"):
        table().to_csv(folder / name, index=False)
    run(folder, own)
    return folder, own


def run(folder: Path, own: bool, **keys: Scalar) -> None:
    flat, nodes = {**KEYS, "data-dir": str(folder / "1.csv"), **keys}, list[dict[str, Scalar]]()
    if own:
        flat |= {"partition": "own", "data-dir": ""}
        nodes = [{"data-path": str(folder / name)} for name in ("0.csv", "1.csv")]
    flat = flat_config(folder / "run", flat)
    grid = Wiretap(client_app, 2, flat, nodes)
    try:
        serve(grid, server_app, flat)
    finally:
        grid.close()


@pytest.mark.parametrize("name", CHANGES)
def test_other_data_are_refused(name: str, begun: tuple[Path, bool], tmp_path: Path) -> None:
    folder, own = begun
    shutil.copytree(folder, tmp_path / "copy")
    change, words = CHANGES[name]
    files = ["0.csv", "1.csv"] if name == "columns" else ["1.csv"]
    for file in files:
        change(table()).to_csv(tmp_path / "copy" / file, index=False)
    place = f"partition {0 if name == 'columns' else 1}" if own else "dataset 'csv'"
    with refuses(RuntimeError, f"resume: {place}: got {words}"):
        run(tmp_path / "copy", own, **{"num-server-rounds": 3, "resume": True})


def test_the_same_data_go_on(begun: tuple[Path, bool], tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder, own = begun
    shutil.copytree(folder, tmp_path / "copy")
    run(tmp_path / "copy", own, **{"num-server-rounds": 3, "resume": True})
    assert "fingerprint" not in caplog.text
    assert "not compared" not in caplog.text


def test_an_older_checkpoint_goes_on_without_the_check(
    begun: tuple[Path, bool], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder, own = begun
    shutil.copytree(folder, tmp_path / "copy")
    path = sorted((tmp_path / "copy" / "run" / "checkpoints").iterdir())[-1]
    arrays, metadata = read_sealed(path, CHECKPOINT_FORMAT, CHECKPOINT_VERSION)
    kept = {name: metadata[name] for name in ("run", "round", "best")}
    write_sealed(path, CHECKPOINT_FORMAT, CHECKPOINT_VERSION, arrays, kept)
    config = tmp_path / "copy" / "run" / "config.toml"
    config.write_text(re.sub("group-column.*", "", config.read_text()))
    run(tmp_path / "copy", own, **{"num-server-rounds": 3, "resume": True})
    assert "the checkpoint has no fingerprint of the data, so the data are not compared" in caplog.text


def test_a_site_without_its_key_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for name in ("0.csv", "1.csv"):
        table().to_csv(tmp_path / name, index=False)
    run(tmp_path, True)
    (tmp_path / "run" / "client-state" / "fingerprint-key").unlink()
    run(tmp_path, True, **{"num-server-rounds": 3, "resume": True})
    assert "values and order of rows are not compared at partition 0, partition 1" in caplog.text


def test_the_key_of_a_site_stays_with_it(tmp_path: Path) -> None:
    for name in ("0.csv", "1.csv"):
        table().to_csv(tmp_path / name, index=False)
    run(tmp_path, True)
    key = tmp_path / "run" / "client-state" / "fingerprint-key"
    assert key.stat().st_mode & 0o777 == 0o600
    with safe_open(sorted((tmp_path / "run" / "checkpoints").iterdir())[-1], framework="numpy") as file:
        data = file.metadata()["data"]
    assert key.read_bytes().hex() not in data
    frame = table()
    unkeyed = digest_rows(frame[["a", "b"]].to_numpy(), frame["label"].to_numpy(dtype=np.int8), [range(80)])
    assert unkeyed not in data


@given(st.integers(0, 19), st.integers(0, 2), st.binary(min_size=1, max_size=64))
def test_each_cell_label_and_key_changes_the_digest(row: int, column: int, key: bytes) -> None:
    features, labels = np.arange(60.0).reshape(20, 3), np.zeros(20, dtype=np.int8)
    parts = [range(15), range(15, 20)]
    first = digest_rows(features, labels, parts)
    changed, flipped = features.copy(), labels.copy()
    changed[row, column] += 0.5
    flipped[row] = 1
    others = [
        digest_rows(changed, labels, parts),
        digest_rows(features, flipped, parts),
        digest_rows(features, labels, [range(14), range(14, 20)]),
        digest_rows(features, labels, parts, key),
    ]
    assert first not in others
    assert first == digest_rows(features.copy(), labels, parts)


def test_a_fingerprint_survives_json() -> None:
    found = Fingerprint("ab", (3, 2), (1, 2, 1, 1), "cd")
    assert Fingerprint.from_json(found.to_json()) == found
    with pytest.raises(ValueError, match="fingerprint"):
        Fingerprint.from_json({"columns": "ab"})
