"""A party's answers to the server that need the other parties: common rows, a segment of training, scores of rows."""

import asyncio
import dataclasses
from functools import partial

import numpy as np
from numpy.typing import NDArray

from vertical.alignment import find_rows
from vertical.holdings import digest_holding
from vertical.injection import injection_of
from vertical.parties import KeptBlock, find_network
from vertical.policy import SHARES, PolicyError, RefusalError
from vertical.records import COUNTERS, Report, text
from vertical.segment.party import run_segment
from vertical.segment.plan import SHARED, PartyState, SegmentOutcome, SegmentPlan
from vertical.segment.varying import MIN_PARTIES
from vertical.segments import check_recipients, find_state, in_order, make_plan, make_score_plan, remember_segment
from vertical.shares.dealer import DealRequest, fetch_package
from vertical.shares.order import DealOrder
from vertical.shares.segment import Fetch, run_shared_segment
from vertical.transport.endpoint import Endpoint
from vertical.transport.folders import sockets
from vertical.transport.identity import fingerprint
from vertical.turn import Turn


def find_common_rows(turn: Turn) -> Report:
    """Find the rows that all parties have, and store their positions in the party's memory.

    Raises:
        RefusalError: The party's data cannot be used. A PolicyError: the policy forbids the search for common ids.
        PartyError: A party failed, or too few rows are common. Scoring needs one row, training two.
    """
    party = turn.party
    party.policy.check_intersection()
    ids, salt = party.data.ids(None), turn.segment.salt.tobytes()
    endpoint, serial = turn.endpoint(), int(turn.segment.serial[0])
    offered: dict[int, int] = {}
    turn.facts["ids"] = {"offered": len(ids), "theirs": offered}
    reporter, min_rows = int(turn.segment.active[0]), 1 if turn.settings.score_run else 2
    if party.data.block is not None:
        check_recipients(turn, party.data.block)
    agreement = turn.agreement()
    with sockets(endpoint.addresses[turn.me]):
        search = find_rows(
            turn.me, reporter, ids, endpoint, serial, salt, min_rows=min_rows, offered=offered, agreement=agreement
        )
        aligned, sent = asyncio.run(search)
    turn.facts["ids"]["common"] = len(aligned)
    turn.facts["bytes-to-peers"] = sent
    turn.remember(serial=turn.segment.serial, aligned=aligned)
    try:
        rows = turn.count_rows()
    except PolicyError:
        raise
    except ValueError as error:
        raise RefusalError(f"party {turn.me}: the common rows: {error}") from error
    return Report(serial=turn.segment.serial, counters=np.zeros(len(COUNTERS)), rows=rows)


def train(turn: Turn) -> Report:
    """Train a segment with the other parties, and store the resulting block in the party's memory.

    Returns:
        The party's counters. At the reporter, the first active party, also the metrics. The block, if the server wants
        it and the party's owner shares it.

    Raises:
        PartyError: A party failed.
    """
    party, rows = turn.party, turn.count_rows()
    plan = make_plan(turn, rows)
    if not plan.segment:
        turn.remember(data=text(digest_holding(turn.holding())))
    _note(turn, plan, rows)
    start = _start(turn)
    plan = dataclasses.replace(plan, history=start.history)
    outcome = run(turn, plan, start)
    party.keep_flips(turn.state.aligned, turn.settings.label_epsilon, outcome.flips)
    remember_segment(turn, start, outcome, plan.digest())
    if plan.embedding:
        turn.remember(network=text(party.model))
    if turn.segment.last[0]:
        epochs, shared = plan.first_epoch + plan.epochs, plan.keep_shared
        turn.block = KeptBlock(
            weights=np.zeros(0) if shared else outcome.weights,
            active=plan.active,
            epochs=epochs,
            embedding=plan.embedding,
            model=party.model,
            head=outcome.head,
            classes=tuple(party.data.classes),
            share=outcome.rounded,
            history=plan.digest().hex() if shared else "",
        )
    share = bool(turn.segment.share[0]) and turn.settings.assemble and party.share and not plan.keep_shared
    return Report(
        serial=turn.segment.serial,
        counters=in_order(outcome),
        rows=None if plan.segment else rows,
        weights=outcome.weights if share else None,
        **Report.of_metrics(outcome.metrics),  # type: ignore[arg-type]
    )


