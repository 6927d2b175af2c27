"""A party's run of one segment (the epochs of a round): it joins the other parties, trains, evaluates and leaves.

A *barrier* is a point at which every party waits for all other parties. Between two barriers, all work is done in the
callbacks of the other parties' frames. docs/vertical-theory.md ("Metrics") lists the counters of a `SegmentOutcome`.
"""

import asyncio
import time
from contextlib import closing
from dataclasses import asdict, dataclass

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from scipy import sparse

from vertical.injection import Injection
from vertical.problem.blocks import NO_PENALTY
from vertical.problem.blocks.base import SAGA, SVRG, Block
from vertical.problem.blocks.network import Architecture
from vertical.problem.head import Head
from vertical.problem.objectives import make_objective
from vertical.segment.checked_sums import CheckedSums
from vertical.segment.dominator import Dominator, agreed_flips, draw_flips, label_notice
from vertical.segment.full_passes import FullPass, SegmentEvaluation
from vertical.segment.plan import Holding, PartyState, Recorder, SegmentOutcome, SegmentPlan
from vertical.segment.preparation import Hello, check_hellos, prepared_block, prepared_head, shared_sums
from vertical.segment.routing import FrameRouter
from vertical.segment.same_rows import RowComparison
from vertical.segment.scoring import Scoring
from vertical.segment.shared import SegmentContext
from vertical.segment.sum_order import Agenda
from vertical.segment.updates import AsynchronousUpdates, SynchronousRounds
from vertical.segment.varying import MIN_PARTIES, VariationWatch, check_start, flags_of_party
from vertical.segment.workers import SleepingWorkers, Threads, Workers
from vertical.transport.endpoint import Endpoint
from vertical.transport.frames import WITHHELD, Kind, PartyError
from vertical.transport.mesh import Mesh
from vertical.transport.traffic import Counters


async def run_segment(
    me: int,
    plan: SegmentPlan,
    holding: Holding,
    start: PartyState,
    endpoint: Endpoint | None,
    *,
    network: Architecture | None = None,
    injection: Injection | None = None,
    recorder: Recorder | None = None,
    threads: int = 1,
    events: bool = False,
    min_parties: int = MIN_PARTIES,
) -> SegmentOutcome:
    """Take part in one segment.

    Args:
        me: The index of this party.
        plan: The segment's plan.
        holding: The party's data.
        start: The party's state after its last segment. Under label privacy an active party's ``start.flips`` is set as
            soon as flips are drawn. The caller must keep these flips even if the segment fails: a label that is flipped
            by two draws has half the protection.
        endpoint: The party's access to the other parties. None: there are no other parties.
        network: The party's network, in a plan with an embedding.
        injection: Artificial delays of an experiment.
        recorder: An observer for tests.
        threads: The number of threads that compute asynchronous updates. With an injected computing time: the number of
            sleeping workers.
        events: Whether the outcome has a log of the party's steps. With threads, the steps are in the order of their
            results.
        min_parties: The number of parties whose partials must vary over the rows (`vertical.segment.varying`).

    Raises:
        ValueError: The plan is impossible, or is not for this party.
        PartyError: The segment failed. All parties get an error with the same culprit.
    """
    plan.check()
    if not 0 <= me < plan.parties:
        raise ValueError(f"party {me} is not in a plan for {plan.parties} parties")
    if threads < 1:
        raise ValueError(f"threads must be 1 or more, got {threads}")
    party = SegmentRun(me, plan, holding, start, endpoint, network, injection or Injection(), threads, min_parties)
    return await party.run(recorder, events)


