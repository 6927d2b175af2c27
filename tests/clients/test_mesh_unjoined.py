"""Tests of failures while the parties join: they end at every party, and each names the culprit."""

import asyncio
import time
from dataclasses import replace
from pathlib import Path

import pytest

from tests.clients.meshes import Town, closed, failures, in_town, occupy, outcome, town
from vertical.transport.frames import PartyError
from vertical.transport.mesh import Mesh


async def fates(place: Town, present: dict[int, Town], never_joining: tuple[int, ...] = ()) -> dict[int, PartyError]:
    """Return the errors of the given parties, some of them already in `join`; each joins the town as it sees it."""
    meshes = {me: view.mesh(me) for me, view in present.items()}

    async def fate(mesh: Mesh) -> None:
        await mesh.join()
        assert mesh.me not in never_joining
        await mesh.failed

    errors = await asyncio.wait_for(asyncio.gather(*(outcome(fate(mesh)) for mesh in meshes.values())), 10.0)
    await closed(*meshes.values())
    assert asyncio.all_tasks() == {asyncio.current_task()}
    return {me: error for me, error in zip(meshes, errors, strict=True) if isinstance(error, PartyError)}


def all_fail(place: Town, *but: int, never_joining: tuple[int, ...] = (), **views: Town) -> dict[int, PartyError]:
    """Return the errors of the parties that join; ``party_2`` is the town as party 2 sees it."""
    present = {me: views.get(f"party_{me}", place) for me in range(place.parties) if me not in but}
    errors = asyncio.run(fates(place, present, never_joining))
    assert errors.keys() == present.keys()
    return errors


@pytest.mark.parametrize(("absent", "words"), [
    ((0,), "party 0: it never joined within 0.4 s"),
    ((1, 3, 4), "party 1: it never joined within 0.4 s, nor did 3, 4"),
])  # fmt: skip
def test_who_never_joins_is_named(absent: tuple[int, ...], words: str) -> None:
    with town(5, join=0.4, close=0.2) as place:
        assert all(str(error).startswith(words) for error in all_fail(place, *absent).values())


def test_who_finds_nobody_blames_nobody() -> None:
    with town(3, join=0.2, close=0.1) as place:
        error = all_fail(place, 0, 2)[1]
        assert error.party is None
        assert error.reason.startswith("no party joined party 1 within 0.2 s")
    with town(2, join=0.2, close=0.1) as place:
        assert all_fail(place, 0)[1].party == 0


@pytest.mark.parametrize(("impostor", "transport"), [(0, "unix"), (2, "tcp")])
def test_an_unknown_certificate_is_named(impostor: int, transport: str) -> None:
    with town(4, transport, join=1.0, close=0.3) as place:
        errors = all_fail(place, **{f"party_{impostor}": place.with_impostor(impostor)})
        assert {error.party for error in errors.values()} == {impostor}
        assert all("certificate" in error.reason for error in errors.values())


def test_who_an_unknown_certificate_claims_to_be_is_told() -> None:
    with town(2, join=0.4, close=0.2) as place:
        error = all_fail(place, party_1=place.with_impostor(1))[0]
        assert error.party == 1
        assert "a connection that claims to be it was refused: its certificate is unknown" in error.reason


def test_a_known_certificate_of_another_party_is_named() -> None:
    with town(3, join=0.4, close=0.2) as place:
        # party 1 listens where party 0 is expected
        moved = replace(place, addresses=[place.addresses[1], place.addresses[0], place.addresses[2]])
        error = all_fail(place, 0, party_1=moved)[2]
        assert error.party == 0
        assert "its certificate is party 1's" in error.reason


@pytest.mark.parametrize(("party", "parties", "transport"), [(0, 2, "unix"), (3, 4, "tcp")])
def test_an_address_in_use_is_named(party: int, parties: int, transport: str) -> None:
    with town(parties, transport) as place:
        with occupy(place.addresses[party]):
            began = time.monotonic()
            # the report of a party that cannot listen does not count as joining
            errors = all_fail(place, never_joining=tuple(range(parties)))
            assert time.monotonic() - began < 5.0
        assert {error.party for error in errors.values()} == {party}
        assert all("already in use" in error.reason for error in errors.values())
        if transport == "unix":
            Path(place.addresses[party].text).unlink()  # the other program's socket; the mesh must not remove it


@in_town(4, join=False, close=1.0)
async def test_a_failure_while_joining_reaches_who_comes_later(place: Town) -> None:
    async def come(me: int, after: float) -> PartyError:
        await asyncio.sleep(after)
        mesh = place.mesh(me)
        error = await outcome(mesh.join())
        await mesh.close()
        assert isinstance(error, PartyError)
        return error

    with occupy(place.addresses[1]):
        errors = await asyncio.gather(come(0, 0), come(1, 0), come(2, 0.4), come(3, 0.5))
    assert {error.party for error in errors} == {1}
    assert all("in use" in error.reason for error in errors)
    Path(place.addresses[1].text).unlink()


@in_town(3, join=False, body=1000)
async def test_a_hello_of_forged_length_names_its_sender(place: Town) -> None:
    liar = place.with_limits(body=10_000).mesh(2, hello=bytes(5000))
    meshes = [place.mesh(0), place.mesh(1), liar]
    joins = asyncio.gather(*(outcome(mesh.join()) for mesh in meshes))
    for error in await failures(meshes):
        assert error.party == 2
        assert "body of 5000 bytes" in error.reason
    await joins
    await closed(*meshes)


@in_town(3, join=False)
async def test_an_abort_before_joining_ends_the_others_too(place: Town) -> None:
    meshes = [place.mesh(me) for me in range(3)]
    meshes[1].abort(PartyError(1, "no data"))
    joins = [asyncio.ensure_future(outcome(mesh.join())) for mesh in meshes]
    await joins[1]
    await meshes[1].close()
    assert {str(error) for error in await failures(meshes)} == {"party 1: no data"}
    await asyncio.gather(*joins)
    await closed(*meshes)
