"""Tests of a server that sends one party other messages or another run config."""

from __future__ import annotations

import dataclasses
import logging
import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ConfigRecord, Context, Message

from apps.client_app import app as client_app
from apps.config import Scalar
from apps.server_app import app as server_app
from payloads.flower_internals import make_twin
from payloads.wire import CONFIG, PAYLOAD, PHASE, ROUND
from tests.apps.vertical_runs import CSV, EVERYBODY, KEYS, identified, own_files, play, segment_of
from tests.battery.federation import Run, Wiretap, flat_config, serve
from tests.clients.party_problems import make_case
from tests.refusals import refuses
from vertical.agreed_terms import agreed_terms
from vertical.agreement import UNCHANGED, Agreement, _blame, _read
from vertical.masking.pairwise import RING
from vertical.records import INTERSECTION, Segment, join_bytes
from vertical.segment.masked_sums import DirectSums
from vertical.segment.party import run_segment
from vertical.segment.plan import SegmentPlan
from vertical.transport.frames import PartyError

QUICK: dict[str, Scalar] = {"max-retries": 0, "retry-wait": 0.0, "vfb2.join-timeout": 2.0}
ALIGNED: dict[str, Scalar] = {**CSV, "vfb2.alignment": "intersection"}
DIFFERS = "it does not agree with the other parties on: "
Change = Callable[[Message, Context], Context | None]


def lie(path: Path, config: Mapping[str, Scalar], nodes: Sequence[Mapping[str, Scalar]], change: Change) -> Run:
    """Return a run whose network changes the messages to parties."""

    def deliver(message: Message, context: Context) -> Message:
        return client_app(message, change(message, context) or context)

    flat = flat_config(path, {**KEYS, **QUICK, **config})
    grid = Wiretap(deliver, len(nodes), flat, nodes)  # type: ignore[arg-type]
    try:
        serve(grid, server_app, flat)
    finally:
        grid.close()
    return Run(path)


def where(message: Message, context: Context) -> tuple[int, int, str]:
    """Return the party, the round and the phase of a message."""
    asked: Any = message.content.get(CONFIG, {})
    return int(context.node_config["partition-id"]), int(asked.get(ROUND, -1)), str(asked.get(PHASE, ""))


def rewrite(message: Message, **fields: Any) -> None:
    """Change fields of the message's segment."""
    record = message.content[PAYLOAD]
    assert isinstance(record, ConfigRecord)
    message.content[PAYLOAD] = dataclasses.replace(Segment.from_record(record), **fields).to_record()


def configured(context: Context, **keys: Scalar) -> Context:
    """Return the context with another run config."""
    twin = make_twin(context)
    twin.run_config = {**context.run_config, **{key.replace("__", ".").replace("_", "-"): keys[key] for key in keys}}
    return twin


def altered(name: str, value: np.ndarray) -> np.ndarray:
    """Return another value of a segment's field with which a party can still join the other parties."""
    if name == "base":
        return value - 1
    if name.endswith("lengths"):
        return value.astype(np.int32)
    if name in ("certificates", "addresses"):
        return np.append(value, np.uint8(1))
    return ~value if value.dtype == bool else value + value.dtype.type(1)


@pytest.fixture
def summed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the parties that have prepared a sum, one entry for each segment."""
    parties: list[int] = []
    real = DirectSums.__init__

    def note(self: DirectSums, me: int, *arguments: Any) -> None:
        parties.append(me)
        real(self, me, *arguments)

    monkeypatch.setattr(DirectSums, "__init__", note)
    return parties


def test_each_field_of_the_segment_is_compared(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Each attempt at round 1 changes the next field for party 1, and the last attempt is honest."""
    nodes, _ = own_files(tmp_path, [EVERYBODY] * 3, labelled=1)
    honest, _ = play(tmp_path / "honest", CSV, nodes)
    shares = ("columns", "package")  # absent without secret shares
    names = [field.name for field in dataclasses.fields(Segment) if field.name not in shares]
    left = list(names)

    def change(message: Message, context: Context) -> None:
        if where(message, context) == (1, 1, "") and left:
            name = left.pop(0)
            segment = Segment.from_record(message.content[PAYLOAD])  # type: ignore[arg-type]
            rewrite(message, **{name: altered(name, getattr(segment, name))})

    with caplog.at_level(logging.WARNING, logger="flwr"):
        run = lie(tmp_path / "run", {**CSV, "max-retries": len(names)}, nodes, change)
    retries = [record.getMessage() for record in caplog.records if "retry" in record.getMessage()]
    for name, words in zip(names, retries, strict=True):
        # a party with another attempt or salt listens at another socket
        apart = name in ("serial", "salt")
        reason = "no party joined party 1" if apart else f"{DIFFERS}segment field {name}"
        assert ": party 1: " in words
        assert reason in words
    assert run.model_bytes == honest.model_bytes


