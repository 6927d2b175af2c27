"""A client's side of secure sums (`privacy.secure_sum`): one answer to each stage, with a memory between messages.

The memory is stored in the node's Flower context, like a client's other memory, and is never written to disk. It is
stored as bytes, not as a payload, since a payload would be validated in each of the five stages.
"""

import dataclasses
from functools import lru_cache
from typing import Any

import numpy as np
from flwr.app import ConfigRecord, RecordDict

from clients.sum_memory import SumMemory, pack, split_keys, unpack
from payloads.flower_internals import fill, values_of
from payloads.record import Payload
from payloads.secure_sum import (
    BOXES,
    KEYS,
    SHARES,
    STAGES,
    VALUES,
    VIEWS,
    Boxes,
    Evidence,
    MaskedValues,
    Members,
    Present,
    PublicKeys,
    Shares,
    Survivors,
    Views,
    by_client,
    rows_of,
)
from privacy.ring import Ring
from privacy.secure_sum import (
    CODE_BYTES,
    FEWEST_MEMBERS,
    SEALED_BYTES,
    Group,
    Member,
    Secrets,
    SecureSumError,
    agree_on_boxes,
    mask,
    reveal,
    share_out,
    vouch,
)
from privacy.shamir import SHARE_BYTES

# the record in the node's context
MEMORY = "secure-sum"
# the server's message in each stage
QUESTIONS: dict[str, type[Payload] | None] = {KEYS: None, BOXES: Members, VIEWS: Survivors, SHARES: Evidence}
_MEMBERS = ("clients", "mask_keys", "box_keys", "commitments")


@dataclasses.dataclass(frozen=True)
class Demands:
    """The demands of a site's owner on a sum.

    Attributes:
        min_clients: The minimum number of clients whose sum may be unmasked.
        box_key: The site's own private key for boxes; b"": a new key in every run.
        peers: The box keys of the sites that may take part; empty: any site.
    """

    min_clients: int = FEWEST_MEMBERS
    box_key: bytes = dataclasses.field(default=b"", repr=False)
    peers: frozenset[bytes] = frozenset()

    def check_members(self, group: Group, me: int) -> None:
        """Check that the owner has listed all other members' keys.

        A client that pretends to have a listed site's key cannot open the boxes for that site.

        Args:
            group: The members.
            me: The client's partition id.

        Raises:
            SecureSumError: A member's key is not listed. The text names the first such member.
        """
        for client, member in group.members.items() if self.peers else ():
            if client != me and member.box_key not in self.peers:
                raise SecureSumError(f"partition {client} has none of the keys in this site's sum-peers")


