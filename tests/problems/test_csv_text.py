"""Tests of text tables: same cells as pandas for well-formed files, one error for damaged files, all common
dialects."""

import bz2
import csv
import gzip
import io
import logging
import zipfile
from collections.abc import Callable
from datetime import date, datetime
from pathlib import Path

import numpy as np
import openpyxl
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from problems.data import DataError, DataSpec, load
from problems.data.dialect import Dialect, is_encoding
from problems.data.formats.column_types import NA_WORDS
from problems.data.formats.tables import read_columns, read_table
from tests.refusals import refuses, spell

PLAIN = "age,ward,dose\n70,a,1.5\n61,b,2.5\n"
TABLE = pd.read_csv(io.StringIO(PLAIN))


def write(content: str | bytes, path: Path) -> Path:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


words = st.text(st.characters(codec="utf-8", exclude_categories=["Cs", "Cc", "Z"]), min_size=1, max_size=5)
numbers = st.one_of(st.integers(-(10**6), 10**20).map(str), st.floats(allow_nan=False, allow_infinity=False).map(repr))
codes = st.sampled_from(["01", "1", "A1", "7.0", "True", "false", "TRUE", "1e5", "-0", "+3", "inf", "0x1f", "1_0"])
cells = st.one_of(words, numbers, codes, st.sampled_from(sorted(NA_WORDS)))


@st.composite
def tables(draw: st.DrawFn) -> list[list[str]]:
    """Return columns of one kind each, possibly with missing cells."""
    rows = draw(st.integers(1, 8))
    columns = []
    for _ in range(draw(st.integers(1, 5))):
        kind = draw(st.sampled_from([words, numbers, codes, cells, st.sampled_from(["True", "False"]), st.just("NA")]))
        columns.append(draw(st.lists(st.one_of(kind, kind, st.just("")), min_size=rows, max_size=rows)))
    return [list(row) for row in zip(*columns, strict=True)]


@settings(deadline=None)
@given(tables(), st.sampled_from(",;\t|"), st.sampled_from(["\n", "\r\n", "\r"]), st.sampled_from([0, 1]))
def test_well_formed_tables_are_read_as_by_pandas(
    tmp_path_factory: pytest.TempPathFactory, rows: list[list[str]], mark: str, end: str, quoting: int
) -> None:
    text = io.StringIO()
    writer = csv.writer(text, delimiter=mark, lineterminator=end, quoting=quoting)  # type: ignore[arg-type]
    writer.writerow([f"c{place}" for place in range(len(rows[0]))])
    writer.writerows(rows)
    content = text.getvalue().encode()
    path = write(content, tmp_path_factory.mktemp("t") / "t.csv")
    wanted = pd.read_csv(io.BytesIO(content), sep=mark, low_memory=False)
    found = read_table(path, dialect=Dialect(separator=mark, decimal="."))
    pd.testing.assert_frame_equal(found, wanted, check_exact=True)


