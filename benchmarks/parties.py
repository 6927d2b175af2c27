"""Vertical segments without Flower: all parties on this machine, each in a separate process or thread.

A segment is a part of a vertical run, in which the parties train together without the server. Each party has its own
identity. The parties' connections are the same as between machines: mutual TLS 1.3, over Unix sockets or TCP on the
loopback interface.
"""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import threading
import time
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerContext
from multiprocessing.process import BaseProcess

from threadpoolctl import threadpool_limits

from simulations.engines.addresses import local_addresses, socket_folder
from vertical.injection import Injection
from vertical.problem.blocks.network import Architecture
from vertical.segment.party import run_segment
from vertical.segment.plan import SHARED, Holding, PartyState, Recorder, SegmentOutcome, SegmentPlan
from vertical.shares.order import DealOrder
from vertical.shares.segment import run_shared_segment
from vertical.transport.addresses import Address
from vertical.transport.endpoint import Endpoint, Limits
from vertical.transport.identity import Identity

TRANSPORTS = ("unix", "tcp")
# modules that the fork server has imported; the first can be found wherever a benchmark is started
PRELOADED = ["vertical.segment.party", __name__]
# seconds that the other parties get to fail once one has
_GRACE = 10.0


class PartiesError(RuntimeError):
    """The error of a failed segment.

    Attributes:
        errors: The errors of the parties that failed, by party.
    """

    def __init__(self, errors: Mapping[int, BaseException]) -> None:
        lines = [f"party {party}'s error: {type(error).__name__}: {error}" for party, error in sorted(errors.items())]
        super().__init__("\n".join(lines))
        self.errors = dict(errors)


@dataclass
class _Party:
    """The arguments with which a party is started."""

    me: int
    holding: Holding
    plans: Sequence[SegmentPlan]
    state: PartyState
    endpoint: Endpoint | None
    network: Architecture | None
    injection: Injection | None
    recorder: Recorder | None
    threads: int
    events: bool
    packages: Sequence[bytes] | None = None

    def run(self) -> Iterator[SegmentOutcome]:
        """Its outcomes, segment by segment."""
        for number, plan in enumerate(self.plans):
            outcome = asyncio.run(self._run_segment(plan, number))
            self.state = outcome.state
            yield outcome

    def _run_segment(self, plan: SegmentPlan, number: int) -> Coroutine[None, None, SegmentOutcome]:
        own = self.me, plan, self.holding, self.state
        if self.packages is not None:
            assert self.endpoint is not None
            return run_shared_segment(
                *own,
                self.endpoint,
                partial(_give, self.packages[number]),
                injection=self.injection,
                recorder=self.recorder,
            )
        return run_segment(
            *own,
            self.endpoint,
            network=self.network,
            injection=self.injection,
            recorder=self.recorder,
            threads=self.threads,
            events=self.events,
        )


async def _give(package: bytes) -> bytes:
    return package


def run_parties(
    holdings: Sequence[Holding],
    plans: SegmentPlan | Sequence[SegmentPlan],
    *,
    processes: bool = True,
    transport: str = "unix",
    states: Sequence[PartyState] | None = None,
    networks: Sequence[Architecture | None] | None = None,
    injections: Sequence[Injection | None] | None = None,
    recorders: Sequence[Recorder | None] | None = None,
    packages: Sequence[Sequence[bytes]] | None = None,
    threads: int = 1,
    events: bool = False,
    limits: Limits | None = None,
    timeout: float = 600.0,
) -> list[list[SegmentOutcome]]:
    """Run segments one after another with all parties on this machine. The parties connect anew for each segment.

    Args:
        holdings: The data of each party.
        plans: The plan of each segment. A party keeps its state between segments.
        processes: Whether each party runs in a separate process. False: in a thread.
        transport: "unix" or "tcp".
        states: The initial state of each party. None: zero.
        networks: Each party's network, for plans with an embedding.
        injections: Each party's injection of artificial delays.
        recorders: Each party's recorder of messages. Only with threads.
        packages: The dealer's package of each segment and party, on secret shares. None: fresh packages.
        threads: The number of each party's threads, see `run_segment`.
        events: Whether outcomes have logs.
        limits: The limits of the parties' connections.
        timeout: The maximum seconds of each segment.

    Returns:
        The outcomes by segment and party.

    Raises:
        ValueError: The arguments do not fit one another.
        PartiesError: A segment failed. The error has the error of each party, and no process is left.
    """
    plans = [plans] if isinstance(plans, SegmentPlan) else list(plans)
    count = len(holdings)
    lists = {"states": states, "networks": networks, "injections": injections, "recorders": recorders}
    _check(count, plans, transport, processes, lists)
    shared = packages or [DealOrder.of(plan).deal() for plan in plans if plan.algorithm == SHARED]
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(socket_folder()) if transport == "unix" else None
        endpoints = _endpoints(local_addresses(count, folder), limits or Limits()) if count > 1 else [None]
        parties = [
            _Party(
                me,
                holdings[me],
                plans,
                PartyState() if states is None else states[me],
                endpoints[me],
                None if networks is None else networks[me],
                None if injections is None else injections[me],
                None if recorders is None else recorders[me],
                threads,
                events,
                [dealt[me] for dealt in shared] if shared else None,
            )
            for me in range(count)
        ]
        return (_in_processes if processes else _in_threads)(parties, timeout)


