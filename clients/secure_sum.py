"""A client's side of secure sums (`privacy.secure_sum`): one answer to each stage, with a memory between messages.

The memory lies in the node's Flower context, as a client's other memory does, and is never written to a disk.
"""

import dataclasses
from functools import lru_cache
from typing import Any

import numpy as np
from flwr.app import RecordDict

from payloads.flower_internals import values_of
from payloads.record import IntArray, Payload, array
from payloads.secure_sum import (
    BOXES,
    KEYS,
    SHARES,
    STAGES,
    VALUES,
    Boxes,
    ByteArray,
    MaskedValues,
    Members,
    Present,
    PublicKeys,
    Shares,
    Survivors,
    by_place,
    rows_of,
)
from privacy.keys import KEY_BYTES
from privacy.ring import Ring
from privacy.secure_sum import (
    FEWEST_MEMBERS,
    SEALED_BYTES,
    Group,
    Secrets,
    SecureSumError,
    agree_on_boxes,
    mask,
    reveal,
    share_out,
)
from privacy.shamir import SHARE_BYTES

# records in the node's context
MEMORY, BOX_KEYS = "secure-sum", "secure-sum-boxes"
# what the server sends in each stage
QUESTIONS: dict[str, type[Payload] | None] = {KEYS: None, BOXES: Members, SHARES: Survivors}


@dataclasses.dataclass(frozen=True)
class Demands:
    """What a site's owner demands of a sum.

    Attributes:
        fewest: how many clients it must have, or its terms are not unmasked.
        box_key: the site's own private key for boxes; b"": a new one in every run.
        peers: the box keys of the sites that may take part; empty: any.
    """

    fewest: int = FEWEST_MEMBERS
    box_key: bytes = dataclasses.field(default=b"", repr=False)
    peers: frozenset[bytes] = frozenset()

    def check_members(self, group: Group, me: int) -> None:
        """Check that all others are known; who has another's key cannot open the boxes for it.

        Raises:
            SecureSumError: names the first that is not.
        """
        for place, member in group.members.items() if self.peers else ():
            if place != me and member.box_key not in self.peers:
                raise SecureSumError(f"partition {place} has none of the keys in this site's sum-peers")


@dataclasses.dataclass(frozen=True, eq=False)
class BoxKeys(Payload):
    """What a client keeps from sum to sum.

    Attributes:
        own: its private key for boxes.
        keys, agreed: the public keys of others, and the secrets that it has agreed on with them.
    """

    own: ByteArray | None = array(KEY_BYTES, kind="bytes", optional=True, secret=True)
    keys: ByteArray | None = array("k", KEY_BYTES, kind="bytes", optional=True)
    agreed: ByteArray | None = array("k", KEY_BYTES, kind="bytes", optional=True, secret=True)

    def by_key(self) -> dict[bytes, bytes]:
        """Return public key -> secret."""
        if self.keys is None or self.agreed is None:
            return {}
        return {key.tobytes(): secret.tobytes() for key, secret in zip(self.keys, self.agreed, strict=True)}


@dataclasses.dataclass(frozen=True, eq=False)
class SumMemory(Payload):
    """What a client remembers of the sum that it takes part in.

    Attributes:
        number: of the sum, counted over the run.
        answered: how many stages it has answered.
        purpose: of the sum, see `payloads.secure_sum.purpose_of`.
        mask_key, seed: of its `Secrets`; none after the last stage.
        places, mask_keys, box_keys, commitments: the members, from stage 2 on.
        present: who takes part, from stage 3 on.
    """

    number: IntArray = array(1, kind="int")
    answered: IntArray = array(1, kind="int")
    purpose: ByteArray = array("p", kind="bytes")
    mask_key: ByteArray | None = array(KEY_BYTES, kind="bytes", optional=True, secret=True)
    seed: ByteArray | None = array(KEY_BYTES, kind="bytes", optional=True, secret=True)
    places: IntArray | None = array("n", kind="int", optional=True)
    mask_keys: ByteArray | None = array("n", KEY_BYTES, kind="bytes", optional=True)
    box_keys: ByteArray | None = array("n", KEY_BYTES, kind="bytes", optional=True)
    commitments: ByteArray | None = array("n", KEY_BYTES, kind="bytes", optional=True)
    present: IntArray | None = array("m", kind="int", optional=True)


