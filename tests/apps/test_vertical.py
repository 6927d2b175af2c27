"""The results of vertical runs, and the run configs that they refuse."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

import vertical.taking_part
from apps.config import ConfigError, Scalar, parse_run_config
from apps.evaluation.vertical import VerticalEvaluator
from problems.data import DataSpec
from simulations.engines.launch import run_nonfederated
from tests.apps.vertical_runs import KEYS, PARTIES, play
from tests.battery.federation import Run, flat_config, payloads_of
from tests.programs import Line
from tests.reference.vertical import train
from tests.refusals import refuses
from vertical.injection import Injection, inject, make_injections
from vertical.problem.analysis import minimum, value
from vertical.problem.data import load_vertical
from vertical.problem.objectives import make_objective
from vertical.records import Segment


@pytest.mark.parametrize("algorithm", ["sgd", "svrg", "saga"])
def test_one_active_party_in_step_is_the_nonfederated_run(algorithm: str, tmp_path: Path) -> None:
    """Weights agree to 1e-9, the rounding of the masks' fixed-point numbers."""
    config = {"strategy": f"vfb2-{algorithm}", "vfb2.active-parties": 1, "vfb2.epochs": 2}
    run, _ = play(tmp_path / "run", config)
    run_nonfederated(flat_config(tmp_path / "alone", {**KEYS, **config}))
    alone = Run(tmp_path / "alone")
    np.testing.assert_allclose(run.model["weights"], alone.model["weights"], rtol=0, atol=1e-9)
    assert np.linalg.norm(run.model["weights"]) > 0.1
    for here, there in zip(run.lines, alone.lines, strict=True):
        for name in ("objective", "loss", "accuracy", "auc", "suboptimality"):
            assert here[name] == pytest.approx(there[name], rel=0, abs=1e-9)
    assert alone.result["strategy"] == alone.result["engine"] == "nonfederated"