def score(turn: Turn) -> Report:
    """Score new rows with the other parties. The scores stay at the parties that may learn them.

    Returns:
        The party's counters. The server learns nothing about rows.

    Raises:
        PartyError: A party failed.
        PolicyError: See `vertical.segments.check_recipients`.
    """
    party, rows, block = turn.party, turn.count_rows(), turn.party.data.block
    assert block is not None
    check_recipients(turn, block)
    plan = make_score_plan(turn, rows, block)
    _note(turn, plan, rows)
    turn.facts["score-run"] = turn.settings.score_run
    outcome = run(turn, plan, PartyState(block.weights, head=block.head, share=block.share))
    turn.remember(serial=turn.segment.serial)
    if outcome.scores is not None:
        turn.scores = party.data.ids(turn.state.aligned), outcome.scores
    return Report(serial=turn.segment.serial, counters=in_order(outcome))


def run(turn: Turn, plan: SegmentPlan, start: PartyState) -> SegmentOutcome:
    """Run a segment with the other parties.

    Args:
        turn: The party's turn.
        plan: The segment's plan.
        start: The party's state before the segment.

    Raises:
        PartyError: A party failed.
        PolicyError: The owner allows fewer looks, see `vertical.parties.Looks`.
    """
    party, data, vfb2 = turn.party, turn.party.data, turn.settings
    # the parties of a simulation share one data set, so they hide nothing from each other
    plan = dataclasses.replace(plan, counted=not data.keys)
    # training on shares reveals no number of a row, and an evaluation at weights 0 reveals nothing about the columns
    if (
        party.looks is not None
        and (plan.score or plan.algorithm != SHARED)
        and (plan.epochs or plan.embedding or start.weights is not None)
    ):
        block = data.block
        weights = None if block is None else block.weights if block.share is None else block.share.view(np.float64)
        turn.facts["looks"] = party.looks.spend(plan, data.columns, weights)
    endpoint = turn.endpoint()
    with sockets(endpoint.addresses[turn.me]):
        holding = turn.holding()
        if vfb2.groups == "party" and holding.groups is not None:
            holding = dataclasses.replace(holding, groups=np.minimum(holding.groups, 0))
        own, injection = (turn.me, plan, holding, start, endpoint), injection_of(turn.me)
        if plan.algorithm == SHARED:
            outcome = asyncio.run(run_shared_segment(*own, _dealer(turn, plan, endpoint), injection=injection))
        else:
            network = find_network(party, turn.training.seed) if plan.embedding else None
            fewest = max(MIN_PARTIES, party.policy.fewest_parties)
            segment = run_segment(*own, injection=injection, network=network, threads=vfb2.threads, min_parties=fewest)
            outcome = asyncio.run(segment)
    turn.facts["bytes-to-peers"] = int(outcome.counters.get("bytes_sent", 0))
    return outcome


def _dealer(turn: Turn, plan: SegmentPlan, endpoint: Endpoint) -> Fetch:
    """Return the function that fetches the random numbers of the party, from a third party or the server's message."""

    async def read_package() -> bytes:
        return b"" if turn.segment.package is None else turn.segment.package.tobytes()

    if (access := turn.party.dealer) is None:
        return read_package
    request = DealRequest(
        run=turn.segment.salt.tobytes().hex(),
        serial=plan.serial,
        me=turn.me,
        parties=tuple(map(fingerprint, endpoint.certificates)),
        order=DealOrder.of(plan),
    )
    return partial(fetch_package, access, endpoint.identity, request, endpoint.limits)


def _start(turn: Turn) -> PartyState:
    """Return the segment's initial state: the state after an earlier segment, or weights 0 and the label flips.

    Raises:
        ValueError: This party no longer has the earlier segment's state.
    """
    if turn.segment.base[0] >= 0:
        turn.check_network()
        return find_state(turn)
    epsilon = turn.settings.label_epsilon
    draws = epsilon and turn.me == turn.segment.active[0]
    return PartyState(flips=turn.party.label_flips(turn.state, epsilon, turn.facts) if draws else None)


def _note(turn: Turn, plan: SegmentPlan, rows: NDArray[np.int64]) -> None:
    """Note the segment's plan for the owner's log.

    Args:
        turn: The party's turn.
        plan: The segment's plan.
        rows: The (2,) numbers of training and test rows.
    """
    turn.facts |= {
        "rows": int(rows[0]),
        "test-rows": int(rows[1]),
        "digest": plan.ids,
        "segment": plan.segment,
        "attempt": plan.serial,
        "epochs": plan.epochs,
        "active": list(plan.active),
        "masking": SHARES if plan.algorithm == SHARED else plan.masking,
        "label-epsilon": plan.label_epsilon,
        "embedding": plan.embedding,
        "evaluated": plan.evaluate,
    }
