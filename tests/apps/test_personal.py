"""Fine-tuning at the sites after a run, and the figures of each site's models on its own rows."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import ConfigRecord, Message, MessageType, RecordDict
from safetensors.numpy import load_file
from sklearn.metrics import roc_auc_score

from apps.client_app import app as client_app
from apps.config import ConfigError, Scalar, parse_run_config
from apps.server_app import app as server_app
from apps.sites.resources import federated_data
from clients.fine_tuning import fine_tune
from payloads.flower_internals import readdress
from payloads.held_out import OF_TUNED
from payloads.settings import TrainingSettings
from payloads.wire import PHASE
from problems.intervals import AUC
from problems.models import FlatModel, build_model
from problems.site import Site
from simulations.baselines import train_baselines
from simulations.engines.grid import FIRST_NODE_ID
from tests.apps.test_own_data import files
from tests.apps.test_site_figures import OWN, scored
from tests.battery.federation import Exchange, Wiretap, federate, flat_config, patients, serve
from tests.refusals import refuses

HEART: dict[str, Scalar] = {
    "dataset": "heart-disease",
    "partition": "natural",
    "strategy": "local-sgd",
    "learning-rate": 0.1,
    "site-metrics": True,
    "fine-tune-steps": 15,
}


def descend(w: np.ndarray, x: np.ndarray, y: np.ndarray, steps: int, eta: float) -> np.ndarray:
    """Take gradient steps on a logistic regression, whose bias is the last entry of w."""
    design = np.hstack([x, np.ones((len(x), 1))])
    for _ in range(steps):
        w = w - eta * design.T @ (1 / (1 + np.exp(-design @ w)) - y) / len(y)
    return w


def test_fine_tuning_takes_plain_steps_without_the_schedule() -> None:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(40, 3)), (np.arange(40) % 3 == 0).astype(float)
    model = FlatModel(build_model("linear", (3,), seed=0), dtype=torch.float64)
    site = Site.from_arrays(0, x, y, dtype=torch.float64)
    training = TrainingSettings(batch_size=0, learning_rate=0.2, lr_cosine=True, lr_decay=0.5, dtype="float64")
    start = np.array([0.3, -0.2, 0.1, 0.05])
    for server_round in (4, 9):
        (tuned,) = fine_tune(model, [start], site, training, 7, server_round)
        np.testing.assert_allclose(tuned, descend(start, x, y, 7, 0.2), atol=1e-12)


@pytest.mark.parametrize("strategy", ["local-sgd", "scaffold"])
@pytest.mark.parametrize("validated", [False, True])
def test_each_sites_models_are_measured_on_its_own_rows(strategy: str, validated: bool, tmp_path: Path) -> None:
    keys: dict[str, Scalar] = {"batch-size": 0, "dtype": "float64", "strategy": strategy}
    keys |= {"validation-fraction": 0.3, "select-by": "auc"} if validated else {}
    run, _ = federate(tmp_path / "run", HEART | keys, clients=4)
    data = federated_data(parse_run_config(flat_config(run.path, HEART | keys)).data, 4)
    weights = load_file(run.path / ("model_best.safetensors" if validated else "model.safetensors"))
    w = np.append(weights["output.weight"][0], weights["output.bias"])
    sites = run.result["sites"]
    for entry in run.result["site_models"]:
        place, test = entry["partition"], data.test
        own, rows = data.client(place), test.sites == place
        tuned = descend(w, np.array(own.features, float), own.labels, 15, 0.1)
        for kind, vector in (("common", w), ("fine_tuned", tuned)):
            scores = np.array(test.features, float)[rows] @ vector[:-1] + vector[-1]
            assert entry[kind][AUC] == pytest.approx(roc_auc_score(test.labels[rows], scores), abs=2e-3)
        (figures,) = [site for site in sites if site["partition"] == place]
        assert (entry["rows"], entry["name"], entry["common"][AUC]) == (
            *(figures[key] for key in ("rows", "name")),
            figures[AUC] and figures[AUC][0],
        )
    assert [entry["partition"] for entry in run.result["site_models"]] == [site["partition"] for site in sites]


def test_a_site_with_its_own_file_keeps_its_model(tmp_path: Path) -> None:
    nodes = files(tmp_path, [patients(80, place, shift=place) for place in range(3)])
    nodes[1]["least-cell"] = 5
    keys: dict[str, Scalar] = {"fine-tune-steps": 40, "checkpoint-every": 1, "local-steps": 8}
    run, tap = federate(tmp_path / "run", {**OWN, **keys}, nodes=nodes)
    kept = sorted((run.path / "client-state").rglob("fine-tuned.safetensors"))
    assert [file.parent.name for file in kept] == ["client-0", "client-1", "client-2"]
    # the messages have counts only
    assert {name for each in tap.exchanges if each.phase in OF_TUNED for name in each.reply.content} == {
        "payload",
        "metrics",
    }
    for place in (0, 2):
        file = run.path / f"of-{place}.safetensors"
        file.write_bytes(kept[place].read_bytes())
        labels, scores = scored(run, nodes, "evaluated_rows", f"of-{place}")[place]
        found = run.result["site_models"][place]["fine_tuned"][AUC]
        assert found == pytest.approx(roc_auc_score(labels, scores), abs=0.01)


def test_a_site_refuses_to_fine_tune_in_another_run(tmp_path: Path) -> None:
    nodes = files(tmp_path, [patients(80, place) for place in range(3)])
    reasons: list[str] = []

    def ask_again(exchange: Exchange) -> Message:
        message = exchange.message
        if message.metadata.message_type == MessageType.EVALUATE and not reasons:
            config = ConfigRecord({**message.content["config"], PHASE: OF_TUNED[0]})
            asked = RecordDict({**message.content, "config": config})
            (answer,) = tap.answer([readdress(message, FIRST_NODE_ID, asked)])
            reasons.append(answer.error.reason)
        return exchange.reply

    flat = flat_config(tmp_path / "run", OWN)
    tap = Wiretap(client_app, 3, flat, nodes, tamper=ask_again)
    serve(tap, server_app, flat)
    assert "in a run with fine-tune-steps=0" in reasons[0]


def test_baselines_add_the_model_of_the_site_alone(tmp_path: Path) -> None:
    run, _ = federate(tmp_path / "run", HEART | {"pictures": False}, clients=4)
    compared = train_baselines(run.path, 4, flat_config(run.path, HEART))
    entries: list[dict[str, Any]] = run.result["site_models"]
    alone = [entry["alone"] and entry["alone"][AUC] for entry in entries]
    assert alone[2] is None  # Switzerland's training rows have one class
    assert all(value is not None for value in alone[:2])
    table = compared.text()[compared.text().index("models of each site on its own rows") :]
    assert f"{alone[0]:.4f}" in table
    assert "auc fine-tuned" in table


@pytest.mark.parametrize(
    ("keys", "text"),
    [
        ({"partition": "iid"}, "got 15 with rows of no single site"),
        ({"partition": "own", "dataset": "csv", "data-dir": "/srv/t.csv"}, "got 15 with rows of no single site"),
        ({"privacy.secure-sum": True}, "got 15 with privacy.secure-sum"),
        ({"privacy.epsilon": 3.0}, "got 15 with privacy.epsilon"),
        ({"strategy": "fedx1"}, "got 15 with loss"),
        ({"site-metrics": False}, "got 15, allowed: 0, since without site-metrics=true"),
    ],
)
def test_what_is_refused(keys: dict[str, Scalar], text: str) -> None:
    with refuses(ConfigError, f"fine-tune-steps: {text}"):
        parse_run_config(HEART | keys)
