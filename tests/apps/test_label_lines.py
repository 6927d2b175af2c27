"""The positive label in the log, in `check`, in `evaluate` and in `predict`; labels with two spellings."""

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from apps.config import Scalar
from apps.evaluation.labels import describe_labels
from problems.data import DataError, DataSpec, SampleFormat, load
from problems.data.spellings import check_spellings
from simulations.engines.checking import check_run
from tests.battery.federation import federate
from tests.refusals import refuses, spell

COUNTS = np.array([[3, 1], [5, 2]])
CHOSEN = "the last in alphabetical order, since positive-label is empty"


def table(folder: Path, negative: str = "ckd", positive: str = "notckd") -> dict[str, Scalar]:
    labels = [negative] * 20 + [positive] * 30
    pd.DataFrame({"age": np.arange(50) % 7, "label": labels}).to_csv(folder / "a.csv", index=False)
    return {"dataset": "csv", "data-dir": str(folder / "a.csv"), "strategy": "local-sgd", "num-server-rounds": 1}


def test_a_run_and_a_check_name_both_labels(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    config = table(tmp_path)
    with caplog.at_level(logging.INFO, logger="flwr"):
        federate(tmp_path / "run", config, clients=2)
    hint = f'{CHOSEN}; set positive-label="ckd" if that is the positive label'
    lines = [f"labels: positive 'notckd' (24 of 40 training rows), {hint}", "labels: negative 'ckd' (16 of 40"]
    for line in lines:
        assert line in caplog.text
        assert any(one.startswith(line) for one in check_run(2, config))
    named = check_run(2, {**config, "positive-label": "ckd"})
    assert "labels: positive 'ckd' (16 of 40 training rows)" in named


def test_images_are_labelled_by_their_folders(tmp_path: Path) -> None:
    for name in ("ill", "well"):
        (tmp_path / name).mkdir()
        for picture in range(5):
            Image.fromarray(np.zeros((4, 4), dtype=np.uint8)).save(tmp_path / name / f"{picture}.png")
    config: dict[str, Scalar] = {"dataset": "image-folder", "data-dir": str(tmp_path), "strategy": "local-sgd"}
    lines = check_run(2, {**config, "model": "mlp", "batch-size": 2})
    assert any(line.startswith(f"labels: positive 'well' (4 of 8 training rows), {CHOSEN}") for line in lines)


def test_own_files_report_their_labels(tmp_path: Path) -> None:
    config = {**table(tmp_path), "partition": "own", "positive-label": "ckd", "data-dir": ""}
    lines = check_run(2, config, [{"data-path": str(tmp_path / "a.csv")}] * 2)
    assert "labels: positive 'ckd' (32 of 80 training rows)" in lines
    assert "labels: negative 'notckd' (48 of 80 training rows)" in lines


@pytest.mark.parametrize(
    ("spec", "labels", "reason"),
    [
        (DataSpec(), (("0", "1"), ("8",)), ""),
        (DataSpec("breast-cancer"), (("benign",), ("malignant",)), ""),
        (DataSpec("csv"), (("0",), ("1",)), "the larger of two numbers"),
        (DataSpec("csv", positive_label="a"), (("b",), ("a",)), ""),
        (DataSpec("csv", partition="own"), (("0",), ("1",)), "the default; set positive-label to choose another label"),
    ],
)
def test_a_guess_is_said_to_be_one(spec: DataSpec, labels: Any, reason: str) -> None:
    first, second = describe_labels(spec, SampleFormat((2,), False, *labels), COUNTS)
    assert first.partition("(3 of 11 training rows)")[2].startswith(f", {reason}" if reason else "")
    assert ("," in first.partition("rows)")[2]) == bool(reason)
    assert second.endswith("(8 of 11 training rows)")


def test_long_lists_of_labels_are_cut() -> None:
    labels = tuple(map(str, range(12)))
    assert "'7' and 4 more (8 of" in describe_labels(DataSpec(), SampleFormat((2,), False, labels, ("x",)), COUNTS)[1]


@pytest.mark.parametrize(
    "pair", [("Yes", "yes"), ("yes", "yes "), ("not ckd", "not  ckd"), ("1", "1.0"), ("+1", "1"), ("no\t", "no")]
)
def test_two_spellings_of_a_label_are_refused(pair: tuple[str, str]) -> None:
    labels = np.array(["other", pair[0], pair[1], pair[1]], dtype=object)
    with pytest.raises(DataError) as caught:
        check_spellings(labels)
    assert "differ only in case, spaces or number format: row 2 (1 rows) and row 3 (2 rows)" in spell(caught.value)


@pytest.mark.parametrize("labels", [["Yes", "no"], [1, 0], [1.0, 0.5], [True, False], ["1", "-1"], ["a b", "ab"]])
def test_different_labels_are_accepted(labels: list[Any]) -> None:
    check_spellings(np.array(labels))
    check_spellings(np.array(labels, dtype=object))


def test_a_table_with_two_spellings_is_refused(tmp_path: Path) -> None:
    table(tmp_path, "Yes", "yes")
    with refuses(DataError, r"labels that differ only in case.*row 1 \(20 rows\) and row 21 \(30 rows\)"):
        load(DataSpec("csv", data_dir=str(tmp_path / "a.csv"), positive_label="yes"), 2)
