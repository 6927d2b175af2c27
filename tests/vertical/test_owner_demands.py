"""Tests that owners' settings reject run configs and lists of ids that would read a party's columns, with the real
client."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from torch import nn

from apps.config import Scalar
from apps.parties.blocks import read_block
from tests.apps.vertical_runs import CSV, own_files, play
from tests.refusals import refuses
from vertical.policy import Policy, PolicyError

Nodes = list[dict[str, Scalar]]
IDS = [f"row-{number:03}" for number in range(160)]
NETWORKS: dict[str, Scalar] = {**CSV, "vfb2.embedding": 3, "vfb2.assemble": False}


@pytest.fixture
def nodes(tmp_path: Path) -> Nodes:
    """Return three parties with 160 rows and default settings; the first owner names the label."""
    found, _ = own_files(tmp_path, [IDS] * 3, labelled=1)
    return [
        {"data-path": node["data-path"]} | ({} if place else {"labels": "label"}) for place, node in enumerate(found)
    ]


def refused(path: Path, config: dict[str, Any], nodes: Nodes, told: str) -> None:
    with refuses(RuntimeError, told):
        play(path / "refused", {**CSV, **config}, nodes)


def test_label_column_of_another_party_is_refused(tmp_path: Path, nodes: Nodes) -> None:
    """Ridge's first thetas are -2 times the label: all parties would read the column."""
    attack = {"label-column": "x4", "vfb2.problem": "ridge", "batch-size": 0}
    refused(
        tmp_path,
        attack,
        nodes,
        r"^party 1: labels: got a run with label-column='x4', a column that this party's settings",
    )
    nodes[1]["columns"] = "x3, x4, x5"
    refused(tmp_path, attack, nodes, r"^party 1: labels: .*allowed: another party's column; set label-c")
    nodes[1]["labels"] = "x3"
    refused(tmp_path, attack, nodes, r"^party 1: labels: .*allowed: label-column 'x3'; .* add 'x4' to labels")
    nodes[1]["labels"] = "x4"
    play(tmp_path / "run", {**CSV, **attack}, nodes)


def test_a_label_holder_that_names_no_label_is_not_active(tmp_path: Path, nodes: Nodes) -> None:
    nodes[0]["labels"] = ""
    refused(tmp_path, {}, nodes, "^party 0: labels: got a run with label-column='label'")
    nodes[0]["columns"] = "x0, x1, x2"
    refused(tmp_path, {}, nodes, "^label-column: got labels at no party")


def test_features_are_the_columns_that_the_owner_names(tmp_path: Path, nodes: Nodes) -> None:
    """A column of labels is not a feature in a run with another label."""
    nodes[1]["columns"], nodes[2]["labels"] = "x3, x5", "x8"
    nodes = [{**node, "state-dir": str(tmp_path / "state")} for node in nodes]
    for asked in ("x4, *", "x0, x1, x4[1|2], x3, x5, x6"):
        refused(
            tmp_path, {"feature-columns": asked}, nodes, r"^party 1: columns: got a run with 'x4' in feature-columns"
        )
    refused(tmp_path, {"feature-columns": "x8, *"}, nodes, "^party 2: columns: got a run with 'x8' in feature-columns")
    run, _ = play(tmp_path / "run", CSV, nodes)
    token = (run.path / "run-token").read_text()
    blocks = [read_block(node, token, "logistic", (place, 3)).names for place, node in enumerate(nodes)]
    assert blocks == [("x0", "x1", "x2"), ("x3", "x5"), ("x6", "x7")]
    nodes[1]["columns"] = "x3, x4"
    refused(tmp_path, {"vfb2.score-run": token}, nodes, r"^party 1: columns: got a block of the columns 'x5'")
    nodes[1]["columns"] = "x3, income"
    refused(tmp_path, {}, nodes, "^party 1: columns: got 1 columns that the file does not have")


def test_a_feature_is_not_a_column_of_ids(tmp_path: Path, nodes: Nodes) -> None:
    """As ids, the values of a column can be guessed by an intersection."""
    attack = {"vfb2.id-column": "x4", "vfb2.alignment": "intersection"}
    nodes[1]["columns"] = "x3, x4"
    refused(tmp_path, attack, nodes, "^party 1: columns: got a run with vfb2.id-column='x4', one of columns")
    nodes[1] = {"data-path": nodes[1]["data-path"], "id-column": "id"}
    refused(tmp_path, attack, nodes, "^party 1: id-column: got a run with vfb2.id-column='x4', allowed: 'id'")


def norm(columns: int, embedding: int) -> nn.Module:
    """A network of three columns with publicly known weights."""
    return nn.LayerNorm(columns)


def scaled(columns: int, embedding: int) -> nn.Module:
    """A network whose only random weights are offsets."""
    layer = nn.Linear(columns, embedding)
    nn.init.ones_(layer.weight)
    return layer


def empty(columns: int, embedding: int) -> nn.Module:
    layer = nn.Linear(columns, embedding)
    nn.init.zeros_(layer.weight)
    nn.init.zeros_(layer.bias)
    return layer


