"""Tests of VFB2's server side without parties: admission, addresses, the step's bound, and the blame for failures."""

from __future__ import annotations

import logging
import re
import time
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from payloads.handshake import SiteReport
from payloads.record import PayloadError
from payloads.settings import TrainingSettings
from strategies.rounds.errors import StrategyError
from strategies.rounds.handshake import Roster
from strategies.vertical.meeting import (
    addresses_of,
    check_rows,
    check_step,
    choose_active,
    warn_of_exposure,
)
from strategies.vertical.strategy import find_blamed, find_culprits
from strategies.vertical.together import check_capacity, check_simulation, meet_on
from strategies.vfb2 import VFB2SGD
from tests.refusals import refuses
from vertical.injection import Injection, inject, injection_of, make_injections
from vertical.records import (
    COUNTERS,
    PAGE,
    Credentials,
    DataSummary,
    Report,
    VFB2Progress,
    cut,
    join_bytes,
    text,
)
from vertical.settings import VFB2Settings
from vertical.transport.endpoint import Delays
from vertical.transport.frames import PartyError


def credentials(host: int = 0, **changes: Any) -> Credentials:
    """Return the credentials of a party on some host."""
    certificate, length = join_bytes([b"certificate"], PAGE)
    fields: dict[str, Any] = {
        "certificate": certificate,
        "certificate_length": length,
        "advertised": text(""),
        "port": np.array([0]),
        "host": text(bytes([host]) * 32),
        "share": np.array([True]),
        "serial": np.array([0]),
    }
    return Credentials(**(fields | changes))


def summary(**changes: Any) -> DataSummary:
    """Return the summary of a party with labels and 4 columns of 10 rows."""
    fields: dict[str, Any] = {"rows": np.array([8, 2]), "columns": np.array([4])}
    fields |= {"labels": np.array([True]), "id_lengths": np.array([1, 1]), "id_marks": np.zeros(6, dtype=bool)}
    return DataSummary(**(fields | changes))


def roster_of(parties: int) -> Roster:
    reports = [SiteReport(identity=np.array([p, parties]), class_counts=np.array([4, 4])) for p in range(parties)]
    return Roster(tuple(range(parties)), tuple(reports))


# Settings.


def test_what_auto_means() -> None:
    assert VFB2Settings().factor is None
    assert VFB2Settings(weight=0.5).factor == 0.5
    assert VFB2Settings(window=5).skew_bound == 20
    assert VFB2Settings(window=5, skew=3).skew_bound == 3


@pytest.mark.parametrize(
    ("settings", "active", "bound"),
    [
        ({"window": 1}, 1, 1),
        ({"window": 4}, 3, 12),
        ({"window": 4, "synchronous": True}, 3, 2),
        ({"synchronous": True}, 1, 0),
    ],
)
def test_the_delay_is_bounded_by_what_is_under_way(settings: dict[str, Any], active: int, bound: int) -> None:
    assert VFB2Settings(**settings).delay_bound(active) == bound


def test_injections_last_as_long_as_the_context() -> None:
    with inject(make_injections(3, compute=0.5, delay=0.25, slowest=2)):
        assert [injection_of(party).compute for party in range(4)] == [0.5, 0.5, 1.0, 0.0]
        assert [injection_of(party).delays for party in (0, 2)] == [Delays(0.25)] * 2
    assert injection_of(0) == Injection()


# Records.


def test_byte_strings_are_joined_and_cut() -> None:
    parts = [b"one", b"", b"three"]
    whole, lengths = join_bytes(parts)
    assert (whole.tobytes(), lengths.tolist()) == (b"onethree", [3, 0, 5])
    assert cut("parts", whole, lengths) == parts
    padded, lengths = join_bytes(parts, 6)
    assert padded.tobytes() == b"onethree\0\0\0\0"
    assert cut("parts", padded, lengths) == parts
    for wrong in ([9], [4, 5], [-1, 5]):
        with pytest.raises(PayloadError, match="parts: got 8 bytes with parts of lengths"):
            cut("parts", whole, np.array(wrong))


