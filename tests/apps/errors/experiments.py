"""Errors of ``reproduce``: the experiment's name, its file, and the directory."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any
from unittest.mock import patch

from simulations.expansion import expand
from simulations.experiment import read_experiment
from simulations.flower import run_with_flower
from simulations.reproduce import Reproduction
from simulations.workers import _check_metrics
from tests.apps.errors.row import Row, Says, called, command

PAGE = "docs/simulations.md"
SMALL = """
title = "Two methods on digits"
paper = "A paper"
figure = "Table 9"
clients = 2
metrics = ["auc"]
curve = "{method} {K}"

[config]
model = "linear"
num-server-rounds = 1
local-steps = 1

[profiles.quick]
minutes = 0.1
seeds = 1

[axes]
steps = [{ at = { K = 1 }, local-steps = 1 }, { at = { K = 2 }, local-steps = 2 }]

[[runs]]
name = "FedX"
strategy = "fedx1"

[[runs]]
name = "Local SGD"
strategy = "local-sgd"
"""


def changed(*changes: tuple[str, str]) -> str:
    """`SMALL` with some texts replaced; the first change may add text to its end."""
    text = SMALL
    for before, after in changes:
        assert before == "" or text.count(before) == 1, before
        text = text.replace(before, after) if before else text + after
    return text


def reproduce(name: str, *changes: tuple[str, str], says: Says, options: tuple[str, ...] = (), **more: Any) -> Row:
    files = {"small.toml": changed(*changes), **more.pop("files", {})}
    arguments = ("reproduce", "{tmp}/small.toml", "--out", "{out}", "--quiet", *options)
    return command(name, *arguments, says=says, files=files, **more)


def another(tmp: Path, finished: Path) -> None:
    shutil.copytree(finished, tmp / "run" / "runs" / "fedx_digits_k-1_seed-0")


def twice(tmp: Path) -> None:
    (tmp / "small.toml").write_text(SMALL)
    expansion = expand(read_experiment(tmp / "small.toml"), "quick")
    with Reproduction(expansion, tmp / "run").open(), Reproduction(expansion, tmp / "run").open():
        pass


def lacking(tmp: Path) -> None:
    _check_metrics(["auc", "rmse"], {"round": 1, "auc": 0.5})


def without_project(tmp: Path) -> None:
    with patch("simulations.flower.PROJECT", tmp):
        run_with_flower(2, {})


ROWS = [
    command(
        "near-miss experiment",
        "reproduce",
        "fedx-fig3",
        "--out",
        "{out}",
        says=("experiment", "got 'fedx-fig3'", "did you mean 'fedx-fig2'?", "`python -m simulations list experiments`"),
    ),
    command(
        "no such file of an experiment",
        "reproduce",
        "{tmp}/none.toml",
        "--out",
        "{out}",
        says=("{tmp}/none.toml", "No such file", "a TOML file", PAGE),
    ),
    command(
        "experiment that is not TOML",
        "reproduce",
        "{tmp}/bad.toml",
        "--out",
        "{out}",
        says=("{tmp}/bad.toml", "cannot be read", "a TOML file", PAGE),
        files={"bad.toml": "title = = 1"},
    ),
    command(
        "folder of data that is not there",
        "reproduce",
        "fedx-fig2",
        "--out",
        "{out}",
        "--data-dir",
        "{tmp}/none",
        says=("--data-dir", "{tmp}/none", "the folder of the data sets' files", "give the folder"),
    ),
    command(
        "no folder of data",
        "reproduce",
        "vfb2-table2",
        "--out",
        "{out}",
        "--profile",
        "full",
        says=("experiment 'vfb2-table2'", "reads files of", "docs/data.md", "--data-dir"),
    ),
    reproduce(
        "profile that the experiment lacks",
        says=("--profile", "got 'full'", "'small' has quick", "`python -m simulations list experiments`"),
        options=("--profile", "full"),
    ),
    # keys of the file
    reproduce(
        "field that is missing",
        ('title = "Two methods on digits"', ""),
        says=("title", "is missing", "expected a value", PAGE),
    ),
    reproduce(
        "field that is unknown",
        ('paper = "A paper"', 'paper = "A paper"\npapr = 3'),
        says=("papr", "unknown key", "did you mean 'paper'?", PAGE),
    ),
    reproduce(
        "field of a claim that is unknown",
        ("", '\n[[claims]]\ntext = "More"\nbettr = "FedX"\nbetter = "FedX"\nthan = "Local SGD"\n'),
        says=("claims[0].bettr", "unknown key", "did you mean 'better'?", PAGE),
    ),
    reproduce(
        "field of a wrong type", ("clients = 2", 'clients = "two"'), says=("clients", "got 'two'", "integer", PAGE)
    ),
    reproduce(
        "key that the command sets",
        ("[config]", "[config]\nseed = 1"),
        says=("seed", "got 1", "the command sets it", "leave it out"),
    ),
    reproduce(
        "several values of a key",
        ('strategy = "fedx1"', 'strategy = "fedx1"\nbatch-size = [1, 2]'),
        says=("batch-size", "got [1, 2]", "a number, text, true or false", "axes"),
    ),
    reproduce(
        "clients of a reference",
        ('name = "Local SGD"', 'name = "Local SGD"\nengine = "nonfederated"\nclients = 3'),
        says=("clients", "got 3", "a nonfederated run has none", "leave it out"),
    ),
    reproduce(
        "claim of nothing",
        ("", '\n[[claims]]\ntext = "Same"\nbetter = "FedX"\nthan = "FedX"\n'),
        says=("claims[0]", "got better =", "other values of the same coordinates", PAGE),
    ),
    reproduce(
        "claim that says twice",
        ("", '\n[[claims]]\ntext = "More"\nbetter = "FedX"\nthan = "Local SGD"\nat = { method = "FedX" }\n'),
        says=("at", "got method", "better and than say already", PAGE),
    ),
    reproduce(
        "x axis twice",
        ("clients = 2", 'clients = 2\nx = ["round", "round"]'),
        says=("x", "got round, round", "each once, and clients only alone", PAGE),
    ),
    reproduce(
        "labels of more x axes than there are",
        ("clients = 2", 'clients = 2\nx-label = ["epochs", "seconds"]'),
        says=("x-label", "got epochs, seconds", "as many as x has, 1, or none", PAGE),
    ),
    # what does not fit together
    reproduce(
        "run config of an experiment",
        ('strategy = "fedx1"', 'strategy = "fedx9"'),
        says=("strategy", "got 'fedx9'", "did you mean 'fedx", "`python -m simulations list strategies`"),
    ),
    reproduce(
        "key of a run config",
        ("local-steps = 1\n", "local-step = 1\n"),
        says=("local-step", "unknown run-config key", "'local-steps'", "`python -m simulations list keys`"),
    ),
    reproduce(
        "reference of a strategy without",
        ('strategy = "local-sgd"', 'strategy = "local-sgd"\nengine = "nonfederated"'),
        says=("strategy", "got 'local-sgd'", "allowed: vfb2", "`python -m simulations centralized`"),
    ),
    reproduce(
        "metric of an experiment",
        ('metrics = ["auc"]', 'metrics = ["aucc"]'),
        says=("metrics", "got 'aucc'", "did you mean 'auc'?", "docs/run-directory.md"),
    ),
    reproduce(
        "panel of nothing",
        ('curve = "{method} {K}"', 'curve = "{method} {L}"'),
        says=("curve", "got {L}", "a coordinate or a run-config key", PAGE),
    ),
    reproduce(
        "only what is not there",
        ("seeds = 1", "seeds = 1\nonly = { K = [3] }"),
        says=("profiles.quick.only.K", "got 3", "allowed: 1, 2", PAGE),
    ),
    reproduce(
        "only nothing",
        ("seeds = 1", "seeds = 1\nonly = { K = [1], L = [5] }"),
        ('strategy = "local-sgd"', 'strategy = "local-sgd"'),
        says=("profiles.quick.only.L", "got 5", "there is no such coordinate", PAGE),
    ),
    reproduce(
        "only what excludes the other",
        ("seeds = 1", "seeds = 1\nonly = { K = [2], L = [1] }"),
        ("{ at = { K = 1 }, local-steps = 1 }", "{ at = { K = 1, L = 1 }, local-steps = 1 }"),
        ("{ at = { K = 2 }, local-steps = 2 }", "{ at = { K = 2, L = 2 }, local-steps = 2 }"),
        says=("profiles.quick.only", "leaves no run", "expected one at least", "drop one of its keys"),
    ),
    reproduce(
        "curves of one name",
        ('curve = "{method} {K}"', 'curve = "{method}"'),
        says=("'FedX digits K = 1'", "would both be curve 'FedX'", "tell them apart", "by panel or curve"),
    ),
    reproduce(
        "runs of one name",
        ('curve = "{method} {K}"', 'curve = "{method} {K}"'),
        ('name = "FedX"', 'name = "Local-SGD"'),
        says=("'Local-SGD digits K = 1'", "would have one run directory", "tell them apart", "by name or coordinates"),
    ),
    reproduce(
        "paper's value of no run",
        ("", '\n[[paper-values]]\nmethod = "FedX"\nat = { K = 3 }\nmean = 0.5\n'),
        says=("paper-values[0]", "no run has method = FedX, K = 3", "allowed: coordinates of the runs", PAGE),
    ),
    reproduce(
        "paper's value of no metric",
        ("", '\n[[paper-values]]\nmethod = "FedX"\nmetric = "loss"\nmean = 0.5\n'),
        says=("paper-values[0].metric", "got 'loss'", "allowed: auc", PAGE),
    ),
    reproduce(
        "paper's value twice",
        ("", 2 * '\n[[paper-values]]\nmethod = "FedX"\nmean = 0.5\n'),
        says=("paper-values[1]", "has a value of the paper already", "allowed: one", "add coordinates"),
    ),
    reproduce(
        "claim of no metric",
        ("", '\n[[claims]]\ntext = "More"\nmetric = "loss"\nbetter = "FedX"\nthan = "Local SGD"\n'),
        says=("claims[0].metric", "got 'loss'", "allowed: auc", PAGE),
    ),
    reproduce(
        "claim of no run",
        ("", '\n[[claims]]\ntext = "More"\nbetter = "FedX"\nthan = "FedY"\n'),
        says=("claims[0]", "no run has method = FedY", "allowed: coordinates of the runs", PAGE),
    ),
    reproduce(
        "claim of no pair",
        ("", '\n[[claims]]\ntext = "More"\nbetter = { K = 1 }\nthan = { K = 2 }\n'),
        ("{ at = { K = 2 }, local-steps = 2 }", "{ at = { K = 2, L = 2 }, local-steps = 2 }"),
        says=("claims[0]", "no two runs differ in K alone", "add the rest to better and than", PAGE),
    ),
    # the directory
    reproduce(
        "reproduction below a file",
        says=("--out", "{tmp}/file/run", "a folder that can be written to", "choose a folder"),
        options=("--out", "{tmp}/file/run"),
        files={"file": ""},
    ),
    reproduce(
        "reproduction in a full folder",
        says=("--out", "{tmp}/run", "holds no reproduction", "choose another"),
        files={"run/a": ""},
    ),
    reproduce(
        "reproduction of another experiment",
        says=("--out", "holds experiment 'other', profile 'full'", "not 'small', 'quick'", "choose another"),
        files={"run/experiment.toml": 'name = "other"\n[reproduced]\nprofile = "full"\n'},
    ),
    reproduce(
        "unreadable reproduction",
        says=("--out", "{tmp}/run/experiment.toml cannot be read", "expected a reproduction's copy", "choose another"),
        files={"run/experiment.toml": "name = 1\n"},
    ),
    reproduce(
        "finished run of another config",
        says=("--out", "has finished with another", "strategy", "delete this run"),
        before=another,
        files={"run/experiment.toml": 'name = "small"\n[reproduced]\nprofile = "quick"\n'},
        longest=900,
    ),
    called(
        "reproduction under way",
        twice,
        says=("--out", "another process is reproducing", "wait for its end", "choose another"),
    ),
    called(
        "metric that a run lacks",
        lacking,
        says=("metric", "no metric rmse", "only auc", "set the experiment's metrics"),
    ),
    called(
        "Flower's engine without the project",
        without_project,
        says=("pyproject.toml", "holds no", "a checkout", "--engine flower"),
    ),
]
