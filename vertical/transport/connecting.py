"""How the parties of a segment find one another: in each pair one listens and the other connects.

A peer is identified by its certificate, never by what it says. A connection of a stranger, or of an earlier attempt at
the segment, is closed and remembered for the error message; it does not fail the segment.
"""

import asyncio
import socket
import ssl
from collections.abc import Callable

from vertical.transport.addresses import UNREACHABLE, connect, listen, prepare, reason_of, stop_listening
from vertical.transport.channels import Cause, ConnectionLoss
from vertical.transport.endpoint import Endpoint
from vertical.transport.frames import Kind, PartyError
from vertical.transport.identity import client_context, fingerprint, server_context
from vertical.transport.links import Link, Owner
from vertical.transport.notes import Notes

# seconds between two attempts to connect, growing from the first to the last
_FIRST_PAUSE, _LAST_PAUSE = 0.005, 0.2
# seconds to retry an address that an ending attempt still holds, to wait until a connection is answered, and for
# whoever connects to us to prove its identity
_BIND_PATIENCE, _CONNECT_PATIENCE, _PROOF_PATIENCE = 0.5, 2.0, 1.0


class Door(Owner):
    """Listens and connects for one party.

    Args:
        greeting: Body of this party's hello.
        linked: Called with each link to a peer of this segment and the peer's hello; must set the link's owner.
        refused: Called when joining has failed.

    Attributes:
        notes: What was wrong with connections, for the error message.
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
        self._where = [str(one) if one.kind != UNREACHABLE else "the relay" for one in endpoint.addresses]
        self._own = endpoint.listen or endpoint.addresses[me]
        self._limits = endpoint.limits
        # If not, a stranger's certificate ends the joining no sooner than a closed port.
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
        # connections, accepted or made, on which the peer's hello has not come
        self._pending: dict[Link, asyncio.TimerHandle] = {}
        # the accepted ones among them that have not proved their identity, oldest first, and their hosts
        self._unproven: dict[Link, str] = {}
        # connections made by us: set when the link is greeted or lost
        self._outcomes: dict[Link, asyncio.Future[ConnectionLoss | None]] = {}
        self._verdict: bytes | None = None

    async def listen(self) -> None:
        """Listen where this party does, if it can be reached; PartyError names this party when that fails."""
        if self._own.kind == UNREACHABLE:
            return
        try:
            self._listener = await listen(self._own, _BIND_PATIENCE)
        except OSError as error:
            words = f"cannot listen at {self._own}: {reason_of(error)}"
            raise PartyError(self._me, words, "cannot listen at its address") from error
        self._loop.add_reader(self._listener.fileno(), self._accept)

    def dial(self, peer: int) -> None:
        """Connect to a peer, again and again until it answers."""
        if peer not in self._tasks:
            self._tasks[peer] = self._loop.create_task(self._dial(peer))

    def meet(self, peer: int, connection: socket.socket) -> None:
        """Join a peer on a connection that the relay carries; there is no other to it.

        Args:
            connection: Non-blocking; the door closes it. The higher index begins the handshake.
        """
        if peer < self._me:
            self._tasks[peer] = self._loop.create_task(self._meet(peer, connection))
        else:
            self._link(connection, self._server, peer, self._limits.join)

    def condemn(self, verdict: bytes) -> None:
        """Send the failure of the segment to all who are joining, now or later.

        Args:
            verdict: The failure, from `PartyError.to_bytes`.
        """
        self._verdict = verdict
        for link in self._pending:
            if link.is_open:
                link.say(Kind.ABORT, verdict)

    async def close(self) -> None:
        """Stop listening and connecting; links that were handed over stay."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        self.stop()
        await asyncio.gather(*tasks, return_exceptions=True)

    def stop(self) -> None:
        """Close the listener and the connections not handed over."""
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
        """Do handshake and hellos on a connection we made; True when there is no need to connect again."""
        self.notes.note(peer, f"{self._where[peer]} is connected but says nothing")
        # whoever is met at the relay may come there later
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
            # the peer has proved its identity before it refused ours
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
                # it has gone already
                connection.close()
                continue
            host = source[0] if isinstance(source, tuple) else ""
            if self._make_room(host):
                patience = min(_PROOF_PATIENCE, self._limits.silence)
                self._unproven[self._link(connection, self._server, -1, patience)] = host
            else:
                connection.close()

    def _make_room(self, host: str) -> bool:
        """Whether one more connection may wait; if there are too many, the oldest without proof of identity is dropped.

        If ``host`` has half of all places, its own oldest is dropped, so that no stranger can keep others out.
        """
        most = 4 * len(self._addresses) + 16
        same = [link for link, other in self._unproven.items() if other == host]
        oldest = same if host and len(same) >= most // 2 else self._unproven if len(self._pending) >= most else ()
        for link in oldest:
            self._drop(link)
            self.notes.note_stranger()
            break
        return len(self._pending) < most

    def _link(self, connection: socket.socket, context: ssl.SSLContext, peer: int, patience: float) -> Link:
        """A link to ``peer``, or to whoever has connected (-1), on which something must come within some seconds."""
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
        """Drop a connection on which nothing has come for too long."""
        link.close()
        self.lost(link, ConnectionLoss(Cause.CLOSED, f"it said nothing for {patience:g} s"))

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
            serial: The peer's attempt; a later one than ours ends ours.
        """
        if serial == self._serial:
            self._release(link)
            self._settle(link, None)
            self._linked(link, hello)
            return
        link.close()
        self.lost(link, ConnectionLoss(Cause.CLOSED, f"it is in the segment of serial {serial}, not {self._serial}"))
        if serial > self._serial:
            later = f"it has begun a later attempt: it is at serial {serial}, this is {self._serial}"
            self._refused(PartyError(link.peer, later))

    def lost(self, link: Link, loss: ConnectionLoss) -> None:
        """Remember what was wrong with a connection that led to nothing; it is said of the peer if joining fails.

        Args:
            loss: Why it ended. Forged bytes from a peer that has proved its identity end the segment.
        """
        if loss.cause is Cause.FORGED and link.peer >= 0:
            self._refused(PartyError(link.peer, loss.reason))
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
