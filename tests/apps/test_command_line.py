"""``python -m simulations``: wrong input is one line and a non-zero exit code, never a traceback."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from apps.config import known_keys
from simulations.__main__ import main
from tests.battery.federation import Run, log_to_stderr, save_npz

ROOT = Path(__file__).parents[2]
TINY = 'model="linear" num-server-rounds=1 local-steps=1 pictures=false'


class Line:
    """The command line, called in this process: exit code, and what it printed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
        self.monkeypatch, self.capfd = monkeypatch, capfd

    def __call__(self, *arguments: object) -> tuple[int, str, str]:
        self.monkeypatch.setattr(sys, "argv", ["simulations", *map(str, arguments)])
        self.capfd.readouterr()
        log_to_stderr(self.monkeypatch)
        with pytest.raises(SystemExit) as stopped:
            main()
        code = 0 if stopped.value.code is None else int(stopped.value.code)
        return code, *self.capfd.readouterr()


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Line:
    return Line(monkeypatch, capfd)


def test_a_run_ends_with_exit_code_0(command: Line, tmp_path: Path) -> None:
    code, *_ = command("run", "--out", tmp_path / "run", "--clients", 2, "-c", TINY, "-c", 'strategy="local-sgd"')
    assert code == 0
    result = Run(tmp_path / "run").result
    assert (result["clients"], result["strategy"], result["rounds"]) == (2, "local-sgd", 1)


# Refused before anything starts: one line on stderr.


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("learning-rat=0.1", ["learning-rat", "unknown", "learning-rate"]),
        ("local-steps=0", ["local-steps", "got 0", ">= 1"]),
        ("strategy=fedx2", ["strategy=fedx2", "key=value"]),
        ("fedx={", ["fedx={"]),
        ("missing.toml", ["missing.toml"]),
        ('run-name="x"', ["run-name", "--out"]),
        ('output-dir="x"', ["output-dir", "--out"]),
    ],
)
@pytest.mark.parametrize("subcommand", ["run", "centralized"])
def test_a_wrong_config_is_one_line(
    command: Line, tmp_path: Path, subcommand: str, text: str, parts: list[str]
) -> None:
    code, out, err = command(subcommand, "--out", tmp_path / "run", "-c", text)
    assert code != 0
    assert out == ""
    assert err.startswith("error: ")
    assert len(err.splitlines()) == 1
    assert [part for part in parts if part not in err] == []
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("arguments", "part"),
    [(["run"], "--out"), (["run", "--out", "x", "--clients", 0], "--clients"), (["runn"], "runn")],
)
def test_a_wrong_option_is_named(command: Line, arguments: list[object], part: str) -> None:
    code, out, err = command(*arguments)
    assert code == 2
    assert part in err
    assert "Traceback" not in out + err


# Refused by the run: the reason is the last line.


def assert_refused(answer: tuple[int, str, str], *parts: str) -> None:
    code, out, err = answer
    assert code != 0
    assert "Traceback" not in out + err
    last = err.splitlines()[-1]
    assert last.startswith("error: ") or "run failed: " in last
    assert [part for part in parts if part not in last] == []


@pytest.mark.parametrize(
    ("config", "parts"),
    [
        ('dataset="npz" data-dir="/nowhere.npz"', ["/nowhere.npz", "exist"]),
        ('model="no.such.module:net"', ["no.such.module"]),
        ('model="resnet20"', ["resnet20", "images"]),
    ],
)
@pytest.mark.parametrize("subcommand", ["run", "centralized"])
def test_a_run_that_cannot_be(command: Line, tmp_path: Path, subcommand: str, config: str, parts: list[str]) -> None:
    assert_refused(command(subcommand, "--out", tmp_path / "run", "-c", config), *parts)
    assert not (tmp_path / "run" / "result.json").exists()
    if subcommand == "run":
        assert parts[0] in (tmp_path / "run" / "failure.json").read_text("utf-8")


@pytest.mark.parametrize("subcommand", ["run", "centralized"])
def test_more_clients_than_samples(command: Line, tmp_path: Path, subcommand: str) -> None:
    keys = save_npz(tmp_path / "data.npz", np.ones((4, 2)), [0, 1, 0, 1])
    config = " ".join(f'{key}="{value}"' for key, value in keys.items())
    answer = command(subcommand, "--out", tmp_path / "run", "--clients", 9, "-c", config)
    assert_refused(answer, "number of clients: got 9, but only 4 training samples")


@pytest.mark.parametrize("subcommand", ["run", "centralized"])
def test_an_existing_run_is_not_overwritten(command: Line, tmp_path: Path, subcommand: str) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "metrics.jsonl").write_text("kept\n")
    assert_refused(command(subcommand, "--out", tmp_path / "run", "-c", TINY), "already holds a run", "resume=true")
    assert (tmp_path / "run" / "metrics.jsonl").read_text() == "kept\n"


@pytest.mark.parametrize("subcommand", ["run", "centralized"])
@pytest.mark.parametrize("below", ["", "run"])
def test_a_place_that_cannot_be_written(command: Line, tmp_path: Path, subcommand: str, below: str) -> None:
    (tmp_path / "file").write_text("in the way")
    assert_refused(command(subcommand, "--out", tmp_path / "file" / below, "-c", TINY), str(tmp_path / "file"))


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without CUDA")
@pytest.mark.parametrize("subcommand", ["run", "centralized"])
def test_cuda_where_there_is_none(command: Line, tmp_path: Path, subcommand: str) -> None:
    answer = command(subcommand, "--out", tmp_path / "run", "-c", f'{TINY} device="cuda"')
    assert_refused(answer, "device", "'cuda'", "allowed: auto, cpu")


def test_as_a_module_of_its_own_process(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "simulations", "run", "--out", str(tmp_path / "run"), "-c", "fedx.gama=1"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr == (
        f"error: fedx.gama: got an unknown run-config key, allowed: the {len(known_keys())} of docs/configuration.md "
        "(did you mean 'fedx.gamma'?); `python -m simulations list keys` explains them\n"
    )