@pytest.mark.parametrize("name", ["torch.nn:RMSNorm", "torch.nn:LayerNorm", "os:dup2", f"{__name__}:norm"])
def test_a_network_that_the_owner_has_not_named_is_not_imported(
    name: str, tmp_path: Path, nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    called: list[Any] = []
    monkeypatch.setattr(os, "dup2", lambda *args: called.append(args))
    monkeypatch.setattr("vertical.problem.blocks.modules.import_named", lambda *args: called.append(args))
    told = (
        f"^party 0: models: got a run with vfb2.model='{name}', allowed: linear, mlp; set vfb2.model, or let the owner"
    )
    refused(tmp_path, {**NETWORKS, "vfb2.model": name}, nodes, told)
    assert called == []


@pytest.mark.parametrize("name", ["norm", "scaled", "empty"])
def test_a_network_with_known_weights_is_refused_even_if_the_owner_names_it(
    name: str, tmp_path: Path, nodes: Nodes
) -> None:
    nodes = [{**node, "models": f"linear, {__name__}:{name}"} for node in nodes]
    told = "^party 0: vfb2.model: .* gives output 0 of the columns without random weights"
    refused(tmp_path, {**NETWORKS, "vfb2.intercept": False, "vfb2.model": f"{__name__}:{name}"}, nodes, told)


def test_an_embedding_has_a_largest_length(tmp_path: Path, nodes: Nodes) -> None:
    """Each number of the embedding reveals something about each row."""
    told = "^party 0: largest-embedding: got a run with vfb2.embedding=17, allowed: at most 16"
    refused(tmp_path, {**NETWORKS, "vfb2.embedding": 17}, nodes, told)
    shared: Nodes = [{}, {"largest-embedding": 4}, {}]  # for parties that share out one data set
    attack = {**NETWORKS, "dataset": "breast-cancer", "vfb2.embedding": 5}
    refused(tmp_path, attack, shared, "^party 1: largest-embedding: got a run with vfb2.embedding=5")


def shorten(node: dict[str, Scalar], rows: int) -> None:
    path = str(node["data-path"])
    pd.read_csv(path).sort_values("id").head(rows).to_csv(path, index=False)


def test_two_rows_are_not_trained_on_and_three_not_scored(tmp_path: Path, nodes: Nodes) -> None:
    """One party's list of ids determines the rows of all parties."""
    kept = [{**node, "state-dir": str(tmp_path / "state")} for node in nodes]
    run, _ = play(tmp_path / "run", CSV, kept)
    token = (run.path / "run-token").read_text()
    shorten(nodes[2], 3)
    kept[2]["fewest-rows"] = 2
    attack: dict[str, Any] = {"vfb2.alignment": "intersection", "test-fraction": 0.3}
    refused(tmp_path, attack, kept, "^party 0: fewest-rows: got a run of 2 rows, allowed: 100 or more")
    refused(
        tmp_path, {**attack, "vfb2.score-run": token}, kept, "^party 0: fewest-rows: got a run of 3 rows, allowed: 100"
    )
    for node in kept:
        node["fewest-rows"] = 2
    play(tmp_path / "scores", {**CSV, **attack, "vfb2.score-run": token}, kept)


@pytest.mark.parametrize("keys", [{"test-fraction": 0.9}, {"validation-fraction": 0.9}])
def test_run_configs_do_not_leave_few_training_rows(keys: dict[str, Any], tmp_path: Path, nodes: Nodes) -> None:
    refused(tmp_path, keys, nodes, r"^party 0: fewest-rows: got a run of \d+ rows, allowed: 100 or more")


@pytest.mark.parametrize(
    "keys",
    [
        {"drop-columns": "x3, x5"},
        {"feature-columns": "x0, x1, x4, x6, x7"},
        {"missing-values": "flag:1, rare:1", "missing": "mean", "drop-columns": "x3, x5"},
        {"missing-values": "flag:1, x3:0", "missing": "indicator", "feature-columns": "x0, x1, flag, x6, x7"},
    ],
)
def test_run_configs_do_not_leave_one_varying_column(keys: dict[str, Any], tmp_path: Path, nodes: Nodes) -> None:
    """A column in which a single row differs hides nothing either."""
    path = str(nodes[1]["data-path"])
    frame = pd.read_csv(path)
    frame = frame.assign(flag=np.arange(160) % 2, rare=(np.arange(160) == 3) * 1)
    frame = frame if "missing-values" in keys else frame.drop(columns=["flag", "rare"])
    frame.to_csv(path, index=False)
    refused(tmp_path, keys, nodes, r"^party 1: fewest-columns: got a run in which too few of this party")


def test_test_rows_of_several_dominators_are_not_few() -> None:
    policy = Policy(fewest_rows=100)
    policy.check_rows(100, 20)
    policy.check_rows(100, 0, 2)
    with refuses(PolicyError, "fewest-rows: got a run of 20 test rows for 2 active parties"):
        policy.check_rows(100, 20, 2)


def test_data_keys_of_an_owner_fix_a_vertical_run(tmp_path: Path, nodes: Nodes) -> None:
    nodes[1] |= {"dataset": "csv", "label-column": "label", "missing-values": "", "scale": "range", "split-seed": 5}
    run = {"label-column": "label", "scale": "range", "seed": 5}
    play(tmp_path / "run", {**CSV, **run}, nodes)
    for key, value, allowed in (
        ("label-column", "x4", "'label', which this site's settings fix"),
        ("missing-values", "x4:1", "'', which this site's settings fix"),
        ("drop-columns", "x4", "'', which this site's settings fix"),
        ("seed", 6, "5, the split-seed of this site's settings"),
    ):
        refused(tmp_path, {**run, key: value}, nodes, f"{key}: got a run with {key}={value!r}, allowed: {allowed}")


def test_a_party_takes_part_in_vertical_runs_only(tmp_path: Path, nodes: Nodes) -> None:
    """A run of another strategy would train on the party's rows, with any column as the label."""
    attack: dict[str, Any] = {"strategy": "local-sgd", "partition": "own", "dataset": "csv", "label-column": "x4"}
    refused(
        tmp_path, attack, nodes, "strategy: got 'local-sgd', allowed: a vertical strategy, since this site's .* labels"
    )
