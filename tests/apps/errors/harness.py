"""Brings an error about in this process, and notes where it was raised."""

from __future__ import annotations

import ast
import contextlib
import io
import os
import re
import sys
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from unittest.mock import patch

import typer
from pydantic import ValidationError

from apps import doctor
from apps.config import ConfigError
from apps.doctor import WrongError
from apps.server_app import RunFailedError
from payloads.record import PayloadError
from problems.data import DataError
from problems.minimax import ProblemError
from problems.models import ModelError
from simulations import __main__ as simulations
from simulations import leaks
from simulations.flower import FlowerError
from strategies.roster import StrategyError
from tests.apps.errors.row import Row

ROOT = Path(__file__).parents[3]
PACKAGES = ("apps", "simulations", "problems", "strategies", "clients", "payloads")
# What tells a user something. Of other exceptions those that apps and simulations raise themselves count too.
TOLD = (
    ConfigError,
    DataError,
    ModelError,
    ProblemError,
    StrategyError,
    WrongError,
    FlowerError,
    RunFailedError,
    typer.BadParameter,
)
_TOLD_NAMES = {kind.__name__ for kind in TOLD}

Line = tuple[str, int]


@dataclass(frozen=True)
class Outcome:
    """How a row ended: exit code, the whole console, and the message with its lines joined."""

    code: int
    console: str
    message: str
    tmp: str
    lines: frozenset[Line]  # where errors were made or raised on the way


@dataclass(frozen=True)
class Site:
    """A raise statement."""

    file: str
    function: str
    text: str  # what it raises
    first: int
    last: int

    @property
    def lines(self) -> range:
        return range(self.first, self.last + 1)

    def __str__(self) -> str:
        return f"{self.file}:{self.first} in {self.function}: {self.text[:100]}"


def sites() -> list[Site]:
    """Every raise statement that may tell a user something."""
    found = []
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            found += list(_sites_of(path))
    return found


def _sites_of(path: Path) -> Iterator[Site]:
    file = str(path.relative_to(ROOT))
    every = file.startswith(("apps/", "simulations/"))

    def walk(node: ast.AST, function: str) -> Iterator[Site]:
        for child in ast.iter_child_nodes(node):
            inner = function
            if isinstance(child, ast.FunctionDef | ast.ClassDef):
                inner = f"{function}.{child.name}".lstrip(".")
            if isinstance(child, ast.Raise) and child.exc is not None:
                name = ast.unparse(child.exc.func if isinstance(child.exc, ast.Call) else child.exc)
                last = name.rpartition(".")[2]
                made = last.islower() and "." not in name  # by a function
                if every or last in _TOLD_NAMES or (made and not file.startswith("clients/")):
                    yield Site(file, inner, ast.unparse(child.exc), child.lineno, child.end_lineno or 0)
            yield from walk(child, inner)

    yield from walk(ast.parse(path.read_text("utf-8")), "")


@cache
def outcome(row: Row, finished: Path) -> Outcome:
    """What a row does, done once a process."""
    with tempfile.TemporaryDirectory() as folder:
        tmp = Path(folder).resolve()
        for name, content in row.files.items():
            path = tmp / name
            path.parent.mkdir(parents=True, exist_ok=True)
            if callable(content):
                content(path)
            else:
                path.write_bytes(_filled(content, tmp).encode() if isinstance(content, str) else content)
        if row.before is not None:
            row.before(tmp, finished)
        with _noted() as lines, patch.dict(os.environ, row.environment), warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # of numbers that overflow, which end no user's run
            if row.call is None:
                code, console = _console(tuple(_filled(one, tmp) for one in row.arguments))
            else:
                code, console = _called(row.call, tmp, lines)
    return Outcome(code, console, _message(console), str(tmp), frozenset(lines))


def filled(text: str, tmp: str) -> str:
    """A row's text with its folders."""
    return text.replace("{out}", f"{tmp}/run").replace("{tmp}", tmp)


def _filled(text: str, tmp: Path) -> str:
    return filled(text, str(tmp))


def _console(arguments: tuple[str, ...]) -> tuple[int, str]:
    """Exit code and output of a command line."""
    programs: dict[str, Callable[[], object]] = {
        "simulations": simulations.main,
        "apps.doctor": doctor.cli,
        "simulations.leaks": lambda: typer.run(leaks.main),
    }
    out = io.StringIO()
    with patch.object(sys, "argv", list(arguments)), contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        try:
            programs[arguments[0]]()
        except SystemExit as end:
            _note_chain(end)
            return (end.code if isinstance(end.code, int) else 0 if end.code is None else 1), out.getvalue()
    return 0, out.getvalue()


def _called(call: Callable[[Path], object], tmp: Path, lines: set[Line]) -> tuple[int, str]:
    try:
        call(tmp)
    except Exception as error:
        _note_chain(error)
        return 1, f"error: {error}"
    return 0, ""


def _message(console: str) -> str:
    """Without click's frame, colours and line breaks, and what comes before the message."""
    plain = re.sub(r"\x1b\[[0-9;]*m|[╭╮╰╯│─]", " ", console)
    text = " ".join(plain.split())
    return text.removeprefix("error: ")


# Where errors come from: an error's maker is noted when it is made, and each link of a chain by its traceback.

_notes: set[Line] | None = None
_lock = threading.Lock()


@contextlib.contextmanager
def _noted() -> Iterator[set[Line]]:
    global _notes
    with contextlib.ExitStack() as stack:
        for kind in (*TOLD, PayloadError):
            stack.enter_context(patch.object(kind, "__init__", _noting(kind.__init__)))
        _notes = set()
        try:
            yield _notes
        finally:
            _notes = None


def _noting(made: Callable[..., None]) -> Callable[..., None]:
    def init(self: BaseException, *arguments: object, **options: object) -> None:
        made(self, *arguments, **options)
        frame = sys._getframe(1)
        for _ in range(2):  # its maker, and who called that, should it be a function that makes errors
            if frame is not None:
                _note(frame.f_code.co_filename, frame.f_lineno)
                frame = frame.f_back  # type: ignore[assignment]

    return init


def _note(file: str, line: int) -> None:
    path = Path(file)
    with _lock:
        if _notes is not None and path.is_relative_to(ROOT):
            _notes.add((str(path.relative_to(ROOT)), line))


def _note_chain(error: BaseException | str | None) -> None:
    while isinstance(error, BaseException):
        place = error.__traceback__
        while place is not None:
            _note(place.tb_frame.f_code.co_filename, place.tb_lineno)
            place = place.tb_next
        if isinstance(error, ValidationError):  # it keeps what its validators raised
            for detail in error.errors(include_url=False):
                _note_chain(detail.get("ctx", {}).get("error"))
        error = error.__cause__ or error.__context__
