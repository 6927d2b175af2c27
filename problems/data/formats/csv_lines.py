"""Checks of a csv file's lines before pandas reads them: quotes, numbers of cells, empty lines.

pandas accepts a stray quote, which then starts a cell up to the next quote, perhaps many lines below. It also fills
short lines with missing cells. Both are errors in these checks, which name the line of the file.
"""

import io
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from problems.data.dialect import count_separators
from problems.data.spec import DataError

_BLANK = " \t\n"
_REPAIR = 'write a quote inside a quoted cell as "" and delete stray quotes'


@dataclass(frozen=True)
class Lines:
    """Counts of a csv file's lines.

    Attributes:
        total: The number of lines, including the header.
        rows: The number of rows below the header.
        empty: The number of lines that are empty or contain only spaces.
        within: The number of line breaks inside quoted cells.
    """

    total: int
    rows: int
    empty: int
    within: int


class NotTextError(Exception):
    """Bytes that are not text in UTF-8. ``line`` is the number of the first line with such bytes."""

    def __init__(self, line: int, why: str) -> None:
        super().__init__(why)
        self.line = line


def check_lines(path: Path, stream: BinaryIO, mark: str, columns: int, first: int) -> Lines:
    """Check and count the lines below a csv file's header.

    Args:
        path: The file, for errors.
        stream: The file in UTF-8, at the first line below the header. `check_lines` closes the stream.
        mark: The separator.
        columns: The number of columns in the header.
        first: The number of the first line below the header.

    Raises:
        NotTextError: A line is not in UTF-8.
        DataError: A line has a stray quote, or more or fewer cells than the header; gives the number of the first
            such line.
    """
    separators, well_quoted = columns - 1, _well_quoted(mark)
    quoted_row = _well_quoted(mark, f"{{{separators}}}")
    rows, empty, within, last = 0, 0, 0, first - 1
    record, is_open = list[str](), False
    with io.TextIOWrapper(stream, "latin-1") as lines:
        for last, line in enumerate(lines, first):
            if not line.isascii() or "\0" in line:
                _check_text(path, line, last)
            fits = quoted_row.fullmatch(line) if '"' in line else line.count(mark) == separators
            if fits and separators and not record:  # almost all lines
                rows += 1
                continue
            record.append(line)
            is_open ^= line.count('"') % 2 == 1
            if not is_open:
                is_row = _check_record(path, record, last, mark, columns, well_quoted)
                rows, empty, within = rows + is_row, empty + (not is_row), within + len(record) - 1
                record = []
    if record:  # a quote is open
        _check_record(path, record, last, mark, columns, well_quoted)
    return Lines(last, rows, empty, within)


def _well_quoted(mark: str, times: str = "*+") -> "re.Pattern[str]":
    """Return the pattern of a record (a row, perhaps of several lines) whose quotes enclose whole cells.

    Args:
        mark: The separator.
        times: The number of separators, as a regular expression.
    """
    space, end = "" if mark == " " else " *+", re.escape(mark)
    cell = rf'(?:{space}"[^"]*+(?:""[^"]*+)*+"{space}|[^"{end}]*+)'
    return re.compile(rf"{cell}(?:{end}{cell}){times}\n?")


def _check_text(path: Path, line: str, number: int) -> None:
    """Raise NotTextError or DataError if a line, which was decoded as latin-1, is not text in UTF-8."""
    try:
        line.encode("latin-1").decode()
    except UnicodeDecodeError as error:
        raise NotTextError(number, error.reason) from None
    if "\0" in line:
        got = f"bytes that are zero, the first in line {number:,}: UTF-16 without a mark at the start, or not text"
        hint = 'set encoding to "utf-16-le" or "utf-16-be", or export the table again'
        raise DataError(path, got=got, allowed="text", hint=hint)


def _check_record(
    path: Path, lines: list[str], last: int, mark: str, columns: int, well_quoted: "re.Pattern[str]"
) -> bool:
    """Check a record, which has several lines if a quoted cell has line breaks.

    Args:
        path: The file, for errors.
        lines: The record's lines.
        last: The number of the last line.
        mark: The separator.
        columns: The number of columns in the header.
        well_quoted: The pattern of a record without stray quotes.

    Returns:
        Whether the record is a row; False for an empty line.

    Raises:
        DataError: The record has a stray quote or another number of cells than the header.
    """
    record, begin = "".join(lines), last - len(lines) + 1
    cells = count_separators(record, mark) + 1
    if cells == 1 and not record.strip(_BLANK):
        return False
    faults = []
    if '"' in record and not well_quoted.fullmatch(record):
        faults.append(_describe_stray_quote(record, begin, mark))
    if len(lines) > 1 and 2 * sum(line.count(mark) == columns - 1 for line in lines) > len(lines):
        got = f"a quote in line {begin:,} that starts a cell up to line {last:,}, across lines that look like rows"
        hint = f"delete the stray quotes in lines {begin:,} and {last:,}"
        faults.append((begin, got, "quotes around single cells", hint))
    if cells != columns:
        hint = "write as many cells in each line as the header names, quote cells that contain the separator, and "
        hint += "delete titles above the header and notes below the table"
        got = f"{cells:,} cell{'s' * (cells != 1)} in line {begin:,}"
        faults.append((begin, got, f"{columns:,} cells in each line, as in the header", hint))
    if faults:
        _, got, allowed, hint = min(faults, key=lambda fault: fault[0])
        raise DataError(path, got=got, allowed=allowed, hint=hint)
    return True


def _describe_stray_quote(record: str, begin: int, mark: str) -> tuple[int, str, str, str]:
    """Describe the first quote that is inside a cell, or that no other quote closes.

    Returns:
        The number of the quote's line; ``got``, ``allowed`` and ``hint`` of the error.
    """
    quotes = [match.start() for match in re.finditer('"', record)]
    allowed = "quotes around whole cells, in pairs"
    at = next(_find_misplaced(record, quotes, mark), len(quotes))

    def line_of(index: int) -> int:
        return begin + record.count("\n", 0, quotes[index])

    if at % 2 == 0 and at < len(quotes):
        return line_of(at), f"a quote inside a cell in line {line_of(at):,}", allowed, _REPAIR
    opening = at - 1  # the quote that starts the cell; doubled quotes before it are parts of the same cell
    while opening >= 2 and quotes[opening] == quotes[opening - 1] + 1:
        opening -= 2
    line = line_of(opening)
    got = f"a quote in line {line:,} that starts a cell"
    if at == len(quotes):
        got += " and has no counterpart up to the end of the file"
        return line, got, allowed, f"delete the quote in line {line:,}, or close the cell"
    where = "in the same line" if line_of(at) == line else f"in line {line_of(at):,}"
    slash = " (a backslash does not protect a quote)" * (record[quotes[at] - 1] == "\\")
    return line, f"{got}, and text behind the quote that ends the cell {where}{slash}", allowed, _REPAIR


def _find_misplaced(record: str, quotes: list[int], mark: str) -> Iterator[int]:
    """Yield the indices of the quotes that are neither doubled nor at the border of a cell (apart from spaces)."""
    padded = f"\n{record}\n"
    for index, quote in enumerate(quotes):
        step = 1 if index % 2 else -1  # a quote that ends a cell, or that starts a cell
        position = quote + 1 + step
        doubled = padded[position] == '"'
        while padded[position] == " " != mark:
            position += step
        if not doubled and padded[position] not in (mark, "\n"):
            yield index
