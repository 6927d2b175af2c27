"""Every registered client evaluates a model without a runtime, and reports missing inputs of training."""

from typing import Any

import numpy as np
import pytest

from apps.registry import ALGORITHMS
from clients.base import Site
from clients.scoring import MinimaxClient
from payloads.settings import TrainingSettings
from problems.minimax import COMPOSITIONAL_AUC, AUCOracle, CompositionalOracle
from problems.models import FlatModel
from problems.models.networks import SaddleNetwork
from tests.battery.federation import ALONE

from .helpers import LINEAR

POPULATION = np.array([0.25, 10.0])  # of all sites; prior and size differ from the site driven here
WEIGHTS = np.array([0.2, -0.1, 0.3, 0.5])
SADDLE = np.array([0.4, -0.2, -0.6])  # a, b, lambda


def make_client(name: str) -> tuple[Any, Site]:
    rng = np.random.default_rng(0)
    labels = np.repeat([1, 0], [5, 8])
    site = Site.from_arrays(0, rng.normal(size=(13, 3)) + labels[:, None], labels, dtype=LINEAR.model().dtype)
    row = ALGORITHMS[name]
    model: Any = LINEAR.model()
    if issubclass(row.client, MinimaxClient):
        saddle, inner = (FlatModel(SaddleNetwork(LINEAR.model().module), dtype=model.dtype) for _ in range(2))
        model = AUCOracle(saddle, site.features, site.labels)
        if row.client.default_loss == COMPOSITIONAL_AUC:
            model = CompositionalOracle(saddle, inner, site.features, site.labels)
        model = model.weigh(POPULATION[0])
    return row.client(site, model, TrainingSettings(dtype="float64"), row.settings()), site


def point_of(client: Any) -> np.ndarray:
    return np.concatenate([WEIGHTS, SADDLE]) if isinstance(client, MinimaxClient) else WEIGHTS.copy()


@pytest.mark.parametrize("name", ALONE)
def test_a_client_evaluates_on_its_own_samples(name: str) -> None:
    client, site = make_client(name)
    loss, num_examples, metrics = client.evaluate([point_of(client)], {})
    logits, y = site.features.numpy() @ WEIGHTS[:3] + WEIGHTS[3], site.labels.numpy()
    assert num_examples == 13
    if isinstance(client, MinimaxClient):
        (a, b, dual), p = SADDLE, 5 / 13  # equation (63) with the site's own prior
        squares = (1 - p) * (logits - a) ** 2 * y + p * (logits - b) ** 2 * (1 - y)
        linear = 2 * (1 + dual) * (p * logits * (1 - y) - (1 - p) * logits * y)
        assert loss == pytest.approx(np.mean(squares + linear) - p * (1 - p) * dual**2, rel=1e-12)
        assert metrics == {}
        return
    assert loss == pytest.approx(np.mean(np.logaddexp(0, logits) - y * logits), rel=1e-12)
    assert metrics == {"accuracy": pytest.approx(np.mean((logits > 0) == (y == 1)))}


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("fedx1", "the server's message has no FedXPool"),
        ("fedsgda-mb", "the update phase needs the server's estimate"),
    ],
)
def test_a_client_without_its_inbox_says_what_is_missing(name: str, words: str) -> None:
    client, _ = make_client(name)
    with pytest.raises(ValueError, match=words):
        client.fit([point_of(client)], {"server-round": 1})
