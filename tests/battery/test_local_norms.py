"""Batch norms that stay at their sites (FedBN): replies without them, evaluation with them, resume, and the models."""

import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from safetensors.numpy import load_file

from apps.config import ConfigError, Scalar, parse_run_config
from apps.sites.resources import new_model
from problems.data import DataError
from problems.models import ModelError
from simulations.baselines.train import check_baselines
from simulations.scoring.model import load
from tests.battery.federation import Run, federate, model_of, patients
from tests.refusals import refuses

CONFIG: dict[str, Scalar] = {
    "dataset": "csv",
    "partition": "own",
    "label-column": "ill",
    "positive-label": "yes",
    "feature-columns": "age,weight",
    "strategy": "local-sgd",
    "model": "tests.apps.own_models:Normed",
    "learning-rate": 0.1,
    "checkpoint-every": 1,
}
LOCAL: dict[str, Scalar] = {**CONFIG, "batch-norm": "local"}
AVERAGED = {f"network.{name}" for name in ("0.weight", "0.bias", "3.weight", "3.bias")}


@pytest.fixture
def sites(tmp_path: Path) -> list[dict[str, Scalar]]:
    """Three sites whose patients differ in their weight."""
    nodes: list[dict[str, Scalar]] = []
    for site in range(3):
        path = tmp_path / f"site{site}.csv"
        patients(90, site, shift=10.0 * site).to_csv(path, index=False)
        nodes.append({"data-path": str(path)})
    return nodes


def own_models(run: Run) -> list[dict[str, np.ndarray]]:
    return [dict(load_file(path)) for path in sorted(run.path.glob("client-state/*/client-*/model.safetensors"))]


@pytest.mark.parametrize("keys", [{}, {"strategy": "fedprox"}, {"privacy.secure-sum": True}])
def test_batch_norms_stay_at_the_sites(keys: dict[str, Scalar], sites: list[dict[str, Scalar]], tmp_path: Path) -> None:
    run, tap = federate(tmp_path / "run", {**LOCAL, **keys}, nodes=sites)
    model = new_model(parse_run_config(LOCAL), (2,))
    for exchange in tap.exchanges:
        if not keys.get("privacy.secure-sum") and not exchange.phase:
            sent, reply = model_of(exchange.message), model_of(exchange.reply)
            assert np.array_equal(reply[0][model.norm_entries], sent[0][model.norm_entries])
            assert np.array_equal(reply[1], sent[1])
            assert not np.array_equal(reply[0], sent[0])
    assert set(run.model) == AVERAGED
    first, second, third = own_models(run)
    for name in first:
        same = np.array_equal(first[name], second[name]) and np.array_equal(second[name], third[name])
        assert same == (name in AVERAGED or name.endswith("num_batches_tracked"))
        assert name not in AVERAGED or np.array_equal(first[name], run.model[name])


def test_one_site_trains_and_evaluates_as_if_averaged(sites: list[dict[str, Scalar]], tmp_path: Path) -> None:
    averaged, _ = federate(tmp_path / "averaged", CONFIG, nodes=sites[:1])
    local, _ = federate(tmp_path / "local", LOCAL, nodes=sites[:1])
    assert [line["loss"] for line in local.lines] == [line["loss"] for line in averaged.lines]
    (model,) = own_models(local)
    np.testing.assert_equal(model, averaged.model)


def test_a_resumed_run_is_the_uninterrupted_one(sites: list[dict[str, Scalar]], tmp_path: Path) -> None:
    config: dict[str, Scalar] = {**LOCAL, "site-metrics": True, "num-server-rounds": 4}
    whole, _ = federate(tmp_path / "whole", config, nodes=sites)
    federate(tmp_path / "parts", {**config, "num-server-rounds": 2}, nodes=sites)
    for _ in range(2):  # the second time only evaluates
        parts, _ = federate(tmp_path / "parts", {**config, "resume": True}, nodes=sites)
        assert parts.untimed == whole.untimed
        assert parts.result["sites"] == whole.result["sites"]
        np.testing.assert_equal(own_models(parts), own_models(whole))


def test_a_site_scores_with_its_own_model(sites: list[dict[str, Scalar]], tmp_path: Path) -> None:
    run, _ = federate(tmp_path / "run", LOCAL, nodes=sites)
    rows = pd.DataFrame({"age": [30.0, 60.0], "weight": [60.0, 90.0]})
    with refuses(DataError, "Missing key.*network.1.weight.*a site's own model"):
        load(run.path)
    scores = []
    for path in sorted(run.path.glob("client-state/*/client-*/model.safetensors")):
        shutil.copy(path, run.path / "model.safetensors")
        scores.append(load(run.path).predict_proba(rows)[:, 1])
    assert np.ptp(scores, axis=0).min() > 0


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"strategy": "coda"}, "with strategy 'coda', allowed: .*fedprox, local-sgd"),
        ({"partition": "iid", "data-dir": "data"}, "with partition 'iid', allowed: .*the sites evaluate"),
        ({"select-by": "auc", "validation-fraction": 0.2}, "with select-by 'auc', allowed: .*the last round only"),
    ],
)
def test_what_needs_common_batch_norms_is_refused(keys: dict[str, Scalar], message: str) -> None:
    with refuses(ConfigError, f"batch-norm: got 'local' {message}"):
        parse_run_config({**LOCAL, **keys})
    with refuses(ConfigError, "--baselines: got a run with batch-norm 'local'"):
        check_baselines(parse_run_config(LOCAL))
    with refuses(ModelError, "batch-norm: got 'local' for a model without trained batch norms"):
        new_model(parse_run_config({**LOCAL, "model": "mlp"}), (2,))
