"""`reproduce`: what an experiment's file says, the runs that follow, what is kept, the table and the figure."""

from __future__ import annotations

import csv
import fnmatch
import html
import json
import math
import os
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from apps.config import ConfigError, known_keys, parse_run_config
from apps.vertical import settings_of, vertical_data
from problems.vertical.minimum import minimum
from problems.vertical.objectives import make_objective
from simulations.arguments import placed
from simulations.expansion import Expansion, data_sets, expand
from simulations.experiment import Case, Profile, Run, find_experiment, packaged, read_experiment
from simulations.figures import Curve, _figure, band, comparable, draw, panels
from simulations.records import RunRecord, read_run
from simulations.report import as_text, pair, rows, tail
from simulations.reproduce import Reproduction
from simulations.workers import Task, _reason, run_all
from tests.apps.test_command_line import ROOT, Line
from tests.battery.federation import Run as Written
from tests.simulations.test_compare import RANKING, fake

SMALL = """
title = "Two methods on digits"
paper = "A paper"
figure = "Table 9"
clients = 2
metrics = ["auc", "loss"]
curve = "{method} {K}"

[config]
model = "linear"
num-server-rounds = 2
checkpoint-every = 0
fedx.gamma = 0.5

[profiles.smoke]
minutes = 0.1
seeds = 1
only = { K = [1] }
num-server-rounds = 1

[profiles.quick]
minutes = 2
seeds = 2

[axes]
steps = [{ at = { K = 1 }, local-steps = 1 }, { at = { K = 2 }, local-steps = 2 }]

[[runs]]
name = "FedX"
strategy = "fedx1"

[[runs]]
name = "Local SGD"
strategy = "local-sgd"
learning-rate = 0.3

[[paper-values]]
method = "FedX"
at = { K = 2 }
mean = 0.75
std = 0.01

[[paper-values]]
method = "Local SGD"
metric = "loss"
at = { K = 1 }
mean = 0.5
source = "Table 9, K = 1"
"""
slow = pytest.mark.slow


def write(folder: Path, *changes: tuple[str, str], name: str = "small") -> Path:
    """`SMALL` with some texts replaced."""
    text = SMALL
    for before, after in changes:
        assert text.count(before) == 1, before
        text = text.replace(before, after)
    (folder / f"{name}.toml").write_text(text)
    return folder / f"{name}.toml"


def expanded(
    folder: Path, *changes: tuple[str, str], profile: str = "quick", seeds: int | None = None, data: Path | None = None
) -> Expansion:
    return expand(read_experiment(write(folder, *changes)), profile, seeds, data)


# What comes with the project.


@pytest.mark.parametrize("name", packaged())
@pytest.mark.parametrize("profile", ["smoke", "quick", "full"])
def test_a_packaged_experiment_can_be_run(name: str, profile: str) -> None:
    experiment = find_experiment(name)
    assert experiment.name == name
    assert expand(experiment, profile, data_dir=Path("/data")).runs


def test_the_projects_wheel_takes_the_files_along() -> None:
    """Hatchling takes all of a package's files but those that .gitignore names."""
    patterns = [
        line.rstrip("/") for line in (ROOT / ".gitignore").read_text("utf-8").split() if not line.startswith("#")
    ]
    for path in packaged().values():
        parts = path.relative_to(ROOT).parts
        assert not [one for one in patterns for part in parts if fnmatch.fnmatch(part, one.lstrip("/"))]


@pytest.mark.parametrize("name", packaged())
@pytest.mark.parametrize("profile", ["smoke", "quick", "full"])
def test_papers_values_stand_beside_their_own_data(name: str, profile: str) -> None:
    """Those of an experiment on one data set name none: that of its [config] is the paper's."""
    experiment = find_experiment(name)
    expansion = expand(experiment, profile, data_dir=Path("/data"))
    for (place, _), value in expansion.paper.items():
        line = expansion.lines[place]
        assert line.dataset == value.at.get("dataset", experiment.config.get("dataset"))
    if profile == "smoke":
        assert expansion.paper == {}  # all of them are on bundled data


def test_no_field_of_a_file_is_a_run_config_key() -> None:
    fields = {str(field.alias) for model in (Case, Run, Profile) for field in model.model_fields.values()}
    assert fields & set(known_keys()) == set()


# FedSGDA, Table 1: (S, K) -> eta and gamma of MB; c_eta, c_gamma and c_alpha of STORM
TABLE_1 = {
    (5, 5): (1e-3, 1e-3, 1e-2, 1e-1, 1),
    (5, 10): (1e-4, 1e-3, 1e-3, 1e-2, 10),
    (5, 20): (1e-4, 1e-3, 1e-3, 1e-1, 1),
    (10, 5): (1e-3, 1e-3, 1e-2, 1e-1, 1),
    (10, 10): (1e-4, 1e-3, 1e-3, 1e-2, 1),
    (10, 20): (1e-4, 1e-3, 1e-3, 1e-2, 1),
    (20, 5): (1e-3, 1e-3, 1e-2, 1e-1, 1),
    (20, 10): (1e-3, 1e-2, 1e-3, 1e-2, 1),
    (20, 20): (1e-4, 1e-3, 1e-3, 1e-3, 1),
}


def test_fedsgda_has_the_papers_settings() -> None:
    expansion = expand(find_experiment("fedsgda-fig1"), "full")
    found: dict[tuple[Any, Any], tuple[Any, ...]] = {}
    for method, keys in (
        ("FedSGDA-MB", ("primal-step", "dual-step")),
        ("FedSGDA-STORM", ("primal-step", "dual-step", "alpha-constant")),
    ):
        for line in (line for line in expansion.lines if line.method == method):
            assert line.clients * float(line.config["fraction-train"]) == line.at["S"]
            assert (line.config["local-steps"], line.config["batch-size"]) == (line.at["K"], 5)
            key = (line.at["S"], line.at["K"])
            found[key] = (*found.get(key, ()), *(line.config[f"fedsgda.{name}"] for name in keys))
    assert found == TABLE_1


def test_fedsgda_quick_is_figure_1() -> None:
    expansion = expand(find_experiment("fedsgda-fig1"), "quick")
    assert len(expansion.runs) == 21
    assert {line.panel for line in expansion.lines} == {f"FedSGDA-{name}, K = 5" for name in ("MB", "STORM", "SPIDER")}
    assert [line.curve for line in expansion.lines[:3]] == ["S = 5", "S = 10", "S = 20"]
    assert {line.config["num-server-rounds"] for line in expansion.lines[:6]} == {3000}
    assert expansion.lines[6].config["num-server-rounds"] == 1000


# FedSGDA, Table 3, S = 5: K -> eta and gamma of MB; c_eta, c_gamma and c_alpha of STORM; then the list for Figure 6c
TABLE_3 = {
    ("6a", 1): (1, 1e-2),
    ("6a", 10): (1e-1, 1e-3),
    ("6a", 20): (1e-1, 1),
    ("6b", 1): (1, 1e-1, 5),
    ("6b", 10): (1e-1, 1e-2, 10),
    ("6b", 20): (1e-1, 1e-1, 10),
}


def test_fedsgda_fig6_has_the_papers_settings() -> None:
    expansion = expand(find_experiment("fedsgda-fig6"), "full")
    assert {line.config["partition"] for line in expansion.lines} == {"sorted-90"}
    found, against = {}, {}
    for line in expansion.lines:
        keys = ["fedsgda.primal-step", "fedsgda.dual-step", *["fedsgda.alpha-constant"] * ("STORM" in line.method)]
        steps = tuple(line.config[key] for key in (["learning-rate"] if line.method == "CoDA" else keys))
        assert (line.config["local-steps"], line.config["batch-size"]) == (line.at["K"], 10)
        if line.at["figure"] == "6c":
            communications = line.communications * int(line.config["num-server-rounds"])
            against[line.method] = (line.clients, communications, line.at["K"], steps)
        else:
            assert line.clients * float(line.config["fraction-train"]) == 5
            found[line.at["figure"], line.at["K"]] = steps
    assert found == TABLE_3
    assert against == {
        "FedSGDA-MB": (50, 800, 20, (0.1, 0.1)),
        "FedSGDA-STORM": (50, 800, 20, (1, 1, 10)),
        "CoDA": (50, 800, 20, (0.01,)),
    }


