"""Programs in separate processes, as a user starts them, and the command line in this process."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from simulations.__main__ import main
from tests.battery.federation import log_to_stderr

PROJECT = Path(__file__).resolve().parents[1]
BIN = Path(sys.executable).parent
REAL = PROJECT / ".." / "shared" / "data"  # real data sets, outside the repository
needs_real = pytest.mark.skipif(not REAL.is_dir(), reason=f"the real data sets are not at {REAL}")


def ran(*words: str | Path, cwd: Path = PROJECT, seconds: float = 300.0, code: int = 0) -> str:
    """Return the stdout of a program, which must end with that code within the time.

    A first word that ends in ``.py`` is a script, ``-m`` and ``-c`` are for Python, and others are commands of the
    program's environment: this process's environment, with the checkout's modules.
    """
    first, *rest = map(str, words)
    python = first.endswith(".py") or first in ("-m", "-c")
    path = os.pathsep.join([str(BIN), os.environ.get("PATH", "")])
    done = subprocess.run(
        [sys.executable, first, *rest] if python else [first, *rest],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(PROJECT), "PATH": path, "MPLBACKEND": "Agg"},
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )
    assert done.returncode == code, f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


class Line:
    """``florilegium``, called in this process: exit code and output."""

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
