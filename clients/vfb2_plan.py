"""A segment's plan, from the party's own settings and the `Segment` that the server sends."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from clients.vertical.segment.plan import Injection, Plan
from clients.vertical.transport.endpoint import Delays
from payloads.settings import TrainingSettings
from payloads.vfb2 import ByteArray, Segment, VFB2Settings
from problems.vertical.objectives import make_objective


def plan_of(
    segment: Segment,
    training: TrainingSettings,
    vfb2: VFB2Settings,
    algorithm: str,
    parties: int,
    held: Sequence[int],
) -> Plan:
    """The plan; ``held``: this party's numbers of training and test rows, used where the server sends none."""
    number = int(segment.segment[0])
    rows, test_rows = held if segment.rows is None else segment.rows.tolist()
    return Plan(
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
    )


def injection_of(vfb2: VFB2Settings, me: int, parties: int, seed: int) -> Injection:
    """The computing time and delays that the settings add at party ``me``; ``seed`` is the jitter's."""
    delays = Delays(one_way=vfb2.seconds("delay", parties)[me], jitter=vfb2.seconds("jitter", parties)[me], seed=seed)
    return Injection(compute=vfb2.seconds("extra_compute", parties)[me], delays=delays)


def facts_of(segment: Segment, vfb2: VFB2Settings, held: Sequence[int], digest: ByteArray) -> dict[str, Any]:
    """Facts on a segment, for the log of a party's owner; ``digest`` (32,): of its ids, as sent to the server."""
    number = int(segment.segment[0])
    return {
        "rows": held[0],
        "test-rows": held[1],
        "digest": digest.tobytes().hex(),
        "segment": number,
        "attempt": int(segment.serial[0]),
        "epochs": vfb2.epochs if number else 0,
        "active": segment.active.tolist(),
        "masking": vfb2.masking,
        "label-epsilon": vfb2.label_epsilon,
        "evaluated": bool(segment.evaluate[0]),
    }
