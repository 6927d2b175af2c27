"""Several classes by a softmax: the objective, the metrics, and models in use."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.datasets import load_digits
from sklearn.metrics import accuracy_score, log_loss, roc_auc_score
from torch.nn import functional

from apps.config import ConfigError, Scalar, parse_run_config
from apps.registry import ALGORITHMS
from apps.server_app import RunFailedError
from methods.local_sgd import LOCAL_SGD
from payloads.settings import Settings, TrainingSettings
from problems.data.findings import Findings
from problems.models import FlatModel, build_model
from problems.objectives.classification import SOFTMAX, find_log_odds
from problems.site import Site
from simulations.python.runs import run
from simulations.scoring.card import write_card
from simulations.scoring.export import export_onnx
from simulations.scoring.model import load as load_model
from simulations.scoring.rows import evaluate_file, score_file
from simulations.scoring.thresholds import Threshold
from tests.battery.federation import federate
from tests.refusals import refuses

CLASSES = ("0", "1", "2")
KEYS: dict[str, Scalar] = {"strategy": "local-sgd", "loss": SOFTMAX, "label-columns": ", ".join(CLASSES)}
KEYS |= {"dataset": "npz", "model": "mlp", "num-server-rounds": 4, "local-steps": 32, "pictures": False}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    data = tmp_path / "data"
    data.mkdir()
    x, y = load_digits(n_class=3, return_X_y=True)
    np.savez(data / "train.npz", X=x[:300] / 16, y=y[:300])
    np.savez(data / "test.npz", X=x[300:] / 16, y=y[300:])
    return data


@given(st.integers(2, 6), st.integers(0, 2**32), st.sampled_from([1.0, 30.0, 1e4]))
def test_the_sigmoid_of_log_odds_is_the_softmax(classes: int, seed: int, scale: float) -> None:
    logits = torch.tensor(np.random.default_rng(seed).normal(size=(5, classes)) * scale, dtype=torch.float32)
    odds = find_log_odds(logits)
    assert torch.isfinite(odds).all()
    torch.testing.assert_close(torch.sigmoid(odds), logits.softmax(-1))
    torch.testing.assert_close(functional.softplus(-odds), -logits.log_softmax(-1))


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**32), st.integers(2, 4), st.integers(2, 5))
def test_the_mean_over_sites_is_the_mean_over_rows(seed: int, sites: int, count: int) -> None:
    """The gradient equals autograd's of PyTorch's cross-entropy over the rows of all sites."""
    rng = np.random.default_rng(seed)
    rows = rng.integers(1, 9, size=sites)
    features, codes = rng.normal(size=(rows.sum(), 3)), rng.integers(count, size=rows.sum())
    everything = Findings.of(np.eye(count, dtype=np.int8)[codes], tuple(map(str, range(count))))
    module = build_model("mlp", (3,), seed=0, outputs=count, exclusive=True).double()
    model, total, start = FlatModel(module, dtype=torch.float64, outputs=count), 0.0, 0
    for site_id, size in enumerate(rows.tolist()):
        part = slice(start, start + size)
        site = Site.from_arrays(site_id, features[part], np.zeros(size), dtype=torch.float64)
        site = replace(site, findings=everything[part])
        f = LOCAL_SGD.client.objective(model, site, SOFTMAX, TrainingSettings(), Settings())
        total = total + size / rows.sum() * f.gradient(model.parameters.clone(), site.batch).clone()
        start += size
    plain = build_model("mlp", (3,), seed=0, outputs=count).double()
    functional.cross_entropy(plain(torch.tensor(features)), torch.tensor(codes)).backward()
    expected = torch.cat([parameter.grad.flatten() for parameter in plain.parameters()])  # type: ignore[union-attr]
    np.testing.assert_allclose(total, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("strategy", [name for name, row in ALGORITHMS.items() if SOFTMAX in row.losses])
def test_metrics_are_scikit_learns(strategy: str, folder: Path, tmp_path: Path) -> None:
    """The run before has another loss, for which sites keep a model in memory."""
    keys = {**KEYS, "data-dir": str(folder), "strategy": strategy}
    run({**keys, "loss": "cross-entropy", "num-server-rounds": 1}, tmp_path / "before", clients=3, quiet=True)
    record = run(keys, tmp_path / "run", clients=3, quiet=True)
    trained, test = load_model(record.path), np.load(folder / "test.npz")
    likely, labels = trained.predict_proba(test["X"]), test["y"].astype(str)
    np.testing.assert_allclose(likely.sum(axis=1), 1, atol=1e-6)
    expected = {
        "auc": roc_auc_score(labels, likely / likely.sum(axis=1, keepdims=True), multi_class="ovr"),
        "accuracy": accuracy_score(labels, trained.predict(test["X"])),
        "loss": log_loss(labels, likely / likely.sum(axis=1, keepdims=True)),
    }
    assert {name: record.metrics[name] for name in expected} == pytest.approx(expected, abs=1e-6)
    assert record.metrics["accuracy"] > 0.9
    assert trained.score(test["X"], labels) == record.metrics["accuracy"]
    if strategy == "local-sgd":
        stacked = run(keys, tmp_path / "stacked", clients=3, quiet=True, stack=3)
        assert stacked.metrics == record.metrics


def test_new_rows_have_one_class(folder: Path, tmp_path: Path) -> None:
    record = run({**KEYS, "data-dir": str(folder)}, tmp_path / "run", clients=2, quiet=True)
    trained = load_model(record.path)
    scores = score_file(trained, folder / "test.npz")
    likely = scores[[f"probability_{name}" for name in CLASSES]]
    assert (scores["predicted"] == np.array(CLASSES)[likely.to_numpy().argmax(axis=1)]).all()
    measured = evaluate_file(trained, folder / "test.npz", resamples=20).metrics["accuracy"]
    assert measured.value == record.metrics["accuracy"]
    assert measured.low <= measured.value <= measured.high
    exported = export_onnx(trained)
    assert exported.difference is not None
    assert exported.difference <= 1e-5
    assert "for each of the classes `0`, `1`, `2`" in write_card(trained)
    with refuses(ConfigError, "--threshold: .*predicts the most probable class"):
        Threshold.parse("0.5", trained)
    x, y = load_digits(n_class=4, return_X_y=True)
    np.savez(tmp_path / "more.npz", X=x / 16, y=y)
    with refuses(Exception, "rows with none of the classes"):
        evaluate_file(trained, tmp_path / "more.npz")


def test_sites_count_scores_of_each_class(folder: Path, tmp_path: Path) -> None:
    """The sites' counts give the metrics of each class, but not the largest of a row's scores."""
    data, nodes = np.load(folder / "train.npz"), list[dict[str, Scalar]]()
    for site in range(3):
        np.savez(
            tmp_path / f"{site}.npz",
            X=data["X"][100 * site :][:100].astype(np.float32),
            y=data["y"][100 * site :][:100],
        )
        nodes.append({"data-path": str(tmp_path / f"{site}.npz")})
    shared, _ = federate(
        tmp_path / "test", {**KEYS, "partition": "own", "data-dir": str(folder / "test.npz")}, nodes=nodes
    )
    own, _ = federate(tmp_path / "own", {**KEYS, "partition": "own"}, nodes=nodes)
    assert shared.result["metrics"]["accuracy"] > 0.9
    assert own.result["metrics"]["auc"] > 0.95
    assert own.result["metrics"]["loss"] == pytest.approx(shared.result["metrics"]["loss"], abs=0.3)
    assert "accuracy" not in own.result["metrics"]


@pytest.mark.parametrize(
    ("keys", "match"),
    [
        ({"label-columns": ""}, "loss: .*'softmax' without label-columns"),
        ({"strategy": "fedx1"}, "loss: .*'softmax' with strategy 'fedx1'"),
        ({"calibration": "platt", "validation-fraction": 0.2}, "calibration: .*most probable class"),
        ({"threshold-at": "sensitivity=0.9", "validation-fraction": 0.2}, "threshold-at: .*most probable class"),
        ({"label-columns": "0, 1"}, "rows with none of the classes, or several.*list all classes"),
    ],
)
def test_other_runs_are_refused(keys: dict[str, Any], match: str, folder: Path, tmp_path: Path) -> None:
    with refuses((ConfigError, RunFailedError), match):
        config = {**KEYS, "data-dir": str(folder), **keys}
        parse_run_config(config)
        run(config, tmp_path / "run", clients=2, quiet=True)


def test_a_row_of_a_table_with_several_findings_is_refused(tmp_path: Path) -> None:
    frame = pd.DataFrame({"a": np.sin(np.arange(40)), "x": np.arange(40) % 2, "y": np.arange(40) % 3 == 0})
    frame.to_csv(tmp_path / "train.csv", index=False)
    keys = {**KEYS, "dataset": "csv", "data-dir": str(tmp_path), "label-columns": "x, y"}
    with refuses(RunFailedError, "rows with none of the classes, or several"):
        run(keys, tmp_path / "run", clients=2, quiet=True)
