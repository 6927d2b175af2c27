"""An unusable reply is dropped and reported, leaves no trace in the model, and training continues.

A strategy that needs the reply asks the client again; if this does not help, the run ends and names the client.
"""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from flwr.app import Error, Message
from safetensors.numpy import load, save

from apps.registry import ALGORITHMS
from payloads.record import specs_of
from payloads.wire import ARRAYS, METRICS, NUM_EXAMPLES, PAYLOAD, ROUND, model_arrays, model_record
from tests.battery.federation import Exchange, Run, Wiretap, federate

BAD_ROUND, BAD_PARTITION = 2, 1


def with_error(reply: Message, exchange: Exchange) -> Message:
    return Message(Error(2, "the client broke"), reply_to=exchange.message)


def with_model(reply: Message, change: Callable[[np.ndarray], np.ndarray]) -> Message:
    arrays = model_arrays(reply.content.array_records[ARRAYS])
    reply.content[ARRAYS] = model_record([change(array.copy()) for array in arrays])
    return reply


def with_nan_in_the_payload(reply: Message, exchange: Exchange) -> Message:
    record = reply.content.config_records[PAYLOAD]
    for name, blob in list(record.items()):
        value = load(blob)["value"]
        if value.dtype.kind == "f" and value.size:
            record[name] = save({"value": np.full_like(value, np.nan)})
    return reply


def to_other_dtype(array: np.ndarray) -> np.ndarray:
    return array.astype(np.float32 if array.dtype == np.float64 else np.float64)


def without(reply: Message, record: str) -> Message:
    del reply.content[record]
    return reply


def with_metric(reply: Message, name: str, value: float) -> Message:
    reply.content.metric_records[METRICS][name] = value
    return reply


# name -> (change of the reply, part of the reason)
TAMPER: dict[str, tuple[Callable[[Message, Exchange], Message], str]] = {
    "error": (with_error, "the client broke"),
    "nan-model": (lambda m, e: with_model(m, lambda a: np.full_like(a, np.nan)), "not finite"),
    "infinite-entry": (lambda m, e: with_model(m, lambda a: np.r_[np.inf, a[1:]].astype(a.dtype)), "not finite"),
    "short-model": (lambda m, e: with_model(m, lambda a: a[:-1]), "expected float32("),
    "other-dtype": (lambda m, e: with_model(m, to_other_dtype), "expected float32"),
    "no-model": (lambda m, e: without(m, ARRAYS), "without the record 'arrays'"),
    "no-metrics": (lambda m, e: without(m, METRICS), "without the metrics"),
    "stale": (lambda m, e: with_metric(m, ROUND, BAD_ROUND - 1), "reply of round 1, expected 2"),
    "negative-count": (lambda m, e: with_metric(m, NUM_EXAMPLES, -1), NUM_EXAMPLES),
    "nan-count": (lambda m, e: with_metric(m, NUM_EXAMPLES, float("nan")), NUM_EXAMPLES),
}
TAMPER_PAYLOAD: dict[str, tuple[Callable[[Message, Exchange], Message], str]] = {
    "no-payload": (lambda m, e: without(m, PAYLOAD), "without the record 'payload'"),
    "nan-payload": (with_nan_in_the_payload, "not finite"),
}
# this change has no effect on a payload of integers
OF_FLOATS = ("nan-payload",)
# these changes have no effect on an empty model
OF_A_MODEL = ("nan-model", "infinite-entry", "short-model", "other-dtype")
CASES = [
    (name, kind)
    for name, row in ALGORITHMS.items()
    for kind in (*TAMPER, *(TAMPER_PAYLOAD if row.strategy.up_type is not None else ()))
    if row.strategy.shares_model or kind not in OF_A_MODEL
    if kind not in OF_FLOATS or any(spec.kind == "float" for spec in specs_of(row.strategy.up_type).values())
]
RETRYING = [name for name, row in ALGORITHMS.items() if row.traits.retries_failed]


