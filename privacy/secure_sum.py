"""Secure sums: the server learns the sum of the clients' values, and nothing else about any single client.

K. Bonawitz, V. Ivanov, B. Kreuter, A. Marcedone, H. B. McMahan, S. Patel, D. Ramage, A. Segal, K. Seth, "Practical
Secure Aggregation for Privacy-Preserving Machine Learning" (CCS 2017), Figure 4, with the sparse graph of Bell et al.
(`privacy.graph`), which determines each client's neighbours. A "stream" is a sequence of pseudorandom masks from a key,
a "share" a part of a secret (`privacy.shamir`), and a "box" an encrypted message (`privacy.keys`). Clients are named by
their partition ids. A sum has five stages. In each stage the server sends a question to the remaining clients:

1. Each client makes `Secrets`, and sends their public side, a `Member`.
2. It sends each neighbour a box that only that neighbour can open: a share of its seed and a share of its mask key.
3. It sends its values plus a mask: the stream of its seed, and for each neighbour the stream of the key that the two
   agree on. The client with the lower number adds this stream, the other client subtracts it.
4. The server names the survivors: the clients whose values have arrived. The client vouches for its `view_of` the sum
   to each surviving neighbour with a code that only the two can compute (the consistency check of Figure 4, round 3,
   which uses signatures).
5. If a threshold of its neighbours vouch for the same view, the client reveals a share for each neighbour: the share
   of the seed if that neighbour survived, else the share of its mask key. The server subtracts the streams of the
   survivors' seeds, and the pairs' streams that are left because one client of the pair has dropped out.

A client's seed and mask key together would unmask it. So every client answers each question once, and vouches only for
a sum that contains its own values, a threshold of its neighbours and as many clients as its owner demands. Clients with
different views compute different codes: a server that names different survivors to different clients gets no shares
(docs/secure-sums.md lists how many clients may collude with it). Every mask is bound to all keys and to the whole
message of stage 3, so masks of clients that received different keys or messages do not cancel.
"""

import secrets
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import sha256
from hmac import compare_digest
from hmac import digest as hmac_digest
from types import MappingProxyType
from typing import Any, Self

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from numpy.typing import NDArray

from privacy.graph import neighbours, smallest_degree, threshold_of
from privacy.keys import BOX_BYTES, KEY_BYTES, agree, expand, seal, stream, unseal
from privacy.shamir import SHARE_BYTES, join, split

# bytes of a box with two shares
SEALED_BYTES = 2 * SHARE_BYTES + BOX_BYTES
# bytes of a code by which a client vouches for its view of a sum
CODE_BYTES = 16
# With two clients, each would learn the other client's values from the sum.
FEWEST_MEMBERS = 3


class SecureSumError(ValueError):
    """An error: a step of a secure sum was refused, since it would reveal a value or make the sum wrong."""


@dataclass(frozen=True)
class Member:
    """The public side of a client's `Secrets`: two public keys and the hash of the seed, 32 bytes each."""

    mask_key: bytes
    box_key: bytes
    commitment: bytes


@dataclass(frozen=True)
class Secrets:
    """A client's secrets, 32 bytes each: two private keys, and the seed of a stream of masks.

    The mask key and the seed are used in a single sum. The box key may be used in many sums, since boxes are bound to
    their sum by further bytes, and no share of the box key is ever sent.
    """

    mask_key: bytes = field(repr=False)
    box_key: bytes = field(repr=False)
    seed: bytes = field(repr=False)

    @classmethod
    def make(cls, box_key: bytes = b"") -> Self:
        """Draw new secrets from the operating system, except a given box key."""
        fresh = [secrets.token_bytes(KEY_BYTES) for _ in range(3)]
        return cls(fresh[0], box_key or fresh[1], fresh[2])

    def member(self, box_key: bytes = b"") -> Member:
        """Return the public side of the secrets.

        Args:
            box_key: The public key for boxes, if it is already computed. b"": it is computed.
        """
        return Member(_public(self.mask_key), box_key or _public(self.box_key), sha256(self.seed).digest())