class SumClient:
    """A client in a secure sum.

    Args:
        me: its place.
        number: of the sum, counted over the run: no client takes part in an earlier one again.
        purpose: of the sum; see `payloads.secure_sum.purpose_of`.
        state: of the node's context.
        share: of a client's neighbours, that must be left to unmask it.
        demands: of the site's owner.
    """

    def __init__(self, me: int, number: int, purpose: bytes, state: RecordDict, share: float, demands: Demands) -> None:
        self.me, self.number, self.purpose, self.share, self.demands = me, number, purpose, share, demands
        self._records = values_of(state)

    def answer(self, stage: str, question: Any) -> Payload:
        """Answer one of the stages `KEYS`, `BOXES` and `SHARES`.

        Args:
            question: of the type in `QUESTIONS`.

        Raises:
            SecureSumError: the stages come out of order or twice, or the answer would endanger the client's values.
        """
        if stage == KEYS:
            return self._tell_keys()
        return self._share_out(question) if stage == BOXES else self._reveal(question)

    def mask(self, values: MaskedValues, ring: Ring, asked: Present, question: bytes) -> MaskedValues:
        """Answer the stage `VALUES`: return the client's values under its mask.

        Args:
            values: from `payloads.secure_sum.pack`.
            asked: who takes part.
            question: a hash of the whole message; see `payloads.wire.digest`.

        Raises:
            SecureSumError: as for `answer`.
        """
        memory = self._recall(VALUES)
        self._keep(memory, VALUES, present=asked.places)
        present, elements = set(asked.places.tolist()), values.elements.view(ring.dtype)
        if len(present) < len(asked.places):
            raise SecureSumError("a client is named twice among those that take part")
        masked = mask(self.me, self._secrets(memory), self._group(memory), present, elements, ring.bits, question)
        return dataclasses.replace(values, elements=masked.view(f"int{ring.bits}"))

    def _tell_keys(self) -> Payload:
        before = self._records.get(MEMORY)
        if before is not None and SumMemory.from_record(before).number[0] >= self.number:
            raise SecureSumError(f"sum {self.number} was asked for again")
        kept = self._boxes()
        own = Secrets.make(self.demands.box_key or (b"" if kept.own is None else kept.own.tobytes()))
        if kept.own is None or kept.own.tobytes() != own.box_key:
            self._records[BOX_KEYS] = BoxKeys(own=_bytes(own.box_key)).to_record()
        memory = SumMemory(number=np.array([self.number]), answered=np.array([0]), purpose=_bytes(self.purpose))
        self._keep(memory, KEYS, mask_key=_bytes(own.mask_key), seed=_bytes(own.seed))
        return PublicKeys.of(own.member())

    def _share_out(self, question: Members) -> Payload:
        memory = dataclasses.replace(self._recall(BOXES), **question.arrays())
        group, own, kept = self._group(memory), self._secrets(memory), self._boxes()
        if group.members.get(self.me) != own.member():
            raise SecureSumError(f"the members' keys are not those that partition {self.me} has told")
        self.demands.check_members(group, self.me)
        agreed = agree_on_boxes(self.me, own, group, kept.by_key())
        self._keep(memory, BOXES)
        _, secrets = rows_of(agreed, KEY_BYTES)
        keys = np.stack([_bytes(group.members[peer].box_key) for peer in agreed])
        self._records[BOX_KEYS] = BoxKeys(own=kept.own, keys=keys, agreed=secrets).to_record()
        holders, boxes = rows_of(share_out(self.me, own, group, agreed), SEALED_BYTES)
        return Boxes(holders=holders, boxes=boxes)

    def _reveal(self, question: Survivors) -> Payload:
        memory = self._recall(SHARES)
        assert memory.present is not None
        group, own = self._group(memory), self._secrets(memory)
        agreed = agree_on_boxes(self.me, own, group, self._boxes().by_key())
        self._keep(memory, SHARES, mask_key=None, seed=None)
        present, survivors = set(memory.present.tolist()), set(question.places.tolist())
        sealed = by_place(question.senders, question.boxes)
        told = reveal(self.me, agreed, group, present, survivors, sealed, self.demands.fewest)
        owners, shares = rows_of(told, SHARE_BYTES)
        return Shares(owners=owners, shares=shares)

    def _secrets(self, memory: SumMemory) -> Secrets:
        kept = self._boxes()
        if memory.mask_key is None or memory.seed is None or kept.own is None:
            raise SecureSumError("the secrets of this sum are gone")
        return Secrets(memory.mask_key.tobytes(), kept.own.tobytes(), memory.seed.tobytes())

    def _group(self, memory: SumMemory) -> Group:
        parts = (memory.places, memory.mask_keys, memory.box_keys, memory.commitments)
        return _make_group(*(b"" if part is None else part.tobytes() for part in parts), self.share, self.purpose)

    def _boxes(self) -> BoxKeys:
        record = self._records.get(BOX_KEYS)
        return BoxKeys() if record is None else BoxKeys.from_record(record)

    def _recall(self, stage: str) -> SumMemory:
        record = self._records.get(MEMORY)
        memory = None if record is None else SumMemory.from_record(record)
        if memory is None or memory.purpose.tobytes() != self.purpose or memory.answered[0] != STAGES.index(stage):
            raise SecureSumError(f"secure sum, {self.purpose.decode()}: stage {stage!r} was asked out of turn or twice")
        return memory

    def _keep(self, memory: SumMemory, answered: str, **changes: Any) -> None:
        changes["answered"] = np.array([STAGES.index(answered) + 1])
        self._records[MEMORY] = dataclasses.replace(memory, **changes).to_record()


def _bytes(value: bytes) -> ByteArray:
    return np.frombuffer(value, np.uint8)


@lru_cache(maxsize=4)
def _make_group(
    places: bytes, mask_keys: bytes, box_keys: bytes, commitments: bytes, share: float, purpose: bytes
) -> Group:
    """The group that stage 2 has told; clients that share a process share it."""
    rows = (np.frombuffer(keys, np.uint8).reshape(-1, KEY_BYTES) for keys in (mask_keys, box_keys, commitments))
    names = ("mask_keys", "box_keys", "commitments")
    told = Members(places=np.frombuffer(places, np.int64), **dict(zip(names, rows, strict=True)))
    return Group(told.members(), share, purpose)
