"""Check the lines of a text table before it is read: quotes, numbers of cells, empty lines.

To pandas a lone quote begins a cell that ends at the next quote, lines below, and short lines end in missing cells.
Both are errors here, which name the line of the file.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
from jaxtyping import Bool, Int64, UInt8

from problems.data.spec import DataError

_CHUNK = 2**24
_NEWLINE, _RETURN, _QUOTE, _SPACE, _TAB, _BACKSLASH = b'\n\r" \t\\'
_REPAIR = 'write a quote inside a quoted cell as "" and delete stray quotes'


@dataclass(frozen=True)
class Lines:
    """The lines of a text table.

    Attributes:
        total: Number of lines, with the header's.
        rows: Number of rows below the header.
        empty: Number of lines that are empty or have spaces only.
        within: Number of line breaks inside quoted cells.
    """

    total: int
    rows: int
    empty: int
    within: int


class NotTextError(Exception):
    """Some bytes are not text in UTF-8. ``line`` is the first such line."""

    def __init__(self, line: int, why: str) -> None:
        super().__init__(why)
        self.line = line


@dataclass(frozen=True)
class _Chunk:
    """Whole records of a file.

    Attributes:
        text: The bytes.
        first: The number of the first line, from 1.
        ends: The line breaks' positions. The last line of a file has one, too.
        quotes: The quotes' positions.
        marks: The separators' positions.
    """

    text: UInt8[np.ndarray, "bytes"]
    first: int
    ends: Int64[np.ndarray, "lines"]
    quotes: Int64[np.ndarray, "quotes"]
    marks: Int64[np.ndarray, "marks"]

    def line(self, position: int) -> int:
        """The number of the line in which a position is."""
        return self.first + int(np.searchsorted(self.ends, position))


def check_lines(path: Path, stream: BinaryIO, mark: str, columns: int, first: int) -> Lines:
    """Check the lines below a table's header.

    Args:
        path: The file, for errors.
        stream: The file in UTF-8, at the first line below the header.
        mark: The separator.
        columns: Number of columns that the header names.
        first: Number of the first line below the header.

    Raises:
        NotTextError: A line is not in UTF-8.
        DataError: Names the first line with a stray quote, or with more or fewer cells than the header.
    """
    total, rows, empty, within = first - 1, 0, 0, 0
    for chunk in _chunks(path, stream, mark, first):
        records, blank = _check_chunk(path, chunk, columns)
        total += len(chunk.ends)
        rows += records - blank
        empty += blank
        within += len(chunk.ends) - records
    return Lines(total, rows, empty, within)


def _chunks(path: Path, stream: BinaryIO, mark: str, first: int) -> Iterator[_Chunk]:
    """The lines of a file in chunks, none of which ends within quotes."""
    rest, size = b"", _CHUNK
    while True:
        content = stream.read(size)
        text = np.frombuffer(rest + content, dtype=np.uint8)
        last = len(content) < size
        if last and not len(text):
            return
        ends = _line_ends(text, last=last)
        quotes = np.flatnonzero(text == _QUOTE)
        outside = ends if not len(quotes) else ends[np.searchsorted(quotes, ends) % 2 == 0]
        if not last and not len(outside):  # a cell, or a stray quote, that goes on
            rest, size = text.tobytes(), 2 * size
            continue
        cut = len(text) if last else int(outside[-1]) + 1
        text, rest, size = text[:cut], text[cut:].tobytes(), _CHUNK
        ends = ends[: np.searchsorted(ends, cut)] if not last else ends
        marks = np.flatnonzero(text == ord(mark))
        _check_text(path, text, ends, first)
        yield _Chunk(text, first, ends, quotes[: np.searchsorted(quotes, cut)], marks)
        first += len(ends)
        if last:
            return


def _line_ends(text: UInt8[np.ndarray, "bytes"], *, last: bool) -> Int64[np.ndarray, "lines"]:
    """The positions of the line breaks: of \\n, and of \\r without \\n behind it."""
    ends = np.flatnonzero(text == _NEWLINE)
    returns = np.flatnonzero(text == _RETURN)
    if len(returns):
        alone = np.append(text, 0)[returns + 1] != _NEWLINE
        alone &= (returns + 1 < len(text)) | last  # the \n may be in the next chunk
        ends = np.sort(np.concatenate((ends, returns[alone])))
    if last and len(text) and (not len(ends) or ends[-1] != len(text) - 1):
        ends = np.append(ends, len(text))
    return ends


def _check_text(path: Path, text: UInt8[np.ndarray, "bytes"], ends: Int64[np.ndarray, "lines"], first: int) -> None:
    if len(text) and text.max() > 127:
        try:
            text.tobytes().decode()
        except UnicodeDecodeError as error:
            raise NotTextError(first + int(np.searchsorted(ends, error.start)), error.reason) from None
    if len(bad := np.flatnonzero(text == 0)):
        line = first + int(np.searchsorted(ends, bad[0]))
        got = f"bytes that are zero, the first in line {line:,}: UTF-16 without a mark at the start, or not text"
        hint = 'set encoding to "utf-16-le" or "utf-16-be", or export the table again'
        raise DataError(path, got=got, allowed="text", hint=hint)


def _check_chunk(path: Path, chunk: _Chunk, columns: int) -> tuple[int, int]:
    """Return the numbers of records and of empty lines; or raise DataError for the first damaged line."""
    naive = np.diff(np.searchsorted(chunk.marks, chunk.ends), prepend=0)
    found = naive
    starts = np.append(0, chunk.ends[:-1] + 1)
    stops = chunk.ends
    faults: list[tuple[int, DataError]] = []
    if len(chunk.quotes):
        if stray := _stray_quote(path, chunk):
            faults.append(stray)
        outside = np.searchsorted(chunk.quotes, chunk.ends) % 2 == 0
        outside[-1] = True  # an open quote is reported as stray
        if not outside.all():
            records = np.append(0, np.cumsum(outside)[:-1])
            if swallowed := _swallowed(path, chunk, naive, records, columns):
                faults.append(swallowed)
            starts, stops = starts[np.append(True, outside[:-1])], chunk.ends[outside]
        marks = chunk.marks[np.searchsorted(chunk.quotes, chunk.marks) % 2 == 0]
        found = np.diff(np.searchsorted(marks, stops), prepend=0)
    blank = _blank(chunk.text, starts, stops, found)
    if ragged := _ragged(path, chunk, starts, found, blank, columns):
        faults.append(ragged)
    if faults:
        raise min(faults, key=lambda fault: fault[0])[1]
    return len(stops), int(blank.sum())


def _blank(
    text: UInt8[np.ndarray, "bytes"],
    starts: Int64[np.ndarray, "records"],
    stops: Int64[np.ndarray, "records"],
    found: Int64[np.ndarray, "records"],
) -> Bool[np.ndarray, "records"]:
    """Records without a separator that are empty or have spaces only."""
    blank: np.ndarray = found == 0
    if not blank.any():
        return blank
    filled = np.flatnonzero((text != _SPACE) & (text != _TAB) & (text != _RETURN) & (text != _NEWLINE))
    blank &= np.searchsorted(filled, starts) == np.searchsorted(filled, stops)
    return blank


def _ragged(
    path: Path,
    chunk: _Chunk,
    starts: Int64[np.ndarray, "records"],
    found: Int64[np.ndarray, "records"],
    blank: Bool[np.ndarray, "records"],
    columns: int,
) -> tuple[int, DataError] | None:
    """The first record with another number of cells than the header."""
    bad = np.flatnonzero((found != columns - 1) & ~blank)
    if not len(bad):
        return None
    line, cells = chunk.line(int(starts[bad[0]])), int(found[bad[0]]) + 1
    hint = "write as many cells in each line as the header names, quote cells that contain the separator, and delete "
    hint += "titles above the header and notes below the table"
    got = f"{cells:,} cell{'s' * (cells != 1)} in line {line:,}"
    return line, DataError(path, got=got, allowed=f"{columns:,} cells in each line, as in the header", hint=hint)


def _swallowed(
    path: Path,
    chunk: _Chunk,
    naive: Int64[np.ndarray, "lines"],
    records: Int64[np.ndarray, "lines"],
    columns: int,
) -> tuple[int, DataError] | None:
    """The first quoted cell with lines inside that look like rows: a stray quote began it, and another one ended it."""
    lines, alike = np.bincount(records), np.bincount(records, naive == columns - 1)
    bad = np.flatnonzero((lines > 1) & ((alike == lines) | (2 * alike > lines)))
    if not len(bad):
        return None
    begin = chunk.first + int(np.searchsorted(records, bad[0]))
    end = begin + int(lines[bad[0]]) - 1
    got = f"a quote in line {begin:,} that begins a cell up to line {end:,}, and lines between that look like rows"
    allowed = "quotes around single cells"
    return begin, DataError(
        path, got=got, allowed=allowed, hint=f"delete the stray quotes in lines {begin:,} and {end:,}"
    )


def _stray_quote(path: Path, chunk: _Chunk) -> tuple[int, DataError] | None:
    """The first quote that neither begins nor ends a cell, or that begins a cell without an end."""
    text, quotes = chunk.text, chunk.quotes
    borders = np.isin(np.arange(256), [_NEWLINE, _RETURN])
    borders[text[chunk.marks[:1]]] = True
    opening, closing = quotes[::2], quotes[1::2]
    padded = np.concatenate(([_NEWLINE], text, [_NEWLINE])).astype(np.uint8)

    def is_border(positions: Int64[np.ndarray, "some"], step: int) -> Bool[np.ndarray, "some"]:
        """Whether quotes are next to another quote, or next to the end of a cell or to spaces before it."""
        places = positions + 1 + step
        doubled = padded[places] == _QUOTE
        while not borders[_SPACE] and (spaces := padded[places] == _SPACE).any():
            places = places + step * spaces
        border: np.ndarray = doubled | borders[padded[places]]
        return border

    bad_opening, bad_closing = opening[~is_border(opening, -1)], closing[~is_border(closing, 1)]
    position = min([*bad_opening[:1].tolist(), *bad_closing[:1].tolist()], default=-1)
    if position < 0 and len(quotes) % 2 == 0:
        return None
    allowed = "quotes around whole cells, in pairs"
    inside = position in bad_opening[:1]
    if inside:
        line = chunk.line(position)
        got = f"a quote inside a cell in line {line:,}"
        return line, DataError(path, got=got, allowed=allowed, hint=_REPAIR)
    place = int(np.searchsorted(quotes, position)) if position >= 0 else len(quotes)
    place -= 1  # the quote that begins the cell; doubled quotes before it are parts of the same cell
    while place >= 2 and quotes[place] == quotes[place - 1] + 1:
        place -= 2
    line = chunk.line(int(quotes[place]))
    if position < 0:
        got = f"a quote in line {line:,} that begins a cell and has no counterpart up to the end of the file"
        return line, DataError(
            path, got=got, allowed=allowed, hint=f"delete the quote in line {line:,}, or close the cell"
        )
    end = chunk.line(position)
    where = "in the same line" if end == line else f"in line {end:,}"
    slash = r" (a backslash does not protect a quote)" if position and text[position - 1] == _BACKSLASH else ""
    got = f"a quote in line {line:,} that begins a cell, and text behind the quote that ends the cell {where}{slash}"
    return line, DataError(path, got=got, allowed=allowed, hint=_REPAIR)
