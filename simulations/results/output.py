"""The output of the commands: tables and JSON on stdout, progress on stderr, and the format of numbers."""

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
    """Turn off Flower's logger, which reports a run's rounds, for the whole process.

    Args:
        quiet: Whether to turn the logger off. False: no change.
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
    """Redirect this process's and its children's stdout to stderr, to keep stdout free for a JSON object.

    Args:
        redirect: Whether to redirect. False: no change.
    """
    if not redirect:
        yield
        return
    sys.stdout.flush()
    saved = os.dup(1)
    os.dup2(2, 1)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        os.dup2(saved, 1)
        os.close(saved)


def print_json(value: object) -> None:
    """Print a JSON object on stdout.

    Args:
        value: The object, which may contain dataclasses and paths. Numbers that JSON lacks, such as nan, become null.
    """
    typer.echo(json.dumps(from_json(to_json(value, inf_nan_mode="null")), indent=2))


def format_cell(value: object, decimals: int | None = None) -> str:
    """Return the text of a table's cell: "-" for None, and booleans in lower case.

    Args:
        value: The value.
        decimals: The number of decimals of floats below a million. None: floats have at most six significant digits.

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
    """Return the text of a metric: four decimals, or four digits of a small number, whose decimals would be zeros.

    Args:
        value: The metric. None: the text is "-".
        like: The number that selects the format, such as the mean for a standard deviation. None: the metric itself.
    """
    measure = value if like is None else like
    small = measure is not None and 0 < abs(measure) < _FIXED_ABOVE
    return f"{value:.3e}" if small and value is not None else format_cell(value, 4)


def format_megabytes(count: float) -> str:
    """Return a number of bytes in megabytes (10^6 bytes), as text."""
    return format_cell(count / 1e6, 3)


def format_pair(mean: float | None, std: float | None) -> str:
    """Return the text "mean ± standard deviation".

    Args:
        mean: The mean.
        std: The standard deviation. None: the text has only the mean.
    """
    return format_metric(mean) if std is None else f"{format_metric(mean)} ± {format_metric(std, like=mean)}"


def format_count(number: int, noun: str) -> str:
    """Return a number with its noun, in the plural unless it is 1."""
    return f"{number} {noun}{'s' * (number != 1)}"


def metric_cell(value: float | None) -> tuple[str, float | None]:
    """Return a metric as a cell of a `Table`: its text and its value."""
    return format_metric(value), value


@dataclass(frozen=True)
class Table:
    """A table with its caption.

    A cell is either a value for `format_cell`, or a pair of the cell's text and the number by which the cell is sorted.
    """

    caption: str
    columns: list[str]
    rows: list[list[Any]]

    @property
    def cells(self) -> list[list[tuple[str, str]]]:
        """The text and the sort key of each cell, for an HTML page. A key is empty if the cell has no finite number."""
        return [[_text_and_key(cell) for cell in row] for row in self.rows]

    @property
    def texts(self) -> list[list[str]]:
        """The texts of the cells."""
        return [[text for text, _ in row] for row in self.cells]

    def text(self) -> str:
        """Return the table for a terminal."""
        return (f"{self.caption}:\n" if self.caption else "") + table(self.columns, self.texts)


def _text_and_key(cell: Any) -> tuple[str, str]:
    text, value = cell if isinstance(cell, tuple) else (format_cell(cell), cell)
    finite = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    return text, repr(float(value)) if finite else ""


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a text with aligned columns, in which numbers are aligned to the right. Control characters are escaped.

    Raises:
        ValueError: A row's number of cells differs from the number of columns.
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
    """Show the progress of a command on stderr.

    On a terminal the lines appear above a progress bar with the remaining time.

    Args:
        total: The number of items.
        quiet: Whether to show nothing.

    Yields:
        A function that shows a line for a finished item.
    """
    if quiet or not sys.stderr.isatty():
        yield lambda line: None if quiet else typer.echo(line, err=True)
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeElapsedColumn, TimeRemainingColumn

    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), "left:", TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=total)

        def show(line: str) -> None:
            bar.console.print(line, markup=False, highlight=False, soft_wrap=True)
            bar.advance(task)

        yield show
