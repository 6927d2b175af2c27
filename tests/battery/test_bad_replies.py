"""An unusable reply is dropped and reported, leaves no trace in the model, and training continues.

A strategy that needs the reply asks the client again; if this does not help, the run ends and names the client.
"""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from flwr.app import Error, Message
from safetensors.numpy import load, save

from apps.config import Scalar
from apps.registry import ALGORITHMS
from payloads.record import specs_of
from payloads.wire import ARRAYS, METRICS, NUM_EXAMPLES, PAYLOAD, ROUND, model_arrays, model_record
from tests.battery.federation import FEW_STEPS, Exchange, Run, Wiretap, federate

BAD_PARTITION = 1
FIRST_BAD_ROUND = 2


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
    "stale": (lambda m, e: with_metric(m, ROUND, e.server_round - 1), "reply of round {before}, expected {now}"),
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
RETRYING = [name for name, row in ALGORITHMS.items() if row.traits.retries_failed]


def kinds_of(strategy: str) -> list[str]:
    """Return the changes that have an effect on the replies of a strategy."""
    strategy_row = ALGORITHMS[strategy].strategy
    kinds = list(TAMPER)
    if strategy_row.up_type is not None:
        floats = any(spec.kind == "float" for spec in specs_of(strategy_row.up_type).values())
        kinds += [kind for kind in TAMPER_PAYLOAD if floats or kind not in OF_FLOATS]
    return [kind for kind in kinds if strategy_row.shares_model or kind not in OF_A_MODEL]


def run_with_bad_replies(strategy: str, path: Path, kinds: list[str], times: int = 100) -> tuple[Run, Wiretap]:
    """Replace one client's replies in the rounds from `FIRST_BAD_ROUND`, up to ``times`` in each, a kind a round."""
    asked: list[int] = []

    def tamper(exchange: Exchange) -> Message:
        index = exchange.server_round - FIRST_BAD_ROUND
        if exchange.partition != BAD_PARTITION or exchange.phase or not 0 <= index < len(kinds):
            return exchange.reply
        asked.append(index)
        change, _ = (TAMPER | TAMPER_PAYLOAD)[kinds[index]]
        return change(exchange.reply, exchange) if asked.count(index) <= times else exchange.reply

    config: dict[str, Scalar] = {"strategy": strategy, "num-server-rounds": len(kinds) + FIRST_BAD_ROUND}
    config |= FEW_STEPS.get(strategy, {})
    config |= {"newton.ridge": 0.1} if strategy == "newton" else {}  # else it ends when it separates the classes
    return federate(path, config, clients=3, tamper=tamper)


def sent_models(tap: Wiretap) -> dict[int, list[bytes]]:
    """Return the model that the clients receive in each round."""
    contents = {e.server_round: e.message.content for e in tap.exchanges if not e.phase}
    models = {number: model_arrays(content.array_records[ARRAYS]) for number, content in contents.items()}
    return {number: [array.tobytes() for array in arrays] for number, arrays in models.items()}


@pytest.mark.parametrize("strategy", [name for name in ALGORITHMS if name not in RETRYING])
def test_bad_replies_are_dropped_and_named(strategy: str, tmp_path: Path) -> None:
    """The run equals the run in which the client sends only errors in the same rounds."""
    kinds = kinds_of(strategy)
    run, tap = run_with_bad_replies(strategy, tmp_path / "run", kinds)
    bad = run.lines[FIRST_BAD_ROUND : FIRST_BAD_ROUND + len(kinds)]
    assert [list(line["dropped"]) for line in run.lines] == [[], [], *[[str(BAD_PARTITION)]] * len(kinds), []]
    for kind, line in zip(kinds, bad, strict=True):
        reason = (TAMPER | TAMPER_PAYLOAD)[kind][1].format(before=line["round"] - 1, now=line["round"])
        assert reason in line["dropped"][str(BAD_PARTITION)]
    assert [line["clients_answered"] for line in run.lines[1:]] == [3, *[2] * len(kinds), 3]
    assert np.isfinite(run.numbers()).all()
    errors, other = run_with_bad_replies(strategy, tmp_path / "errors", ["error"] * len(kinds))
    assert sent_models(tap) == sent_models(other)
    assert run.model_bytes == errors.model_bytes


@pytest.mark.parametrize("strategy", RETRYING)
def test_bad_replies_are_asked_for_again(strategy: str, tmp_path: Path) -> None:
    """After bad replies and a good one, the run equals the run without errors. Joint clients all train again."""
    kinds = kinds_of(strategy)
    again, times = ([BAD_PARTITION], 2) if ALGORITHMS[strategy].strategy.shares_model else ([0, 1, 2], 1)
    run, tap = run_with_bad_replies(strategy, tmp_path / "run", kinds, times)
    for server_round in range(1, len(run.lines)):
        asked = [e.partition for e in tap.exchanges if e.server_round == server_round and not e.phase]
        bad = FIRST_BAD_ROUND <= server_round < FIRST_BAD_ROUND + len(kinds)
        assert asked == [0, 1, 2, *(again * times if bad else [])]
    assert [line["dropped"] for line in run.lines] == [{}] * len(run.lines)
    assert [line["clients_answered"] for line in run.lines[1:]] == [3] * (len(run.lines) - 1)
    assert run.model_bytes == run_with_bad_replies(strategy, tmp_path / "good", kinds, 0)[0].model_bytes


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
