"""Tests of a run's baselines: each site alone, and all rows pooled."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy.special import expit
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss, roc_auc_score

from apps.config import Scalar, parse_run_config
from apps.sites import resources
from problems.delong import PairedDifference
from simulations.arguments import add_directory
from simulations.baselines import Baselines, Result, train_baselines
from simulations.engines.launch import run_federation
from simulations.references.penalised import PENALTIES, fit_penalised
from simulations.results.output import log_off
from simulations.results.records import read_run
from simulations.scoring.model import load
from simulations.scoring.rows import evaluate_file
from tests.problems.test_findings import NAMES, make_table
from tests.programs import Line
from tests.refusals import states

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


@pytest.fixture
def no_grid(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give sites alone the run's penalty, without a grid search."""
    monkeypatch.setattr("simulations.baselines.trainer.DECAYS", ())
    monkeypatch.setattr("simulations.baselines.trainer.minimise_cross_entropy", dict)


@pytest.mark.usefixtures("no_grid")
@pytest.mark.parametrize("strategy", ["local-sgd", "scaffold", "coda", "composite", "local-scgdam"])
def test_of_one_site_all_three_are_the_same(strategy: str, tmp_path: Path) -> None:
    found = compared(tmp_path / "run", 1, strategy=strategy, learning_rate=0.01, model="mlp")
    assert [(one.rows, one.positives, one.reason) for one in found.results] == [(456, 170, "")] * 3
    assert [one.samples for one in found.results] == [3 * 4 * 456] * 3
    for other in (found.pooled, *found.alone):
        assert other.difference is not None
        assert (other.standing, other.difference.value) == ("level with", 0)
        shared = found.federated.metrics.keys() & other.metrics.keys()
        assert {"auc", "loss"} <= shared
        expected = {name: pytest.approx(found.federated.metrics[name], rel=1e-6) for name in shared}
        assert {name: other.metrics[name] for name in shared} == expected


@pytest.mark.usefixtures("no_grid")
@pytest.mark.parametrize("keys", [{}, {"threshold_at": "sensitivity=0.9"}, {"select_by": "loss", "patience": 2}])
def test_all_are_evaluated_on_the_rows_of_the_run_s_metrics(keys: dict[str, Any], tmp_path: Path) -> None:
    """The rows are validation rows, or test rows if the run has selected on validation rows; all models select a round,
    or none."""
    many: dict[str, Any] = {"num_server_rounds": 9, "learning_rate": 1.5, "dataset": "digits", "model": "mlp"}
    found = compared(tmp_path / "run", 1, validation_fraction=0.2, **many, **keys)
    assert found.where == ("the test rows" if keys else "validation rows")
    pooled = read_run(tmp_path / "run" / "baselines" / "pooled")
    assert pooled.selected == read_run(tmp_path / "run").selected
    expected = {name: pytest.approx(value, rel=1e-6) for name, value in found.federated.metrics.items()}
    assert found.pooled.metrics == expected
    # if the data set has no sites, a site has no validation rows and selects on a fifth of its training rows
    assert (found.alone[0].metrics == expected) == ("select_by" not in keys)
    assert any("best round by loss" in note for note in found.notes) == ("select_by" in keys)


@pytest.mark.usefixtures("no_grid")
@pytest.mark.parametrize(("batch", "share"), [(0, 1.0), (16, 1.0), (16, 0.5)])
def test_references_process_as_many_samples_as_the_run(batch: int, share: float, tmp_path: Path) -> None:
    keys: dict[str, Any] = {"model": "mlp", "partition": "linear", "batch_size": batch, "fraction_train": share}
    found = compared(tmp_path / "run", 4, **keys)
    sizes = [one.rows for one in found.alone]
    total = 3 * 4 * (sum(sizes) if batch == 0 else 4 * batch * share)
    assert found.federated.samples == total
    assert found.pooled.samples == pytest.approx(total)
    for one in found.alone:
        assert one.samples is not None
        assert min(total, 50 * one.rows) <= one.samples <= 2 * total
    assert [sorted(one.curve) for one in found.results] == [[0, 1, 2, 3]] * 6


