"""A connection to one peer, cut into frames, each accepted once; and delays that experiments inject."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections import deque

from problems.randomness import stream
from vertical.transport.channels import Channel, ConnectionLoss
from vertical.transport.endpoint import Delays
from vertical.transport.frames import CONTROL, HEADER, HEADER_BYTES, WORK_KINDS, Frame, FrameError, Kind, pack


class Owner:
    """Receives the events of a link. A subclass leaves out those that it cannot get."""

    def opened(self, link: Link) -> None:
        """The handshake is done; the peer's certificate is known."""

    def greeted(self, link: Link, serial: int, hello: bytes) -> None:
        """The peer has sent its hello.

        Args:
            serial: Of the segment that the peer is in, which may be another than ours.
            hello: The hello's body.
        """

    def work(self, peer: int, frame: Frame) -> None:
        """A frame of the segment's work was accepted."""

    def done(self, link: Link) -> None:
        """The peer has sent its last frame."""

    def relayed(self, link: Link, party: int, body: bytes) -> None:
        """The peer has sent bytes of a connection between two others, or between another and this party.

        Args:
            party: For whom they are, or from whom, see `vertical.transport.relay`.
            body: Empty at the connection's end.

        Raises:
            FrameError: No such connection passes here.
        """

    def aborted(self, link: Link, body: bytes) -> None:
        """The peer has sent an abort.

        Args:
            body: Not checked, for `PartyError.from_bytes`.
        """

    def note_room(self, link: Link) -> None:
        """The peer has taken some of the bytes that waited for it."""

    def lost(self, link: Link, loss: ConnectionLoss) -> None:
        """The link has ended, and not by `close`."""


class ReplayGuard:
    """Accepts each (kind, active, update) of one sender once, in bounded memory.

    For each (kind, active), at most `streams` of them, it keeps the highest update and a bit for each of the last
    `width` ones. These may come in any order; an older one is refused, since it might be a repetition.
    """

    def __init__(self, width: int = 1024, streams: int = 4096) -> None:
        if width < 1 or streams < 1:
            raise ValueError(f"width and streams are at least 1, not {width} and {streams}")
        self._width = width
        self._full = (1 << width) - 1
        self._streams = streams
        # (kind, active) -> [highest update, bit k: update highest - k was seen]
        self._windows: dict[int, list[int]] = {}

    def accept(self, kind: int, active: int, update: int) -> None:
        """Note a frame.

        Raises:
            FrameError: It is a repetition, too old to tell, or of one (kind, active) too many.
        """
        window = self._windows.get(kind << 16 | active)
        if window is None:
            if len(self._windows) >= self._streams:
                raise FrameError(f"it uses more than {self._streams} pairs of kind and active party")
            self._windows[kind << 16 | active] = [update, 1]
            return
        ahead = update - window[0]
        if ahead > 0:
            window[0] = update
            window[1] = ((window[1] << ahead) | 1) & self._full if ahead < self._width else 1
            return
        bit = 1 << -ahead if -ahead < self._width else 0
        if not bit or window[1] & bit:
            fault = "came a second time" if bit else f"is more than {self._width} updates old"
            raise FrameError(f"frame (kind {kind}, active {active}, update {update}) {fault}")
        window[1] |= bit