def test_metrics_keep_their_names_on_the_way() -> None:
    metrics = {"auc": 0.75, "objective": 0.5}
    common: dict[str, Any] = {"serial": np.array([1]), "counters": np.zeros(len(COUNTERS))}
    report = Report(**common, **Report.of_metrics(metrics))
    assert Report.from_record(report.to_record()).metrics() == metrics
    with pytest.raises(PayloadError, match="metric_names: got"):
        Report(**common, metric_names=np.array([99]), metric_values=np.ones(1)).metrics()
    with pytest.raises(PayloadError, match="both fields or neither"):
        Report(**common, metric_values=np.ones(1)).metrics()


# Admitted parties.


@pytest.mark.parametrize(
    ("parties", "settings", "told"),
    [
        (1, {"allow_two_parties": True}, "number of parties: got 1, allowed: 2 or more"),
        (2, {}, "add a party, or set vfb2.allow-two-parties=true"),
        (3, {"active_parties": 4}, "vfb2.active-parties: got 4, allowed: at most the number of parties, 3"),
    ],
)
def test_parties_that_cannot_meet_are_refused(parties: int, settings: dict[str, Any], told: str) -> None:
    with refuses(StrategyError, told):
        VFB2SGD(None, VFB2Settings(**settings)).meet(roster_of(parties))


def test_flower_s_simulation_has_room_for_so_many() -> None:
    for parties, cores, actors in ((6, 2, 6), (32, 28, 32), (4, 2, None)):
        check_simulation(parties, cores, actors)
    for parties, cores, actors, told in (
        (7, 2, 16, r"parties: got 7, .*allowed: min\(32, 2 cores \+ 4\) = 6,"),
        (33, 64, 64, r"parties: got 33, .*allowed: min\(32, 64 cores \+ 4\) = 32,"),
        (
            4,
            8,
            3,
            "parties: got 4, .*allowed: 3, the maximum that Ray runs.*num-supernodes=4 .*init-args-num-cpus=4",
        ),
    ):
        with refuses(StrategyError, told):
            check_simulation(parties, cores, actors)


def test_the_in_process_engine_is_asked_to_run_all_together() -> None:
    asked: list[int] = []
    grid: Any = SimpleNamespace(run_together=asked.append)
    check_capacity(grid, 5)
    assert asked == [5]


class Post:
    """A grid whose replies arrive at given polls: message id -> (poll, whether it is an error)."""

    pull_interval = 0.001

    def __init__(self, replies: dict[str, tuple[int, bool]]) -> None:
        self.replies, self.looks = replies, 0

    def push_messages(self, messages: Any) -> list[str]:
        return ["a", "b", "c"]

    def pull_messages(self, ids: Any) -> list[Any]:
        self.looks += 1
        due = [name for name, (look, _) in self.replies.items() if name in ids and look <= self.looks]
        return [self.reply(name, self.replies[name][1]) for name in due]

    def reply(self, name: str, broken: bool) -> Any:
        words = "\nException ClientAppException occurred. Message: party 2: gone"
        error = SimpleNamespace(reason=f"<class 'flwr.ClientAppException'>:<'{words}'>", code=2)
        told = SimpleNamespace(reply_to_message_id=name)
        return SimpleNamespace(metadata=told, has_error=lambda: broken, error=error)


@pytest.mark.parametrize("broken", [False, True])
def test_all_replies_are_waited_for(broken: bool) -> None:
    grid: Any = Post({"a": (1, broken), "b": (30, False), "c": (5, broken)})
    found = meet_on(grid, [], timeout=60, patience=60)
    assert sorted(reply.metadata.reply_to_message_id for reply in found) == ["a", "b", "c"]


