"""Vertical parties that write ids differently: the error names the difference in form, and no id."""

import logging
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from apps.config import Scalar
from payloads.id_forms import compare_forms, measure_ids
from tests.apps.vertical_runs import CSV, own_files, play
from tests.refusals import refuses
from vertical.records import DataSummary

IDS = [f"{number:03}" for number in range(40, 160)]
CONFIG: dict[str, Scalar] = {**CSV, "vfb2.alignment": "intersection"}
DIFFERENT = "leading zeros at party 0, 2 but not at party 1"


def lose_zeros(nodes: list[dict[str, Scalar]], party: int) -> None:
    path = str(nodes[party]["data-path"])
    pd.read_csv(path).to_csv(path, index=False)  # reads the ids as numbers, as a spreadsheet does


def test_lost_zeros_are_reported_with_the_rows_in_common(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    nodes, _ = own_files(tmp_path, [IDS] * 3)
    lose_zeros(nodes, 1)
    with caplog.at_level(logging.INFO, logger="flwr"):
        play(tmp_path / "run", CONFIG, nodes)
    assert "60 rows in common, of 120 at party 0, 120 at party 1, 120 at party 2" in caplog.text
    assert f"60 of 120 rows in common: the parties write ids differently, and 007 is not 7: {DIFFERENT}" in caplog.text
    assert "lengths of 3, 2 to 3, 3 characters" in caplog.text


@pytest.mark.parametrize(("alignment", "start"), [("intersection", "the parties have 0 rows"), ("digest", "party 1: ")])
def test_no_common_row_is_explained(alignment: str, start: str, tmp_path: Path) -> None:
    nodes, _ = own_files(tmp_path, [IDS[:60]] * 3)
    lose_zeros(nodes, 1)
    with pytest.raises(RuntimeError, match=DIFFERENT) as caught:
        play(tmp_path / "run", {**CONFIG, "vfb2.alignment": alignment}, nodes)
    assert start in str(caught.value)
    assert "057" not in str(caught.value)


def test_ids_of_one_form_cause_no_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    nodes, _ = own_files(tmp_path, [IDS[:50], IDS, IDS[20:]])
    with caplog.at_level(logging.INFO, logger="flwr"):
        play(tmp_path / "run", CONFIG, nodes)
    assert "30 rows in common, of 50 at party 0, 120 at party 1, 100 at party 2" in caplog.text
    assert "write ids differently" not in caplog.text


@pytest.mark.parametrize(
    ("one", "other", "difference"),
    [
        (["P007", "P12"], ["p007", "p12"], "capital letters at party 0 but not at party 1; small letters at party 1"),
        (["7", "12"], ["7.0", "12.0"], "other characters at party 1 but not at party 0"),
        (["7 ", "12"], ["7", "12"], "spaces around at party 0"),
        (["P007"], ["P7"], "leading zeros at party 0"),
        (["2024007"], ["5507"], "lengths of 7, 4 characters at party 0, 1"),
    ],
)
def test_forms_are_compared(one: list[str], other: list[str], difference: str) -> None:
    assert difference in compare_forms([measure_ids(one), measure_ids(other)])


@given(st.lists(st.text(max_size=6), min_size=1, max_size=20), st.randoms())
def test_an_order_of_ids_does_not_change_their_form(ids: list[str], random: object) -> None:
    shuffled = sorted(ids, key=lambda _: random.random())  # type: ignore[attr-defined]
    assert compare_forms([measure_ids(ids), measure_ids(shuffled)]) == ""


def test_impossible_lengths_are_refused() -> None:
    from strategies.vfb2 import VFB2SGD

    lengths, marks = np.array([3, 2]), measure_ids(["7"])[1]
    empty = {name: np.zeros(size, dtype) for name, size, dtype in (("rows", 2, int), ("columns", 1, int))}
    wrong = DataSummary(**empty, labels=np.array([True]), id_lengths=lengths, id_marks=marks)
    with refuses(ValueError, "id_lengths: got 3 and 2"):
        VFB2SGD().check_report(0, wrong, "data-summary")