def test_the_words_for_missing_cells_are_those_of_pandas() -> None:
    from pandas._libs.parsers import STR_NA_VALUES

    assert NA_WORDS == STR_NA_VALUES


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('a,b\n1,"f\n2,m\n3,f"\n4,m\n', "a quote in line 2 that starts a cell up to line 4, across lines that look"),
        ('a,b\n1,"f\n2,m\n', "a quote in line 2 that starts a cell and has no counterpart up to the end of the file"),
        ('a,b\n1,f\n2,"m', "a quote in line 3 that starts a cell and has no counterpart"),
        (
            'a,b,c\n1,"f,2\n3,m,4\n5,"m, f",6\n',
            "a quote in line 2 that starts a cell, and text behind the quote that e",
        ),
        ('a,b\n1,f"\n', "a quote inside a cell in line 2"),
        ('a,b\n1,f\n2,x"y"z\n', "a quote inside a cell in line 3"),
        ('a,b\n1,"x \\"y\\""\n', "in the same line (a backslash does not protect a quote)"),
        ('a,b\n"1,f"\n"2,m"\n', "1 cell in line 2, allowed: 2 cells in each line"),
        ('a,"b\n1,f\n', "a quote in line 1 that is not closed in the line"),
        ("a,b\n1,f\n2\n3,m\n", "1 cell in line 3"),
        ("a,b\n\n1,f\n2,m,\n", "3 cells in line 4"),
        ("# export\na;b\n1;2\n", "one name in line 1, and semicolons in the lines below"),
        ("a,b\n1,f\nTotal: 1\n", "1 cell in line 3"),
        (" a,a \n1,2\n", "column 'a' more than once"),
        ("a,b\n1,\0\n", "bytes that are zero, the first in line 2"),
        (b"a,b\n\xc3\xa9,1\n\xe9,2\n", "bytes in line 3 that are not UTF-8, and letters in UTF-8 in other lines"),
        (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", "an old .xls workbook"),
        (gzip.compress(PLAIN.encode(), mtime=0)[:-9], "a file that cannot be unpacked"),
        ("<html><table>", "markup"),
        ("  \n", "an empty file"),
    ],
)
def test_damaged_files_name_the_line(content: str | bytes, message: str, tmp_path: Path) -> None:
    with pytest.raises(DataError) as caught:
        read_table(write(content, tmp_path / "t.csv"))
    assert message in spell(caught.value)


def packed(content: bytes) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr("data/t.csv", content)
        archive.writestr("__MACOSX/._t.csv", "x")
    return out.getvalue()


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda text: text.replace(",", ";").replace(".", ","), "read with semicolons, decimal commas: 2 rows in 3 li"),
        (lambda text: text.replace(",", "\t"), "read with tabs: 2"),
        (lambda text: text.replace(",", "|"), "read with bars: 2"),
        (lambda text: text.replace("\n", "\r"), ""),
        (lambda text: text.replace("\n", "\r\n"), ""),
        (lambda text: text.encode("utf-16"), "read with utf-16: 2"),
        (lambda text: text.encode("utf-8-sig"), ""),
        (lambda text: gzip.compress(text.encode("utf-16"), mtime=0), "read with gzip, utf-16: 2"),
        (lambda text: bz2.compress(text.encode()), "read with bzip2: 2"),
        (lambda text: packed(text.encode()), "read with zip: 2"),
        (lambda text: "sep=;\n" + text.replace(",", ";"), "2 rows in 4 lines (1 of names, 1 above the names)"),
        (lambda text: text.replace("\n", "\n\n  \n") + "\n", "2 rows in 10 lines (1 of names, 7 empty)"),
        (lambda text: text.replace("age,ward", " age ,ward\xa0"), "; left out spaces around 2 names"),
        (lambda text: text.replace("\n", ",,\n"), "; left out 2 columns without names and cells at the end"),
        (lambda text: text.replace(",", " , ").replace(" a ", ' "a" '), "; left out spaces around 3 names"),
    ],
)
def test_dialects_are_read_and_logged(
    change: Callable[[str], str | bytes], told: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "flwr")
    found = read_table(write(change(PLAIN), tmp_path / "T.CSV"))
    found["ward"] = found["ward"].str.strip()
    pd.testing.assert_frame_equal(found, TABLE)
    assert [told in message for message in caplog.messages] == [True] * bool(told)


