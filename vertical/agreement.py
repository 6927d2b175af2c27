"""A check by the parties that the server has sent all of them the same run config and the same messages (the *terms*).

A cheating server could send different terms to one party. Each party therefore sends the other parties one digest of
all its terms when it joins. If two digests differ, the parties exchange a digest of each term, and the run ends with an
error that names the party and the differing terms. No sum has been computed by then.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from vertical.transport.frames import Frame, Kind, PartyError, protocol_error
from vertical.transport.mesh import Mesh

# hint of errors that an unchanged server and equal versions cannot cause
UNCHANGED = "run the server's code unchanged, and the same version at all parties"
# the digest of each term, by the term's name
Terms = Mapping[str, str]
GREETING_BYTES = 33
# prefix of terms that a party derives from the server's terms; an error names them only if no other term differs
DERIVED = "plan field "
# seconds to wait for the other parties' terms, and the maximum number of terms in an error
_PATIENCE, _MAX_NAMES = 5.0, 10


@dataclass(frozen=True)
class Agreement:
    """A party's side of the comparison.

    Attributes:
        terms: The digest of each term, by its name.
        active: The parties whose labels are used, by the server's choice. The first of them is the reporter.
        wanted: The number of active parties. They must be the first parties with labels. 0: not checked.
        labelled: Whether this party has labels.
    """

    terms: Terms = field(default_factory=dict)
    active: tuple[int, ...] = ()
    wanted: int = 0
    labelled: bool = False

    def greet(self) -> bytes:
        """Return 33 bytes for the peers: the digest of all terms, and whether this party has labels."""
        return digest_terms(self.terms) + bytes([self.labelled])

    async def confirm(self, mesh: Mesh, greetings: Mapping[int, bytes]) -> None:
        """Compare the terms of all parties, and check that the active parties are the first label holders.

        Args:
            mesh: The joined mesh. Its frames are read only if terms differ.
            greetings: The result of `greet` of every other party.

        Raises:
            PartyError: A greeting is malformed, terms differ, or the active parties are wrong.
        """
        greetings = dict(sorted({mesh.me: self.greet(), **greetings}.items()))
        for party, greeting in greetings.items():
            if len(greeting) != GREETING_BYTES or greeting[-1] > 1:
                raise protocol_error(party, "its greeting cannot be read")
        digests = {party: greeting[:-1] for party, greeting in greetings.items()}
        if len(set(digests.values())) > 1:
            raise _blame(digests, await self._exchange(mesh))
        holders = tuple(party for party, greeting in greetings.items() if greeting[-1])
        if self.wanted and self.active != holders[: self.wanted]:
            active, labelled = (", ".join(map(str, parties)) or "none" for parties in (self.active, holders))
            allowed = f"the first {self.wanted} of the parties with labels, {labelled}"
            raise PartyError(None, f"the server names parties {active} as active, allowed: {allowed}; {UNCHANGED}")

    async def _exchange(self, mesh: Mesh) -> dict[int, Terms]:
        """Exchange all terms with the other parties. Return the terms that arrive in time, by party."""
        terms: dict[int, Terms] = {mesh.me: self.terms}
        complete = asyncio.get_running_loop().create_future()

        def take(peer: int, frame: Frame) -> None:
            if frame.kind == Kind.TERMS and peer not in terms:
                terms[peer] = _read(peer, bytes(frame.body))
                if len(terms) == mesh.parties:
                    complete.set_result(None)

        mesh.on_frame = take
        mesh.broadcast(Frame(Kind.TERMS, 0, 0, json.dumps(dict(self.terms)).encode()))
        either = {complete, mesh.failed}
        await asyncio.wait(either, timeout=_PATIENCE, return_when=asyncio.FIRST_COMPLETED)
        if mesh.failed.done():
            mesh.failed.result()
        return terms


def digest_terms(terms: Terms) -> bytes:
    """Return a SHA-256 digest of all terms: 32 bytes."""
    return hashlib.sha256(json.dumps(sorted(terms.items())).encode()).digest()


def _read(party: int, body: bytes) -> Terms:
    """Return a peer's terms; raise PartyError if they are not printable texts."""
    try:
        terms = json.loads(body)
        texts = [*terms.keys(), *terms.values()]
    except (ValueError, AttributeError, RecursionError):
        texts = [None]
    if not all(isinstance(text, str) and text.isprintable() for text in texts):
        raise protocol_error(party, "its terms cannot be read")
    return dict(terms)


def _blame(digests: Mapping[int, bytes], terms: Mapping[int, Terms]) -> PartyError:
    """Return the error that names the first party that deviates from the majority, and the terms that differ.

    Args:
        digests: The digest of each party's terms, in the parties' order.
        terms: The terms of each party that has sent them.
    """
    common, _ = Counter(digests.values()).most_common(1)[0]
    culprit = next(party for party, digest in digests.items() if digest != common)
    own, expected = (terms.get(party, {}) for party in (culprit, list(digests.values()).index(common)))
    names = sorted(name for name in own.keys() | expected.keys() if own.get(name) != expected.get(name))
    names = [name for name in names if not name.startswith(DERIVED)] or names
    shown = ", ".join(names[:_MAX_NAMES]) or "terms that it does not send"
    more = f", and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else ""
    return PartyError(culprit, f"it does not agree with the other parties on: {shown}{more}; {UNCHANGED}")
