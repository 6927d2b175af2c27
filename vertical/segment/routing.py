"""The routing of the frames that a party receives in a segment, and its waiting for other parties.

A frame goes to the sums, to the present phase (such as the updates), to a barrier (a point at which every party waits
for all other parties) or to a notice (a message that two parties exchange once). A failure ends all waiting.
"""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Mapping

from vertical.segment.masked_sums import Sums
from vertical.segment.plan import Recorder, SegmentPlan
from vertical.segment.shared import SegmentPhase
from vertical.segment.sum_order import SUMS
from vertical.transport.frames import Frame, Kind, PartyError, protocol_error
from vertical.transport.mesh import Mesh

_SHARES = range(Kind.MASKED_FEATURES, Kind.MASKED_FACTORS + 1)
_SUMS = frozenset((*SUMS, Kind.VALUE_TREE, Kind.MASK_TREE, Kind.COUNT, *_SHARES))


class FrameRouter:
    """The router of a party's frames in a segment.

    Args:
        plan: The segment's plan.
        mesh: The connections to the other parties, which must have joined before `open`. None: no other parties.
    """

    def __init__(self, plan: SegmentPlan, mesh: Mesh | None) -> None:
        self._mesh = mesh
        self._peer_count = plan.parties - 1
        self._indices = {party: index for index, party in enumerate(plan.active)}
        self._me = 0 if mesh is None else mesh.me
        self._sums: Sums | None = None
        self._recorder: Recorder | None = None
        self._phase: SegmentPhase | None = None
        self._phase_done = False
        self._change = asyncio.Event()
        self._notices: dict[int, dict[int, bytes]] = defaultdict(dict)
        self._from_all: dict[int, bool] = {Kind.ALIGN: bool(plan.ids), Kind.VARIES: plan.counts}
        self._at_barrier: dict[int, set[int]] = defaultdict(set)
        # the failure of any party, from the mesh
        self._failed: asyncio.Future[None] = asyncio.get_running_loop().create_future() if mesh is None else mesh.failed
        self._failed.add_done_callback(lambda _: self._change.set())

    def open(self, sums: Sums, recorder: Recorder | None) -> None:
        """Start to receive frames.

        Args:
            sums: The receiver of partials, masked or not.
            recorder: An observer that gets each frame first. None: no observer.
        """
        self._sums, self._recorder = sums, recorder
        if self._mesh is not None:
            self._mesh.on_frame = self._receive

    def send(self, to: int, frame: Frame) -> None:
        if self._mesh is not None:
            self._mesh.send(to, frame)

    def broadcast(self, frame: Frame) -> None:
        if self._mesh is not None:
            self._mesh.broadcast(frame)

    def done(self) -> None:
        """Note that the current phase has ended at this party."""
        self._phase_done = True
        self._change.set()

    def fail(self, error: BaseException) -> PartyError:
        """End the segment at every party.

        Returns:
            The failure with which the segment ends. If another party failed earlier, it is that party's failure.
        """
        failure = PartyError.of(error, self._me)
        if self._mesh is not None:
            self._mesh.abort(failure)
        elif not self._failed.done():
            self._failed.set_exception(failure)
        return self._failure or failure

    @property
    def _failure(self) -> PartyError | None:
        error = self._failed.exception() if self._failed.done() else None
        return error if isinstance(error, PartyError) else None

    def later(self, call: Callable[[], None]) -> None:
        """Call a function in the next iteration of the event loop, unless the segment has failed by then.

        Args:
            call: The function. If it raises an exception, the segment fails.
        """

        def unless_failed() -> None:
            if self._failure is None:
                try:
                    call()
                except Exception as error:
                    self.fail(error)

        asyncio.get_running_loop().call_soon(unless_failed)

    async def through(self, phase: SegmentPhase) -> None:
        """Run a phase until this party has finished its part.

        Raises:
            PartyError: The segment has failed.
        """
        self._phase, self._phase_done = phase, False
        phase.begin()
        await self._until(lambda: self._phase_done)

    async def barrier(self, number: int) -> None:
        """Wait until every party has reached the barrier.

        Args:
            number: The number of the barrier in the segment.

        Raises:
            PartyError: The segment has failed.
        """
        self.broadcast(Frame(Kind.BARRIER, self._me, number))
        await self._until(lambda: len(self._at_barrier[number]) == self._peer_count)

    async def notices(self, kind: int, bodies: Mapping[int, bytes]) -> dict[int, bytes]:
        """Exchange a notice with several parties.

        Args:
            kind: `Kind.LABELS` between active parties; `Kind.ALIGN` or `Kind.VARIES` between all parties.
            bodies: The bytes for each party.

        Returns:
            The bytes from each party.

        Raises:
            PartyError: The segment has failed.
        """
        for party, body in bodies.items():
            self.send(party, Frame(kind, self._me, 0, body))
        await self._until(lambda: len(self._notices[kind]) == len(bodies))
        return self._notices[kind]

    async def _until(self, condition: Callable[[], bool]) -> None:
        while self._failure is None and not condition():
            self._change.clear()
            await self._change.wait()
        if self._failure is not None:
            raise self._failure

    def _awaits(self, kind: int, peer: int) -> bool:
        """Return whether this party expects a notice of this kind from a peer."""
        if kind == Kind.LABELS:
            return {peer, self._me} <= self._indices.keys()
        return self._from_all.get(kind, False)

    def _receive(self, peer: int, frame: Frame) -> None:
        """Route a frame. If this raises an exception, the mesh fails the segment with it."""
        if self._recorder is not None:
            self._recorder.received(peer, frame)
        kind, phase = frame.kind, self._phase
        if phase is not None and kind == phase.theta_kind:
            index = self._indices.get(peer, -1)
            if index < 0 or frame.active != peer:
                raise protocol_error(
                    peer, f"it sent theta for the updates of party {frame.active}, which sends its own theta"
                )
            phase.take_theta(index, frame.update, frame.body)
        elif kind in _SUMS and self._sums is not None:
            if self._sums.receive(peer, frame) and phase is not None:
                phase.process_sums()
        elif kind == Kind.BARRIER:
            self._at_barrier[frame.update].add(peer)
            self._change.set()
        elif self._awaits(kind, peer) and peer not in self._notices[kind]:
            self._notices[kind][peer] = bytes(frame.body)
            self._change.set()
        else:
            raise protocol_error(peer, f"it sent an unexpected frame of kind {kind}")
