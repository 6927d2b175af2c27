"""The preparation of a segment: a party's block from its data and state, and the message (*hello*) that each party
sends to all other parties when it joins.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from scipy import sparse

from privacy.keys import agree
from vertical.agreement import GREETING_BYTES
from vertical.masking.pairwise import PairwiseMasks, pair_info
from vertical.problem.blocks import make_block, make_nonsmooth
from vertical.problem.blocks.base import SAGA, Block
from vertical.problem.blocks.network import Architecture, NetworkBlock, make_network
from vertical.problem.head import Head
from vertical.problem.objectives import Objective
from vertical.segment.masked_sums import DirectSums, Send, Sums, TreeSums
from vertical.segment.plan import PAIRWISE, TWO_TREES, Holding, PartyState, Recorder, SegmentPlan
from vertical.segment.sum_order import Agenda
from vertical.transport.frames import PartyError, protocol_error

_FORM = struct.Struct(f"<32s{GREETING_BYTES}s32sQQ")


class Hello(NamedTuple):
    """The message that a party sends when it joins.

    Attributes:
        key: The party's X25519 public key, for this segment only.
        greeting: The digest of the plan, and whether the party has labels (`vertical.agreement`).
        ids: The tag of its rows' ids, see `vertical.segment.same_rows`.
        rows: The number of its training rows.
        test_rows: The number of its test rows.
    """

    key: bytes
    greeting: bytes
    ids: bytes
    rows: int
    test_rows: int

    @classmethod
    def of(cls, private: X25519PrivateKey, plan: SegmentPlan, ids: bytes, holding: Holding) -> Hello:
        key = private.public_key().public_bytes_raw()
        greeting = plan.agreement(labelled=holding.labels is not None).greet()
        return cls(key, greeting, ids, int(holding.features.shape[0]), holding.test_rows)

    def to_bytes(self) -> bytes:
        return _FORM.pack(*self)

    @classmethod
    def from_bytes(cls, party: int, body: bytes) -> Hello:
        """Read a party's hello.

        Raises:
            PartyError: The hello has the wrong length. Names the party.
        """
        if len(body) != _FORM.size:
            raise protocol_error(party, f"its hello has {len(body)} bytes, not {_FORM.size}")
        return cls(*_FORM.unpack(body))


def check_hellos(plan: SegmentPlan, hellos: Mapping[int, Hello]) -> None:
    """Check that all parties have the planned numbers of rows.

    Raises:
        PartyError: A party has other numbers of rows. Names the first such party.
    """
    for party, hello in sorted(hellos.items()):
        for name, count, planned in (("training", hello.rows, plan.rows), ("test", hello.test_rows, plan.test_rows)):
            if count != planned:
                raise PartyError(party, f"it has {count:,} {name} rows, but the segment has {planned:,}")


def agree_keys(plan: SegmentPlan, me: int, private: X25519PrivateKey, hellos: Mapping[int, Hello]) -> dict[int, bytes]:
    """Return the 32-byte secret shared with each other party, for this segment.

    Secrets depend on the plan, so masks cancel only between parties with the same plan.

    Raises:
        PartyError: A party's public key makes no secret.
    """
    keys, digest = {}, plan.digest()
    for party, hello in hellos.items():
        if party != me:
            try:
                keys[party] = agree(private, hello.key, info=pair_info(plan.serial, me, party) + digest)
            except ValueError as error:
                raise PartyError(party, f"its public key cannot be used: {error}") from error
    return keys


def prepared_block(
    me: int, plan: SegmentPlan, holding: Holding, objective: Objective, state: PartyState, network: Architecture | None
) -> Block:
    """Return the party's block as it was after its last segment.

    Args:
        me: The party's index.
        plan: The segment's plan.
        holding: The party's data. `check_hellos` checks the numbers of its rows.
        objective: The objective without correction for flipped labels.
        state: The party's state after its last segment.
        network: The party's network, in a plan with embeddings.

    Raises:
        ValueError: The party lacks data that the plan needs, or the features, the weights or the table do not fit.
    """
    columns, test = holding.features.shape[1], holding.test_features
    if test is not None:
        if test.ndim != 2 or test.shape[1] != columns:
            raise ValueError(f"test features must be (k, {columns}), got {test.shape}")
        if not np.isfinite(test.data if sparse.issparse(test) else np.asarray(test)).all():
            raise ValueError("test features must be finite")
    if me in plan.active and not plan.score:
        _check_labels("labels", holding.labels, plan, plan.rows, objective)
        if plan.evaluate and plan.test_rows:
            _check_labels("test labels", holding.test_labels, plan, plan.test_rows, objective)
    block = _new_block(plan, holding, objective, network)
    groups = np.arange(columns) if holding.groups is None else holding.groups
    block.nonsmooth = make_nonsmooth(plan.penalty, plan.penalty_weight, groups)
    if state.weights is not None:
        if network is not None and len(state.weights) != len(block.weights):
            raise ValueError("its weights belong to another network: restore model as at the start of the run")
        block.set_weights(state.weights)
    if plan.algorithm == SAGA and not plan.start:
        if state.table is not None:
            block.remember(state.table)
        elif plan.epochs and plan.moves(me):
            raise ValueError("saga needs the table of the last segment, but this party has no table: start a new run")
    return block


def _new_block(plan: SegmentPlan, holding: Holding, objective: Objective, network: Architecture | None) -> Block:
    if not plan.embedding:
        return make_block(holding.features, plan.algorithm, objective, plan.step)
    if network is None:
        raise ValueError(f"a plan with embedding {plan.embedding} needs a network: pass this party's network")
    built = make_network(network, holding.features.shape[1], plan.embedding)
    return NetworkBlock(holding.features, built, plan.embedding, objective, plan.step)


def prepared_head(
    me: int, plan: SegmentPlan, objective: Objective, state: PartyState, network: Architecture | None
) -> Head | None:
    """Return the head (the last layer) as it was after the last segment; None at a party without a head.

    Raises:
        ValueError: The head's weights do not fit, or the plan scores rows and the party lacks the head.
    """
    if not plan.headed or me not in plan.active or network is None:
        return None
    head = Head(plan.embedding, network.seed + 1, objective, plan.step)
    if state.head is not None:
        head.set_weights(state.head)
    elif plan.score:
        raise ValueError(
            "it has no head, the last layer that turns sums into scores: use the block of the active party"
        )
    return head


def _check_labels(name: str, labels: object, plan: SegmentPlan, rows: int, objective: Objective) -> None:
    if not isinstance(labels, np.ndarray):
        raise ValueError(f"an active party needs {name}, but this party has none: choose active parties with labels")
    if labels.shape != (rows,):
        raise ValueError(f"{name} must have shape ({rows:,},), got {labels.shape}")
    objective.check_labels(labels)
    if objective.multiclass and labels.max() >= plan.embedding:
        classes = f"{name} have at least {int(labels.max()) + 1} classes, but vfb2.embedding is {plan.embedding}"
        raise ValueError(f"{classes}: set vfb2.embedding to the number of classes")


def shared_sums(
    me: int,
    agenda: Agenda,
    private: X25519PrivateKey,
    hellos: dict[int, Hello],
    send: Send,
    recorder: Recorder | None,
) -> Sums:
    """Return the segment's sums with the plan's masking. Two parties use no masks, which could not hide anything.

    Raises:
        PartyError: A party's public key makes no secret.
    """
    plan = agenda.plan
    if plan.masking == TWO_TREES and plan.parties > 2:
        return TreeSums(me, agenda, send, recorder)
    masks = None
    if plan.masking == PAIRWISE and plan.parties > 2:
        masks = PairwiseMasks(me, plan.parties, agree_keys(plan, me, private, hellos))
    return DirectSums(me, agenda, send, masks, recorder)