class SumClient:
    """A client in a secure sum.

    Args:
        me: The client's partition id.
        number: The sum's number, counted over the run. No client takes part again in a sum with a lower number.
        purpose: The sum's purpose; see `payloads.secure_sum.purpose_of`.
        settings: The hash of the run config, which ``purpose`` contains.
        run: The run's id.
        state: The state of the node's context.
        share: The share of a client's neighbours that must remain to unmask it.
        demands: The demands of the site's owner.
    """

    def __init__(
        self,
        me: int,
        number: int,
        purpose: bytes,
        settings: bytes,
        run: int,
        state: RecordDict,
        share: float,
        demands: Demands,
    ) -> None:
        self.me, self.number, self.purpose, self.settings = me, number, purpose, settings
        self.run = str(run).encode()
        self.share, self.demands = share, demands
        self._records = values_of(state)

    def answer(self, stage: str, question: Any) -> Payload:
        """Answer one of the stages `KEYS`, `BOXES`, `VIEWS` and `SHARES`.

        Args:
            question: The stage's message, of the type in `QUESTIONS`.

        Raises:
            SecureSumError: A stage is out of order or repeated, or the answer could reveal the client's values.
        """
        if stage == KEYS:
            return self._send_keys()
        if stage == BOXES:
            return self._share_out(question)
        return self._vouch(question) if stage == VIEWS else self._reveal(question)

    def mask(self, values: MaskedValues, ring: Ring, participants: Present, question: bytes) -> MaskedValues:
        """Answer the stage `VALUES`: return the client's values plus its mask.

        Args:
            values: The values from `payloads.summed_values.pack`.
            ring: The ring of the sum.
            participants: The participants.
            question: The hash of the whole message; see `payloads.wire.digest`.

        Raises:
            SecureSumError: See `answer`.
        """
        memory = self._recall(VALUES)
        self._keep(memory, VALUES, present=pack(participants.clients), question=question)
        present, elements = set(participants.clients.tolist()), values.elements.view(ring.dtype)
        if len(present) < len(participants.clients):
            raise SecureSumError("the list of participants names a client twice")
        if len(present) < self.demands.min_clients:
            text = f"{len(present)} clients take part in the sum, allowed: at least {self.demands.min_clients}"
            raise SecureSumError(text)
        masked = mask(self.me, self._secrets(memory), self._group(memory), present, elements, ring.bits, question)
        return dataclasses.replace(values, elements=masked.view(f"int{ring.bits}"))

    def _send_keys(self) -> Payload:
        before = self._load() or SumMemory(-1, 0)
        if before.number >= self.number:
            raise SecureSumError(f"sum {self.number} was requested again")
        own = Secrets.make(self.demands.box_key or before.box_key)
        same = before.box_key == own.box_key
        member = own.member(before.public if same else b"")
        memory = SumMemory(
            number=self.number,
            answered=0,
            purpose=self.purpose,
            run=self.run,
            mask_key=own.mask_key,
            seed=own.seed,
            box_key=own.box_key,
            public=member.box_key,
            peers=before.peers if same else b"",
            agreed=before.agreed if same else b"",
            clients=pack([self.me]),
            mask_keys=member.mask_key,
            box_keys=member.box_key,
            commitments=member.commitment,
        )
        self._keep(memory, KEYS)
        return PublicKeys.of(member, self.settings)

    def _share_out(self, question: Members) -> Payload:
        before = self._recall(BOXES)
        members: dict[str, Any] = {name: value.tobytes() for name, value in question.arrays().items()}
        members["clients"] = pack(question.clients)
        memory = dataclasses.replace(before, **members)
        group, own = self._group(memory), self._secrets(memory)
        if group.members.get(self.me) != Member(before.mask_keys, before.box_keys, before.commitments):
            raise SecureSumError(f"the members' keys differ from the keys that partition {self.me} has sent")
        self.demands.check_members(group, self.me)
        agreed = agree_on_boxes(self.me, own, group, memory.by_key())
        peers = b"".join(group.members[peer].box_key for peer in agreed)
        self._keep(memory, BOXES, peers=peers, agreed=b"".join(agreed.values()))
        holders, boxes = rows_of(share_out(self.me, own, group, agreed), SEALED_BYTES)
        return Boxes(holders=holders, boxes=boxes)

    def _vouch(self, question: Survivors) -> Payload:
        memory = self._recall(VIEWS)
        group = self._group(memory)
        # a refusal below ends the sum for this client, too
        self._keep(memory, VIEWS, survivors=pack(question.clients))
        agreed = agree_on_boxes(self.me, self._secrets(memory), group, memory.by_key())
        present, survivors = unpack(memory.present), set(question.clients.tolist())
        codes = vouch(self.me, agreed, group, memory.question, present, survivors, self.demands.min_clients)
        receivers, rows = rows_of(codes, CODE_BYTES)
        return Views(receivers=receivers, codes=rows)

    def _reveal(self, evidence: Evidence) -> Payload:
        memory = self._recall(SHARES)
        group = self._group(memory)
        agreed = agree_on_boxes(self.me, self._secrets(memory), group, memory.by_key())
        self._keep(memory, SHARES, mask_key=b"", seed=b"")
        revealed = reveal(
            self.me,
            agreed,
            group,
            memory.question,
            unpack(memory.present),
            unpack(memory.survivors),
            by_client(evidence.vouchers, evidence.codes),
            by_client(evidence.senders, evidence.boxes),
        )
        owners, shares = rows_of(revealed, SHARE_BYTES)
        return Shares(owners=owners, shares=shares)

    def _secrets(self, memory: SumMemory) -> Secrets:
        if not (memory.mask_key and memory.seed and memory.box_key):
            raise SecureSumError("this client has deleted its secrets of the sum, since it has answered the last stage")
        return Secrets(memory.mask_key, memory.box_key, memory.seed)

    def _group(self, memory: SumMemory) -> Group:
        return _make_group(*(getattr(memory, name) for name in _MEMBERS), self.share, self.purpose)

    def _load(self) -> SumMemory | None:
        record = self._records.get(MEMORY)
        memory = None if record is None else SumMemory.of(record)
        return memory if memory is not None and memory.run == self.run else None

    def _recall(self, stage: str) -> SumMemory:
        memory = self._load()
        if memory is None or memory.purpose != self.purpose or memory.answered != STAGES.index(stage):
            raise SecureSumError(
                f"secure sum, {self.purpose.decode()}: stage {stage!r} was requested out of turn or twice"
            )
        return memory

    def _keep(self, memory: SumMemory, answered: str, **changes: Any) -> None:
        values = vars(memory) | changes | {"answered": STAGES.index(answered) + 1}
        self._records[MEMORY] = fill(ConfigRecord, values)


@lru_cache(maxsize=4)
def _make_group(
    clients: bytes, mask_keys: bytes, box_keys: bytes, commitments: bytes, share: float, purpose: bytes
) -> Group:
    """Return the group of stage 2. Cached, since the clients of a process have the same group."""
    members = map(Member, split_keys(mask_keys), split_keys(box_keys), split_keys(commitments))
    return Group(dict(zip(np.frombuffer(clients, np.int64).tolist(), members, strict=True)), share, purpose)
