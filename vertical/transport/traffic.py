"""The sending and receiving of frames on a party's links. Frames of one loop iteration are written together."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

from vertical.transport.endpoint import Limits
from vertical.transport.frames import HEADER_BYTES, WORK_KINDS, Frame, PartyError, pack
from vertical.transport.links import Link, Owner

Handler = Callable[[int, Frame], None]


@dataclass(slots=True)
class Counters:
    """The numbers of a party's sent and received frames of work and of their bytes, with headers but without TLS."""

    frames_sent: int = 0
    frames_received: int = 0
    bytes_sent: int = 0
    bytes_received: int = 0


class Hub(Owner, ABC):
    """The part of a mesh that sends and receives frames of work, such as partials and thetas.

    Attributes:
        me: The index of this party.
        parties: The number of parties.
        failed: A future that gets the PartyError as soon as this party knows of any failure.
        counters: The numbers of frames and bytes so far.
    """

    def __init__(self, me: int, parties: int, serial: int, limits: Limits) -> None:
        self.me = me
        self.parties = parties
        self.counters = Counters()
        self._loop = asyncio.get_running_loop()
        self.failed: asyncio.Future[None] = self._loop.create_future()
        self._error: PartyError | None = None
        self._serial = serial
        self._limits = limits
        # the link to each peer
        self._links: list[Link | None] = [None] * parties
        # whether all parties have joined, and whether this party has announced its last frame
        self._complete = False
        self._closing = False
        # links with frames that were queued in this iteration of the event loop
        self._dirty: list[Link] = []
        # frames that arrived before a handler was set
        self._held: list[tuple[int, Frame]] = []
        self._holding = True
        self._on_frame: Handler | None = None

    @property
    def on_frame(self) -> Handler | None:
        """The handler of accepted frames, called in the loop's thread with (peer, frame).

        Frames that arrive before all parties have joined wait. If the handler raises an exception, the segment fails.
        """
        return self._on_frame

    @on_frame.setter
    def on_frame(self, handler: Handler | None) -> None:
        self._on_frame = handler
        self._holding = True
        if self._complete:
            self._loop.call_soon(self._release)

    def send(self, to: int, frame: Frame) -> None:
        """Send a frame to a peer, unless the segment has failed or the peer has closed. Never blocks.

        Raises:
            ValueError: The peer does not exist, the kind is not a kind of work, a number is too large for the header,
                or the body is longer than the limit.
            RuntimeError: `join` has not returned yet, or `close` was called.
        """
        if not 0 <= to < self.parties or to == self.me:
            raise ValueError(f"party {self.me} of {self.parties} has no peer {to}: choose the index of another party")
        self._put(to, self._pack(frame))

    def broadcast(self, frame: Frame) -> None:
        """Send a frame to every peer.

        Raises:
            ValueError, RuntimeError: See `send`.
        """
        data = self._pack(frame)
        for peer in range(self.parties):
            if peer != self.me:
                self._put(peer, data)

    @abstractmethod
    def abort(self, error: PartyError) -> None:
        """End the segment: send the failure to every peer, and set `failed`.

        Args:
            error: The failure. It is ignored if the segment has failed already.
        """

    def _pack(self, frame: Frame) -> bytes:
        if frame.kind not in WORK_KINDS:
            allowed = ", ".join(map(str, sorted(WORK_KINDS)))
            raise ValueError(f"kind {frame.kind} of a frame is not a kind of work, allowed: {allowed}")
        data = pack(self._serial, frame.kind, frame.active, frame.update, frame.body)
        if len(data) - HEADER_BYTES > self._limits.body:
            raise ValueError(f"a body must have at most {self._limits.body} bytes, got {len(data) - HEADER_BYTES}")
        return data

    def _put(self, to: int, data: bytes) -> None:
        if self._error is not None:
            return
        link = self._links[to]
        if link is None or not self._complete or self._closing:
            raise RuntimeError(f"party {self.me} can send only after join() and before close()")
        if link.closed:
            return
        counters = self.counters
        counters.frames_sent += 1
        counters.bytes_sent += len(data)
        if link.delayed is not None:
            link.delayed.queue(data)
        elif link.queue(data):
            if not self._dirty:
                self._loop.call_soon(self._flush)
            self._dirty.append(link)

    def _flush(self) -> None:
        for link in self._dirty:
            link.flush()
        self._dirty.clear()

    def work(self, peer: int, frame: Frame) -> None:
        """Process an accepted frame. It is ignored if this party has failed or is closing."""
        if self._error is not None or self._closing:
            return
        counters = self.counters
        counters.frames_received += 1
        counters.bytes_received += HEADER_BYTES + len(frame.body)
        if self._holding or self._on_frame is None:
            self._held.append((peer, frame))
        else:
            self._deliver(self._on_frame, peer, frame)

    def _deliver(self, handler: Handler, peer: int, frame: Frame) -> None:
        try:
            handler(peer, frame)
        except Exception as error:
            self.abort(PartyError.of(error, self.me))

    def _release(self) -> None:
        """Deliver the waiting frames."""
        handler = self._on_frame
        if handler is None:
            return
        held, self._held = self._held, []
        self._holding = False
        for peer, frame in held:
            if self._error is None:
                self._deliver(handler, peer, frame)
