"""Ten thousand replies with something wrong in them: the server half never crashes, and its model stays finite.

Each round of a federation has one mutated reply. A mutation may leave a reply that is valid and only makes no sense; a
run that such a reply drives apart ends, as it must, for want of replies with finite numbers. Hypothesis chooses what is
wrong in each reply, and looks for the least that breaks the server, should anything.
"""

from __future__ import annotations

import re
import tempfile
from collections import Counter
from collections.abc import Callable
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
from payloads.wire import ARRAYS, METRICS, NUM_EXAMPLES, PAYLOAD, ROUND, model_arrays
from tests.battery.federation import OF_ROWS, Exchange, Run, federate, sites_of

MUTATIONS = 10_000
ROUNDS = 20


def some(count: int, rng: Random) -> bytes:
    """So many bytes, for one draw."""
    return np.random.default_rng(rng.randrange(2**32)).bytes(count)


def spoiled(data: bytes, rng: Random) -> bytes:
    """Bytes with something cut off, put in, or changed."""
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


def spoil_model(reply: Message, rng: Random) -> None:
    record = reply.content.array_records[ARRAYS]
    name = one_of(record, rng)
    array = record[name]
    kind = rng.randrange(5)
    if kind == 0:
        record[one_of(["parameters", "buffers", "model"], rng)] = record.pop(name)
    elif kind == 1:
        value = np.array(array.numpy())
        wrong: list[np.ndarray] = [
            value.reshape(-1, 1), np.zeros(value.shape, np.float16), np.zeros(value.shape, np.complex64), value[:0],
            np.array(["a"]), np.r_[value, value], np.full_like(value, np.finfo(value.dtype).max), -value,
            value * np.nan,
        ]  # fmt: skip
        record[name] = Array(wrong[rng.randrange(len(wrong))])
    else:
        other = "numpy.ndarray" if rng.randrange(4) else "pickle"
        record[name] = Array(array.dtype, tuple(array.shape), other, spoiled(array.data, rng))


def spoil_payload(reply: Message, rng: Random) -> None:
    record = reply.content.config_records[PAYLOAD]
    if not record:
        record["unknown"] = some(8, rng)
        return
    name = one_of(record, rng)
    kind = rng.randrange(5)
    if kind == 0:
        del record[name]
    elif kind == 1:
        record["unknown"] = record[name]
    elif kind == 2:
        record[name] = [1, "text", 0.5, True, [1.0, 2.0]][rng.randrange(5)]
    elif kind == 3:
        record[name] = record[one_of(record, rng)]
    else:
        value = record[name]
        assert isinstance(value, bytes)
        record[name] = spoiled(value, rng)


def spoil_metrics(reply: Message, rng: Random) -> None:
    record = reply.content.metric_records[METRICS]
    name = one_of([NUM_EXAMPLES, ROUND], rng)
    values: list[Any] = [-1, 0, 2**62, 0.5, float("nan"), float("inf"), -float("inf"), [1, 2], []]
    record[name] = values[rng.randrange(len(values))]


def spoil_records(reply: Message, rng: Random) -> None:
    name = one_of(reply.content, rng)
    kind = rng.randrange(3)
    if kind == 0:
        del reply.content[name]
    elif kind == 1:
        reply.content["more"] = reply.content[name]
    else:
        empty = [ArrayRecord(), ConfigRecord(), MetricRecord()][rng.randrange(3)]
        reply.content[name] = empty


def mutated(exchange: Exchange, rng: Random) -> Message:
    """The reply of an exchange with one thing wrong in it."""
    reply = exchange.reply
    ways: list[Callable[[Message, Random], None]] = [spoil_metrics, spoil_records]
    ways += [spoil_model] * 3 if reply.content.array_records.get(ARRAYS) else []
    ways += [spoil_payload] * 3 if PAYLOAD in reply.content.config_records else []
    if rng.randrange(20) == 0:
        return Message(Error(rng.randrange(300), "nonsense"), reply_to=exchange.message)
    ways[rng.randrange(len(ways))](reply, rng)
    return reply


@pytest.mark.slow
@pytest.mark.parametrize("strategy", OF_ROWS)
def test_no_reply_breaks_the_server(strategy: str, tmp_path: Path) -> None:
    wanted = MUTATIONS // len(OF_ROWS)
    counts: Counter[str] = Counter()
    data = sites_of([[0, 1] * 20] * 3, tmp_path / "rows.npz")

    @settings(max_examples=2 * wanted // ROUNDS, derandomize=True, database=None, suppress_health_check=[*HealthCheck])
    @given(st.randoms(use_true_random=False))
    def look(rng: Random) -> None:
        with tempfile.TemporaryDirectory(dir=tmp_path) as folder:
            play(strategy, data, Path(folder) / "run", rng, counts)

    look()
    assert counts["mutated"] >= wanted
    assert counts["dropped"] > wanted / 10 or ALGORITHMS[strategy].strategy.retries_failed


def play(strategy: str, data: dict[str, Scalar], path: Path, rng: Random, counts: Counter[str]) -> None:
    """One federation with a mutated reply in each exchange."""
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
        # the last: a site's values may be finite and yet too large for the network
        assert re.search(r"\d good replies of \d|gave no good reply|test scores are not finite: .*lower", failure)
    else:
        assert all(np.isfinite(value).all() for value in run.model.values())
    dropped = sum(bool(line["dropped"]) for line in run.lines)
    assert not (ALGORITHMS[strategy].strategy.retries_failed and dropped)
    counts["dropped"] += dropped
