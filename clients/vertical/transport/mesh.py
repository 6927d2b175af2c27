"""The parties' direct connections during one segment: one TLS 1.3 connection for each pair.

Every failure ends the segment at every party with the culprit named. Who sees it first tells all others; who is told
passes it on once. A connection that merely breaks waits a moment for such a message, so that a party that left because
of another is not named itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from clients.vertical.transport.addresses import Address
from clients.vertical.transport.channels import Cause, Loss
from clients.vertical.transport.connecting import Door
from clients.vertical.transport.failures import PartyError
from clients.vertical.transport.frames import Kind, pack
from clients.vertical.transport.identity import Identity
from clients.vertical.transport.limits import Delays, Limits
from clients.vertical.transport.links import Link
from clients.vertical.transport.traffic import Counters, Hub

__all__ = ["Counters", "Delays", "Limits", "Mesh"]


class Mesh(Hub):
    """This party's connections to all others in one segment.

    Make it inside the running event loop, `join`, then `send` and receive; at the end `close`, always, also after an
    error. All methods belong to the loop's thread.

    Args:
        me: index of this party.
        addresses: of every party, by index; this party listens at its own.
        identity: this party's certificate and key.
        certificates: (DER) of every party, by index.
        serial: of the segment's attempt, 0..2^32 - 1; frames of another are refused.
        hello: what every peer gets from `join`.
        delays: injected on this party's outgoing frames.
        authority: file of the authority (PEM) that must have signed the certificates; they are pinned all the same.
        bind: where to listen, when that differs from the address the peers use.

    Attributes:
        failed: gets the PartyError as soon as anything is wrong at any party.
        counters: frames and bytes so far.

    Raises:
        ValueError: the lists do not fit one another or this party.
    """

    def __init__(
        self,
        me: int,
        addresses: Sequence[Address],
        identity: Identity,
        certificates: Sequence[bytes],
        serial: int,
        *,
        hello: bytes = b"",
        limits: Limits | None = None,
        delays: Delays | None = None,
        authority: str | None = None,
        bind: Address | None = None,
    ) -> None:
        parties = len(addresses)
        if not 0 <= me < parties or parties < 2:
            raise ValueError(f"a mesh has at least 2 parties and is one of them, not party {me} of {parties}")
        if len(certificates) != parties or len(set(certificates)) != parties:
            raise ValueError(f"{parties} parties need {parties} different certificates, not {len(set(certificates))}")
        if certificates[me] != identity.certificate:
            raise ValueError(f"party {me}'s own certificate is not the one announced for it")
        if len({str(address) for address in addresses}) != parties:
            raise ValueError(f"{parties} parties need {parties} different addresses: {', '.join(map(str, addresses))}")
        if not 0 <= serial < 2**32:
            raise ValueError(f"a serial is in 0..2^32 - 1, not {serial}")
        limits = limits or Limits()
        if len(hello) > limits.body:
            raise ValueError(f"a hello has at most {limits.body} bytes, not {len(hello)}")
        super().__init__(me, parties, serial, limits, delays)
        self._door = Door(
            me, addresses, identity, certificates, serial, hello, limits, self, authority=authority, bind=bind
        )
        # links that only carry an abort
        self._others: set[Link] = set()
        self._hellos: dict[int, bytes] = {}
        self._joined = self._loop.create_future()
        self._ended = False
        self._timers: set[asyncio.TimerHandle] = set()
        self._tick = min(limits.beat, limits.silence / 4)
        self._ticker: asyncio.TimerHandle | None = None
        self._ticked = 0.0
        self._change = asyncio.Event()

    async def join(self) -> dict[int, bytes]:
        """Connect to every peer; returns each one's hello.

        Raises:
            PartyError: a party never joined, has an unknown certificate or cannot listen, or any peer has failed.
            RuntimeError: called a second time.
        """
        if self._ticker is not None or self._ended:
            raise RuntimeError("a mesh joins once; the next segment needs another")
        self._ticked = self._loop.time()
        self._ticker = self._loop.call_later(self._tick, self._beat)
        deadline = self._loop.call_later(self._limits.join, self._expire)
        self._timers.add(deadline)
        try:
            try:
                await self._door.listen()
                for peer in range(self.me):
                    self._door.dial(peer)
            except PartyError as error:
                self._fail(error)
            await asyncio.wait({self._joined, self.failed}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            deadline.cancel()
            self._timers.discard(deadline)
        if self._error is not None:
            raise self._error
        self._loop.call_soon(self._release)
        return {peer: self._hellos[peer] for peer in sorted(self._hellos)}

    def abort(self, error: PartyError) -> None:
        """Tell every peer who failed and why, and fail here; only the first failure counts."""
        self._fail(error)

    async def close(self) -> None:
        """End the segment: tell the peers that nothing more will come, and wait until they have told the same.

        After a failure: wait until every peer that can be reached knows it. Either waits `Limits.close` at most, and
        raises nothing; see `failed`. Before all have joined, or with the work undone, `abort` is the honest way out.
        """
        if self._ended:
            return
        try:
            if self._ticker is not None:
                if self._error is None and not self._complete:
                    self._fail(PartyError(self.me, "it left before all parties had joined"))
                await self._part()
        finally:
            self._ended = True
            self._tear_down()
            await self._door.close()

    # joining

    def opened(self, link: Link) -> None:
        """Links come here opened."""

    def greeted(self, link: Link, serial: int, hello: bytes) -> None:
        """Links come here greeted."""

    def linked(self, link: Link, hello: bytes) -> None:
        """A peer is connected."""
        link.owner = self
        peer = link.peer
        if self._links[peer] is None:
            self._add(link)
            self._hellos[peer] = hello
        elif len(self._others) < self.parties:
            self._others.add(link)
        else:
            link.close()
            return
        if self._error is None and len(self._hellos) == self.parties - 1 and not self._complete:
            self._complete = True
            self._joined.set_result(None)
        self._change.set()

    def refused(self, error: PartyError) -> None:
        """Joining has failed."""
        self._fail(error)

    def _expire(self) -> None:
        missing = [peer for peer in range(self.parties) if peer != self.me and peer not in self._hellos]
        if not missing or self._complete:
            return
        note = self._door.note(missing[0])
        words = f"within {self._limits.join:g} s"
        if len(missing) == self.parties - 1:
            words = f"no party joined party {self.me} {words}"
            if self._door.distrusted:
                self._fail(PartyError(self.me, f"{words}: somebody refused its certificate"))
                return
            if len(missing) > 1:
                self._fail(PartyError(None, words + note))
                return
        others = f", nor did {', '.join(map(str, missing[1:]))}" if len(missing) > 1 else ""
        self._fail(PartyError(missing[0], f"it never joined within {self._limits.join:g} s{others}{note}"))

    # failing

    def done(self, link: Link) -> None:
        """A peer has sent its last frame."""
        self._change.set()

    def aborted(self, link: Link, body: bytes) -> None:
        """A peer tells of a failure."""
        try:
            error = PartyError.from_bytes(body, self.parties)
        except ValueError as wrong:
            error = PartyError(link.peer, str(wrong))
        self._fail(error)
        self._change.set()

    def lost(self, link: Link, loss: Loss) -> None:
        """A connection has ended."""
        self._change.set()
        if link in self._others:
            self._others.discard(link)
            return
        error = PartyError(link.peer, loss.reason)
        if self._error is not None or self._closing:
            link.close()
        elif loss.cause is Cause.FORGED:
            self._fail(error)
        elif not link.is_done and not link.has_aborted:
            self._timers.add(self._loop.call_later(self._limits.grace, self._fail, error))

    def _fail(self, error: PartyError) -> None:
        """The segment is over: tell every peer, whatever happens afterwards."""
        if self._error is not None or self._ended:
            return
        self._error = error
        verdict = error.to_bytes()
        self._door.condemn(verdict)
        for link in self._greeted():
            link.tell(verdict)
        for delayed in self._delayed:
            if delayed is not None:
                delayed.cancel()
        if self._ticker is not None:
            for peer in range(self.parties):
                if peer not in (self.me, error.party) and self._links[peer] is None:
                    self._door.dial(peer)
        self.failed.set_exception(error)
        self.failed.exception()  # marks it as seen: whoever closes without looking wants no warning
        self._held.clear()
        self._change.set()

    def _greeted(self) -> list[Link]:
        return [link for link in self._links if link is not None and not link.closed] + list(self._others)

    def _beat(self) -> None:
        """Give a sign of life where nothing was written, and look for one from every peer.

        Ticks are counted, not seconds: a loop that was held up must read first what has arrived meanwhile. What it
        wrote before it was held up is too long ago to be the sign of life of this tick.
        """
        now = self._loop.time()
        held_up, self._ticked = now - self._ticked > 1.5 * self._tick, now
        self._ticker = self._loop.call_later(self._tick, self._beat)
        if self._error is not None:
            return
        for link in self._links:
            if link is None or link.closed:
                continue
            if (held_up or not link.spoke) and not self._closing:
                link.say(Kind.BEAT)
            link.spoke = False
            link.quiet += 1
            if (link.quiet - 1) * self._tick >= self._limits.silence and not link.is_done and not self._closing:
                self._fail(PartyError(link.peer, f"it has been silent for {self._limits.silence:g} s"))
                return

    # closing

    async def _part(self) -> None:
        deadline = self._loop.time() + self._limits.close
        if self._error is None:
            self._closing = True
            for peer, link in enumerate(self._links):
                delayed = self._delayed[peer]
                if delayed is not None:
                    delayed.queue(pack(self._serial, Kind.DONE, 0, 0))
                elif link is not None and not link.closed:
                    link.say(Kind.DONE)
            await self._until(self._all_done, deadline)
        if self._error is not None:
            await self._until(self._all_told, deadline)

    async def _until(self, condition: Callable[[], bool], deadline: float) -> None:
        while not condition():
            left = deadline - self._loop.time()
            if left <= 0:
                return
            self._change.clear()
            try:
                await asyncio.wait_for(self._change.wait(), left)
            except TimeoutError:
                return

    def _all_done(self) -> bool:
        """Whether every peer has said that nothing more will come, and so wants nothing more, or is gone."""
        if self._error is not None:
            return True
        return all(link is None or link.closed or link.is_done for link in self._links)

    def _all_told(self) -> bool:
        """Whether every peer but the culprit knows of the failure, or is gone."""
        error = self._error
        for peer in range(self.parties):
            if peer == self.me or (error is not None and peer == error.party):
                continue
            link = self._links[peer]
            links = [other for other in self._others if other.peer == peer] + ([link] if link is not None else [])
            if not any(other.has_aborted or other.closed for other in links):
                return False
        return True

    def _tear_down(self) -> None:
        if self._ticker is not None:
            self._ticker.cancel()
        for timer in self._timers:
            timer.cancel()
        for delayed in self._delayed:
            if delayed is not None:
                delayed.cancel()
        for link in self._greeted():
            link.close()
        self._others.clear()
        self._held.clear()
