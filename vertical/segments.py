"""A party's preparation of a segment and its storage: the plan, the initial state, and the result in its memory.

A segment is the epochs of one Flower round. Its plan comes from the run config and the server's message. Its initial
state is the state after the previous segment.
"""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from vertical.alignment import digest
from vertical.parties import KeptBlock
from vertical.policy import PolicyError, StatedRefusalError
from vertical.problem.blocks import NO_PENALTY
from vertical.problem.blocks.base import SGD
from vertical.problem.objectives import SOFTMAX, make_objective
from vertical.records import COUNTERS, text
from vertical.segment.plan import SHARED, PartyState, SegmentOutcome, SegmentPlan
from vertical.turn import Turn


def make_plan(turn: Turn, row_counts: NDArray[np.int64]) -> SegmentPlan:
    """Return the segment's plan, from the run's settings and the server's message.

    Two parties have equal plans only if the server has sent both the same settings and the same message.

    Args:
        turn: The party's turn.
        row_counts: The (2,) numbers of the party's training and test rows, for the segment before which the server does
            not know the numbers of common rows.
    """
    segment, training, vfb2, agreement = turn.segment, turn.training, turn.settings, turn.agreement()
    number = int(segment.segment[0])
    rows, test_rows = (row_counts if segment.rows is None else segment.rows).tolist()
    return SegmentPlan(
        serial=int(segment.serial[0]),
        segment=number,
        algorithm=turn.algorithm,
        problem=vfb2.problem,
        weight=make_objective(vfb2.problem, vfb2.factor).weight,
        step=float(segment.step[0]),
        batch_size=training.batch_size,
        seed=training.seed,
        first_epoch=max(number - 1, 0) * vfb2.epochs,
        epochs=vfb2.epochs if number else 0,
        parties=turn.party.parties,
        active=tuple(segment.active.tolist()),
        window=1 if vfb2.synchronous else vfb2.window,
        skew=vfb2.skew_bound,
        masking=vfb2.masking,
        synchronous=vfb2.synchronous,
        update_passive=vfb2.update_passive,
        evaluate=bool(segment.evaluate[0]),
        label_epsilon=vfb2.label_epsilon,
        rows=rows,
        test_rows=test_rows,
        curvature=bool(segment.curvature[0]),
        start=number == 1,
        allow_bare=vfb2.allow_two_parties,
        embedding=vfb2.embedding,
        columns=() if segment.columns is None else tuple(segment.columns.tolist()),
        last=turn.algorithm == SHARED and bool(segment.last[0]),
        keep_shared=turn.algorithm == SHARED and vfb2.keep_shared,
        penalty=vfb2.penalty,
        penalty_weight=vfb2.penalty_weight,
        # the digest of the rows' ids stays at the party
        ids=digest(turn.party.data.ids(turn.state.aligned), segment.salt.tobytes()).hex(),
        wanted=agreement.wanted,
        terms=tuple(agreement.terms.items()),
    )


def make_score_plan(turn: Turn, row_counts: NDArray[np.int64], block: KeptBlock) -> SegmentPlan:
    """Return the plan of a segment that scores rows.

    Args:
        turn: The party's turn.
        row_counts: The (2,) numbers of the party's rows.
        block: The party's block. The plans of blocks from different epochs, with embeddings of different lengths, or of
            shares from different segments differ, and the parties' comparison of plans then fails.

    Raises:
        StatedRefusalError: The block is shared and ``vfb2.keep-shared`` is false, or the other way round.
    """
    shared, wanted = block.share is not None, turn.algorithm == SHARED and turn.settings.keep_shared
    if shared != wanted:
        fault = f"its block is {'shared' if shared else 'not shared'}, but vfb2.keep-shared is {str(wanted).lower()}"
        hint = f'set strategy="shared-sgd" and vfb2.keep-shared={str(shared).lower()}, as in training'
        raise StatedRefusalError(f"party {turn.me}: {fault}: {hint}")
    plan = replace(make_plan(turn, row_counts), epochs=0, first_epoch=block.epochs, window=1, score=True)
    plan = replace(plan, embedding=block.embedding, update_passive=True, penalty=NO_PENALTY, label_epsilon=0.0)
    plan = replace(plan, synchronous=False, evaluate=False, curvature=False, start=False, last=False)
    if shared:
        return replace(plan, history=block.history)
    # a recipient of scores subtracts its own part anyway, so two parties hide nothing from each other
    bare = plan.allow_bare or turn.algorithm == SHARED
    return replace(plan, algorithm=SGD, allow_bare=bare, columns=())


