"""Every registered client is a Flower NumPyClient that can be driven with NumPy arrays and no runtime."""

from typing import Any

import numpy as np
import pytest
from flwr.client import NumPyClient

from apps.registry import ALGORITHMS
from clients.base import Site
from payloads.fedx import FedXPool, FedXSettings
from payloads.settings import TrainingSettings

from .helpers import LINEAR


def make_client(name: str) -> tuple[Any, Site]:
    rng = np.random.default_rng(0)
    labels = np.repeat([1, 0], [5, 8])
    site = Site.from_arrays(0, rng.normal(size=(13, 3)) + labels[:, None], labels, dtype=LINEAR.model().dtype)
    row = ALGORITHMS[name]
    family = FedXSettings() if row.settings is FedXSettings else row.settings()
    return row.client(site, LINEAR.model(), TrainingSettings(dtype="float64"), family), site


def make_pool(name: str) -> FedXPool | None:
    if ALGORITHMS[name].client.down is not FedXPool:
        return None
    return FedXPool(
        totals=np.array([1, 5, 8]),
        positive_scores=np.array([0.3, 1.2]),
        positive_lengths=np.array([2]),
        positive_weights=np.array([1.0]),
        partner_scores=np.array([-0.5, 0.1, 0.4]),
        partner_lengths=np.array([3]),
        partner_weights=np.array([1.0]),
    )


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_client_is_driven_with_arrays(name: str) -> None:
    client, _ = make_client(name)
    assert isinstance(client, NumPyClient)
    weights = [np.array([0.2, -0.1, 0.3, 0.0])]
    client.inbox = make_pool(name)
    arrays, num_examples, metrics = client.fit([weights[0].copy()], {"server-round": 1})
    assert [type(arrays), type(num_examples), type(metrics)] == [list, int, dict]
    assert [array.shape for array in arrays] == [(4,)]
    assert arrays[0].dtype == np.float64
    assert num_examples == 13
    assert np.linalg.norm(arrays[0] - weights[0]) > 1e-3
    assert (client.outbox is None) == (client.up is None)
    if client.up is not None:
        assert isinstance(client.outbox, client.up)
        client.outbox.check({"d": 4})


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_client_evaluates_on_its_own_samples(name: str) -> None:
    client, site = make_client(name)
    w = np.array([0.2, -0.1, 0.3, 0.5])
    loss, num_examples, metrics = client.evaluate([w], {})
    logits, y = site.features.numpy() @ w[:3] + 0.5, site.labels.numpy()
    assert loss == pytest.approx(np.mean(np.logaddexp(0, logits) - y * logits), rel=1e-12)
    assert num_examples == 13
    assert metrics == {"accuracy": pytest.approx(np.mean((logits > 0) == (y == 1)))}


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_fit_leaves_its_arguments_alone_and_is_repeatable(name: str) -> None:
    weights, results = np.array([0.2, -0.1, 0.3, 0.0]), []
    for _ in range(2):
        client, _ = make_client(name)
        client.inbox = make_pool(name)
        results.append(client.fit([weights], {"server-round": 1})[0][0])
    np.testing.assert_array_equal(weights, [0.2, -0.1, 0.3, 0.0])
    np.testing.assert_array_equal(*results)


def test_fedx_without_a_pool_says_what_is_missing() -> None:
    client, _ = make_client("fedx1")
    with pytest.raises(ValueError, match="FedXPool is needed"):
        client.fit([np.zeros(4)], {"server-round": 1})