def test_but_not_for_long_once_a_party_has_failed(caplog: pytest.LogCaptureFixture) -> None:
    grid: Any = Post({"a": (1, False), "b": (2, True), "c": (10**6, False)})
    begun = time.monotonic()
    with caplog.at_level(logging.WARNING, logger="flwr"):
        found = meet_on(grid, [], timeout=20, patience=0.05)
    assert len(found) == 2
    assert time.monotonic() - begun < 20
    assert "a party failed: party 2: gone; waiting at most 0.05 s for 1 more" in caplog.text
    grid = Post({"a": (1, False)})
    assert len(meet_on(grid, [], timeout=0.05, patience=60)) == 1


# Addresses.


def test_where_parties_listen() -> None:
    near, far = credentials(advertised=text("a:1")), credentials(host=1, advertised=text("b:2"))
    assert addresses_of([credentials(), credentials()], "auto", 7) == ["unix:/7-0", "unix:/7-1"]
    assert addresses_of([near, far], "auto", 7) == ["tcp:a:1", "tcp:b:2"]
    with refuses(StrategyError, "party 1: got no address, .* on 2 hosts.*advertise"):
        addresses_of([near, credentials(host=1, port=np.array([9]))], "auto", 7)
    with refuses(StrategyError, "got 'unix' for 2 parties on 2 hosts"):
        addresses_of([near, far], "unix", 7)
    with refuses(StrategyError, "^party 0, 2: got the same address as another party, .*set advertise separately"):
        addresses_of([near, far, near], "auto", 7)
    # on one host the loopback suffices
    parties = [credentials(port=np.array([8])), credentials(port=np.array([9]), advertised=text("b:2"))]
    assert addresses_of(parties, "tcp", 7) == ["tcp:127.0.0.1:8", "tcp:b:2"]
    # parties that no one can reach meet at a party that all can reach
    hidden = credentials(host=2, advertised=text("none"))
    assert addresses_of([hidden, near, hidden], "auto", 7) == ["none:0", "tcp:a:1", "none:2"]
    assert addresses_of([hidden, hidden], "auto", 7) == ["unix:/7-0", "unix:/7-1"]
    with refuses(StrategyError, "advertise: got 'none' at every party, 0, 1, allowed: host:port at one"):
        addresses_of([hidden, hidden], "tcp", 7)


def held(lengths: str, rows: tuple[int, ...]) -> list[Any]:
    pairs = zip(lengths, rows, strict=True)
    return [summary(rows=np.array([n - 1, 1]), id_lengths=np.array([int(length)] * 2)) for length, n in pairs]


# Matching rows.


@pytest.mark.parametrize(
    ("lengths", "rows", "agreeing", "named"),
    [
        ("23222", (9, 9, 9, 9, 7), "3 of 5", "party 1, 4: got other rows (9, 7)"),
        # the reporter is not right by being first
        ("322", (4, 5, 5), "2 of 3", "party 0: got other rows (4)"),
        # of equally large groups, the group with the lowest party counts as right
        ("234", (4, 4, 4), "1 of 3", "party 1, 2: got other rows (4, 4)"),
        # equal forms do not help a party with another count
        ("222", (4, 4, 3), "2 of 3", "party 2: got other rows (3)"),
    ],
)
def test_parties_whose_rows_differ_are_named(lengths: str, rows: tuple[int, ...], agreeing: str, named: str) -> None:
    with refuses(StrategyError, re.escape(f"{named} than {agreeing} parties, which agree")):
        check_rows(held(lengths, rows), forms=True)
    assert check_rows(held("222", (9, 9, 9)), forms=True) == check_rows(held("234", (9, 9, 9))) == (8, 1)


# Active parties.