def test_keys_decide_where_a_file_leaves_doubt(tmp_path: Path) -> None:
    def read(content: str | bytes, **keys: str) -> list[list[object]]:
        return read_table(write(content, tmp_path / "t.csv"), dialect=Dialect(**keys)).to_numpy(object).tolist()

    assert read("a;b,c\n1;2,3\n", separator="semicolon") == [[1, 2.3]]
    assert read("a^b\n1^2\n", separator="^") == [[1, 2]]
    assert read("a;b\n1,234;x\n", decimal=",") == [[1.234, "x"]]
    assert read("a;b\n1,234;x\n") == [["1,234", "x"]]
    assert read("a;b\n1,234;x\n2,345;x\n3,456;x\n4,567;x\n5 mg;x\n")[0] == ["1,234", "x"]
    assert read("a;b\n1.234;1\n", decimal=".") == read("a\tb\n1.234\t1\n") == [[1.234, 1]]
    assert read("a;b\n1.234;0.125\n") == [[1.234, 0.125]]
    assert read("a;b\n1,5;?\n2,5;?\n", decimal=".") == [["1,5", "?"], ["2,5", "?"]]
    assert read('a,b\n"1,5",x\n', decimal=",") == [[1.5, "x"]]
    # the missing-value marker leaves the numbers as text, with points
    assert read("a;b\n1,5;1\n2,5;1\n?;1\n3;1\n0,5;1\n2;1\n7,1;1\n")[:3] == [["1.5", 1], ["2.5", 1], ["?", 1]]
    assert read("a,b\né,1\n".encode("mac-roman"), encoding="mac-roman") == [["é", 1]]
    assert read("a,b\né,1\n".encode("cp1252")) == [["é", 1]]
    assert read("a,b\né,1\n".encode("utf-16-le"), encoding="utf-16-le") == [["é", 1]]
    for content, keys, message in (
        ("a;b,c\n1;2,3\n", {}, "separator: got 'auto'"),
        ("a;b\n1;2\n", {"separator": "tab"}, "separator: got tabs; line 1 of"),
        ("a;b\n1,5;2.5\n", {}, "decimal: got 'auto', with decimal commas in column 'a' and points in numbers of col"),
        ("a;b\n1,5;1.234\n", {}, "decimal: got 'auto'"),
        ("a;b\n1.234;1\n350;2\n", {}, "decimal: got 'auto', with numbers in column 'a' whose points may be"),
        ("a,b\né,1\n".encode("cp1252"), {"encoding": "utf-8"}, "encoding: got 'utf-8', with other bytes in line 2"),
        ("a,b\né\x81,1\n".encode("latin-1"), {}, "bytes in line 2 that are not UTF-8 or cp1252"),
    ):
        with refuses(DataError, message):
            read(content, **keys)  # type: ignore[arg-type]


def test_wrong_keys_are_refused(tmp_path: Path) -> None:
    path = str(write(PLAIN, tmp_path / "t.csv"))
    assert [is_encoding(name) for name in ("latin1", "rot13", "base64")] == [True, False, False]
    for keys in ({"separator": "ab"}, {"separator": "5"}, {"decimal": ";"}, {"encoding": "utf-9"}):
        with refuses(DataError, f"{next(iter(keys))}: got"):
            load(DataSpec("csv", path, **keys), 2)
    with refuses(DataError, "separator: got ';', allowed: 'auto' with dataset 'digits'"):
        load(DataSpec("digits", separator=";"), 2)


def test_types_are_those_of_the_whole_column(tmp_path: Path) -> None:
    """pandas reads this table in blocks of 512 rows."""
    rows, wide = 1100, 2100
    wards = [f"{row % 12 + 1:02d}" for row in range(rows - 1)] + ["A1"]
    names = ",".join(["ward", *(f"t{place}" for place in range(wide))])
    lines = [",".join([ward, *["1"] * wide]) for ward in wards]
    path = write("\n".join([names, *lines]), tmp_path / "t.csv")
    with pytest.warns(pd.errors.DtypeWarning):
        assert pd.read_csv(path)["ward"].map(type).nunique() == 2  # otherwise the test would show nothing
    assert read_table(path)["ward"].tolist() == wards


def test_training_and_test_files_agree_on_text(tmp_path: Path) -> None:
    write("ward,label\n" + "01,0\nA1,1\n02,0\nA1,1\n" * 5, tmp_path / "train.csv")
    write("ward,label\n" + "01,0\n02,1\n" * 5, tmp_path / "Test.CSV")
    data = load(DataSpec("csv", str(tmp_path), scale="none", partition="consecutive"), 1)
    np.testing.assert_array_equal(data.test.features, [[1, 0, 0], [0, 1, 0]] * 5)


