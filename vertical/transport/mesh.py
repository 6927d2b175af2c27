"""A party's direct connections to all other parties during one segment: one TLS 1.3 connection for each pair.

Every failure ends the segment at all parties, with the same culprit. The party that detects a failure first sends an
abort to all other parties, and each of them forwards the abort once. When a connection breaks, a party waits a moment
for such an abort, since a peer that left because of another party's failure is not the culprit.
"""

import asyncio
import contextlib
from collections.abc import Callable

from vertical.transport.channels import Cause, ConnectionLoss
from vertical.transport.connecting import Connector
from vertical.transport.endpoint import Delays, Endpoint
from vertical.transport.frames import Kind, PartyError, pack, protocol_error
from vertical.transport.links import Delayed, Link
from vertical.transport.relay import Relay
from vertical.transport.traffic import Hub


class Mesh(Hub):
    """This party's connections to all other parties in a segment.

    Create a mesh inside the running event loop, call `join`, then `send` and receive. Always call `close` at the end,
    also after an error. Call all methods in the loop's thread.

    Args:
        me: The index of this party.
        endpoint: This party's access to the other parties.
        serial: The serial of the segment's attempt, 0..2^32 - 1. Frames of other attempts are refused.
        hello: The bytes that every peer gets from its `join`.
        delays: The artificial delays of this party's outgoing frames.

    Raises:
        ValueError: The endpoint's lists do not fit each other or this party, or no party can be reached.
    """

    def __init__(
        self, me: int, endpoint: Endpoint, serial: int, *, hello: bytes = b"", delays: Delays | None = None
    ) -> None:
        addresses, limits, parties = endpoint.addresses, endpoint.limits, len(endpoint.addresses)
        if not 0 <= me < parties or parties < 2:
            raise ValueError(
                f"a mesh needs at least 2 parties and an index of one of them, got party {me} of {parties}"
            )
        different = len(set(endpoint.certificates))
        if len(endpoint.certificates) != parties or different != parties:
            raise ValueError(f"{parties} parties need {parties} different certificates, got {different}")
        if endpoint.certificates[me] != endpoint.identity.certificate:
            raise ValueError(f"party {me}'s own certificate differs from certificates[{me}], which its peers expect")
        if len({str(address) for address in addresses}) != parties:
            raise ValueError(
                f"{parties} parties need {parties} different addresses, got {', '.join(map(str, addresses))}"
            )
        if not 0 <= serial < 2**32:
            raise ValueError(f"serial must be 0 to 2^32 - 1, got {serial}")
        if len(hello) > limits.body:
            raise ValueError(f"hello must have at most {limits.body} bytes, got {len(hello)}")
        super().__init__(me, parties, serial, limits)
        self._verbose = endpoint.verbose
        self._delays = delays if delays is not None and (delays.one_way or delays.jitter) else None
        self._connector = Connector(me, endpoint, serial, hello, self._linked, self.abort)
        self._relay = Relay(me, addresses, serial, limits.body, self._links, self._connector.meet)
        # links that only carry an abort
        self._abort_links: set[Link] = set()
        self._hellos: dict[int, bytes] = {}
        self._joined = self._loop.create_future()
        self._ended = False
        self._timers: set[asyncio.TimerHandle] = set()
        self._tick = min(limits.beat, limits.silence / 4)
        self._ticker: asyncio.TimerHandle | None = None
        self._ticked = 0.0
        self._change = asyncio.Event()

    async def join(self) -> dict[int, bytes]:
        """Connect to every peer, and return each peer's hello.

        Raises:
            PartyError: A party never joined, has an unknown certificate or cannot listen, or any peer has failed.
            RuntimeError: `join` was called before.
        """
        if self._ticker is not None or self._ended:
            raise RuntimeError("a mesh can join only once: create another mesh for the next segment")
        self._ticked = self._loop.time()
        self._ticker = self._loop.call_later(self._tick, self._beat)
        deadline = self._loop.time() + self._limits.join
        try:
            await self._connector.listen()
            for peer in self._peers():
                if self._relay.connects(peer):
                    self._connector.dial(peer)
        except PartyError as error:
            self.abort(error)
        either, left = {self._joined, self.failed}, max(deadline - self._loop.time(), 0.0)
        if not (await asyncio.wait(either, timeout=left, return_when=asyncio.FIRST_COMPLETED))[0]:
            self._expire()
        if self._error is not None:
            raise self._error
        self._loop.call_soon(self._release)
        return dict(sorted(self._hellos.items()))

    async def close(self) -> None:
        """End the segment: announce the end of this party's frames, and wait for every peer's announcement.

        After a failure, wait until every reachable peer knows of the failure. Either wait lasts at most `Limits.close`
        and raises no error. Only the relay waits longer, as long as other parties send bytes through it. If not all
        parties have joined or the work is not finished, call `abort` first.
        """
        if self._ended:
            return
        try:
            if self._ticker is not None:
                if self._error is None and not self._complete:
                    self.abort(PartyError(self.me, "it left before all parties had joined"))
                await self._part()
        finally:
            self._ended = True
            self._tear_down()
            await self._connector.close()

    # joining

    def _linked(self, link: Link, hello: bytes) -> None:
        link.owner = self
        peer = link.peer
        if self._links[peer] is None:
            self._links[peer] = link
            self._hellos[peer] = hello
            link.works = True
            if self._delays is not None:
                link.delayed = Delayed(link, self._delays, self.me)
        elif len(self._abort_links) < self.parties:
            self._abort_links.add(link)
        else:
            link.close()
            return
        if self._error is None and len(self._hellos) == self.parties - 1 and not self._complete:
            self._complete = True
            self._joined.set_result(None)
        if self._links[peer] is link and self._error is None:
            self._relay.welcome(peer)
        self._change.set()

    def _expire(self) -> None:
        missing = [peer for peer in self._peers() if peer not in self._hellos]
        if self._relay.index in missing:
            # peers behind the relay are missing because the relay is missing
            missing = [peer for peer in missing if not self._relay.meets(peer)]
        within, note = f"within {self._limits.join:g} s", self._connector.notes.of(missing[0])
        alone = not self._hellos
        if alone and self._connector.notes.distrusted:
            words = f"no party joined party {self.me} {within}: a peer refused its certificate"
            self.abort(PartyError(self.me, words))
        elif alone and len(missing) > 1:
            words = f"no party joined party {self.me} {within}"
            self.abort(PartyError(None, f"{words}{note}", words))
        else:
            suffix = f", nor did {', '.join(map(str, missing[1:]))}" if len(missing) > 1 else ""
            words = f"it never joined {within}{suffix}"
            self.abort(PartyError(missing[0], f"{words}{note}", words))

    def _peers(self) -> list[int]:
        return [peer for peer in range(self.parties) if peer != self.me]

    # failing

    def relayed(self, link: Link, party: int, body: bytes) -> None:
        self._relay.take(link.peer, party, body)

    def note_room(self, link: Link) -> None:
        self._relay.release(link.peer)

    def done(self, link: Link) -> None:
        self._change.set()

    def aborted(self, link: Link, body: bytes) -> None:
        try:
            error = PartyError.from_bytes(body, self.parties)
        except ValueError as wrong:
            error = protocol_error(link.peer, str(wrong))
        self.abort(error)
        self._change.set()

    def lost(self, link: Link, loss: ConnectionLoss) -> None:
        self._change.set()
        if link in self._abort_links:
            self._abort_links.discard(link)
            return
        more = link.closed and self._relay.lose(link.peer)
        error = PartyError(link.peer, loss.reason)
        if self._error is not None or self._closing:
            link.close()
        elif loss.cause is Cause.FORGED:
            self.abort(protocol_error(link.peer, loss.reason))
        elif (more or not link.is_done) and not link.has_aborted:
            self._timers.add(self._loop.call_later(self._limits.grace, self.abort, error))

    def abort(self, error: PartyError) -> None:
        if self._error is not None or self._ended:
            return
        self._error = error
        verdict = (error if self._verbose else error.redact()).to_bytes()
        self._connector.condemn(verdict)
        for link in self._greeted_links():
            link.send_control(Kind.ABORT, verdict)
        self._drop_delayed()
        self._relay.fail()
        if self._ticker is not None:
            for peer in self._peers():
                if peer != error.party and self._links[peer] is None and self._relay.reaches(peer):
                    self._connector.dial(peer)
        self.failed.set_exception(error)
        self.failed.exception()  # marks the exception as seen, to avoid a warning
        self._held.clear()
        self._change.set()

    def _greeted_links(self) -> list[Link]:
        return [link for link in self._links if link is not None and not link.closed] + list(self._abort_links)

    def _beat(self) -> None:
        """Send a heartbeat on links without traffic, and check that every peer is alive. Runs at regular intervals.

        Silence is counted in calls of this method, not in seconds. After the event loop was blocked, it must first read
        the bytes that have arrived, and its earlier writes are too old to count as heartbeats. The relay checks the
        parties that it connects, also after its own last frame.
        """
        now = self._loop.time()
        held_up, self._ticked = now - self._ticked > 1.5 * self._tick, now
        self._ticker = self._loop.call_later(self._tick, self._beat)
        if self._error is not None:
            return
        silent = self._closing and not self._relay.is_needed()
        for link in self._links:
            if link is None or link.closed or self._relay.meets(link.peer):
                continue
            if (held_up or not link.spoke) and not silent:
                link.send_control(Kind.BEAT)
            link.spoke = False
            # nothing is read from a party whose bytes wait at the relay for another party
            link.quiet = 0 if link.paused else link.quiet + 1
            link.stuck = link.stuck + 1 if self._relay.holds_up(link.peer) and not link.took else 0
            link.took = False
            if (link.stuck - 1) * self._tick >= self._limits.silence:
                words = f"it has accepted no byte for {self._limits.silence:g} s"
                self.abort(PartyError(link.peer, words))
                return
            over = (link.quiet - 1) * self._tick >= self._limits.silence
            if over and not silent and (not link.is_done or self._relay.depends_on(link.peer)):
                self.abort(PartyError(link.peer, f"it has been silent for {self._limits.silence:g} s"))
                return

    # closing

    async def _part(self) -> None:
        if self._error is None:
            self._closing = True
            for link in self._links:
                if link is not None and link.delayed is not None:
                    link.delayed.queue(pack(self._serial, Kind.DONE, 0, 0))
                elif link is not None and not link.closed:
                    link.send_control(Kind.DONE)
            await self._until(self._all_done, self._loop.time() + self._limits.close)
            await self._until(lambda: self._error is not None or not self._relay.is_needed(), None)
        if self._error is not None:
            await self._until(self._all_aware, self._loop.time() + self._limits.close)

    async def _until(self, condition: Callable[[], bool], deadline: float | None) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(deadline):
                while not condition():
                    self._change.clear()
                    await self._change.wait()

    def _all_done(self) -> bool:
        """Return whether every peer has announced its end, and therefore needs no more frames, or is gone."""
        return self._error is not None or all(link is None or link.closed or link.is_done for link in self._links)

    def _all_aware(self) -> bool:
        """Return whether every peer except the culprit knows of the failure, possibly from the relay, or is gone."""
        links = [link for link in (*self._links, *self._abort_links) if link is not None]
        culprit = None if self._error is None else self._error.party
        aware = {self.me, culprit} | {link.peer for link in links if link.has_aborted or link.closed}
        if self._relay.index in aware:
            aware.update(peer for peer in self._peers() if self._relay.meets(peer))
        return aware >= set(range(self.parties))

    def _drop_delayed(self) -> None:
        for link in self._links:
            if link is not None and link.delayed is not None:
                link.delayed.cancel()

    def _tear_down(self) -> None:
        if self._ticker is not None:
            self._ticker.cancel()
        for timer in self._timers:
            timer.cancel()
        self._drop_delayed()
        for link in self._greeted_links():
            link.close()
        self._relay.close()
        self._abort_links.clear()
        self._held.clear()
