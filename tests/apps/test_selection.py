"""The selected model: the best on validation rows, measured once on the test rows, resumed or not."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Message
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file

import florilegium
from apps.config import ConfigError, RunConfig, Scalar, parse_run_config
from apps.evaluation.selection import Choice, select
from apps.sites.resources import federated_data
from payloads.held_out import SCORE_COUNTS, TEST_SCORE_COUNTS
from problems.metrics import binary_metrics
from problems.models import build_model
from simulations.results.compare import Comparison
from simulations.scoring.check import difference_from
from simulations.scoring.export import export_onnx
from tests.apps.test_own_data import COLUMNS, CSV, SITES, files, own_rows
from tests.battery.federation import Exchange, Run, federate, flat_config, patients
from tests.battery.test_resume import assert_same_run
from tests.refusals import refuses
from tests.simulations.fabricated import fake

# steps so large, on labels so noisy, that the best round is in the run's middle
WORSENING: dict[str, Scalar] = {
    "strategy": "local-sgd",
    "dataset": "breast-cancer",
    "learning-rate": 3.0,
    "label-noise": 0.3,
    "num-server-rounds": 10,
    "local-steps": 4,
    "validation-fraction": 0.2,
}


def config_of(run: Run, config: dict[str, Scalar]) -> RunConfig:
    return parse_run_config(flat_config(run.path, config))


def best_round(run: Run, metric: str, least: bool = False) -> int:
    """Return the first round with the best value of a metric."""
    curve = [line[metric] for line in run.lines]
    return curve.index((min if least else max)(curve))


@given(st.lists(st.sampled_from([0.1, 0.2, 0.3]), min_size=1, max_size=12), st.sampled_from(["auc", "loss"]))
def test_the_first_of_the_best_is_selected(values: list[float], metric: str) -> None:
    best = None
    for server_round, value in enumerate(values):
        model = np.array([float(server_round)])
        best = select(best, metric, server_round, {metric: value}, {"": [model]})
        model[:] = np.nan  # the selected model is a copy
    first = values.index(max(values) if metric == "auc" else min(values))
    assert best is not None
    assert (best.server_round, best.value, best.waited) == (first, values[first], len(values) - 1 - first)
    assert best.models[""][0].tolist() == [first]
    ends = [Choice(best).ends(patience) for patience in (0, best.waited, best.waited + 1)]
    assert ends == [False, best.waited > 0, False]


@pytest.mark.parametrize("seed", range(20))
def test_a_run_that_gets_worse_leaves_its_best_model(seed: int, tmp_path: Path) -> None:
    metric = ("auc", "loss")[seed % 2]
    config = {**WORSENING, "seed": seed, "select-by": metric}
    run, _ = federate(tmp_path / "run", config)
    chosen = best_round(run, metric, least=metric == "loss")
    assert run.result["selected"] == {"round": chosen, "metric": metric, "value": run.lines[chosen][metric]}
    assert run.result["selected"]["value"] == run.result["best"][metric]
    assert "stopped" not in run.result
    # the files contain the selected and the last model; only the selected model has been measured on the test rows
    config_ = config_of(run, config)
    data = federated_data(config_.data, 3)
    for name, rows, told in (
        ("model_best", data.test, run.result["test_metrics"]),
        ("model_best", data.evaluated, run.lines[chosen]),
        ("model", data.evaluated, run.lines[-1]),
    ):
        module = build_model("linear", rows.shape, seed=99)
        module.load_state_dict(load_file(run.path / f"{name}.safetensors"))
        with torch.no_grad():
            scores = module(torch.tensor(rows.features)).numpy()
        assert binary_metrics(rows.labels, scores)["auc"] == pytest.approx(told["auc"], abs=2e-3)


def test_those_runs_do_get_worse(tmp_path: Path) -> None:
    rounds = []
    for seed in range(5):
        run, _ = federate(tmp_path / str(seed), {**WORSENING, "seed": seed, "select-by": "auc"})
        rounds.append(run.result["selected"]["round"])
    assert len({*rounds} - {0, 10}) >= 2


@pytest.mark.parametrize("every", [1, 3])
def test_patience_counts_evaluations(every: int, tmp_path: Path) -> None:
    config = {**WORSENING, "num-server-rounds": 40, "evaluate-every": every, "select-by": "auc"}
    whole, _ = federate(tmp_path / "whole", config)
    run, _ = federate(tmp_path / "run", {**config, "patience": 3, "checkpoint-every": 100})
    evaluated = [line["round"] for line in run.lines if "auc" in line]
    selected = run.result["selected"]["round"]
    assert evaluated[-4:] == [selected + every * k for k in range(4)]
    assert run.result["rounds"] == evaluated[-1] == len(run.lines) - 1 < 40
    assert run.result["stopped"] == {"round": evaluated[-1], "patience": 3}
    assert run.untimed == whole.untimed[: len(run.lines)]
    assert (run.path / "checkpoints" / f"round-{evaluated[-1]:06d}.safetensors").exists()


# Resumed runs.


def crash(after: int) -> Callable[[Exchange], Message]:
    def tamper(exchange: Exchange) -> Message:
        if exchange.server_round > after:
            raise KeyboardInterrupt
        return exchange.reply

    return tamper


@pytest.mark.parametrize(
    ("strategy", "more"),
    [
        ("local-sgd", {}),
        ("fedx2", {"select-by": "loss"}),
        ("scaffold", {"evaluate-every": 2}),
        ("local-scgdam", {"select-by": "loss_inner", "model": "tests.algorithms.minimax_problems:normed_and_dropped"}),
    ],
)
def test_a_run_cut_before_or_after_its_best_round_is_the_whole_one(
    strategy: str, more: dict[str, Scalar], tmp_path: Path
) -> None:
    config: dict[str, Scalar] = {**WORSENING, "strategy": strategy, "select-by": "auc", "checkpoint-every": 2, **more}
    config |= {"patience": 5}
    whole, _ = federate(tmp_path / "whole", config)
    chosen, made = whole.result["selected"]["round"], whole.result["rounds"]
    assert 0 < chosen < made
    assert ("auc_inner" in whole.result["test_metrics"]) == (strategy == "local-scgdam")
    assert (whole.path / "model_best_inner.safetensors").exists() == (strategy == "local-scgdam")
    for after in {chosen - 1, chosen, made - 1} - {0}:
        with pytest.raises(KeyboardInterrupt):
            federate(tmp_path / str(after), {**config, "checkpoint-every": 1}, tamper=crash(after))
        cut, _ = federate(tmp_path / str(after), {**config, "resume": True})
        assert_same_run(cut, whole)


def test_a_run_that_ended_early_goes_on_once_patience_is_raised(tmp_path: Path) -> None:
    config = {**WORSENING, "num-server-rounds": 40, "select-by": "auc", "checkpoint-every": 50}
    early, _ = federate(tmp_path / "run", {**config, "patience": 2})
    made = early.result["rounds"]
    ended = {name: early.result[name] for name in ("rounds", "selected", "test_metrics", "stopped", "bytes_up")}
    again, _ = federate(tmp_path / "run", {**config, "patience": 2, "resume": True, "num-server-rounds": 50})
    assert {name: again.result[name] for name in ended} == ended
    on, _ = federate(tmp_path / "run", {**config, "patience": 4, "resume": True})
    straight, _ = federate(tmp_path / "straight", {**config, "patience": 4})
    assert on.result["rounds"] > made
    assert_same_run(on, straight)
    with refuses(RuntimeError, "resume: select-by: got 'loss', allowed: 'auc', as at the start of the run in"):
        federate(tmp_path / "run", {**config, "select-by": "loss", "resume": True})


# Sites with their own files.


def own(folder: Path, config: dict[str, Scalar]) -> tuple[Run, Any, list[dict[str, Scalar]]]:
    tables = [patients(60 + 20 * place, place) for place in range(SITES)]
    nodes = files(folder, tables)
    keys = {**CSV, "feature-columns": COLUMNS, "strategy": "local-sgd", "validation-fraction": 0.25, "select-by": "auc"}
    return *federate(folder / "run", {**keys, **config}, nodes=nodes), nodes


def test_the_sites_count_their_test_rows_once(tmp_path: Path) -> None:
    run, grid, nodes = own(tmp_path, {"learning-rate": 0.3})
    phases = [exchange.phase for exchange in grid.exchanges]
    first = phases.index(TEST_SCORE_COUNTS)
    assert set(phases[first:]) == {TEST_SCORE_COUNTS}
    assert phases[first - 1] == SCORE_COUNTS
    sent = sum(line["bytes_down"] for line in run.lines)
    assert run.result["bytes_down"] > sent
    # the test rows, scaled by the training rows of all sites
    config = parse_run_config({**CSV, "feature-columns": COLUMNS, "validation-fraction": 0.25})
    sites = [own_rows(config, node, place) for place, node in enumerate(nodes)]
    training = np.concatenate([rows.features[rows.train_rows] for rows in sites])
    text = np.array(["=" in name for name in sites[0].preprocessing.names])
    means, deviations = (np.where(text, plain, of) for plain, of in ((0, training.mean(0)), (1, training.std(0))))
    weights = load_file(run.path / "model_best.safetensors")
    features = np.concatenate([rows.features[rows.test_rows] for rows in sites])
    scores = ((features - means) / deviations) @ weights["output.weight"][0].numpy()
    labels = np.concatenate([rows.labels[rows.test_rows] for rows in sites])
    assert len(labels) == 12 + 16 + 20
    assert binary_metrics(labels, scores)["auc"] == pytest.approx(run.result["test_metrics"]["auc"], abs=2e-3)


def test_a_site_without_an_answer_on_test_rows_is_told(tmp_path: Path) -> None:
    tables = files(tmp_path, [patients(60, place) for place in range(SITES)])

    def tamper(exchange: Exchange) -> Message:
        if exchange.phase == TEST_SCORE_COUNTS and exchange.partition == 1:
            exchange.reply.content.config_records.clear()
        return exchange.reply

    keys = {**CSV, "feature-columns": COLUMNS, "strategy": "local-sgd", "validation-fraction": 0.25, "select-by": "auc"}
    run, _ = federate(tmp_path / "run", keys, nodes=tables, tamper=tamper)
    assert run.result["dropped"]["1"]["reason"].startswith("test-score-counts phase: ")


def test_test_rows_of_one_class_end_the_run_before_its_first_round(tmp_path: Path) -> None:
    nodes: list[dict[str, Scalar]] = [
        {"data-path": str(tmp_path / f"{place}.npz"), "least-cell": 1} for place in range(2)
    ]
    for node in nodes:
        tested: dict[str, Any] = {"X_test": np.eye(4, 3), "y_test": np.zeros(4)}
        np.savez(str(node["data-path"]), X=np.eye(20, 3), y=np.arange(20) % 2, **tested)
    keys: dict[str, Scalar] = {"dataset": "npz", "partition": "own", "validation-fraction": 0.25, "select-by": "auc"}
    with refuses(RuntimeError, "test rows: got 0 positives and 8 negatives at all sites together"):
        federate(tmp_path / "run", {"strategy": "local-sgd", **keys}, nodes=nodes)
    assert not (tmp_path / "run" / "metrics.jsonl").exists()


# Errors, and the output of other commands.


@pytest.mark.parametrize(
    ("metric", "told"), [("acu", "'acu', allowed: auc, .*; did you mean 'auc'"), ("auc_x", "'auc_x'")]
)
def test_a_metric_that_is_not_measured_ends_the_run(metric: str, told: str, tmp_path: Path) -> None:
    with refuses(RuntimeError, rf"select-by: got {told}"):
        federate(tmp_path / "run", {**WORSENING, "select-by": metric})


def test_compare_shows_the_selected_model(tmp_path: Path) -> None:
    plain, other = fake(tmp_path / "a"), fake(tmp_path / "b", {"select-by": "auc", "validation-fraction": 0.2})
    result = json.loads((other / "result.json").read_text())
    result |= {"selected": {"round": 1, "metric": "auc", "value": 0.7}, "test_metrics": {"auc": 0.65}}
    (other / "result.json").write_text(json.dumps(result))
    comparison = Comparison.of([plain, other])
    assert [(row["selected"], row["auc"]) for row in comparison.rows()] == [(None, 0.8), (1, 0.65)]
    assert [run.last("auc") for run in comparison.runs] == [0.8, 0.7]
    assert [run.final("auc") for run in comparison.runs] == [0.8, 0.65]
    assert "b: round 1 selected by auc 0.7000 on validation rows; its metrics are measured on the" in comparison.text()


@pytest.mark.parametrize("method", ["platt", "isotonic"])
def test_a_calibration_makes_probabilities_and_keeps_the_ranking(method: str, tmp_path: Path) -> None:
    config: dict[str, Scalar] = {
        "strategy": "coda",
        "dataset": "breast-cancer",
        "validation-fraction": 0.3,
        "num-server-rounds": 3,
        "select-by": "auc",
    }
    plain, _ = federate(tmp_path / "plain", config, clients=3)
    run, _ = federate(tmp_path / "run", {**config, "calibration": method, "checkpoint-every": 2}, clients=3)
    assert run.result["test_metrics"] == plain.result["test_metrics"]
    entry = run.result["calibration"]
    assert entry["method"] == method
    assert entry["after"]["ece"] < entry["before"]["ece"]
    assert entry["after"]["brier"] < entry["before"]["brier"]
    model, test = florilegium.load(run.path), federated_data(config_of(run, config).data, 3).test
    scores = model.network.predict(torch.tensor(test.features)).numpy()
    brier = np.square(model.calibration(scores) - test.labels).mean()
    assert brier == pytest.approx(entry["after"]["brier"], abs=1e-6)
    content = export_onnx(model).content
    assert difference_from(model, content, pixels=False) < 1e-6
    (run.path / "result.json").unlink()
    again, _ = federate(tmp_path / "run", {**config, "calibration": method, "checkpoint-every": 2, "resume": True}, 3)
    assert again.result["calibration"] == entry


def test_a_calibration_needs_validation_rows() -> None:
    with pytest.raises(ConfigError) as error:
        parse_run_config({"calibration": "platt"})
    assert (error.value.key, error.value.got) == ("calibration", "'platt' without validation rows")