@dataclass(frozen=True)
class Group:
    """The public facts of a sum, known to all its clients.

    Attributes:
        members: The public keys and the commitment of each client, by partition id.
        share: The share of a client's neighbours that must stay to unmask it.
        purpose: The run, the round and the exchange, as bytes.

    Raises:
        SecureSumError: There are fewer than `FEWEST_MEMBERS` members, or two of them have the same key.
    """

    members: Mapping[int, Member]
    share: float
    purpose: bytes

    def __post_init__(self) -> None:
        if len(self.members) < FEWEST_MEMBERS:
            raise SecureSumError(f"{len(self.members)} clients; a secure sum needs at least {FEWEST_MEMBERS}")
        keys = [key for member in self.members.values() for key in (member.mask_key, member.box_key)]
        if len(set(keys)) < len(keys):
            raise SecureSumError("two clients sent the same key")

    @cached_property
    def digest(self) -> bytes:
        """A hash of the group. Every key is bound to this hash, so clients with different groups share no key."""
        lines = [self.purpose, repr(self.share).encode()]
        lines += [
            client.to_bytes(4, "big") + member.mask_key + member.box_key + member.commitment
            for client, member in sorted(self.members.items())
        ]
        return sha256(b"".join(sha256(line).digest() for line in lines)).digest()

    @cached_property
    def neighbours(self) -> dict[int, list[int]]:
        """Each client's neighbours, sorted."""
        clients = sorted(self.members)
        return neighbours(clients, smallest_degree(len(clients), self.share), self.digest)

    @cached_property
    def threshold(self) -> int:
        """The number of a client's neighbours that must stay to unmask it."""
        return threshold_of(self.share, len(self.neighbours[min(self.members)]))

    def peers(self, client: int, present: Collection[int]) -> set[int]:
        """Return the neighbours of a client that are in ``present``."""
        return set(self.neighbours[client]).intersection(present)

    def alone(self, present: Collection[int]) -> list[int]:
        """Return the clients in ``present`` that have fewer neighbours in it than the threshold."""
        left = set(present)
        return [client for client in sorted(left) if len(self.peers(client, left)) < self.threshold]


def fewest_in_sum(present: int, share: float) -> int:
    """Return the smallest number of clients whose values are in a sum that can be unmasked.

    Args:
        present: The number of clients that take part.
        share: The share of a client's neighbours that must stay to unmask it.
    """
    return max(FEWEST_MEMBERS, threshold_of(share, min(smallest_degree(present, share), present - 1)))


def agree_on_boxes(
    me: int, own: Secrets, group: Group, known: Mapping[bytes, bytes] = MappingProxyType({})
) -> dict[int, bytes]:
    """Return the secrets of stage 2: for each neighbour 32 bytes that only the client and this neighbour can compute.

    Args:
        me: The client's partition id.
        own: The client's secrets.
        group: The members.
        known: The secrets that are already computed, by the neighbour's box key.
    """
    keys = {peer: group.members[peer].box_key for peer in group.neighbours[me]}
    if known.keys() >= set(keys.values()):  # loading a private key takes as long as agreeing on a secret
        return {peer: known[key] for peer, key in keys.items()}
    private = X25519PrivateKey.from_private_bytes(own.box_key)
    return {peer: known.get(key) or agree(private, key, info=b"boxes") for peer, key in keys.items()}


def share_out(me: int, own: Secrets, group: Group, agreed: Mapping[int, bytes]) -> dict[int, bytes]:
    """Return the boxes of stage 2: for each neighbour `SEALED_BYTES` bytes.

    Args:
        me: The client's partition id.
        own: The client's secrets.
        group: The members.
        agreed: The secrets from `agree_on_boxes`.
    """
    peers = group.neighbours[me]
    seeds = split(own.seed, group.threshold, peers)
    keys = split(own.mask_key, group.threshold, peers)
    boxes = {}
    for peer in peers:
        key, about = _box(agreed[peer], me, peer, group)
        boxes[peer] = seal(key, seeds[peer] + keys[peer], about)
    return boxes


