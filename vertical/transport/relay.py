"""The relay: a party that forwards bytes between two parties to which no other party can connect.

Both *hidden* parties connect to the relay. The connection between them is TLS from end to end, as between any two
parties, so the relay learns only the number and the times of bytes. On the links to the relay, these bytes are the
bodies of RELAY frames. The header of a frame names the destination on the way to the relay, and the source on the way
from the relay. An empty body ends the connection.
"""

import asyncio
import socket
from collections import deque
from collections.abc import Callable, Sequence

from vertical.transport.addresses import UNREACHABLE, Address
from vertical.transport.frames import FrameError, Kind, pack
from vertical.transport.links import Link

# maximum bytes of a RELAY frame's body
_CHUNK = 65536
# maximum bytes that the relay stores for a party that has not joined. A connecting party sends one message of the
# handshake, and then waits for the answer.
_MAX_KEPT = 16384
# if more bytes than this wait for a party, the relay stops reading from their senders
_MAX_WAITING = 2**22


class Tunnel:
    """A connection to a peer through the relay.

    Args:
        send: A function that sends bytes to the peer; b"" ends the connection.
        max_bytes: The maximum number of bytes at a time.

    Attributes:
        near: The socket for this party's link to the peer.
    """

    def __init__(self, send: Callable[[bytes], None], max_bytes: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._send, self._max_bytes = send, max_bytes
        self.near, self._far = socket.socketpair()
        self.near.setblocking(False)
        self._far.setblocking(False)
        # bytes that the link has not accepted yet
        self._backlog: deque[bytes | memoryview] = deque()
        self._loop.add_reader(self._far.fileno(), self._readable)

    def take(self, data: bytes) -> None:
        """Pass the peer's bytes to the link; b"" ends the connection."""
        if self._far.fileno() < 0:
            return
        self._backlog.append(data)
        if len(self._backlog) == 1:
            self._writable()

    def close(self) -> None:
        """End the connection at once, without notice to the peer."""
        if (handle := self._far.fileno()) >= 0:
            self._loop.remove_reader(handle)
            self._loop.remove_writer(handle)
            self._far.close()

    def _readable(self) -> None:
        try:
            data = self._far.recv(self._max_bytes)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            # the link was closed with bytes unread
            data = b""
        self._send(data)
        if not data:
            self.close()

    def _writable(self) -> None:
        try:
            while self._backlog:
                data = self._backlog[0]
                if not data:
                    self._far.shutdown(socket.SHUT_WR)
                elif (sent := self._far.send(data)) < len(data):
                    self._backlog[0] = memoryview(data)[sent:]
                    continue
                self._backlog.popleft()
        except (BlockingIOError, InterruptedError):
            self._loop.add_writer(self._far.fileno(), self._writable)
            return
        except OSError:
            # the link has closed, or the peer sends after its end
            self._backlog.clear()
        self._loop.remove_writer(self._far.fileno())


class Relay:
    """A party's relayed connections (as the relay, or as a hidden party), and the direction of each connection.

    Args:
        me: The index of this party.
        addresses: The address of each party.
        serial: The serial of the segment's attempt.
        max_body: The maximum body of a frame, in bytes.
        links: The mesh's link to each peer. None: the peer has not joined.
        meet: A function of a peer and the relayed connection to the peer.

    Attributes:
        index: The index of the relay: the lowest index of a reachable party.

    Raises:
        ValueError: All parties are hidden.
    """

    def __init__(
        self,
        me: int,
        addresses: Sequence[Address],
        serial: int,
        max_body: int,
        links: Sequence[Link | None],
        meet: Callable[[int, socket.socket], None],
    ) -> None:
        self._hidden = [address.kind == UNREACHABLE for address in addresses]
        if all(self._hidden):
            raise ValueError(f"no address of {len(addresses)} parties can be reached: give a party an address")
        self.index = self._hidden.index(False)
        self._me, self._serial, self._max_bytes = me, serial, min(max_body, _CHUNK)
        self._links, self._meet = links, meet
        self._tunnels: dict[int, Tunnel] = {}
        # frames for parties that have not joined, by source and destination
        self._kept: dict[tuple[int, int], bytes] = {}
        # pairs of a source and a destination: the relay does not read from the source until the destination has
        # accepted bytes
        self._held_up: set[tuple[int, int]] = set()
        self._failed = False

    def connects(self, peer: int) -> bool:
        """Return whether this party connects to a peer. The hidden party connects, otherwise the higher index."""
        return self.reaches(peer) and (peer < self._me or self._hidden[self._me])

    def reaches(self, peer: int) -> bool:
        """Return whether this party can connect to a peer."""
        return not self._hidden[peer]

    def relays(self, first: int, second: int) -> bool:
        """Return whether the relay connects two parties, which are both hidden."""
        hidden = self._hidden
        return first != second and max(first, second) < len(hidden) and hidden[first] and hidden[second]

    def meets(self, peer: int) -> bool:
        """Return whether the relay connects this party to a peer."""
        return self.relays(self._me, peer)

    def is_needed(self) -> bool:
        """Return whether this party is the relay of parties that have not all sent their last frames."""
        links = [link for link, hidden in zip(self._links, self._hidden, strict=True) if hidden and link is not None]
        return self._me == self.index and len(links) > 1 and any(not (link.is_done or link.closed) for link in links)

    def depends_on(self, peer: int) -> bool:
        """Return whether a peer relays unfinished connections of this party."""
        return peer == self.index and any(not link.is_done for link in self._tunnelled_links())

    def welcome(self, peer: int) -> None:
        """Handle that a peer has joined: connect to hidden parties through it, or forward the frames stored for it."""
        if peer == self.index:
            for partner in filter(self.meets, range(self._me)):
                self._open(partner)
        for source, to in [pair for pair in self._kept if pair[1] == peer]:
            self._forward(to, self._kept.pop((source, to)))

    def take(self, peer: int, partner: int, body: bytes) -> None:
        """Handle a RELAY frame.

        Args:
            peer: The sender.
            partner: The destination if this party is the relay, else the source.
            body: The bytes. Empty at the connection's end.

        Raises:
            FrameError: No honest party sends this frame.
        """
        if len(body) > self._max_bytes:
            raise FrameError(f"it sends {len(body)} bytes of a connection at once; the maximum is {self._max_bytes}")
        if self._me == self.index and self.relays(peer, partner):
            self._pass(peer, partner, body)
        elif peer == self.index and self.meets(partner):
            if body and partner not in self._tunnels:
                if partner < self._me:
                    raise FrameError(f"it forwards an answer of party {partner}, which was not asked")
                self._open(partner)
            if partner in self._tunnels:
                self._tunnels[partner].take(body)
        else:
            raise FrameError(f"it sends bytes of a connection with party {partner}, which this party does not relay")

    def lose(self, peer: int) -> bool:
        """Handle the end of the link to a peer: end the relayed connections that need the link.

        Returns:
            Whether an unfinished connection of this party has ended.
        """
        if self._me == self.index:
            self._held_up = {pair for pair in self._held_up if peer not in pair}
            self._resume()
            for partner, link in enumerate(self._links):
                if link is not None and self.relays(peer, partner):
                    self._pass(peer, partner, b"")
        elif peer == self.index:
            carried = self._tunnelled_links()
            for link in carried:
                # the connection ends because of the relay, so the hidden peer causes no event
                link.close()
            self.close()
            return any(not link.is_done for link in carried)
        return False

    def release(self, peer: int) -> None:
        """Resume reading from the parties whose bytes a peer has now accepted."""
        link = self._links[peer]
        if self.holds_up(peer) and link is not None and link.waiting <= _MAX_WAITING // 2:
            self._held_up = {pair for pair in self._held_up if pair[1] != peer}
            self._resume()

    def fail(self) -> None:
        """Resume reading from all parties, to receive their aborts. From now on, drop bytes for blocked parties."""
        self._failed = True
        self._held_up.clear()
        self._resume()

    def holds_up(self, peer: int) -> bool:
        """Return whether other parties wait for a peer to accept their bytes."""
        return any(to == peer for _, to in self._held_up)

    def _resume(self) -> None:
        waiting = {source for source, _ in self._held_up}
        for link in self._links:
            if link is not None and link.peer not in waiting:
                link.pause(False)

    def close(self) -> None:
        """End the relayed connections."""
        for tunnel in self._tunnels.values():
            tunnel.close()

    def _tunnelled_links(self) -> list[Link]:
        return [link for peer in self._tunnels if (link := self._links[peer]) is not None and not link.closed]

    def _open(self, peer: int) -> None:
        def send(data: bytes) -> None:
            self._forward(self.index, pack(self._serial, Kind.RELAY, peer, 0, data))

        self._tunnels[peer] = tunnel = Tunnel(send, self._max_bytes)
        self._meet(peer, tunnel.near)

    def _pass(self, source: int, to: int, body: bytes) -> None:
        data = pack(self._serial, Kind.RELAY, source, 0, body)
        sender, receiver = self._links[source], self._links[to]
        if receiver is not None:
            full = receiver.waiting > _MAX_WAITING
            if not (full and self._failed):
                self._forward(to, data)
            if full and sender is not None and not self._failed and not receiver.closed:
                self._held_up.add((source, to))
                sender.pause(True)
            return
        waiting = self._kept.get((source, to), b"") + data
        if len(waiting) > _MAX_KEPT:
            raise FrameError(f"it sends more than {_MAX_KEPT} bytes to party {to}, which has not joined")
        self._kept[source, to] = waiting

    def _forward(self, to: int, data: bytes) -> None:
        link = self._links[to]
        if link is not None:
            link.queue(data)
            link.flush()
