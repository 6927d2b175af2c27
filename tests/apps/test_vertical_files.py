"""Vertical runs of parties with their own files."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file
from sklearn.metrics import roc_auc_score

from problems.data import Preprocessing
from problems.data.disturb import split_rows
from tests.apps.vertical_runs import CSV, EVERYBODY, own_files, play, states_of
from tests.battery.federation import Run
from tests.reference.vertical import train
from tests.refusals import refuses
from vertical.problem.analysis import value
from vertical.problem.objectives import make_objective


def scaled(whole: pd.DataFrame, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return (n, 9) features of all parties' files, scaled by these training rows, and (n,) signs."""
    raw = whole[[f"x{column}" for column in range(9)]].to_numpy()
    low, high = raw[rows].min(axis=0), raw[rows].max(axis=0)
    return (raw - low) / (high - low), np.where(whole["label"] == 1, 1.0, -1.0)


def trained(X: np.ndarray, y: np.ndarray, batch_size: int, epochs: int = 3) -> np.ndarray:
    """Return (9,) weights that one machine with all data computes."""
    objective = make_objective("logistic")
    return train(X, y, objective, "sgd", step=0.02, epochs=epochs, batch_size=batch_size, seed=0)


def blocks(run: Run) -> np.ndarray:
    return np.concatenate([run.model[f"weights.{party}"] for party in range(3)])


def test_files_of_their_own_are_trained_on_as_if_they_were_one(tmp_path: Path) -> None:
    nodes, whole = own_files(tmp_path, [EVERYBODY] * 3)
    run, _ = play(tmp_path / "run", CSV, nodes)
    train_rows, test_rows = split_rows(60, 0.2, 0, "vertical split")
    X, y = scaled(whole, train_rows)
    w = trained(X[train_rows], y[train_rows], batch_size=8)
    np.testing.assert_allclose(blocks(run), w, rtol=0, atol=1e-9)
    objective = value(X[train_rows], y[train_rows], make_objective("logistic"), w)
    assert run.lines[-1]["objective"] == pytest.approx(objective, abs=1e-9)
    assert run.lines[-1]["auc"] == pytest.approx(roc_auc_score(y[test_rows] > 0, X[test_rows] @ w))
    assert "suboptimality" not in run.lines[-1]  # the server has no data
    assert set(run.model) == {"weights.0", "weights.1", "weights.2"}


def test_the_intercept_is_a_column_of_ones_at_the_party_with_labels(tmp_path: Path) -> None:
    nodes, whole = own_files(tmp_path, [EVERYBODY] * 3, labelled=1)
    run, _ = play(tmp_path / "run", {**CSV, "vfb2.intercept": "auto"}, nodes)
    train_rows, _ = split_rows(60, 0.2, 0, "vertical split")
    X, y = scaled(whole, train_rows)
    w = trained(np.column_stack((X, np.ones(60)))[train_rows], y[train_rows], batch_size=8)
    np.testing.assert_allclose(blocks(run), np.insert(w[:9], 3, w[9]), rtol=0, atol=1e-9)


def test_the_rows_that_all_hold_are_found(tmp_path: Path) -> None:
    nodes, whole = own_files(tmp_path, [EVERYBODY[:50], EVERYBODY[5:], EVERYBODY[:2] + EVERYBODY[10:55]])
    config = {**CSV, "vfb2.alignment": "intersection", "checkpoint-every": 2, "batch-size": 0}
    kept = [{**node, "state-dir": str(tmp_path / "state")} for node in nodes]
    run, grid = play(tmp_path / "run", config, kept)
    ids = []
    for node, state in zip(nodes, states_of(grid), strict=True):
        own = sorted(pd.read_csv(str(node["data-path"]))["id"])
        ids.append([own[row] for row in state.aligned])
    # the rows stay in order: test rows are drawn by index, so every run has the same
    assert ids[0] == ids[1] == ids[2] == EVERYBODY[10:50]
    train_rows, _ = split_rows(40, 0.2, 0, "vertical split")
    X, y = scaled(whole.set_index("id").loc[ids[0]], train_rows)
    X, y = X[train_rows], y[train_rows]
    np.testing.assert_allclose(blocks(run), trained(X, y, batch_size=0), rtol=0, atol=1e-9)
    # a continued run uses the same rows
    more, _ = play(tmp_path / "run", {**config, "num-server-rounds": 5, "resume": True}, kept)
    np.testing.assert_allclose(blocks(more), trained(X, y, batch_size=0, epochs=5), rtol=0, atol=1e-9)