def mask(
    me: int,
    own: Secrets,
    group: Group,
    present: Collection[int],
    elements: NDArray[Any],
    bits: int,
    question: bytes = b"",
) -> NDArray[Any]:
    """Return the masked values of stage 3: (k,) elements of Z_2^bits plus the client's mask.

    Args:
        me: The client's partition id.
        own: The client's secrets.
        group: The members.
        present: The participants: the clients whose boxes have arrived.
        elements: The client's values (k,).
        bits: The bits of an element.
        question: A hash of the message. Masks of clients that received different messages do not cancel.

    Raises:
        SecureSumError: ``present`` includes a client that is not a member, or lacks this client or too many of its
            neighbours.
    """
    members = me in present and set(present) <= group.members.keys()
    if not members or len(peers := group.peers(me, present)) < group.threshold:
        raise SecureSumError(f"{len(present)} clients take part, of which too few are neighbours of client {me}")
    private = X25519PrivateKey.from_private_bytes(own.mask_key)
    keys = {peer: _pair_key(private, me, peer, group, question) for peer in peers}
    block = _own_stream(own.seed, group, question, len(elements), bits)
    masked: NDArray[Any] = elements + block
    for peer, key in keys.items():
        stream(key, len(elements), bits, into=block)
        (np.add if me < peer else np.subtract)(masked, block, out=masked)
    return masked


def view_of(group: Group, question: bytes, present: Collection[int], survivors: Collection[int]) -> bytes:
    """Return a SHA-256 hash of all facts about a sum on which its clients must agree.

    Args:
        group: The members, with the purpose of the sum.
        question: As in `mask`.
        present: As in `mask`.
        survivors: The clients whose values are in the sum.
    """
    parts = [group.digest, question, *(repr(sorted(clients)).encode() for clients in (present, survivors))]
    return sha256(b"".join(sha256(part).digest() for part in parts)).digest()


def vouch(
    me: int,
    agreed: Mapping[int, bytes],
    group: Group,
    question: bytes,
    present: Collection[int],
    survivors: Collection[int],
    min_clients: int = FEWEST_MEMBERS,
) -> dict[int, bytes]:
    """Return the codes of stage 4: `CODE_BYTES` bytes for each surviving neighbour.

    Args:
        me: The client's partition id.
        agreed: The secrets from `agree_on_boxes`.
        group: The members.
        question: As in `mask`.
        present: As in `mask`.
        survivors: The clients whose values are in the sum.
        min_clients: The smallest number of clients in a sum that the site's owner allows.

    Raises:
        SecureSumError: The survivors are too few, did not take part, or include too few neighbours of this client.
    """
    if not set(survivors) <= set(present) or len(set(survivors)) < max(min_clients, FEWEST_MEMBERS):
        raise SecureSumError(f"a sum over {len(survivors)} clients of {len(present)}, allowed: at least {min_clients}")
    peers = group.peers(me, survivors)
    if me not in survivors or len(peers) < group.threshold:
        raise SecureSumError(f"a sum without this client, or with fewer than {group.threshold} of its neighbours")
    view = view_of(group, question, present, survivors)
    return {peer: _code(agreed[peer], me, peer, view) for peer in sorted(peers)}


def reveal(
    me: int,
    agreed: Mapping[int, bytes],
    group: Group,
    question: bytes,
    present: Collection[int],
    survivors: Collection[int],
    codes: Mapping[int, bytes],
    boxes: Mapping[int, bytes],
) -> dict[int, bytes]:
    """Return the shares of stage 5: one share for each neighbour whose box has arrived.

    Args:
        me: The client's partition id.
        agreed: The secrets from `agree_on_boxes`.
        group: The members.
        question: As in `mask`.
        present: As in `mask`.
        survivors: The survivors for which this client has vouched.
        codes: The code by which each neighbour vouches for its view, by the neighbour.
        boxes: The box that each neighbour has sealed for this client, by the neighbour. Invalid boxes are skipped.

    Raises:
        SecureSumError: Fewer neighbours than the threshold vouch for this client's view.
    """
    view, peers = view_of(group, question, present, survivors), group.peers(me, survivors)
    same = [peer for peer in peers if compare_digest(codes.get(peer, b""), _code(agreed[peer], peer, me, view))]
    if len(same) < group.threshold:
        text = f"{len(same)} neighbours have the same view of the sum, allowed: at least"
        raise SecureSumError(f"{text} {group.threshold}")
    shares = {}
    for peer in sorted(set(boxes).intersection(group.neighbours[me], present)):
        key, about = _box(agreed[peer], peer, me, group)
        try:
            content = unseal(key, boxes[peer], about)
        except InvalidTag:  # a box of another sum, or junk: the server will report that its sender lacks shares
            continue
        shares[peer] = content[:SHARE_BYTES] if peer in survivors else content[SHARE_BYTES:]
    return shares


