"""Every error that a user can bring about names the key, what it got, what is allowed, and what helps.

The list is `tests.apps.errors`: a row an error. It is complete: each raise statement that may tell a user something is
reached by a row, or exempt for a reason.
"""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from unittest.mock import patch

import pytest

from apps.config import known_keys
from simulations.__main__ import Section, cli
from tests.apps.errors import (
    command_line,
    data,
    doctor,
    experiments,
    images,
    models,
    new_algorithm,
    resume,
    run_config,
    sites,
    strategies,
    tuning,
)
from tests.apps.errors.exempt import EXEMPT, is_at
from tests.apps.errors.harness import ROOT, Outcome, filled, outcome
from tests.apps.errors.harness import sites as raise_statements
from tests.apps.errors.row import Row
from tests.apps.errors.shared import finished

AREAS = (
    run_config, command_line, experiments, tuning, new_algorithm, resume, models, strategies, data, images, sites,
    doctor,
)  # fmt: skip
ROWS: list[Row] = [row for area in AREAS for row in area.ROWS]
# what a message tells a user to do, where it names no command, option, key or page
ADVICE = (
    "add", "begin", "bring", "change", "chmod", "choose", "drop", "encode", "fetch", "fill", "give", "leave", "lower",
    "make", "name", "pip install", "raise", "remove", "replace", "set", "take", "unpack", "wait", "tell", "by",
    "requires", "as", "strategies that can", "goes with strategy", "axes", "delete", "momentum=",
)  # fmt: skip


COMMANDS = {command.name or command.callback.__name__ for command in cli.registered_commands if command.callback}
KEYS = known_keys()


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run's directory."""
    with patch("apps.curves.draw_curves", lambda *lines, **options: None):
        return finished(tmp_path_factory.mktemp("runs"))


@pytest.fixture(params=ROWS, ids=lambda row: row.name)
def row(request: pytest.FixtureRequest) -> Row:
    found: Row = request.param
    return found


@pytest.fixture
def got(row: Row, run: Path) -> Outcome:
    return outcome(row, run)


def test_the_message_says_all_four(row: Row, got: Outcome) -> None:
    assert len(row.says) == 4
    for part in row.says:
        assert part
        assert filled(part, got.tmp) in got.message


def test_it_is_one_error_of_the_users_world(row: Row, got: Outcome) -> None:
    assert got.code == row.code
    assert "Traceback" not in got.console
    assert not re.match(r"\w+(Error|Exception)\b", got.message)
    assert not re.search(r"\b(Config|Data|Model|Problem|Strategy|Payload)Error\b", got.message)
    assert len(got.message.replace(got.tmp, "")) <= row.longest
    if row.code == 1 and (row.call or row.arguments[0] == "simulations"):
        assert got.console.startswith("error: ")
        assert len(got.console.strip().splitlines()) == 1
    # no path but the user's own
    for path in re.findall(r"(?<![\w.:~])/[\w.-]+/[\w./-]+", got.message.replace("/srv/site.csv", "")):
        assert path.startswith(got.tmp)
    # pages and commands that there are
    for page in re.findall(r"\b(?:docs|deploy)/[\w-]+\.(?:md|sh)\b", got.message):
        assert (ROOT / page).is_file()
    for command in re.findall(r"`python -m simulations ([^`]+)`", got.message):
        name, *sections = command.split()
        assert name in COMMANDS
        assert set(sections) <= set(Section)
    named = re.search(r"`python -m|--[a-z]|\b(docs|deploy)/", row.says[3]) or any(key in row.says[3] for key in KEYS)
    assert named or row.says[3].lstrip("(").startswith(ADVICE)


# The list as a whole.


def test_no_two_rows_have_one_name() -> None:
    assert [name for name, count in Counter(row.name for row in ROWS).items() if count > 1] == []


def test_every_raise_statement_is_reached_or_exempt(run: Path) -> None:
    lines = {line for row in ROWS for line in outcome(row, run).lines}
    exempt = [place for places in EXEMPT.values() for place in places]
    left = [site for site in raise_statements() if not lines & {(site.file, line) for line in site.lines}]
    missed = [str(site) for site in left if not any(is_at(place, site) for place in exempt)]
    assert missed == [], "give each a row in tests/apps/errors, or a reason in tests/apps/errors/exempt.py"
    idle = [place for place in exempt if not any(is_at(place, site) for site in left)]
    assert idle == [], "these are reached by a row, or there no more: take them off tests/apps/errors/exempt.py"