def _check(
    count: int,
    plans: Sequence[SegmentPlan],
    transport: str,
    processes: bool,
    lists: Mapping[str, Sequence[object] | None],
) -> None:
    if transport not in TRANSPORTS:
        raise ValueError(f"transport {transport!r} is not known; one of: {', '.join(TRANSPORTS)}")
    for plan in plans:
        plan.check()
        if plan.parties != count:
            raise ValueError(f"a plan for {plan.parties} parties, and holdings of {count}")
    for name, given in lists.items():
        if given is not None and len(given) != count:
            raise ValueError(f"{name} of {len(given)} parties, and holdings of {count}")
    if processes and lists["recorders"] is not None:
        raise ValueError("a recorder sees nothing of another process; take processes=False")


def _endpoints(addresses: list[Address], limits: Limits) -> list[Endpoint | None]:
    identities = [Identity.create(f"party {party}") for party in range(len(addresses))]
    certificates = [identity.certificate for identity in identities]
    return [Endpoint(addresses, identity, certificates, limits=limits) for identity in identities]


def _in_threads(parties: list[_Party], timeout: float) -> list[list[SegmentOutcome]]:
    outcomes: list[list[SegmentOutcome]] = [[] for _ in parties]
    errors: dict[int, BaseException] = {}

    def work(party: _Party) -> None:
        try:
            outcomes[party.me].extend(party.run())
        except BaseException as error:
            errors[party.me] = error

    if len(parties) == 1:
        work(parties[0])
    else:
        running = [threading.Thread(target=work, args=(party,), daemon=True) for party in parties]
        for thread in running:
            thread.start()
        deadline = time.monotonic() + timeout * len(parties[0].plans)
        for party, thread in zip(parties, running, strict=True):
            thread.join(max(0.0, deadline - time.monotonic()))
            if thread.is_alive():
                errors.setdefault(party.me, TimeoutError("it did not end in time"))
    if errors:
        raise PartiesError(errors)
    return [list(segment) for segment in zip(*outcomes, strict=True)]


def _in_processes(parties: list[_Party], timeout: float) -> list[list[SegmentOutcome]]:
    context = _fork_server()
    running: list[BaseProcess] = []
    pipes: list[Connection] = []
    try:
        for _ in parties:
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(theirs,), daemon=True)
            process.start()
            theirs.close()
            running.append(process)
            pipes.append(ours)
        for party, pipe in zip(parties, pipes, strict=True):
            pipe.send(party)
        segments = []
        for _ in parties[0].plans:
            answers = _answers(pipes, running, timeout)
            errors = {me: answer for me, answer in answers.items() if not isinstance(answer, SegmentOutcome)}
            if errors:
                raise PartiesError(errors)
            segments.append([answer for _, answer in sorted(answers.items()) if isinstance(answer, SegmentOutcome)])
        return segments
    finally:
        _end(running, pipes)


def _answers(
    pipes: list[Connection], running: list[BaseProcess], timeout: float
) -> dict[int, SegmentOutcome | BaseException]:
    """Return the outcome or error of each process in a segment.

    After an error the other processes get only a little time.
    """
    answers: dict[int, SegmentOutcome | BaseException] = {}
    waiting = {pipe: me for me, pipe in enumerate(pipes)}
    deadline = time.monotonic() + timeout
    while waiting:
        ready = wait(list(waiting), max(0.0, deadline - time.monotonic()))
        for pipe in [pipe for pipe in waiting if pipe in ready or not ready]:
            me = waiting.pop(pipe)
            answers[me] = _answer(pipe, running[me]) if ready else TimeoutError("it did not end in time")
            if isinstance(answers[me], BaseException):
                deadline = min(deadline, time.monotonic() + _GRACE)
    return answers


def _answer(pipe: Connection, process: BaseProcess) -> SegmentOutcome | BaseException:
    try:
        answer = pipe.recv()
    except (EOFError, OSError):
        process.join(1.0)
        return RuntimeError(f"its process ended with exit code {process.exitcode}")
    if isinstance(answer, SegmentOutcome | BaseException):
        return answer
    return TypeError(f"its process sent a {type(answer).__name__}")


def _end(running: list[BaseProcess], pipes: list[Connection]) -> None:
    for pipe in pipes:
        pipe.close()
    for stop in (None, BaseProcess.terminate, BaseProcess.kill):
        for process in running:
            if stop is not None and process.is_alive():
                stop(process)
        deadline = time.monotonic() + 1.0
        for process in running:
            process.join(max(0.0, deadline - time.monotonic()))


def _fork_server() -> ForkServerContext:
    """Return a server process with all imports done, from which parties' processes start at once."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    return context


def _serve(pipe: Connection) -> None:
    """Run a party in its process. The party's outcomes, or its error, are sent through the pipe."""
    party: _Party = pipe.recv()
    with contextlib.suppress(BrokenPipeError, KeyboardInterrupt), threadpool_limits(1):
        try:
            for outcome in party.run():
                pipe.send(outcome)
        except Exception as error:
            pipe.send(error)
