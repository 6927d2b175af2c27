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

_CHUNK = 2**18  # such that the arrays of a chunk fit into a processor's cache
_NEWLINE, _RETURN, _QUOTE, _SPACE, _TAB, _BACKSLASH = b'\n\r" \t\\'
_NONE = np.empty(0, dtype=np.int64)
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
        stops: The positions of those that end a record: they are outside quotes.
        quotes: The quotes' positions.
        separators: Whether each byte is a separator outside quotes.
        mark: The separator.
    """

    text: UInt8[np.ndarray, "bytes"]
    first: int
    ends: Int64[np.ndarray, "lines"]
    stops: Int64[np.ndarray, "records"]
    quotes: Int64[np.ndarray, "quotes"]
    separators: Bool[np.ndarray, "bytes"]
    mark: int

    def line(self, position: int) -> int:
        """The number of the line in which a position is."""
        return self.first + int(np.searchsorted(self.ends, position))

    def count(
        self, separators: Bool[np.ndarray, "bytes"], ends: Int64[np.ndarray, "some"]
    ) -> Int64[np.ndarray, "some"]:
        """The numbers of separators up to each of some line breaks from the one before."""
        found: np.ndarray = np.diff(np.searchsorted(np.flatnonzero(separators), ends), prepend=0)
        return found


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
        whole, last = rest + content, len(content) < size
        text = np.frombuffer(whole, dtype=np.uint8)
        if last and not len(text):
            return
        ends, separators, quotes = _line_ends(whole, text, last=last), text == ord(mark), _NONE
        stops = ends
        if b'"' in whole:  # much faster than a comparison of arrays
            quoted = text == _QUOTE
            quotes, inside = np.flatnonzero(quoted), np.logical_xor.accumulate(quoted)
            separators &= ~inside
            # the break behind the last byte is outside: an open quote is an error of its own
            stops = ends[~inside[np.minimum(ends, len(text) - 1)]]
            if last and (not len(stops) or stops[-1] != ends[-1]):
                stops = np.append(stops, ends[-1])
        if not last and not len(stops):  # a cell, or a stray quote, that goes on
            rest, size = whole, 2 * size
            continue
        if last:
            rest = b""
        else:
            cut = int(stops[-1]) + 1
            text, rest, separators = text[:cut], whole[cut:], separators[:cut]
            ends, quotes = ends[: np.searchsorted(ends, cut)], quotes[: np.searchsorted(quotes, cut)]
        size = _CHUNK
        _check_text(path, whole, text, ends, first)
        yield _Chunk(text, first, ends, stops, quotes, separators, ord(mark))
        first += len(ends)
        if last:
            return


def _line_ends(whole: bytes, text: UInt8[np.ndarray, "bytes"], *, last: bool) -> Int64[np.ndarray, "lines"]:
    """The positions of the line breaks: of \\n, and of \\r without \\n behind it."""
    ends = np.flatnonzero(text == _NEWLINE)
    if b"\r" in whole:
        returns = np.flatnonzero(text == _RETURN)
        alone = np.append(text, 0)[returns + 1] != _NEWLINE
        alone &= (returns + 1 < len(text)) | last  # the \n may be in the next chunk
        ends = np.sort(np.concatenate((ends, returns[alone])))
    if last and len(text) and (not len(ends) or ends[-1] != len(text) - 1):
        ends = np.append(ends, len(text))
    return ends


def _check_text(
    path: Path, whole: bytes, text: UInt8[np.ndarray, "bytes"], ends: Int64[np.ndarray, "lines"], first: int
) -> None:
    """Refuse bytes that are not text. ``text`` is the part of ``whole`` that has the lines."""
    if not whole.isascii():
        try:
            text.tobytes().decode()
        except UnicodeDecodeError as error:
            raise NotTextError(first + int(np.searchsorted(ends, error.start)), error.reason) from None
    if (place := whole.find(0, 0, len(text))) >= 0:
        line = first + int(np.searchsorted(ends, place))
        got = f"bytes that are zero, the first in line {line:,}: UTF-16 without a mark at the start, or not text"
        hint = 'set encoding to "utf-16-le" or "utf-16-be", or export the table again'
        raise DataError(path, got=got, allowed="text", hint=hint)


def _check_chunk(path: Path, chunk: _Chunk, columns: int) -> tuple[int, int]:
    """Return the numbers of records and of empty lines; or raise DataError for the first damaged line."""
    stray = _find_stray_quote(path, chunk) if len(chunk.quotes) else None
    even = stray is None and len(chunk.ends) == len(chunk.stops)
    if even and columns > 1 and _is_even(chunk, columns):
        return len(chunk.stops), 0
    faults, starts = [] if stray is None else [stray], np.append(0, chunk.stops[:-1] + 1)
    if not even and (swallowed := _find_stray_pair(path, chunk, columns)):
        faults.append(swallowed)
    found = chunk.count(chunk.separators, chunk.stops)
    blank = _find_blank(chunk.text, starts, chunk.stops, found)
    if ragged := _find_ragged_line(path, chunk, starts, found, blank, columns):
        faults.append(ragged)
    if faults:
        raise min(faults, key=lambda fault: fault[0])[1]
    return len(chunk.stops), int(blank.sum())


def _is_even(chunk: _Chunk, columns: int) -> bool:
    """Whether each record has as many cells as the header, by the first and the last separator of each."""
    places = np.flatnonzero(chunk.separators)
    if len(places) != (columns - 1) * len(chunk.stops):
        return False
    first, last = places[:: columns - 1], places[columns - 2 :: columns - 1]
    return bool((last < chunk.stops).all() and (first[1:] > chunk.stops[:-1]).all())


def _find_blank(
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


def _find_ragged_line(
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


def _find_stray_pair(path: Path, chunk: _Chunk, columns: int) -> tuple[int, DataError] | None:
    """The first quoted cell with lines inside that look like rows: a stray quote began it, and another one ended it."""
    records = np.searchsorted(chunk.stops, chunk.ends)
    naive = chunk.count(chunk.text == chunk.mark, chunk.ends)
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


def _is_border(
    padded: UInt8[np.ndarray, "padded"], positions: Int64[np.ndarray, "some"], step: int, mark: int
) -> Bool[np.ndarray, "some"]:
    """Whether quotes are next to another quote, or next to the end of a cell or to spaces before it.

    Args:
        padded: The bytes, between two line breaks.
        positions: The quotes' positions, without the first line break.
        step: -1 for the bytes before the quotes, 1 for the bytes behind.
        mark: The separator.
    """
    places = positions + 1 + step
    nearby = padded[places]
    border: np.ndarray = (nearby == mark) | (nearby == _QUOTE) | (nearby == _NEWLINE) | (nearby == _RETURN)
    if mark != _SPACE and not border.all():
        places, others = places[~border], np.flatnonzero(~border)
        while (spaces := padded[places] == _SPACE).any():
            places = places + step * spaces
        nearby = padded[places]
        border[others] = (nearby == mark) | (nearby == _NEWLINE) | (nearby == _RETURN)
    return border


def _find_stray_quote(path: Path, chunk: _Chunk) -> tuple[int, DataError] | None:
    """The first quote that neither begins nor ends a cell, or that begins a cell without an end."""
    text, quotes = chunk.text, chunk.quotes
    opening, closing = quotes[::2], quotes[1::2]
    padded = np.full(len(text) + 2, _NEWLINE, dtype=np.uint8)
    padded[1:-1] = text
    bad_opening = opening[~_is_border(padded, opening, -1, chunk.mark)]
    bad_closing = closing[~_is_border(padded, closing, 1, chunk.mark)]
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
