"""A private test whether two parties have the same rows. It reveals only whether the ids of both parties are equal.

Each party hashes the digest of its ids to a point of Curve25519 and raises the point to a fresh secret key. The result
is its *tag*, which it sends to all other parties when it joins. Each of them raises the tag to its own key too, and
returns a hash of the product. Equal digests give equal products.

A cheating party can test one guess of another party's ids in a segment, by sending the guess as its tag. A wrong guess
makes the segment fail.
"""

import hashlib
from collections.abc import Mapping

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from vertical.intersection import TAG_BYTES, IntersectionError, hash_ids, raise_tags
from vertical.transport.frames import FinalError, PartyError

_DOMAIN = b"digest of the ids of a segment's rows "
ABSENT = bytes(TAG_BYTES)
"""The tag of a party that does not compare its ids."""


class RowComparison:
    """A party's side of the test in a segment.

    Args:
        me: The party's index.
        ids: The digest of the party's ids, as text. "": the party does not compare ids.
        rows: The number of the party's rows, for errors.

    Attributes:
        tag: The 32 bytes for all other parties.
    """

    def __init__(self, me: int, ids: str, rows: int) -> None:
        self._me, self._rows = me, rows
        self._secret = X25519PrivateKey.generate().private_bytes_raw()
        self.tag = hash_ids([ids.encode()], _DOMAIN, self._secret) if ids else ABSENT
        # the correct answer, by peer
        self._expected: dict[int, bytes] = {}

    def answer(self, tags: Mapping[int, bytes]) -> dict[int, bytes]:
        """Return the answer to each other party's tag: a hash of the product.

        Args:
            tags: The tag of each other party.

        Raises:
            PartyError: A tag is malformed. The error names the party that sent the tag.
        """
        answers = {}
        for peer, tag in tags.items():
            try:
                product = raise_tags(tag, self._secret)
            except IntersectionError as error:
                raise PartyError(peer, str(error)) from error
            answers[peer], self._expected[peer] = _hash(self._me, peer, product), _hash(peer, self._me, product)
        return answers

    def check(self, answers: Mapping[int, bytes]) -> None:
        """Check that all other parties have the same rows as this party.

        Args:
            answers: The answer of each other party.

        Raises:
            FinalError: Rows differ. The error names the parties whose rows differ from this party's rows or, if these
                parties are the majority, this party.
        """
        differing = [peer for peer, right in sorted(self._expected.items()) if answers[peer] != right]
        parties, count = len(answers) + 1, f"{self._rows:,}"
        if not differing:
            return
        if 2 * len(differing) > parties:
            culprit, agreed = self._me, f"{len(differing)} of {parties} parties"
        else:
            culprit, agreed = differing[0], f"{parties - len(differing)} of {parties} parties"
        more = (
            f", and so has party {', '.join(map(str, differing[1:]))}" if culprit != self._me and differing[1:] else ""
        )
        hint = 'provide the same ids at all parties, or set vfb2.alignment="intersection"'
        raise FinalError(culprit, f"it has other rows ({count}) than {agreed}{more}: {hint}")


def _hash(sender: int, receiver: int, product: bytes) -> bytes:
    return hashlib.sha256(_DOMAIN + f"{sender} {receiver} ".encode() + product).digest()
