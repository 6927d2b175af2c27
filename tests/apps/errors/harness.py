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

from apps import doctor
from simulations import __main__ as simulations
from simulations.arguments import overrides_of, placed
from simulations.attacks import __main__ as attacks
from simulations.engines.launch import run_federation
from simulations.results.output import log_off

PROGRAMS: dict[str, Callable[[], object]] = {
    "simulations": simulations.main,
    "apps.doctor": doctor.cli,
    "simulations.attacks": lambda: typer.run(attacks.main),
}
# a run of two clients and two rounds that keep state, with a checkpoint of each round
FINISHED = (
    'strategy="scaffold" dataset="breast-cancer" model="linear" num-server-rounds=2 local-steps=1 checkpoint-every=1 '
    "pictures=false"
)


@dataclass(frozen=True, eq=False)
class Row:
    """A command line that fails, and parts of its message in their order: key, got, allowed and the way out.

    In arguments, parts and the texts of files ``{tmp}`` is an empty folder and ``{out}`` the folder ``run`` in it.
    """

    name: str
    arguments: tuple[str, ...]  # after ``python -m``
    says: tuple[str, str, str, str]
    files: Mapping[str, str | bytes | Callable[[Path], object]] = field(default_factory=dict)
    before: Callable[[Path, Path], object] | None = None  # takes ``{tmp}`` and the directory of a finished run


def run(*configs: str, clients: int | None = 2, nodes: tuple[str, ...] = (), command: str = "run") -> tuple[str, ...]:
    """The command line of a run."""
    arguments = ["simulations", command, "--out", "{out}", "--quiet"]
    for config in configs:
        arguments += ["-c", config]
    for node in nodes:
        arguments += ["-n", node]
    return (*arguments, *(("--clients", str(clients)) if clients is not None and not nodes else ()))


def finished(folder: Path) -> Path:
    with log_off(True):
        run_federation(2, placed(overrides_of([FINISHED]), folder / "finished"))
    return folder / "finished"


def filled(text: str, tmp: Path) -> str:
    return text.replace("{out}", f"{tmp}/run").replace("{tmp}", str(tmp))


def prepare(row: Row, tmp: Path, finished: Path) -> None:
    """Write the row's files."""
    for name, content in row.files.items():
        path = tmp / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if callable(content):
            content(path)
        else:
            path.write_bytes(filled(content, tmp).encode() if isinstance(content, str) else content)
    if row.before is not None:
        row.before(tmp, finished)


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