@pytest.mark.parametrize(
    ("labels", "settings", "active"),
    [
        ((0, 1, 0), {}, (1,)),
        ((1, 0, 1), {}, (0, 2)),
        ((0, 1, 1, 1), {}, (1, 2)),
        ((0, 1, 1, 1), {"active_parties": 3}, (1, 2, 3)),
        ((1, 1, 1), {"active_parties": 1}, (0,)),
        # each active party would train a different head
        ((0, 1, 1), {"embedding": 4}, (1,)),
        ((0, 1, 1), {"embedding": 4, "problem": "softmax"}, (1, 2)),
        ((0, 1, 1), {"active_parties": 3}, "vfb2.active-parties: got 3, but only party 1, 2 has labels"),
        ((0, 0, 0), {}, "label-column: got labels at no party, allowed: labels at one party or more; set label-column"),
        ((0, 0, 0), {"active_parties": 1}, "label-column: got labels at no party"),
    ],
)
def test_active_parties_are_the_first_with_labels(
    labels: tuple[int, ...], settings: dict[str, Any], active: tuple[int, ...] | str
) -> None:
    summaries = [summary(labels=np.array([bool(label)])) for label in labels]
    if isinstance(active, str):
        with refuses(StrategyError, re.escape(active)):
            choose_active(summaries, VFB2Settings(**settings))
    else:
        assert choose_active(summaries, VFB2Settings(**settings)) == active


# The largest step.


@pytest.mark.parametrize(("step", "fits"), [(0.999, True), (1.001, False)])
def test_a_step_too_large_is_refused_with_the_largest(step: float, fits: bool) -> None:
    settings = VFB2Settings(window=1, check_step="refuse")
    largest = 2 * np.sin(np.pi / 6) / 4.0  # the delay is 1
    if fits:
        check_step(step * largest, 4.0, 1, settings)
    else:
        with refuses(StrategyError, "learning-rate: got 0.25025, allowed: below 0.25, the limit of stable steps"):
            check_step(step * largest, 4.0, 1, settings)


def test_or_warned_about(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="flwr"):
        check_step(1.0, 4.0, 2, VFB2Settings())
    assert "2 active parties (window 4) an update may be 8 updates late" in caplog.text
    caplog.clear()
    check_step(1e-3, 4.0, 2, VFB2Settings())
    check_step(1e-3, 0.0, 2, VFB2Settings())  # all features are zero
    assert not caplog.text


def test_an_epoch_is_what_drops_count() -> None:
    training = TrainingSettings(num_server_rounds=4, local_steps=99, learning_rate=1.0, lr_decay=0.5, lr_decay_every=3)
    settings = VFB2Settings(epochs=2)
    assert [settings.step(training, segment) for segment in (0, 1, 2, 3, 4)] == [1, 1, 1, 0.5, 0.25]
    halfway = training.model_copy(update={"lr_decay_every": 0, "lr_decay_at": "0.5"})
    assert [settings.step(halfway, segment) for segment in (1, 2, 3, 4)] == [1, 1, 0.5, 0.5]


@pytest.mark.parametrize("percent", range(1, 100))
def test_a_fraction_of_the_steps_is_reached_when_it_is(percent: int) -> None:
    training = TrainingSettings(num_server_rounds=25, local_steps=4, lr_decay=0.5, lr_decay_at=f"{percent / 100}")
    rates = [training.learning_rate_at(iteration) for iteration in range(100)]
    assert rates == [training.learning_rate] * percent + [training.learning_rate / 2] * (100 - percent)


# Blame for failures.


def test_blame_survives_the_way() -> None:
    assert find_blamed(str(PartyError(3, "it is gone: party 1 saw it"))) == (3, "it is gone: party 1 saw it")
    assert find_blamed(str(PartyError(None, "no party joined"))) is None
    assert find_blamed("the disk is full") is None