# FedX, Figure 1: left K varies, right N, the number of sites, each with a sixteenth of the data
@pytest.mark.parametrize(("profile", "iterations"), [("quick", 1280), ("full", 20_000)])
def test_fedx_fig1_varies_k_or_the_number_of_sites(profile: str, iterations: int) -> None:
    expansion = expand(find_experiment("fedx-fig1"), profile)
    assert [(line.panel, line.at["K"], line.clients) for line in expansion.lines] == [
        *(("vary K", steps, 16) for steps in (8, 32, 128)),
        *(("vary N", 32, sites) for sites in (1, 4, 8, 16)),
    ]
    for line in expansion.lines:
        steps = int(line.config["local-steps"])
        assert (line.config["partition-sites"], steps, line.clients) == (16, line.at["K"], line.at["N"])
        assert abs(steps * int(line.config["num-server-rounds"]) - iterations) < steps


# VFB2, Tables 2 and 3: q, m, the parties with labels under AFSVRG-VP, lambda is the default's 1e-4
LOSSLESS = {"vfb2-table2": (8, 3, 4), "vfb2-table3": (12, 2, 6)}


@pytest.mark.parametrize("name", LOSSLESS)
def test_vfb2_has_the_papers_settings(name: str) -> None:
    expansion = expand(find_experiment(name), "full", data_dir=Path("/data"))
    parties, active, half = LOSSLESS[name]
    found = {
        (line.method, line.engine, line.clients, line.config["vfb2.active-parties"], line.config["strategy"])
        for line in expansion.lines
    }
    assert found == {
        ("NonF", "nonfederated", 1, active, "vfb2-svrg"),
        ("AFSVRG-VP", "in-process", parties, half, "vfb2-svrg"),
        ("VFB2-SVRG", "in-process", parties, active, "vfb2-svrg"),
        ("VFB-SVRG", "in-process", parties, active, "vfb2-svrg"),
    }
    assert expansion.seeds == 10
    assert "vfb2.weight" not in {key for line in expansion.lines for key in line.config}
    papers = [row for row in rows(expansion, {}) if row.metric == expansion.experiment.metrics[0]]
    assert [row.method for row in papers if row.paper is None] == ["VFB-SVRG"] * (len(papers) // 4)


@pytest.mark.parametrize("name", ["vfb2-fig2", "vfb2-fig34"])
@pytest.mark.parametrize("profile", ["smoke", "quick", "full"])
def test_vfb2_both_modes_have_one_step_and_one_slow_party(name: str, profile: str) -> None:
    expansion = expand(find_experiment(name), profile, data_dir=Path("/data"))
    for line in expansion.lines:
        seconds = [float(text) for text in str(line.config["vfb2.extra-compute"]).split(",")]
        assert len(seconds) == line.clients
        assert len({*seconds[:-1]}) == 1
        assert seconds[-1] == pytest.approx(1.4 * seconds[0])
        other = next(
            one
            for one in expansion.lines
            if one.at == {**line.at, "method": line.method.translate({ord("2"): None})}
            or one.at == {**line.at, "method": line.method.replace("VFB-", "VFB2-")} != line.at
        )
        assert {key for key in line.config if line.config[key] != other.config[key]} <= {"vfb2.synchronous"}


# The runs that follow from a file.


def test_runs_are_methods_times_cases_times_seeds(tmp_path: Path) -> None:
    expansion = expanded(tmp_path)
    assert [run.name for run in expansion.runs] == [
        f"{method}_digits_k-{k}_seed-{seed}" for seed in (0, 1) for method in ("fedx", "local-sgd") for k in (1, 2)
    ]
    assert [(line.method, line.setting, line.curve) for line in expansion.lines] == [
        ("FedX", "K = 1", "FedX 1"),
        ("FedX", "K = 2", "FedX 2"),
        ("Local SGD", "K = 1", "Local SGD 1"),
        ("Local SGD", "K = 2", "Local SGD 2"),
    ]
    assert expansion.runs[-1].config == {
        "model": "linear",
        "num-server-rounds": 2,
        "checkpoint-every": 0,
        "fedx.gamma": 0.5,
        "strategy": "local-sgd",
        "learning-rate": 0.3,
        "local-steps": 2,
        "seed": 1,
    }
    assert {line.panel for line in expansion.lines} == {"digits"}
    assert {line.clients for line in expansion.lines} == {2}


def test_a_profile_cuts_down(tmp_path: Path) -> None:
    expansion = expanded(tmp_path, profile="smoke")
    assert [(line.method, line.at["K"]) for line in expansion.lines] == [("FedX", 1), ("Local SGD", 1)]
    assert {line.config["num-server-rounds"] for line in expansion.lines} == {1}
    assert expansion.seeds == 1
    assert expanded(tmp_path, profile="smoke", seeds=4).seeds == 4


def test_later_keys_win(tmp_path: Path) -> None:
    """[config], the method, its case, the profile, the method's own word on the profile."""

    def rate(*changes: tuple[str, str]) -> Any:
        return expanded(tmp_path, *changes, profile="smoke").lines[1].config["learning-rate"]

    case = ("local-steps = 1 }", "local-steps = 1, learning-rate = 0.4 }")
    profile = ("num-server-rounds = 1", "num-server-rounds = 1\nlearning-rate = 0.5")
    own = ("learning-rate = 0.3", "learning-rate = 0.3\nprofiles.smoke = { learning-rate = 0.6 }")
    assert rate(("fedx.gamma = 0.5", "fedx.gamma = 0.5\nlearning-rate = 0.2")) == 0.3
    assert rate(case) == 0.4
    assert rate(case, profile) == 0.5
    assert rate(case, profile, own) == 0.6


@pytest.mark.parametrize(
    ("changes", "clients"),
    [
        ((), 2),
        ((("learning-rate = 0.3", "clients = 3"),), 3),
        ((("learning-rate = 0.3", "clients = 3"), ("local-steps = 1 }", "local-steps = 1, clients = 4 }")), 4),
        ((("learning-rate = 0.3", "clients = 3"), ("num-server-rounds = 1", "clients = 5")), 5),
    ],
)
def test_the_number_of_clients(tmp_path: Path, changes: tuple[tuple[str, str], ...], clients: int) -> None:
    assert expanded(tmp_path, *changes, profile="smoke").lines[1].clients == clients


def test_axes_are_combined_and_a_method_may_have_its_own(tmp_path: Path) -> None:
    expansion = expanded(
        tmp_path,
        ("[axes]", '[axes]\ndataset = ["digits", "breast-cancer"]'),
        ("learning-rate = 0.3", "axes.steps = [{ at = { K = 1, note = true } }]"),
    )
    assert [(line.method, line.dataset, line.setting) for line in expansion.lines] == [
        ("FedX", "digits", "K = 1"),
        ("FedX", "digits", "K = 2"),
        ("FedX", "breast-cancer", "K = 1"),
        ("FedX", "breast-cancer", "K = 2"),
        ("Local SGD", "digits", "K = 1, note = true"),
        ("Local SGD", "breast-cancer", "K = 1, note = true"),
    ]
    assert {line.panel for line in expansion.lines} == {"digits", "breast-cancer"}
    assert [row.dataset for row in rows(expansion, {})[::2]] == ["digits"] * 3 + ["breast-cancer"] * 3


def test_an_experiment_s_data_sets_are_those_of_all_profiles(tmp_path: Path) -> None:
    def found(*changes: tuple[str, str]) -> list[str]:
        return data_sets(read_experiment(write(tmp_path, *changes)))

    axis = ("[axes]", '[axes]\ndataset = ["w8a", { at = { dataset = "Cancer" }, dataset = "breast-cancer" }]')
    assert found() == ["digits"]
    assert found(axis) == ["w8a", "breast-cancer"]
    assert found(axis, ("only = {", 'only = { dataset = ["w8a"],')) == ["w8a", "breast-cancer"]
    assert found(("minutes = 2", 'minutes = 2\ndataset = "cifar10"')) == ["digits", "cifar10"]


def test_clients_may_vary(tmp_path: Path) -> None:
    changes = ("[axes]\n", "[axes]\nclients = [2, 4]\n"), ('curve = "{method} {K}"', 'curve = "{method} {setting}"')
    expansion = expanded(tmp_path, *changes)
    assert [line.clients for line in expansion.lines[:3]] == [2, 2, 4]
    assert expansion.lines[2].curve == "FedX clients = 4, K = 1"


def test_panels_and_curves_are_named_by_what_a_run_has(tmp_path: Path) -> None:
    changes = (
        'curve = "{method} {K}"',
        'panel = "{strategy}, $B$ = {batch-size}"\ncurve = "{local-steps}, {clients} clients"',
    )
    line = expanded(tmp_path, changes).lines[-1]
    assert (line.panel, line.curve) == ("local-sgd, $B$ = 32", "2, 2 clients")


def test_a_method_may_be_a_centralised_reference(tmp_path: Path) -> None:
    expansion = expanded(tmp_path, ("learning-rate = 0.3", 'engine = "centralized"'))
    assert [line.engine for line in expansion.lines[1:3]] == ["in-process", "centralized"]


def test_a_method_may_be_the_reference_of_vertical_learning(tmp_path: Path) -> None:
    """It has no parties, whatever the other methods have."""
    text = ('strategy = "local-sgd"', 'strategy = "vfb2-svrg"\nengine = "nonfederated"')
    cases = ("local-steps = 2 }", "local-steps = 2, clients = 5 }")
    expansion = expanded(tmp_path, text, cases)
    assert [(line.engine, line.clients) for line in expansion.lines] == [
        ("in-process", 2),
        ("in-process", 5),
        ("nonfederated", 1),
        ("nonfederated", 1),
    ]


def test_data_are_in_data_dir(tmp_path: Path) -> None:
    table = ('strategy = "local-sgd"', 'strategy = "local-sgd"\ndataset = "csv"\ndata-dir = "tables/a.csv"')
    expansion = expanded(tmp_path, table, data=Path("/data"))
    assert [line.config["data-dir"] for line in expansion.lines[1:3]] == ["/data", "/data/tables/a.csv"]
    elsewhere = (table[0], table[1].replace("tables", "/elsewhere"))
    assert expanded(tmp_path, elsewhere, data=Path("/data")).lines[2].config["data-dir"] == "/elsewhere/a.csv"
    assert expanded(tmp_path, elsewhere).lines[2].config["data-dir"] == "/elsewhere/a.csv"


def test_the_papers_values_stand_at_their_rows(tmp_path: Path) -> None:
    found = {(row.method, row.setting, row.metric): row for row in rows(expanded(tmp_path), {})}
    papers = {key: (row.paper, row.paper_std, row.paper_source) for key, row in found.items() if row.paper is not None}
    assert papers == {
        ("FedX", "K = 2", "auc"): (0.75, 0.01, "Table 9"),
        ("Local SGD", "K = 1", "loss"): (0.5, None, "Table 9, K = 1"),
    }


def test_a_papers_value_on_other_data_is_left_out(tmp_path: Path) -> None:
    """The paper's data set is that of the file; a profile may run another."""
    named = ("at = { K = 2 }\nmean", 'at = { K = 2, dataset = "digits" }\nmean')
    other = ("minutes = 2", 'minutes = 2\ndataset = "breast-cancer"')
    assert len(expanded(tmp_path, named).paper) == 2
    assert [line.dataset for line in expanded(tmp_path, named, other).lines] == ["breast-cancer"] * 4
    assert expanded(tmp_path, named, other).paper == {}
    assert expanded(tmp_path, other).paper == {}  # one that names no data set is of the file's too


# Wrong input: one message that names file and key, and nothing is made.


@pytest.mark.parametrize(
    ("before", "after", "parts"),
    [
        (
            "figure =",
            "figur =",
            ["small.toml: figure: got nothing", "small.toml: figur: got an unknown key", "paper-values"],
        ),
        ('title = "Two', "title = [", ["small.toml: got a file that cannot be read"]),
        ('title = "Two methods on digits"', "title = 3", ["title: got 3", "string"]),
        ('metrics = ["auc", "loss"]', "metrics = []", ["metrics", "at least 1"]),
        ('metrics = ["auc", "loss"]', 'metrics = ["f1"]', ["'small': metrics: got 'f1'", "auc"]),
        ("clients = 2", "clients = 0", ["clients: got 0"]),
        ("clients = 2", 'scale = "cubic"', ["scale: got 'cubic'", "linear"]),
        ("clients = 2", 'x = "epoch"', ["x[0]: got 'epoch'", "round"]),
        ("clients = 2", "x = []", ["x: got []"]),
        ("clients = 2", 'x = ["round", "round"]', ["x: got round, round", "each once"]),
        ("clients = 2", 'x = ["round", "clients"]', ["x: got round, clients", "clients only alone"]),
        ("clients = 2", 'x-label = ["a", "b"]', ["x-label: got a, b", "as many as x has, 1, or none"]),
        ("[profiles.quick]", "[profiles.fast]", ["profiles.fast", "smoke"]),
        ("minutes = 0.1", "minutes = -1", ["profiles.smoke.minutes: got -1"]),
        ("minutes = 0.1\n", "", ["profiles.smoke.minutes: got nothing"]),
        ("fedx.gamma = 0.5", "fedx.gamma = 5.0", ["'small', FedX", "fedx.gamma", "got 5.0"]),
        ("fedx.gamma = 0.5", "fedx.gama = 0.5", ["fedx.gama", "unknown", "'fedx.gamma'"]),
        ("fedx.gamma = 0.5", "fedx.gamma = [0.5, 1]", ["config: fedx.gamma: got [0.5, 1]", "axes"]),
        ("fedx.gamma = 0.5", "seed = 3", ["config: seed: got 3, allowed: none, since the command sets it"]),
        (
            "learning-rate = 0.3",
            'output-dir = "x"',
            ["runs[1]: output-dir: got 'x', allowed: none, since the command sets it"],
        ),
        ("learning-rate = 0.3", "learning-rate = [0.3]", ["runs[1]: learning-rate: got [0.3]", "axes"]),
        ("learning-rate = 0.3", "axis = 3", ["Local SGD digits K = 1: axis", "unknown"]),
        ("learning-rate = 0.3", 'engine = "ray"', ["runs[1].engine: got 'ray'"]),
        ("learning-rate = 0.3", 'engine = "nonfederated"', ["Local SGD digits K = 1: strategy: got 'local-sgd'"]),
        ("learning-rate = 0.3", 'engine = "nonfederated"\nclients = 3', ["runs[1]: clients: got 3", "leave it out"]),
        ("learning-rate = 0.3", "axes.steps = [{ local-steps = 1 }]", ["runs[1].axes.steps[0].at: got nothing"]),
        ("learning-rate = 0.3", "axes.steps = 3", ["runs[1].axes.steps: got 3", "list"]),
        ("learning-rate = 0.3", "axes.local-step = [3]", ["Local SGD digits K = 1, local-step = 3", "local-step:"]),
        ("learning-rate = 0.3", "profiles.fast = {}", ["runs[1].profiles.fast"]),
        ('name = "Local SGD"', 'name = "FedX"', ["which would both be curve 'FedX 1'", "'FedX digits K = 1'"]),
        ('name = "Local SGD"', 'name = "Fed X"\npaper-values = 3', ["paper-values"]),
        ("K = 2 }, local", "K = 1 }, local", ["would both be curve"]),
        ('name = "Local SGD"', 'name = "Fedx"', ["one run directory, fedx_digits_k-1_seed-0", "'Fedx digits K = 1'"]),
        ('curve = "{method} {K}"', 'curve = "{method} {k}"', ["curve: got {k}", "coordinate"]),
        ('curve = "{method} {K}"', 'panel = "{}"', ["panel: got {}"]),
        ("only = { K = [1] }", "only = { K = [3] }", ["profiles.smoke.only.K: got 3, allowed: 1, 2"]),
        ("only = { K = [1] }", "only = { P = [3] }", ["profiles.smoke.only.P: got 3", "no such coordinate"]),
        ("only = { K = [1] }", "only = { K = [] }", ["profiles.smoke.only.K"]),
        (
            "at = { K = 2 }\nmean",
            "at = { K = 3 }\nmean",
            ["paper-values[0]: got method = FedX, K = 3, which no run has"],
        ),
        ("mean = 0.75", 'mean = 0.75\nmetric = "accuracy"', ["paper-values[0].metric: got 'accuracy'", "auc, loss"]),
        ('title = "Two', 'differs = [""]\ntitle = "Two', ["differs[0]: got ''"]),
        ("minutes = 0.1", 'minutes = 0.1\ndiffers = "less"', ["profiles.smoke.differs: got 'less'", "list"]),
        ("std = 0.01", "sd = 0.01", ["paper-values[0].sd: got an unknown key"]),
        ('strategy = "fedx1"', 'dataset = "w8a"', ["'small' reads files of w8a", "--data-dir"]),
        ('strategy = "fedx1"', 'data-dir = "tables"', ["'small' reads files of digits", "--data-dir"]),
    ],
)
def test_a_wrong_file_is_one_line(
    command: Line, runs: Runs, tmp_path: Path, before: str, after: str, parts: list[str]
) -> None:
    path = write(tmp_path, (before, after))
    code, out, err = command("reproduce", path, "--out", tmp_path / "out", "--profile", "smoke")
    assert (code, out) == (1, "")
    assert err.startswith("error: ")
    assert len(err.splitlines()) == 1
    assert [part for part in parts if part not in err] == []
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["fedsgda-figure1"], ["'fedsgda-figure1'", "did you mean 'fedsgda-fig1'", ".toml"]),
        (["nowhere.toml"], ["nowhere.toml: got a file that cannot be read (No such file"]),
        (["SMALL", "--profile", "full"], ["--profile: got 'full'", "'small': smoke, quick"]),
        (["SMALL", "--data-dir", "/nowhere"], ["--data-dir: got /nowhere, which does not exist"]),
    ],
)
def test_a_wrong_argument_is_one_line(
    command: Line, runs: Runs, tmp_path: Path, arguments: list[str], parts: list[str]
) -> None:
    path = write(tmp_path)
    given = [str(path) if argument == "SMALL" else argument for argument in arguments]
    code, out, err = command("reproduce", *given, "--out", tmp_path / "out")
    assert (code, out, len(err.splitlines())) == (1, "", 1)
    assert [part for part in parts if part not in err] == []