def test_each_run_config_key_is_a_term() -> None:
    config = tomllib.loads(Path("pyproject.toml").read_text("utf-8"))["tool"]["flwr"]["app"]["config"]
    parts = [(f"{key}.", value) if isinstance(value, dict) else ("", {key: value}) for key, value in config.items()]
    flat = {prefix + key: value for prefix, table in parts for key, value in table.items()}
    assert len(flat) > 100
    segment = segment_of([b"one", b"two", b"three"])
    terms = agreed_terms(flat, {"run-token": "a"}, segment)
    for key, value in flat.items():
        for other in (f"{value}", [value]):  # another type, and another value
            told = agreed_terms({**flat, key: other if other != value else "other"}, {"run-token": "a"}, segment)
            assert {name for name in terms if terms[name] != told[name]} == {f"run-config key {key}"}
    assert agreed_terms(flat, {"run-token": "b"}, segment) != terms
    assert agreed_terms({key: flat[key] for key in list(flat)[1:]}, {"run-token": "a"}, segment).keys() < terms.keys()


@pytest.mark.parametrize("fields", [{"base": np.array([-1])}, {"share": np.array([True])}, {"last": np.array([True])}])
def test_another_segment_for_one_party_ends_before_a_sum(
    fields: dict[str, Any], tmp_path: Path, summed: list[int]
) -> None:
    """Over TCP, with an authority and pins for each owner."""
    nodes = identified(tmp_path, own_files(tmp_path, [EVERYBODY] * 3, labelled=1)[0])

    def change(message: Message, context: Context) -> None:
        if where(message, context) == (2, 2, ""):
            summed.clear()
            rewrite(message, **fields)

    with pytest.raises(RuntimeError, match=rf"partition 2 .*{DIFFERS}segment field {next(iter(fields))}"):
        lie(tmp_path / "run", {**CSV, "vfb2.assemble": False, "vfb2.transport": "tcp"}, nodes, change)
    assert not summed


@pytest.mark.parametrize("phase", [INTERSECTION, "alignment", ""])
def test_another_run_config_for_one_party_is_refused(phase: str, tmp_path: Path) -> None:
    nodes, _ = own_files(tmp_path, [EVERYBODY] * 3, labelled=1)

    def change(message: Message, context: Context) -> Context | None:
        party, server_round, now = where(message, context)
        return configured(context, missing_values="mean") if (party, now) == (1, phase) and server_round >= 0 else None

    with pytest.raises(RuntimeError, match=rf"partition 1 .*{DIFFERS}run-config key missing-values"):
        lie(tmp_path / "run", ALIGNED, nodes, change)


def test_another_run_to_score_with_for_one_party_is_refused(tmp_path: Path) -> None:
    """Both runs have the same number of epochs and the same label holder."""
    nodes, _ = own_files(tmp_path, [EVERYBODY] * 3, labelled=1)
    nodes = [{**node, "state-dir": str(tmp_path / f"state-{place}")} for place, node in enumerate(nodes)]
    tokens = [(play(tmp_path / name, CSV, nodes)[0].path / "run-token").read_text() for name in ("one", "other")]

    def change(message: Message, context: Context) -> Context | None:
        return configured(context, vfb2__score_run=tokens[1]) if where(message, context)[0] == 2 else None

    with pytest.raises(RuntimeError, match=rf"partition 2 .*{DIFFERS}run-config key vfb2\.score-run"):
        lie(tmp_path / "scores", {**CSV, "vfb2.score-run": tokens[0]}, nodes, change)