def test_too_many_ids_are_refused_before_the_search(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nodes, _ = own_files(tmp_path, [EVERYBODY[:40], EVERYBODY, EVERYBODY[:50]])
    monkeypatch.setattr("vertical.introductions.MAX_IDS", 50)
    monkeypatch.setattr("vertical.taking_part.find_rows", None)
    with refuses(RuntimeError, r"party 1: vfb2.alignment: got 'intersection' of 60 ids, allowed: at most 50"):
        play(tmp_path / "run", {**CSV, "vfb2.alignment": "intersection"}, nodes)


def test_a_run_goes_on_with_the_rows_it_began_with_only(tmp_path: Path) -> None:
    nodes, _ = own_files(tmp_path, [EVERYBODY] * 3)
    run, _ = play(tmp_path / "run", {**CSV, "checkpoint-every": 3}, nodes)
    for node in nodes:
        frame = pd.read_csv(str(node["data-path"]))
        frame[frame["id"] != EVERYBODY[7]].to_csv(str(node["data-path"]), index=False)
    with refuses(RuntimeError, "resume: party 0: got other rows, values, labels or order of rows"):
        play(run.path, {**CSV, "checkpoint-every": 3, "num-server-rounds": 4, "resume": True}, nodes)
    for state in (run.path / "client-state").rglob("round-*.safetensors"):
        state.unlink()  # the server compares the numbers of rows even if the parties have lost their memory
    with refuses(RuntimeError, r"got \(47, 12\) training and test rows .*, allowed: \(48, 12\)"):
        play(run.path, {**CSV, "checkpoint-every": 3, "num-server-rounds": 4, "resume": True}, nodes)


def test_a_changed_cell_at_a_party_ends_a_resume(tmp_path: Path) -> None:
    nodes, _ = own_files(tmp_path, [EVERYBODY] * 3)
    run, _ = play(tmp_path / "run", {**CSV, "checkpoint-every": 3}, nodes)
    path = str(nodes[1]["data-path"])
    frame = pd.read_csv(path)
    frame.loc[7, "x3"] += 1
    frame.to_csv(path, index=False)
    with refuses(RuntimeError, "resume: party 1: got other rows, values, labels or order of rows"):
        play(run.path, {**CSV, "checkpoint-every": 3, "num-server-rounds": 4, "resume": True}, nodes)


def test_a_party_keeps_what_it_needs_to_predict(tmp_path: Path) -> None:
    nodes, whole = own_files(tmp_path, [EVERYBODY] * 3)
    kept = [{**node, "state-dir": str(tmp_path / "state")} for node in nodes]
    run, _ = play(tmp_path / "run", CSV, kept)
    (file,) = (tmp_path / "state").rglob("client-1/block.safetensors")
    block = load_file(file)
    with safe_open(file, framework="numpy") as tensors:
        assert tensors.metadata()["columns"] == '["x3", "x4", "x5"]'
        made_of = tensors.metadata()["preprocessing"]
    np.testing.assert_array_equal(block["weights"], run.model["weights.1"])
    train_rows, _ = split_rows(60, 0.2, 0, "vertical split")
    raw = whole[["x3", "x4", "x5"]].to_numpy()[train_rows]
    scales = [(one.mean, one.mean + one.deviation) for one in Preprocessing.from_json(json.loads(made_of)).outputs]
    np.testing.assert_allclose(np.transpose(scales), [raw.min(axis=0), raw.max(axis=0)], rtol=1e-15)
