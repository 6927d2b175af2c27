"""Passes over all rows, for the slopes that SVRG and SAGA remember.

A full pass (Algorithm 4, steps 3 and 4; Algorithm 6, step 2) is cut by rows into one chunk for each active party, which
takes the masked sum over its chunk and sends the slopes at these rows to everyone. Nothing else is computed meanwhile.
"""

from __future__ import annotations

import numpy as np

from clients.vertical.segment.shared import Phase, Station
from clients.vertical.transport.frames import Kind, PartyError
from problems.vertical.objectives import Array


class FullPass(Phase):
    """The full passes of a segment; `begin` starts the next, at the end of which the block remembers all slopes."""

    answer_kind = Kind.SNAPSHOT_THETA

    def __init__(self, station: Station) -> None:
        self._station = station
        self._number = -1
        self._due: set[int] = set()
        self._theta: Array = np.zeros(0)
        self._own: Array | None = None

    def begin(self) -> None:
        station = self._station
        self._number += 1
        self._due = set(range(len(station.plan.active)))
        self._theta = np.zeros(station.plan.rows)
        products = station.block.partials()
        cut = {place: products[chunk] for place, chunk in enumerate(station.agenda.chunks)}
        self._own = station.share(Kind.SNAPSHOT_PARTIAL, cut)
        self.pull()

    def pull(self) -> None:
        station = self._station
        z = station.total(Kind.SNAPSHOT_PARTIAL, self._own)
        if z is None or station.dominator is None:
            return
        self._own = None
        theta = station.dominator.theta(z, station.agenda.chunks[station.place])
        station.dominator.announce(Kind.SNAPSHOT_THETA, self._number, theta)
        self._note(station.place, theta)

    def answer(self, place: int, number: int, body: bytes | memoryview) -> None:
        station, peer = self._station, self._station.plan.active[place]
        if place not in self._due or number != self._number:
            raise PartyError(peer, f"it sent the slopes of full pass {number}, which are not due")
        chunk = station.agenda.chunks[place]
        theta = _checked(peer, body, chunk.stop - chunk.start if station.learns else 0)
        self._note(place, theta)

    def _note(self, place: int, theta: Array) -> None:
        station = self._station
        self._due.remove(place)
        if station.learns:
            self._theta[station.agenda.chunks[place]] = theta
        if self._due:
            return
        if station.learns:
            station.block.remember(self._theta)
        station.done()


def _checked(peer: int, body: bytes | memoryview, length: int) -> Array:
    """(length,) values of a body; PartyError for another length, or values that are not finite."""
    what = "its slopes of a full pass have"
    if len(body) != 8 * length:
        raise PartyError(peer, f"{what} {len(body)} bytes, not the {8 * length} of {length} rows")
    values = np.frombuffer(body)
    if missing := int((~np.isfinite(values)).sum()):
        raise PartyError(peer, f"{what} {missing} values that are not finite")
    return values
