"""Tests of the command line's output and rejections, and of the options that the documentation names."""

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
import typer
from pydantic import BaseModel

from apps.config import known_keys
from apps.registry import ALGORITHMS, ANALYSES
from problems.data import DATASETS, PARTITIONS
from problems.models import LIBRARY_FORMS, MODELS
from simulations import listing
from simulations.__main__ import cli
from simulations.engines.stacked.messages import make_stacker
from simulations.experiments import experiment
from simulations.experiments.experiment import Experiment, find_packaged
from simulations.experiments.tuning import Tuning
from simulations.results.output import print_json
from tests.docs.markdown import PROJECT, blocks, codes, prose, rows, section
from tests.programs import Line, ran
from tests.refusals import matches, states
from tests.simulations.fabricated import refusal

TINY = 'strategy="local-sgd" model="linear" num-server-rounds=2 local-steps=1 checkpoint-every=0 pictures=false'
FAILING = f'{TINY} dataset="npz" data-dir="/nowhere.npz"'
PAGE = PROJECT / "docs" / "simulations.md"
EXPERIMENTS = PROJECT / "docs" / "own-experiment.md"


@pytest.mark.parametrize("subcommand", ["run", "centralized"])
def test_json_and_quiet(command: Line, tmp_path: Path, subcommand: str) -> None:
    def printed(name: str, *options: str) -> tuple[str, str, str]:
        """Return stdout, stderr and the result."""
        code, out, err = command(subcommand, "--out", tmp_path / name, "--clients", 2, "-c", TINY, *options)
        assert code == 0
        return out, err, (tmp_path / name / "result.json").read_text("utf-8")

    assert printed("a", "--quiet")[:2] == ("", "")
    out, err, result = printed("b", "--quiet", "--json")
    assert (out, err) == (result, "")
    assert json.loads(result)["rounds"] == 2
    out, err, result = printed("c", "--json")  # the rounds are printed on stderr instead
    assert (out, len(re.findall(r"round 2", err))) == (result, 1)
    out, err, _ = printed("d")
    told, silent = (err, out) if subcommand == "run" else (out, err)
    assert "round 2" in told
    assert silent == ""


@pytest.mark.parametrize(
    ("config", "code", "told"),
    [
        (f"{TINY} fedx.gamma=0.5", 0, ["model linear: 65 par", "partition 2: ", "no effect", "fedx.gamma=0.5"]),
        (FAILING, 1, ["error: dataset 'npz': data-dir: got '/nowhere.npz'"]),
        ('strategy="fedavg"', 1, ["strategy: got 'fedavg'", "set strategy to 'local-sgd'"]),
        ('seed=1 model "mlp"', 1, ["""'model "mlp"' is not a pair"""]),
    ],
    ids=["fine", "no data", "another's name", "no pair"],
)
def test_check_says_what_a_run_would_be(
    command: Line, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, config: str, code: int, told: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    ended, out, err = command("check", "--clients", 3, "-c", config)
    assert ended == code
    for words in told:
        assert states(err if code else out, words)
    assert not list(tmp_path.iterdir())


# Rejected before anything starts: one line on stderr.


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("local-steps=0", "local-steps: got 0, allowed: an integer >= 1"),
        ("fedx={", "fedx={"),
        ('run-name="x"', "--out"),
        ('output-dir="x"', "--out"),
    ],
)
@pytest.mark.parametrize("subcommand", ["run", "centralized"])
def test_a_wrong_config(command: Line, tmp_path: Path, subcommand: str, text: str, told: str) -> None:
    assert states(refusal(command, subcommand, "--out", tmp_path / "run", "-c", text), told)
    assert not (tmp_path / "run").exists()


# Rejected by the run: the reason is the last line.


def assert_refused(answer: tuple[int, str, str], *parts: str) -> None:
    code, out, err = answer
    assert (code, out) == (1, "")
    assert "Traceback" not in err
    last = err.splitlines()[-1]
    assert last.startswith("error: ") or "run failed: " in last
    assert [part for part in parts if part not in last] == []


@pytest.mark.parametrize(
    ("config", "parts"),
    [('model="no.such.module:net"', ["no.such.module"]), ('model="resnet20"', ["resnet20", "images"])],
)
@pytest.mark.parametrize("subcommand", ["run", "centralized"])
def test_a_run_that_cannot_be(command: Line, tmp_path: Path, subcommand: str, config: str, parts: list[str]) -> None:
    assert_refused(command(subcommand, "--out", tmp_path / "run", "--json", "-c", config), *parts)
    assert not (tmp_path / "run" / "result.json").exists()
    if subcommand == "run":
        assert parts[0] in (tmp_path / "run" / "failure.json").read_text("utf-8")


@pytest.mark.parametrize("subcommand", ["run", "centralized"])
def test_an_existing_run_is_not_overwritten(command: Line, tmp_path: Path, subcommand: str) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "metrics.jsonl").write_text("kept\n")
    assert_refused(command(subcommand, "--out", tmp_path / "run", "-c", TINY), "already contains a run", "resume=true")
    assert (tmp_path / "run" / "metrics.jsonl").read_text() == "kept\n"


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without CUDA")
@pytest.mark.parametrize("subcommand", ["run", "centralized"])
def test_cuda_where_there_is_none(command: Line, tmp_path: Path, subcommand: str) -> None:
    answer = command(subcommand, "--out", tmp_path / "run", "-c", f'{TINY} device="cuda"')
    assert_refused(answer, "device", "'cuda'", "allowed: auto, cpu")


