"""Passes over all rows: the slopes that SVRG and SAGA remember, and power iterations.

A full pass (Algorithm 4, steps 3 and 4; Algorithm 6, step 2) is cut by rows into one chunk for each active party, which
takes the masked sum of its chunk and sends the slopes there to everyone. Nothing else is under way meanwhile.
"""

from __future__ import annotations

import numpy as np

from clients.vertical.agenda import POWER_PARTIAL, SNAPSHOT_PARTIAL
from clients.vertical.failures import PartyError
from clients.vertical.frames import Kind
from clients.vertical.station import Done, Station
from problems.randomness import stream
from problems.vertical.blocks import product, transposed_product
from problems.vertical.objectives import Array

SNAPSHOT_THETA, POWER_THETA = int(Kind.SNAPSHOT_THETA), int(Kind.POWER_THETA)


class FullPass:
    """One full pass after another; `begin` starts the next, at whose end the block has remembered all slopes."""

    answer_kind = SNAPSHOT_THETA

    def __init__(self, station: Station, done: Done) -> None:
        self._station, self._done = station, done
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
        for place, chunk in enumerate(station.agenda.chunks):
            if place == station.place:
                self._own = products[chunk]
            else:
                station.sums.contribute(SNAPSHOT_PARTIAL, products[chunk], [(place, chunk.stop - chunk.start)])
        self.pull()

    def pull(self) -> None:
        station = self._station
        if self._own is None or station.dominator is None:
            return
        others = station.sums.take(SNAPSHOT_PARTIAL)
        if others is None:
            return
        theta = station.dominator.theta(others + self._own, station.agenda.chunks[station.place])
        self._own = None
        station.dominator.announce(SNAPSHOT_THETA, self._number, theta)
        self._note(station.place, theta)

    def answer(self, place: int, number: int, body: bytes | memoryview) -> None:
        station, peer = self._station, self._station.plan.active[place]
        if place not in self._due or number != self._number:
            raise PartyError(peer, f"it sent the slopes of full pass {number}, which are not due")
        chunk = station.agenda.chunks[place]
        theta = _checked(peer, "slopes of a full pass", body, chunk.stop - chunk.start if station.learns else 0)
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
        self._done()


class PowerIteration:
    """Estimates the largest eigenvalue of H = c/n X^T X + weight, c the largest curvature of the loss.

    Every party starts with a random vector v_p of its own. The reporter gets u = sum_p X_p v_p as a masked sum and
    sends u / |u| to all, who take v_p = X_p^T u / (n |u|). Then |u| is a lower bound of the largest eigenvalue of
    X X^T / n that rises with every iteration.
    """

    answer_kind = POWER_THETA

    def __init__(self, station: Station, done: Done) -> None:
        self._station, self._done = station, done
        self._number = 0  # directions so far
        draw = stream(station.plan.seed, "vertical power iteration", station.me)
        self._own = product(station.holding.features, draw.standard_normal(station.block.columns))

    def begin(self) -> None:
        self._give()
        self.pull()

    def pull(self) -> None:
        station = self._station
        if station.place != 0 or station.dominator is None:
            return
        while self._number < station.agenda.powers and (others := station.sums.take(POWER_PARTIAL)) is not None:
            u = others + self._own
            norm = float(np.linalg.norm(u))
            unit = u / norm if norm > 0.0 else u
            # the last direction is of no use, but tells that the last sum is taken
            station.dominator.publish(POWER_THETA, self._number, unit)
            station.metrics["largest_eigenvalue"] = station.objective.curvature_bound * norm + station.plan.weight
            self._go_on(unit)

    def answer(self, place: int, number: int, body: bytes | memoryview) -> None:
        peer = self._station.plan.active[place]
        if place != 0 or number != self._number or number == self._station.agenda.powers:
            raise PartyError(peer, f"it sent direction {number} of the power iteration, which is not due")
        self._go_on(_checked(peer, "direction of the power iteration", body, self._station.plan.rows))

    def _go_on(self, unit: Array) -> None:
        self._number += 1
        if self._number == self._station.agenda.powers:
            self._done()
            return
        self._own = self._back_and_forth(unit)
        self._give()

    def _give(self) -> None:
        if self._station.place != 0:
            self._station.sums.contribute(POWER_PARTIAL, self._own, [(0, len(self._own))])

    def _back_and_forth(self, unit: Array) -> Array:
        """(n,) X X^T unit / n."""
        features = self._station.holding.features
        return product(features, transposed_product(features, unit) / len(unit))


def _checked(peer: int, name: str, body: bytes | memoryview, length: int) -> Array:
    """(length,) finite float64 values of a body.

    Raises:
        PartyError: another length, or values that are not finite.
    """
    if len(body) != 8 * length:
        raise PartyError(peer, f"its {name} have {len(body)} bytes, not the {8 * length} of {length} rows")
    values = np.frombuffer(body)
    if not np.isfinite(values).all():
        raise PartyError(peer, f"its {name} have {int((~np.isfinite(values)).sum())} values that are not finite")
    return values
