"""Tests that tables and examples of README, configuration, data, fedx, flower-mods and symbols match the code."""

import importlib
import inspect
import itertools
import re
import runpy
import shlex
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest

from apps.config import known_fields, known_keys, parse_run_config
from apps.mods import uncovered_fields
from apps.registry import ALGORITHMS
from apps.run_config.pairs import parse_pairs
from apps.sites.settings import KEYS
from problems.data import DATASETS, PARTITIONS
from problems.objectives.pairwise import LINEAR, PAIRWISE_LOSSES
from tests.docs.markdown import DOCS, PROJECT, blocks, codes, rows, section

# docs/configuration.md and docs/site-settings.md


SCRIPT = SimpleNamespace(**runpy.run_path(str(DOCS / "tables.py")))


@pytest.mark.parametrize("page", SCRIPT.PAGES, ids=lambda page: page.name)
def test_tables_follow_from_the_code(page: Path) -> None:
    text = page.read_text("utf-8")
    assert SCRIPT.fill(text) == text, "run: python docs/tables.py"


@pytest.mark.parametrize(("page", "keys"), [("configuration.md", known_fields()), ("site-settings.md", KEYS)])
def test_pages_list_each_key_once(page: str, keys: dict[str, object]) -> None:
    text = (DOCS / page).read_text("utf-8")
    tables = [(kind, listed) for _, kind, listed in SCRIPT.TABLE.findall(text) if listed != SCRIPT.OTHERS]
    named = [key for kind, listed in tables for key in SCRIPT.find_keys(kind, listed)]
    _, _, others = text.partition(f"<!-- run config: {SCRIPT.OTHERS} -->")
    named += [key for row in rows(others.partition("<!-- end -->")[0]) for key in codes(row[0])]
    assert sorted(named) == sorted(keys)


def test_defaults_of_a_new_table_are_added() -> None:
    text = (PROJECT / "pyproject.toml").read_text("utf-8")
    assert SCRIPT.add_defaults(text) == text
    begin = text.index("[tool.flwr.app.config.fedprox]")
    without = text[:begin] + text[text.index("[", begin + 1) :]
    assert tomllib.loads(SCRIPT.add_defaults(without)) == tomllib.loads(text)


# docs/data.md and docs/fedx.md


@pytest.mark.parametrize(("title", "names"), [("Data sets", DATASETS), ("Partitions", PARTITIONS)])
def test_data_names_every_set_and_partition(title: str, names: dict[str, str]) -> None:
    table = rows(section(DOCS / "data.md", title))
    assert [name for row in table for name in codes(row[0])] == list(names)


def test_fedx_names_every_loss_with_its_strategies() -> None:
    table = rows(section(DOCS / "fedx.md", "The problem"))
    told = {codes(row[0])[0]: row[3].split(", ") for row in table if len(row) == 5}
    assert told == {loss: [name for name, row in ALGORITHMS.items() if loss in row.losses] for loss in PAIRWISE_LOSSES}
    assert [loss for loss, strategies in told.items() if "fedx1" in strategies] == sorted(LINEAR, key=list(told).index)


# README.md

README = PROJECT / "README.md"


def given(line: str) -> list[str]:
    """Return the run configs on a command line."""
    words = shlex.split(line)
    return [value for option, value in itertools.pairwise(words) if option in ("--run-config", "-c", "--config")]


EXAMPLES = [
    (command, config)
    for block in blocks(README)
    if block.language == "sh"
    for command in block.text.replace("\\\n", " ").splitlines()
    for config in given(command)
]


def test_the_table_names_strategies_once() -> None:
    named = []
    for row in rows(section(README, "The algorithms")):
        first, *others = codes(row[0])
        stem = first.rpartition("-")[0]
        named += [first, *(stem + other if other.startswith("-") else other for other in others)]
    assert len(named) == len(set(named))
    assert set(named) <= set(ALGORITHMS)


@pytest.mark.parametrize(("command", "config"), EXAMPLES, ids=lambda text: text[:50])
def test_an_examples_run_config_is_accepted(
    command: str, config: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (shown,) = [block.text for block in blocks(README) if block.language == "toml"]
    (tmp_path / "mine.toml").write_text(shown)
    monkeypatch.chdir(tmp_path)
    parse_run_config(parse_pairs("--run-config", config))


# docs/flower-mods.md and docs/who-sees-what.md

MODS = section(DOCS / "flower-mods.md", "Which with which")
EFFECTS = [(name, effect.partition(":")[0]) for effect, strategies in rows(MODS) for name in codes(strategies)]
FIELDS = [
    (set(codes(sent)), set(codes(field)))
    for field, sent, *_ in rows(section(DOCS / "who-sees-what.md", "Every field that leaves a site"))
]


def test_every_algorithm_is_there_once() -> None:
    assert sorted(name for name, _ in EFFECTS) == sorted(ALGORITHMS)
    assert "`message_size_mod` and `arrays_size_mod` work with every strategy" in MODS


@pytest.mark.parametrize("strategy", ALGORITHMS)
def test_the_row_is_what_the_code_does(strategy: str) -> None:
    config = parse_run_config({"strategy": strategy})
    stages = {"stage_rounds": 1} if config.algorithm.table == "coda" else {}
    uncovered = uncovered_fields(config.algorithm.strategy, config.family.model_copy(update=stages))
    expected = "refused" if config.algorithm.traits.objection else "model" if uncovered else "covered"
    assert dict(EFFECTS)[strategy] == expected
    if config.algorithm.strategy.shares_model:
        beside = {field for strategies, fields in FIELDS if strategy in strategies for field in fields}
        assert (not beside) == (not uncovered)
        if strategy not in ("fedx1", "local-pair"):  # the other strategies share fedx2's records
            assert set(uncovered) <= beside


# docs/symbols.md

PACKAGES = ("apps", "clients", "methods", "payloads", "privacy", "problems", "strategies", "vertical")


def exists(module: str, name: str) -> bool:
    """Return whether a module has the class or function, with the field, method or attribute after the dot."""
    outer, _, inner = name.partition(".")
    found = getattr(importlib.import_module(module), outer, None)
    if not inner or hasattr(found, inner):
        return found is not None
    given = rf"^    {inner}: |\bself\.{inner}\b[^=\n]* = "
    own = [base for base in getattr(found, "__mro__", ()) if base.__module__.partition(".")[0] in PACKAGES]
    return any(re.search(given, inspect.getsource(base), re.MULTILINE) for base in own)


@pytest.mark.parametrize("paper", ["FedX", "LocalSCGDAM", "FedSGDA", "Composite FL", "VFB2"])
def test_every_code_name_is_there(paper: str) -> None:
    table = rows(section(DOCS / "symbols.md", paper))
    assert table
    missing = []
    for _, _, code, where in table:
        (link,) = re.findall(r"\]\(([^)]+)\)", where)
        if link == "configuration.md":
            missing += [name for name in codes(code) if name not in known_keys()]
        else:
            module = link.removeprefix("../").removesuffix(".py").replace("/", ".")
            missing += [f"{module}: {name}" for name in codes(code) if not exists(module, name)]
    assert not missing