def run_with_a_bad_reply(
    strategy: str, path: Path, change: Callable[[Message, Exchange], Message], times: int = 100
) -> tuple[Run, Wiretap]:
    """Replace one client's reply in one round, up to ``times`` times."""
    asked: list[int] = []

    def tamper(exchange: Exchange) -> Message:
        if exchange.server_round != BAD_ROUND or exchange.partition != BAD_PARTITION or exchange.phase:
            return exchange.reply
        asked.append(exchange.partition)
        return change(exchange.reply, exchange) if len(asked) <= times else exchange.reply

    return federate(path, {"strategy": strategy, "num-server-rounds": 4}, clients=3, tamper=tamper)


@pytest.fixture(scope="module")
def expected_models() -> dict[str, bytes]:
    """Cache each strategy's final model when the bad client sends only an error, or without errors if it asks again."""
    return {}


@pytest.mark.parametrize(("strategy", "kind"), [case for case in CASES if case[0] not in RETRYING])
def test_a_bad_reply_is_dropped_and_named(
    strategy: str, kind: str, tmp_path: Path, expected_models: dict[str, bytes]
) -> None:
    change, reason = (TAMPER | TAMPER_PAYLOAD)[kind]
    run, _ = run_with_a_bad_reply(strategy, tmp_path / "run", change)
    assert [list(line["dropped"]) for line in run.lines] == [[], [], [str(BAD_PARTITION)], [], []]
    assert reason in run.lines[BAD_ROUND]["dropped"][str(BAD_PARTITION)]
    assert [line["clients_answered"] for line in run.lines[1:]] == [3, 2, 3, 3]
    assert np.isfinite(run.numbers()).all()
    if strategy not in expected_models:
        expected_models[strategy] = run_with_a_bad_reply(strategy, tmp_path / "error", with_error)[0].model_bytes
    assert run.model_bytes == expected_models[strategy]


@pytest.mark.parametrize(("strategy", "kind"), [case for case in CASES if case[0] in RETRYING])
def test_a_bad_reply_is_asked_for_again(
    strategy: str, kind: str, tmp_path: Path, expected_models: dict[str, bytes]
) -> None:
    """After two bad replies and a good one, the run equals the run without errors. Joint clients all train again."""
    change, _ = (TAMPER | TAMPER_PAYLOAD)[kind]
    run, tap = run_with_a_bad_reply(strategy, tmp_path / "run", change, times=2)
    asked = [e.partition for e in tap.exchanges if e.server_round == BAD_ROUND and not e.phase]
    again = [BAD_PARTITION] if ALGORITHMS[strategy].strategy.shares_model else [0, 1, 2]
    assert asked == [0, 1, 2, *again, *again]
    assert [line["dropped"] for line in run.lines] == [{}] * 5
    assert [line["clients_answered"] for line in run.lines[1:]] == [3] * 4
    if strategy not in expected_models:
        expected_models[strategy] = run_with_a_bad_reply(strategy, tmp_path / "good", change, times=0)[0].model_bytes
    assert run.model_bytes == expected_models[strategy]


def test_one_good_reply_too_few_ends_the_run_with_the_reason(strategy: str, tmp_path: Path) -> None:
    def fail(exchange: Exchange) -> Message:
        broken = exchange.server_round == 2 and not exchange.phase
        return with_error(exchange.reply, exchange) if broken else exchange.reply

    told = r"partition 0 sent no valid reply \(max-retries=3\): the client broke"
    if strategy not in RETRYING:
        told = "0 of 3 clients sent a valid reply.*partition 0: the client broke"
    with pytest.raises(RuntimeError, match=f"round 2: {told}"):
        federate(tmp_path / "run", {"strategy": strategy}, clients=3, tamper=fail)
    assert "the client broke" in (tmp_path / "run" / "failure.json").read_text("utf-8")
    assert len(Run(tmp_path / "run").lines) == 2