def test_two_papers_values_for_one_row(tmp_path: Path) -> None:
    changes = ("std = 0.01", 'std = 0.01\n[[paper-values]]\nmethod = "FedX"\nmean = 0.5')
    with pytest.raises(
        ConfigError, match=r"paper-values\[1\].*got a second value of the paper for 'FedX digits K = 2'"
    ):
        expanded(tmp_path, changes)


# Running: what workers do is done here, and a run is a directory with the AUCs that a test wants.

Aucs = Callable[[Mapping[str, Any]], Sequence[float] | str]


class Runs:
    """Stands in for the processes: writes run directories, and remembers which."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.aucs: Aucs = lambda config: (0.5, 0.6, 0.7 + 0.1 * config["seed"])
        self.interrupt_after = 1000

    def __call__(self, tasks: Sequence[Task], jobs: int, ended: Callable[[Task, str], None]) -> None:
        for task in tasks:
            if len(self.names) == self.interrupt_after:
                raise KeyboardInterrupt
            self.names.append(task.name)
            assert sorted(task.metrics) == ["auc", "loss"]
            path = Path(str(task.config["output-dir"])) / task.name
            found = self.aucs(task.config)
            if isinstance(found, str):
                fake(path, task.config, clients=None)
                ended(task, found)
            else:
                fake(path, task.config, tuple(found), clients=task.clients)
                ended(task, "")


def not_drawn(expansion: Expansion, records: Mapping[str, RunRecord], folder: Path) -> None:
    if records:
        (folder / "curves.png").write_text(" ".join(records))
        (folder / "curves.svg").write_text(f"<svg><desc>{len(records)} runs</desc></svg>")


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> Runs:
    stand_in = Runs()
    monkeypatch.setattr("simulations.reproduce.run_all", stand_in)
    monkeypatch.setattr("simulations.reproduce.draw", not_drawn)  # takes half a second
    return stand_in


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Line:
    return Line(monkeypatch, capfd)


def table(out: Path) -> list[dict[str, str]]:
    return list(csv.DictReader((out / "table.csv").read_text().splitlines()))


def test_what_a_reproduction_leaves(command: Line, runs: Runs, tmp_path: Path) -> None:
    out = tmp_path / "out"
    code, told, err = command("reproduce", write(tmp_path), "--out", out)
    assert code == 0
    assert sorted(path.name for path in out.iterdir()) == [
        ".lock",
        "curves.png",
        "curves.svg",
        "experiment.toml",
        "report.html",
        "runs",
        "table.csv",
        "table.md",
    ]
    assert len(err.splitlines()) == 8
    assert err.splitlines()[0] == "1/8  finished  FedX  digits  K = 1  seed 0  auc 0.7000  9.0 s"
    assert err.splitlines()[-1].startswith("8/8  finished  Local SGD  digits  K = 2  seed 1  auc 0.8000")
    found = table(out)
    assert list(found[0]) == [
        "experiment",
        "dataset",
        "method",
        "setting",
        "metric",
        "mean",
        "std",
        "seeds",
        "not_finite",
        "paper",
        "paper_std",
        "paper_source",
        "tail_mean",
        "tail_std",
    ]
    assert [(row["method"], row["setting"], row["metric"]) for row in found[:3]] == [
        ("FedX", "K = 1", "auc"),
        ("FedX", "K = 1", "loss"),
        ("FedX", "K = 2", "auc"),
    ]
    assert [row["seeds"] for row in found] == ["2"] * 8
    assert float(found[0]["mean"]) == pytest.approx(0.75)
    assert float(found[0]["std"]) == pytest.approx(0.1 / 2**0.5)
    assert (found[2]["paper"], found[2]["paper_std"], found[2]["paper_source"]) == ("0.75", "0.01", "Table 9")
    assert (found[0]["paper"], found[0]["paper_source"]) == ("", "")
    lines = told.splitlines()
    assert lines[0].split("  ")[0] == "data set"
    assert "0.7500 ± 0.0707" in lines[1]
    assert lines[-1] == f"table.csv, table.md, report.html, curves.png, curves.svg: in {out}"
    assert (out / "curves.png").read_text().split() == runs.names


def test_the_table_for_people(command: Line, runs: Runs, tmp_path: Path) -> None:
    command("reproduce", write(tmp_path, ('figure = "Table 9"', 'figure = "Table|9"')), "--out", tmp_path / "out")
    lines = (tmp_path / "out" / "table.md").read_text().splitlines()
    assert lines[0] == "# Two methods on digits"
    assert lines[2] == "A paper, Table|9. Experiment `small`, profile `quick`, 2 seeds."
    assert lines[4].split(" | ")[1:4] == ["method", "setting", "metric"]
    assert lines[8].split(" | ")[1:] == [
        "FedX",
        "K = 2",
        "auc",
        "0.7500 ± 0.0707",
        "0.7500 ± 0.0707",
        "2",
        "0.7500 ± 0.0100",
        "Table\\|9 |",
    ]
    assert "not of profile `quick`" in lines[-1]


def test_columns_that_say_nothing_are_left_out(command: Line, runs: Runs, tmp_path: Path) -> None:
    path = write(tmp_path)
    path.write_text(path.read_text().partition("[[paper-values]]")[0])
    command("reproduce", path, "--out", tmp_path / "out", "--seeds", 1)
    lines = (tmp_path / "out" / "table.md").read_text().splitlines()
    assert lines[4] == "| data set | method | setting | metric | last round | last tenth | seeds |"
    assert "| 0.7000 | 0.7000 | 1 |" in lines[6]
    assert lines[-1].startswith("Mean ± sample standard deviation")
    assert {row["std"] for row in table(tmp_path / "out")} == {""}


def test_the_copy_of_the_file_says_what_was_run_and_can_be_run(command: Line, runs: Runs, tmp_path: Path) -> None:
    out = tmp_path / "out"
    command("reproduce", write(tmp_path), "--out", out, "--seeds", 1, "--data-dir", tmp_path)
    copy = tomllib.loads((out / "experiment.toml").read_text())
    assert copy["reproduced"] == {"profile": "quick", "seeds": 1, "data-dir": str(tmp_path)}
    before, again = (
        expand(read_experiment(path), "quick") for path in (tmp_path / "small.toml", out / "experiment.toml")
    )
    assert [run.name for run in again.runs] == [run.name for run in before.runs]
    assert [run.config for run in again.runs] == [run.config for run in before.runs]
    assert again.experiment.name == "small"
    assert list(again.paper) == list(before.paper)


def test_json_is_the_rows_and_nothing_else(command: Line, runs: Runs, tmp_path: Path) -> None:
    code, out, err = command("reproduce", write(tmp_path), "--out", tmp_path / "out", "--json", "--quiet")
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert (found["experiment"], found["profile"], found["seeds"], found["failed"]) == ("small", "quick", 2, {})
    assert [str(row["mean"]) for row in found["rows"]] == [row["mean"] for row in table(tmp_path / "out")]


def test_quiet(command: Line, runs: Runs, tmp_path: Path) -> None:
    assert command("reproduce", write(tmp_path), "--out", tmp_path / "out", "--quiet") == (0, "", "")


def test_a_failed_run_is_told_and_the_others_are_there(command: Line, runs: Runs, tmp_path: Path) -> None:
    def aucs(config: Mapping[str, Any]) -> Sequence[float] | str:
        return "the model has\ndiverged" if (config["strategy"], config["seed"]) == ("fedx1", 1) else (0.5, 0.6)

    runs.aucs = aucs
    out = tmp_path / "out"
    code, told, err = command("reproduce", write(tmp_path), "--out", out)
    assert code == 1
    assert "1 of 2" in told
    assert [line.split("  ")[1] for line in err.splitlines()[:-1]].count("failed") == 2
    assert err.splitlines()[-1] == (
        "error: 2 of 8 runs failed; the first, fedx_digits_k-1_seed-1: the model has diverged"
    )
    assert [row["seeds"] for row in table(out)] == ["1"] * 4 + ["2"] * 4
    assert "- FedX  digits  K = 2  seed 1: the model has diverged" in (out / "table.md").read_text()
    assert read_run(out / "runs" / "fedx_digits_k-1_seed-1").reason == "the model has\ndiverged"
    code, told, err = command("reproduce", write(tmp_path), "--out", out, "--json", "--quiet")
    assert code == 1
    assert list(json.loads(told)["failed"]) == ["fedx_digits_k-1_seed-1", "fedx_digits_k-2_seed-1"]
    assert len(err.splitlines()) == 1


def test_when_all_fail_there_is_no_figure(command: Line, runs: Runs, tmp_path: Path) -> None:
    runs.aucs = lambda config: "no"
    code, told, _ = command("reproduce", write(tmp_path), "--out", tmp_path / "out")
    assert code == 1
    assert not list((tmp_path / "out").glob("curves.*"))
    assert told.splitlines()[-1].startswith("table.csv, table.md, report.html: in ")


# What is kept.


def test_finished_runs_are_not_run_again(command: Line, runs: Runs, tmp_path: Path) -> None:
    out, path = tmp_path / "out", write(tmp_path)
    command("reproduce", path, "--out", out, "--seeds", 1)
    unfinished, failed, *kept = (out / "runs" / name for name in runs.names)
    (unfinished / "result.json").unlink()
    (failed / "failure.json").write_text('{"reason": "diverged"}')
    (failed / "trace").touch()
    tables = (out / "table.csv").read_text()
    written = [(run / "result.json").stat().st_mtime_ns for run in kept]
    runs.names.clear()
    code, _, err = command("reproduce", path, "--out", out, "--seeds", 1)
    assert code == 0
    assert runs.names == [unfinished.name, failed.name]
    assert [line.split()[0] for line in err.splitlines()] == ["3/4", "4/4"]
    assert not (failed / "trace").exists()
    assert [(run / "result.json").stat().st_mtime_ns for run in kept] == written
    assert (out / "table.csv").read_text() == tables
    runs.names.clear()
    command("reproduce", path, "--out", out, "--seeds", 2)
    assert [name.endswith("seed-1") for name in runs.names] == [True] * 4


def test_a_moved_directory_and_moved_data_are_the_same(command: Line, runs: Runs, tmp_path: Path) -> None:
    path = write(tmp_path)
    command("reproduce", path, "--out", tmp_path / "a", "--seeds", 1, "--data-dir", tmp_path)
    (tmp_path / "a").rename(tmp_path / "b")
    (tmp_path / "data").mkdir()
    runs.names.clear()
    code, *_ = command("reproduce", path, "--out", tmp_path / "b", "--seeds", 1, "--data-dir", tmp_path / "data")
    assert (code, runs.names) == (0, [])


@pytest.mark.parametrize(
    ("name", "changes", "profile", "parts"),
    [
        ("other", (), "quick", ["holds experiment 'small', profile 'quick', allowed: 'other', 'quick'"]),
        ("small", (), "smoke", ["holds experiment 'small', profile 'quick', allowed: 'small', 'smoke'"]),
        (
            "small",
            (("learning-rate = 0.3", "learning-rate = 0.2"),),
            "quick",
            ["local-sgd_", "another learning-rate, allowed"],
        ),
        ("small", (("learning-rate = 0.3", "clients = 3"),), "quick", ["another learning-rate, clients, allowed"]),
        (
            "small",
            (("learning-rate = 0.3", 'learning-rate = 0.3\nengine = "centralized"'),),
            "quick",
            ["another engine"],
        ),
    ],
)
def test_another_s_directory_is_refused(
    command: Line,
    runs: Runs,
    tmp_path: Path,
    name: str,
    changes: tuple[tuple[str, str], ...],
    profile: str,
    parts: list[str],
) -> None:
    out = tmp_path / "out"
    command("reproduce", write(tmp_path), "--out", out)
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    runs.names.clear()
    path = write(tmp_path, *changes, name=name)
    code, told, err = command("reproduce", path, "--out", out, "--profile", profile)
    assert (code, told, runs.names) == (1, "", [])
    assert len(err.splitlines()) == 1
    assert [part for part in [*parts, "choose another", str(out)] if part not in err] == []
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before


def test_a_directory_of_something_else_is_refused(command: Line, runs: Runs, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.tex").touch()
    code, _, err = command("reproduce", write(tmp_path), "--out", tmp_path / "out")
    assert code == 1
    assert "is not empty and holds no reproduction" in err
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["thesis.tex"]
    code, _, err = command("reproduce", write(tmp_path), "--out", tmp_path / "out" / "thesis.tex")
    assert (code, len(err.splitlines())) == (1, 1)
    assert "which cannot be created" in err


def test_two_at_once_are_refused(command: Line, runs: Runs, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with Reproduction(expanded(tmp_path), out).open():
        code, _, err = command("reproduce", write(tmp_path), "--out", out)
        assert (code, "another process" in err) == (1, True)
    assert command("reproduce", write(tmp_path), "--out", out)[0] == 0


def test_ctrl_c_keeps_and_shows_what_has_finished(command: Line, runs: Runs, tmp_path: Path) -> None:
    runs.interrupt_after = 3
    out = tmp_path / "out"
    code, told, err = command("reproduce", write(tmp_path), "--out", out)
    assert (code, told) == (130, "")
    assert err.splitlines()[-1] == "interrupted: 3 of 8 runs have finished; the same command goes on"
    assert [row["seeds"] for row in table(out)] == ["1"] * 6 + ["0"] * 2
    assert "5 runs not made yet" in (out / "table.md").read_text()
    assert (out / "curves.png").read_text().split() == runs.names
    done, runs.interrupt_after = list(runs.names), 1000
    assert command("reproduce", write(tmp_path), "--out", out)[0] == 0
    assert len(runs.names) == 8
    assert set(runs.names[3:]) & set(done) == set()


def test_runs_on_the_same_data_follow_each_other(command: Line, runs: Runs, tmp_path: Path) -> None:
    path = write(tmp_path, ("[axes]", '[axes]\ndataset = ["digits", "breast-cancer"]'))
    command("reproduce", path, "--out", tmp_path / "out")
    assert len(runs.names) == 16
    data = [(name.split("_")[1], name[-1]) for name in runs.names]
    assert len(list(dict.fromkeys(data))) == 4
    assert data == sorted(data, key=list(dict.fromkeys(data)).index)
    assert [seed for _, seed in data] == ["0"] * 8 + ["1"] * 8


# Numbers and curves.


@pytest.mark.parametrize(
    ("curve", "mean"),
    [
        ([9.0], 9.0),
        ([9.0, 1.0], 1.0),
        ([9.0, 5.0, 1.0], 1.0),
        ([99.0, *range(1, 11)], 10.0),
        ([99.0, *range(1, 12)], 10.5),
        ([99.0, *range(1, 31)], 29.0),
    ],
)
def test_the_tail_is_the_last_tenth_of_the_evaluated_rounds(curve: list[float], mean: float) -> None:
    assert tail(curve) == mean


def finished(expansion: Expansion, out: Path, aucs: Callable[[int], Sequence[float]]) -> dict[str, RunRecord]:
    """Records of fake runs, by name."""
    return {
        run.name: read_run(fake(out / run.name, placed(run.config, out / run.name), tuple(aucs(run.seed)), clients=2))
        for run in expansion.runs
    }


def test_the_tail_is_averaged_a_seed_first(tmp_path: Path) -> None:
    expansion = expanded(tmp_path, profile="smoke", seeds=2)
    records = finished(expansion, tmp_path, lambda seed: [0, *[0.5] * 18, *((0.2, 0.4) if seed else (0.6, 1.0))])
    first = rows(expansion, records)[0]
    assert (first.mean, first.std) == (pytest.approx(0.7), pytest.approx(0.6 / 2**0.5))
    assert (first.tail_mean, first.tail_std) == (pytest.approx(0.55), pytest.approx(0.5 / 2**0.5))


@pytest.mark.parametrize("diverged", [math.nan, math.inf])
def test_a_metric_that_is_not_finite_in_one_seed_has_no_mean(tmp_path: Path, diverged: float) -> None:
    expansion = expanded(tmp_path, profile="smoke", seeds=3)
    records = finished(expansion, tmp_path, lambda seed: [0.5, diverged if seed == 1 else 0.7])
    found = rows(expansion, records)
    assert math.isnan(found[0].mean or 0.0)
    assert math.isnan(found[0].tail_mean or 0.0)
    assert (found[0].std, found[0].tail_std, found[0].seeds, found[0].not_finite) == (None, None, 3, 1)
    assert pair(found[0]) == "nan (1 of 3 seeds not finite)"
    assert "nan (1 of 3 seeds not finite)" in as_text(expansion, found)


@pytest.mark.parametrize(
    ("x", "expected"),
    [
        ("round", [0, 1, 2]),
        ("iteration", [0, 2, 4]),
        ("seconds", [0.5, 1.0, 1.5]),
        ("megabytes", [4e-5, 8e-5, 1.2e-4]),
    ],
)
def test_the_x_axis(tmp_path: Path, x: str, expected: list[float]) -> None:
    expansion = expanded(tmp_path, ("clients = 2", f'clients = 2\nx = "{x}"'))
    curves = panels(expansion, finished(expansion, tmp_path, lambda seed: (0.5, 0.6, 0.7 + 0.2 * seed)), x)["digits"]
    assert [curve.label for curve in curves] == ["FedX 1", "FedX 2", "Local SGD 1", "Local SGD 2"]
    np.testing.assert_allclose(curves[1].x, expected)
    np.testing.assert_allclose(curves[1].mean, [0.5, 0.6, 0.8])
    np.testing.assert_allclose(curves[1].high - curves[1].low, [0, 0, 2 * 0.2 / 2**0.5], atol=1e-12)
    assert curves[1].seeds == 2


def test_all_panels_are_drawn_over_each_x_axis(tmp_path: Path) -> None:
    axes = 'clients = 2\npanel = "{method}"\nx = ["seconds", "round"]'
    expansion = expanded(tmp_path, ("clients = 2", axes))
    records = finished(expansion, tmp_path, lambda seed: (0.5, 0.6, 0.7))
    found = [panels(expansion, records, x) for x in ("seconds", "round")]
    figure = _figure(expansion, found)
    titles = [(shown.get_title(), shown.get_xlabel()) for shown in figure.axes]
    assert titles == [
        ("FedX", "seconds"),
        ("Local SGD", "seconds"),
        ("FedX", "communication round"),
        ("Local SGD", "communication round"),
    ]
    for shown, drawn in zip(figure.axes, [*found[0].values(), *found[1].values()], strict=True):
        assert [line.get_xdata().tolist() for line in shown.lines] == [curve.x.tolist() for curve in drawn]
    assert len({round(shown.get_position().y0, 2) for shown in figure.axes}) == 2  # one x axis below the other
    named = expanded(tmp_path, ("clients = 2", f'{axes}\nx-label = ["time", "epochs"]'))
    labels = [shown.get_xlabel() for shown in _figure(named, found).axes]
    assert labels == ["time", "time", "epochs", "epochs"]


def test_a_round_may_communicate_more_than_once(tmp_path: Path) -> None:
    changes = ("clients = 2", 'clients = 2\nx = "communication"'), ('"local-sgd"', '"local-sgd"\ncommunications = 2')
    expansion = expanded(tmp_path, *changes)
    curves = panels(expansion, finished(expansion, tmp_path, lambda seed: (0.5, 0.6, 0.7)), "communication")["digits"]
    assert [curve.x.tolist() for curve in curves] == [[0, 1, 2]] * 2 + [[0, 2, 4]] * 2


def test_seconds_are_those_of_training_where_they_are_known(tmp_path: Path) -> None:
    expansion = expanded(tmp_path, ("clients = 2", 'clients = 2\nx = "seconds"'))
    records = finished(expansion, tmp_path, lambda seed: (0.5, 0.6, 0.7))
    for record in records.values():
        for number, line in enumerate(record.lines):
            line["training_seconds"] = 0.25 * number
    assert records[expansion.runs[0].name].metrics.keys() == {"auc", *RANKING}
    np.testing.assert_allclose(panels(expansion, records, "seconds")["digits"][0].x, [0, 0.25, 0.75])


def test_numbers_of_clients_are_points_of_one_curve(tmp_path: Path) -> None:
    """The last evaluated round's values, in the order of the numbers."""
    changes = (
        ("clients = 2", 'clients = 2\nx = "clients"'),
        ('curve = "{method} {K}"', 'curve = "{method}"'),
        ("K = 1 }, local-steps = 1 }", "K = 1 }, local-steps = 1, clients = 8 }"),
    )
    expansion = expanded(tmp_path, *changes)
    records = finished(expansion, tmp_path, lambda seed: (0.5, 0.6, 0.7 + 0.2 * seed))
    del records["fedx_digits_k-1_seed-1"]
    fedx, local = panels(expansion, records, "clients")["digits"]
    assert (fedx.label, fedx.seeds, local.label, local.seeds) == ("FedX", 1, "Local SGD", 2)
    np.testing.assert_allclose([fedx.x, local.x], [[2, 8], [2, 8]])
    np.testing.assert_allclose([fedx.mean, local.mean], [[0.8, 0.7], [0.8, 0.8]])
    np.testing.assert_allclose(local.high - local.low, [2 * 0.2 / 2**0.5] * 2)
    np.testing.assert_allclose(fedx.high - fedx.low, [2 * 0.2 / 2**0.5, 0], atol=1e-12)
    draw(expansion, records, tmp_path)
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")
    assert _figure(expansion, [panels(expansion, records, "clients")]).axes[0].get_xlabel() == "number of clients"
    named = expanded(tmp_path, *changes, ('x = "clients"', 'x = "clients"\nx-label = "parties"'))
    assert _figure(named, [panels(named, records, "clients")]).axes[0].get_xlabel() == "parties"
    with pytest.raises(ConfigError, match="would both be curve 'FedX'"):
        expanded(tmp_path, *changes[:2])


