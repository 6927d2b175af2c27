"""Parties in separate processes that a test starts, stops and sabotages individually."""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import os
import resource
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess

from benchmarks.parties import PRELOADED
from simulations.engines.addresses import socket_folder
from tests.battery.ports import addresses_for
from vertical.injection import Injection
from vertical.problem.objectives import Array
from vertical.segment.party import run_segment
from vertical.segment.plan import Holding, PartyState, SegmentOutcome, SegmentPlan
from vertical.transport.endpoint import Endpoint, Limits
from vertical.transport.frames import Frame, Kind, PartyError
from vertical.transport.identity import Identity

# long enough for a busy machine, short enough for 15 seconds
LIMITS = Limits(join=6.0, beat=0.3, silence=3.0, close=1.5)
# seconds within which every survivor must have ended
WITHIN = 15.0
# frames after which a party is in the middle of its work
_UNDER_WAY = 20


@dataclass(frozen=True)
class Ended:
    """The end of a party's segment, and its process's peak memory in bytes."""

    result: SegmentOutcome | BaseException
    memory: int


@dataclass
class Post:
    """The arguments of one party's process.

    Attributes:
        act: Function to call in the party's process before its segment, to change the party's behaviour.
    """

    me: int
    plan: SegmentPlan
    holding: Holding
    endpoint: Endpoint
    state: PartyState = field(default_factory=PartyState)
    injection: Injection | None = None
    act: Callable[[], None] | None = None


class _Watch:
    """A recorder that reports once that the party is in the middle of its work."""

    def __init__(self, tell: Callable[[], None]) -> None:
        self._tell, self._heard = tell, 0

    def received(self, peer: int, frame: Frame) -> None:
        self._heard += frame.kind in (Kind.PARTIAL, Kind.THETA)
        if self._heard == _UNDER_WAY:
            self._heard += 1
            self._tell()

    def contributed(self, kind: int, active: int, values: Array) -> None:
        pass


class Company:
    """The processes of a segment. All start at the same moment, except the absent parties."""

    def __init__(self, posts: Iterable[Post]) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(PRELOADED)  # the server is shared with `benchmarks.parties`
        self._pipes: dict[int, Connection] = {}
        self._processes: dict[int, BaseProcess] = {}
        self._ended: dict[int, Ended] = {}
        posts = list(posts)
        for post in posts:
            self._pipes[post.me], theirs = context.Pipe()
            self._processes[post.me] = context.Process(target=_live, args=(theirs,), daemon=True)
            self._processes[post.me].start()
            theirs.close()
        for post in posts:
            self._pipes[post.me].send(post)
        for post in posts:
            assert self._pipes[post.me].recv() == "ready"
        for post in posts:
            self._pipes[post.me].send("go")
        self.began = time.monotonic()

    def __enter__(self) -> Company:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes.values():
            process.kill()
        for process in self._processes.values():
            process.join(5.0)
        for pipe in self._pipes.values():
            pipe.close()

    def under_way(self, within: float = 60.0) -> None:
        """Wait until every party is in the middle of its work."""
        for me, pipe in self._pipes.items():
            assert pipe.poll(within), f"party {me} has not begun"
            told = pipe.recv()
            assert told == "under way", told

    def signal(self, me: int, number: int) -> None:
        """Send a signal to a party's process; limits count from here."""
        os.kill(self._processes[me].pid or 0, number)
        self.began = time.monotonic()

    def ends(self, parties: Sequence[int] | None = None, within: float = WITHIN) -> dict[int, Ended]:
        """Return the ends of these parties, or of all."""
        waiting = {self._pipes[me]: me for me in (self._pipes if parties is None else parties)}
        found = {}
        while waiting:
            ready = wait(list(waiting), max(0.0, self.began + within - time.monotonic()))
            assert ready, f"parties {sorted(waiting.values())} have not ended within {within:g} s"
            for pipe in list(waiting):
                if pipe in ready:
                    told = pipe.recv()
                    if isinstance(told, Ended):
                        found[waiting.pop(pipe)] = told
        return found

    def outcomes(self, within: float = 60.0) -> list[SegmentOutcome]:
        """Return the outcomes of all parties; require that none fails."""
        outcomes = []
        for _, ended in sorted(self.ends(within=within).items()):
            assert isinstance(ended.result, SegmentOutcome), repr(ended.result)
            outcomes.append(ended.result)
        return outcomes

    def blamed(self, culprit: int, words: str, survivors: Sequence[int] | None = None) -> None:
        """Require that all survivors end in time with an error that names the culprit and contains these words."""
        for me, ended in self.ends(survivors).items():
            error = ended.result
            assert isinstance(error, PartyError), f"party {me}: {error!r}"
            assert (error.party, words in error.reason) == (culprit, True), f"party {me}: {error}"


@contextlib.contextmanager
def posts(
    plan: SegmentPlan, holdings: Sequence[Holding], transport: str = "unix", limits: Limits = LIMITS
) -> Iterator[dict[int, Post]]:
    """Return each party's arguments, with addresses of this test only."""
    with socket_folder() as folder:
        addresses = addresses_for(len(holdings), folder, transport)
        identities = [Identity.create(f"party {me}") for me in range(len(holdings))]
        certificates = [identity.certificate for identity in identities]
        yield {
            me: Post(me, plan, holding, Endpoint(addresses, identities[me], certificates, limits=limits))
            for me, holding in enumerate(holdings)
        }


def _live(pipe: Connection) -> None:
    post: Post = pipe.recv()
    with contextlib.suppress(BrokenPipeError):
        import_module("vertical.problem.blocks.dense")  # imported before anything is timed
        if post.act is not None:
            post.act()
        pipe.send("ready")
        pipe.recv()
        watch = _Watch(lambda: pipe.send("under way"))
        given = (post.me, post.plan, post.holding, post.state, post.endpoint)
        result: SegmentOutcome | BaseException
        try:
            result = asyncio.run(run_segment(*given, injection=post.injection, recorder=watch))
        except Exception as error:
            result = error
        pipe.send(Ended(result, 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss))