def test_blank_cells_are_missing(tmp_path: Path) -> None:
    content = 'n,quoted,truth,text,id\n 1 ," ",True, a ,01\n ,"2"," ","\t",02\n\xa0, 3,False,NA ,\n'
    found = read_table(write(content, tmp_path / "t.csv"), ["id"])
    assert found["n"].tolist()[0] == 1.0
    assert found["quoted"].tolist()[1:] == [2.0, 3.0]
    assert found["truth"].tolist()[0] is True
    assert found["id"].tolist()[:2] == ["01", "02"]
    np.testing.assert_array_equal(found.isna(), [[0, 1, 0, 0, 0], [1, 0, 1, 1, 0], [1, 0, 0, 1, 1]])


def test_a_cell_with_a_line_break_is_not_a_category(tmp_path: Path) -> None:
    rows = "".join(f'{n % 7},"{"seen, by" if n % 2 else "two"}\nsurgeons",{n % 2}\n' for n in range(40))
    path = write("x,note,label\n" + rows, tmp_path / "t.csv")
    with refuses(DataError, "column 'note': got 40 of 40 cells with line breaks, the first in row 1"):
        load(DataSpec("csv", str(path)), 2)
    assert len(load(DataSpec("csv", str(path), drop_columns="note"), 2).train) == 32


def test_points_between_thousands_are_not_categories(tmp_path: Path) -> None:
    rows = "".join(f"{n % 3 + 1}.250,5;{n % 2}\n" for n in range(40))
    with refuses(DataError, "column 'cost': got numbers with points between thousands"):
        load(DataSpec("csv", str(write("cost;label\n" + rows, tmp_path / "t.csv"))), 2)


def test_a_workbook_is_read_as_its_csv(tmp_path: Path) -> None:
    book = openpyxl.Workbook()
    rows = [
        ["n", "x", "yes", "day", "when", "code", "t"],
        [1, 0.1, True, date(2020, 1, 31), datetime(2020, 1, 31, 9, 30), "01", "a;b"],
        [None, 2.5, False, date(1999, 12, 1), datetime(2020, 2, 1, 0, 0, 1), "A1", 'say "c", d'],
    ]
    for row in rows:
        book.active.append(row)
    book.active.append([None] * 7)
    book.save(tmp_path / "t.xlsx")
    found = read_table(tmp_path / "t.xlsx")
    wanted = "n,x,yes,day,when,code,t\n1,0.1,True,2020-01-31,2020-01-31 09:30:00,01,a;b\n,2.5,False,1999-12-01,"
    wanted += '2020-02-01 00:00:01,A1,"say ""c"", d"\n'
    pd.testing.assert_frame_equal(found, pd.read_csv(io.StringIO(wanted)))
    assert read_columns(tmp_path / "t.xlsx", ["n", "code"]).to_numpy().tolist() == [["1", "01"], ["", "A1"]]
    (tmp_path / "renamed.csv").write_bytes((tmp_path / "t.xlsx").read_bytes())
    pd.testing.assert_frame_equal(found, read_table(tmp_path / "renamed.csv"))
    book.create_sheet("empty", 0)
    book.save(tmp_path / "t.xlsx")
    with refuses(DataError, "got no line with names"):
        read_table(tmp_path / "t.xlsx")
    del book["empty"]
    book.active["B1"] = "x\n(mg/l)"
    book.save(tmp_path / "t.xlsx")
    assert read_table(tmp_path / "t.xlsx").columns[1] == "x (mg/l)"
    book.active["A3"] = "=B2*2"
    book.save(tmp_path / "t.xlsx")
    with refuses(DataError, "got 1 formula without a stored result, the first in A3"):
        read_table(tmp_path / "t.xlsx")
    book.active["A3"] = 3
    book.active.merge_cells("A1:B1")
    book.save(tmp_path / "t.xlsx")
    with refuses(DataError, "got merged cells A1:B1 in sheet 'Sheet'"):
        read_table(tmp_path / "t.xlsx")


def test_a_renamed_parquet_file_is_recognised(tmp_path: Path) -> None:
    TABLE.to_parquet(tmp_path / "t.csv")
    pd.testing.assert_frame_equal(read_table(tmp_path / "t.csv"), TABLE)
    with refuses(DataError, "since it is not parquet"):
        read_table(write(PLAIN, tmp_path / "t.parquet"))
