"""The centralised references against SOX, pairwise SGD and plain SGD in NumPy on the union of the data."""

import dataclasses
from typing import Any

import numpy as np
import pytest

from apps.config import RunConfig, parse_run_config
from apps.sites import resources
from clients.base import Site
from problems.data import FederatedData, Samples
from simulations.references.centralized import train_centralized
from tests.reference import fedx

from .helpers import LINEAR as LINEAR_SCORER
from .helpers import TOLERANCE, UNEQUAL, Case, batches_of, decayed, flattened, make_sites, reference, reference_clients

ROUNDS, STEPS = 4, 3
LOSSES: list[tuple[str, dict[str, Any]]] = [
    *((name, {}) for name in ("square", "psm", "squared-hinge", "logistic")),
    ("kl-opauc", {"lambda": 2.0}),
    ("auprc", {"surrogate": "logistic"}),
    ("p-norm-push", {"surrogate": "logistic"}),
]


def run_config(loss: str, **fedx_options: Any) -> RunConfig:
    flat: dict[str, Any] = {
        "strategy": "local-sgd" if loss == "cross-entropy" else "local-pair",
        "model": "linear",
        "loss": loss,
        "dtype": "float64",
        "seed": 3,
        "score": "logit",
        "num-server-rounds": ROUNDS,
        "local-steps": STEPS,
        "batch-size": 7,
        "learning-rate": 0.1,
        "lr-decay": 0.5,
        "lr-decay-every": 5,
        "fedx.positive-batch-size": 4,
        "fedx.negative-batch-size": 6,
        "fedx.gamma": 0.6,
        "fedx.beta": 0.3,
    }
    return parse_run_config(flat | {f"fedx.{key}": value for key, value in fedx_options.items()})


def federated_data(config: RunConfig) -> tuple[FederatedData, Site, Samples]:
    """Return the data of all sites in a row, as one site, and test samples."""
    sites = make_sites(UNEQUAL)
    X = np.concatenate([site.features.numpy() for site in sites]).astype(np.float32)
    y = np.concatenate([site.labels.numpy() for site in sites]).astype(np.int8)
    test = Samples(np.random.default_rng(0).normal(size=(20, 3)).astype(np.float32), np.arange(20) % 2)
    data = FederatedData(Samples(X, y), test, [len(site) for site in sites], config.data)
    return data, Site.from_arrays(0, X, y, dtype=resources.dtype_of(config.training)), test


def as_case(config: RunConfig) -> Case:
    """Return the same run for the reference: one client, number 0, with the union of the data."""
    training = config.training.model_dump(exclude={"dtype", "loss"})
    return Case(
        config.run.strategy,
        config.training.loss,
        "linear",
        options=tuple(config.family.model_dump().items()),
        training=tuple(training.items()),
    )


@pytest.mark.parametrize(("loss", "options"), LOSSES)
def test_pairwise_losses_follow_sox_and_pairwise_sgd(loss: str, options: dict[str, Any]) -> None:
    config = run_config(loss, **options)
    data, union, test = federated_data(config)
    case = as_case(config)
    w = resources.new_model(config, (3,)).arrays()[0]
    sites = [dataclasses.replace(site, features=site.features.float().double()) for site in make_sites(UNEQUAL)]
    shared = {
        "objective": case.objective,
        "score": LINEAR_SCORER.score,
        "jacobian": LINEAR_SCORER.jacobian,
        "clients": [fedx.union(reference_clients(sites, loss))],
        "w": w,
        "rounds": ROUNDS,
        "local_steps": STEPS,
        "learning_rate": decayed(config.training),
        "batches": batches_of(case, [union], 1),
    }
    records = list(fedx.local_pair(**shared, gamma=0.6, beta=0.3))
    history, named = train_centralized(config, data)
    np.testing.assert_allclose(flattened(named), records[-1].w, **TOLERANCE)

    # the test risk after each round equals the risk of the reference's model
    X, y = test.features.astype(np.float64), test.labels
    second = y >= 0 if loss == "auprc" else y == 0
    client = (X[y == 1], X[second], y[second].astype(np.float64))
    trajectory = [w, *(record.w for record in records)]
    expected = [fedx.full_objective(case.objective, LINEAR_SCORER.score, point, [client]) for point in trajectory]
    np.testing.assert_allclose([metrics["loss"] for metrics in history], expected, rtol=1e-10)
    assert np.abs(np.diff(expected)).min() > 0


def test_cross_entropy_follows_sgd() -> None:
    config = run_config("cross-entropy")
    data, union, _ = federated_data(config)
    case = dataclasses.replace(as_case(config), options=())
    *_, last = reference(case, [union], resources.new_model(config, (3,)).arrays()[0])
    np.testing.assert_allclose(flattened(train_centralized(config, data)[1]), last.w, **TOLERANCE)
