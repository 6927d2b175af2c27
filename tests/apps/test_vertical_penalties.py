"""Vertical runs with a nonsmooth penalty in the run config: the columns that the parties keep."""

import json
import logging
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from safetensors.numpy import load_file

from apps.config import ConfigError, Scalar, parse_run_config
from simulations.engines.launch import run_nonfederated
from tests.apps.vertical_runs import CSV, EVERYBODY, own_files, play
from tests.battery.federation import Run, flat_config
from tests.refusals import refuses

LASSO: dict[str, Scalar] = {
    "vfb2.penalty": "group-lasso",
    "vfb2.penalty-weight": 0.04,
    "vfb2.synchronous": True,
    "strategy": "vfb2-svrg",
}
# a block may become zero in these runs: with three parties, every partial would have to vary
TWO: dict[str, Scalar] = {"vfb2.allow-two-parties": True, "vfb2.intercept": "auto"}
ROUNDS: dict[str, Scalar] = {"num-server-rounds": 12, "learning-rate": 0.3, "evaluate-every": 12}


def test_the_columns_made_of_one_stay_or_go_together(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    nodes, _ = own_files(tmp_path, [EVERYBODY] * 2)
    rng, path = np.random.default_rng(0), Path(str(nodes[0]["data-path"]))
    frame = pd.read_csv(path)
    # of four text columns one depends on the label
    frame["told"] = np.where(frame["label"] == 1, "yes", rng.choice(["no", "perhaps"], len(frame)))
    for name in ("a", "b", "c"):
        frame[name] = rng.choice(["p", "q", "r"], len(frame))
    frame.to_csv(path, index=False)
    kept = [{**node, "state-dir": str(tmp_path / "state")} for node in nodes]
    caplog.set_level(logging.INFO)
    run, _ = play(tmp_path / "run", {**CSV, **LASSO, **ROUNDS, **TWO}, kept)
    (block,) = (tmp_path / "state").rglob("client-0/block.safetensors")
    weights = load_file(block)["weights"]
    (told,) = [line for line in caplog.messages if line.startswith("party 0 keeps ")]
    count, columns = int(told.split()[3]), told.partition(": ")[2].split(", ")
    assert count == len(columns) == np.count_nonzero(weights) < len(weights)
    texts = [{one for one in columns if one.startswith(f"{name}=")} for name in ("told", "a", "b", "c")]
    assert [len(each) for each in texts] == [3, 0, 0, 0]
    assert "(intercept)" in columns
    everywhere = [run.model[f"weights.{party}"] for party in range(2)]
    assert run.lines[-1]["nonzeros"] == sum(map(np.count_nonzero, everywhere))
    assert "suboptimality" not in run.lines[-1]


def test_a_party_may_be_a_group_and_the_intercept_is_none_s(tmp_path: Path) -> None:
    strong: dict[str, Scalar] = {**LASSO, "vfb2.groups": "party", "vfb2.intercept": True, "num-server-rounds": 3}
    run, _ = play(tmp_path / "all", {**strong, "vfb2.penalty-weight": 10.0})
    assert run.lines[-1]["nonzeros"] == np.count_nonzero(run.model["weights"]) == 1
    run, _ = play(tmp_path / "some", {**strong, **ROUNDS, "vfb2.penalty-weight": 0.03, "learning-rate": 0.2})
    kept = [np.count_nonzero(run.model[f"weights.{party}"]) for party in range(4)]
    assert kept == [1, 8, 7, 7]  # party 0: the intercept only; the other parties: all columns


def test_the_reference_with_all_columns_has_the_same_lasso(tmp_path: Path) -> None:
    config: dict[str, Scalar] = {"vfb2.penalty": "l1", "vfb2.penalty-weight": 0.01, "vfb2.intercept": True}
    config |= {**ROUNDS, "vfb2.active-parties": 1, "vfb2.synchronous": True, "batch-size": 32}
    run, _ = play(tmp_path / "run", config)
    run_nonfederated(flat_config(tmp_path / "pooled", {"strategy": "vfb2-sgd", "dataset": "breast-cancer", **config}))
    pooled = Run(tmp_path / "pooled")
    np.testing.assert_allclose(run.model["weights"], pooled.model["weights"], rtol=0, atol=1e-9)
    assert 1 < run.lines[-1]["nonzeros"] == pooled.lines[-1]["nonzeros"] < 31
    assert run.lines[-1]["objective"] == pytest.approx(pooled.lines[-1]["objective"], abs=1e-9)


def test_what_has_no_penalty_of_columns(tmp_path: Path) -> None:
    with refuses(RuntimeError, "vfb2.groups: got 'columns', allowed: 'party', since simulated parties"):
        play(tmp_path / "run", LASSO)
    keys = {"strategy": "vfb2-sgd", "dataset": "breast-cancer", "vfb2.penalty": "l1"}
    with refuses(ConfigError, "vfb2.penalty: got 'l1' with vfb2.embedding=2, allowed: none"):
        parse_run_config({**keys, "vfb2.embedding": 2, "vfb2.active-parties": 1})
    with refuses(ConfigError, "vfb2.penalty: got 'group-lasso', allowed: none, l1, since the groups"):
        run_nonfederated(flat_config(tmp_path / "pooled", {**keys, "vfb2.penalty": "group-lasso"}))
    told = parse_run_config({"strategy": "vfb2-sgd", "dataset": "breast-cancer", "vfb2.penalty-weight": 0.1})
    assert "vfb2.penalty-weight" in json.dumps(told.without_effect)
