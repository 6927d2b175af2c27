"""Opening of a table's file: its first bytes determine the kind (text, parquet, workbook) and the compression."""

import bz2
import gzip
import io
import lzma
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from problems.data.spec import DataError

_HEAD = 4096
_MAX_LAYERS = 3  # of compression: a csv in a zip in a gzip has two
_SAVE = "save the table as csv (in a spreadsheet: CSV UTF-8) or as .xlsx"
# The first bytes of files that are not supported tables, and the files' kinds.
_REFUSED: tuple[tuple[bytes, str], ...] = (
    (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", "an old .xls workbook, or a workbook with a password"),
    (b"\x28\xb5\x2f\xfd", "a file that zstd has packed"),
    (b"7z\xbc\xaf\x27\x1c", "a 7z archive"),
    (b"Rar!\x1a\x07", "a rar archive"),
    (b"%PDF-", "a PDF document"),
    (b"{\\rtf", "an RTF document"),
    (b"\x00" * 12 + b"\xc2\xea\x81\x60", "a table of SAS"),
    (b"HEADER RECORD*******", "a transport file of SAS"),
    (b"$FL2", "a table of SPSS"),
    (b"$FL3", "a table of SPSS"),
    (b"<stata_dta>", "a table of Stata"),
    (b"RDX2\n", "a file of R"),
    (b"RDX3\n", "a file of R"),
    (b"X\n\x00\x00\x00", "a file of R"),
    (b"\x89HDF", "an HDF5 file"),
    (b"SQLite format 3\x00", "an SQLite database"),
    (b"ARROW1\x00\x00", "a feather file"),
    (b"\x93NUMPY", "a NumPy array"),
    (b"\x89PNG", "an image"),
    (b"\xff\xd8\xff", "an image"),
)
_MARKUP = (b"<!doctype html", b"<html", b"<table", b"<?xml")


@dataclass(frozen=True)
class Contents:
    """An unpacked file.

    Attributes:
        path: The file.
        kind: "text", "parquet" or "workbook".
        content: The unpacked bytes. None: the file is not packed, and `open` reads it from the disk.
        packing: The compressions that were removed, such as ("gzip",).
    """

    path: Path
    kind: str
    content: bytes | None = None
    packing: tuple[str, ...] = ()

    def open(self) -> BinaryIO:
        """Return a new stream of the unpacked bytes."""
        return self.path.open("rb") if self.content is None else io.BytesIO(self.content)


def open_table(path: Path) -> Contents:
    """Determine the kind of a table's file by its first bytes, and unpack the file.

    Raises:
        DataError: The file cannot be read, is damaged, is not a table, or is a table of an unsupported kind.
    """
    try:
        with path.open("rb") as file:
            head, content, packing = file.read(_HEAD), None, list[str]()
            if not head.strip():
                raise DataError(path, got="an empty file", allowed="a file with a table", hint="export the table again")
            while unpack := _packing(head):
                if len(packing) == _MAX_LAYERS:
                    got = f"a file that is packed more than {_MAX_LAYERS} times"
                    raise DataError(path, got=got, allowed="a table", hint="unpack the file")
                if content is None:
                    file.seek(0)
                    content = file.read()
                name, function = unpack
                if name == "zip" and (kind := _office(path, content)):
                    return Contents(path, kind, content, tuple(packing))
                content = function(path, content)
                packing.append(name)
                head = content[:_HEAD]
    except DataError:
        raise
    except (OSError, EOFError, zlib.error, lzma.LZMAError, zipfile.BadZipFile, RuntimeError, ValueError) as error:
        why = " ".join(str(error).split())
        got = f"a file that cannot be unpacked or read ({why})"
        raise DataError(path, got=got, allowed="a complete file", hint="export or copy the file again") from error
    if head.startswith(b"PAR1") and head[4] < ord(" "):
        return Contents(path, "parquet", content, tuple(packing))
    _refuse(path, head)
    return Contents(path, "text", content, tuple(packing))


def open_packed(path: Path) -> BinaryIO:
    """Return a stream of a file's bytes, unpacked if it starts with the signature of gzip or bzip2."""
    with path.open("rb") as file:
        head = file.read(10)
    if head.startswith(b"\x1f\x8b"):
        return gzip.open(path)  # type: ignore[return-value]
    return bz2.open(path) if _is_bzip2(head) else path.open("rb")  # type: ignore[return-value]


def _packing(head: bytes) -> tuple[str, Callable[[Path, bytes], bytes]] | None:
    """Return the compression that a file's first bytes show, and the function that unpacks it; None if unpacked."""
    if head.startswith(b"\x1f\x8b"):
        return "gzip", lambda _, content: gzip.decompress(content)
    if _is_bzip2(head):
        return "bzip2", lambda _, content: bz2.decompress(content)
    if head.startswith(b"\xfd7zXZ\x00"):
        return "xz", lambda _, content: lzma.decompress(content)
    return ("zip", _only_member) if head.startswith((b"PK\x03\x04", b"PK\x05\x06")) else None


def _is_bzip2(head: bytes) -> bool:
    return head.startswith(b"BZh") and head[4:10] == b"1AY&SY"


def _office(path: Path, content: bytes) -> str:
    """Return "workbook" if a zip archive is a workbook, "" if it is an ordinary archive.

    Raises:
        DataError: The archive is an unsupported office document, or has NumPy arrays.
    """
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        names = set(archive.namelist())
        kind = archive.read("mimetype").decode("ascii", "replace") if "mimetype" in names else ""
    if "xl/workbook.xml" in names:
        return "workbook"
    for matches, name in (
        ("opendocument" in kind, "an OpenDocument file"),
        ("xl/workbook.bin" in names, "a binary workbook (.xlsb)"),
        ("word/document.xml" in names, "a text document"),
        (any(name.endswith(".npy") for name in names), "NumPy arrays (npz)"),
    ):
        if matches:
            raise DataError(path, got=name, allowed="csv, parquet or an .xlsx workbook", hint=_SAVE)
    return ""


def _only_member(path: Path, content: bytes) -> bytes:
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        names = [
            member.filename
            for member in archive.infolist()
            if not member.is_dir() and not member.filename.startswith("__MACOSX/") and not _is_hidden(member.filename)
        ]
        if len(names) != 1:
            got = f"a zip archive with {len(names)} files"
            hint = "put each table into a separate archive"
            raise DataError(path, got=got, allowed="an archive with one file", hint=hint)
        return archive.read(names[0])


def _is_hidden(name: str) -> bool:
    return name.rsplit("/", 1)[-1].startswith(".")


def _refuse(path: Path, head: bytes) -> None:
    """Raise DataError if the first bytes show that the file is not a table, but for example an image or JSON."""
    refused = next((name for start, name in _REFUSED if head.startswith(start)), "")
    start = head.removeprefix(b"\xef\xbb\xbf").lstrip().lower()
    if start.startswith(_MARKUP):
        refused = "markup (HTML or XML), which some programs save under the name .xls"
    elif (start[:1] == b"{" and start[1:].lstrip()[:1] in (b'"', b"}")) or start.startswith((b"[{", b"[\n")):
        refused = "JSON"
    if refused:
        raise DataError(path, got=refused, allowed="csv, parquet or an .xlsx workbook", hint=_SAVE)
