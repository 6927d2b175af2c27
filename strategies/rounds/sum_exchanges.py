"""The exchanges of a secure sum: its four stages, and the exchange whose replies are masked values."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from flwr.app import ConfigRecord, Message, MessageType, RecordDict

from payloads.flower_internals import readdress
from payloads.record import FloatArray, PayloadError
from payloads.secure_sum import Boxes, MaskedValues, PublicKeys, Views
from payloads.wire import PAYLOAD, count_bytes, need
from privacy.keys import agree
from privacy.secure_sum import Group
from strategies.rounds.exchange import Exchange

# a private key with which the server tests whether a client's public key is valid
_PROBE = X25519PrivateKey.generate()


@lru_cache(maxsize=2**12)
def _try_key(key: bytes) -> None:
    """Raise `ValueError` unless the bytes are a valid public key. Cached, since clients reuse their box keys."""
    agree(_PROBE, key, info=b"")


@dataclass(eq=False)
class StageExchange(Exchange):
    """The exchange of one stage: every client gets its own message, and failed clients are not replaced.

    Attributes:
        contents: The records of each message, by partition id.
        group: The members of the sum. None: the members are not yet known.
        survivors: The partition ids of the members whose values have arrived.
        seen: The keys that clients have sent.
    """

    contents: Mapping[int, RecordDict] = field(kw_only=True)
    group: Group | None = field(kw_only=True)
    survivors: Sequence[int] = field(kw_only=True)
    seen: set[bytes] = field(default_factory=set)
    replaces = False

    def write(self, clients: Sequence[int]) -> list[Message]:
        first, ids = Message(RecordDict(), dst_node_id=0, message_type=MessageType.TRAIN), self.roster.node_ids
        written = [readdress(first, ids[client], self.contents[client]) for client in clients]
        self.report.bytes_down += sum(count_bytes(self.contents[client]) for client in clients)
        self.sent.append((clients, written))
        return written

    def limits(self, client: int) -> Mapping[str, int]:
        return {"k": 0 if self.group is None else len(self.group.members)}

    def check_payload(self, client: int, payload: Any) -> None:
        if isinstance(payload, PublicKeys):
            keys = {payload.mask_key.tobytes(), payload.box_key.tobytes()}
            if self.seen.intersection(keys) or len(keys) < 2:
                raise PayloadError("PublicKeys: got a key that another client has sent, or the same key twice")
            for key in keys:
                try:
                    _try_key(key)
                except ValueError as error:
                    raise PayloadError(f"PublicKeys: {error}") from None
            self.seen |= keys
        group = self.group
        if isinstance(payload, Boxes) and group and sorted(payload.holders.tolist()) != group.neighbours[client]:
            raise PayloadError(f"Boxes.holders: got {payload.holders.tolist()}, expected the client's neighbours")
        if isinstance(payload, Views) and group:
            expected = sorted(group.peers(client, self.survivors))
            if payload.receivers.tolist() != expected:
                raise PayloadError(f"Views.receivers: got {payload.receivers.tolist()}, expected {expected}")


@dataclass(eq=False)
class MaskedExchange(Exchange):
    """The exchange of stage 3, whose replies carry masked values instead of a model and a payload.

    Attributes:
        max_elements: The maximum number of elements of a reply.
        bits: The bits of an element.
    """

    max_elements: int = field(kw_only=True)
    bits: int = field(kw_only=True)
    replaces = False
    summed = True

    @property
    def expected(self) -> set[str]:
        return {PAYLOAD}

    def read_values(self, client: int, records: RecordDict) -> tuple[list[FloatArray], Any]:
        limits = {"v": self.max_elements, "f": 64}
        masked = MaskedValues.from_record(need(records, PAYLOAD, ConfigRecord), limits=limits)
        if (bits := 8 * masked.elements.dtype.itemsize) != self.bits:
            raise PayloadError(f"MaskedValues.elements: got {bits} bits, expected {self.bits}")
        if masked.lengths.min(initial=0) < 0 or masked.lengths.sum() != len(masked.elements):
            got = f"{masked.lengths.tolist()} for {len(masked.elements)} elements"
            raise PayloadError(f"MaskedValues.lengths: got {got}")
        return [], masked
