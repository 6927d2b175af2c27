"""docs/configuration.md and docs/data.md name what there is, with the right defaults."""

import re
import tomllib
from typing import Any

import pytest

from apps.config import flattened, known_keys
from apps.registry import ALGORITHMS
from problems.data import DATASETS, PARTITIONS
from problems.models import MODELS
from problems.objectives.pairwise import LINEAR, PAIRWISE_LOSSES
from tests.docs.markdown import PROJECT, codes, prose, rows, section

PAGE = PROJECT / "docs" / "configuration.md"
TABLES = re.findall(r"^## (Table .+)$", prose(PAGE), re.MULTILINE)
SECTIONS = ("The run", "Local training", "Results", "Data", *TABLES)
DOCUMENTED = [row for title in SECTIONS for row in rows(section(PAGE, title))]


def typed(values: dict[str, Any]) -> dict[str, tuple[str, Any]]:
    return {key: (type(value).__name__, value) for key, value in values.items()}


def defaults() -> dict[str, Any]:
    return {codes(row[0])[0]: tomllib.loads(f"value = {codes(row[1])[0]}")["value"] for row in DOCUMENTED}


def test_the_page_names_exactly_the_known_keys() -> None:
    assert sorted(codes(row[0])[0] for row in DOCUMENTED) == sorted(known_keys())


def test_the_defaults_are_those_of_pyproject() -> None:
    """Which are those of the settings, see ``tests/apps/test_config.py``."""
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text("utf-8"))
    assert typed(defaults()) == typed(flattened(project["tool"]["flwr"]["app"]["config"]))


@pytest.mark.parametrize(
    ("key", "allowed"), [("strategy", list(ALGORITHMS)), ("model", ["auto", *MODELS, "package.module:factory"])]
)
def test_the_choices_are_all_there(key: str, allowed: list[str]) -> None:
    (row,) = [row for row in DOCUMENTED if row[0] == f"`{key}`"]
    assert sorted(codes(row[2])) == sorted(allowed)


@pytest.mark.parametrize(("title", "names"), [("Data sets", DATASETS), ("Partitions", PARTITIONS)])
def test_data_names_every_set_and_partition(title: str, names: dict[str, str]) -> None:
    table = rows(section(PROJECT / "docs" / "data.md", title))
    assert [name for row in table for name in codes(row[0])] == list(names)


def test_fedx_names_every_loss_with_its_strategies() -> None:
    table = rows(section(PROJECT / "docs" / "fedx.md", "The problem"))
    told = {codes(row[0])[0]: row[3].split(", ") for row in table if len(row) == 5}
    assert told == {loss: [name for name, row in ALGORITHMS.items() if loss in row.losses] for loss in PAIRWISE_LOSSES}
    assert [loss for loss, strategies in told.items() if "fedx1" in strategies] == sorted(LINEAR, key=list(told).index)
