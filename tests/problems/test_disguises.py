"""Tests that columns of numbers with signs or units are rejected, and categories that contain digits are not."""

import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from problems.data import DataError, DataSpec, load
from problems.data.formats.disguises import find_disguise
from problems.data.own import read_own
from tests.refusals import refuses, spell, states

NUMBERS = {
    "the sign '%'": "45% 30% unknown 60\xa0%",
    "a bound such as '<' or '>'": "15|25|>60|less than 7|35",
    "a mark after some numbers": "0|1|2|5+|3 or more|7 H|105-",
    "the unit 'mg'": "10 mg|5mg|20 mg|n/a",
    "a unit": "10 mg|500 µg|1 g",
    "the same number after each": "28/30|25/30|4 of 30",
    "the unit 'kg/m2'": "24.5 kg/m2|30 kg/m²",
    "the unit '/L'": "4.5 10^9/L|5.6 x10^9/l",
    "the sign '€'": "12,50 €|9,99 €",
    "the sign '$'": "$1,200|-$5",
    "the sign 'CHF'": "CHF 1'200.-|CHF 300.-",
    "spaces or quotes between thousands": "1 000|950|12\u202f500|1\u2019000",
    "points between thousands": "1.000,5|2.500,75",
    "the sign '°C'": "37.2°C|36.9 °C",
    "the sign '~'": "~30|≈25",
    "the unit 'IU'": "1e3 IU|2e3 IU",
    "brackets": "(105)|20|30",
    "unusual characters": "\u22125|2|4\u200b|\u0664\u0665",
    "quotes or '='": '\'45|="46"',
    "fractions": "1½|2½",
}
CATEGORIES = (
    "A1|A2|B1",
    "stage 2|stage 3",
    "1st|2nd|3rd",
    "type 1|type 2",
    "18-24|25-34|65+",
    "I21|I50|E11",
    "1a|1b|2a|2b",
    "1 male|2 female",
    "0|1+|2+|3+",
    "<65|>=65",
    ">90|60-89|30-59|<30",
    "2D|3D",
    "20/20|20/40|20/25",
    "12A|13B|14C",
    "0|1|unknown",
    "0-5 mg|5-10 mg",
    "1.2.1970|3.4.1980",
    "5 mg",
    "V45.1|250.00|E880",
    "4th floor|5th floor",
    "20s|30s|40s",
    "3+3=6|3+4=7",
)


def split(text: str) -> list[str]:
    return re.split(r"\|", text) if "|" in text else text.split(" ")


@pytest.mark.parametrize(("form", "cells"), NUMBERS.items())
def test_numbers_with_a_sign_or_unit_are_found(form: str, cells: str) -> None:
    assert find_disguise(split(cells) * 9) == f"numbers with {form}"


@pytest.mark.parametrize(
    "cells", ["120/80|130/85|110/70", "08:30|09:45|10:00", "01:20:03|02:30:04|00:45:06", "5'10\"|6'1\"|4'9\""]
)
def test_two_numbers_in_a_cell_are_found(cells: str) -> None:
    assert find_disguise(split(cells) * 9).startswith("two numbers with ")


@pytest.mark.parametrize("cells", CATEGORIES)
def test_categories_with_digits_are_not_numbers(cells: str) -> None:
    assert find_disguise(cells.split("|") * 9) == ""


@given(
    st.lists(st.floats(-1e6, 1e6).map(lambda x: f"{x:g}"), min_size=2, max_size=9, unique=True),
    st.sampled_from(["{}%", "{} %", "{} mg", "{}kg", "€{}", "{} USD", "~{}", "{} mmHg", "{} years", "{}°", "= '{}"]),
    st.sampled_from(["?", "unknown", "N/A", "-"]),
)
def test_any_numbers_with_one_sign_are_found(numbers: list[str], sign: str, missing: str) -> None:
    sign = sign.replace("= '", "='")
    assert find_disguise([*(sign.format(number) for number in numbers), missing]).startswith("numbers with ")
    assert find_disguise([*numbers, missing]) == ""


@given(st.lists(st.text(max_size=12), max_size=20))
def test_other_text_is_read_without_an_error(words: list[str]) -> None:
    found = find_disguise(words)
    assert not found or any(character.isnumeric() for word in words for character in word)


def test_a_column_of_numbers_with_signs_is_refused_unless_its_values_are_listed(tmp_path: Path) -> None:
    n = np.arange(60)
    table = pd.DataFrame({"age": n * 7 % 40, "dose": [f"{5 * (i % 3 + 1)} mg" for i in n], "y": n % 2})
    table["egfr"] = [">60" if i % 3 else 15 + i % 7 for i in n]
    path = tmp_path / "t.csv"
    table.to_csv(path, index=False)
    spec = DataSpec("csv", str(path), label_column="y")
    with pytest.raises(DataError) as caught:
        load(spec, 2)
    text = spell(caught.value)
    assert states(text, "column 'dose': got numbers with the unit 'mg', allowed: numbers alone")
    assert states(text, "column 'egfr': got numbers with a bound such as '<' or '>'")
    assert "write the numbers alone, or list its values in feature-columns" in text
    listed = load(DataSpec("csv", str(path), label_column="y", feature_columns="age,dose[5 mg|10 mg|*]"), 2)
    assert listed.columns is not None
    assert listed.columns.names == ("age", "dose=5 mg", "dose=10 mg", "dose=*")
    with pytest.raises(DataError) as caught:  # an error of a site's own file quotes no cell
        read_own(str(path), DataSpec("csv", "", partition="own", label_column="y"), 0)
    assert "column 'egfr': got numbers with a bound such as" in spell(caught.value)
    assert not re.search(r"60\b|\b(5|10|15) mg", spell(caught.value).replace("60 rows", ""))


def test_words_for_missing_cells_do_not_make_numbers_text(tmp_path: Path) -> None:
    n = np.arange(90)
    ages = ["unknown" if i % 3 == 0 else str(20 + i % 11) for i in n]
    codes = ["unknown" if i % 3 == 0 else str(i % 2) for i in n]
    path = tmp_path / "t.csv"
    pd.DataFrame({"age": ages, "code": codes, "label": n % 2}).to_csv(path, index=False)
    with refuses(DataError, r"column 'age': got numbers as text except for 30 of 90.*missing-values") as caught:
        load(DataSpec("csv", str(path)), 2)
    assert "'code'" not in spell(caught.value)
