"""Tests of docs/algorithms: every algorithm has a page, whose bytes, keys and figures match the code."""

import re
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from apps.registry import ALGORITHMS
from simulations.arguments import add_directory, overrides_of
from simulations.engines.launch import run_federation
from simulations.experiments.expansion import expand
from simulations.experiments.experiment import find_experiment
from tests.battery.federation import Run, federate, payloads_of
from tests.docs.markdown import PROJECT, anchors, blocks, codes, links, prose, rows, section
from vertical.records import COUNTERS

FOLDER = PROJECT / "docs" / "algorithms"
INDEX = FOLDER / "index.md"
PAGES = sorted(path for path in FOLDER.glob("*.md") if path != INDEX)
DEFAULTS = {codes(row[0])[0]: row[1] for row in rows(prose(PROJECT / "docs" / "configuration.md"))}


def strategies_of(page: Path) -> list[str]:
    """Return the strategies that have their own heading on a page."""
    return [name for name in re.findall(r"^#+ `([^`]+)`:", prose(page), re.MULTILINE) if name in ALGORITHMS]


PAGE_OF = {name: page for page in PAGES for name in strategies_of(page)}


def test_the_index_is_the_registry_s() -> None:
    """Every algorithm has one heading and one row, which links to it."""
    assert sorted(name for page in PAGES for name in strategies_of(page)) == sorted(ALGORITHMS)
    table = rows(section(INDEX, "All of them"))
    assert sorted(codes(row[0])[0] for row in table) == sorted(ALGORITHMS)
    for row in table:
        name = codes(row[0])[0]
        (target,) = re.findall(r"\]\(([^)]+)\)", row[3])
        path, _, anchor = target.partition("#")
        assert FOLDER / path == PAGE_OF[name], name
        assert not anchor or anchor in anchors(FOLDER / path), name
        assert row[2] == ALGORITHMS[name].traits.sends, name


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_keys_and_their_defaults(page: Path) -> None:
    table = rows(section(page, "Hyper-parameters"))
    assert table
    for row in table:
        for key in codes(row[0]):
            assert row[1] == DEFAULTS[key], key


@pytest.mark.parametrize("table", sorted({row.table for row in ALGORITHMS.values()} - {""}))
def test_every_key_of_a_family_is_on_one_of_its_pages(table: str) -> None:
    pages = {PAGE_OF[name] for name, row in ALGORITHMS.items() if row.table == table}
    named = {key for page in pages for row in rows(section(page, "Hyper-parameters")) for key in codes(row[0])}
    assert {key for key in DEFAULTS if key.startswith(f"{table}.")} <= named


@pytest.mark.parametrize("page", [page for page in PAGES if "## Figure" in prose(page)], ids=lambda page: page.name)
def test_the_figure_is_there_with_the_command_that_makes_it(page: Path) -> None:
    (target,) = [link for link in links(page) if link.startswith("../figures/") and not link.endswith(".toml")]
    figure = (page.parent / target).resolve()
    assert figure.stat().st_size > 0
    (command,) = [block.text for block in blocks(page) if " reproduce " in block.text]
    words = shlex.split(command)
    experiment = words[words.index("reproduce") + 1]
    assert PROJECT / experiment == figure.with_suffix(".toml")
    profile = words[words.index("--profile") + 1] if "--profile" in words else "quick"
    expansion = expand(find_experiment(str(PROJECT / experiment)), profile, data_dir=Path("/data"))
    assert set(strategies_of(page)) <= {str(run.config["strategy"]) for run in expansion.runs}
    told = re.findall(r"\b(\d+) seeds?\b", section(page, "Figure").replace("\n", " "))
    assert str(expansion.seeds) in told


# The traffic.


@dataclass(frozen=True)
class Traffic:
    """A row of a page's table of bytes: the strategy, and the formulas of the bytes up and down in a round."""

    page: Path
    strategy: str
    round: int
    each: tuple[str, str]
    all: tuple[str, str]

    def __str__(self) -> str:
        return f"{self.strategy}-{self.round}"


