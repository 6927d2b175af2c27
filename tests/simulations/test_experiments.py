"""Tests of an experiment's file, and of the runs that follow from it."""

from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pytest

from apps.config import ConfigError, known_keys
from simulations.experiments.choosing import Choosing
from simulations.experiments.expansion import expand
from simulations.experiments.experiment import Case, Profile, Run, find_experiment, find_packaged
from simulations.experiments.reports.page import as_markdown_and_html
from simulations.experiments.reports.tables import rows
from tests.programs import Line
from tests.refusals import states
from tests.simulations.fabricated import Runs, expanded, refusal, write

# Packaged experiments.


@pytest.mark.parametrize("name", find_packaged())
@pytest.mark.parametrize("profile", ["smoke", "quick", "full"])
def test_a_packaged_experiment_can_be_run(name: str, profile: str, tmp_path: Path) -> None:
    """Its grid can be run too; the paper's values accompany the paper's own data, and a smoke profile reads bundled
    data only."""
    experiment = find_experiment(name)
    expansion = expand(experiment, profile, data_dir=Path("/data"))
    assert experiment.name == name
    assert expansion.runs
    assert experiment.tune is None or Choosing(expansion, tmp_path / "out").runs
    for (place, _), value in expansion.paper.items():
        assert profile != "smoke"
        assert expansion.lines[place].dataset == value.at.get("dataset", experiment.config.get("dataset"))


def test_no_field_of_a_file_is_a_run_config_key() -> None:
    fields = {str(field.alias) for model in (Case, Run, Profile) for field in model.model_fields.values()}
    assert fields & set(known_keys()) == set()


@pytest.mark.parametrize("name", ["vfb2-fig2", "vfb2-fig34"])
@pytest.mark.parametrize("profile", ["smoke", "quick", "full"])
def test_vfb2_both_modes_have_one_step_and_one_slow_party(name: str, profile: str) -> None:
    expansion = expand(find_experiment(name), profile, data_dir=Path("/data"))
    modes: dict[Any, list[Any]] = defaultdict(list)
    for line in expansion.lines:
        assert line.injected["slowest"] == 1.4
        assert min(line.injected["compute"], line.injected["delay"]) > 0
        at = {**line.at, "method": line.method.replace("VFB2", "VFB")}
        modes[tuple(at.values())].append(line.config)
    for asynchronous, synchronous in modes.values():
        different = {key for key in asynchronous | synchronous if asynchronous.get(key) != synchronous.get(key)}
        assert different == {"vfb2.synchronous"}


# The runs that follow from a file.


def test_runs_are_methods_times_cases_times_seeds(tmp_path: Path) -> None:
    expansion = expanded(tmp_path)
    assert [run.name for run in expansion.runs] == [
        f"{method}_digits_k-{k}_seed-{seed}" for seed in (0, 1) for method in ("fedx", "local-sgd") for k in (1, 2)
    ]
    assert [(line.method, line.setting, line.curve, line.panel, line.clients) for line in expansion.lines] == [
        (method, f"K = {k}", f"{method} {k}", "digits", 2) for method in ("FedX", "Local SGD") for k in (1, 2)
    ]
    shared = {"model": "linear", "num-server-rounds": 2, "checkpoint-every": 0, "fedx.gamma": 0.5}
    own = {"strategy": "local-sgd", "learning-rate": 0.4, "local-steps": 2, "seed": 1}
    assert expansion.runs[-1].config == {**shared, **own}


def test_a_profile_cuts_down(tmp_path: Path) -> None:
    expansion = expanded(tmp_path, profile="smoke")
    assert [(line.method, line.at["K"]) for line in expansion.lines] == [("FedX", 1), ("Local SGD", 1)]
    assert {line.config["num-server-rounds"] for line in expansion.lines} == {1}
    assert (expansion.seeds, expanded(tmp_path, profile="smoke", seeds=4).seeds) == (1, 4)


CONFIG = ("fedx.gamma = 0.5", "fedx.gamma = 0.5\nlearning-rate = 0.2")
CASE = ("local-steps = 1 }", "local-steps = 1, learning-rate = 0.4, clients = 4 }")
PROFILE = ("num-server-rounds = 1", "num-server-rounds = 1\nlearning-rate = 0.5\nclients = 5")
METHOD = ("learning-rate = 0.4", "learning-rate = 0.4\nclients = 3")
OWN = (METHOD[0], f"{METHOD[1]}\nprofiles.smoke = {{ learning-rate = 0.6 }}")


LEVELS = [([CONFIG], 0.4, 2), ([CONFIG, METHOD], 0.4, 3), ([METHOD, CASE], 0.4, 4)]
LEVELS += [([METHOD, CASE, PROFILE], 0.5, 5), ([OWN, CASE, PROFILE], 0.6, 5)]


