"""Tests that the tutorials run as printed, with the printed output.

A page's `sh` and `python` blocks run one after another in one folder, each in a separate process; `text` and `console`
blocks do not run. A `text` block below the comment ``<!-- output -->`` is the output of the block before it: its lines
appear in this order, possibly with other lines between them; numbers are compared to the digits shown, and lines with a
time are skipped.
"""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from tests.docs.markdown import PROJECT, Block, blocks
from tests.programs import REAL, needs_real, ran

TUTORIALS = PROJECT / "docs" / "tutorials"
PAGES = ("hospital-csv", "sparse-logistic", "credit-vertical", "heart-disease", "three-hospitals-study")
ON_REAL = ("joining", "dialysis", "findings")  # on data sets that do not come with the project
MARK = "<!-- output -->"
RUN, SHOWN = ("sh", "python"), ("text", "console", "json", "toml", "")
NUMBER = re.compile(r"[-+]?\d+(?:\.\d+)?(?:e[-+]?\d+)?")
TIME = re.compile(r"\d s\b|\bseconds\b")
# time limit of one block, on a machine with other work
SECONDS = 600.0


def output(block: Block, folder: Path) -> str:
    """Run a block in a folder, and return its stdout."""
    command = ["bash", "-euo", "pipefail", "-c"] if block.language == "sh" else ["-c"]
    return ran(*command, block.text, cwd=folder, seconds=SECONDS)


def is_output(block: Block) -> bool:
    return block.page.read_text("utf-8").splitlines()[block.line - 3] == MARK


def step_of(number: str) -> float:
    """Return one unit of the last digit shown: 0.01 for "1.23", 0.1e-4 for "2.0e-4"."""
    mantissa, _, exponent = number.partition("e")
    digits = len(mantissa.partition(".")[2])
    return float(10.0 ** (int(exponent or 0) - digits))


def alike(shown: str, printed: str) -> bool:
    """Return whether two lines have the same words, and the same numbers to the digits of the first line."""
    if NUMBER.sub("#", shown).split() != NUMBER.sub("#", printed).split():
        return False
    pairs = zip(NUMBER.findall(shown), NUMBER.findall(printed), strict=True)
    return all(abs(float(a) - float(b)) <= 1.001 * step_of(a) if "." in a or "e" in a else a == b for a, b in pairs)


def missing(shown: str, printed: str) -> str:
    """Return the first line of ``shown`` that is not printed after the lines before it; "" if all are printed."""
    rest = iter(printed.splitlines())
    for line in shown.splitlines():
        if not TIME.search(line) and line.strip() and not any(alike(line, other) for other in rest):
            return line
    return ""


@pytest.mark.slow
@pytest.mark.parametrize("name", [*PAGES, *(pytest.param(name, marks=needs_real) for name in ON_REAL)])
def test_a_tutorial_runs_as_printed(name: str, tmp_path: Path) -> None:
    if name in ON_REAL:
        (tmp_path / "data").symlink_to(REAL)
    printed, checked = "", 0
    for block in blocks(TUTORIALS / f"{name}.md"):
        if block.language in RUN:
            printed = output(block, tmp_path)
        elif is_output(block):
            lost = missing(block.text, printed)
            assert not lost, f"{block}: not printed: {lost!r}\nprinted:\n{printed}"
            checked += 1
    assert checked, "a tutorial shows what its blocks print"


@needs_real
@pytest.mark.slow
@pytest.mark.gate
def test_findings_in_a_small_form(tmp_path: Path) -> None:
    """Weights, a run from them and predictions, with fewer images, steps and rounds, and a smaller network."""
    (tmp_path / "data").symlink_to(REAL)
    smaller = {"800, 2000": "160, 160", "local-steps=100 num-server-rounds=2 evaluate-every=2": "local-steps=1"}
    smaller |= {"num-server-rounds = 20": "num-server-rounds = 1", "evaluate-every = 20": "", "resnet20": "mlp"}
    smaller["florilegium run --clients 8 -c findings.toml --out runs/random --quiet"] = ""
    code = [block for block in blocks(TUTORIALS / "findings.md") if block.language in RUN]
    for old in smaller:
        assert any(old in block.text for block in code)
    for block in code:
        if any(text in block.text for text in ("runs/augmented", '"augmented"', "evaluate runs")):
            continue
        text = block.text
        for old, new in smaller.items():
            text = text.replace(old, new)
        printed = output(replace(block, text=text), tmp_path)
    assert "file,score_sleeves,probability_sleeves,score_buttons,probability_buttons" in printed


@pytest.mark.parametrize("page", sorted(TUTORIALS.glob("*.md")), ids=lambda page: page.stem)
def test_every_block_is_run_or_shown(page: Path) -> None:
    before = ""
    for block in blocks(page):
        assert block.language in (*RUN, *SHOWN)
        assert not is_output(block) or (block.language == "text" and before in RUN), f"{block}: output of nothing"
        before = block.language if block.language in RUN or not is_output(block) else before
