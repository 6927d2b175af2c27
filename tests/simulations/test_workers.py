"""Tests of the processes that run an experiment's runs."""

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from simulations.engines.workers import WorkerTask, _reason, run_all
from simulations.results.records import read_run
from vertical.injection import Injection, injection_of

# Models that end a worker's process, fail, or record the process that they ran in.
MODELS = """
import os
import pathlib
import time
from torch import nn

HERE = pathlib.Path(__file__).parent

def killer(shape):
    os.kill(os.getpid(), 9)

def leaver(shape):
    os._exit(3)

def failing(shape):
    raise RuntimeError("no such network")

def telling(shape):
    with (HERE / "pids").open("a") as file:
        file.write(f"{os.getpid()} ")
    return nn.Linear(shape[0], 1)

def meeting(shape):
    "Waits for another process that builds it."
    telling(shape)
    for _ in range(3000):
        if len(set((HERE / "pids").read_text().split())) == 2:
            return nn.Linear(shape[0], 1)
        time.sleep(0.01)
    raise RuntimeError("nobody came")
"""


def task(folder: Path, name: str, model: str, data: str = "", metrics: tuple[str, ...] = ("auc", "loss")) -> WorkerTask:
    config = {"strategy": "local-sgd", "num-server-rounds": 1, "local-steps": 1, "checkpoint-every": 0}
    place = {"output-dir": str(folder), "run-name": name}
    return WorkerTask(name, "in-process", 2, {**config, "model": model, **place}, metrics, data)


@pytest.fixture
def networks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[int]]:
    """Make `MODELS` importable; return a function that returns the recorded processes."""
    (tmp_path / "networks.py").write_text(MODELS)
    monkeypatch.syspath_prepend(tmp_path)
    return lambda: [int(pid) for pid in dict.fromkeys((tmp_path / "pids").read_text().split())]


def ran(tasks: Sequence[WorkerTask], jobs: int) -> dict[str, str]:
    """Return the reasons, in the order in which the tasks ended."""
    reasons: dict[str, str] = {}
    run_all(tasks, jobs, lambda task, reason: reasons.update({task.name: reason}))
    return reasons


def test_one_that_dies_takes_no_other_with_it(tmp_path: Path, networks: Callable[[], list[int]]) -> None:
    reasons = ran([task(tmp_path, "a", "networks:killer"), task(tmp_path, "b", "networks:telling")], jobs=2)
    assert reasons == {"a": "the run's process ended: killed by SIGKILL (out of memory?)", "b": ""}
    assert read_run(tmp_path / "b").status == "finished"
    (process,) = networks()
    assert not Path(f"/proc/{process}").exists()


@pytest.mark.slow
def test_runs_on_the_same_data_share_a_process(tmp_path: Path, networks: Callable[[], list[int]]) -> None:
    reasons = ran(
        [
            task(tmp_path, "a1", "networks:telling", "a"),
            task(tmp_path, "left", "networks:leaver", "a"),
            task(tmp_path, "b1", "networks:telling", "b"),
            task(tmp_path, "a2", "networks:telling", "a", ("auc", "gap")),
            task(tmp_path, "b2", "networks:failing", "b"),
        ],
        jobs=1,
    )
    assert list(reasons) == ["a1", "left", "b1", "b2", "a2"]
    assert reasons["left"] == "the run's process ended: exit code 3"
    assert reasons["a2"].startswith("the run has no metric gap, only auc, ")
    assert read_run(tmp_path / "a2").facts["rounds"] == 0
    assert "no such network" in reasons["b2"]
    assert len(networks()) == 3


@pytest.mark.slow
def test_two_run_at_once(tmp_path: Path, networks: Callable[[], list[int]]) -> None:
    assert set(ran([task(tmp_path, name, "networks:meeting") for name in "ab"], jobs=2).values()) == {""}
    assert len(networks()) == 2


def test_a_task_delays_its_parties(monkeypatch: pytest.MonkeyPatch) -> None:
    injected: list[Injection] = []
    monkeypatch.setattr("simulations.engines.workers.launch", lambda *_: injected.append(injection_of(1)))
    assert _reason(WorkerTask("a", "in-process", 2, {}, injected={"compute": 0.5, "slowest": 3})) == ""
    assert injected == [Injection(1.5)]
