"""The messages of a secure sum, in which the server learns only the sum of the clients' values.

`privacy.secure_sum` explains the five stages. Clients are named by their partition ids.
"""

import dataclasses
from collections.abc import Mapping
from functools import lru_cache
from hashlib import sha256
from typing import Literal, Self

import numpy as np
from numpy.typing import NDArray

from payloads.record import IntArray, Payload, array, specs_of
from privacy.keys import KEY_BYTES
from privacy.ring import Ring
from privacy.secure_sum import CODE_BYTES, SEALED_BYTES, Member
from privacy.shamir import SHARE_BYTES

ByteArray = NDArray[np.uint8]
# the stages; the replies of the third stage, VALUES, are summed
KEYS, BOXES, VALUES, VIEWS, SHARES = STAGES = ("keys", "boxes", "values", "views", "shares")
# the name of a round's main exchange, which has no phase
OWN_EXCHANGE = "its own exchange"


def purpose_of(server_round: int, phase: str, number: int, settings: bytes) -> bytes:
    """Return the purpose of a sum: bytes that identify the sum, and differ from the bytes of any other sum.

    Args:
        server_round: The round's number.
        phase: The exchange's name. "": the round's main exchange.
        number: The sum's number, counted over the run.
        settings: A hash of the run config.
    """
    return f"round {server_round}, {phase or OWN_EXCHANGE}, sum {number}, run config {settings.hex()}".encode()


def hash_settings(run_config: Mapping[str, bool | float | int | str]) -> bytes:
    """Return a SHA-256 hash of a run config, which is the same at all nodes of a run.

    Args:
        run_config: The flat run config that Flower passes to the app.
    """
    items = sorted((key, repr(value)) for key, value in run_config.items())
    return sha256(repr(items).encode()).digest()


@dataclasses.dataclass(frozen=True, eq=False)
class PublicKeys(Payload):
    """A client's reply in stage 1: its `Member`, and the hash of the run config that its node received."""

    mask_key: ByteArray = array(KEY_BYTES, kind="bytes")
    box_key: ByteArray = array(KEY_BYTES, kind="bytes")
    commitment: ByteArray = array(KEY_BYTES, kind="bytes")
    settings: ByteArray = array(KEY_BYTES, kind="bytes")

    @classmethod
    def of(cls, member: Member, settings: bytes) -> Self:
        """Return the record of a member.

        Args:
            member: The member.
            settings: The hash from `hash_settings`.
        """
        values = {**vars(member), "settings": settings}
        return cls(**{name: np.frombuffer(value, np.uint8) for name, value in values.items()})

    def member(self) -> Member:
        """Return the member of the record."""
        return Member(self.mask_key.tobytes(), self.box_key.tobytes(), self.commitment.tobytes())


@dataclasses.dataclass(frozen=True, eq=False)
class Members(Payload):
    """The server's message in stage 2: each client's `Member`."""

    clients: IntArray = array("n", kind="int")
    mask_keys: ByteArray = array("n", KEY_BYTES, kind="bytes")
    box_keys: ByteArray = array("n", KEY_BYTES, kind="bytes")
    commitments: ByteArray = array("n", KEY_BYTES, kind="bytes")

    @classmethod
    def of(cls, members: Mapping[int, Member]) -> Self:
        """Return the record of members, given by partition id."""
        keys = np.frombuffer(b"".join(b"".join(vars(member).values()) for member in members.values()), np.uint8)
        parts = keys.reshape(-1, 3, KEY_BYTES).transpose(1, 0, 2)
        return cls(clients=np.array(list(members)), mask_keys=parts[0], box_keys=parts[1], commitments=parts[2])


@dataclasses.dataclass(frozen=True, eq=False)
class Boxes(Payload):
    """A client's reply in stage 2: a box (encrypted shares of its secrets) for each neighbour."""

    holders: IntArray = array("k", kind="int")
    boxes: ByteArray = array("k", SEALED_BYTES, kind="bytes")


@dataclasses.dataclass(frozen=True, eq=False)
class Present(Payload):
    """A record in the server's message of stage 3: the participants, whose boxes have arrived."""

    clients: IntArray = array("n", kind="int")


@dataclasses.dataclass(frozen=True, eq=False)
class MaskedValues(Payload):
    """A client's reply in stage 3: the masked elements of all parts, concatenated, and each part's length.

    The parts are the arrays of the model and of the payload. An absent part has length 0.
    """

    elements: IntArray = array("v", kind="int")
    lengths: IntArray = array("f", kind="int")


@dataclasses.dataclass(frozen=True, eq=False)
class Survivors(Payload):
    """The server's message in stage 4: the survivors, whose values have arrived."""

    clients: IntArray = array("n", kind="int")


@dataclasses.dataclass(frozen=True, eq=False)
class Views(Payload):
    """A client's reply in stage 4: for each surviving neighbour, a code that confirms the client's view of the sum."""

    receivers: IntArray = array("k", kind="int")
    codes: ByteArray = array("k", CODE_BYTES, kind="bytes")


@dataclasses.dataclass(frozen=True, eq=False)
class Evidence(Payload):
    """The server's message in stage 5: the codes and the boxes that neighbours have made for the client.

    Attributes:
        vouchers: The senders of the codes.
        codes: The codes.
        senders: The senders of the boxes.
        boxes: The boxes.
    """

    vouchers: IntArray = array("m", kind="int")
    codes: ByteArray = array("m", CODE_BYTES, kind="bytes")
    senders: IntArray = array("k", kind="int")
    boxes: ByteArray = array("k", SEALED_BYTES, kind="bytes")


@dataclasses.dataclass(frozen=True, eq=False)
class Shares(Payload):
    """A client's reply in stage 5: shares of its neighbours' secrets, with the owners of the secrets."""

    owners: IntArray = array("k", kind="int")
    shares: ByteArray = array("k", SHARE_BYTES, kind="bytes")


def rows_of(numbers: Mapping[int, bytes], width: int) -> tuple[IntArray, ByteArray]:
    """Return a mapping from clients to bytes as two arrays: the clients (k,), and their bytes (k, width)."""
    clients = np.array(list(numbers), dtype=np.int64)
    return clients, np.frombuffer(b"".join(numbers.values()), np.uint8).reshape(-1, width)


def by_client(clients: IntArray, rows: ByteArray) -> dict[int, bytes]:
    """Return the inverse of `rows_of`."""
    return {int(client): row.tobytes() for client, row in zip(clients, rows, strict=True)}


def own_values(record: type[Payload] | None) -> list[str]:
    """Return the names of a record's fields of which the server needs each client's value, not only a sum."""
    return [] if record is None else [name for name, spec in specs_of(record).items() if not spec.combined]


@lru_cache(maxsize=16)
def make_ring(dtype: str, limit: float, terms: int) -> Ring:
    """Return the ring for a sum of floats. Its elements have as many bits as the numbers of the model.

    Args:
        dtype: The model's number type.
        limit: The largest absolute value of a term.
        terms: The largest number of terms.
    """
    bits: Literal[32, 64] = 64 if dtype == "float64" else 32
    # a term may be rounded up to the limit
    return Ring.fitting(bits, np.nextafter(limit, np.inf), terms)