def test_the_band_on_a_log_axis_stays_positive() -> None:
    mean, spread = np.array([1.0, 1.0, 0.0]), np.array([0.1, 5.0, 0.0])
    low, high = band(mean, spread, log=True)
    np.testing.assert_allclose(high, mean + spread)
    np.testing.assert_allclose(low[:2], [1 / 1.1, 1 / 6])
    assert low[2] == 0
    np.testing.assert_allclose(band(mean, spread, log=False)[0], [0.9, -4, 0])


def test_panels_share_an_axis_that_each_fills() -> None:
    def panel(low: float, high: float) -> list[Curve]:
        ends = np.array([low, high])
        return [Curve("", np.arange(2.0), ends, ends, ends, 1)]

    assert comparable([panel(0.5, 0.9), panel(0.6, 0.95), panel(0.5, 0.51), panel(0.4, 1.0)], log=False) == {0, 1, 3}
    decades = [panel(0.1, 10), panel(1e-2, 10), panel(1e-11, 10), panel(0, 10)]
    assert comparable(decades, log=True) == {0, 1}
    assert comparable(decades, log=False) == {0, 1, 2, 3}
    assert comparable([panel(0, 0)], log=True) == {0}


@pytest.mark.parametrize(
    ("values", "shown"),
    [
        ([0.5, 0.91, 0.93, 0.95], (0.91, 0.95)),  # the untrained model would take nine tenths of the axis
        ([0.5, 0.65, 0.8, 0.95], (0.5, 0.95)),
        ([0.5, 0.91, 0.95], (0.5, 0.95)),  # two points are no curve
        ([0.5, 0.9, 0.9, 0.9], (0.5, 0.9)),
    ],
)
def test_an_untrained_model_does_not_flatten_the_rest(
    tmp_path: Path, values: list[float], shown: tuple[float, float]
) -> None:
    expansion = expanded(tmp_path, ("[config]", 'x = "round"\npanel = "{dataset}"\n[config]'))
    figure = _figure(expansion, [panels(expansion, finished(expansion, tmp_path, lambda seed: values), "round")])
    low, high = figure.axes[0].get_ylim()
    margin = 0.05 * (shown[1] - shown[0])
    assert (low, high) == pytest.approx((shown[0] - margin, shown[1] + margin))


