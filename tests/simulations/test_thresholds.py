"""Tests of `predict --threshold`: the column of predictions, and the thresholds of a run."""

import io
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import florilegium
from tests.battery.federation import Run, federate, patients
from tests.programs import Line
from tests.refusals import states
from tests.simulations.fabricated import refusal


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, Path]:
    """Return a run with a threshold and calibrated probabilities, and its file."""
    folder = tmp_path_factory.mktemp("thresholds")
    patients(300, 0).to_csv(folder / "all.csv", index=False)
    config = {"dataset": "csv", "data-dir": str(folder / "all.csv"), "label-column": "ill", "positive-label": "yes"}
    config |= {"strategy": "local-sgd", "drop-columns": "name", "validation-fraction": 0.25, "calibration": "platt"}
    run, _ = federate(folder / "run", {**config, "threshold-at": "sensitivity=0.8", "site-metrics": True})
    return run, folder / "all.csv"


@pytest.mark.parametrize("given", ["0.3", "score=-0.5", "run", "youden"])
def test_a_threshold_adds_predictions(command: Line, made: tuple[Run, Path], given: str, tmp_path: Path) -> None:
    run, new = made
    code, out, err = command("predict", run.path, new, "--threshold", given)
    assert (code, "; predicted is 1 at or above " in err) == (0, True)
    scores = pd.read_csv(io.StringIO(out))
    assert list(scores.columns) == ["score", "probability", "predicted"]
    column = "probability" if given == "0.3" else "score"
    start = {"0.3": 0.3, "score=-0.5": -0.5, "run": run.result["threshold"]["score"]}.get(given)
    if start is None:
        start = scores.score[scores.predicted == 1].min()
        assert start >= max(score for score in run.result["all"]["by_score"]["from_score"] if score <= start)
    assert 0 < scores.predicted.mean() < 1
    np.testing.assert_array_equal(scores.predicted, (scores[column] >= start).astype(int))
    for _ in range(2):  # a calibrated table is replaced too
        assert command("predict", run.path, new, "--threshold", given, "--out", tmp_path / "a.csv")[0] == 0


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("2", "--threshold: got '2', allowed: a probability between 0 and 1, score=x, run, or youden"),
        ("score=nan", "--threshold: got 'score=nan'"),
        ("best", "--threshold: got 'best'"),
    ],
)
def test_other_thresholds_are_refused(command: Line, made: tuple[Run, Path], given: str, expected: str) -> None:
    assert states(refusal(command, "predict", made[0].path, made[1], "--threshold", given), expected)


def test_a_run_without_a_threshold_names_the_key(command: Line, tmp_path: Path) -> None:
    run, _ = federate(tmp_path / "a", {"strategy": "local-sgd", "num-server-rounds": 1}, 2)
    assert florilegium.load(run.path).threshold == 0.0
    np.savez(tmp_path / "new.npz", X=np.zeros((2, 64)))
    for given, key in (("run", "threshold-at"), ("youden", "site-metrics=true")):
        expected = refusal(command, "predict", run.path, tmp_path / "new.npz", "--threshold", given)
        assert "but the run has no such threshold for model 'last'" in expected
        assert f"train again with {key}" in expected


def test_a_model_without_the_threshold_names_the_model_with_it(command: Line, made: tuple[Run, Path]) -> None:
    run, new = made
    shutil.copyfile(run.path / "model.safetensors", run.path / "model_other.safetensors")
    expected = refusal(command, "predict", run.path, new, "--threshold", "run", "--model", "other")
    assert "set --model to last" in expected
