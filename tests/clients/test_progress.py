"""The progress of local steps: lines or a bar in long rounds only, exact counts of rows, and unchanged batches."""

import io
import logging
import sys
from collections.abc import Generator
from contextlib import closing
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from clients import progress
from methods.pair_batches import ActiveBatch, PairBatch, Predictions
from simulations.python.runs import run

ROWS = np.arange(4)
ACTIVE = ActiveBatch(torch.zeros(5, 2), torch.arange(2), None)
NONE = Predictions(torch.zeros(0), torch.zeros(0))


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def walk(
    monkeypatch: pytest.MonkeyPatch, seconds: float, steps: int = 10
) -> Generator[tuple[float, np.ndarray], None, None]:
    """Yield the batches of a round in which each step takes some seconds."""
    clock = count(step=seconds)
    monkeypatch.setattr(progress, "time", SimpleNamespace(perf_counter=lambda: next(clock)))
    return progress.follow(iter([(0.1, ROWS)] * steps), client=3, server_round=2, steps=steps)


def test_a_line_each_half_minute(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(logging.getLogger("flwr"), "propagate", True)
    batches = list(walk(monkeypatch, seconds=8.0))
    assert len(batches) == 10
    assert all(batch is ROWS for _, batch in batches)
    assert caplog.messages == [f"client 3, round 2: step {done} of 10, 0 rows/s" for done in (4, 8)]
    caplog.clear()
    assert len(list(walk(monkeypatch, seconds=2.9))) == 10
    assert caplog.messages == []


def test_a_terminal_has_a_bar_that_goes_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", stream := Terminal())
    monkeypatch.setenv("TERM", "xterm")
    with progress.allow_bars():
        assert len(list(walk(monkeypatch, seconds=0.2))) == 10
        assert stream.getvalue() == ""
        with closing(walk(monkeypatch, seconds=1.0)) as batches, closing(walk(monkeypatch, seconds=1.0)) as others:
            assert len([next(batches) for _ in range(6)] + [next(others) for _ in range(6)]) == 12
        assert "client 3, round 2" in stream.getvalue()
        assert "5/10\x1b[0m 4 rows/s" in stream.getvalue()
        assert not progress._bar_lock.locked()
    assert not progress._in_terminal


@pytest.mark.parametrize(
    ("batch", "rows"),
    [
        (ROWS, 4),
        ((torch.zeros(6, 2), torch.zeros(6)), 6),
        (PairBatch(ACTIVE, NONE, NONE), 5),
        ((ACTIVE, None, PairBatch(ACTIVE, NONE, NONE)), 10),
    ],
)
def test_rows_are_counted_in_all_forms_of_batches(batch: object, rows: int) -> None:
    assert progress.count_rows(batch) == rows


def test_a_run_shows_its_clients_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(logging.getLogger("flwr"), "propagate", True)
    config = {"strategy": "coda", "model": "linear", "num-server-rounds": 1, "local-steps": 2, "pictures": False}
    run(config, tmp_path / "quick", clients=2)
    assert not any("step " in message for message in caplog.messages)
    monkeypatch.setattr(progress, "LINE_EVERY", 0.0)
    run(config, tmp_path / "slow", clients=2)
    lines = [message for message in caplog.messages if "step " in message]
    assert [line.split(",")[:2] for line in lines] == [
        [f"client {client}", f" round 1: step {done} of 2"] for client in (0, 1) for done in (1, 2)
    ]
