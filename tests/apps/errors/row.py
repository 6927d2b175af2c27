"""A row of the list: a command line, or a call, that fails, and the four things that its message says."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

# what a row's files are made with: their text or bytes, or what writes them
Content = str | bytes | Callable[[Path], object]
# what the message says: the key (option, file, place), what it got, what is allowed, and what helps
Says = tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Row:
    """One way to get an error.

    In arguments, files and parts ``{tmp}`` is an empty folder and ``{out}`` the folder ``run`` in it.
    """

    name: str
    arguments: tuple[str, ...] = ()  # after ``python -m``: a module, then what it is given
    says: Says = ()
    # what is there before
    files: Mapping[str, Content] = field(default_factory=dict)
    before: Callable[[Path, Path], object] | None = None  # takes ``{tmp}`` and the directory of a finished run
    call: Callable[[Path], object] | None = None  # instead of a command line: what no command can bring about here
    environment: Mapping[str, str] = field(default_factory=dict)
    # how it ends
    code: int = 1
    longest: int = 500


def run(name: str, *configs: str, says: Says, **more: Any) -> Row:
    """A federation's run: ``configs`` are its --config, ``clients`` and ``nodes`` its --clients and --node-config."""
    arguments = [*_common("run", configs), "--quiet"]
    if "clients" in more:
        arguments += ["--clients", str(more.pop("clients"))]
    for node in more.pop("nodes", ()):
        arguments += ["-n", node]
    return Row(name, tuple(arguments), says, **more)


def command(name: str, *arguments: str, says: Says, **more: Any) -> Row:
    """Any command of ``python -m simulations``."""
    return Row(name, ("simulations", *arguments), says, **more)


def called(name: str, call: Callable[[Path], object], *, says: Says, **more: Any) -> Row:
    """A call, where a command line would need other machines, or what this one has not."""
    return Row(name, (), says, call=call, **more)


def _common(subcommand: str, configs: tuple[str, ...]) -> list[str]:
    arguments = ["simulations", subcommand, "--out", "{out}"]
    for config in configs:
        arguments += ["-c", config]
    return arguments