@pytest.mark.parametrize(
    ("reasons", "expected"),
    [
        ({}, {}),
        ({1: "the disk is full"}, {1: "the disk is full"}),
        ({0: "party 2: gone", 1: "party 2: gone", 2: "no answer"}, {2: "no answer; other parties report: gone"}),
        ({0: "party 2: bad", 2: "party 2: bad"}, {2: "bad"}),
        ({0: "party 1: silent", 1: "party 0: silent", 2: "party 1: silent"}, {1: "silent"}),
        ({0: "lost", 1: "lost"}, {0: "lost", 1: "lost"}),
        ({1: "party 9: it is late"}, {1: "party 9: it is late"}),  # the error names no party of the run
    ],
)
def test_the_party_that_most_errors_name_is_to_blame(reasons: dict[int, str], expected: dict[int, str]) -> None:
    assert find_culprits(reasons, 4) == expected


# The server's state.


def test_a_restored_strategy_knows_what_it_knew() -> None:
    strategy = VFB2SGD()
    assert strategy.snapshot() is None
    strategy.rows, strategy.finished, strategy.serial = (8, 2), 3, 5
    strategy.blocks = [np.arange(2.0), np.arange(3.0)]
    kept = strategy.snapshot()
    assert kept is not None
    other = VFB2SGD()
    other.restore(VFB2Progress(**kept.arrays()).check())
    assert (other.rows, other.finished, other.serial) == ((8, 2), 3, 5)
    assert [block.tolist() for block in other.output(3, [])] == [[0, 1], [0, 1, 2]]


def strategy_with(*parties: Credentials, **settings: Any) -> VFB2SGD:
    training = TrainingSettings(num_server_rounds=4, checkpoint_every=2)
    strategy = VFB2SGD(training, VFB2Settings(**settings))
    strategy.credentials, strategy.active, strategy.salt = list(parties), (0,), "00" * 16
    strategy.summaries = [summary() for _ in parties]
    return strategy


@pytest.mark.parametrize(
    ("number", "assemble", "consent", "shared"),
    [
        (4, True, True, True),
        (2, True, True, True),
        (3, True, True, False),
        (4, False, True, False),
        (4, True, False, False),
    ],
)
def test_blocks_are_asked_for_where_all_agree_and_they_are_kept(
    number: int, assemble: bool, consent: bool, shared: bool
) -> None:
    strategy = strategy_with(credentials(), credentials(share=np.array([consent])), assemble=assemble)
    segment = strategy.down(number)
    assert bool(segment.share[0]) == shared
    assert bool(segment.last[0]) == (number == 4)
    assert int(segment.base[0]) == number - 1
    assert segment.peers() == ([b"certificate"] * 2, ["unix:/1-0", "unix:/1-1"])
    assert segment.certificates.nbytes == PAGE
    assert [int(segment.serial[0]), int(strategy.down(number).serial[0])] == [1, 2]  # every attempt has its own serial


@pytest.mark.parametrize(
    ("place", "phase", "changes", "told"),
    [
        (1, "", {"serial": np.array([4])}, "Report.serial: got attempt 4, expected 5"),
        (0, "", {}, "got no metrics, expected metrics from"),
        (1, "", {"weights": np.zeros(3)}, "Report.weights: got 3, expected 4"),
        (1, "alignment", {}, "got no rows in phase alignment, expected"),
    ],
)
def test_an_impossible_report_is_refused(place: int, phase: str, changes: dict[str, Any], told: str) -> None:
    strategy = strategy_with(credentials(), credentials())
    strategy.serial, strategy.under_way = 5, 4
    report = Report(**({"serial": np.array([5]), "counters": np.zeros(len(COUNTERS))} | changes))
    with pytest.raises(PayloadError, match=told):
        strategy.check_report(place, report, phase)


@pytest.mark.parametrize(
    ("epochs", "embedding", "said"),
    [
        (8, 0, ""),
        (9, 0, r"9 epochs show party 2 .* as the other parties have columns \(9\)"),
        (1, 4, ""),
        (2, 4, r"2 epochs of embedding 4 show party 2"),
    ],
)
def test_as_many_looks_as_columns_are_said(
    epochs: int, embedding: int, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, logger="flwr"):
        warn_of_exposure(epochs, [4, 5, 6], embedding)
    assert re.search(said, caplog.text) if said else not caplog.text
