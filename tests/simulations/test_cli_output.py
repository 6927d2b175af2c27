"""What the command line prints: --quiet, --json, list, and the options that the documentation names."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
from pydantic import BaseModel

from apps.config import known_keys
from apps.registry import ALGORITHMS
from problems.data import DATASETS, PARTITIONS
from problems.models import MODELS
from simulations import experiment
from simulations.__main__ import cli
from simulations.choosing import Choosing
from simulations.expansion import expand
from simulations.experiment import Experiment, packaged, read_experiment
from simulations.output import print_json, progress, shown, shown_metric, table
from tests.apps.test_command_line import Line
from tests.docs.markdown import PROJECT, blocks, codes, rows, section

TINY = 'strategy="local-sgd" model="linear" num-server-rounds=2 local-steps=1 checkpoint-every=0 pictures=false'
FAILING = f'{TINY} dataset="npz" data-dir="/nowhere.npz"'
SUBCOMMANDS = ["run", "centralized"]
PAGE = PROJECT / "docs" / "simulations.md"


@pytest.mark.parametrize("subcommand", SUBCOMMANDS)
def test_json_and_quiet(command: Line, tmp_path: Path, subcommand: str) -> None:
    def ran(name: str, *options: str) -> tuple[str, str, str]:
        """stdout, stderr and the result."""
        code, out, err = command(subcommand, "--out", tmp_path / name, "--clients", 2, "-c", TINY, *options)
        assert code == 0
        return out, err, (tmp_path / name / "result.json").read_text("utf-8")

    assert ran("a", "--quiet")[:2] == ("", "")
    out, err, result = ran("b", "--quiet", "--json")
    assert (out, err) == (result, "")
    assert json.loads(result)["rounds"] == 2
    out, err, result = ran("c", "--json")  # the rounds are told, but elsewhere
    assert (out, len(re.findall(r"round 2", err))) == (result, 1)
    out, err, _ = ran("d")
    told, silent = (err, out) if subcommand == "run" else (out, err)
    assert "round 2" in told
    assert silent == ""


@pytest.mark.parametrize("subcommand", SUBCOMMANDS)
@pytest.mark.parametrize("options", [["--quiet"], ["--quiet", "--json"], ["--json"]])
def test_a_failure_is_one_line(command: Line, tmp_path: Path, subcommand: str, options: list[str]) -> None:
    code, out, err = command(subcommand, "--out", tmp_path / "run", "-c", FAILING, *options)
    assert (code, out) == (1, "")
    assert "/nowhere.npz" in err.splitlines()[-1]
    if "--quiet" in options:
        assert len(err.splitlines()) == 1
        assert err.startswith("error: ")


# list

EVERYTHING = {
    "strategies": list(ALGORITHMS),
    "datasets": list(DATASETS),
    "partitions": list(PARTITIONS),
    "models": list(MODELS),
    "keys": list(known_keys()),
    "experiments": list(packaged()),
}


def test_list_as_json(command: Line) -> None:
    code, out, err = command("list", "--json")
    assert (code, err) == (0, "")
    found: dict[str, dict[str, Any]] = json.loads(out)
    assert {section: list(rows) for section, rows in found.items()} == EVERYTHING
    assert found["keys"] == known_keys()
    assert {tuple(row) for row in found["experiments"].values()} == {
        ("title", "paper", "figure", "datasets", "minutes")
    }


@pytest.mark.parametrize("section", EVERYTHING)
def test_list_one_section(command: Line, section: str) -> None:
    lines = command("list", section)[1].splitlines()
    assert [line.split()[0] for line in lines if line.startswith("  ")] == EVERYTHING[section]
    _, out, _ = command("list", section, "--json")
    assert {name: list(rows) for name, rows in json.loads(out).items()} == {section: EVERYTHING[section]}


# The pieces.


def test_a_table_is_aligned() -> None:
    text = table(["run", "auc"], [["a", "0.5"], ["longer", "-"], ["b\n", "12.5"]])
    assert text.splitlines() == ["run      auc", "a        0.5", "longer     -", "'b\\n'   12.5"]


@pytest.mark.parametrize(
    ("value", "decimals", "cell"),
    [(None, 4, "-"), (0.5, 4, "0.5000"), (1.23e21, 4, "1.23e+21"), (0.1234567, None, "0.123457"), (True, None, "true")],
)
def test_a_cell(value: object, decimals: int | None, cell: str) -> None:
    assert shown(value, decimals) == cell


@pytest.mark.parametrize(
    ("value", "like", "cell"),
    [
        (0.98765, None, "0.9877"),
        (0.0, None, "0.0000"),
        (-0.00123456, None, "-1.235e-03"),
        (0.001, 0.99, "0.0010"),
        (0.5, 0.001, "5.000e-01"),
        (None, 0.001, "-"),
        (None, None, "-"),
    ],
)
def test_a_metric_s_cell(value: float | None, like: float | None, cell: str) -> None:
    assert shown_metric(value, like) == cell


def test_json_has_no_nan(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"a": [float("nan"), 1.5], "b": {"c": float("-inf")}})
    assert json.loads(capsys.readouterr().out) == {"a": [None, 1.5], "b": {"c": None}}


# The page.


def options_of(name: str) -> set[str]:
    group: Any = typer.main.get_command(cli)
    return {option for parameter in group.commands[name].params for option in parameter.opts}


def test_the_page_s_commands_use_options_that_exist() -> None:
    used: set[tuple[str, str]] = set()
    for block in blocks(PAGE):
        for line in block.text.replace("\\\n", " ").splitlines():
            if match := re.match(r"python -m simulations (\S+)(.*)", line):
                used |= {(match[1], option) for option in re.findall(r"(?<=\s)--?[a-z][a-z-]*", match[2])}
    commands = {"run", "centralized", "list", "compare", "sweep", "reproduce", "new-algorithm"}
    assert {name for name, _ in used} == commands
    assert [(name, option) for name, option in sorted(used) if option not in options_of(name)] == []
    for name in ("sweep", "reproduce"):
        named = {option.split()[0] for option in codes(section(PAGE, name)) if option.startswith("-")}
        assert options_of(name) - named - {"name"} == set()


def test_the_page_s_experiment_can_be_run_and_tuned(tmp_path: Path) -> None:
    tune, example = [block for block in blocks(PAGE) if block.language == "toml"]
    (tmp_path / "tuned.toml").write_text(f"{example.text}\n{tune.text}")
    chosen = Choosing(expand(read_experiment(tmp_path / "tuned.toml"), "quick"), tmp_path / "out")
    assert [(search.line.method, len(search.points)) for search in chosen.searches] == [
        *[("FedX1", 3 * 2)] * 2,
        *[("Centralized", 3)] * 2,
    ]
    (tmp_path / "mine.toml").write_text(example.text)
    expansion = expand(read_experiment(tmp_path / "mine.toml"), "quick")
    assert len(expansion.runs) == 2 * 2 * 2 * 3
    assert len(expansion.paper) == 1


def test_the_page_names_every_key_of_an_experiment() -> None:
    text = section(PAGE, "Choosing values") + section(PAGE, "An experiment of your own")
    keys = {key for row in rows(text) for key in codes(row[0])}
    models: tuple[tuple[str, type[BaseModel]], ...] = (
        ("", Experiment),
        ("runs.", experiment.Run),
        ("axes.", experiment.Case),
        ("profiles.", experiment.Profile),
        ("paper-values.", experiment.PaperValue),
        ("claims.", experiment.Claim),
        ("tune.", experiment.Tuning),
    )
    there = {f"{prefix}{field.alias}" for prefix, model in models for field in model.model_fields.values()}
    told_elsewhere = "reproduced runs.axes runs.clients axes.clients profiles.clients profiles.seeds"
    assert keys == there - set(told_elsewhere.split())


def test_on_a_terminal_lines_stand_above_a_bar(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with progress(2, quiet=False) as say:
        say("1/2  finished  [a]")
        say("2/2  finished  b")
    told = capsys.readouterr()
    assert told.out == ""
    assert "1/2  finished  [a]\n" in told.err
    assert "2/2  finished  b\n" in told.err
    uncoloured = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", told.err)
    assert "2/2 0:00:0" in uncoloured  # the bar's own count and clock


def test_elsewhere_lines_are_plain_and_quiet_is_silent(capsys: pytest.CaptureFixture[str]) -> None:
    for quiet in (False, True):
        with progress(1, quiet) as say:
            say("1/1  finished  a")
    assert capsys.readouterr().err == "1/1  finished  a\n"


# Node configs.

OWN = 'dataset="csv" partition="own" strategy="local-sgd" model="linear" num-server-rounds=1 checkpoint-every=0'


def test_each_site_may_have_a_node_config(command: Line, tmp_path: Path) -> None:
    nodes = []
    for place in range(2):
        lines = [f"{20 + 7 * row % 50},{row % 2}" for row in range(30 + place)]
        (tmp_path / f"{place}.csv").write_text("\n".join(["age,label", *lines]))
        nodes += ["-n", f'data-path="{tmp_path / f"{place}.csv"}"']
    code, out, _ = command("run", "--out", tmp_path / "run", *nodes, "-c", OWN, "--json")
    assert (code, json.loads(out)["clients"]) == (0, 2)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["-n", "device"], "--node-config: got 'device', allowed: key=value pairs"),
        (["-n", "partition-id=0"], "--node-config: got partition-id, .* follows from the order"),
        (["-n", 'data-path="/a"', "--clients", 2], "--node-config: got 1, but --clients 2, allowed: one for each"),
        (["-n", 'data-path="/a"', "--engine", "flower"], "--node-config: got 1 .* in this process only"),
        (["-n", 'data-path="/nowhere.csv"'], "partition 0: .*'/nowhere.csv': got no such file"),
    ],
)
def test_node_configs_that_cannot_be(command: Line, options: list[Any], told: str, tmp_path: Path) -> None:
    code, _, err = command("run", "--out", tmp_path / "run", *options, "-c", OWN, "--quiet")
    assert code == 1
    assert re.search(told, err)
