"""Notes about failed connections, for the error message if a party never joins."""

import contextlib
import ssl

from vertical.transport.channels import Cause, ConnectionLoss
from vertical.transport.links import Link

_PREFIX = "party-"


class Notes:
    """A party's unproved knowledge of the parties that have not joined.

    Args:
        me: The index of the party.
        parties: The number of parties.

    Attributes:
        own_name: The name that this party sends, unencrypted, when it connects.
        distrusted: Whether any connecting client, a peer or not, did not accept this party's certificate.
    """

    def __init__(self, me: int, parties: int) -> None:
        self._me, self._parties = me, parties
        self.own_name = f"{_PREFIX}{me}"
        self.distrusted = False
        # the party that each connecting client claims to be, and the note about each peer
        self._claims: dict[ssl.SSLObject | ssl.SSLSocket, int] = {}
        self._notes: dict[int, str] = {}
        self._strangers = 0

    def of(self, peer: int) -> str:
        """Return the note about a peer that has not joined, in brackets; "" without a note."""
        if peer in self._notes:
            return f" ({self._notes[peer]})"
        return f" ({self._strangers} connection(s) of strangers were refused)" if self._strangers else ""

    def note(self, peer: int, words: str) -> None:
        """Replace the note about a peer."""
        self._notes[peer] = words

    def note_stranger(self) -> None:
        """Count a refused connection of an unknown client."""
        self._strangers += 1

    def note_loss(self, link: Link, loss: ConnectionLoss) -> None:
        """Note the end of a connection that this party had accepted."""
        claim = self.forget(link)
        self.distrusted |= loss.cause is Cause.REFUSED
        if 0 <= claim < self._parties and claim != self._me:
            said = "a connection that claims to be it was refused" if link.peer < 0 else "its connection ended"
            self.note(claim, f"{said}: {loss.reason}")
        else:
            self.note_stranger()

    def note_claim(self, tls: ssl.SSLObject | ssl.SSLSocket, name: str | None, context: ssl.SSLContext) -> None:
        """Note the party that a connecting client claims to be. The TLS context calls this method."""
        if name is not None and name.startswith(_PREFIX):
            with contextlib.suppress(ValueError):
                self._claims[tls] = int(name.removeprefix(_PREFIX))

    def forget(self, link: Link) -> int:
        """Forget the claim of a connection's client. Return the party that it claims to be, else the link's peer."""
        return self._claims.pop(link.tls, link.peer)
