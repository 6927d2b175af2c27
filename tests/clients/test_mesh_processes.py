"""Parties as threads and as real processes."""

from __future__ import annotations

import signal
import time
from typing import Any

import pytest

from clients.vertical.failures import PartyError
from tests.clients.meshes import Town, all_heard, as_threads, converse, everyone, occupy, town
from tests.clients.processes import Processes

SLOW = pytest.mark.slow


@pytest.mark.parametrize("transport", ["unix", "tcp"])
def test_six_threads_hear_everything_once_and_in_order(transport: str) -> None:
    with town(6, transport) as place:
        heard = as_threads(6, lambda me: converse(place.mesh(me), 200))
        assert heard == [all_heard(me, 6, 200) for me in range(6)]


@pytest.mark.parametrize("transport", ["unix", pytest.param("tcp", marks=pytest.mark.slow)])
def test_six_processes_hear_everything_once_and_in_order(transport: str) -> None:
    with town(6, transport) as place, Processes(place, frames=100) as parties:
        reports = parties.reports("heard", set(range(6)))
        assert all(report["right"] for report in reports.values())


def test_threads_agree_on_who_failed() -> None:
    async def life(place: Town, me: int) -> None:
        mesh = place.mesh(me)
        try:
            await mesh.join()
            if me == 4:
                mesh.abort(PartyError(4, "its labels are not -1 and +1"))
            await mesh.failed
        finally:
            await mesh.close()

    with town(6) as place:
        errors = as_threads(6, lambda me: life(place, me))
        assert {str(error) for error in errors} == {"party 4: its labels are not -1 and +1"}


def named(parties: Processes, survivors: set[int], culprit: int, words: str) -> None:
    """All survivors name the culprit within 10 seconds, with these words."""
    began = time.monotonic()
    reports = parties.reports("failed", survivors)
    assert time.monotonic() - began < 10.0
    for report in reports.values():
        assert report["culprit"] == culprit, report
        assert words in report["reason"], report


@pytest.mark.parametrize(
    ("culprit", "transport"),
    [(0, "unix"), pytest.param(3, "tcp", marks=SLOW), pytest.param(5, "unix", marks=SLOW)],
)
def test_a_killed_process_is_named(culprit: int, transport: str) -> None:
    with town(6, transport) as place, Processes(place) as parties:
        parties.reports("joined", set(range(6)))
        parties.kill(culprit, signal.SIGKILL)
        named(parties, set(range(6)) - {culprit}, culprit, "its connection")


@pytest.mark.parametrize(
    ("culprit", "transport"),
    [(2, "unix"), pytest.param(0, "tcp", marks=SLOW), pytest.param(5, "unix", marks=SLOW)],
)
def test_a_stopped_process_is_named(culprit: int, transport: str) -> None:
    with town(6, transport, beat=0.2, silence=1.5, close=0.5) as place, Processes(place) as parties:
        parties.reports("joined", set(range(6)))
        parties.kill(culprit, signal.SIGSTOP)
        named(parties, set(range(6)) - {culprit}, culprit, "silent for 1.5 s")
        # when it goes on, it learns the same
        parties.kill(culprit, signal.SIGCONT)
        named(parties, {culprit}, culprit, "silent for 1.5 s")


@SLOW
@pytest.mark.parametrize(("culprit", "transport"), [(0, "unix"), (3, "tcp"), (5, "unix")])
class TestProcessesThatJoin:
    """With six real processes what the tests above show in one loop."""

    def test_never(self, culprit: int, transport: str) -> None:
        with town(6, transport, join=2.0) as place, Processes(place, everyone(place, culprit)) as parties:
            named(parties, set(range(6)) - {culprit}, culprit, "never joined")

    def test_with_an_unknown_certificate(self, culprit: int, transport: str) -> None:
        with town(6, transport, join=3.0) as place:
            present = everyone(place) | {culprit: place.with_impostor(culprit)}
            with Processes(place, present) as parties:
                named(parties, set(range(6)), culprit, "certificate")

    def test_where_the_address_is_in_use(self, culprit: int, transport: str) -> None:
        with town(6, transport) as place, occupy(place.addresses[culprit]), Processes(place) as parties:
            named(parties, set(range(6)), culprit, "in use")

    def test_and_die_while_others_join(self, culprit: int, transport: str) -> None:
        with town(6, transport, join=3.0) as place, Processes(place) as parties:
            time.sleep(0.02)
            parties.kill(culprit, signal.SIGKILL)
            survivors = set(range(6)) - {culprit}
            reports: dict[int, dict[str, Any]] = {}
            while set(reports) != survivors:
                line = parties._read()
                if line["event"] != "joined":
                    reports[line["party"]] = line
            assert {report["culprit"] for party, report in reports.items() if party in survivors} == {culprit}
