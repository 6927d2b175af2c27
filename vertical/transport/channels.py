"""TLS over a non-blocking socket, driven by the event loop's readiness callbacks.

asyncio's TLS raises an exception for each read and stops reading after a failed write. This module does neither, so a
peer's last bytes are not lost.
"""

import asyncio
import socket
import ssl
from collections import deque
from enum import Enum, auto
from typing import NamedTuple

from vertical.transport.frames import FrameError

_RECEIVE = 65536
# maximum content of a TLS record
_RECORD = 16384


class Cause(Enum):
    """The cause of the end of a connection."""

    CLOSED = auto()  # end of file, reset
    UNTRUSTED = auto()  # this party does not accept the peer's certificate
    REFUSED = auto()  # the peer does not accept this party's certificate
    FOREIGN = auto()  # the other side does not use TLS 1.3
    FORGED = auto()  # bytes that no honest party sends


class ConnectionLoss(NamedTuple):
    """The cause of the end of a connection, with a text for error messages."""

    cause: Cause
    reason: str


_AT_END = ConnectionLoss(Cause.CLOSED, "its connection closed")


class Channel:
    """A TLS connection. Subclasses override `opened`, `received` and `lost`.

    Args:
        connection: A connected, non-blocking socket. The channel closes it.
        context: The TLS settings, with the accepted certificates.
        name: The server name that a client sends, unencrypted. None on the side that accepted the connection.
    """

    def __init__(self, connection: socket.socket, context: ssl.SSLContext, name: str | None) -> None:
        self._loop = asyncio.get_running_loop()
        self._socket = connection
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        # `Notes` also uses this object as a key
        self.tls = context.wrap_bio(self._incoming, self._outgoing, name is None, name)
        # whether the handshake is done on this side and the peer's certificate is known
        self.is_open = False
        # encrypted bytes that the socket has not accepted yet, and their number
        self._backlog: deque[bytes | memoryview] = deque()
        self.waiting = 0
        # whether the socket has accepted bytes of the backlog since the mesh's last check (`Mesh._beat`)
        self.took = False
        self.paused = False
        self._forged = False
        # whether a write has failed; received bytes may still be read
        self._mute = False
        self.closed = False
        # the number of checks since the last byte arrived, and whether bytes were written since the last check
        self.quiet = 0
        self.spoke = False
        self._loop.add_reader(connection.fileno(), self._readable)

    def opened(self) -> None:
        """Handle the end of the handshake."""

    def received(self, chunk: bytes) -> None:
        """Process decrypted bytes.

        Raises:
            FrameError: No honest party sends these bytes. The channel ends with the cause FORGED.
        """

    def lost(self, loss: ConnectionLoss) -> None:
        """Handle the end of the connection, unless `close` caused it.

        Args:
            loss: The cause. After forged bytes, the channel can still be written to.
        """

    def write(self, data: bytes) -> None:
        """Encrypt and send bytes. Bytes that the socket does not accept now are sent later."""
        if self._mute or self.closed:
            return
        self.spoke = True
        try:
            sent = self.tls.write(data)
            while sent < len(data):
                sent += self.tls.write(memoryview(data)[sent:])
        except ssl.SSLError:
            self._mute = True
            return
        self._push()

    def note_room(self) -> None:
        """Handle that the socket has accepted waiting bytes."""

    def pause(self, paused: bool) -> None:
        """Pause or resume reading. During a pause, the peer can only fill the buffers of the sockets."""
        if self.closed or self._forged or paused == self.paused:
            return
        self.paused = paused
        if paused:
            self._loop.remove_reader(self._socket.fileno())
        else:
            self._loop.add_reader(self._socket.fileno(), self._readable)

    def close(self) -> None:
        """End the connection at once, without a call of `lost`."""
        if self.closed:
            return
        self.closed = True
        handle = self._socket.fileno()
        self._loop.remove_reader(handle)
        self._loop.remove_writer(handle)
        self._socket.close()

    def _push(self) -> None:
        data = self._outgoing.read()
        if self._backlog:
            self._backlog.append(data)
            self.waiting += len(data)
            return
        try:
            sent = self._socket.send(data)
        except (BlockingIOError, InterruptedError):
            sent = 0
        except OSError:
            self._mute = True
            return
        if sent < len(data):
            self._backlog.append(memoryview(data)[sent:])
            self.waiting += len(data) - sent
            self._loop.add_writer(self._socket.fileno(), self._writable)

    def _writable(self) -> None:
        try:
            while self._backlog:
                data = self._backlog[0]
                sent = self._socket.send(data)
                self.waiting -= sent
                self.took = True
                if sent < len(data):
                    self._backlog[0] = memoryview(data)[sent:]
                    break
                self._backlog.popleft()
        except (BlockingIOError, InterruptedError):
            pass
        except OSError:
            self._mute = True
            self._backlog.clear()
            self.waiting = 0
        if not self._backlog:
            self._loop.remove_writer(self._socket.fileno())
        self.note_room()

    def _readable(self) -> None:
        try:
            data = self._socket.recv(_RECEIVE)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._end(ConnectionLoss(Cause.CLOSED, f"its connection broke: {error.strerror or error}"))
            return
        if not data:
            self._end(_AT_END)
            return
        self.quiet = 0
        self._incoming.write(data)
        if not self.is_open and not self.shake():
            return
        try:
            # without pending bytes no record is complete, and a read would raise an exception
            while self._incoming.pending and not self.closed:
                if not (chunk := self.tls.read(_RECORD)):
                    self._end(_AT_END)
                    return
                self.received(chunk)
        except ssl.SSLWantReadError:
            return
        except ssl.SSLError as error:
            self._end(_loss(error))
        except FrameError as error:
            self._end(ConnectionLoss(Cause.FORGED, str(error)))

    def shake(self) -> bool:
        """Do a step of the handshake, which the client begins. Return True when it is done."""
        try:
            self.tls.do_handshake()
        except ssl.SSLWantReadError:
            self._push()
            return False
        except ssl.SSLError as error:
            # send the TLS alert to the peer
            self._push()
            self._end(_loss(error))
            return False
        self.is_open = True
        self._push()
        self.opened()
        return not self.closed

    def _end(self, loss: ConnectionLoss) -> None:
        if self.closed:
            return
        if loss.cause is Cause.FORGED:
            # nothing more is read from this peer, but an abort may still be sent to it
            self._forged = True
            self._loop.remove_reader(self._socket.fileno())
        else:
            self.close()
        self.lost(loss)


def _loss(error: ssl.SSLError) -> ConnectionLoss:
    if isinstance(error, ssl.SSLCertVerificationError):
        return ConnectionLoss(Cause.UNTRUSTED, f"its certificate is unknown: {error.verify_message}")
    reason = (error.reason or str(error)).replace("_", " ").lower()
    if "alert" in reason:
        return ConnectionLoss(Cause.REFUSED, reason)
    return ConnectionLoss(Cause.FOREIGN, f"its TLS failed: {reason}")