@pytest.mark.parametrize("diverged", [math.nan, math.inf])
def test_a_curve_of_one_seed_that_is_not_finite_somewhere_is_drawn(tmp_path: Path, diverged: float) -> None:
    expansion = expanded(tmp_path, profile="smoke", seeds=1)
    draw(expansion, finished(expansion, tmp_path, lambda seed: [0.5, 0.9, diverged, 0.95]), tmp_path)
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(("panel", "scale"), [("{dataset}", "log"), ("{method} {K} $", "linear"), ("{K}", "log")])
def test_figures_of_one_panel_and_of_several(tmp_path: Path, panel: str, scale: str) -> None:
    """Missing runs leave no hole, and the same results are the same file."""
    path = write(tmp_path, ("clients = 2", f'clients = 2\npanel = "{panel}"\nscale = "{scale}"'))
    expansion = expand(read_experiment(path), "quick")
    reproduction = Reproduction(expansion, tmp_path / "out")
    with reproduction.open():
        reproduction.write()
        assert not list((tmp_path / "out").glob("curves.*"))
        records = finished(expansion, tmp_path / "out" / "runs", lambda seed: (0.5, 0.6, 0.7 + 0.2 * seed))
        reproduction.records = {name: record for name, record in records.items() if "fedx_digits_k-1" not in name}
        reproduction.write()
        first = (tmp_path / "out" / "curves.svg").read_bytes()
        reproduction.write()
    assert (tmp_path / "out" / "curves.svg").read_bytes() == first
    assert b"<svg" in first
    assert (tmp_path / "out" / "curves.png").read_bytes().startswith(b"\x89PNG")
    assert (
        len(panels(expansion, reproduction.records, "round")) == {"{dataset}": 1, "{method} {K} $": 3, "{K}": 2}[panel]
    )


