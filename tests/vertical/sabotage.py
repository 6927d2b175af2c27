"""A party's client that fails in one round of a run in this process."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

import vertical.segment.party
from vertical.problem.objectives import Array
from vertical.segment.plan import PartyState, SegmentPlan
from vertical.transport.frames import Frame

FULL = "its disk is full"


class Bomb:
    """A recorder that fails at frame number `after`."""

    def __init__(self, after: int) -> None:
        self._left = after

    def received(self, peer: int, frame: Frame) -> None:
        if self._left == 0:
            raise OSError(FULL)
        self._left -= 1

    def contributed(self, kind: int, active: int, values: Array) -> None:
        pass


@dataclass
class Saboteur:
    """A patch that makes one party's client fail in one round, the first `times` times.

    Attributes:
        when: The moment of failure: "before" it joins, "midway" in its updates, or "after" its segment, which the other
            parties then have finished.
        serials: Serial of each attempt of that party at the round.
    """

    party: int
    segment: int
    when: str
    times: int = 1
    serials: list[int] = field(default_factory=list)

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        real = vertical.segment.party.run_segment

        async def run_segment(
            me: int, plan: SegmentPlan, holding: Any, start: PartyState, *rest: Any, **options: Any
        ) -> Any:
            if plan.segment != self.segment or me != self.party:
                return await real(me, plan, holding, start, *rest, **options)
            self.serials.append(plan.serial)
            broken = len(self.serials) <= self.times
            if broken and self.when == "before":
                raise OSError(FULL)
            if broken and self.when == "midway":
                options["recorder"] = Bomb(60)
            outcome = await real(me, plan, holding, start, *rest, **options)
            if broken:
                raise OSError(FULL)
            return outcome

        monkeypatch.setattr("vertical.taking_part.run_segment", run_segment)
