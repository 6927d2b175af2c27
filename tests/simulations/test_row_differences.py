"""`compare` gives the interval of a difference of AUCs over test rows, paired if the server has the rows."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

import florilegium
from apps.config import Scalar
from problems.data import DataSpec, load
from problems.delong import paired_difference
from simulations.results.records import read_run
from simulations.results.row_differences import PAIRED, UNPAIRED, compare_rows
from tests.apps.test_site_figures import own
from tests.battery.federation import federate
from tests.programs import Line

HEART: dict[str, Scalar] = {"dataset": "heart-disease", "partition": "natural", "num-server-rounds": 2}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    base = tmp_path_factory.mktemp("runs")
    configs: dict[str, dict[str, Scalar]] = {
        "a": {"strategy": "local-sgd"},
        "b": {"strategy": "fedx2"},
        "groups": {"strategy": "fedx2", "subgroups": "sex[0|1]", "site-metrics": True},
        "seed": {"strategy": "fedx2", "seed": 5},
    }
    return {name: federate(base / name, {**HEART, **config}, 4)[0].path for name, config in configs.items()}


def test_paired_difference_is_delongs_of_row_scores(runs: dict[str, Path], command: Line) -> None:
    test = load(DataSpec(dataset="heart-disease", partition="natural"), 4).test
    models = [florilegium.load(runs[name]) for name in ("a", "b")]
    scores = [model.network.predict(torch.tensor(test.features)).numpy() for model in models]
    expected = paired_difference(test.labels, scores[1], scores[0])
    (gap,) = compare_rows([read_run(runs[name]) for name in ("a", "b")])
    assert (gap.run, gap.first, gap.method) == ("b", "a", PAIRED)
    assert [gap.value, gap.low, gap.high] == pytest.approx([expected.value, expected.low, expected.high], abs=1e-9)
    code, out, _ = command("compare", runs["a"], runs["b"])
    assert code == 0
    assert f"{gap.low:+.4f} to {gap.high:+.4f}  {PAIRED}" in out
    found = json.loads(command("compare", runs["a"], runs["b"], "--json")[1])["over_rows"]
    assert found[0]["low"] == pytest.approx(gap.low)


def test_a_run_with_subgroups_has_the_same_rows(runs: dict[str, Path]) -> None:
    (plain,) = compare_rows([read_run(runs[name]) for name in ("a", "b")])
    (grouped,) = compare_rows([read_run(runs[name]) for name in ("a", "groups")])
    assert (grouped.method, grouped.value, grouped.low) == (PAIRED, plain.value, plain.low)


def test_other_rows_and_other_models_are_not_paired(runs: dict[str, Path], tmp_path: Path) -> None:
    assert compare_rows([read_run(runs["a"]), read_run(runs["seed"])]) == []
    shutil.copytree(runs["b"], tmp_path / "c")
    shutil.copy(runs["a"] / "model.safetensors", tmp_path / "c")
    assert compare_rows([read_run(runs["a"]), read_run(tmp_path / "c")]) == []


def test_rows_at_sites_have_the_wider_interval(tmp_path: Path) -> None:
    first, _, _ = own(tmp_path / "a", {})
    run, _, _ = own(tmp_path / "b", {"num-server-rounds": 1})
    (gap,) = compare_rows([read_run(first.path), read_run(run.path)])
    assert gap.method == UNPAIRED
    mine, other = run.result["all"]["auc"], first.result["all"]["auc"]
    assert gap.value == pytest.approx(mine[0] - other[0])
    assert gap.low == pytest.approx(gap.value - np.hypot(mine[0] - mine[1], other[2] - other[0]))
    assert gap.high == pytest.approx(gap.value + np.hypot(mine[2] - mine[0], other[0] - other[1]))
