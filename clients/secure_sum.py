"""A client's side of secure sums (`privacy.secure_sum`): one answer to each stage, with a memory between messages.

The memory lies in the node's Flower context, as a client's other memory does, and is never written to a disk.
"""

import dataclasses
from typing import Any, Self

import numpy as np
from flwr.app import ConfigRecord, RecordDict

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
from payloads.settings import PrivacySettings
from payloads.wire import find
from privacy.keys import KEY_BYTES
from privacy.ring import Ring
from privacy.secure_sum import SEALED_BYTES, Group, Secrets, SecureSumError, agree_on_boxes, mask, reveal, share_out
from privacy.shamir import SHARE_BYTES

MEMORY = "secure-sum"
# what the server sends in each stage
QUESTIONS: dict[str, type[Payload] | None] = {KEYS: None, BOXES: Members, SHARES: Survivors}


@dataclasses.dataclass(frozen=True, eq=False)
class SumMemory(Payload):
    """What a client remembers of the sum that it takes part in.

    Attributes:
        answered: how many stages it has answered.
        purpose: of the sum, see `payloads.secure_sum.purpose_of`.
        secrets: its `Secrets`; none after the last stage.
        places, mask_keys, box_keys, commitments: the members, from stage 2 on.
        peers, agreed: from stage 2 on, what it has agreed on with each neighbour, for their boxes.
        present: who takes part, from stage 3 on.
    """

    answered: IntArray = array(1, kind="int")
    purpose: ByteArray = array("p", kind="bytes")
    secrets: ByteArray | None = array(3, KEY_BYTES, kind="bytes", optional=True, secret=True)
    places: IntArray | None = array("n", kind="int", optional=True)
    mask_keys: ByteArray | None = array("n", KEY_BYTES, kind="bytes", optional=True)
    box_keys: ByteArray | None = array("n", KEY_BYTES, kind="bytes", optional=True)
    commitments: ByteArray | None = array("n", KEY_BYTES, kind="bytes", optional=True)
    peers: IntArray | None = array("k", kind="int", optional=True)
    agreed: ByteArray | None = array("k", KEY_BYTES, kind="bytes", optional=True, secret=True)
    present: IntArray | None = array("m", kind="int", optional=True)

    @classmethod
    def begin(cls, purpose: bytes, secrets: Secrets) -> Self:
        """Return the memory after stage 1."""
        rows = np.frombuffer(b"".join(vars(secrets).values()), np.uint8).reshape(3, KEY_BYTES)
        return cls(answered=np.array([1]), purpose=np.frombuffer(purpose, np.uint8), secrets=rows)

    def unpack_secrets(self) -> Secrets:
        """Return the client's secrets.

        Raises:
            SecureSumError: they are gone.
        """
        if self.secrets is None:
            raise SecureSumError("the secrets of this sum are gone")
        return Secrets(*(row.tobytes() for row in self.secrets))

    def group(self, share: float) -> Group:
        """Return the group of the members that stage 2 has told."""
        members = Members(**{name: getattr(self, name) for name in ("places", "mask_keys", "box_keys", "commitments")})
        return Group(members.members(), share, self.purpose.tobytes())


def answer_stage(
    stage: str, purpose: bytes, question: Any, state: RecordDict, me: int, settings: PrivacySettings, fewest: int
) -> Payload:
    """Answer one of the stages `KEYS`, `BOXES` and `SHARES`.

    Args:
        question: of the type in `QUESTIONS`.
        state: of the node's context.
        me: the client's place.
        fewest: how many clients a sum must have, or its terms are not unmasked.

    Raises:
        SecureSumError: the stages come out of order or twice, or the answer would endanger the client's values.
    """
    if stage == KEYS:
        own = Secrets.make()
        _keep(state, SumMemory.begin(purpose, own))
        return PublicKeys.of(own.member())
    memory = _recall(state, purpose, stage)
    if stage == BOXES:
        memory = dataclasses.replace(memory, **question.arrays())
        group, own = memory.group(settings.secure_threshold), memory.unpack_secrets()
        if group.members.get(me) != own.member():
            raise SecureSumError(f"the members' keys are not those that partition {me} has told")
        agreed = agree_on_boxes(me, own, group)
        peers, rows = rows_of(agreed, KEY_BYTES)
        _keep(state, dataclasses.replace(_after(memory, BOXES), peers=peers, agreed=rows))
        holders, boxes = rows_of(share_out(me, own, group, agreed), SEALED_BYTES)
        return Boxes(holders=holders, boxes=boxes)
    assert memory.present is not None
    if memory.peers is None or memory.agreed is None:
        raise SecureSumError("the secrets of this sum are gone")
    group, sealed = memory.group(settings.secure_threshold), by_place(question.senders, question.boxes)
    present, survivors = set(memory.present.tolist()), set(question.places.tolist())
    _keep(state, dataclasses.replace(_after(memory, SHARES), secrets=None, peers=None, agreed=None))
    owners, shares = rows_of(
        reveal(me, by_place(memory.peers, memory.agreed), group, present, survivors, sealed, fewest), SHARE_BYTES
    )
    return Shares(owners=owners, shares=shares)


def add_mask(
    values: MaskedValues,
    ring: Ring,
    purpose: bytes,
    asked: Present,
    state: RecordDict,
    me: int,
    settings: PrivacySettings,
) -> MaskedValues:
    """Answer the stage `VALUES`: return the client's values under its mask.

    Args:
        values: from `payloads.secure_sum.pack`.
        asked: who takes part.

    Raises:
        SecureSumError: as for `answer_stage`.
    """
    memory = _recall(state, purpose, VALUES)
    group, present = memory.group(settings.secure_threshold), set(asked.places.tolist())
    _keep(state, dataclasses.replace(_after(memory, VALUES), present=asked.places))
    elements = mask(me, memory.unpack_secrets(), group, present, values.elements.view(ring.dtype), ring.bits)
    return dataclasses.replace(values, elements=elements.view(f"int{ring.bits}"))


def _recall(state: RecordDict, purpose: bytes, stage: str) -> SumMemory:
    record = find(state, MEMORY, ConfigRecord)
    memory = None if record is None else SumMemory.from_record(record)
    if memory is None or memory.purpose.tobytes() != purpose or memory.answered[0] != STAGES.index(stage):
        raise SecureSumError(f"secure sum, {purpose.decode()}: stage {stage!r} was asked out of turn or twice")
    return memory


def _after(memory: SumMemory, stage: str) -> SumMemory:
    return dataclasses.replace(memory, answered=np.array([STAGES.index(stage) + 1]))


def _keep(state: RecordDict, memory: SumMemory) -> None:
    values_of(state)[MEMORY] = memory.to_record()
