"""What the command line prints: tables, JSON, or nothing."""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import typer
from pydantic_core import from_json, to_json

_FIXED_BELOW = 1e6  # a larger number would be too wide in fixed notation
_FIXED_ABOVE = 0.01  # a smaller metric would show fewer than three digits


@contextlib.contextmanager
def log_off(quiet: bool) -> Iterator[None]:
    """Turn off Flower's log, which reports a run's rounds, for the whole process.

    Args:
        quiet: False: the log stays as it is.
    """
    logger = logging.getLogger("flwr")
    before = logger.disabled
    logger.disabled = before or quiet
    try:
        yield
    finally:
        logger.disabled = before


@contextlib.contextmanager
def stdout_to_stderr(redirect: bool) -> Iterator[None]:
    """Send what this process and its children write to stdout to stderr, to keep stdout free for one JSON object.

    Args:
        redirect: False: nothing is changed.
    """
    if not redirect:
        yield
        return
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)


def print_json(value: object) -> None:
    """Print one JSON object on stdout.

    Args:
        value: May hold dataclasses and paths; a number that JSON cannot express, such as nan, becomes null.
    """
    typer.echo(json.dumps(from_json(to_json(value, inf_nan_mode="null")), indent=2))


def format_cell(value: object, decimals: int | None = None) -> str:
    """Return a table's cell: "-" for None, true and false in lower case.

    Args:
        decimals: Of a float below a million; other floats, or all if this is None, have six digits at most.

    Example:
        >>> format_cell(0.98765, 3), format_cell(None), format_cell(True)
        ('0.988', '-', 'true')
    """
    if value is None:
        return "-"
    if isinstance(value, float):
        fixed = decimals is not None and abs(value) < _FIXED_BELOW
        return f"{value:.{decimals}f}" if fixed else f"{value:.6g}"
    return str(value).lower() if isinstance(value, bool) else str(value)


def format_metric(value: float | None, like: float | None = None) -> str:
    """Return a metric's cell: four decimals, or four digits where those would be mostly zeros.

    Args:
        value: None: the cell is "-".
        like: The metric whose number format a spread takes.
    """
    measure = value if like is None else like
    small = measure is not None and 0 < abs(measure) < _FIXED_ABOVE
    return f"{value:.3e}" if small and value is not None else format_cell(value, 4)


def format_megabytes(count: float) -> str:
    """Return a number of bytes as megabytes of 10^6 bytes."""
    return format_cell(count / 1e6, 3)


def format_pair(mean: float | None, std: float | None) -> str:
    """Return a mean of metrics and its standard deviation.

    Args:
        std: None: there is none, and the mean stands alone.
    """
    return format_metric(mean) if std is None else f"{format_metric(mean)} ± {format_metric(std, like=mean)}"


def format_count(number: int, noun: str) -> str:
    """Return a number with its noun, in the plural unless it is 1."""
    return f"{number} {noun}{'s' * (number != 1)}"


def metric_cell(value: float | None) -> tuple[str, float | None]:
    """Return a metric's cell of a `Table`."""
    return format_metric(value), value


@dataclass(frozen=True)
class Table:
    """A table under its caption.

    A cell is a value that `format_cell` formats, or a pair: its text, and the number by which it is sorted.
    """

    caption: str
    columns: list[str]
    rows: list[list[Any]]

    @property
    def cells(self) -> list[list[tuple[str, str]]]:
        """The text of each cell, and the number by which a page sorts it, empty if it has no finite number."""
        return [[_text_and_key(cell) for cell in row] for row in self.rows]

    @property
    def texts(self) -> list[list[str]]:
        """The texts of its cells."""
        return [[text for text, _ in row] for row in self.cells]

    def text(self) -> str:
        """Return the table for a terminal."""
        return (f"{self.caption}:\n" if self.caption else "") + table(self.columns, self.texts)


def _text_and_key(cell: Any) -> tuple[str, str]:
    text, value = cell if isinstance(cell, tuple) else (format_cell(cell), cell)
    finite = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    return text, repr(float(value)) if finite else ""


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Aligned columns under their names, numbers to the right; a cell's control characters are escaped.

    Raises:
        ValueError: A row has more cells, or fewer, than there are columns.
    """
    cells = [[cell if cell.isprintable() else ascii(cell) for cell in row] for row in [columns, *rows]]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    numeric = [all(_is_number(cell) for cell in column[1:]) for column in zip(*cells, strict=True)]
    lines = [
        "  ".join(
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(row, widths, numeric, strict=True)
        ).rstrip()
        for row in cells
    ]
    return "\n".join(lines)


def _is_number(cell: str) -> bool:
    return cell == "-" or re.fullmatch(r"[-+]?[\d.]+(e[-+]?\d+)?", cell) is not None


@contextlib.contextmanager
def progress(total: int, quiet: bool) -> Iterator[Callable[[str], None]]:
    """Show how much of a command's work is done.

    On a terminal the lines stand above a progress bar with the time left.

    Args:
        total: The number of things to do.
        quiet: Show nothing.

    Yields:
        A function that is called with a line for each thing done, and writes it to stderr.
    """
    if quiet or not sys.stderr.isatty():
        yield lambda line: None if quiet else typer.echo(line, err=True)
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeElapsedColumn, TimeRemainingColumn

    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), "left:", TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=total)

        def say(line: str) -> None:
            bar.console.print(line, markup=False, highlight=False, soft_wrap=True)
            bar.advance(task)

        yield say
