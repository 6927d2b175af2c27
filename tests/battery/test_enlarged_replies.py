"""Limits on the arrays of replies, derived from the run config and the handshake.

Longer arrays are refused by their field's name before they are decoded. Unrequested fields are refused, too, and no
site can flood the log.
"""

import contextlib
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord
from safetensors.numpy import load, save

from apps.registry import ALGORITHMS
from apps.server_app import RunFailedError
from methods.predictions import FedXPredictions
from payloads.record import ArraySpec, Payload, PayloadError, specs_of
from payloads.wire import ARRAYS, METRICS, PAYLOAD, ROUND
from simulations.engines.grid import task_identity
from strategies.rounds.errors import LONGEST_REASON
from tests.battery.federation import OF_ROWS, Exchange, Run, federate, sites_of
from tests.refusals import states

TIMES = 100
LOSER = 1
MORE: dict[str, Any] = {"num-server-rounds": 2, "coda.stage-rounds": 1, "max-retries": 0, "min-train-nodes": 1}
# a run of newton that converges, and so has all exchanges
CONVERGED = {"newton": {"num-server-rounds": 15, "newton.ridge": 1.0}}
DTYPES = {"float": "float32", "int": "int64", "bool": "bool", "bytes": "uint8"}


def kinds_of(strategy: str) -> dict[str, type[Payload]]:
    """Return the types of a strategy's replies, by exchange."""
    kind = ALGORITHMS[strategy].strategy
    return {**kind.phases, **({} if kind.up_type is None else {"": kind.up_type})}


FIELDS = [
    (strategy, phase, field)
    for strategy in OF_ROWS
    for phase, kind in kinds_of(strategy).items()
    for field in specs_of(kind)
]


@pytest.fixture(autouse=True)
def _identity() -> Iterator[None]:
    with task_identity():
        yield


def enlarged(blob: object, spec: ArraySpec) -> bytes:
    """Return a hundred times the sent values, or a hundred values if none were sent."""
    if not isinstance(blob, bytes):
        return save({"value": np.ones([TIMES] * len(spec.dims), DTYPES[spec.kind])})
    value = load(blob)["value"]
    return save({"value": np.resize(value, (TIMES * max(len(value), 1), *value.shape[1:]))})


def reasons(path: Path, config: dict[str, Any], tamper: Callable[[Exchange], Message], clients: int = 3) -> str:
    """Return all reasons in a run for unusable replies."""
    try:
        run, _ = federate(path, {**MORE, **config}, clients, tamper)
    except RunFailedError as failed:
        return str(failed)
    return "\n".join(reason for line in run.lines for reason in line["dropped"].values())


@pytest.mark.parametrize(("strategy", "phase", "field"), FIELDS)
def test_an_enlarged_field_is_refused_by_name(strategy: str, phase: str, field: str, tmp_path: Path) -> None:
    kind = kinds_of(strategy)[phase]
    hit: list[str] = []

    def tamper(exchange: Exchange) -> Message:
        if exchange.partition == LOSER and exchange.phase == phase:
            record = exchange.reply.content.config_records[PAYLOAD]
            record[field] = enlarged(record.get(field), specs_of(kind)[field])
            hit.append(field)
        return exchange.reply

    said = reasons(tmp_path / "run", {"strategy": strategy, **CONVERGED.get(strategy, {})}, tamper)
    assert hit
    assert states(said, f"{kind.__name__}.{field}: got ")


# name -> (keys, labels of the sites, p and q of each site)
LIMITS: dict[str, tuple[dict[str, Any], list[list[int]], list[tuple[int, int]]]] = {
    "batches": ({}, [[0, 1] * 20] * 2, [(20, 12), (20, 12)]),
    "small sites": ({}, [[0] * 38 + [1] * 2, [0] + [1] * 39], [(8, 12), (20, 4)]),
    "one class": ({}, [[0] * 40, [1] * 40], [(0, 12), (20, 0)]),
    "history": ({"fedx.history-size": 6}, [[0, 1] * 20, [0] * 39 + [1]], [(6, 6), (4, 6)]),
    "all partners": ({"loss": "auprc"}, [[0] * 40, [1] * 40], [(0, 12), (20, 12)]),
}


@pytest.mark.parametrize("name", LIMITS)
def test_a_site_sends_what_it_has_and_may_send_no_more(name: str, tmp_path: Path) -> None:
    """An honest site's prediction sets in FedX reach exactly the limits."""
    keys, labels, expected = LIMITS[name]
    config = {
        "strategy": "fedx2",
        "local-steps": 4,
        "fedx.positive-batch-size": 5,
        "fedx.negative-batch-size": 3,
        **sites_of(labels, tmp_path / "data.npz"),
        **keys,
    }
    sent: dict[int, set[tuple[int, int]]] = {}

    def heard(exchange: Exchange) -> Message:
        payload = FedXPredictions.from_record(exchange.reply.content.config_records[PAYLOAD])
        lengths = len(payload.positive_scores), len(payload.partner_scores)
        sent.setdefault(exchange.partition, set()).add(lengths)
        return exchange.reply

    run, _ = federate(tmp_path / "run", {**config, "num-server-rounds": 2}, clients=2, tamper=heard)
    assert [line["dropped"] for line in run.lines] == [{}] * 3
    assert sent == {place: {lengths} for place, lengths in enumerate(expected)}

    for at, field in enumerate(("positive_scores", "partner_scores")):

        def one_more(exchange: Exchange, field: str = field) -> Message:
            if exchange.partition == LOSER:
                record = exchange.reply.content.config_records[PAYLOAD]
                blob = record[field]
                assert isinstance(blob, bytes)
                record[field] = save({"value": np.append(load(blob)["value"], np.float32(0))})
            return exchange.reply

        most = expected[LOSER][at]
        got = f"shape ({most + 1},), allowed: at most ({most})" if most else "4 bytes, allowed: at most (0) numbers"
        told = reasons(tmp_path / field, config, one_more, clients=2)
        assert states(told, f"scoring phase: FedXPredictions.{field}: got {got}")


