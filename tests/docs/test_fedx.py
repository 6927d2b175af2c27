"""Tests that docs/fedx.md lists all data that FedX sends, field by field and byte by byte, and its noise."""

import math
from pathlib import Path
from typing import Any

import pytest
from scipy.optimize import brentq
from scipy.stats import norm

from methods.predictions import FedXPool, FedXPredictions
from payloads.record import Payload, specs_of
from payloads.wire import count_bytes
from tests.battery.federation import federate, model_of, payloads_of
from tests.docs.markdown import PROJECT, blocks, codes, rows, section

PAGE = PROJECT / "docs" / "fedx.md"
PRIVACY = PROJECT / "docs" / "fedx-noise.md"


@pytest.fixture(scope="module")
def formulas() -> dict[str, Any]:
    namespace: dict[str, Any] = {}
    (block,) = [block for block in blocks(PAGE) if block.language == "python"]
    exec(block.text, namespace)
    return namespace


@pytest.mark.parametrize(("kind", "part"), [(FedXPredictions, 0), (FedXPool, 1)])
def test_the_fields_are_all_there(kind: type[Payload], part: int) -> None:
    up, down = section(PAGE, "What travels").split("Down, `FedXPool`")
    described = {codes(row[0])[0]: row[1:3] for row in rows((up, down)[part])}
    assert sorted(described) == sorted(specs_of(kind))
    for name, spec in specs_of(kind).items():
        shape, dtype = described[name]
        dims = shape.partition(")")[0].strip("(").rstrip(",").split(", ")
        assert len(dims) == len(spec.dims), name
        assert dtype.startswith(spec.kind), name


def bytes_of(payload: Payload) -> int:
    return sum(value.nbytes for value in payload.arrays().values())


@pytest.mark.parametrize(
    ("strategy", "loss", "k", "dtype"),
    [("fedx1", "psm", 0, "float32"), ("fedx2", "kl-opauc", 1, "float64"), ("fedx2", "auprc", 2, "float32")],
)
def test_the_bytes(formulas: dict[str, Any], strategy: str, loss: str, k: int, dtype: str, tmp_path: Path) -> None:
    config = {"strategy": strategy, "loss": loss, "dtype": dtype, "fedx.tau": 2}
    _, tap = federate(tmp_path / "run", config, clients=2)
    exchange = tap.exchanges[-1]
    down, up = payloads_of(strategy, exchange)
    (parameters,) = model_of(exchange.message)
    size, labels = parameters.itemsize, loss == "auprc"
    p, q = len(up.positive_scores), len(up.partner_scores)
    assert bytes_of(up) == formulas["bytes_up"](size, len(parameters), p, q, k, labels)
    counts = [len(x) for x in (down.positive_scores, down.partner_scores, down.positive_lengths, down.partner_lengths)]
    assert counts == [4 * p, 4 * q, 4, 4]  # two rounds of two clients
    assert bytes_of(down) == formulas["bytes_down"](size, len(parameters), *counts, k, labels)
    for side, payload in ((exchange.message, down), (exchange.reply, up)):
        assert count_bytes(side.content) == parameters.nbytes + bytes_of(payload)


def test_the_epsilons_of_a_noised_score() -> None:
    """The classical bound, and delta = Phi(1/2s - es) - e^e Phi(-1/2s - es) solved for epsilon."""
    delta = 1e-5
    written = [row for row in rows(section(PRIVACY, "Noise on predictions")) if len(row) == 3]
    assert [float(sigma) for sigma, _, _ in written] == [0.1, 0.3, 1, 3, 5]
    for text, classical, exact in written:
        sigma = float(text)
        bound = math.sqrt(2 * math.log(1.25 / delta)) / sigma
        assert classical == "none" if bound >= 1 else float(classical) == pytest.approx(bound, abs=5e-4)

        def excess(epsilon: float, sigma: float = sigma) -> float:
            tail = math.exp(epsilon + norm.logcdf(-0.5 / sigma - epsilon * sigma))
            return float(norm.cdf(0.5 / sigma - epsilon * sigma)) - tail - delta

        assert float(exact) == pytest.approx(brentq(excess, 0, 500), abs=5e-3 if sigma < 1 else 5e-4)