def unmask(
    group: Group,
    present: Collection[int],
    uploads: Mapping[int, NDArray[Any]],
    revealed: Mapping[int, Mapping[int, bytes]],
    bits: int,
    question: bytes = b"",
) -> NDArray[Any]:
    """Return the sum (k,) of the clients' unmasked values.

    Args:
        group: The members.
        present: The clients that took part in stage 3.
        uploads: The masked values (k,) of each surviving client, by partition id.
        revealed: The shares, by the client that revealed them in stage 5, then by the neighbour that owns the secret.
        bits: The bits of an element.
        question: The hash of the message of stage 3.

    Raises:
        SecureSumError: Fewer than `FEWEST_MEMBERS` values arrived, or shares are missing or wrong. The error names the
            client whose secret cannot be restored.
    """
    if len(uploads) < FEWEST_MEMBERS:
        raise SecureSumError(f"only {len(uploads)} clients sent values, but a secure sum needs {FEWEST_MEMBERS}")
    total: NDArray[Any] = sum(uploads.values(), np.zeros(1, f"uint{bits}"))
    for owner in sorted(present):
        near = revealed.keys() & set(group.neighbours[owner])
        shares = {holder: revealed[holder][owner] for holder in near if owner in revealed[holder]}
        arrived, member = owner in uploads, group.members[owner]
        what = "seed" if arrived else "mask key"
        if len(shares) < group.threshold:
            silent = ", ".join(str(peer) for peer in group.neighbours[owner] if peer not in revealed)
            raise SecureSumError(
                f"partition {owner}: {len(shares)} shares of its {what}, needed: {group.threshold}; "
                f"no answer from partitions {silent}"
            )
        try:
            secret = join(shares)
        except ValueError:
            secret = b""
        expected = member.commitment if arrived else member.mask_key
        if not secret or (sha256(secret).digest() if arrived else _public(secret)) != expected:
            raise SecureSumError(f"partition {owner}: the shares of its {what} are wrong, from {sorted(shares)}")
        if arrived:
            total -= _own_stream(secret, group, question, len(total), bits)
            continue
        private = X25519PrivateKey.from_private_bytes(secret)
        for peer in group.peers(owner, uploads):
            shared = stream(_pair_key(private, owner, peer, group, question), len(total), bits)
            (np.subtract if peer < owner else np.add)(total, shared, out=total)
    return total


def _public(private: bytes) -> bytes:
    return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def _own_stream(seed: bytes, group: Group, question: bytes, count: int, bits: int) -> NDArray[Any]:
    return stream(expand(seed, b"own mask" + group.digest + question), count, bits)


def _pair_key(private: X25519PrivateKey, owner: int, peer: int, group: Group, question: bytes) -> bytes:
    own, peer_key = (group.members[client].mask_key for client in (owner, peer))
    return agree(private, peer_key, info=b"pair's mask" + group.digest + question, own_public=own)


def _code(agreed: bytes, sender: int, receiver: int, view: bytes) -> bytes:
    """Return the code by which a sender vouches for a view. The agreed secret is the key of no other HMAC."""
    text = b"view" + sender.to_bytes(4, "big") + receiver.to_bytes(4, "big") + view
    return hmac_digest(agreed, text, "sha256")[:CODE_BYTES]


def _box(agreed: bytes, sender: int, receiver: int, group: Group) -> tuple[bytes, bytes]:
    """Return the key of a box, and the bytes that bind it to its sender and its receiver."""
    about = group.digest + sender.to_bytes(4, "big") + receiver.to_bytes(4, "big")
    return expand(agreed, about), about