def check_recipients(turn: Turn, block: KeptBlock) -> None:
    """Check the recipients of the scores that the server has chosen.

    Args:
        turn: The party's turn.
        block: The party's block, which names the parties whose labels were used in training.

    Raises:
        PolicyError: The server's recipients differ from the run config's, or cannot compute scores from the sums.
    """
    vfb2, active = turn.settings, turn.segment.active.tolist()
    if block.embedding > 1 and vfb2.problem != SOFTMAX and vfb2.score_for == "all":
        allowed = f"'label-holders', since only party {block.active[0]} has the last layer, which computes the scores"
        raise PolicyError("vfb2.score-for", got="'all'", allowed=allowed, hint="remove vfb2.score-for")
    wanted = tuple(range(turn.party.parties)) if vfb2.score_for == "all" else block.active
    if tuple(active) != wanted:
        got, allowed = f"parties {active} as recipients of scores", f"{list(wanted)}"
        hint = "use blocks of the same run at all parties"
        raise PolicyError("vfb2.score-for", got=got, allowed=f"{allowed} for {vfb2.score_for!r}", hint=hint)


def find_state(turn: Turn) -> PartyState:
    """Return the segment's initial state: the state after an earlier segment.

    Raises:
        ValueError: The party does not have that state.
    """
    state, base = turn.state, int(turn.segment.base[0])
    older, newer = state.segments.tolist()
    if base == newer:
        newer = state.newer, state.newer_table, state.flips, state.newer_head, _hex(state.newer_history)
        return PartyState(*newer, _words(state.newer_share))
    if base == older:
        older = state.older, state.older_table, state.flips, state.older_head, _hex(state.older_history)
        return PartyState(*older, _words(state.older_share))
    known = " and ".join(str(number) for number in (older, newer) if number >= 0)
    has = f"the weights after segment {known}" if known else "no weights"
    raise ValueError(
        f"segment {turn.segment.segment[0]} starts from the weights after segment {base}, but this party has {has}: "
        "start a new run, and set state-dir to keep the weights for a resumed run"
    )


def _hex(digest: NDArray[np.uint8] | None) -> str:
    return "" if digest is None else digest.tobytes().hex()


def _words(share: NDArray[np.int64] | None) -> NDArray[np.uint64] | None:
    return None if share is None else share.view(np.uint64)


def remember_segment(turn: Turn, start: PartyState, outcome: SegmentOutcome, digest: bytes) -> None:
    """Store a segment's result in the party's memory, and its initial state for a repetition of the segment.

    Args:
        turn: The party's turn.
        start: The party's state before the segment.
        outcome: The segment's outcome.
        digest: The digest of the segment's plan.
    """
    number = int(turn.segment.segment[0])
    turn.remember(
        serial=turn.segment.serial,
        segments=np.array([number - 1, number]),
        older=start.weights if number else None,
        older_head=start.head,
        older_table=start.table,
        older_history=text(bytes.fromhex(start.history)) if start.history else None,
        newer=outcome.weights,
        newer_head=outcome.head,
        newer_table=outcome.table,
        newer_history=text(digest),
        flips=outcome.flips,
        older_share=None if start.share is None else start.share.view(np.int64),
        newer_share=None if outcome.share is None else outcome.share.view(np.int64),
    )


def in_order(outcome: SegmentOutcome) -> NDArray[np.float64]:
    """Return a party's (c,) counters, in the order of `COUNTERS`."""
    return np.array([float(outcome.counters.get(name, 0.0)) for name in COUNTERS])
