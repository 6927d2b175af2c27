"""A client whose values do not fit into a secure sum answers like the other clients: no error names it."""

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import MetricRecord

from apps.config import Scalar
from payloads.secure_sum import make_ring
from payloads.summed_values import pack, unpack
from payloads.wire import METRICS, NUM_EXAMPLES
from tests.battery.federation import PATIENTS, Wiretap, federate, patients
from tests.battery.test_secure_sums import UNEQUAL

HISTOGRAM: dict[str, Scalar] = {"strategy": "fedx2", "fedx.pool": "histogram", "score": "sigmoid"}


def answers(grid: Wiretap) -> dict[str, list[Any]]:
    """Return the parts of each reply that do not differ by design: the scalars and the lengths."""
    seen: dict[str, list[Any]] = {}
    for exchange in grid.exchanges:
        assert not exchange.reply.has_error()
        records = exchange.reply.content
        scalars = dict(records[METRICS]) if isinstance(records.get(METRICS), MetricRecord) else {}
        scalars.pop(NUM_EXAMPLES, None)
        blobs = {
            name: len(value)
            for one in records.config_records.values()
            for name, value in one.items()
            if isinstance(value, bytes)
        }
        seen.setdefault(str(exchange.partition), []).append((scalars, blobs))
    return seen


@pytest.mark.filterwarnings("ignore:(overflow|invalid value) encountered:RuntimeWarning")
@pytest.mark.parametrize("strategy", [{"strategy": "scaffold"}, {"strategy": "local-sgdm"}, HISTOGRAM])
def test_a_site_whose_values_overflow_answers_like_the_others(
    strategy: dict[str, Scalar], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Otherwise a server could choose a model or a range for which one row decides whether the site fails."""
    for site in range(4):
        table = patients(80, site)
        table["weight"] = table["weight"] * (1e36 if site == 2 else 1.0)
        table.to_csv(tmp_path / f"{site}.csv", index=False)
    config: dict[str, Scalar] = {
        **PATIENTS,
        "scale": "none",
        "learning-rate": 1e12,
        "privacy.secure-sum": True,
        **strategy,
    }
    nodes: list[dict[str, Scalar]] = [{"data-path": str(tmp_path / f"{site}.csv")} for site in range(4)]
    with caplog.at_level(logging.WARNING, "flwr"):
        run, grid = federate(tmp_path / "run", config, nodes=nodes)
    assert not any(line["dropped"] or line.get("state_lost") for line in run.lines)
    seen = answers(grid)
    assert seen["0"] == seen["1"] == seen["2"] == seen["3"]
    assert "clients clipped values to +-16, or sent zeros" in caplog.text
    assert "values of this site's reply were clipped to +-16" in caplog.text
    assert "round 3, score-counts: 1 of 4 clients" in caplog.text
    assert all(np.isfinite(value).all() for value in run.model.values())


def test_values_beyond_the_range_are_clipped(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    config: dict[str, Scalar] = {**UNEQUAL, "strategy": "local-sgd", "privacy.secure-range": 1.0, "learning-rate": 1e4}
    run, _ = federate(tmp_path / "run", {**config, "num-server-rounds": 1}, clients=4)
    assert "round 1, the models: 4 of 4 clients clipped values to +-1" in caplog.text
    assert max(abs(value).max() for value in run.model.values()) <= 4


@pytest.mark.parametrize("weight", [1.0, 1 / 3, 0.1, 0.0])
@pytest.mark.parametrize(
    ("values", "sent", "altered"),
    [
        ([1.0, -2.0], [1.0, -2.0], 0),
        ([1.0, 1e9, -1e9], [1.0, 2.0, -2.0], 2),
        ([1.0, np.inf], [0.0, 0.0], 2),
        ([np.nan, 1e9], [0.0, 0.0], 2),
        ([3.4e38, -3.4e38], [2.0, -2.0], 2),
    ],
)
def test_a_term_is_clipped_to_the_range(values: list[float], sent: list[float], altered: int, weight: float) -> None:
    """The range limits the product with the weight; 2^-20 is a hundred times the rounding."""
    limit, ring = 2.0, make_ring("float32", 2.0, 4)
    scaled = np.array(values) / (weight or 1)
    term, changed = pack([scaled], None, ring, limit, weight)
    if not weight:
        altered, sent = altered * (not np.isfinite(values).all()), [0.0] * len(values)
    (mean,), _, clients = unpack(term.elements.view(ring.dtype), term.lengths, 1, None, ring, 1.0)
    np.testing.assert_allclose(mean, sent, atol=2.0**-20)
    assert (changed, clients) == (altered, int(altered > 0))
