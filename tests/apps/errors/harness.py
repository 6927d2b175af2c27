"""Command lines that end in an error, in this process."""

import contextlib
import io
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from unittest.mock import patch

import typer

from simulations import __main__ as simulations
from simulations.attacks import __main__ as attacks

PROGRAMS: dict[str, Callable[[], object]] = {
    "simulations": simulations.main,
    "simulations.attacks": lambda: typer.run(attacks.main),
}


@dataclass(frozen=True, eq=False)
class Row:
    """A command line that fails, and parts of its message in their order: key, got, allowed and the way out.

    In arguments and parts ``{tmp}`` is an empty folder and ``{out}`` the folder ``run`` in it.
    """

    name: str
    arguments: tuple[str, ...]  # after ``python -m``
    says: tuple[str, str, str, str]
    files: Mapping[str, str] = field(default_factory=dict)


def run(*configs: str, clients: int | None = 2, nodes: tuple[str, ...] = (), command: str = "run") -> tuple[str, ...]:
    """The command line of a run."""
    arguments = ["simulations", command, "--out", "{out}", "--quiet"]
    for config in configs:
        arguments += ["-c", config]
    for node in nodes:
        arguments += ["-n", node]
    return (*arguments, *(("--clients", str(clients)) if clients is not None and not nodes else ()))


def filled(text: str, tmp: Path) -> str:
    return text.replace("{out}", f"{tmp}/run").replace("{tmp}", str(tmp))


def prepare(row: Row, tmp: Path) -> None:
    """Write the row's files."""
    for name, content in row.files.items():
        path = tmp / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)


def outcome(arguments: tuple[str, ...], tmp: Path) -> tuple[int, str]:
    """Exit code of a command line, and all that it wrote."""
    out = io.StringIO()
    argv = [filled(one, tmp) for one in arguments]
    with patch.object(sys, "argv", argv), contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        try:
            PROGRAMS[arguments[0]]()
        except SystemExit as end:
            return end.code if isinstance(end.code, int) else 0, out.getvalue()
    return 0, out.getvalue()


def unframed(console: str) -> str:
    """A usage error without typer's frame, colours and line breaks."""
    return " ".join(re.sub(r"\x1b\[[0-9;]*m|[╭╮╰╯│─]", " ", console).split())