# Vertical learning, without processes.

VERTICAL = """
title = "Parties, and one place"
paper = "A paper"
figure = "Table 9"
clients = 3
metrics = ["accuracy", "objective"]
curve = "{method}"

[config]
strategy = "vfb2-svrg"
dataset = "breast-cancer"
learning-rate = 0.05
num-server-rounds = 3
evaluate-every = 2
checkpoint-every = 0

[profiles.smoke]
minutes = 0.1
seeds = 2

[[runs]]
name = "NonF"
engine = "nonfederated"

[[runs]]
name = "VFB-SVRG"
vfb2.synchronous = true
"""


def in_this_process(tasks: Sequence[Task], jobs: int, ended: Callable[[Task, str], None]) -> None:
    for one in tasks:
        ended(one, _reason(one))


@slow
def test_the_reference_of_vertical_learning_is_run_and_kept(
    command: Line, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Twice is the same table, bit for bit; and a reference is told from a federation."""
    monkeypatch.setattr("simulations.reproduce.run_all", in_this_process)
    path = tmp_path / "vertical.toml"
    path.write_text(VERTICAL)
    for name in "ab":
        assert command("reproduce", path, "--out", tmp_path / name, "--profile", "smoke")[0] == 0
    first, again = ((tmp_path / name / "table.csv").read_bytes() for name in "ab")
    assert first == again
    found = table(tmp_path / "a")
    assert [(row["method"], row["metric"], row["seeds"]) for row in found] == [
        (method, metric, "2") for method in ("NonF", "VFB-SVRG") for metric in ("accuracy", "objective")
    ]
    assert all(float(row["mean"]) > 0.9 for row in found[::2])
    record = read_run(tmp_path / "a" / "runs" / "nonf_breast-cancer_seed-1")
    assert (record.result["engine"], record.result["clients"]) == ("nonfederated", 1)
    assert list(record.curve("accuracy")) == [0, 2, 3]
    code, _, err = command("reproduce", path, "--out", tmp_path / "a", "--profile", "smoke")
    assert (code, err) == (0, "")
    path.write_text(VERTICAL.replace('engine = "nonfederated"', "clients = 1"))
    code, _, err = command("reproduce", path, "--out", tmp_path / "a", "--profile", "smoke")
    assert code == 1
    assert "another engine, allowed: the same; choose another directory" in err


def smoke(command: Line, monkeypatch: pytest.MonkeyPatch, name: str, out: Path) -> list[dict[str, str]]:
    """Every run of a packaged experiment at its smallest; the rows of its table."""
    monkeypatch.setattr("simulations.reproduce.run_all", in_this_process)
    code, _, err = command("reproduce", name, "--out", out, "--profile", "smoke")
    assert code == 0, err
    return table(out)


@pytest.mark.parametrize("name", ["vfb2-fig2", "vfb2-fig34"])
def test_the_minimum_a_smoke_is_measured_from_does_not_hang_on_rounding(name: str) -> None:
    line = expand(find_experiment(name), "smoke").lines[0]
    config = parse_run_config(line.config)
    vfb2, data = settings_of(config), vertical_data(config, line.clients)
    objective = make_objective(vfb2.problem, vfb2.factor)
    noise = np.random.default_rng(0).standard_normal((8, *data.train_features.shape))
    rows = [data.train_features, *data.train_features * (1.0 + 1e-12 * noise)]
    found = [minimum(features, data.train_labels, objective)[1] for features in rows]
    np.testing.assert_allclose(found, found[0], rtol=1e-9)


@slow
@pytest.mark.parametrize("name", packaged())
def test_the_smoke_of_every_packaged_experiment(
    command: Line, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str
) -> None:
    """That it runs on bundled data; it measures nothing."""
    found = smoke(command, monkeypatch, name, tmp_path)
    expansion = expand(find_experiment(name), "smoke")
    metrics = expansion.experiment.metrics
    wanted = sorted((line.method, line.setting, metric) for line in expansion.lines for metric in metrics)
    assert sorted((row["method"], row["setting"], row["metric"]) for row in found) == wanted
    assert {row["seeds"] for row in found} == {str(expansion.seeds)}
    assert all(np.isfinite(float(row["mean"])) for row in found)
    told = (tmp_path / "table.md").read_text("utf-8")
    page = (tmp_path / "report.html").read_text("utf-8")
    for line in expansion.lines:
        assert line.method in told
        assert html.escape(line.method) in page
    assert "Failed runs" not in told
    assert "<svg" in page
    assert (tmp_path / "curves.png").stat().st_size > 1000


@slow
@pytest.mark.parametrize("name", ["composite-fig2", "fedx-fig2"])
def test_the_same_experiment_twice_is_the_same_table(
    command: Line, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str
) -> None:
    for out in ("first", "second"):
        smoke(command, monkeypatch, name, tmp_path / out)
    first, second = ((tmp_path / out / "table.csv").read_bytes() for out in ("first", "second"))
    assert first == second
    assert len({row["mean"] for row in table(tmp_path / "first")}) > 1


# Processes.

# Models that end a worker's process, fail, or tell the process that they ran in.
MODELS = """
import os
import pathlib
import time
from torch import nn

HERE = pathlib.Path(__file__).parent

def killer(shape):
    os.kill(os.getpid(), 9)

def leaver(shape):
    os._exit(3)

def failing(shape):
    raise RuntimeError("no such network")

def telling(shape):
    with (HERE / "pids").open("a") as file:
        file.write(f"{os.getpid()} ")
    return nn.Linear(shape[0], 1)

def meeting(shape):
    "Waits for another process that builds it."
    telling(shape)
    for _ in range(3000):
        if len(set((HERE / "pids").read_text().split())) == 2:
            return nn.Linear(shape[0], 1)
        time.sleep(0.01)
    raise RuntimeError("nobody came")
"""


def task(folder: Path, name: str, model: str, data: str = "", metrics: tuple[str, ...] = ("auc", "loss")) -> Task:
    config = {"strategy": "local-sgd", "num-server-rounds": 1, "local-steps": 1, "checkpoint-every": 0}
    place = {"output-dir": str(folder), "run-name": name}
    return Task(name, "in-process", 2, {**config, "model": model, **place}, metrics, data)


@pytest.fixture
def networks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[int]]:
    """`MODELS` can be imported; returns what gives the processes that told."""
    (tmp_path / "networks.py").write_text(MODELS)
    monkeypatch.syspath_prepend(tmp_path)
    return lambda: [int(pid) for pid in dict.fromkeys((tmp_path / "pids").read_text().split())]


def ran(tasks: Sequence[Task], jobs: int) -> dict[str, str]:
    """The reasons, in the order in which the tasks ended."""
    reasons: dict[str, str] = {}
    run_all(tasks, jobs, lambda task, reason: reasons.update({task.name: reason}))
    return reasons


def test_one_that_dies_takes_no_other_with_it(tmp_path: Path, networks: Callable[[], list[int]]) -> None:
    reasons = ran([task(tmp_path, "a", "networks:killer"), task(tmp_path, "b", "networks:telling")], jobs=2)
    assert reasons == {"a": "the run's process ended: killed by SIGKILL (out of memory?)", "b": ""}
    assert read_run(tmp_path / "b").status == "finished"
    (process,) = networks()
    assert not Path(f"/proc/{process}").exists()


@slow
def test_runs_on_the_same_data_share_a_process(tmp_path: Path, networks: Callable[[], list[int]]) -> None:
    reasons = ran(
        [
            task(tmp_path, "a1", "networks:telling", "a"),
            task(tmp_path, "left", "networks:leaver", "a"),
            task(tmp_path, "b1", "networks:telling", "b"),
            task(tmp_path, "a2", "networks:telling", "a", ("auc", "gap")),
            task(tmp_path, "b2", "networks:failing", "b"),
        ],
        jobs=1,
    )
    assert list(reasons) == ["a1", "left", "b1", "b2", "a2"]
    assert reasons["left"] == "the run's process ended: exit code 3"
    assert reasons["a2"].startswith("the run has no metric gap, only auc, ")
    assert read_run(tmp_path / "a2").facts["rounds"] == 0
    assert "no such network" in reasons["b2"]
    assert len(networks()) == 3


@slow
def test_two_run_at_once(tmp_path: Path, networks: Callable[[], list[int]]) -> None:
    assert set(ran([task(tmp_path, name, "networks:meeting") for name in "ab"], jobs=2).values()) == {""}
    assert len(networks()) == 2


# The command, as a user has it.


def gone(group: int) -> bool:
    """Whether a group's processes end within some seconds."""
    for _ in range(50):
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.1)
    return False


