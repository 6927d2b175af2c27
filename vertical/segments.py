"""What a segment of VFB2 does and starts from, who learns scores, and what a segment leaves in a party's memory."""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from payloads.settings import TrainingSettings
from vertical.parties import KeptBlock
from vertical.policy import PolicyError
from vertical.problem.blocks import NO_PENALTY
from vertical.problem.blocks.base import SGD
from vertical.problem.objectives import SOFTMAX, make_objective
from vertical.records import COUNTERS, Segment, VFB2State, text
from vertical.segment.plan import PartyState, SegmentOutcome, SegmentPlan
from vertical.settings import VFB2Settings


def make_plan(
    algorithm: str,
    segment: Segment,
    parties: int,
    held: NDArray[np.int64],
    ids: bytes,
    training: TrainingSettings,
    vfb2: VFB2Settings,
) -> SegmentPlan:
    """Say what the segment does, from the party's own settings and what the server sends.

    Args:
        algorithm: "sgd", "svrg" or "saga".
        parties: q.
        held: (2,) the party's training and test rows, which count while the server does not know those of all.
        ids: digest of the ids of these rows.
    """
    number = int(segment.segment[0])
    rows, test_rows = (held if segment.rows is None else segment.rows).tolist()
    return SegmentPlan(
        serial=int(segment.serial[0]),
        segment=number,
        algorithm=algorithm,
        problem=vfb2.problem,
        weight=make_objective(vfb2.problem, vfb2.factor).weight,
        step=float(segment.step[0]),
        batch_size=training.batch_size,
        seed=training.seed,
        first_epoch=max(number - 1, 0) * vfb2.epochs,
        epochs=vfb2.epochs if number else 0,
        parties=parties,
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
        penalty=vfb2.penalty,
        penalty_weight=vfb2.penalty_weight,
        ids=ids.hex(),
    )


def make_score_plan(
    segment: Segment,
    parties: int,
    held: NDArray[np.int64],
    ids: bytes,
    training: TrainingSettings,
    vfb2: VFB2Settings,
    block: KeptBlock,
) -> SegmentPlan:
    """Say what a segment does that scores rows.

    Args:
        segment: as of `make_plan`, and so are the next five.
        parties: see there.
        held: see there.
        ids: see there.
        training: see there.
        vfb2: see there.
        block: the party's. Parties whose blocks are of different ends of a run, or whose embeddings have other lengths,
            have different plans.
    """
    plan = make_plan(SGD, segment, parties, held, ids, training, vfb2)
    plan = replace(plan, first_epoch=block.epochs, epochs=0, window=1, synchronous=False, label_epsilon=0.0)
    plan = replace(plan, embedding=block.embedding, update_passive=True, penalty=NO_PENALTY)
    return replace(plan, evaluate=False, curvature=False, start=False, score=True)


def check_recipients(segment: Segment, block: KeptBlock, parties: int, vfb2: VFB2Settings) -> None:
    """Check who learns the scores, since the server chooses whom it names.

    Args:
        block: the party's, which says whose labels were used in training.

    Raises:
        PolicyError: others than the run config says are to learn them, or than can make scores of the sums.
    """
    if block.embedding > 1 and vfb2.problem != SOFTMAX and vfb2.score_for == "all":
        allowed = f"'label-holders': only party {block.active[0]} has the head that makes scores of the sums"
        raise PolicyError("vfb2.score-for", got="'all'", allowed=allowed, hint="leave it out")
    wanted = tuple(range(parties)) if vfb2.score_for == "all" else block.active
    if tuple(segment.active.tolist()) != wanted:
        got, allowed = f"parties {segment.active.tolist()} as those who learn scores", f"{list(wanted)}"
        hint = "give every party the block of one and the same run"
        raise PolicyError("vfb2.score-for", got=got, allowed=f"{allowed}, by {vfb2.score_for!r}", hint=hint)


def check_number(got: int, parties: int) -> None:
    """Check the length of the server's list of parties, since a party that is left out cannot object.

    Args:
        got: The number of parties in the server's list.
        parties: The party's own ``num-partitions``.

    Raises:
        PolicyError: The numbers differ.
    """
    if got != parties:
        listed, allowed = f"{got} parties in the server's list", f"{parties}, by this party's node config"
        hint = "start every SuperNode with the same num-partitions"
        raise PolicyError("num-partitions", got=listed, allowed=allowed, hint=hint)


def find_state(segment: Segment, kept: VFB2State) -> PartyState:
    """Return what the segment starts from: the state after an earlier one.

    Raises:
        ValueError: the party does not have that state.
    """
    base, (older, newer) = int(segment.base[0]), kept.segments.tolist()
    if base == newer:
        return PartyState(kept.newer, kept.newer_table, kept.flips, kept.newer_head, _hex(kept.newer_history))
    if base == older:
        return PartyState(kept.older, kept.older_table, kept.flips, kept.older_head, _hex(kept.older_history))
    held = " and ".join(str(number) for number in (older, newer) if number >= 0) or "none"
    raise ValueError(
        f"segment {int(segment.segment[0])} starts from the weights after segment {base}, but this party has those "
        f"after segment {held} (a state-dir keeps them for a resumed run)"
    )


def _hex(digest: NDArray[np.uint8] | None) -> str:
    return "" if digest is None else digest.tobytes().hex()


def add_segment(
    kept: VFB2State, segment: Segment, start: PartyState, outcome: SegmentOutcome, digest: bytes
) -> VFB2State:
    """Return a party's memory after a segment: what it left and, for its repetition, what it started from.

    Args:
        kept: the memory before. Its identity and the places of shared rows stay as they are.
        digest: The digest of the segment's plan.
    """
    number = int(segment.segment[0])
    return replace(
        kept,
        serial=segment.serial,
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
    )


def in_order(outcome: SegmentOutcome) -> NDArray[np.float64]:
    """Return (c,) numbers that a party counted, in the order of `COUNTERS`."""
    return np.array([float(outcome.counters.get(name, 0.0)) for name in COUNTERS])
