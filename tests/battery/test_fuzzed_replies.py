"""Ten thousand mutated replies: the server half never crashes, and its model stays finite.

Each round of a federation has one mutated reply. Some mutations leave a valid reply with meaningless values; if it
makes the run diverge, the run must end, since no replies have finite numbers. Hypothesis chooses the mutations, and
searches for the smallest failing example.
"""

import re
import tempfile
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from apps.config import Scalar
from apps.registry import ALGORITHMS
from apps.server_app import RunFailedError
from payloads.wire import ARRAYS, model_arrays
from tests.battery.federation import OF_ROWS, Exchange, Run, federate, sites_of

MUTATIONS = 10_000
ROUNDS = 20


def some(count: int, rng: Random) -> bytes:
    """Return random bytes of a size for one draw."""
    return np.random.default_rng(rng.randrange(2**32)).bytes(count)


def spoiled(data: bytes, rng: Random) -> bytes:
    """Return bytes after a cut, an insertion or a change."""
    kind = rng.randrange(6)
    cut = rng.randrange(len(data) + 1)
    if kind == 0:
        return data[:cut]
    if kind == 1:
        return data + some(rng.randrange(1, 40), rng)
    if kind == 2:
        return data[:cut] + some(rng.randrange(1, 9), rng) + data[cut:]
    if kind == 3:
        return some(len(data), rng)
    changed = bytearray(data)
    reach = len(data) if kind == 4 else min(len(data), 160)  # anywhere, or in the header
    for _ in range(rng.randrange(1, 6)):
        if reach:
            changed[rng.randrange(reach)] = rng.randrange(256)
    return bytes(changed)


def one_of(names: Any, rng: Random) -> str:
    return rng.choice(sorted(names))


WORDS: list[Any] = [1, "text", 0.5, True, [1.0, 2.0], b""]
NUMBERS: list[Any] = [-1, 0, 2**62, 0.5, float("nan"), float("inf"), -float("inf"), [1, 2], []]


def spoiled_array(array: Array, rng: Random) -> Array:
    """Return an array of another shape, type or range, or with spoiled bytes."""
    if rng.randrange(4):
        kind = "numpy.ndarray" if rng.randrange(4) else "pickle"
        return Array(array.dtype, tuple(array.shape), kind, spoiled(array.data, rng))
    value = np.array(array.numpy())
    shapes = [value.reshape(-1, 1), value[:0], np.r_[value, value], np.array(["a"])]
    with np.errstate(over="ignore"):  # a diverged model may not fit a smaller type
        types = [value.astype(np.float16), value.astype(np.complex64)]
    return Array(rng.choice([*shapes, *types, -value, value * np.nan, np.full_like(value, np.finfo(value.dtype).max)]))


def mutated(exchange: Exchange, rng: Random) -> Message:
    """Return the reply of an exchange with one mutation."""
    reply = exchange.reply
    if rng.randrange(20) == 0:
        return Message(Error(rng.randrange(300), "nonsense"), reply_to=exchange.message)
    place = one_of(reply.content, rng)
    kind = rng.randrange(20)
    if kind < 3:
        empty = [ArrayRecord(), ConfigRecord(), MetricRecord()][kind]
        reply.content["more" if rng.randrange(2) else place] = empty
        return reply
    if kind == 3:
        del reply.content[place]
        return reply
    record: Any = reply.content[place]
    name = one_of(record, rng) if record else "unknown"
    if kind < 6 or name not in record:
        record[one_of(["parameters", "buffers", "unknown"], rng)] = record.pop(name, [1.0])
    elif isinstance(record, ArrayRecord):
        record[name] = spoiled_array(record[name], rng)
    elif isinstance(record, MetricRecord):
        record[name] = rng.choice(NUMBERS)
    else:
        value = record[name]
        record[name] = spoiled(value, rng) if isinstance(value, bytes) and kind < 16 else rng.choice(WORDS)
    return reply


@pytest.mark.slow
@pytest.mark.parametrize("strategy", OF_ROWS)
def test_no_reply_breaks_the_server(strategy: str, tmp_path: Path) -> None:
    wanted = MUTATIONS // len(OF_ROWS)
    counts: Counter[str] = Counter()
    data = sites_of([[0, 1] * 20] * 3, tmp_path / "rows.npz")

    runs = (4 if strategy == "newton" else 2) * wanted // ROUNDS  # newton may converge in half the rounds

    @settings(max_examples=runs, derandomize=True, database=None, suppress_health_check=[*HealthCheck])
    @given(st.randoms(use_true_random=False))
    def look(rng: Random) -> None:
        with tempfile.TemporaryDirectory(dir=tmp_path) as folder:
            play(strategy, data, Path(folder) / "run", rng, counts)

    look()
    assert counts["mutated"] >= wanted
    assert counts["dropped"] > wanted / 10 or ALGORITHMS[strategy].traits.retries_failed


def play(strategy: str, data: dict[str, Scalar], path: Path, rng: Random, counts: Counter[str]) -> None:
    """Run one federation with a mutated reply in each exchange."""
    seen: set[tuple[int, str]] = set()

    def tamper(exchange: Exchange) -> Message:
        for value in model_arrays(exchange.message.content.array_records[ARRAYS]):
            assert np.isfinite(value).all()
        where = exchange.server_round, exchange.phase
        if exchange.partition != exchange.server_round % 3 or where in seen or exchange.reply.has_error():
            return exchange.reply
        seen.add(where)
        counts["mutated"] += 1
        return mutated(exchange, rng)

    config = {"strategy": strategy, "num-server-rounds": ROUNDS, "evaluate-every": ROUNDS, "local-steps": 1, **data}
    failure = ""
    try:
        federate(path, config, clients=3, tamper=tamper)
    except RunFailedError as failed:
        failure = str(failed)
    run = Run(path)
    if failure:
        # a site's values may be finite, but too large for the network; newton's wrong sums may fit no rows
        newton = r"|a coefficient that grows without bound|a variance below 0" if strategy == "newton" else ""
        good = r"\d of \d clients sent a valid reply|sent no valid reply|"
        good += r"test scores are not finite: .*lower|has diverged: lower"
        assert re.search(good + newton, failure)
    else:
        assert all(np.isfinite(value).all() for value in run.model.values())
    dropped = sum(bool(line["dropped"]) for line in run.lines)
    assert not (ALGORITHMS[strategy].traits.retries_failed and dropped)
    counts["dropped"] += dropped
