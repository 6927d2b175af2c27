"""The colours of Flower's log: for terminals only."""

import io
import os
import subprocess
import sys
from pathlib import Path

import pytest
from flwr.supercore.logger import console_handler

from payloads.flower_internals import drop_log_colors
from tests.programs import PROJECT


class Terminal(io.BytesIO):
    def isatty(self) -> bool:
        return True


def test_a_run_writes_no_colours_to_a_pipe(tmp_path: Path) -> None:
    config = 'strategy="local-sgd" model="linear" num-server-rounds=1 local-steps=1 checkpoint-every=0 pictures=false'
    words = [sys.executable, "-m", "simulations", "run", "--out", str(tmp_path / "run"), "--clients", "2", "-c", config]
    environment = {name: value for name, value in os.environ.items() if name != "NO_COLOR"}
    environment["PYTHONPATH"] = str(PROJECT)
    done = subprocess.run(words, capture_output=True, text=True, timeout=300, check=True, env=environment)
    assert "INFO :" in done.stderr
    assert "\x1b" not in done.stderr


@pytest.mark.parametrize(
    ("terminal", "no_color", "colored"), [(True, "", True), (True, "1", False), (False, "", False)]
)
def test_only_a_terminal_gets_colours(
    terminal: bool, no_color: str, colored: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_COLOR", no_color)
    monkeypatch.setattr(console_handler, "colored", True)
    monkeypatch.setattr(sys, "stderr", io.TextIOWrapper(Terminal() if terminal else io.BytesIO()))
    drop_log_colors()
    assert console_handler.colored is colored
