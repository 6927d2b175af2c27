"""``python -m simulations``: wrong input is one line and a non-zero exit code, never a traceback."""

from pathlib import Path

import pytest
import torch

from tests.programs import Line, ran

TINY = 'model="linear" num-server-rounds=1 local-steps=1 pictures=false'


# Refused before anything starts: one line on stderr.


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("local-steps=0", ["local-steps", "got 0", ">= 1"]),
        ("fedx={", ["fedx={"]),
        ('run-name="x"', ["run-name", "--out"]),
        ('output-dir="x"', ["output-dir", "--out"]),
    ],
)
@pytest.mark.parametrize("subcommand", ["run", "centralized"])
def test_wrong_config_is_one_line(command: Line, tmp_path: Path, subcommand: str, text: str, parts: list[str]) -> None:
    code, out, err = command(subcommand, "--out", tmp_path / "run", "-c", text)
    assert code != 0
    assert out == ""
    assert err.startswith("error: ")
    assert len(err.splitlines()) == 1
    assert [part for part in parts if part not in err] == []
    assert not (tmp_path / "run").exists()


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
    [('model="no.such.module:net"', ["no.such.module"]), ('model="resnet20"', ["resnet20", "images"])],
)
@pytest.mark.parametrize("subcommand", ["run", "centralized"])
def test_a_run_that_cannot_be(command: Line, tmp_path: Path, subcommand: str, config: str, parts: list[str]) -> None:
    assert_refused(command(subcommand, "--out", tmp_path / "run", "-c", config), *parts)
    assert not (tmp_path / "run" / "result.json").exists()
    if subcommand == "run":
        assert parts[0] in (tmp_path / "run" / "failure.json").read_text("utf-8")


@pytest.mark.parametrize("subcommand", ["run", "centralized"])
def test_an_existing_run_is_not_overwritten(command: Line, tmp_path: Path, subcommand: str) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "metrics.jsonl").write_text("kept\n")
    assert_refused(command(subcommand, "--out", tmp_path / "run", "-c", TINY), "already holds a run", "resume=true")
    assert (tmp_path / "run" / "metrics.jsonl").read_text() == "kept\n"


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without CUDA")
@pytest.mark.parametrize("subcommand", ["run", "centralized"])
def test_cuda_where_there_is_none(command: Line, tmp_path: Path, subcommand: str) -> None:
    answer = command(subcommand, "--out", tmp_path / "run", "-c", f'{TINY} device="cuda"')
    assert_refused(answer, "device", "'cuda'", "allowed: auto, cpu")


def test_as_a_module_of_its_own_process(tmp_path: Path) -> None:
    assert ran("-m", "simulations", "run", "--out", tmp_path / "run", "-c", "fedx.gama=1", code=1) == ""
