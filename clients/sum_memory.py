"""A client's memory of secure sums (`clients.secure_sum`) and its form in the node's Flower context."""

import dataclasses
from typing import Any, Self

import numpy as np
from flwr.app import ConfigRecord

from payloads.flower_internals import values_of
from payloads.record import IntArray
from privacy.keys import KEY_BYTES
from privacy.secure_sum import SecureSumError


def _field(width: int = KEY_BYTES, *, secret: bool = False) -> Any:
    """Declare a field of a client's memory: rows of ``width`` bytes."""
    return dataclasses.field(default=b"", repr=not secret, metadata={"width": width})


@dataclasses.dataclass(frozen=True)
class SumMemory:
    """A client's memory of the sum that it takes part in, and of its boxes from sum to sum.

    Attributes:
        number: The sum's number, counted over the run.
        answered: The number of stages that the client has answered.
        purpose: The sum's purpose, see `payloads.secure_sum.purpose_of`.
        run: The run's id, since Flower may pass the context of one run to the next.
        mask_key, seed: The keys of the client's `Secrets`. Empty after the last stage.
        box_key, public: The private and the public key for boxes.
        peers, agreed: The other clients' public keys, and the secrets agreed on with them, in the same order.
        clients, mask_keys, box_keys, commitments: The members, from stage 2 on. In stage 1, only the client itself.
        present: The participants, from stage 3 on.
        question: The hash of the message of stage 3.
        survivors: The clients for which this client has vouched, from stage 4 on.
    """

    number: int
    answered: int
    purpose: bytes = _field(1)
    run: bytes = _field(1)
    mask_key: bytes = _field(secret=True)
    seed: bytes = _field(secret=True)
    box_key: bytes = _field(secret=True)
    public: bytes = _field()
    peers: bytes = _field()
    agreed: bytes = _field(secret=True)
    clients: bytes = _field(8)
    mask_keys: bytes = _field()
    box_keys: bytes = _field()
    commitments: bytes = _field()
    present: bytes = _field(8)
    question: bytes = _field()
    survivors: bytes = _field(8)

    @classmethod
    def of(cls, record: ConfigRecord) -> Self:
        """Read the memory from a record of the context.

        Raises:
            SecureSumError: The record is damaged. The text names the field.
        """
        values = values_of(record)
        for name, kind, width in _LAYOUT:
            value = values.get(name)
            if type(value) is not kind or (isinstance(value, bytes) and len(value) % width):
                raise SecureSumError(f"this node's memory of its secure sums is damaged: {name}")
        return cls(**values)

    def by_key(self) -> dict[bytes, bytes]:
        """Return the agreed secrets, by the other client's public key."""
        return dict(zip(split_keys(self.peers), split_keys(self.agreed), strict=True))


# each field of a memory: its name, its type, and the bytes of a row
_LAYOUT = [(field.name, field.type, field.metadata.get("width", 0)) for field in dataclasses.fields(SumMemory)]


def pack(clients: IntArray | list[int]) -> bytes:
    """Return partition ids as bytes."""
    return np.asarray(clients, np.int64).tobytes()


def unpack(clients: bytes) -> set[int]:
    """Return the set of partition ids in bytes from `pack`."""
    return set(np.frombuffer(clients, np.int64).tolist())


def split_keys(keys: bytes) -> list[bytes]:
    """Return the keys, of `KEY_BYTES` bytes each, in concatenated bytes."""
    return [keys[begin : begin + KEY_BYTES] for begin in range(0, len(keys), KEY_BYTES)]
