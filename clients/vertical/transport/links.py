"""A connection to one peer, cut into frames, each accepted once."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections import deque
from typing import Protocol

from clients.vertical.transport.channels import Channel, Loss
from clients.vertical.transport.frames import CONTROL, HEADER, HEADER_BYTES, WORK_KINDS, Frame, FrameError, Kind, pack
from clients.vertical.transport.limits import Delays
from clients.vertical.transport.replay import ReplayGuard
from problems.randomness import stream


class Owner(Protocol):
    """Who is told what happens on a link."""

    def opened(self, link: Link) -> None:
        """The handshake is done; the peer's certificate is known."""

    def greeted(self, link: Link, serial: int, hello: bytes) -> None:
        """The peer has said which segment it is in, and its hello."""

    def work(self, peer: int, frame: Frame) -> None:
        """A frame of the segment's work was accepted."""

    def done(self, link: Link) -> None:
        """The peer has sent its last frame."""

    def aborted(self, link: Link, body: bytes) -> None:
        """The peer has sent an abort."""

    def lost(self, link: Link, loss: Loss) -> None:
        """The link has ended, and not by `close`."""


class Link(Channel):
    """Frames to and from one peer.

    Args:
        owner: told of everything; may be replaced while the link lives.
        serial: of the segment; every frame bears it.
        longest: largest body, bytes.
        peer: index of the peer; -1 until its certificate tells.
    """

    def __init__(
        self,
        connection: socket.socket,
        context: ssl.SSLContext,
        owner: Owner,
        *,
        server_side: bool,
        serial: int,
        longest: int,
        peer: int = -1,
        name: str | None = None,
    ) -> None:
        super().__init__(connection, context, server_side=server_side, name=name)
        self.owner = owner
        self.peer = peer
        self.serial = serial
        # what the peer has said
        self.is_greeted = False
        self.is_done = False
        self.has_aborted = False
        # work is accepted on the link that joins two parties, not on one that only carries an abort
        self.works = False
        self._longest = longest
        self._guard = ReplayGuard()
        # frames of this turn of the loop
        self._queue: list[bytes] = []
        # the beginning of a frame whose end has not arrived
        self._partial: list[bytes] = []
        self._have = 0
        self._need = 0

    def queue(self, data: bytes) -> bool:
        """Keep a frame for the next `flush`; True when it is the first of them."""
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
        """Send the hello, and in the same piece the failure when there is one: nobody then takes it for a joining."""
        self._queue.append(pack(self.serial, Kind.HELLO, 0, 0, hello))
        if verdict is not None:
            self.tell(verdict)
        self.flush()

    def tell(self, verdict: bytes) -> None:
        """Tell of a failure (`PartyError.to_bytes`)."""
        self.say(Kind.ABORT, verdict)

    def opened(self) -> None:
        self.owner.opened(self)

    def lost(self, loss: Loss) -> None:
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
                self._control(serial, kind, body)
            if self.closed:
                return
        if start < end:
            self._partial.append(chunk[start:])
            self._have = end - start
            self._need = need

    def _control(self, serial: int, kind: int, body: bytes) -> None:
        """A frame that is not plain work: one of the mesh's own, or a forged one."""
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
        """Have the link write `data` when its delay has passed, and what came earlier has left."""
        due = self._loop.time() + self._delays.one_way + self._delays.jitter * float(self._random.random())
        self._waiting.append((due, data))
        if self._timer is None:
            self._timer = self._loop.call_at(due, self._release)

    def cancel(self) -> None:
        """Drop what waits."""
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
