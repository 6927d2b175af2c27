"""The messages of a secure sum (`privacy.secure_sum`)."""

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
# the stages; the replies of the third stage are summed
KEYS, BOXES, VALUES, VIEWS, SHARES = STAGES = ("keys", "boxes", "values", "views", "shares")
# the exchange of a round that has no phase
OWN_EXCHANGE = "its own exchange"


def purpose_of(server_round: int, phase: str, number: int, settings: bytes) -> bytes:
    """Return the purpose of a sum, which no other exchange of any run has.

    Args:
        server_round: The round's number.
        phase: The exchange's name; "" for a round's own exchange.
        number: The sum's number, counted over the run.
        settings: A hash of the run config.
    """
    return f"round {server_round}, {phase or OWN_EXCHANGE}, sum {number}, run config {settings.hex()}".encode()


def hash_settings(run_config: Mapping[str, bool | float | int | str]) -> bytes:
    """Return a SHA-256 hash of a run config, which is the same at all nodes of a run.

    Args:
        run_config: The flat run config, as Flower hands it to the app.
    """
    items = sorted((key, repr(value)) for key, value in run_config.items())
    return sha256(repr(items).encode()).digest()


@dataclasses.dataclass(frozen=True, eq=False)
class PublicKeys(Payload):
    """Up, stage 1: a `Member`, and the hash of the run config that its node received."""

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
    """Down, stage 2: each client's `Member`, in order of the clients' clients."""

    clients: IntArray = array("n", kind="int")
    mask_keys: ByteArray = array("n", KEY_BYTES, kind="bytes")
    box_keys: ByteArray = array("n", KEY_BYTES, kind="bytes")
    commitments: ByteArray = array("n", KEY_BYTES, kind="bytes")

    @classmethod
    def of(cls, members: Mapping[int, Member]) -> Self:
        """Return the record of some members."""
        keys = np.frombuffer(b"".join(b"".join(vars(one).values()) for one in members.values()), np.uint8)
        parts = keys.reshape(-1, 3, KEY_BYTES).transpose(1, 0, 2)
        return cls(clients=np.array(list(members)), mask_keys=parts[0], box_keys=parts[1], commitments=parts[2])


@dataclasses.dataclass(frozen=True, eq=False)
class Boxes(Payload):
    """Up, stage 2: a box for each neighbour."""

    holders: IntArray = array("k", kind="int")
    boxes: ByteArray = array("k", SEALED_BYTES, kind="bytes")


@dataclasses.dataclass(frozen=True, eq=False)
class Present(Payload):
    """Down, stage 3, in addition to the message's other records: the clients whose boxes have arrived."""

    clients: IntArray = array("n", kind="int")


@dataclasses.dataclass(frozen=True, eq=False)
class MaskedValues(Payload):
    """Up, stage 3: the elements of all parts one after another, and each part's length. An absent part has length 0."""

    elements: IntArray = array("v", kind="int")
    lengths: IntArray = array("f", kind="int")


@dataclasses.dataclass(frozen=True, eq=False)
class Survivors(Payload):
    """Down, stage 4: the clients whose values have arrived."""

    clients: IntArray = array("n", kind="int")


@dataclasses.dataclass(frozen=True, eq=False)
class Views(Payload):
    """Up, stage 4: for each surviving neighbour, the code that vouches for the client's view of the sum."""

    receivers: IntArray = array("k", kind="int")
    codes: ByteArray = array("k", CODE_BYTES, kind="bytes")


@dataclasses.dataclass(frozen=True, eq=False)
class Evidence(Payload):
    """Down, stage 5: the codes for the client and the boxes for it, each by their senders."""

    vouchers: IntArray = array("m", kind="int")
    codes: ByteArray = array("m", CODE_BYTES, kind="bytes")
    senders: IntArray = array("k", kind="int")
    boxes: ByteArray = array("k", SEALED_BYTES, kind="bytes")


@dataclasses.dataclass(frozen=True, eq=False)
class Shares(Payload):
    """Up, stage 5: shares, by the owners of the secrets."""

    owners: IntArray = array("k", kind="int")
    shares: ByteArray = array("k", SHARE_BYTES, kind="bytes")


def rows_of(numbers: Mapping[int, bytes], width: int) -> tuple[IntArray, ByteArray]:
    """Return the keys (k,) of a mapping and its values (k, width), in the form of the records' fields."""
    clients = np.array(list(numbers), dtype=np.int64)
    return clients, np.frombuffer(b"".join(numbers.values()), np.uint8).reshape(-1, width)


def by_client(clients: IntArray, rows: ByteArray) -> dict[int, bytes]:
    """Return the inverse of `rows_of`."""
    return {int(client): row.tobytes() for client, row in zip(clients, rows, strict=True)}


def own_values(record: type[Payload] | None) -> list[str]:
    """Return the names of the fields of which the server needs each client's value, not a sum over clients."""
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
