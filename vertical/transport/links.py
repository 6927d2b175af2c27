"""A connection to a peer, cut into frames that are accepted once, and the delays of experiments."""

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
    """The receiver of a link's events. Subclasses override the events that they can get."""

    def opened(self, link: Link) -> None:
        """Handle the end of the handshake, after which the peer's certificate is known."""

    def greeted(self, link: Link, serial: int, hello: bytes) -> None:
        """Handle the peer's hello.

        Args:
            serial: The serial of the peer's segment, which may differ from this party's.
            hello: The hello's body.
        """

    def work(self, peer: int, frame: Frame) -> None:
        """Handle an accepted frame of the segment's work."""

    def done(self, link: Link) -> None:
        """Handle the peer's last frame."""

    def relayed(self, link: Link, party: int, body: bytes) -> None:
        """Handle bytes of a relayed connection, between two other parties or between another party and this party.

        Args:
            party: The destination or the source, see `vertical.transport.relay`.
            body: The bytes. Empty at the connection's end.

        Raises:
            FrameError: There is no such connection.
        """

    def aborted(self, link: Link, body: bytes) -> None:
        """Handle the peer's abort.

        Args:
            body: The unchecked body, for `PartyError.from_bytes`.
        """

    def note_room(self, link: Link) -> None:
        """React to the peer's acceptance of waiting bytes."""

    def lost(self, link: Link, loss: ConnectionLoss) -> None:
        """Handle the link's end, unless `close` caused it."""


class ReplayGuard:
    """A filter that accepts each (kind, active, update) of a sender once, in bounded memory.

    For each (kind, active), at most `streams` of them, it keeps the highest update and a bit for each of the last
    `width` updates. These may arrive in any order. Older updates are refused, since they might be repetitions.
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
            FrameError: The frame is a repetition, is too old to check, or has one (kind, active) too many.
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
    """The frames to and from a peer.

    Args:
        owner: The receiver of events. It may be replaced while the link is open.
        serial: The serial of the segment, which every frame carries.
        longest: The maximum body, in bytes.
        peer: The index of the peer; -1 until its certificate is known.
    """

    def __init__(
        self,
        connection: socket.socket,
        context: ssl.SSLContext,
        name: str | None,
        owner: Owner,
        serial: int,
        max_body: int,
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
        # whether work is accepted: not on a link that only carries an abort
        self.works = False
        # ticks of the mesh since the peer accepted a byte, while senders wait for it at the relay
        self.stuck = 0
        # the injected delay, if any
        self.delayed: Delayed | None = None
        self._max_body = max_body
        self._guard = ReplayGuard()
        # frames that wait for `flush`
        self._queue: list[bytes] = []
        # pieces of an incomplete frame, the number of bytes that have arrived, and the number that is needed
        self._partial: list[bytes] = []
        self._have = self._need = 0

    def queue(self, data: bytes) -> bool:
        """Keep a frame for the next `flush`. Return whether it is the first such frame.

        Args:
            data: The result of `pack`.
        """
        self._queue.append(data)
        return len(self._queue) == 1

    def flush(self) -> None:
        """Write the queued frames in one piece."""
        if self._queue:
            data = b"".join(self._queue) if len(self._queue) > 1 else self._queue[0]
            self._queue.clear()
            self.write(data)

    def say(self, kind: Kind, body: bytes = b"") -> None:
        """Send a control frame at once, after the queued frames."""
        self._queue.append(pack(self.serial, kind, 0, 0, body))
        self.flush()

    def greet(self, hello: bytes, verdict: bytes | None) -> None:
        """Send the hello, and with it the failure if there is one, so the peer does not count this party as joined.

        Args:
            verdict: The failure, from `PartyError.to_bytes`. None: no failure.
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
            if length > self._max_body:
                raise FrameError(f"it sends a body of {length} bytes; the maximum is {self._max_body}")
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
        """Handle a frame that is not plain work: a control frame or a forged frame."""
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
            raise FrameError(f"it sends an unexpected frame of kind {kind}")


class Delayed:
    """The delay line of a link's outgoing frames, which keep their order (`Delays`)."""

    def __init__(self, link: Link, delays: Delays, me: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._link = link
        self._delays = delays
        self._random = stream(delays.seed, "vertical delays", me, link.peer)
        self._waiting: deque[tuple[float, bytes]] = deque()
        self._timer: asyncio.TimerHandle | None = None

    def queue(self, data: bytes) -> None:
        """Schedule `data` for writing when its delay has passed and all earlier frames are written."""
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
