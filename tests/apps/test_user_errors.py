"""What a user is told of bad input, at the command line: the key, what it got, what is allowed, and the way out.

`tests.apps.errors.rows` has the words of the most frequent mistakes; what holds of all errors is in
``tests/problems/test_errors.py`` and, of how they are raised, in ``tests/apps/test_raised_errors.py``.
"""

import re
from pathlib import Path

import pytest

from tests.apps.errors.harness import Row, filled, finished, outcome, prepare, unframed
from tests.apps.errors.rows import DOCTOR, ROWS, USAGE

LONGEST = 500  # characters without paths


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run's directory."""
    return finished(tmp_path_factory.mktemp("runs"))


def check(row: Row, message: str, tmp: Path) -> None:
    """The four parts stand in their order, and no word of the program's own world among them."""
    key, got, allowed, way_out = (re.escape(filled(part, tmp)) for part in row.says)
    assert re.search(rf"{key}.*\bgot .*{got}.*, allowed: .*{allowed}.*; .*{way_out}", message)
    assert "Traceback" not in message
    assert not re.search(r"\b(Config|Data|Input|Model|Payload|Problem|Setup|Strategy|Wrong)Error\b", message)
    assert len(message.replace(str(tmp), "")) <= LONGEST


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_a_wrong_input_is_one_line(row: Row, done: Path, tmp_path: Path) -> None:
    prepare(row, tmp_path, done)
    code, console = outcome(row.arguments, tmp_path)
    assert code == 1
    lines = console.splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("error: ")
    check(row, lines[0], tmp_path)


@pytest.mark.parametrize("row", DOCTOR, ids=lambda row: row.name)
def test_the_doctor_says_it_in_a_line(row: Row, tmp_path: Path) -> None:
    prepare(row, tmp_path, tmp_path)
    code, console = outcome(row.arguments, tmp_path)
    assert code == 1
    found = [
        line for line in console.splitlines() if re.search(rf"wrong .*{re.escape(filled(row.says[0], tmp_path))}", line)
    ]
    assert len(found) == 1
    check(row, found[0], tmp_path)


@pytest.mark.parametrize(("arguments", "says"), USAGE, ids=lambda value: value if isinstance(value, str) else "")
def test_a_wrong_command_line_is_a_usage_error(arguments: tuple[str, ...], says: str, tmp_path: Path) -> None:
    code, console = outcome(arguments, tmp_path)
    assert code == 2
    assert says in unframed(console)
    assert "--help" in console
    assert "Traceback" not in console