def test_an_experiment_delays_each_party(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, injected = vertical.taking_part.run_segment, dict[int, Injection]()

    def run_segment(me: int, *rest: Any, **options: Any) -> Any:
        injected[me] = options["injection"]
        return real(me, *rest, **options)

    monkeypatch.setattr("vertical.taking_part.run_segment", run_segment)
    injections = make_injections(PARTIES, compute=1e-5, delay=1e-6, slowest=2)
    with inject(injections):
        play(tmp_path / "run", {"num-server-rounds": 1})
    assert injected == dict(enumerate(injections))


def test_a_run_out_of_step_comes_as_far(tmp_path: Path) -> None:
    config: dict[str, Scalar] = {"strategy": "vfb2-saga", "num-server-rounds": 4, "learning-rate": 0.04}
    inside, _ = play(tmp_path / "inside", {**config, "vfb2.synchronous": True})
    outside, _ = play(tmp_path / "outside", {**config, "vfb2.synchronous": False})
    started, left = inside.lines[0]["suboptimality"], inside.lines[-1]["suboptimality"]
    assert left < 0.5 * started
    assert outside.lines[-1]["suboptimality"] == pytest.approx(left, rel=0.2)


@pytest.mark.parametrize("masking", ["pairwise", "two-trees"])
def test_the_model_is_that_of_all_columns_and_the_metrics_are_its(masking: str, tmp_path: Path) -> None:
    run, _ = play(tmp_path / "run", {"vfb2.masking": masking})
    data, objective = load_vertical(DataSpec("breast-cancer"), PARTIES), make_objective("logistic")
    rows, labels = data.train_features, data.train_labels
    settings: dict[str, Any] = {"step": 0.02, "epochs": 3, "batch_size": 8, "seed": 0, "active": 2}
    w = run.model["weights"]
    np.testing.assert_allclose(w, train(rows, labels, objective, "sgd", **settings), rtol=0, atol=1e-9)
    z = data.test_features @ w
    expected = {
        "objective": value(rows, labels, objective, w),
        "loss": np.mean(np.logaddexp(0, -data.test_labels * z)),
        "accuracy": np.mean((z >= 0) == (data.test_labels > 0)),
        "suboptimality": value(rows, labels, objective, w) - minimum(rows, labels, objective)[1],
    }
    assert {name: run.lines[-1][name] for name in expected} == pytest.approx(expected, rel=0, abs=1e-9)
    # the AUC is approximate: it comes from counts of scores, since each dominator sees only its own scores
    assert run.lines[-1]["auc"] == pytest.approx(roc_auc_score(data.test_labels > 0, z), abs=1e-3)
    assert run.result["best"]["suboptimality"] == min(line["suboptimality"] for line in run.lines)
    assert set(run.model) == {"weights", *(f"{kind}.{p}" for kind in ("weights", "columns") for p in range(PARTIES))}
    for party, columns in enumerate(data.columns):
        np.testing.assert_array_equal(run.model[f"columns.{party}"], columns)
        np.testing.assert_array_equal(w[columns], run.model[f"weights.{party}"])


@pytest.mark.parametrize("problem", ["ridge", "robust", "nonconvex-logistic"])
def test_the_other_problems_learn(problem: str, tmp_path: Path) -> None:
    run, _ = play(tmp_path / "run", {"vfb2.problem": problem, "learning-rate": 0.005})
    assert run.lines[-1]["objective"] < 0.7 * run.lines[0]["objective"]
    assert ("rmse" in run.lines[-1]) == (problem in ("ridge", "robust"))


def test_the_minimum_is_of_the_run_s_own_columns() -> None:
    for intercept in (False, True):
        evaluator = VerticalEvaluator(parse_run_config({**KEYS, "vfb2.intercept": intercept}), PARTIES)
        assert evaluator.data is not None
        expected = minimum(evaluator.data.train_features, evaluator.data.train_labels, evaluator.objective)[1]
        assert evaluator.minimum() == expected


def test_parties_reach_each_other_by_tcp(tmp_path: Path) -> None:
    run, tap = play(tmp_path / "tcp", {"vfb2.transport": "tcp"})
    segments = [down for down, _ in (payloads_of("vfb2-sgd", e) for e in tap.exchanges) if isinstance(down, Segment)]
    assert all(address.startswith("tcp:127.0.0.1:") for address in segments[0].peers()[1])
    by_path, _ = play(tmp_path / "unix", {})
    assert run.model_bytes == by_path.model_bytes


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"dtype": "float32"}, "dtype: got 'float32', allowed: 'float64', since strategy 'vfb2-sgd'"),
        ({"partition": "dirichlet"}, "partition: got 'dirichlet', allowed: iid or consecutive"),
        ({"client-shift": 1.0}, "client-shift: got 1.0, allowed: 0"),
        (
            {"dataset": "synthetic-sparse-logistic"},
            "got 'synthetic-sparse-logistic', whose clients draw",
        ),
        ({"loss": "cross-entropy"}, "strategy 'vfb2-sgd', allowed: auto, vertical"),
        ({"fraction-train": 0.5}, "since strategy 'vfb2-sgd' trains a block of columns at every client"),
        ({"vfb2.problem": "ridge", "vfb2.label-epsilon": 1.0}, "vfb2.label-epsilon: got 1.0, allowed: 0"),
    ],
)
def test_what_has_no_meaning_for_columns_is_refused(config: dict[str, Scalar], words: str) -> None:
    with refuses(ConfigError, words):
        parse_run_config({**KEYS, **config})


def test_the_reference_of_a_vertical_strategy_prints_and_saves(command: Line, tmp_path: Path) -> None:
    config = 'strategy="vfb2-svrg" dataset="breast-cancer" num-server-rounds=2 learning-rate=0.02'
    code, out, _ = command("centralized", "--out", tmp_path / "run", "-c", config)
    assert code == 0
    assert [line.split()[:2] for line in out.splitlines()] == [["round", "1"], ["round", "2"]]
    run = Run(tmp_path / "run")
    assert {"auc", "accuracy", "objective", "suboptimality", "loss"} == set(run.result["metrics"])
    assert run.model["weights"].shape == (30,)
