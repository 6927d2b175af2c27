"""Making connections between the parties of a segment: in each pair, one party listens and the other party connects.

A party is identified only by its certificate. A connection of an unknown client, or of an earlier attempt at the
segment, is closed and noted for the error message. It does not end the segment.
"""

import asyncio
import socket
import ssl
from collections.abc import Callable

from vertical.transport.addresses import UNREACHABLE, connect, listen, prepare, reason_of, stop_listening
from vertical.transport.channels import Cause, ConnectionLoss
from vertical.transport.endpoint import Endpoint
from vertical.transport.frames import Kind, PartyError, protocol_error
from vertical.transport.identity import client_context, fingerprint, server_context
from vertical.transport.links import Link, Owner
from vertical.transport.notes import Notes

# the first and the longest pause between two attempts to connect, in seconds
_FIRST_PAUSE, _LAST_PAUSE = 0.005, 0.2
# the seconds to try an address again that an earlier attempt still uses, to wait for a connection, and to wait until a
# connecting party has proved its identity
_BIND_PATIENCE, _CONNECT_PATIENCE, _PROOF_PATIENCE = 0.5, 2.0, 1.0


class Connector(Owner):
    """The object that listens and connects for a party, until each peer is identified and has sent its hello.

    Args:
        me: The index of this party.
        endpoint: This party's access to the other parties.
        serial: The serial of the segment's attempt.
        greeting: The body of this party's hello, the first message to each peer.
        linked: A function of the link to a peer and the peer's hello. It must set the link's owner.
        refused: A function of the error, called when joining has failed.

    Attributes:
        notes: The faults of connections, for the error message.
    """

    def __init__(
        self,
        me: int,
        endpoint: Endpoint,
        serial: int,
        greeting: bytes,
        linked: Callable[[Link, bytes], None],
        refused: Callable[[PartyError], None],
    ) -> None:
        self._me = me
        self._addresses = endpoint.addresses
        self._where = [str(address) if address.kind != UNREACHABLE else "the relay" for address in endpoint.addresses]
        self._own = endpoint.listen or endpoint.addresses[me]
        self._limits = endpoint.limits
        # if not verbose, an unknown certificate is treated like a closed port: the party waits until the time limit
        self._verbose = endpoint.verbose
        self._serial, self._greeting = serial, greeting
        self._linked, self._refused = linked, refused
        self._index = {certificate: party for party, certificate in enumerate(endpoint.certificates)}
        self._loop = asyncio.get_running_loop()
        peers = [certificate for party, certificate in enumerate(endpoint.certificates) if party != me]
        self._client = client_context(endpoint.identity, peers, endpoint.authority)
        self._server = server_context(endpoint.identity, peers, endpoint.authority)
        self.notes = Notes(me, len(endpoint.addresses))
        self._server.sni_callback = self.notes.note_claim
        self._listener: socket.socket | None = None
        self._tasks: dict[int, asyncio.Task[None] | asyncio.Task[bool]] = {}
        # the timer of each connection, accepted or made, on which the peer's hello has not arrived
        self._pending: dict[Link, asyncio.TimerHandle] = {}
        # the host of each accepted connection whose client has not proved its identity, the oldest first
        self._unproven: dict[Link, str] = {}
        # the outcome of each connection made by this party: None after the peer's hello, or the cause of its end
        self._outcomes: dict[Link, asyncio.Future[ConnectionLoss | None]] = {}
        self._verdict: bytes | None = None

    async def listen(self) -> None:
        """Listen at this party's address, unless it has none; raise a PartyError that names this party on failure."""
        if self._own.kind == UNREACHABLE:
            return
        try:
            self._listener = await listen(self._own, _BIND_PATIENCE)
        except OSError as error:
            words = f"cannot listen at {self._own}: {reason_of(error)}"
            raise PartyError(self._me, words, "cannot listen at its address") from error
        self._loop.add_reader(self._listener.fileno(), self._accept)

    def dial(self, peer: int) -> None:
        """Try to connect to a peer until the peer answers."""
        if peer not in self._tasks:
            self._tasks[peer] = self._loop.create_task(self._dial(peer))

    def meet(self, peer: int, connection: socket.socket) -> None:
        """Join a peer on a connection through the relay. The party with the higher index begins the handshake.

        Args:
            peer: The index of the peer.
            connection: A non-blocking socket. The connector closes it.
        """
        if peer < self._me:
            self._tasks[peer] = self._loop.create_task(self._meet(peer, connection))
        else:
            self._link(connection, self._server, peer, self._limits.join)

    def condemn(self, verdict: bytes) -> None:
        """Send the segment's failure to all parties that are joining now or will join later.

        Args:
            verdict: The failure, from `PartyError.to_bytes`.
        """
        self._verdict = verdict
        for link in self._pending:
            if link.is_open:
                link.send_control(Kind.ABORT, verdict)

    async def close(self) -> None:
        """Stop listening and connecting. Links that were handed over stay open."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        self.stop()
        await asyncio.gather(*tasks, return_exceptions=True)

    def stop(self) -> None:
        """Close the listener and the connections that were not handed over."""
        if self._listener is not None:
            self._loop.remove_reader(self._listener.fileno())
            stop_listening(self._listener)
            self._listener = None
        for link in list(self._pending):
            self._drop(link)

    async def _dial(self, peer: int) -> None:
        pause = _FIRST_PAUSE
        while True:
            try:
                async with asyncio.timeout(_CONNECT_PATIENCE):
                    connection = await connect(self._addresses[peer])
            except OSError as error:
                self.notes.note(peer, f"{self._where[peer]} answers: {reason_of(error)}")
            else:
                if await self._meet(peer, connection):
                    return
            await asyncio.sleep(pause)
            pause = min(1.5 * pause, _LAST_PAUSE)

    async def _meet(self, peer: int, connection: socket.socket) -> bool:
        """Exchange handshake and hellos on a connection made by this party.

        Returns:
            Whether no further attempt to connect to the peer is needed.
        """
        self.notes.note(peer, f"{self._where[peer]} is connected but silent")
        # a peer behind the relay may connect to the relay later than this party
        patience = self._limits.silence if self._addresses[peer].kind != UNREACHABLE else self._limits.join
        link = self._link(connection, self._client, peer, patience)
        outcome: asyncio.Future[ConnectionLoss | None] = self._loop.create_future()
        self._outcomes[link] = outcome
        try:
            link.shake()
            loss = await outcome
        finally:
            del self._outcomes[link]
            if link in self._pending:
                self._drop(link)
        if loss is None:
            return True
        if loss.cause is Cause.UNTRUSTED and self._verbose:
            self._refused(PartyError(peer, f"{loss.reason} (at {self._where[peer]})"))
            return True
        if loss.cause is Cause.REFUSED and link.is_open:
            # the peer has proved its identity before it refused this party's certificate
            words = f"party {peer} refuses its certificate"
            self._refused(PartyError(self._me, f"{words}: {loss.reason}", words))
            return True
        self.notes.note(peer, f"at {self._where[peer]} {loss.reason}")
        return False

    def _accept(self) -> None:
        while self._listener is not None:
            try:
                connection, source = self._listener.accept()
            except (BlockingIOError, InterruptedError):
                return
            except ConnectionAbortedError:
                continue
            except OSError as error:
                self._refused(PartyError(self._me, f"cannot accept a connection: {reason_of(error)}"))
                return
            try:
                prepare(connection)
            except OSError:
                # the peer is gone already
                connection.close()
                continue
            host = source[0] if isinstance(source, tuple) else ""
            if self._make_room(host):
                patience = min(_PROOF_PATIENCE, self._limits.silence)
                self._unproven[self._link(connection, self._server, -1, patience)] = host
            else:
                connection.close()

    def _make_room(self, host: str) -> bool:
        """Return whether this party may accept another connection.

        If too many connections wait, drop the oldest connection whose client has not proved its identity. If half of
        them are from ``host``, drop the oldest connection from ``host``, so one host cannot block other hosts.
        """
        max_pending = 4 * len(self._addresses) + 16
        same = [link for link, other_host in self._unproven.items() if other_host == host]
        oldest = next(iter(self._unproven), None) if len(self._pending) >= max_pending else None
        if host and len(same) >= max_pending // 2:
            oldest = same[0]
        if oldest is not None:
            self._drop(oldest)
            self.notes.note_stranger()
        return len(self._pending) < max_pending

    def _link(self, connection: socket.socket, context: ssl.SSLContext, peer: int, patience: float) -> Link:
        """Return a link to ``peer``, or to an unknown client (-1), that must send bytes within ``patience`` seconds."""
        name = self.notes.own_name if context is self._client else None
        link = Link(connection, context, name, self, self._serial, self._limits.body, peer)
        self._pending[link] = self._loop.call_later(patience, self._tire, link, patience)
        return link

    def _release(self, link: Link) -> None:
        self.notes.forget(link)
        self._unproven.pop(link, None)
        timer = self._pending.pop(link, None)
        if timer is not None:
            timer.cancel()

    def _drop(self, link: Link) -> None:
        self._release(link)
        link.close()

    def _tire(self, link: Link, patience: float) -> None:
        """Drop a connection that has been silent for too long."""
        link.close()
        self.lost(link, ConnectionLoss(Cause.CLOSED, f"it was silent for {patience:g} s"))

    def opened(self, link: Link) -> None:
        """Identify the peer by its certificate, and greet it."""
        self.notes.forget(link)
        if self._unproven.pop(link, None) is not None:
            self._pending[link].cancel()
            self._pending[link] = self._loop.call_later(self._limits.silence, self._tire, link, self._limits.silence)
        certificate = link.tls.getpeercert(binary_form=True) or b""
        party = self._index.get(certificate, -1)
        if link.peer < 0 and party not in (-1, self._me):
            link.peer = party
        if party != link.peer or party < 0:
            link.close()
            known = f"party {party}'s" if party >= 0 else "unknown"
            reason = f"its certificate is {known}: SHA-256 {fingerprint(certificate)[:16]}"
            self.lost(link, ConnectionLoss(Cause.UNTRUSTED, reason))
            return
        link.greet(self._greeting, self._verdict)

    def greeted(self, link: Link, serial: int, hello: bytes) -> None:
        """Hand a peer of this attempt over, or close its connection.

        Args:
            link: The connection.
            serial: The peer's attempt. If it is later than this party's attempt, this attempt ends.
            hello: The peer's hello.
        """
        if serial == self._serial:
            self._release(link)
            self._settle(link, None)
            self._linked(link, hello)
            return
        link.close()
        self.lost(link, ConnectionLoss(Cause.CLOSED, f"it is in the segment of serial {serial}, not {self._serial}"))
        if serial > self._serial:
            later = f"it has begun a later attempt, serial {serial}, while party {self._me} is at serial {self._serial}"
            self._refused(PartyError(link.peer, later))

    def lost(self, link: Link, loss: ConnectionLoss) -> None:
        """Note the fault of a failed connection, for the error message if the peer never joins.

        Args:
            link: The connection.
            loss: The cause of the end. Forged bytes from a peer that has proved its identity end the segment.
        """
        if loss.cause is Cause.FORGED and link.peer >= 0:
            self._refused(protocol_error(link.peer, loss.reason))
            return
        if not self._settle(link, loss):
            self.notes.note_loss(link, loss)
        self._release(link)

    def _settle(self, link: Link, loss: ConnectionLoss | None) -> bool:
        outcome = self._outcomes.get(link)
        if outcome is None:
            return False
        if not outcome.done():
            outcome.set_result(loss)
        return True