def reproduce(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "simulations", "reproduce", *map(str, arguments)]


@slow
def test_the_command(tmp_path: Path) -> None:
    """Its runs are those of `run` and `centralized`, bit for bit; --json is all of stdout."""
    path = write(tmp_path, ("learning-rate = 0.3", 'engine = "centralized"'))
    command = reproduce(path, "--out", tmp_path / "out", "--profile", "smoke", "--json")
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert [row["seeds"] for row in json.loads(done.stdout)["rows"]] == [1] * 4
    assert len(done.stderr.splitlines()) == 2
    shared = 'model="linear" num-server-rounds=1 local-steps=1 checkpoint-every=0 fedx.gamma=0.5'
    for name, engine, strategy in (("fedx", "run", "fedx1"), ("local-sgd", "centralized", "local-sgd")):
        plain = tmp_path / engine
        command = [sys.executable, "-m", "simulations", engine, "--out", str(plain), "--clients", "2", "--quiet"]
        subprocess.run([*command, "-c", f'{shared} strategy="{strategy}"'], cwd=ROOT, check=True)
        assert (
            Written(tmp_path / "out" / "runs" / f"{name}_digits_k-1_seed-0").model_bytes == Written(plain).model_bytes
        )


def interrupted(command: Sequence[str], out: Path, early: bool) -> int:
    """Ctrl-C while the processes start, or after the first run; returns how many runs have finished."""
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        try:
            assert process.stderr is not None
            while early and not (out / "experiment.toml").exists():
                time.sleep(0.05)
            time.sleep(0.5 if early else 0)
            first = "" if early else process.stderr.readline()
            os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to all processes of the command
            told, err = process.communicate(timeout=60)
            assert early or "finished" in first
            assert (process.returncode, told) == (130, ""), err
            assert "Traceback" not in err
            assert err.splitlines()[-1].startswith("interrupted: ")
            assert gone(process.pid)
        finally:
            process.kill()
    return len(list(out.glob("runs/*/result.json")))


@slow
def test_ctrl_c_leaves_no_process_and_the_same_command_goes_on(tmp_path: Path) -> None:
    out = tmp_path / "out"
    path = write(tmp_path, ("num-server-rounds = 2\n", "num-server-rounds = 60\nevaluate-every = 60\n"))
    command = reproduce(path, "--out", out, "--jobs", 2)
    assert interrupted(command, out, early=True) == 0
    assert 1 <= interrupted(command, out, early=False) < 8
    results = {path: path.stat().st_mtime_ns for path in out.glob("runs/*/result.json")}
    done = subprocess.run([*command, "--quiet"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert len(list(out.glob("runs/*/result.json"))) == 8
    assert {path: path.stat().st_mtime_ns for path in results} == results
    assert [row["seeds"] for row in table(out)] == ["2"] * 8
