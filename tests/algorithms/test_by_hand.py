"""Every registered client is a Flower NumPyClient that can be driven with NumPy arrays and no runtime."""

from typing import Any

import numpy as np
import pytest
from flwr.client import NumPyClient

from apps.registry import ALGORITHMS
from clients.base import Site
from clients.minimax import MinimaxClient
from payloads.fedsgda import FedSGDADown
from payloads.fedx import FedXPool
from payloads.record import Payload, specs_of
from payloads.settings import TrainingSettings
from problems.minimax import COMPOSITIONAL_AUC, AUCOracle, CompositionalOracle
from problems.models import FlatModel
from problems.models.saddle import SaddleNetwork

from .helpers import LINEAR

# a client that talks to others in its round cannot be driven alone
ALONE = [name for name, row in ALGORITHMS.items() if not row.strategy.concurrent]

COUNTS = np.array([9, 3])  # of all sites: another prior than the one driven here has
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
        model.inform(COUNTS)
    return row.client(site, model, TrainingSettings(dtype="float64"), row.settings()), site


def point_of(client: Any) -> np.ndarray:
    return np.concatenate([WEIGHTS, SADDLE]) if isinstance(client, MinimaxClient) else WEIGHTS.copy()


def make_inbox(name: str) -> Payload | None:
    down = ALGORITHMS[name].client.down
    if down is FedSGDADown:
        return FedSGDADown(class_counts=COUNTS, estimate=np.linspace(-0.1, 0.1, 7))
    needed = {} if down is None else {field: spec for field, spec in specs_of(down).items() if not spec.optional}
    if down is not None and needed and all((spec.dims, spec.kind) == (("d",), "float") for spec in needed.values()):
        length = len(point_of(make_client(name)[0]))
        return down(**{field: np.linspace(-0.1, 0.1, length) for field in needed})
    return make_pool(name)


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


@pytest.mark.parametrize("name", ALONE)
def test_a_client_is_driven_with_arrays(name: str) -> None:
    client, _ = make_client(name)
    assert isinstance(client, NumPyClient)
    start = point_of(client)
    client.inbox = make_inbox(name)
    arrays, num_examples, metrics = client.fit([start.copy()], {"server-round": 1})
    assert [type(arrays), type(num_examples), type(metrics)] == [list, int, dict]
    assert [array.shape for array in arrays] == [start.shape]
    assert arrays[0].dtype == np.float64
    assert num_examples == 13
    assert np.linalg.norm(arrays[0] - start) > 1e-3
    assert (client.outbox is None) == (client.up is None)
    if client.up is not None:
        assert isinstance(client.outbox, client.up)
        client.outbox.check({"d": len(start)})


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


@pytest.mark.parametrize("name", ALONE)
def test_a_fit_leaves_its_arguments_alone_and_is_repeatable(name: str) -> None:
    start, results = point_of(make_client(name)[0]), []
    before = start.copy()
    for _ in range(2):
        client, _ = make_client(name)
        client.inbox = make_inbox(name)
        results.append(client.fit([start], {"server-round": 1})[0][0])
    np.testing.assert_array_equal(start, before)
    np.testing.assert_array_equal(*results)


def test_fedx_without_a_pool_says_what_is_missing() -> None:
    client, _ = make_client("fedx1")
    with pytest.raises(ValueError, match="FedXPool is needed"):
        client.fit([np.zeros(4)], {"server-round": 1})