@pytest.mark.usefixtures("no_grid")
def test_a_site_alone_stops_at_fifty_times_its_rows(tmp_path: Path) -> None:
    found = compared(tmp_path / "run", 2, model="mlp", partition="given", partition_rows="380:0.4,8:0.5", local_steps=8)
    assert [one.samples for one in found.alone] == [24 * 380 * 2, 24 * 8 * 3]


def test_linear_references_are_logistic_regressions(tmp_path: Path) -> None:
    """They train on the rows after disturbances; a fit by scikit-learn with the same penalty has the same metrics."""
    keys: dict[str, Any] = {"label_noise": 0.1, "client_shift": 0.3, "partition": "linear"}
    found = compared(tmp_path / "run", 3, **keys)
    config = parse_run_config({**SMALL, **{key.replace("_", "-"): value for key, value in keys.items()}})
    data = resources.federated_data(config.data, 3)
    for place, one in enumerate(found.alone):
        own = data.client(place)
        assert one.penalty in PENALTIES
        fitted = LogisticRegression(C=1 / (len(own) * one.penalty), tol=1e-8, max_iter=1000)
        scores = fitted.fit(own.features.astype(float), own.labels).decision_function(data.test.features)
        assert one.metrics["auc"] == pytest.approx(roc_auc_score(data.test.labels, scores), abs=1e-6)
        assert one.metrics["loss"] == pytest.approx(log_loss(data.test.labels, expit(scores)), rel=1e-4)
        assert (one.rows, one.positives, one.samples) == (len(own), len(own.positives), None)
        run = read_run(tmp_path / "run" / "baselines" / f"site-{place}")
        assert run.config["weight-decay"] == one.penalty
    assert found.pooled.rows == found.federated.rows == sum(one.rows for one in found.alone)


def test_penalty_is_chosen_by_held_out_folds() -> None:
    """Few rows with many features need a large penalty; the same rows choose the same penalty."""
    rng = np.random.default_rng(0)
    features = rng.normal(size=(60, 20))
    labels = (features[:, 0] + 2 * rng.normal(size=60) > 0).astype(np.int8)
    fits = [fit_penalised(features, labels, seed=3) for _ in range(2)]
    assert fits[0].penalty == fits[1].penalty >= 0.1
    assert fits[0].folds == 5
    clear = fit_penalised(features, (features[:, 0] > 0).astype(np.int8))
    assert clear.penalty < fits[0].penalty
    single = fit_penalised(features, (np.arange(60) == 7).astype(np.int8), intercept=False)
    assert (single.folds, single.bias, single.penalty) == (0, 0.0, 1 / 60)


@pytest.mark.parametrize("strategy", ["local-sgd", "coda"])
def test_a_site_s_penalty_is_chosen_on_held_out_rows(strategy: str, tmp_path: Path) -> None:
    """The candidates of a strategy without weight-decay minimise the cross-entropy too."""
    keys: dict[str, Any] = {"strategy": strategy, "model": "mlp", "learning_rate": 0.5, "label_noise": 0.3}
    found = compared(tmp_path / "run", 3, local_steps=8, **keys)
    assert {one.trained for one in found.alone} <= {"strategy local-sgd", f"strategy {strategy}"}
    assert any(one.penalty for one in found.alone)
    assert found.pooled.penalty == 0.0
    assert {path.name for path in (tmp_path / "run" / "baselines").iterdir()} == {
        "pooled",
        "site-0",
        "site-1",
        "site-2",
    }


