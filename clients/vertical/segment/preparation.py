"""What a party makes of its data and its state before it joins, and of its peers' hellos after."""

from __future__ import annotations

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from scipy import sparse

from clients.vertical.masking.pairwise import PairwiseMasks
from clients.vertical.segment.introductions import Hello, agree_keys
from clients.vertical.segment.masked_sums import DirectSums, LoneSums, Send, Sums, TreeSums
from clients.vertical.segment.plan import PAIRWISE, TWO_TREES, Holding, PartyState, Plan, Recorder
from clients.vertical.segment.sum_order import Agenda
from problems.vertical.blocks import make_block
from problems.vertical.blocks.base import SAGA, Block
from problems.vertical.objectives import Objective


def check_holding(me: int, plan: Plan, holding: Holding, objective: Objective) -> None:
    """ValueError where a party does not hold what the plan needs of it. Row counts are compared in the hellos."""
    columns, test = holding.features.shape[1], holding.test_features
    if test is not None:
        if test.ndim != 2 or test.shape[1] != columns:
            raise ValueError(f"test features must be (k, {columns}), got {test.shape}")
        if not np.isfinite(test.data if sparse.issparse(test) else np.asarray(test)).all():
            raise ValueError("test features must be finite")
    if me in plan.active:
        _check_labels("labels", holding.labels, plan.rows, objective)
    if me in plan.active and plan.evaluate and plan.test_rows:
        _check_labels("test labels", holding.test_labels, plan.test_rows, objective)


def prepared_block(me: int, plan: Plan, holding: Holding, objective: Objective, state: PartyState) -> Block:
    """The party's block as its last segment left it.

    Raises:
        ValueError: the features, the weights or the table are not what a block takes.
    """
    block = make_block(holding.features, plan.algorithm, objective, plan.step)
    if state.weights is not None:
        block.set_weights(state.weights)
    if plan.algorithm == SAGA and not plan.start:
        if state.table is not None:
            block.remember(state.table)
        elif plan.epochs and plan.moves(me):
            raise ValueError("saga goes on from the table of its last segment, and there is none")
    return block


def shared_sums(
    me: int,
    agenda: Agenda,
    private: X25519PrivateKey,
    hellos: dict[int, Hello],
    send: Send,
    recorder: Recorder | None,
) -> Sums:
    """The sums of a plan's masking. Two parties have nothing to hide behind, and mask nothing.

    Raises:
        PartyError: a party's public key makes no secret.
    """
    plan = agenda.plan
    if plan.parties == 1:
        return LoneSums(agenda)
    if plan.masking == TWO_TREES and plan.parties > 2:
        return TreeSums(me, agenda, send, recorder)
    masks = None
    if plan.masking == PAIRWISE and plan.parties > 2:
        masks = PairwiseMasks(me, plan.parties, agree_keys(plan, me, private, hellos))
    return DirectSums(me, agenda, send, masks, recorder)


def _check_labels(name: str, labels: object, rows: int, objective: Objective) -> None:
    if not isinstance(labels, np.ndarray):
        raise ValueError(f"this party needs {name}, it holds none")
    if labels.shape != (rows,):
        raise ValueError(f"{name} must be ({rows:,},), one a row, got {labels.shape}")
    objective.check_labels(labels)
