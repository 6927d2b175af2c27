"""Conversion of the first visible sheet of an .xlsx workbook to csv text, which the reader of csv files then reads."""

import csv
import datetime
import io
import re
import zipfile
from dataclasses import replace
from typing import Any

from problems.data.formats.containers import Contents
from problems.data.spec import DataError
from problems.errors import require

_MERGED = re.compile(rb'<mergeCell [^>]*ref="([A-Z0-9:]+)"')
_FORMULA = re.compile(rb"<c ([^>]*)>\s*<f(?:[^>]*/>|[^>]*>[^<]*</f>)\s*(<v\s*/>|<v>\s*</v>)?\s*</c>")
_PLACE = re.compile(rb'\br="([A-Z]+\d+)"')
_NOT_AVAILABLE = "#N/A"  # an error that means a missing cell


def as_text_table(contents: Contents) -> Contents:
    """Convert a workbook's first visible sheet to a csv in UTF-8; return other text unchanged.

    Args:
        contents: A file of kind "workbook" or "text".

    Raises:
        DataError: The workbook is damaged, or the sheet has merged cells, errors, or formulas without results.
        MissingExtraError: The extra ``workbook`` is not installed.
    """
    if contents.kind != "workbook":
        return contents
    require(contents.path.name, "workbook", "openpyxl")
    try:
        note, rows = _read_rows(contents)
    except DataError:
        raise
    except Exception as error:  # openpyxl raises errors of many types for damaged files
        got = f"a workbook that cannot be read ({type(error).__name__})"
        raise DataError(contents.path, got=got, allowed="a complete workbook", hint="save the sheet as csv") from error
    width, out = max(map(len, rows), default=0), io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    for row in rows:
        if row:
            writer.writerow(row + [""] * (width - len(row)))
        else:
            out.write("\n")
    return replace(contents, kind="text", content=out.getvalue().encode(), packing=(*contents.packing, note))


def _read_rows(contents: Contents) -> tuple[str, list[list[str]]]:
    """Return a note for the log, and the sheet's rows without empty cells at their ends."""
    import openpyxl

    with contents.open() as stream:
        book = openpyxl.load_workbook(stream, read_only=True, data_only=True)
        sheets = [sheet for sheet in book.worksheets if sheet.sheet_state == "visible"]
        if not sheets:
            got = "a workbook without a visible sheet of cells"
            raise DataError(contents.path, got=got, allowed="a table in the first sheet", hint="save the sheet as csv")
        sheet = sheets[0]
        _check_sheet(contents, sheet)
        sheet.reset_dimensions()  # some programs write wrong dimensions
        rows: list[list[str]] = []
        for row in sheet.iter_rows():
            cells = [_as_text(contents, cell) for cell in row]
            while cells and not cells[-1]:
                cells.pop()
            if not any(rows):  # the header, whose names often have line breaks
                cells = [" ".join(cell.split()) for cell in cells]
            rows.append(cells)
        note = f"sheet {sheet.title!r} of a workbook"
        return note + (f" with {len(book.sheetnames)} sheets" if len(book.sheetnames) > 1 else ""), rows


def _check_sheet(contents: Contents, sheet: Any) -> None:
    """Raise DataError for merged cells and formulas without results, since both would look like missing cells."""
    with contents.open() as stream, zipfile.ZipFile(stream) as archive:
        xml = archive.read(sheet._worksheet_path.lstrip("/"))
    if merged := _MERGED.search(xml):
        got = f"merged cells {merged[1].decode()} in sheet {sheet.title!r}"
        hint = "unmerge these cells and fill each of them"
        raise DataError(contents.path, got=got, allowed="cells that are not merged", hint=hint)
    # the result of a formula may be an empty text
    bare = [match[1] for match in _FORMULA.finditer(xml) if not (match[2] and b't="str"' in match[1])]
    if bare:
        cell = _PLACE.search(bare[0])
        first = f", the first in {cell[1].decode()}" if cell else ""
        got = f"{len(bare):,} formula{'s' * (len(bare) > 1)} without a stored result{first}"
        hint = "open the workbook in a spreadsheet program and save it, or save the sheet as csv"
        raise DataError(contents.path, got=got, allowed="formulas with their results", hint=hint)


def _as_text(contents: Contents, cell: Any) -> str:
    """Return a cell's text in a csv; dates are in ISO 8601."""
    value = cell.value
    if value is None:
        return ""
    if cell.data_type == "e" and value != _NOT_AVAILABLE:
        got = f"the error {value} in cell {cell.coordinate}"
        raise DataError(contents.path, got=got, allowed="cells with values", hint="correct or empty the cell")
    if isinstance(value, datetime.datetime):
        return value.date().isoformat() if value.time() == datetime.time() else value.isoformat(" ")
    return repr(value) if isinstance(value, float) else str(value)