def test_a_blob_too_large_is_refused_before_it_is_copied() -> None:
    large = save({"value": np.zeros(2**23)})  # 64 MiB
    header = (2**26).to_bytes(8, "little") + bytes(2**26)  # as many bytes that claim to be a header
    for blob, told in ((large, "got 67108864 bytes, allowed: at most (8)"), (header, "a header of 67108872 bytes")):
        record = ConfigRecord({"positive_scores": blob})
        tracemalloc.start()
        try:
            with pytest.raises(PayloadError, match=r"FedXPredictions\.positive_scores: ") as refused:
                FedXPredictions.from_record(record, {"d": 4}, {"p": 8, "q": 8, "k": 1})
            assert tracemalloc.get_traced_memory()[1] < 2**20
        finally:
            tracemalloc.stop()
        assert states(str(refused.value), told)


# Unrequested fields.


def with_record(name: str, record: Any) -> Callable[[Exchange], Message]:
    def tamper(exchange: Exchange) -> Message:
        if exchange.partition == LOSER and not exchange.phase:
            exchange.reply.content[name] = record
        return exchange.reply

    return tamper


UNKNOWN: dict[str, Any] = {
    "a second model": ("arrays-2", ArrayRecord({"parameters": Array(np.zeros(4))})),
    "bytes": ("more", ConfigRecord({"blob": bytes(10**6)})),
    "numbers": ("numbers", MetricRecord({"many": [1.0] * 1000})),
    "config": ("config", ConfigRecord({ROUND: 1})),
    "local": ("local", ConfigRecord({"state-dir": "/"})),
    "a payload, where there is none": (PAYLOAD, ConfigRecord({"x": b""})),
}


# one kind for every algorithm, and all kinds for one algorithm
@pytest.mark.parametrize(
    ("strategy", "what"), [*((name, "bytes") for name in ALGORITHMS), *(("local-sgd", what) for what in UNKNOWN)]
)
def test_an_unknown_record_is_refused(strategy: str, what: str, tmp_path: Path) -> None:
    name, record = UNKNOWN[what]
    told = reasons(tmp_path / "run", {"strategy": strategy}, with_record(name, record))
    assert states(told, f"unknown record {name!r}, allowed: arrays, metrics")


# A site's error texts.

LONG = "x" * 10**6


def error(exchange: Exchange) -> Message:
    return Message(Error(2, f"first\nERROR: all is lost\r\x1b[31m {LONG}"), reply_to=exchange.message)


def long_name(exchange: Exchange) -> Message:
    exchange.reply.content[LONG] = ConfigRecord()
    return exchange.reply


def long_field(exchange: Exchange) -> Message:
    exchange.reply.content.config_records[PAYLOAD][LONG] = b""
    return exchange.reply


def long_array_name(exchange: Exchange) -> Message:
    exchange.reply.content[ARRAYS] = ArrayRecord({LONG: Array(np.zeros(1))})
    return exchange.reply


def long_list(exchange: Exchange) -> Message:
    exchange.reply.content.metric_records[METRICS][ROUND] = [1.5] * 10**6
    return exchange.reply


@pytest.mark.parametrize("spoil", [error, long_name, long_field, long_array_name, long_list])
def test_a_long_reason_is_cut(
    spoil: Callable[[Exchange], Message], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def tamper(exchange: Exchange) -> Message:
        return spoil(exchange) if exchange.partition == LOSER and not exchange.phase else exchange.reply

    run, _ = federate(tmp_path / "run", {"strategy": "scaffold", "num-server-rounds": 1}, tamper=tamper)
    reason = run.lines[1]["dropped"]["1"]
    assert len(reason) < LONGEST_REASON + 40
    assert reason.isprintable()
    assert (tmp_path / "run" / "metrics.jsonl").stat().st_size < 10_000
    logged = [record.getMessage() for record in caplog.records if reason[:20] in record.getMessage()]
    assert [len(text) < LONGEST_REASON + 100 for text in logged] == [True, True]  # for the round, and for the run


def test_a_failed_run_s_reason_is_cut(tmp_path: Path) -> None:
    with contextlib.suppress(RunFailedError):
        federate(tmp_path / "run", {"strategy": "composite", "max-retries": 1}, tamper=error)
    assert (tmp_path / "run" / "failure.json").stat().st_size < 2 * LONGEST_REASON
    assert not Run(tmp_path / "run").path.joinpath("result.json").exists()


def test_a_dimension_that_nobody_limits_is_refused() -> None:
    record = ConfigRecord({name: save({"value": np.zeros(2)}) for name in ("positive_scores", "partner_scores")})
    with pytest.raises(PayloadError, match=r"partner_scores: dimension 'q' has no limit"):
        FedXPredictions.from_record(record, {"d": 4}, {"p": 8})
