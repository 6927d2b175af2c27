"""What a user is told of bad input, at the command line: the key, what it got, what is allowed, and the way out.

`tests.apps.errors.rows` has the words of the most frequent mistakes; what holds of all errors is in
``tests/problems/test_errors.py`` and, of how they are raised, in ``tests/apps/test_raised_errors.py``.
"""

import re
from pathlib import Path

import pytest

from tests.apps.errors.harness import Row, filled, outcome, prepare, unframed
from tests.apps.errors.rows import ROWS, USAGE

LONGEST = 500  # characters without paths


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_a_wrong_input_is_one_line(row: Row, tmp_path: Path) -> None:
    """The four parts stand in their order, and no word of the program's own world among them."""
    prepare(row, tmp_path)
    code, console = outcome(row.arguments, tmp_path)
    assert (code, console[:7], console.count("\n")) == (1, "error: ", 1)
    key, got, allowed, way_out = (re.escape(filled(part, tmp_path)) for part in row.says)
    assert re.search(rf"{key}.*\bgot .*{got}.*, allowed: .*{allowed}.*; .*{way_out}", console)
    assert not re.search(r"\b(Config|Data|Input|Model|Payload|Problem|Setup|Strategy|Wrong)Error\b", console)
    assert len(console.replace(str(tmp_path), "")) <= LONGEST


@pytest.mark.parametrize(("arguments", "says"), USAGE, ids=lambda value: value if isinstance(value, str) else "")
def test_a_wrong_command_line_is_a_usage_error(arguments: tuple[str, ...], says: str, tmp_path: Path) -> None:
    code, console = outcome(arguments, tmp_path)
    assert code == 2
    assert says in unframed(console)
    assert "--help" in console
    assert "Traceback" not in console
