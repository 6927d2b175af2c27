"""Failures while the parties join end it at every one, with the culprit named."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from pathlib import Path

import pytest

from clients.vertical.addresses import Address
from clients.vertical.failures import PartyError
from clients.vertical.mesh import Mesh
from tests.clients.meshes import Town, everyone, failures, occupy, outcome, town

SLOW = pytest.mark.slow


def socket_file(address: Address) -> None:
    """Remove what the other program left; it is not the mesh's to remove."""
    assert Path(address.text).exists()
    Path(address.text).unlink()


async def all_fail(place: Town, present: dict[int, Town], never_joining: tuple[int, ...] = ()) -> dict[int, PartyError]:
    """Have some join, each as it sees the town; what each fails with, some of them already in `join`."""
    meshes = {me: view.mesh(me) for me, view in present.items()}

    async def fate(mesh: Mesh) -> None:
        await mesh.join()
        assert mesh.me not in never_joining
        await mesh.failed

    errors = await asyncio.wait_for(asyncio.gather(*(outcome(fate(mesh)) for mesh in meshes.values())), 10.0)
    await asyncio.gather(*(mesh.close() for mesh in meshes.values()))
    assert asyncio.all_tasks() == {asyncio.current_task()}
    return {me: error for me, error in zip(meshes, errors, strict=True) if isinstance(error, PartyError)}


@pytest.mark.parametrize("absent", [0, pytest.param(2, marks=SLOW), pytest.param(3, marks=SLOW)])
def test_who_never_joins_is_named(absent: int) -> None:
    with town(4, join=0.6) as place:
        errors = asyncio.run(all_fail(place, everyone(place, absent)))
        assert set(errors) == set(everyone(place, absent))
        assert {error.party for error in errors.values()} == {absent}
        assert all("never joined within 0.6 s" in error.reason for error in errors.values())


def test_several_who_never_join_are_all_mentioned() -> None:
    with town(5, join=0.4, close=0.2) as place:
        errors = asyncio.run(all_fail(place, everyone(place, 1, 3, 4)))
        assert all(
            str(error).startswith("party 1: it never joined within 0.4 s, nor did 3, 4") for error in errors.values()
        )
        assert len(errors) == 2


def test_who_finds_nobody_blames_nobody() -> None:
    with town(3, join=0.2, close=0.1) as place:
        errors = asyncio.run(all_fail(place, {1: place}))
        assert errors[1].party is None
        assert errors[1].reason.startswith("no party joined party 1 within 0.2 s")
    with town(2, join=0.2, close=0.1) as place:
        assert asyncio.run(all_fail(place, {1: place}))[1].party == 0


@pytest.mark.parametrize(
    ("impostor", "transport"),
    [
        (0, "unix"),
        (2, "tcp"),
        *(pytest.param(*row, marks=SLOW) for row in ((0, "tcp"), (2, "unix"), (3, "unix"), (3, "tcp"))),
    ],
)
def test_an_unknown_certificate_is_named(impostor: int, transport: str) -> None:
    with town(4, transport, join=1.0, close=0.3) as place:
        present = everyone(place) | {impostor: place.with_impostor(impostor)}
        errors = asyncio.run(all_fail(place, present))
        assert {me: error.party for me, error in errors.items()} == dict.fromkeys(range(4), impostor)
        assert all("certificate" in error.reason for error in errors.values())


def test_a_known_certificate_of_another_party_is_named() -> None:
    async def life(place: Town) -> None:
        # party 1 listens where party 0 is expected
        moved = replace(place, addresses=[place.addresses[1], place.addresses[0], place.addresses[2]])
        errors = await all_fail(place, {1: moved, 2: place})
        assert errors[2].party == 0
        assert "its certificate is party 1's" in errors[2].reason

    with town(3, join=0.4, close=0.2) as place:
        asyncio.run(life(place))


@pytest.mark.parametrize(
    ("where", "parties", "transport"),
    [
        ("first", 2, "unix"),
        ("last", 4, "tcp"),
        *(pytest.param("first", *row, marks=SLOW) for row in ((2, "tcp"), (4, "unix"), (4, "tcp"))),
        *(pytest.param("last", *row, marks=SLOW) for row in ((2, "unix"), (2, "tcp"), (4, "unix"))),
    ],
)
def test_an_address_in_use_is_named(parties: int, where: str, transport: str) -> None:
    with town(parties, transport) as place:
        party = 0 if where == "first" else parties - 1
        with occupy(place.addresses[party]):
            began = time.monotonic()
            # what a party tells that cannot listen is no joining
            errors = asyncio.run(all_fail(place, everyone(place), tuple(range(parties))))
            assert time.monotonic() - began < 5.0
        assert {me: error.party for me, error in errors.items()} == dict.fromkeys(range(parties), party)
        assert all("already in use" in error.reason for error in errors.values())
        if transport == "unix":
            socket_file(place.addresses[party])


@SLOW
def test_a_failure_while_joining_reaches_who_comes_later() -> None:
    async def life(place: Town) -> None:
        async def come(me: int, after: float) -> PartyError:
            await asyncio.sleep(after)
            mesh = place.mesh(me)
            error = await outcome(mesh.join())
            await mesh.close()
            assert isinstance(error, PartyError)
            return error

        with occupy(place.addresses[1]):
            errors = await asyncio.gather(come(0, 0), come(1, 0), come(2, 0.7), come(3, 0.8))
        assert {error.party for error in errors} == {1}
        assert {"in use" in error.reason for error in errors} == {True}
        socket_file(place.addresses[1])

    with town(4, close=1.0) as place:
        asyncio.run(life(place))


def test_a_hello_of_forged_length_names_its_sender() -> None:
    async def life(place: Town) -> None:
        wide = place.with_limits(body=10_000)
        liar = wide.mesh(2, hello=bytes(5000))
        meshes = [place.mesh(0), place.mesh(1), liar]
        joins = asyncio.gather(*(outcome(mesh.join()) for mesh in meshes))
        errors = await failures(meshes)
        assert {error.party for error in errors} == {2}
        assert {"body of 5000 bytes" in error.reason for error in errors} == {True}
        await joins
        await asyncio.gather(*(mesh.close() for mesh in meshes))

    with town(3, body=1000) as place:
        asyncio.run(life(place))


def test_an_abort_before_joining_ends_the_others_too() -> None:
    async def life(place: Town) -> None:
        meshes = [place.mesh(me) for me in range(3)]
        meshes[1].abort(PartyError(1, "no data"))
        joins = [asyncio.ensure_future(outcome(mesh.join())) for mesh in meshes]
        assert (await joins[1]).party == 1  # type: ignore[union-attr]
        await meshes[1].close()
        errors = await failures(meshes)
        assert {str(error) for error in errors} == {"party 1: no data"}
        await asyncio.gather(*joins)
        await asyncio.gather(*(mesh.close() for mesh in meshes))

    with town(3) as place:
        asyncio.run(life(place))
