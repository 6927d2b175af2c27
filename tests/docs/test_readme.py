"""README.md: its table names every strategy, its examples are run configs that are accepted, its picture is there."""

import itertools
import shlex

import pytest

from apps.config import parse_run_config
from apps.pairs import parse_pairs
from apps.registry import ALGORITHMS
from tests.docs.markdown import PROJECT, blocks, codes, rows, section

README = PROJECT / "README.md"


def given(line: str) -> list[str]:
    """The run configs on a command line."""
    words = shlex.split(line)
    return [value for option, value in itertools.pairwise(words) if option in ("--run-config", "-c", "--config")]


EXAMPLES = [
    (command, config)
    for block in blocks(README)
    if block.language == "sh"
    for command in block.text.splitlines()
    for config in given(command)
]


def test_the_table_names_every_strategy_once() -> None:
    named = []
    for row in rows(section(README, "The algorithms")):
        first, *others = codes(row[0])
        stem = first.rpartition("-")[0]
        named += [first, *(stem + other if other.startswith("-") else other for other in others)]
    assert sorted(named) == sorted(ALGORITHMS)


@pytest.mark.parametrize(("command", "config"), EXAMPLES, ids=lambda text: text[:50])
def test_an_examples_run_config_is_accepted(command: str, config: str) -> None:
    parse_run_config(parse_pairs("--run-config", config))
