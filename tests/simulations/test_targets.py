"""Tests that ``--out`` replaces only earlier outputs of the same command."""

import multiprocessing
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from apps.config import ConfigError, parse_run_config
from apps.run_directory.artifacts import RunDirectory
from simulations.results.target import is_card, is_onnx, is_page, is_scores, write_output
from simulations.scoring.rows import write_scores
from tests.battery.federation import SMALL
from tests.refusals import refuses

SCORES = pd.DataFrame({"id": ["a,b", "c"], "score": [0.0, 2.0], "probability": [0.5, 1 / (1 + np.exp(-2.0))]})


def refused(target: Path, told: str, act: Callable[[], Any]) -> None:
    before = target.read_bytes()
    with refuses(ConfigError, told):
        act()
    assert target.read_bytes() == before


@pytest.mark.parametrize("name", ["scores.csv", "scores.csv.gz"])
def test_scores_replace_scores_and_not_their_input(tmp_path: Path, name: str) -> None:
    new = tmp_path / "new.csv"
    new.write_text("age\n1\n")
    for _ in range(2):
        write_scores(SCORES, tmp_path / name, new)
    pd.testing.assert_frame_equal(pd.read_csv(tmp_path / name), SCORES)
    target = tmp_path / name
    refused(target, "which is an input file", lambda: write_scores(SCORES, target, target))
    refused(new, "which is an input file", lambda: write_scores(SCORES, tmp_path / "x" / ".." / "new.csv", new))
    (tmp_path / "symbolic.csv").symlink_to(new)
    os.link(new, tmp_path / "hard.csv")
    for other in ("symbolic.csv", "hard.csv"):
        refused(new, "which is an input file", partial(write_scores, SCORES, tmp_path / other, new))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "id,score,probability,label\nc,0,0.5,1\n",
        "id,score,probability\nc,0,0.7\n",
        "id,score,probability\nc,high,0.5\n",
        "id,score,probability\nc\n",
        'id,score,probability\n"c,0,0.5\n',
        "score,probability\n0,0.5\n",
        "\x1f\x8b",
    ],
)
def test_other_files_are_not_replaced(tmp_path: Path, text: str) -> None:
    target, new = tmp_path / "a.csv", tmp_path / "new.csv"
    target.write_text(text)
    refused(target, "which this command did not write", lambda: write_scores(SCORES, target, new))


def test_devices_and_pages_of_others_are_not_replaced(tmp_path: Path) -> None:
    with refuses(ConfigError, "which is not a regular file"):
        write_scores(SCORES, Path("/dev/null"), tmp_path / "new.csv")
    target = tmp_path / "README.md"
    target.write_text("# mine")
    for recognize in (is_card, is_page, is_onnx):
        refused(target, "set --out to another file", partial(write_output, target, b"x", recognize))
    write_output(target, b"x", None)
    assert target.read_bytes() == b"x"
    assert not is_scores(b"", ["score", "probability"])


def claim(path: Path, start: Any, outcomes: Any) -> None:
    """Begin a run at the same moment as another process; keep its directory until both have tried."""
    config = parse_run_config({**SMALL, "output-dir": str(path.parent), "run-name": path.name})
    start.wait()
    try:
        kept = RunDirectory.open(config)
        outcomes.put("begun")
        start.wait()
        kept.close()
    except ConfigError as error:
        outcomes.put(str(error))
        start.wait()


def test_of_two_runs_that_begin_at_once_one_goes_on(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    start, outcomes = context.Barrier(2), context.Queue()
    processes = [context.Process(target=claim, args=(tmp_path / "run", start, outcomes)) for _ in range(2)]
    for process in processes:
        process.start()
    told = sorted(outcomes.get(timeout=60) for _ in processes)
    for process in processes:
        process.join()
    assert told[0] == "begun"
    assert "to which another run is writing now" in told[1]
    config = parse_run_config({**SMALL, "output-dir": str(tmp_path), "run-name": "run"})
    RunDirectory.open(config).close()  # a lock ends with its process


def test_runs_without_a_name_that_begin_at_once_are_numbered(tmp_path: Path) -> None:
    config = parse_run_config({**SMALL, "output-dir": str(tmp_path), "run-name": ""})
    one, two = RunDirectory.open(config), RunDirectory.open(config)
    assert two.path.name == f"{one.path.name}-2"
    with refuses(ConfigError, "no checkpoint|another run is writing"):
        RunDirectory.open(
            parse_run_config({**SMALL, "output-dir": str(tmp_path), "run-name": one.path.name, "resume": True})
        )


@pytest.mark.parametrize("name", ["config.toml", "result.json", "model.safetensors", "model_best.safetensors"])
def test_a_run_replaces_no_file_of_another_origin(tmp_path: Path, name: str) -> None:
    (tmp_path / "notes.txt").touch()
    config = parse_run_config({**SMALL, "output-dir": str(tmp_path.parent), "run-name": tmp_path.name})
    (tmp_path / name).write_text("mine")
    refused(tmp_path / name, f"which contains {name} but is not a run directory", lambda: RunDirectory.open(config))
    (tmp_path / name).unlink()
    RunDirectory.open(config).close()