@pytest.mark.parametrize(("changes", "rate", "clients"), LEVELS)
def test_later_keys_win(tmp_path: Path, changes: list[tuple[str, str]], rate: float, clients: int) -> None:
    """The order is [config], the method, its case, the profile, the method's own table in the profile."""
    line = expanded(tmp_path, *changes, profile="smoke").lines[1]
    assert (line.config["learning-rate"], line.clients) == (rate, clients)


def test_axes_are_combined_and_a_method_may_have_its_own(tmp_path: Path) -> None:
    expansion = expanded(
        tmp_path,
        ("[axes]", '[axes]\ndataset = ["digits", "breast-cancer"]'),
        ("learning-rate = 0.4", "axes.steps = [{ at = { K = 1, note = true } }]"),
    )
    sets = ("digits", "breast-cancer")
    assert [(line.method, line.dataset, line.setting, line.panel) for line in expansion.lines] == [
        *(("FedX", data, setting, data) for data in sets for setting in ("K = 1", "K = 2")),
        *(("Local SGD", data, "K = 1, note = true", data) for data in sets),
    ]
    assert [row.dataset for row in rows(expansion, {})[::2]] == ["digits"] * 3 + ["breast-cancer"] * 3


def test_a_method_may_be_a_reference(tmp_path: Path) -> None:
    """The reference of vertical learning has no parties, regardless of the other methods."""
    cases = ("local-steps = 2 }", "local-steps = 2, clients = 5 }")
    for method, expected in (
        ('strategy = "local-sgd"\nengine = "centralized"', [("centralized", 2), ("centralized", 5)]),
        ('strategy = "vfb2-svrg"\nengine = "nonfederated"', [("nonfederated", 1), ("nonfederated", 1)]),
    ):
        lines = expanded(tmp_path, ('strategy = "local-sgd"', method), cases).lines
        assert [(line.run.engine, line.clients) for line in lines] == [("in-process", 2), ("in-process", 5), *expected]


def test_the_papers_values_stand_at_their_rows(tmp_path: Path) -> None:
    papers = {
        (row.method, row.setting, row.metric): (row.paper, row.paper_std, row.paper_source)
        for row in rows(expanded(tmp_path), {})
        if row.paper is not None
    }
    assert papers == {
        ("FedX", "K = 2", "auc"): (0.75, 0.01, "Table 9"),
        ("Local SGD", "K = 1", "loss"): (0.5, None, "Table 9, K = 1"),
    }


def test_a_papers_value_on_other_data_is_left_out(tmp_path: Path) -> None:
    """The paper's data set is the file's if a value names none; a profile may run another data set."""
    named = ("at = { K = 2 }\nmean", 'at = { K = 2, dataset = "digits" }\nmean')
    other = ("minutes = 2", 'minutes = 2\ndataset = "breast-cancer"')
    assert len(expanded(tmp_path, named).paper) == 2
    for changes in ([other], [named, other]):
        expansion = expanded(tmp_path, *changes)
        assert ({line.dataset for line in expansion.lines}, expansion.paper) == ({"breast-cancer"}, {})


LEFT_OUT = 'left-out = [{ at = { K = 2 }, reason = "the paper lacks it" }]'


def test_runs_that_are_left_out_are_listed(tmp_path: Path) -> None:
    one = LEFT_OUT.replace("K = 2", 'K = 2, method = "Local SGD"')
    expansion = expanded(tmp_path, ("clients = 2", f"clients = 2\n{one}"))
    assert [(line.method, line.at["K"]) for line in expansion.lines] == [("FedX", 1), ("FedX", 2), ("Local SGD", 1)]
    assert len(expansion.runs) == 6
    for text in as_markdown_and_html(expansion, {}, rows(expansion, {}), [], "", {}, 0):
        assert "Local SGD  digits  K = 2: the paper lacks it" in text
    with pytest.raises(ConfigError, match="--only: .*left out .the paper lacks it"):
        expand(expansion.experiment, "quick", only={"K": 2, "method": "Local SGD"})


def test_some_runs_have_other_numbers_of_seeds(tmp_path: Path) -> None:
    """A profile's number and the command's count for all runs."""
    at = ("minutes = 2\nseeds = 2", "minutes = 2")
    several = ("clients = 2", "clients = 2\nseeds = 2\nseeds-at = [{ at = { K = 2 }, seeds = 3 }]")
    expansion = expanded(tmp_path, several, at)
    assert Counter((run.line.at["K"], run.seed) for run in expansion.runs) == dict.fromkeys(
        [(1, 0), (1, 1), (2, 0), (2, 1), (2, 2)], 2
    )
    assert (expansion.seeds_text, {row.planned for row in rows(expansion, {})}) == ("2 to 3 seeds", {2, 3})
    assert expanded(tmp_path, several).seeds_text == "2 seeds"
    assert expanded(tmp_path, several, at, seeds=4).seeds_text == "4 seeds"


# Wrong input: one message that names file and key, and no run.