def test_the_memory_of_another_run_is_refused(tmp_path: Path) -> None:
    """Its weights are nearly 0, and the numbers of its segments are the same."""
    nodes, _ = own_files(tmp_path, [EVERYBODY] * 3, labelled=1)
    _, slow = play(tmp_path / "slow", {**CSV, "learning-rate": 1e-12, "num-server-rounds": 1}, nodes)

    def change(message: Message, context: Context) -> None:
        if where(message, context) == (1, 2, ""):
            kept: Any = context.state["client-state"]
            for name, value in slow._contexts[next(iter(slow._contexts)) + 1].state["client-state"].items():
                if name.startswith(("newer", "segments")):
                    kept[name] = value

    with pytest.raises(RuntimeError, match=rf"partition 1 .*{DIFFERS}plan field history"):
        lie(tmp_path / "run", CSV, nodes, change)


@pytest.mark.parametrize(
    ("told", "reason"),
    [
        ((0, 1, 2), "the server names parties 1 as active, allowed: the first 1 of the parties with labels, 0"),
        ((1,), rf"partition 1 .*{DIFFERS}segment field active"),
    ],
)
def test_the_server_cannot_choose_the_reporter(told: Sequence[int], reason: str, tmp_path: Path) -> None:
    nodes, _ = own_files(tmp_path, [EVERYBODY[:40], EVERYBODY, EVERYBODY[20:]], labelled=1)

    def change(message: Message, context: Context) -> None:
        party, _, phase = where(message, context)
        if phase == INTERSECTION and party in told:
            rewrite(message, active=np.array([1]))

    with refuses(RuntimeError, reason):
        lie(tmp_path / "run", ALIGNED, nodes, change)


@pytest.mark.parametrize("count", [2, 4])
def test_a_list_of_other_than_all_parties_is_refused(count: int, tmp_path: Path) -> None:
    nodes, _ = own_files(tmp_path, [EVERYBODY[:40], EVERYBODY, EVERYBODY[20:]], labelled=1)

    def change(message: Message, context: Context) -> None:
        if where(message, context)[2] == INTERSECTION:
            segment = Segment.from_record(message.content[PAYLOAD])  # type: ignore[arg-type]
            certificates, addresses = segment.peers()
            shown, lengths = join_bytes([*certificates, b"another"][:count])
            places, place_lengths = join_bytes([place.encode() for place in [*addresses, "unix:/nowhere"][:count]])
            listed = {"certificates": shown, "certificate_lengths": lengths}
            rewrite(message, **listed, addresses=places, address_lengths=place_lengths)

    refused = f"party 0: num-partitions: got {count} parties in the server's list, allowed: 3"
    with refuses(RuntimeError, refused):
        lie(tmp_path / "run", ALIGNED, nodes, change)


def test_terms_that_are_not_sent_or_not_read_have_an_error() -> None:
    terms = {f"term {number:02}": "a" for number in range(12)}
    digests = {0: b"a", 1: b"b", 2: b"a"}
    few = str(_blame(digests, {0: terms, 1: {**terms, "term 03": "b"}}))
    many = str(_blame(digests, {0: terms, 1: {}}))
    assert few == f"party 1: {DIFFERS}term 03; {UNCHANGED}"
    assert many.endswith(f"term 08, term 09, and 2 more; {UNCHANGED}")
    assert str(_blame(digests, {0: terms, 1: terms})) == f"party 1: {DIFFERS}terms that it does not send; {UNCHANGED}"
    for body in (b"[]", b"{", b'{"a": 1}', b'{"a\\n": "b"}'):
        with pytest.raises(PartyError, match="party 2: its terms cannot be read"):
            _read(2, body)


def test_sums_of_parties_that_skip_the_comparison_are_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """Party 2 has other terms, so its masks do not cancel."""
    sums: list[np.ndarray] = []
    real = DirectSums.take

    def take(self: DirectSums, kind: int) -> Any:
        found = real(self, kind)
        if found is not None:
            sums.append(np.array(found))
        return found

    async def skip(*_: Any) -> None:
        return

    monkeypatch.setattr(DirectSums, "take", take)
    case = make_case(4, (0,), epochs=0)
    case.run()
    assert np.abs(np.concatenate(sums)).max() < 100
    sums.clear()
    monkeypatch.setattr(Agreement, "confirm", skip)
    plans = {2: dataclasses.replace(case.plan, terms=(("segment field base", "00"),))}

    async def odd(me: int, plan: SegmentPlan, *arguments: Any, **options: Any) -> Any:
        return await run_segment(me, plans.get(me, plan), *arguments, **options)

    monkeypatch.setattr("benchmarks.parties.run_segment", odd)
    case.run()
    assert np.abs(np.concatenate(sums)).max() > 2.0 ** (RING.bits - RING.fraction_bits - 4)
