"""What was wrong with connections that led to no joining, for the error message if a party never joins."""

import contextlib
import ssl

from vertical.transport.channels import Cause, ConnectionLoss
from vertical.transport.links import Link

_PREFIX = "party-"


class Notes:
    """What one party knows of the others before they have joined. None of it is proved.

    Attributes:
        own_name: By which it introduces itself where it connects, unencrypted.
        distrusted: Whether somebody who connected, a peer or not, did not accept our certificate.
    """

    def __init__(self, me: int, parties: int) -> None:
        self._me, self._parties = me, parties
        self.own_name = f"{_PREFIX}{me}"
        self.distrusted = False
        # whom a client claims to be, and what was wrong with a peer's connection
        self._claims: dict[ssl.SSLObject | ssl.SSLSocket, int] = {}
        self._notes: dict[int, str] = {}
        self._strangers = 0

    def of(self, peer: int) -> str:
        """What is known of a peer that has not joined, in brackets; "" when nothing is."""
        if peer in self._notes:
            return f" ({self._notes[peer]})"
        return f" ({self._strangers} connection(s) of strangers were refused)" if self._strangers else ""

    def note(self, peer: int, words: str) -> None:
        """Replace what is known of a peer."""
        self._notes[peer] = words

    def note_stranger(self) -> None:
        """Count a connection that was refused, of nobody in particular."""
        self._strangers += 1

    def note_loss(self, link: Link, loss: ConnectionLoss) -> None:
        """Note why a connection ended that this party had accepted."""
        claim = self.forget(link)
        self.distrusted |= loss.cause is Cause.REFUSED
        if 0 <= claim < self._parties and claim != self._me:
            said = "a connection that claims to be it was refused" if link.peer < 0 else "its connection ended"
            self.note(claim, f"{said}: {loss.reason}")
        else:
            self.note_stranger()

    def note_claim(self, tls: ssl.SSLObject | ssl.SSLSocket, name: str | None, context: ssl.SSLContext) -> None:
        """Note which party a client claims to be: the callback of a context."""
        if name is not None and name.startswith(_PREFIX):
            with contextlib.suppress(ValueError):
                self._claims[tls] = int(name.removeprefix(_PREFIX))

    def forget(self, link: Link) -> int:
        """Forget whom a connection claims to be of; returns that party, or whom it is known to be of."""
        return self._claims.pop(link.tls, link.peer)
