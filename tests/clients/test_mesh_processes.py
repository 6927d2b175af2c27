"""Tests of parties in separate threads and loops, as processes have them."""

import threading
import time

import pytest

from tests.clients.meshes import Town, all_heard, as_threads, converse, town


@pytest.mark.parametrize("transport", ["unix", "tcp"])
def test_six_threads_hear_everything_once_and_in_order(transport: str) -> None:
    with town(6, transport) as place:
        heard = as_threads(6, lambda me: converse(place.mesh(me), 200))
        assert heard == [all_heard(me, 6, 200) for me in range(6)]


@pytest.mark.parametrize(("culprit", "transport"), [(0, "unix"), (2, "tcp")])
def test_a_party_that_hangs_is_named_by_all(culprit: int, transport: str) -> None:
    """When the party goes on, it learns the same, and does not blame the parties that waited for it."""
    named = threading.Barrier(4)

    async def life(place: Town, me: int) -> None:
        mesh = place.mesh(me)
        try:
            await mesh.join()
            if me == culprit:
                # its loop stands still until all other parties have named it
                named.wait(20.0)
                await mesh.failed
            try:
                await mesh.failed
            finally:
                named.wait(20.0)
        finally:
            await mesh.close()

    with town(4, transport, beat=0.1, silence=0.8, close=0.5) as place:
        began = time.monotonic()
        errors = as_threads(4, lambda me: life(place, me))
        assert 0.8 < time.monotonic() - began < 6.0
        assert {str(error) for error in errors} == {f"party {culprit}: it has been silent for 0.8 s"}
