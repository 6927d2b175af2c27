"""A connection to a peer that carries frames. A link checks each received frame, and accepts it only once.

An experiment can delay the frames that are sent (`Delayed`).
"""

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
    """The receiver of a link's events. Subclasses override the events that they handle."""

    def opened(self, link: Link) -> None:
        """Handle the end of the handshake, after which the peer's certificate is known."""

    def greeted(self, link: Link, serial: int, hello: bytes) -> None:
        """Handle the peer's hello, its first frame.

        Args:
            link: The link to the peer.
            serial: The serial of the peer's segment, which may differ from this party's serial.
            hello: The hello's body.
        """

    def work(self, peer: int, frame: Frame) -> None:
        """Handle an accepted frame of the segment's work."""

    def done(self, link: Link) -> None:
        """Handle the peer's last frame."""

    def relayed(self, link: Link, party: int, body: bytes) -> None:
        """Handle bytes of a connection between two parties that a third party relays.

        Args:
            link: The link on which the bytes arrived.
            party: The destination of the bytes if this party is the relay, else their source.
            body: The bytes. Empty at the connection's end.

        Raises:
            FrameError: The connection does not exist.
        """

    def aborted(self, link: Link, body: bytes) -> None:
        """Handle the peer's abort, which ends the segment.

        Args:
            link: The link to the peer.
            body: The unchecked body, for `PartyError.from_bytes`.
        """

    def note_room(self, link: Link) -> None:
        """Handle that the peer has accepted waiting bytes."""

    def lost(self, link: Link, loss: ConnectionLoss) -> None:
        """Handle the link's end, unless `close` caused it."""


class ReplayGuard:
    """A filter that accepts each frame (kind, active, update) of a sender once, in bounded memory.

    For each pair (kind, active), it stores the highest update and a bit for each of the last updates, which may arrive
    in any order. Older updates are refused, since they might be repetitions.

    Args:
        width: The number of last updates.
        streams: The maximum number of pairs.
    """

    def __init__(self, width: int = 1024, streams: int = 4096) -> None:
        if width < 1 or streams < 1:
            raise ValueError(f"width and streams must be 1 or more, got {width} and {streams}")
        self._width = width
        self._full = (1 << width) - 1
        self._streams = streams
        # (kind, active) -> [highest update, bit k: update highest - k was seen]
        self._windows: dict[int, list[int]] = {}

    def accept(self, kind: int, active: int, update: int) -> None:
        """Accept a frame.

        Raises:
            FrameError: The frame is a repetition, is too old to check, or has one pair (kind, active) too many.
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
    """A connection to a peer that carries frames.

    Args:
        connection: See `Channel`.
        context: See `Channel`.
        name: See `Channel`.
        owner: The receiver of events. It may be replaced while the link is open.
        serial: The serial of the segment, which every frame contains.
        max_body: The maximum body, in bytes.
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
        # whether frames of work are accepted; not on a link that only carries an abort
        self.works = False
        # the number of the mesh's checks since the peer accepted a byte, while relayed parties wait for the peer
        self.stuck = 0
        # the injected delay, if any
        self.delayed: Delayed | None = None
        self._max_body = max_body
        self._guard = ReplayGuard()
        # frames that wait for `flush`
        self._queue: list[bytes] = []
        # pieces of an incomplete frame, the number of bytes that have arrived, and the number of bytes of the frame
        self._partial: list[bytes] = []
        self._have = self._need = 0

    def queue(self, data: bytes) -> bool:
        """Add a frame to the queue for the next `flush`. Return whether the queue was empty.

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

    def send_control(self, kind: Kind, body: bytes = b"") -> None:
        """Send a control frame at once, after the queued frames."""
        self._queue.append(pack(self.serial, kind, 0, 0, body))
        self.flush()

    def greet(self, hello: bytes, verdict: bytes | None) -> None:
        """Send the hello. If the segment has failed, send the failure with it, so the peer does not start to work.

        Args:
            hello: The hello's body.
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
        """Handle a frame that is not acceptable work: a control frame or a forged frame."""
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
            raise FrameError(f"it sends a frame of kind {kind} after its last frame")
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
    """A queue that delays a link's outgoing frames, which keep their order, for experiments (`Delays`)."""

    def __init__(self, link: Link, delays: Delays, me: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._link = link
        self._delays = delays
        self._random = stream(delays.seed, "vertical delays", me, link.peer)
        self._waiting: deque[tuple[float, bytes]] = deque()
        self._timer: asyncio.TimerHandle | None = None

    def queue(self, data: bytes) -> None:
        """Schedule a frame. It is written when its delay has passed and all earlier frames are written."""
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
