"""Thresholds, calibrations and figures of sites for each of several labels, and their use with a trained model."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from apps.config import Scalar, parse_run_config
from apps.sites.rows import own_rows
from problems.calibration import Calibrations, Isotonic, Platt
from problems.metrics import accuracy
from simulations.python.runs import run
from simulations.results.report import write_report
from simulations.results.target import is_scores
from simulations.scoring.card import write_card
from simulations.scoring.export import export_onnx
from simulations.scoring.model import load
from simulations.scoring.rows import evaluate_file, score_file
from simulations.scoring.thresholds import Threshold
from tests.battery.federation import federate
from tests.problems.test_findings import NAMES, make_table

KEYS: dict[str, Scalar] = {"dataset": "csv", "label-columns": ", ".join(NAMES), "strategy": "local-sgd"}
KEYS |= {"learning-rate": 0.5, "local-steps": 10, "model": "linear", "validation-fraction": 0.3}
CHOICES: dict[str, Scalar] = {"threshold-at": "sensitivity=0.8", "calibration": "platt", "site-metrics": True}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    data = tmp_path / "data"
    data.mkdir()
    frame = make_table(600).assign(ward=np.arange(600) % 3)
    frame.to_csv(data / "train.csv", index=False)
    make_table(300, seed=1).assign(ward=np.arange(300) % 3).to_csv(data / "test.csv", index=False)
    return data


def test_figures_of_a_finding_are_of_its_known_rows(folder: Path, tmp_path: Path) -> None:
    keys = {**KEYS, **CHOICES, "data-dir": str(folder), "site-column": "ward", "partition": "natural"}
    keys |= {"pictures": False, "num-server-rounds": 3}
    together = run(keys, tmp_path / "run", clients=3, quiet=True).result
    test = pd.read_csv(folder / "test.csv")
    assert together["findings"].keys() == {*NAMES}
    trained = load(tmp_path / "run")
    scores = trained.decision_function(test)
    for index, name in enumerate(NAMES):
        entry, known = together["findings"][name], test[name].notna()
        labels, own = test[name][known].to_numpy().astype(int), scores[known, index]
        assert entry["all"]["auc"][0] == pytest.approx(together["test_metrics"][f"auc_{name}"])
        assert (entry["all"]["rows"], entry["all"]["positives"]) == (known.sum(), labels.sum())
        assert entry["threshold"]["sensitivity"] >= 0.8
        called = own >= entry["threshold"]["score"]
        assert entry["all"]["confusion"]["true_positives"] == (called & (labels == 1)).sum()
        likely = trained.predict_proba(test)[known, index]
        assert entry["calibration"]["after"]["brier"] == pytest.approx(((likely - labels) ** 2).mean())
        rows = [site["rows"] for site in entry["sites"]]
        assert rows == test[known].groupby("ward").size().tolist()


@pytest.mark.parametrize("method", ["platt", "isotonic"])
def test_a_model_uses_its_choices(method: str, folder: Path, tmp_path: Path) -> None:
    keys = {**KEYS, **CHOICES, "calibration": method, "data-dir": str(folder), "feature-columns": "a, b, c, d"}
    record = run({**keys, "num-server-rounds": 3}, tmp_path / "run", clients=2, quiet=True)
    trained, test = load(record.path), pd.read_csv(folder / "test.csv")
    thresholds = [record.result["findings"][name]["threshold"]["score"] for name in NAMES]
    scores = trained.decision_function(test)
    np.testing.assert_array_equal(trained.predict(test), scores >= thresholds)
    assert isinstance(trained.calibration, Calibrations)
    assert {type(one) for one in trained.calibration.of_findings} == {Platt if method == "platt" else Isotonic}
    chosen = Threshold.parse("run", trained)
    written = score_file(trained, folder / "test.csv", threshold=chosen)
    np.testing.assert_array_equal(written[[f"predicted_{name}" for name in NAMES]], trained.predict(test))
    content = written.to_csv(index=False).encode()
    assert is_scores(content, list(written.columns), [trained.calibration.of_findings[0]])
    assert "scar: score" in chosen.words
    exported = export_onnx(trained)
    assert exported.difference is not None
    assert exported.difference <= 1e-5
    card = write_card(trained)
    assert f"Probabilities come from the scores by {method}, fitted on validation rows for each finding." in card
    assert "| oedema |" in card
    assert "lowest of a site" in write_report([record.path]).read_text("utf-8")
    measured = evaluate_file(trained, folder / "test.csv", resamples=3).metrics["accuracy"].value
    known = test[[*NAMES]].notna().to_numpy()
    exact = [accuracy(test[name][known[:, j]], scores[known[:, j], j], thresholds[j]) for j, name in enumerate(NAMES)]
    assert measured == pytest.approx(np.mean(exact))


def test_a_resumed_run_has_the_same_choices(folder: Path, tmp_path: Path) -> None:
    keys = {**KEYS, **CHOICES, "data-dir": str(folder), "select-by": "auc", "checkpoint-every": 1}
    whole, _ = federate(tmp_path / "whole", {**keys, "num-server-rounds": 3})
    federate(tmp_path / "part", {**keys, "num-server-rounds": 2})
    part, _ = federate(tmp_path / "part", {**keys, "num-server-rounds": 3, "resume": True})
    assert part.result["findings"] == whole.result["findings"]


def test_sites_count_at_the_threshold(tmp_path: Path) -> None:
    """The threshold of each finding is an edge of its bins, so the counts are exact."""
    nodes = []
    for place in range(3):
        make_table(300, seed=place).to_csv(tmp_path / f"{place}.csv", index=False)
        nodes.append({"data-path": str(tmp_path / f"{place}.csv"), "least-cell": 1})
    keys = {**KEYS, **CHOICES, "partition": "own"}
    finished, _ = federate(tmp_path / "run", keys, nodes=nodes)
    trained, sites = load(finished.path), [own_rows(parse_run_config(keys), node, n) for n, node in enumerate(nodes)]
    files = [pd.read_csv(str(node["data-path"])).iloc[site.test_rows] for node, site in zip(nodes, sites, strict=True)]
    table = pd.concat(files)
    predicted = trained.predict(table)
    for index, name in enumerate(NAMES):
        entry = finished.result["findings"][name]
        true = int((predicted[:, index] * table[name].fillna(0)).sum())
        assert entry["all"]["confusion"]["true_positives"] == true
        sums = np.sum([list(site["confusion"].values()) for site in entry["sites"]], axis=0)
        assert sums.tolist() == list(entry["all"]["confusion"].values())
