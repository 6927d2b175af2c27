"""Programs in processes of their own, as a user starts them."""

import os
import subprocess
import sys
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[1]
BIN = Path(sys.executable).parent


def ran(*words: str | Path, cwd: Path = PROJECT, seconds: float = 300.0, code: int = 0) -> str:
    """What a program prints on stdout; it must end with that code, and have ended by then.

    A first word that ends in ``.py`` is a script, ``-m`` and ``-c`` are for Python, and others are commands of its
    environment, which is the one of this process, with the checkout's modules.
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
