"""The run beside its sites alone and all rows in one place."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from apps.config import Scalar, parse_run_config
from apps.evaluation.models import ModelEvaluator
from apps.sites import resources
from clients.base import Site
from clients.scoring import LocalSGDClient
from simulations.arguments import add_directory
from simulations.baselines import Baselines, Result, train_baselines
from simulations.engines.launch import run_federation
from simulations.results.output import log_off
from simulations.results.records import read_run
from tests.programs import Line

SMALL: dict[str, Scalar] = {
    "strategy": "local-sgd",
    "dataset": "breast-cancer",
    "dtype": "float64",
    "model": "linear",
    "num-server-rounds": 3,
    "local-steps": 4,
    "batch-size": 0,
    "pictures": False,
}


def compared(out: Path, clients: int, nodes: list[dict[str, Scalar]] | None = None, **keys: Any) -> Baselines:
    """Run a federation, and train its baselines."""
    flat = add_directory({**SMALL, **{key.replace("_", "-"): value for key, value in keys.items()}}, out)
    with log_off(True):
        run_federation(clients, flat, node_configs=nodes or [])
    return train_baselines(out, clients, flat, nodes or [])


@pytest.mark.parametrize("strategy", ["local-sgd", "scaffold", "coda", "composite", "local-scgdam"])
def test_of_one_site_all_three_are_the_same(strategy: str, tmp_path: Path) -> None:
    found = compared(tmp_path / "run", 1, strategy=strategy, learning_rate=0.01)
    assert [(one.rows, one.positives, one.reason) for one in found.results] == [(456, 170, "")] * 3
    for other in (found.pooled, *found.alone):
        shared = found.federated.metrics.keys() & other.metrics.keys()
        assert {"auc", "loss"} <= shared
        expected = {name: pytest.approx(found.federated.metrics[name], rel=1e-6) for name in shared}
        assert {name: other.metrics[name] for name in shared} == expected


@pytest.mark.parametrize("keys", [{}, {"threshold_at": "sensitivity=0.9"}])
def test_all_are_evaluated_on_the_rows_of_the_run_s_metrics(keys: dict[str, Any], tmp_path: Path) -> None:
    """Validation rows, or the test rows of a run that has chosen something."""
    found = compared(tmp_path / "run", 1, learning_rate=0.01, validation_fraction=0.2, **keys)
    assert found.where == ("the test rows" if keys else "validation rows")
    expected = {name: pytest.approx(value, rel=1e-6) for name, value in found.federated.metrics.items()}
    for other in (found.pooled, *found.alone):
        assert other.metrics == expected


def test_a_site_alone_is_sgd_on_its_own_rows(tmp_path: Path) -> None:
    """Its rows as they were disturbed, the initial weights and the test rows of the run, as many steps in all."""
    keys: dict[str, Any] = {"label_noise": 0.1, "client_shift": 0.3, "partition": "linear", "init_from": ""}
    found = compared(tmp_path / "run", 3, **keys)
    config = parse_run_config({**SMALL, **{key.replace("_", "-"): value for key, value in keys.items()}})
    data = resources.federated_data(config.data, 3)
    for place, one in enumerate(found.alone):
        own = data.client(place)
        model = resources.new_model(config, data.input_shape)
        site = Site.from_arrays(0, own.features, own.labels, dtype=model.dtype, device=model.device)
        client, arrays = LocalSGDClient(site, model, config.training), model.arrays()
        for server_round in (1, 2, 3):
            arrays, _, _ = client.fit(arrays, {"server-round": server_round})
        evaluator = ModelEvaluator(config, resources.new_model(config, data.input_shape), data.test)
        assert one.metrics["loss"] == pytest.approx(evaluator(arrays)["loss"], rel=1e-6)
        assert (one.rows, one.positives) == (len(own), len(own.positives))
        assert sorted(one.curve) == [0, 1, 2, 3]
    assert found.pooled.rows == found.federated.rows == sum(one.rows for one in found.alone)


@pytest.mark.parametrize("strategy", ["fedx2", "local-pair"])
def test_small_sites_take_all_they_have(strategy: str, tmp_path: Path) -> None:
    """In the federation too, where a batch needs no more than all sites together have."""
    config: dict[str, Any] = {"strategy": strategy, "partition": "given", "partition_rows": "60:0.5,20:0.2"}
    found = compared(tmp_path / "run", 2, **config, batch_size=32, **{"fedx.prediction-noise": 0.1})
    assert [(one.rows, one.positives, one.reason) for one in found.alone] == [(60, 30, ""), (20, 4, "")]
    written = read_run(tmp_path / "run" / "baselines" / "site-1").config
    assert (written["fedx.positive-batch-size"], written["fedx.prediction-noise"]) == (4, 0.0)


def test_sites_with_files_of_their_own(tmp_path: Path) -> None:
    """The test rows are all that the sites hold out, and the columns are scaled as in the run."""
    rng, nodes = np.random.default_rng(0), []
    for place in range(3):
        label = np.arange(60) % 3 // 2
        frame = pd.DataFrame(rng.normal(size=(60, 3)) * [1, 100, 1] + label[:, None] * [1, 50, 0], columns=list("abc"))
        frame.assign(label=label).to_csv(tmp_path / f"{place}.csv", index=False)
        nodes.append({"data-path": str(tmp_path / f"{place}.csv")})
    keys: dict[str, Any] = {"dataset": "csv", "partition": "own", "learning_rate": 0.3}
    found = compared(tmp_path / "run", 3, nodes, **keys)
    assert [(one.rows, one.positives) for one in found.alone] == [(48, 16)] * 3
    assert found.where == "rows held out by the sites"
    # the start is the same for all, and the sites' own evaluation counts scores in bins
    start = [one.curve[0] for one in found.results]
    assert start == pytest.approx([start[1]] * 5, abs=2e-3)
    assert start[1:] == [start[1]] * 4


def test_a_resumed_run_resumes_its_baselines(tmp_path: Path) -> None:
    compared(tmp_path / "run", 2, checkpoint_every=1)
    more = compared(tmp_path / "run", 2, checkpoint_every=1, resume=True, num_server_rounds=5)
    whole = compared(tmp_path / "whole", 2, num_server_rounds=5)
    assert [one.metrics for one in more.results] == [one.metrics for one in whole.results]


def test_the_command_prints_and_leaves_them(tmp_path: Path, command: Line) -> None:
    config = 'strategy="local-sgd" dataset="breast-cancer" num-server-rounds=2 partition="pathological"'
    out = tmp_path / "run"
    code, told, _ = command("run", "--clients", "3", "-c", f"{config} partition-classes=1", "--baselines", "--out", out)
    assert code == 0
    lines = told.splitlines()
    assert lines[0] == "evaluated on the test set:"
    assert lines[1].split()[:4] == ["trained", "rows", "positives", "auc"]
    names = ["federated", "all rows in one place", "site 0 alone", "site 1 alone", "site 2 alone"]
    assert [line[: len(name)] for line, name in zip(lines[2:], names, strict=False)] == names
    kept = json.loads((out / "baselines.json").read_text("utf-8"))
    assert kept["verdict"] == lines[-1]
    assert [one["name"] for one in kept["results"]] == names
    assert kept["results"][0]["metrics"] == read_run(out).metrics
    assert all(one["reason"].startswith("one class only, ") for one in kept["results"][2:])
    assert "3 that cannot be trained alone" in kept["verdict"]
    assert (out / "baselines.png").stat().st_size > 5000
    assert {path.name for path in (out / "baselines").iterdir()} == {"pooled"}


def test_the_verdict_counts_what_is_better() -> None:
    def result(value: float | None) -> Result:
        return Result("", 1, 1, {} if value is None else {"loss": value}, "" if value else "none")

    found = Baselines(
        "loss", "rows", result(0.3), result(0.2), [result(value) for value in (0.25, 0.3, 0.5, 0.6, None)]
    )
    assert found.verdict() == (
        "loss: federated 0.3000; ahead of 2 of 4 sites alone (0.2500 to 0.6000, mean 0.4125); "
        "1 that cannot be trained alone; all rows in one place 0.2000"
    )


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ('strategy="vfb2-sgd"', "--baselines: got strategy 'vfb2-sgd', allowed: sites that hold rows"),
        ('strategy="coda" dataset="synthetic-pl"', "--baselines: got dataset 'synthetic-pl', allowed: test rows"),
    ],
)
def test_what_has_no_baselines_is_refused_first(tmp_path: Path, command: Line, config: str, says: str) -> None:
    code, _, console = command("run", "--clients", "3", "-c", config, "--baselines", "--out", tmp_path / "run")
    assert code == 1
    assert says in console
    assert not (tmp_path / "run").exists()
