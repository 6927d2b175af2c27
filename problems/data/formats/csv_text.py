"""Reader of csv files: finds the dialect, checks the lines, and derives each column's type from all its cells."""

import codecs
import csv
import io
import logging
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from problems.data.dialect import Dialect, guess_separator, name_separator
from problems.data.formats.column_types import POINTS_BETWEEN_THOUSANDS, convert_spaced, count_share, text_columns
from problems.data.formats.containers import Contents
from problems.data.formats.csv_lines import Lines, NotTextError, check_lines
from problems.data.spec import AUTO, DataError

if TYPE_CHECKING:
    import pandas as pd

_BOMS = {
    codecs.BOM_UTF8: "utf-8",
    codecs.BOM_UTF32_LE: "utf-32",  # starts like the next mark
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
_FALLBACK = "cp1252"
_SAMPLE = 2**20
_LINE = re.compile(rb"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+\Z")
_TWO_BYTES = re.compile(rb"[\xc2-\xdf][\x80-\xbf]|[\xe1-\xef][\x80-\xbf]{2}")
_COMMA_NUMBER = r"[-+]?(?:\d+(?:,\d*)?|,\d+)(?:[eE][-+]?\d+)?"
_POINT_NUMBER = r"[-+]?(?:\d+\.\d*|\.\d+)(?:[eE][-+]?\d+)?"
_GROUPED = r"[-+]?[1-9]\d{0,2}(?:,\d{3})+|[-+]?\d+"
_MOSTLY = 0.8

# Flower's log, which shows a run's steps; --quiet turns it off
_log = logging.getLogger("flwr")


@dataclass(frozen=True)
class _Text:
    """A csv file in UTF-8 whose header has been read.

    Attributes:
        contents: The file, in UTF-8.
        mark: The separator.
        names: The columns' names, without spaces around them.
        start: The position of the first byte below the header.
        line: The number of the header's line.
        notes: The differences from a plain csv file, for the log.
        removed: The parts that were not read, for the log.
    """

    contents: Contents
    mark: str
    names: list[str]
    start: int
    line: int
    notes: list[str]
    removed: list[str]

    def open(self) -> BinaryIO:
        """Return a stream that starts below the header."""
        stream = self.contents.open()
        stream.seek(self.start)
        return stream

    def read(self, kinds: dict[str, type], decimal: str = ".", **options: Any) -> "pd.DataFrame":
        """Return the rows with pandas' types, block by block."""
        import warnings

        import pandas as pd

        with self.open() as stream, warnings.catch_warnings():
            warnings.simplefilter("ignore", pd.errors.DtypeWarning)  # `read_whole` reads columns of mixed types again
            try:
                frame: pd.DataFrame = pd.read_csv(
                    stream,
                    sep=self.mark,
                    decimal=decimal,
                    header=None,
                    names=self.names,
                    index_col=False,
                    skipinitialspace=self.mark != " ",
                    dtype=kinds,
                    **options,
                )
            except pd.errors.EmptyDataError:
                return pd.DataFrame(columns=self.names)
            return frame

    def read_whole(self, kinds: dict[str, type], decimal: str) -> "pd.DataFrame":
        """Return the rows; a column is text if any of the blocks that pandas reads has text."""
        frame = self.read(kinds, decimal)
        mixed = [name for name in self.names if _is_mixed(frame[name])]
        if mixed:
            again = self.read(dict.fromkeys(mixed, str), decimal, usecols=mixed)
            for name in mixed:
                frame[name] = again[name]
        return frame


def read_text(contents: Contents, words: Sequence[str], dialect: Dialect) -> "pd.DataFrame":
    """Read a csv file. If it is not a plain csv file with a line for each row, log the dialect and the counts.

    Args:
        contents: The file, of kind "text".
        words: The columns whose cells stay text.
        dialect: The settings; each may be `AUTO`.

    Raises:
        DataError: The file is damaged, or its dialect is uncertain; names the line, the column or the key.
    """
    text, lines = _prepare(contents, dialect)
    kinds: dict[str, type] = {name: str for name in words if name in text.names}
    frame, decimal = _read_decimals(text, kinds, dialect)
    if len(frame) != lines.rows:
        got = f"{len(frame):,} rows in {lines.rows:,} lines below the header"
        raise DataError(contents.path, got=got, allowed="a row in each line", hint="export the table again")
    frame = convert_spaced(frame, kinds, decimal)
    empty = 0
    while empty < len(text.names) - 1 and _is_unnamed_and_empty(frame, text.names[-1 - empty]):
        empty += 1
    if empty:
        frame = frame.drop(columns=text.names[-empty:])
        text.removed.append(f"{_count(empty, 'column')} without names and cells at the end")
    if text.notes or text.removed or lines.rows + 1 != lines.total:
        _log.info("%s", _report(text, lines))
    return frame


def read_cells(contents: Contents, names: Sequence[str], dialect: Dialect) -> "pd.DataFrame":
    """Return columns of a csv file as text, without conversion.

    Args:
        contents: The file, of kind "text".
        names: The columns.
        dialect: The settings; each may be `AUTO`.

    Raises:
        DataError: See `read_text`.
    """
    text, _ = _prepare(contents, dialect)
    return text.read(dict.fromkeys(names, str), usecols=list(names), keep_default_na=False)


def _is_mixed(column: "pd.Series[Any]") -> bool:
    import pandas as pd

    return column.dtype == object and pd.api.types.infer_dtype(column, skipna=True).startswith("mixed")


def _is_unnamed_and_empty(frame: "pd.DataFrame", name: str) -> bool:
    return name.startswith("Unnamed: ") and bool(frame[name].isna().all())


def _report(text: _Text, lines: Lines) -> str:
    """Return a line for the log with the dialect and the numbers of rows and lines."""
    parts = {"of names": 1, "above the names": text.line - 1, "empty": lines.empty, "inside cells": lines.within}
    details = ", ".join(f"{number:,} {kind}" for kind, number in parts.items() if number)
    read = f"read with {', '.join(text.notes)}: " if text.notes else ""
    removed = f"; left out {' and '.join(text.removed)}" if text.removed else ""
    rows, total = _count(lines.rows, "row"), _count(lines.total, "line")
    return f"{text.contents.path.name}: {read}{rows} in {total} ({details}){removed}"


def _prepare(contents: Contents, dialect: Dialect) -> tuple[_Text, Lines]:
    """Decode a file, read its header and check its lines."""
    with contents.open() as stream:
        head = stream.read(4)
    bom = next((name for mark, name in _BOMS.items() if head.startswith(mark)), "")
    encoding = bom or "utf-8" if dialect.encoding == AUTO else dialect.encoding
    notes = list(contents.packing)
    if not codecs.lookup(encoding).name.startswith("utf-8"):
        contents = _decode(contents, encoding)
        notes.append(codecs.lookup(encoding).name)
    try:
        return _check(contents, dialect, notes)
    except NotTextError as error:
        if dialect.encoding != AUTO:
            got = f"{encoding!r}, with other bytes in line {error.line:,} of {contents.path}"
            hint = "set encoding to the file's encoding, for example cp1252 or mac-roman"
            raise DataError("encoding", got=got, allowed="the encoding of the file", hint=hint) from None
        return _check(_decode(contents, _FALLBACK, error.line), dialect, [*notes, "windows-1252"])


def _check(contents: Contents, dialect: Dialect, notes: list[str]) -> tuple[_Text, Lines]:
    text = _read_header(contents, dialect, notes)
    with text.open() as stream:
        return text, check_lines(contents.path, stream, text.mark, len(text.names), text.line + 1)


def _decode(contents: Contents, encoding: str, line: int = 0) -> Contents:
    """Convert a file to UTF-8.

    Args:
        contents: The file.
        encoding: The file's encoding.
        line: The number of the first line that is not UTF-8, if ``encoding`` is a guess. 0: it is certain.

    Raises:
        DataError: A line has bytes in another encoding; gives its number.
    """
    with contents.open() as stream:
        raw = stream.read()
    guessed, hint = "UTF-8 or " if line else "", "set encoding, for example to cp1252 or mac-roman"
    if line and _TWO_BYTES.search(raw):
        got = f"bytes in line {line:,} that are not UTF-8, and letters in UTF-8 in other lines"
        hint = f"correct line {line:,} and save the file as UTF-8, or {hint}"
        raise DataError(contents.path, got=got, allowed="a single encoding", hint=hint)
    try:
        content = raw.decode(encoding).encode()
    except UnicodeError as error:
        line = raw[: error.start].count(b"\n") + 1 if isinstance(error, UnicodeDecodeError) else 1
        got = f"bytes in line {line:,} that are not {guessed}{encoding}"
        raise DataError(contents.path, got=got, allowed="text in a single encoding", hint=hint) from None
    return Contents(contents.path, "text", content, contents.packing)


def _read_header(contents: Contents, dialect: Dialect, notes: list[str]) -> _Text:
    """Find the separator and read the columns' names."""
    path, sample = contents.path, b""
    with contents.open() as stream:
        while (more := stream.read(_SAMPLE)) and not re.search(rb"[^\r\n \t].*[\r\n]", sample):
            sample += more
    lines = [(match.end(), match[0].rstrip(b"\r\n")) for match in _LINE.finditer(sample)]
    lines[:1] = [(end, line.removeprefix(codecs.BOM_UTF8)) for end, line in lines[:1]]
    filled = [index for index, (_, line) in enumerate(lines) if line.strip()]
    mark = dialect.mark
    if filled and (declared := re.fullmatch(rb'"?sep=([^\w"])"?\s*', lines[filled[0]][1], re.IGNORECASE)):
        mark = mark or declared[1].decode()
        filled = filled[1:]
    if not filled:
        raise DataError(path, got="no line with names", allowed="a header line", hint="export the table again")
    index = filled[0]
    start, header = lines[index]
    following = [lines[below][1] for below in filled[1:-1]]  # the last line may not be complete
    mark = _choose_separator(path, mark, header, following, index + 1)
    if header.count(b'"') % 2:
        got = f"a quote in line {index + 1:,} that is not closed in the line"
        raise DataError(
            path, got=got, allowed="names without line breaks", hint="delete the stray quote or the line break"
        )
    try:
        line = header.decode()
    except UnicodeDecodeError as error:
        raise NotTextError(index + 1, error.reason) from None
    names = next(csv.reader([line], delimiter=mark, skipinitialspace=mark != " "))
    check_lines(path, io.BytesIO(header), mark, len(names), index + 1)
    written = next(csv.reader([line], delimiter=mark))  # names in quotes after spaces may be split
    spaces = sum(name != name.strip() for name in (written if len(written) == len(names) else names))
    stripped = [name.strip() or f"Unnamed: {column}" for column, name in enumerate(names)]
    if twice := [repr(name) for name, times in Counter(stripped).items() if times > 1]:
        got = f"column {', '.join(twice[:10])} more than once{', without the spaces around names' if spaces else ''}"
        raise DataError(path, got=got, allowed="different names", hint="rename the repeated columns")
    if mark != ",":
        notes.insert(0, name_separator(mark))
    removed = [f"spaces around {_count(spaces, 'name')}"] if spaces else []
    return _Text(contents, mark, stripped, start, index + 1, notes, removed)


def _choose_separator(path: Path, mark: str, header: bytes, following: list[bytes], line: int) -> str:
    """Return the separator in the settings; if it is `AUTO`, the separator that the lines show.

    Raises:
        DataError: The lines show several separators, or not the separator in the settings; or the first line is a
            title.
    """
    guess, certain = guess_separator([header, *following])
    count = header.count(guess.encode())
    if mark:
        if count and mark.encode() not in header:
            got = f"{name_separator(mark)}; line {line:,} of {path} has none, and {count:,} {name_separator(guess)}"
            raise DataError("separator", got=got, allowed="the separator of the file", hint="set separator to auto")
        return mark
    if not certain:
        got = f"'auto', with line {line:,} of {path}, which may have several separators"
        hint = "set separator to comma, semicolon, tab or bar"
        raise DataError("separator", got=got, allowed="the separator of the file", hint=hint)
    below, _ = guess_separator(following) if following else (guess, True)
    if not count and following and all(below.encode() in row for row in following):
        got = f"one name in line {line:,}, and {name_separator(below)} in the lines below"
        hint = "delete titles above the header"
        raise DataError(path, got=got, allowed="names of all columns in the first line", hint=hint)
    return guess


def _read_decimals(text: _Text, kinds: dict[str, type], dialect: Dialect) -> tuple["pd.DataFrame", str]:
    """Read the cells with the decimal mark in the settings; if it is `AUTO`, with the mark that the columns show.

    Returns:
        The rows and the decimal mark.

    Raises:
        DataError: The columns show both marks.
    """
    decimal = "." if dialect.decimal == AUTO else dialect.decimal
    frame = text.read_whole(kinds, decimal)
    if dialect.decimal == AUTO and text.mark != ",":
        with_commas = [name for name in text_columns(frame, kinds) if _has_decimal_commas(frame[name])]
        if with_commas:
            pointed = frame.select_dtypes("float").columns.tolist()
            decimal, frame = ",", text.read_whole(kinds, ",")
            _check_decimals(frame, kinds, with_commas[0], pointed)
        elif text.mark == ";":
            _check_thousands(text, frame)
    if decimal == ",":
        text.notes.insert(text.mark != ",", "decimal commas")
        for name in text_columns(frame, kinds):  # columns of numbers and texts; the texts may mean missing
            if count_share(frame[name], _COMMA_NUMBER) >= _MOSTLY:
                cells = frame[name]
                numbers = cells.str.fullmatch(rf"\s*(?:{_COMMA_NUMBER})\s*", na=False).astype(bool)
                frame[name] = cells.where(~numbers, cells.str.replace(",", ".", regex=False))
    return frame, decimal


def _has_decimal_commas(column: "pd.Series[Any]") -> bool:
    """Return whether most cells are numbers with commas, and some commas cannot separate thousands."""
    return (
        count_share(column, _COMMA_NUMBER) >= _MOSTLY and count_share(column, rf"{_GROUPED}|(?!{_COMMA_NUMBER}$).*") < 1
    )


def _check_decimals(frame: "pd.DataFrame", kinds: dict[str, type], comma: str, pointed: Sequence[str]) -> None:
    """Raise DataError if a table with decimal commas also has numbers with decimal points.

    Args:
        frame: The table.
        kinds: The columns that stay text.
        comma: A column with decimal commas, for the error.
        pointed: The columns that pandas reads as decimal numbers with decimal points.
    """
    texts = text_columns(frame, kinds)
    either = rf"{_COMMA_NUMBER}|{_POINT_NUMBER}"
    mixed = [name for name in texts if count_share(frame[name], either) >= _MOSTLY]
    mixed = [name for name in mixed if name in pointed or count_share(frame[name], _POINT_NUMBER) > 0]
    if mixed:
        got = f"'auto', with decimal commas in column {comma!r} and points in numbers of column {mixed[0]!r}"
        hint = 'write all numbers with decimal points and set decimal to "."'
        raise DataError("decimal", got=got, allowed="a single decimal mark in all columns", hint=hint)


def _check_thousands(text: _Text, frame: "pd.DataFrame") -> None:
    """Raise DataError if all points in a table with semicolons may separate thousands, as in 1.234 for 1234."""
    pointed = frame.select_dtypes("float").dropna(axis="columns", how="all")
    if not len(pointed.columns) or pointed.abs().ge(1000).any(axis=None):
        return
    cells = text.read(dict.fromkeys(pointed.columns, str), usecols=pointed.columns.tolist())
    grouped = [name for name in cells if count_share(cells[name], POINTS_BETWEEN_THOUSANDS) == 1]
    written = [name for name in grouped if cells[name].str.contains(".", regex=False).any()]
    if written and len(grouped) == len(cells.columns):
        got = f"'auto', with numbers in column {written[0]!r} whose points may be decimal points or between thousands"
        hint = 'set decimal to "." for decimal points, or write 1.234 as 1234'
        raise DataError("decimal", got=got, allowed="numbers without points between thousands", hint=hint)


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'s' * (number != 1)}"
