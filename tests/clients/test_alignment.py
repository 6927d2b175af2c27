"""Tests of the search for common rows over connections: ids in pieces, and failures."""

import asyncio
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from simulations.engines.addresses import local_addresses, socket_folder
from vertical import alignment
from vertical.agreement import Agreement
from vertical.alignment import PIECE, POSITIONS, TAGS, find_rows
from vertical.intersection import TAG_BYTES, Intersection
from vertical.transport.endpoint import Endpoint
from vertical.transport.frames import Frame, Kind, PartyError
from vertical.transport.identity import Identity
from vertical.transport.mesh import Mesh


def endpoints(folder: Path, parties: int) -> list[Endpoint]:
    identities = [Identity.create(f"party {party}") for party in range(parties)]
    addresses = local_addresses(parties, folder)
    return [Endpoint(addresses, own, [one.certificate for one in identities]) for own in identities]


async def search(lists: Sequence[Sequence[str]], folder: Path) -> list[object]:
    """Return each party's common rows, or its error."""
    ends = endpoints(folder, len(lists))
    talks = [find_rows(me, 1, ids, ends[me], 1, b"run") for me, ids in enumerate(lists)]
    return list(await asyncio.gather(*talks, return_exceptions=True))


@pytest.mark.parametrize("tags", [1, 3, 7])
def test_rows_are_found_in_pieces_and_in_the_order_of_their_ids(tags: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alignment, "PIECE", tags * TAG_BYTES)
    rng = np.random.default_rng(0)
    lists = [[str(name) for name in rng.permutation(30)[:21]] for _ in range(3)]  # 3 and 7 leave an empty last piece
    common = sorted(set.intersection(*map(set, lists)))
    assert len(common) > 5
    with socket_folder() as folder:
        found = asyncio.run(search(lists, folder))
    for ids, each in zip(lists, found, strict=True):
        assert isinstance(each, tuple)
        rows, sent = each
        assert [ids[row] for row in rows] == common
        assert sent > 2 * 21 * TAG_BYTES


@pytest.mark.parametrize("frames", [
    [Frame(Kind.ALIGN, TAGS, 1, b"")],  # not the first piece
    [Frame(Kind.ALIGN, TAGS, 0, bytes(PIECE + 1))],
    [Frame(Kind.ALIGN, POSITIONS + 1, 0, b"")],
    [Frame(Kind.ALIGN, TAGS, 0, b""), Frame(Kind.ALIGN, TAGS, 1, b"")],  # more than the last piece
    [Frame(Kind.ALIGN, TAGS, k, bytes(PIECE)) for k in range(3)],  # more pieces than the maximum number of ids needs
])  # fmt: skip
def test_a_piece_out_of_turn_ends_the_search(frames: list[Frame], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alignment, "MAX_IDS", 2 * PIECE // TAG_BYTES)

    async def forge() -> None:
        one, other = endpoints(folder, 2)
        mesh = Mesh(0, one, 1, hello=Agreement().greet())
        honest = asyncio.create_task(find_rows(1, 1, ["a", "b"], other, 1, b"run"))
        await mesh.join()
        for frame in frames:
            mesh.send(1, frame)
        try:
            await honest
        finally:
            await mesh.close()

    with (
        socket_folder() as folder,
        pytest.raises(PartyError, match=r"not expected now|out of order or too") as caught,
    ):
        asyncio.run(forge())
    assert caught.value.party == 0


def test_a_failure_of_one_ends_the_work_of_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, ended = threading.Event(), threading.Event()

    def work(self: Intersection) -> bytes:
        if len(self._ids) == 3:
            assert begun.wait(10.0)
            raise ValueError("three are too many")
        begun.set()
        try:
            while True:
                self._check()
                time.sleep(0.01)
        except PartyError:
            ended.set()
            raise

    monkeypatch.setattr(Intersection, "blind", work)
    with socket_folder() as folder:
        found = asyncio.run(search([["a", "b"], ["a", "b", "c"], ["b", "c"]], folder))
    for error in found:
        assert isinstance(error, PartyError)
        assert (error.party, error.reason) == (1, "three are too many")
    assert ended.is_set()