@dataclass(eq=False, repr=False)
class SegmentRun:
    """The work of `run_segment`."""

    me: int
    plan: SegmentPlan
    holding: Holding
    state: PartyState
    endpoint: Endpoint | None
    network: Architecture | None
    injection: Injection
    threads: int
    min_parties: int

    def __post_init__(self) -> None:
        plan = self.plan
        self._agenda = Agenda(plan)
        self._objective = make_objective(plan.problem, plan.weight)
        self._private = X25519PrivateKey.generate()
        rows = int(self.holding.features.shape[0]) + self.holding.test_rows
        self._comparison = RowComparison(self.me, plan.ids, rows)
        self._hello = Hello.of(self._private, plan, self._comparison.tag, self.holding)
        self._mesh = self._make_mesh() if plan.parties > 1 else None
        self._router = FrameRouter(plan, self._mesh)

    def _make_mesh(self) -> Mesh:
        plan, endpoint = self.plan, self.endpoint
        if endpoint is None or len(endpoint.addresses) != plan.parties:
            raise ValueError(f"a plan for {plan.parties} parties needs an endpoint with {plan.parties} addresses")
        largest = 8 * self._agenda.longest
        if endpoint.limits.body < largest:
            hint = "lower vfb2.embedding" if plan.embedding else "reduce the rows"
            fault = f"the limit of a body is {endpoint.limits.body:,} bytes; the segment needs {largest:,}"
            raise ValueError(f"{fault}: {hint}")
        return Mesh(self.me, endpoint, plan.serial, hello=self._hello.to_bytes(), delays=self.injection.delays)

    async def run(self, recorder: Recorder | None, events: bool) -> SegmentOutcome:
        began = time.perf_counter()
        router = self._router
        try:
            context = await self._set_up(recorder, events)
            await router.barrier(0)
            seconds, cpu = time.perf_counter(), time.process_time()
            await self._train(context)
            seconds, cpu = time.perf_counter() - seconds, time.process_time() - cpu
            await self._evaluate(context)
            await self._score(context)
            await router.barrier(1)
        except Exception as error:
            first = router.fail(error)
            raise first from (None if first is error else error)
        except BaseException:
            router.fail(PartyError(self.me, "it was stopped"))
            raise
        finally:
            if self._mesh is not None:
                await self._mesh.close()
        times = {"seconds_total": time.perf_counter() - began, "seconds_training": seconds, "cpu_training": cpu}
        counters = {name: float(count) for name, count in (self._counts(context) | times).items()}
        return self._outcome(context, counters)

    def _outcome(self, context: SegmentContext, counters: dict[str, float]) -> SegmentOutcome:
        return SegmentOutcome(
            context.block.weights,
            context.block.table,
            self.state.flips,
            context.metrics,
            counters,
            context.log,
            context.scores,
            None if context.head is None else context.head.weights,
        )

    async def _set_up(self, recorder: Recorder | None, events: bool) -> SegmentContext:
        """Join the other parties, compare plans, and agree on keys and labels.

        A party with unusable data also joins, so all parties learn of its failure at once.
        """
        plan = self.plan
        # in a thread, so heartbeats continue while a sparse block compiles its code
        prepared = asyncio.ensure_future(asyncio.to_thread(self._prepare))
        prepared.add_done_callback(lambda task: task.cancelled() or task.exception())  # no warning if joining fails
        hellos = await self._join()
        block, head, flags = await prepared
        sums = shared_sums(self.me, self._agenda, self._private, hellos, self._router.send, recorder)
        counted = None
        if plan.counts and plan.penalty != NO_PENALTY:  # a penalty can make a block zero during the segment
            look = VariationWatch(self.holding, block)
            sums = counted = CheckedSums(self.me, self._agenda, sums, look, self.min_parties, self._router.broadcast)
        self._router.open(sums, recorder)
        await self._compare(hellos)
        # whether no party's partials vary before the first update
        from_zero = plan.counts and await self._count(flags)
        if counted is not None:
            counted.from_zero = from_zero
        dominator = await self._meet_dominators(head)
        return SegmentContext(
            self.me,
            plan,
            self._agenda,
            self.holding,
            self._objective,
            block,
            sums,
            dominator,
            head,
            later=self._router.later,
            done=self._router.done,
            log=[] if events else None,
            constant=block.partials(np.zeros(1, np.int64)) if from_zero else None,
        )

    async def _join(self) -> dict[int, Hello]:
        """Join the other parties and compare plans. Return the hello of each party."""
        plan, hellos = self.plan, {self.me: self._hello}
        if self._mesh is not None:
            joined = await self._mesh.join()
            hellos |= {peer: Hello.from_bytes(peer, body) for peer, body in joined.items()}
            agreement = plan.agreement(labelled=self.holding.labels is not None)
            await agreement.confirm(self._mesh, {party: hello.greeting for party, hello in hellos.items()})
        check_hellos(plan, hellos)
        return hellos

    async def _compare(self, hellos: dict[int, Hello]) -> None:
        """Compare the rows' ids with the other parties."""
        if self.plan.ids:
            tags = {peer: hello.ids for peer, hello in hellos.items() if peer != self.me}
            self._comparison.check(await self._router.notices(Kind.ALIGN, self._comparison.answer(tags)))

    def _prepare(self) -> tuple[Block, Head | None, bytes]:
        me, plan, objective, state, network = self.me, self.plan, self._objective, self.state, self.network
        try:
            block = prepared_block(me, plan, self.holding, objective, state, network)
            head = prepared_head(me, plan, objective, state, network)
            return block, head, flags_of_party(me, plan, self.holding, block) if plan.counts else b""
        except ValueError as error:
            raise PartyError(self.me, str(error), WITHHELD) from error

    async def _count(self, flags: bytes) -> bool:
        """Exchange flags with all parties, and return whether no party's partials vary before the first update.

        Raises:
            FinalError: Too few parties hide each other's partials.
        """
        bodies = {party: flags for party in range(self.plan.parties) if party != self.me}
        received = await self._router.notices(Kind.VARIES, bodies)
        return check_start(self.plan, self.min_parties, {**received, self.me: flags})

    async def _meet_dominators(self, head: Head | None) -> Dominator | None:
        """Agree on labels and flips with the other active parties. Return None at a passive party."""
        plan, labels, flips = self.plan, self.holding.labels, self.state.flips
        if self.me not in plan.active or labels is None or plan.score:
            return None
        drawn = None
        if plan.label_epsilon and self.me == plan.active[0]:
            drawn = draw_flips(plan.rows, plan.label_epsilon) if flips is None else flips
        own = label_notice(labels, drawn)
        peers = [party for party in plan.active if party != self.me]
        notices = await self._router.notices(Kind.LABELS, dict.fromkeys(peers, own))
        flips = agreed_flips(plan, self.me, own, notices, flips)
        if flips is not None:
            self.state.flips = flips
        router = self._router
        return Dominator(self.me, plan, self._objective, labels, flips, head, router.broadcast, router.send)

    async def _train(self, context: SegmentContext) -> None:
        plan, agenda, router = self.plan, self._agenda, self._router
        if not plan.epochs:
            return
        ends = [[epoch * count for count in agenda.counts] for epoch in range(1, plan.epochs + 1)]
        if not agenda.barriers:
            ends = ends[-1:]
        with closing(self._make_workers()) as workers:
            kind = SynchronousRounds if plan.synchronous else AsynchronousUpdates
            updates, full_pass = kind(context, ends, workers), FullPass(context)
            for stretch in range(len(ends)):
                if plan.algorithm == SVRG or (plan.algorithm == SAGA and plan.start and stretch == 0):
                    await router.through(full_pass)
                await router.through(updates)

    async def _evaluate(self, context: SegmentContext) -> None:
        if self.plan.evaluate:
            await self._router.through(SegmentEvaluation(context))

    async def _score(self, context: SegmentContext) -> None:
        if not self.plan.score:
            return
        scoring = Scoring(context)
        for number in range(len(self._agenda.pieces)):
            await self._router.through(scoring)
            # no party is ahead by a piece: every recipient of scores has received this piece
            await self._router.barrier(2 + number)

    def _make_workers(self) -> Workers:
        if self.injection.compute:
            return SleepingWorkers(self.injection.compute, self.threads, self._router.fail)
        # no threads if this party must compute its flags, which read the weights between updates
        counted = self.plan.counts and self.plan.penalty != NO_PENALTY
        if self.threads > 1 and not self.plan.synchronous and not counted:
            plan = self.plan
            in_turn = plan.embedding > 0 or plan.penalty != NO_PENALTY or sparse.issparse(self.holding.features)
            # if two threads changed SAGA's mean at once, a lost change would be missing until the segment ends
            in_turn |= plan.algorithm == SAGA
            return Threads(self.threads, self._router.fail, lock=in_turn)
        return Workers()

    def _counts(self, context: SegmentContext) -> dict[str, float]:
        tally, dominated = context.tally, 0
        if context.active_index >= 0:
            dominated = self.plan.epochs * self._agenda.counts[context.active_index]
        return {
            **asdict(Counters() if self._mesh is None else self._mesh.counters),
            "updates": tally.applied,
            "dominated": dominated,
            "max_delay": tally.max_delay,
            "mean_delay": tally.delays / max(tally.applied, 1),
            "max_staleness": tally.max_staleness,
            "mean_staleness": tally.staleness / max(tally.applied, 1),
        }
