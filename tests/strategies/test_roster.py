"""Tests of the handshake: partition ids matter, node ids do not."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from flwr.app import ConfigRecord, Context, Error, Message
from flwr.clientapp import ClientApp
from hypothesis import given
from hypothesis import strategies as st

from payloads.handshake import REFUSAL, SiteReport
from payloads.record import PayloadError
from payloads.settings import TrainingSettings
from payloads.wire import content
from simulations.engines.in_process import InProcessGrid
from strategies.base import PayloadStrategy
from strategies.fedx import FedX1
from strategies.local_sgd import LocalSGDM, LocalSGDMRatio
from strategies.minimax import FedSGDAMB
from strategies.rounds.errors import StrategyError, reason_of
from strategies.rounds.handshake import Roster, collect_reports
from tests.refusals import refuses


def report(partition: int, partitions: int) -> SiteReport:
    return SiteReport(
        identity=np.array([partition, partitions]),
        class_counts=np.array([10 * partition, partition]),
    )


def answering(
    answer: Callable[[int, int], Any], facts: Callable[[int], dict[str, str]] = lambda partition: {}
) -> ClientApp:
    """Return a ClientApp that answers the handshake with ``answer(partition, partitions)``: a report or a record."""
    app = ClientApp()

    @app.query()
    def query(message: Message, context: Context) -> Message:
        partition = int(context.node_config["partition-id"])
        told = answer(partition, int(context.node_config["num-partitions"]))
        record = told.to_record() if isinstance(told, SiteReport) else told
        beside = ConfigRecord(dict(facts(partition))) if facts(partition) else None
        return Message(content(config=beside, payload=record), reply_to=message)

    return app


class Nodes(InProcessGrid):
    """A grid with given node ids; ``joins`` sets the number of connected nodes at each poll."""

    def __init__(self, ids: Sequence[int], app: ClientApp | None = None, joins: Sequence[int] = ()) -> None:
        super().__init__(app or answering(report), len(ids), {})
        self._contexts = dict(zip(ids, self._contexts.values(), strict=True))
        self._joins = list(joins)
        self.asked: list[int] = []

    def get_node_ids(self) -> list[int]:
        ids = sorted(self._contexts)
        return ids[: self._joins.pop(0)] if self._joins else ids

    def push_messages(self, messages: Any) -> list[str]:
        messages = list(messages)
        self.asked += [message.metadata.dst_node_id for message in messages]
        return list(super().push_messages(messages))


@given(st.lists(st.integers(1, 2**63), min_size=1, max_size=12, unique=True), st.integers(0, 50))
def test_node_ids_change_nothing_but_the_address(ids: list[int], server_round: int) -> None:
    roster = collect_reports(Nodes(ids), timeout=5)
    assert roster.node_ids == tuple(ids)  # in the order of the partitions
    assert [r.partition_id for r in roster.reports] == list(range(len(ids)))
    np.testing.assert_array_equal(roster.class_counts, [[10 * i, i] for i in range(len(ids))])
    plain = collect_reports(Nodes(range(1, len(ids) + 1)), timeout=5)
    for fraction in (0.3, 0.5, 1.0):
        training = TrainingSettings(fraction_train=fraction, seed=4)
        assert roster.sample(training, server_round) == plain.sample(training, server_round)


def test_late_nodes_are_waited_for_and_asked_once() -> None:
    nodes = Nodes([30, 10, 20], joins=[0, 1, 1, 2])
    roster = collect_reports(nodes, timeout=5)
    assert roster.node_ids == (30, 10, 20)
    assert sorted(nodes.asked) == [10, 20, 30]


def test_missing_partitions_are_named() -> None:
    app = answering(lambda partition, _: report([0, 3][partition], 5))
    with refuses(StrategyError, r"got 2 of 5 sites within 0\.05 s, allowed: all sites; missing partitions: 1, 2, 4;"):
        collect_reports(Nodes([7, 8], app), timeout=0.05)
    with refuses(StrategyError, r"handshake: got 0 of 1 sites within"):
        collect_reports(Nodes([]), timeout=0.05)


def refuses_roll(app: ClientApp, told: str) -> None:
    with pytest.raises(StrategyError, match=told):
        collect_reports(Nodes([5, 6], app), timeout=0.05)


def test_a_partition_that_cannot_be_is_refused() -> None:
    refuses_roll(
        answering(lambda partition, _: report(1, 2)), "partition 1: .*two sites that claim it; allowed: one site"
    )
    for wrong in (7, -1, 2):
        refuses_roll(answering(lambda p, n, wrong=wrong: report(p if p else wrong, n)), rf"handshake: .*{wrong}")


def broken(partition: int, partitions: int) -> SiteReport:
    if partition == 1:
        raise PayloadError("its data is gone")
    return report(partition, partitions)


def test_a_site_that_fails_ends_the_handshake_with_its_reason() -> None:
    refuses_roll(answering(broken), r"handshake: a site failed, partition 1: node 6: its data is gone")
    refuses_roll(answering(lambda p, n: None), "without a report; is its ClientApp Florilegium")
    refuses_roll(answering(lambda p, n: ConfigRecord()), r"malformed: SiteReport\.identity: missing")
    uncounted = answering(lambda p, n: SiteReport(identity=np.array([p, n])))
    refuses_roll(uncounted, r"malformed: SiteReport\.class_counts: missing")
    assert collect_reports(Nodes([5, 6], uncounted), timeout=5, counted=False).class_counts.tolist() == [[0, 0]] * 2
    refuses_roll(answering(report, lambda p: {REFUSAL: "no data here"} if p == 1 else {}), "^no data here$")


@pytest.mark.parametrize("counts", [(-1, 5), (2**62, 2**62), (3, 2**40 + 1)])
def test_a_site_with_an_impossible_number_of_rows_is_named(counts: tuple[int, int]) -> None:
    def lie(partition: int, partitions: int) -> SiteReport:
        return SiteReport(
            identity=np.array([partition, partitions]), class_counts=np.array(counts if partition else (4, 5))
        )

    refuses_roll(answering(lie), rf"malformed: partition 1: SiteReport.class_counts: got \[{counts[0]}, {counts[1]}\]")
    refuses_roll(answering(lambda p, n: report(p, 2**62)), f"SiteReport.identity: got partition 0 of {2**62}")


def named(first: bytes, second: bytes) -> ClientApp:
    names = [np.frombuffer(name, np.uint8) for name in (first, second)]
    return answering(lambda p, n: replace(report(p, n), name=names[p]))


def test_names_of_sites_are_checked_on_arrival() -> None:
    roster = collect_reports(Nodes([5, 6], named("Zürich".encode(), b"A & B <b>")), timeout=5)
    assert [roster.label(place) for place in (0, 1)] == ["Zürich", "A & B <b>"]
    assert Roster((1, 2), (report(0, 2), report(1, 2))).label(1) == "partition 1"
    for wrong in (b"", b"a\nb", b" a", b"x" * 41, b"\xff", "\u202ea".encode(), b"Partition 7"):
        refuses_roll(named(b"a", wrong), "malformed: partition 1: SiteReport.name: ")
    refuses_roll(named(b"Here", b"here"), "site-name.*at partitions 0 and 1; allowed: a different name at each site")


def test_sites_of_different_versions_are_named(caplog: pytest.LogCaptureFixture) -> None:
    app = answering(report, lambda partition: {"torch": f"2.{partition}", "numpy": "2.0"})
    assert len(collect_reports(Nodes([5, 6], app), timeout=5)) == 2
    assert [record.getMessage() for record in caplog.records] == [
        "sites differ in torch: 2.0, 2.1; so the same computation may differ between them"
    ]


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        (FedX1, "labels: got {} positives and {} negatives at all sites together"),
        (FedSGDAMB, "got {} positives and {} negatives at all sites together, .* AUC needs both"),
        (LocalSGDMRatio, "the ratio loss needs both classes, got {} positives and {} negatives"),
    ],
)
@pytest.mark.parametrize("counts", [(4, 0), (0, 4)])
def test_what_compares_two_classes_needs_both_somewhere(
    kind: type[PayloadStrategy], told: str, counts: tuple[int, int]
) -> None:
    reports = tuple(SiteReport(identity=np.array([i, 2]), class_counts=np.array(counts)) for i in range(2))
    training = TrainingSettings(batch_size=2)
    with refuses(StrategyError, told.format(2 * counts[1], 2 * counts[0])):
        kind(training).meet(Roster((1, 2), reports))
    LocalSGDM(training).meet(Roster((1, 2), reports))


# Sampling.


def roster_of(count: int) -> Roster:
    return Roster(tuple(range(100, 100 + count)), tuple(report(i, count) for i in range(count)))


@given(st.integers(1, 40), st.floats(0.01, 1.0), st.integers(1, 40), st.integers(0, 3), st.integers(1, 99))
def test_a_sample_is_sorted_distinct_and_of_the_right_size(
    count: int, fraction: float, minimum: int, seed: int, server_round: int
) -> None:
    roster, wanted = roster_of(count), max(minimum, round(fraction * count))
    training = TrainingSettings(fraction_train=fraction, min_train_nodes=minimum, seed=seed)
    if wanted > count:
        with refuses(StrategyError, f"got {wanted} for round {server_round}, allowed: at most {count},"):
            roster.sample(training, server_round)
        return
    places = roster.sample(training, server_round)
    assert places == sorted(set(places) & set(range(count)))
    assert len(places) == wanted
    assert roster.sample(training, server_round) == places


def test_every_client_is_sampled_equally_often() -> None:
    roster = roster_of(10)
    training = TrainingSettings(fraction_train=0.3)
    drawn = np.bincount(np.concatenate([roster.sample(training, r) for r in range(1, 2001)]), minlength=10)
    # 600 expected each, standard deviation 20.5
    assert np.abs(drawn - 600).max() < 5 * 20.5


def test_seed_and_round_each_change_the_sample() -> None:
    roster = roster_of(50)
    seeds = [TrainingSettings(fraction_train=0.2, seed=seed) for seed in (0, 1)]
    samples = [roster.sample(training, server_round) for training in seeds for server_round in (1, 2)]
    assert len({tuple(sample) for sample in samples}) == 4


@given(st.integers(1, 30), st.floats(0.01, 1.0), st.integers(0, 3))
def test_cyclic_sampling_asks_every_client_in_turn(count: int, fraction: float, seed: int) -> None:
    training = TrainingSettings(fraction_train=fraction, min_train_nodes=1, seed=seed, client_sampling="cyclic")
    samples = [roster_of(count).sample(training, server_round) for server_round in range(1, count + 1)]
    share = len(samples[0])
    assert [len({*sample}) for sample in samples] == [share] * count
    # after N rounds of k clients each client has trained k times, and at any time no client is ahead by two
    for end in range(1, count + 1):
        times = np.bincount(np.concatenate(samples[:end]), minlength=count)
        assert times.max() - times.min() <= 1
    assert (times == share).all()


def choose_late(server_round: int, count: int, clients: int, rng: np.random.Generator) -> list[int]:
    return [clients - 1, *rng.choice(clients - 1, count - 1, replace=False)][: server_round + 1]


def choose_twice(server_round: int, count: int, clients: int, rng: np.random.Generator) -> list[int]:
    return [1, 1]


def test_a_function_chooses_the_clients() -> None:
    roster, training = roster_of(10), TrainingSettings(fraction_train=0.4, client_sampling=f"{__name__}:choose_late")
    samples = [roster.sample(training, server_round) for server_round in (1, 2, 9)]
    assert [(len(sample), sample[-1]) for sample in samples] == [(2, 9), (3, 9), (4, 9)]
    assert roster.sample(training, 9) == samples[-1]
    wrong = training.model_copy(update={"client_sampling": f"{__name__}:choose_twice"})
    with refuses(
        StrategyError, r"client-sampling: .* which returns \[1, 1\] in round 3, allowed: uniform, cyclic, or a"
    ):
        roster.sample(wrong, 3)


CLIENT_APP_EXCEPTION = "\nException ClientAppException occurred. Message: its disk is full"


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (Error(2, "<class 'OSError'>:<'its disk is full'>"), "its disk is full"),
        (Error(2, f"<class 'flwr.ClientAppException'>:<'{CLIENT_APP_EXCEPTION}'>"), "its disk is full"),
        (Error(2, f"<class 'ray.RayTaskError'>:<'ray::run()\nX: {CLIENT_APP_EXCEPTION}'>"), "its disk is full"),
        (Error(2, "<class 'ValueError'>:<'Message: 'a' > b'>"), "Message: 'a' > b"),
        (Error(2, "<class 'AssertionError'>:<''>"), "<class 'AssertionError'>:<''>"),
        (Error(5), "error code 5"),
    ],
)
def test_an_exception_is_told_in_its_own_words(error: Error, words: str) -> None:
    assert reason_of(error) == words