def test_an_error_about_keys_names_their_option(command: Line, tmp_path: Path) -> None:
    code, _, words = command("run", "dataset=csv", "--out", str(tmp_path / "run"))
    assert code == 2
    assert "Keys are one text after -c" in " ".join(words.replace("│", "").split())


def test_a_loss_without_a_reference_leaves_no_directory(command: Line, tmp_path: Path) -> None:
    answer = command("centralized", "--out", tmp_path / "run", "-c", 'strategy="coda"')
    assert_refused(answer, "loss", "'auc-minimax', which has no centralised reference", "cross-entropy")
    assert not (tmp_path / "run").exists()


def test_as_a_module_of_its_own_process(tmp_path: Path) -> None:
    assert ran("-m", "simulations", "run", "--out", tmp_path / "run", "-c", "fedx.gama=1", code=1) == ""


def test_the_file_of_list_is_up_to_date() -> None:
    """After a change run `python -m simulations.listing`."""
    assert json.loads(listing.FILE.read_text("utf-8")) == listing.collect()


def test_list_as_json(command: Line) -> None:
    code, out, err = command("list", "--json")
    assert (code, err) == (0, "")
    found: dict[str, dict[str, Any]] = json.loads(out)
    there: dict[str, Iterable[str]] = {
        "strategies": [*ALGORITHMS, *ANALYSES],
        "datasets": DATASETS,
        "partitions": PARTITIONS,
    }
    there |= {"models": [*MODELS, *LIBRARY_FORMS], "keys": known_keys(), "experiments": find_packaged()}
    assert {section: list(rows) for section, rows in found.items()} == {name: [*rows] for name, rows in there.items()}
    assert found["keys"] == known_keys()
    alone = {name for name, text in found["strategies"].items() if "--stack has no effect" in text}
    assert alone == {name for name in ALGORITHMS if make_stacker(8, {"strategy": name}) is None}
    assert {tuple(row) for row in found["experiments"].values()} == {
        ("title", "paper", "figure", "datasets", "minutes")
    }


def test_json_has_no_nan(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"a": [float("nan"), 1.5], "b": {"c": float("-inf")}})
    assert json.loads(capsys.readouterr().out) == {"a": [None, 1.5], "b": {"c": None}}


# The page.


def options_of(name: str) -> set[str]:
    group: Any = typer.main.get_command(cli)
    return {option for parameter in group.commands[name].params for option in parameter.opts}


def test_help_explains_arguments(command: Line) -> None:
    assert "the run directory" in command("evaluate", "--help")[1]


def test_the_page_s_commands_use_options_that_exist() -> None:
    used: set[tuple[str, str]] = set()
    for block in blocks(PAGE):
        for line in block.text.replace("\\\n", " ").splitlines():
            if match := re.match(r"florilegium (\S+)(.*)", line):
                used |= {(match[1], option) for option in re.findall(r"(?<=\s)--?[a-z][a-z-]*", match[2])}
    commands = {"run", "check", "centralized", "list", "compare", "report", "sweep", "reproduce"}
    assert {name for name, _ in used} == commands
    assert [(name, option) for name, option in sorted(used) if option not in options_of(name)] == []
    for name in ("sweep", "reproduce"):
        named = {option.split()[0] for option in codes(section(PAGE, name)) if option.startswith("-")}
        assert options_of(name) - named - {"name"} == set()


def test_the_page_names_every_key_of_an_experiment() -> None:
    keys = {key for row in rows(prose(EXPERIMENTS)) for key in codes(row[0])}
    models: tuple[tuple[str, type[BaseModel]], ...] = (
        ("", Experiment),
        ("runs.", experiment.Run),
        ("axes.", experiment.Case),
        ("profiles.", experiment.Profile),
        ("paper-values.", experiment.PaperValue),
        ("claims.", experiment.Claim),
        ("left-out.", experiment.LeftOut),
        ("tune.", Tuning),
    )
    there = {f"{prefix}{field.alias}" for prefix, model in models for field in model.model_fields.values()}
    told_elsewhere = "reproduced runs.axes runs.clients axes.clients profiles.clients profiles.seeds"
    assert keys == there - set(told_elsewhere.split())


OWN = 'dataset="csv" partition="own" strategy="local-sgd" model="linear" num-server-rounds=1 checkpoint-every=0'


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["-n", "device"], "--node-config: got 'device', of which 'device' is not a pair, allowed: key=value pairs"),
        (["-n", "partition-id=0"], "--node-config: got partition-id, .* which the order and the number"),
        (
            ["-n", 'data-path="/a"', "--clients", 2],
            "--node-config: got 1 for --clients 2, allowed: a node config for each",
        ),
        (["-n", 'data-path="/a"', "--engine", "flower"], "--node-config: got 1 .* only with --engine inprocess or ray"),
        (["-n", 'data-path="/nowhere.csv"'], "partition 0: .*'/nowhere.csv': got no such file"),
    ],
)
def test_node_configs_that_cannot_be(command: Line, options: list[Any], told: str, tmp_path: Path) -> None:
    found = refusal(command, "run", "--out", tmp_path / "run", *options, "-c", OWN, "--quiet")
    assert matches(found, told)