class Link(Channel):
    """Frames to and from one peer.

    Args:
        owner: May be replaced while the link lives.
        serial: Of the segment; every frame carries it.
        longest: Largest body, bytes.
        peer: Index of the peer; -1 until its certificate is known.
    """

    def __init__(
        self,
        connection: socket.socket,
        context: ssl.SSLContext,
        name: str | None,
        owner: Owner,
        serial: int,
        longest: int,
        peer: int,
    ) -> None:
        super().__init__(connection, context, name)
        self.owner = owner
        self.peer = peer
        self.serial = serial
        # whether the peer has sent its hello, its last frame, an abort
        self.is_greeted = False
        self.is_done = False
        self.has_aborted = False
        # work is accepted on the link that joins two parties, not on one that only carries an abort
        self.works = False
        # ticks of the mesh since the peer took a byte, while senders wait for it at the relay
        self.stuck = 0
        # the injected delay, if any
        self.delayed: Delayed | None = None
        self._longest = longest
        self._guard = ReplayGuard()
        # frames that wait for `flush`
        self._queue: list[bytes] = []
        # pieces of a frame whose end has not arrived; how many bytes are there, and how many are needed
        self._partial: list[bytes] = []
        self._have = self._need = 0

    def queue(self, data: bytes) -> bool:
        """Keep a frame for the next `flush`; returns whether it is the first of them.

        Args:
            data: From `pack`.
        """
        self._queue.append(data)
        return len(self._queue) == 1

    def flush(self) -> None:
        """Write what was queued, in one piece."""
        if self._queue:
            data = b"".join(self._queue) if len(self._queue) > 1 else self._queue[0]
            self._queue.clear()
            self.write(data)

    def say(self, kind: Kind, body: bytes = b"") -> None:
        """Send a frame of the mesh's own at once, after what is queued."""
        self._queue.append(pack(self.serial, kind, 0, 0, body))
        self.flush()

    def greet(self, hello: bytes, verdict: bytes | None) -> None:
        """Send the hello, and with it the failure if there is one, so that the peer does not count it as joined.

        Args:
            verdict: The failure, from `PartyError.to_bytes`; None: there is none.
        """
        self._queue.append(pack(self.serial, Kind.HELLO, 0, 0, hello))
        if verdict is not None:
            self._queue.append(pack(self.serial, Kind.ABORT, 0, 0, verdict))
        self.flush()

    def opened(self) -> None:
        self.owner.opened(self)

    def note_room(self) -> None:
        self.owner.note_room(self)

    def lost(self, loss: ConnectionLoss) -> None:
        self.owner.lost(self, loss)

    def received(self, chunk: bytes) -> None:
        if self._partial:
            self._partial.append(chunk)
            self._have += len(chunk)
            if self._have < self._need:
                return
            chunk = b"".join(self._partial)
            self._partial.clear()
        start, end = 0, len(chunk)
        need = HEADER_BYTES
        while end - start >= HEADER_BYTES:
            length, serial, kind, active, update = HEADER.unpack_from(chunk, start)
            if length > self._longest:
                raise FrameError(f"it sends a body of {length} bytes; the longest is {self._longest}")
            need = HEADER_BYTES + length
            if end - start < need:
                break
            body = chunk[start + HEADER_BYTES : start + need]
            start += need
            need = HEADER_BYTES
            if kind in WORK_KINDS and serial == self.serial and self.works and not self.is_done:
                self._guard.accept(kind, active, update)
                self.owner.work(self.peer, Frame(kind, active, update, body))
            else:
                self._control(serial, kind, active, body)
            if self.closed:
                return
        if start < end:
            self._partial.append(chunk[start:])
            self._have = end - start
            self._need = need

    def _control(self, serial: int, kind: int, active: int, body: bytes) -> None:
        """Handle a frame that is not plain work: one of the mesh's own, or a forged one."""
        if kind == Kind.HELLO and not self.is_greeted:
            self.is_greeted = True
            self.owner.greeted(self, serial, body)
            return
        if serial != self.serial:
            raise FrameError(f"it sends a frame of serial {serial}; this segment's is {self.serial}")
        if not self.is_greeted:
            raise FrameError(f"its first frame is of kind {kind}, not a hello")
        if kind == Kind.ABORT:
            self.has_aborted = True
            self.owner.aborted(self, body)
        elif kind == Kind.RELAY and self.works:
            self.owner.relayed(self, active, body)
        elif self.is_done and kind != Kind.BEAT:
            raise FrameError(f"it sends a frame of kind {kind} after its last")
        elif kind == Kind.DONE and self.works:
            self.is_done = True
            self.owner.done(self)
        elif kind == Kind.BEAT and self.works:
            pass
        elif kind < CONTROL and kind not in WORK_KINDS:
            raise FrameError(f"it sends a frame of unknown kind {kind}")
        else:
            raise FrameError(f"it sends a frame of kind {kind} where none may come")


class Delayed:
    """Holds a link's outgoing frames back, in their order (`Delays`)."""

    def __init__(self, link: Link, delays: Delays, me: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._link = link
        self._delays = delays
        self._random = stream(delays.seed, "vertical delays", me, link.peer)
        self._waiting: deque[tuple[float, bytes]] = deque()
        self._timer: asyncio.TimerHandle | None = None

    def queue(self, data: bytes) -> None:
        """Have the link write `data` when its delay has passed and all earlier frames are written."""
        due = self._loop.time() + self._delays.one_way + self._delays.jitter * float(self._random.random())
        self._waiting.append((due, data))
        if self._timer is None:
            self._timer = self._loop.call_at(due, self._release)

    def cancel(self) -> None:
        """Drop the waiting frames."""
        self._waiting.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _release(self) -> None:
        now = self._loop.time()
        while self._waiting and self._waiting[0][0] <= now:
            self._link.queue(self._waiting.popleft()[1])
        self._link.flush()
        self._timer = self._loop.call_at(self._waiting[0][0], self._release) if self._waiting else None