def command_of(page: Path) -> tuple[str, int, dict[str, Any]]:
    """Return the strategy, the number of clients and the other run-config keys of the section's only command."""
    text = page.read_text("utf-8").partition("## What travels")[2].partition("\n## ")[0]
    (block,) = re.findall(r"```sh\n(.*?)```", text, re.DOTALL)
    words = shlex.split(block.replace("\\\n", " "))
    assert words[:2] == ["florilegium", "run"]
    config = overrides_of([words[words.index("-c") + 1]])
    return str(config.pop("strategy")), int(words[words.index("--clients") + 1]), dict(config)


def letters_of(page: Path) -> dict[str, int]:
    """Return the values of the formulas' letters in the section's run."""
    return {name: int(value) for name, value in re.findall(r"`(\w+) = (\d+)`", section(page, "What travels"))}


def traffic_of(page: Path) -> list[Traffic]:
    found = []
    for row in rows(section(page, "What travels")):
        if len(row) not in (5, 6) or not row[-5].isdigit():
            continue
        strategy = codes(row[0])[0] if len(row) == 6 else command_of(page)[0]
        up, down = (codes(cell)[0] for cell in row[-4:-2])
        found.append(Traffic(page, strategy, int(row[-5]), (up, down), (row[-2], row[-1])))
    return found


TRAFFIC = [traffic for page in PAGES for traffic in traffic_of(page)]


def number(text: str) -> int:
    return int(text.replace(",", ""))


@pytest.fixture(scope="module")
def lines(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Return strategy -> the lines of metrics.jsonl that its page's command writes; each command runs once."""
    done: dict[str, list[dict[str, Any]]] = {}

    def run(page: Path, strategy: str) -> list[dict[str, Any]]:
        if strategy not in done:
            _, clients, config = command_of(page)
            out = tmp_path_factory.mktemp("runs") / strategy
            run_federation(clients, add_directory({"strategy": strategy, **config}, out))
            done[strategy] = Run(out).lines
        return done[strategy]

    return run


def test_every_algorithm_s_bytes_are_told() -> None:
    """The table covers two rounds at least, including the last round."""
    for name in ALGORITHMS:
        rounds = [traffic.round for traffic in TRAFFIC if traffic.strategy == name]
        assert len(rounds) >= 2, name
        assert max(rounds) == command_of(PAGE_OF[name])[2]["num-server-rounds"], name


@pytest.mark.parametrize("traffic", TRAFFIC, ids=str)
def test_the_bytes(traffic: Traffic, lines: Any) -> None:
    _, clients, _ = command_of(traffic.page)
    letters = letters_of(traffic.page)
    # parties differ, so the formulas give the sum over the parties
    times = clients if ALGORITHMS[traffic.strategy].strategy.shares_model else 1
    line = lines(traffic.page, traffic.strategy)[traffic.round]
    for formula, total, key in zip(traffic.each, traffic.all, ("bytes_up", "bytes_down"), strict=True):
        assert line[key] == number(total), key
        assert letters["N"] == clients
        assert eval(formula, {"__builtins__": {}}, letters) * times == line[key], key


@pytest.mark.parametrize("strategy", [name for name, row in ALGORITHMS.items() if not row.strategy.shares_model])
def test_the_bytes_between_the_parties(strategy: str, tmp_path: Path) -> None:
    """The rows give the sum over the parties in a round: strategy, round, formula, bytes."""
    page = PAGE_OF[strategy]
    _, clients, config = command_of(page)
    table = [row for row in rows(section(page, "What travels")) if len(row) == 4 and codes(row[0]) == [strategy]]
    assert table
    _, tap = federate(tmp_path / "run", {"strategy": strategy, **config}, clients=clients)
    for row in table:
        heard = [exchange for exchange in tap.exchanges if exchange.server_round == int(row[1]) and not exchange.phase]
        reports = [payloads_of(strategy, exchange)[1] for exchange in heard]
        assert len(reports) == clients
        sent = sum(int(report.counters[COUNTERS.index("bytes_sent")]) for report in reports)
        assert sent == number(row[3]) == eval(codes(row[2])[0], {"__builtins__": {}}, letters_of(page))