@pytest.mark.parametrize(
    ("before", "after", "parts"),
    [
        ("figure =", "figur =", ["small.toml: figure: got nothing", "small.toml: figur: got an unknown key"]),
        ('title = "Two', "title = [", ["small.toml: got a file that cannot be read (Invalid value", "allowed: TOML"]),
        ('metrics = ["auc", "loss"]', 'metrics = ["f1"]', ["'small': metrics: got 'f1'", "auc"]),
        ("clients = 2", 'x = ["round", "round"]', ["x: got round, round", "remove the repeated value"]),
        ("clients = 2", 'x = ["round", "clients"]', ["x: got round, clients", "'clients' only alone"]),
        ("clients = 2", 'x-label = ["a", "b"]', ["x-label: got 2 labels", "no labels, or 1: one for each of "]),
        ("fedx.gamma = 0.5", "fedx.gamma = 5.0", ["'small', FedX", "fedx.gamma", "got 5.0"]),
        ("fedx.gamma = 0.5", "fedx.gamma = [0.5, 1]", ["config: fedx.gamma: got [0.5, 1]", "axes"]),
        ("fedx.gamma = 0.5", "seed = 3", ["config: seed: got 3, allowed: no value, since the command sets it"]),
        ("learning-rate = 0.4", "axis = 3", ["Local SGD digits K = 1: axis: got an unknown"]),
        ("learning-rate = 0.4", 'engine = "nonfederated"', ["Local SGD digits K = 1: strategy: got 'local-sgd'"]),
        ("learning-rate = 0.4", 'engine = "nonfederated"\nclients = 3', ["runs[1]: clients: got 3", "remove clients"]),
        ("learning-rate = 0.4", "axes.local-step = [3]", ["Local SGD digits K = 1, local-step = 3: local-step: "]),
        ('name = "Local SGD"', 'name = "FedX"', ["'FedX digits K = 1', which would both be curve 'FedX 1'"]),
        ('name = "Local SGD"', 'name = "Fedx"', ["one run directory, fedx_digits_k-1_seed-0", "'Fedx digits K = 1'"]),
        ('curve = "{method} {K}"', 'curve = "{method} {k}"', ["curve: got {k}", "coordinate"]),
        ("only = { K = [1] }", "only = { K = [3] }", ["profiles.smoke.only.K: got 3, allowed: 1, 2"]),
        ("only = { K = [1] }", "only = { P = [3] }", ["profiles.smoke.only.P: got 3", "no such coordinate"]),
        ("at = { K = 2 }\nmean", "at = { K = 3 }\nmean", ["paper-values[0]: got method = FedX, K = 3, which no run"]),
        ("clients = 2", "seeds-at = [{ at = { K = 3 }, seeds = 1 }]", ["'small': seeds-at[0].at: got K = 3, which no"]),
        ("clients = 2", LEFT_OUT.replace("K = 2", "K = 3"), ["'small': left-out[0].at: got K = 3, which no run has"]),
        (
            "clients = 2",
            LEFT_OUT.replace("K = 2", "K = 1"),
            ["left-out: got runs that are left out (the paper lacks it)"],
        ),
        ("clients = 2", "left-out = [{ at = { K = 2 } }]", ["left-out[0].reason: got nothing"]),
        ("mean = 0.75", 'mean = 0.75\nmetric = "accuracy"', ["paper-values[0].metric: got 'accuracy'", "auc, loss"]),
        ('strategy = "fedx1"', 'dataset = "w8a"', ["'small' reads files of w8a", "--data-dir"]),
    ],
)
def test_a_wrong_file(command: Line, runs: Runs, tmp_path: Path, before: str, after: str, parts: list[str]) -> None:
    path = write(tmp_path, (before, after))
    err = refusal(command, "reproduce", path, "--out", tmp_path / "out", "--profile", "smoke")
    assert [part for part in parts if not states(err, part)] == []
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["nowhere.toml"], ["nowhere.toml: got a file that cannot be read (No such file", "allowed: TOML"]),
        (["SMALL", "--profile", "full"], ["--profile: got 'full'", "allowed: profiles of experiment 'small': smoke,"]),
        (["SMALL", "--data-dir", "/nowhere"], ["--data-dir: got /nowhere, which does not exist"]),
    ],
)
def test_a_wrong_argument(command: Line, runs: Runs, tmp_path: Path, arguments: list[str], parts: list[str]) -> None:
    path = write(tmp_path)
    given = [str(path) if argument == "SMALL" else argument for argument in arguments]
    err = refusal(command, "reproduce", *given, "--out", tmp_path / "out")
    assert [part for part in parts if not states(err, part)] == []


def test_data_that_is_not_there_is_told_before_the_first_run(command: Line, runs: Runs, tmp_path: Path) -> None:
    path = write(tmp_path, ("[axes]", '[axes]\ndataset = ["w8a", "digits", "uci-credit"]'))
    arguments = ("--profile", "quick", "--data-dir", tmp_path, "--out", tmp_path / "out")
    err = refusal(command, "reproduce", path, *arguments)
    assert [part for part in ("data set 'w8a'", "UCI_Credit_Card.csv") if part not in err] == []
    assert runs.names == []