def test_a_site_selects_on_its_own_validation_rows(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    label = np.arange(240) % 3 // 2
    frame = pd.DataFrame(rng.normal(size=(240, 4)) + label[:, None] * [1, 1, 0, 0], columns=list("abcd"))
    file = tmp_path / "rows.csv"
    frame.assign(label=label, ward=np.arange(240) % 2).to_csv(file, index=False)
    keys: dict[str, Any] = {"dataset": "csv", "data_dir": str(file), "site_column": "ward", "partition": "natural"}
    chosen: dict[str, Any] = {"validation_fraction": 0.25, "select_by": "auc", "patience": 2, "model": "mlp"}
    found = compared(tmp_path / "run", 2, **keys, **chosen, learning_rate=1.0, num_server_rounds=8)
    for site, one in enumerate(found.alone):
        run = read_run(tmp_path / "run" / "baselines" / f"site-{site}")
        assert one.rows == 72
        assert run.result["selected"]["metric"] == "auc"
        assert run.result["selected"]["value"] == max(run.curve("auc").values())
        assert one.metrics == run.result["test_metrics"]
    # a reference scores a file with the run's preprocessing
    for folder, result in (("pooled", found.pooled), ("site-1", found.alone[1])):
        measured = evaluate_file(load(tmp_path / "run" / "baselines" / folder), file, resamples=2)
        assert measured.rows == 240
        assert measured.metrics["auc"].value == pytest.approx(result.metrics["auc"], abs=0.15)


@pytest.mark.usefixtures("no_grid")
@pytest.mark.parametrize("strategy", ["fedx2", "local-pair"])
def test_small_sites_take_all_they_have(strategy: str, tmp_path: Path) -> None:
    """This includes the federation, where a batch needs at most the rows of all sites together."""
    config: dict[str, Any] = {"strategy": strategy, "partition": "given", "partition_rows": "60:0.5,20:0.2"}
    found = compared(tmp_path / "run", 2, **config, batch_size=32, **{"fedx.prediction-noise": 0.1})
    assert [(one.rows, one.positives, one.reason) for one in found.alone] == [(60, 30, ""), (20, 4, "")]
    written = read_run(tmp_path / "run" / "baselines" / "site-1").config
    assert (written["fedx.positive-batch-size"], written["fedx.prediction-noise"]) == (4, 0.0)


@pytest.mark.usefixtures("no_grid")
def test_sites_with_files_of_their_own(tmp_path: Path) -> None:
    """The test rows are the rows of all sites, not only the last site's with 4 positives; scaled as in the run."""
    rng, nodes = np.random.default_rng(0), []
    for place in range(3):
        label = np.arange(60) % 3 // 2
        frame = pd.DataFrame(rng.normal(size=(60, 3)) * [1, 100, 1] + label[:, None] * [1, 50, 0], columns=list("abc"))
        frame.assign(label=label).to_csv(tmp_path / f"{place}.csv", index=False)
        nodes.append({"data-path": str(tmp_path / f"{place}.csv"), "least-cell": 5 if place == 2 else 3})
    keys: dict[str, Any] = {"dataset": "csv", "partition": "own", "learning_rate": 0.3, "model": "mlp"}
    found = compared(tmp_path / "run", 3, nodes, **keys)
    assert [(one.rows, one.positives) for one in found.alone] == [(48, 16)] * 3
    assert found.where == "rows held out by the sites"
    gaps = [found.federated.metrics["auc"] - one.metrics["auc"] for one in found.results[1:]]
    assert gaps == pytest.approx([one.difference.value for one in found.results[1:] if one.difference])
    # all start alike, and the sites' own evaluation counts scores in bins
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
    assert lines[1].split()[:6] == ["trained", "rows", "positives", "samples", "penalty", "auc"]
    assert lines[1].split("minus reference")[1].split("  ")[1] == "95 % interval"
    assert lines[1].endswith("federated is")
    names = ["federated", "all rows in one place", "partition 0 alone", "partition 1 alone", "partition 2 alone"]
    assert [line[: len(name)] for line, name in zip(lines[2:], names, strict=False)] == names
    kept = json.loads((out / "baselines.json").read_text("utf-8"))
    assert kept["verdict"] == lines[-1]
    assert [one["name"] for one in kept["results"]] == names
    assert kept["results"][0]["metrics"] == read_run(out).metrics
    assert all(one["reason"].startswith("one class only, ") for one in kept["results"][2:])
    assert "3 sites cannot be trained alone" in kept["verdict"]
    assert (out / "baselines.png").stat().st_size > 5000
    assert {path.name for path in (out / "baselines").iterdir()} == {"pooled"}


def test_the_verdict_needs_intervals() -> None:
    def result(value: float | None, low: float = 0.0, high: float = 0.0) -> Result:
        metrics = {} if value is None else {"auc": value}
        gap = None if value is None else PairedDifference(0.7 - value, low, high)
        return Result("", 1, 1, metrics, "" if value else "none", difference=gap)

    alone = [result(0.6, 0.05, 0.15), result(0.698, -0.01, 0.014), result(0.75, -0.08, -0.02), result(None)]
    found = Baselines("auc", "rows", result(0.7), result(0.71, -0.03, 0.01), alone)
    assert found.verdict() == (
        "auc: federated 0.7000; ahead of 1, level with 1, behind 1 of 3 sites alone (0.6000 to 0.7500, mean 0.6827); "
        "1 site cannot be trained alone; level with all rows in one place 0.7100 (difference -0.0100, 95 % interval "
        "-0.0300 to +0.0100)"
    )


def test_the_verdict_of_a_model_without_scores_counts_values() -> None:
    results = [Result("", 1, 1, {"loss": value}) for value in (0.3, 0.2, 0.25, 0.3, 0.5)]
    found = Baselines("loss", "rows", results[0], results[1], results[2:])
    assert found.verdict() == (
        "loss: federated 0.3000; better than 1, without intervals, of 3 sites alone (0.2500 to 0.5000, mean 0.3500); "
        "all rows in one place 0.2000"
    )


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ('strategy="vfb2-sgd"', "--baselines: got strategy 'vfb2-sgd', allowed: a strategy whose sites"),
        (
            'strategy="coda" dataset="synthetic-pl"',
            "--baselines: got dataset 'synthetic-pl', allowed: a data set",
        ),
    ],
)
def test_what_has_no_baselines_is_refused_first(tmp_path: Path, command: Line, config: str, says: str) -> None:
    code, _, console = command("run", "--clients", "3", "-c", config, "--baselines", "--out", tmp_path / "run")
    assert code == 1
    assert states(console, says)
    assert not (tmp_path / "run").exists()


@pytest.mark.usefixtures("no_grid")
@pytest.mark.parametrize("strategy", ["local-sgd", "fedx1", "codasca"])
def test_findings_of_one_site_are_the_same(strategy: str, tmp_path: Path) -> None:
    make_table(120).to_csv(tmp_path / "train.csv", index=False)
    make_table(80, seed=1).to_csv(tmp_path / "test.csv", index=False)
    data = {"dataset": "csv", "data_dir": str(tmp_path), "label_columns": ", ".join(NAMES)}
    found = compared(tmp_path / "run", 1, strategy=strategy, model="mlp", **data)
    ones = int(make_table(120)[[*NAMES]].sum().sum())
    assert [(one.rows, one.positives, one.reason) for one in found.results] == [(120, ones, "")] * 3
    names = ("auc", "loss", *(f"auc_{name}" for name in NAMES))
    for other in (found.pooled, *found.alone):
        assert other.samples == found.federated.samples
        assert [other.metrics[name] for name in names] == pytest.approx(
            [found.federated.metrics[name] for name in names]
        )


def test_a_site_without_a_finding_s_ones_is_not_trained_alone(tmp_path: Path) -> None:
    frame = make_table(120).assign(ward=np.arange(120) // 60)
    frame.loc[:59, "scar"] = 0
    frame.to_csv(tmp_path / "train.csv", index=False)
    make_table(80, seed=1).assign(ward=0).to_csv(tmp_path / "test.csv", index=False)
    data = {"dataset": "csv", "data_dir": str(tmp_path), "label_columns": ", ".join(NAMES), "site_column": "ward"}
    found = compared(tmp_path / "run", 2, partition="natural", model="mlp", **data)
    assert [one.reason for one in found.alone] == ["one value only of scar", ""]
    assert "1 site cannot be trained alone" in found.verdict()
