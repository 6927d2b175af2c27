"""Local training of a cohort as blocks: no client has its own message or reply.

The guards of one client decide for all clients, since the nodes' settings differ only in the partition id. All
other clients train on separate messages, as in `simulations.engines.stacked.messages`.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from flwr.app import Context

from apps.client_app import introduce, take_part
from apps.guards import chain
from apps.guards.chain import resume, surround
from apps.guards.memory import STORED_ROUND, put
from apps.guards.work import Work, report_of, site_of
from apps.run_config.algorithm import Sites
from apps.sites.memory_blocks import MemoryBlocks
from apps.sites.rows import RowSites, reads_own
from apps.sites.state_store import StateStore, load_all
from clients.base import MethodClient
from methods.method import as_array
from payloads.broadcast import Broadcast, ReplyBlock
from payloads.flower_internals import make_twin, values_of
from payloads.handshake import SiteReport
from payloads.record import IntArray, Payload
from payloads.wire import ROUND, STATE_SINCE
from problems.site import Site
from simulations.engines.stacked.fitting import attempt, fit_block, stacking_of
from simulations.engines.stacked.memories import Memories, choose_sound

# (a site's properties that must be equal in a stack, the number of such sites) -> the numbers of clients in each stack.
# None: unknown, so the clients must train on separate messages
Sizes = Callable[[Hashable, int], Sequence[int] | None]
# a number of new clients
MANY = 1000
# runs a function for each stack, perhaps at the same time
Run = Callable[[Callable[["_Stack"], Any], Sequence["_Stack"]], Sequence[Any]]


@dataclass(frozen=True)
class _Known:
    """A client's data, and the properties that must be equal in a stack. None: the client trains alone."""

    site: Site
    kind: Hashable


@dataclass(frozen=True)
class _Stack:
    """Clients that train together.

    Attributes:
        client: The first client.
        places: The clients' places in the cohort.
        sites: Their data.
        rows: The rows of their memories. None: the method has no memory.
        started: The rounds of the memories from which they start; 0: no memory. None as for ``rows``.
    """

    client: MethodClient[Any]
    places: Sequence[int]
    sites: Sequence[Site]
    rows: IntArray | None
    started: IntArray | None


class CohortTrainer:
    """The training of a run's cohorts as blocks."""

    def __init__(self) -> None:
        self._known: dict[int, _Known] = {}
        self._memories: Memories | None = None
        self._files: MemoryBlocks | None = None
        self._checkpoint = 0

    def train(
        self, cohort: Broadcast, contexts: Mapping[int, Context], sizes: Sizes, run: Run
    ) -> list[tuple[ReplyBlock, Sequence[int]]]:
        """Train the clients of a cohort.

        Args:
            cohort: The cohort. Its message must ask for local steps.
            contexts: The context of each node.
            sizes: See `Sizes`.
            run: See `Run`.

        Returns:
            The values of the replies in blocks, and the place in the cohort of each of a block's rows. The clients in
            all other places must train on separate messages.
        """
        place = 0
        if self._memories is not None:  # the guards of another client would look for its memory in all files
            place = self._memories.find(cohort.nodes)
            self.give_back(contexts[cohort.nodes[place]])
        work = attempt(_open, cohort, contexts, place)
        if isinstance(work, Exception) or not _is_common(work):
            return []
        if isinstance(attempt(self._follow_checkpoints, work, contexts), Exception):
            return []
        before = len(self._known)
        known = [self._known.get(node) or self._meet(node, contexts[node], work) for node in cohort.nodes]
        if len(self._known) > before + MANY:
            gc.freeze()  # saves time: full garbage collections would visit all clients
        stacks = self._group(cohort, contexts, work, known, sizes)
        if stacks is None:
            return []
        outcomes = run(lambda stack: attempt(self._fit, stack, work), stacks)
        pairs = zip(outcomes, stacks, strict=True)
        return [(block, stack.places) for block, stack in pairs if isinstance(block, ReplyBlock)]

    def give_back(self, context: Context) -> None:
        """Move a node's memory to its context, for the ClientApp."""
        if self._memories is not None:
            self._memories.give_back(context)

    def _follow_checkpoints(self, work: Work, contexts: Mapping[int, Context]) -> None:
        """Load the memories of a resumed run, and remove the files that a resumed run cannot need any more.

        Raises:
            PayloadError: A file is damaged. Each client reports it when it answers its message.
        """
        config, kind = work.request.config, work.client.memory
        if kind is None or (store := StateStore.of(work.context, config, work.request.local, work.partition)) is None:
            return
        server_round, checkpoint = int(config[ROUND]), store.checkpoint_round
        # later memories replace the checkpoint's, so files are removed only before the first training after it
        if self._files is not None and (checkpoint == self._checkpoint or server_round != checkpoint + 1):
            return
        self._checkpoint = checkpoint
        stored, missing = set[int](), dict[int, Context]()
        for context in contexts.values():
            if (made := values_of(context.state).get(STORED_ROUND)) is not None:
                stored.add(int(made[ROUND]))
            else:
                missing[int(context.node_config["partition-id"])] = context
        if self._files is None:
            files = MemoryBlocks(store.folder.parent)
            files.remove_after(checkpoint)
            for partition, (memory, number) in load_all(files.folder, kind, missing, server_round).items():
                put(missing[partition], memory, number)
            self._files = files
        else:
            self._files.remove(checkpoint, stored | (self._memories.rounds if self._memories else set()))

    def _meet(self, node: int, context: Context, work: Work) -> _Known:
        """Look at a client for the first time. A client whose data cannot be read trains alone, to report it."""
        run, config = work.run, context.node_config
        partition = int(config["partition-id"]), int(config["num-partitions"])
        site = attempt(site_of, work.context, run, work.request.scaling, partition)
        if not isinstance(site, Site):
            return _Known(work.client.site, None)
        client = make_twin(work.client)  # faster than a new client
        client.site = site
        assert isinstance(client, MethodClient)
        stacking = stacking_of(client)
        kind = None
        if stacking is not None:
            task = client.task(work.request.config)
            kind = task.training.local_steps, stacking.shape(task)
        self._known[node] = known = _Known(site, kind)
        return known

    def _group(
        self, cohort: Broadcast, contexts: Mapping[int, Context], work: Work, known: Sequence[_Known], sizes: Sizes
    ) -> list[_Stack] | None:
        """Return the stacks of the clients that can train together. None: all clients must train on messages."""
        rows = started = None
        if (kind := work.client.memory) is not None:
            self._memories = self._memories or Memories(kind)
            rows = self._memories.take(contexts, cohort.nodes)
            server_round = int(work.request.config[ROUND])
            started = self._memories.recall(rows, int(work.request.config.get(STATE_SINCE, 0)), server_round)
        groups: dict[Hashable, list[int]] = {}
        for place, client in enumerate(known):
            groups.setdefault(client.kind, []).append(place)
        stacks: list[_Stack] = []
        for alike, places in groups.items():
            if alike is None:
                continue
            if (counts := sizes(alike, len(places))) is None:
                return None
            begin = 0
            for count in counts:
                part = places[begin : begin + count]
                begin += count
                if count > 1:
                    sites = [known[place].site for place in part]
                    own = None if rows is None else rows[part]
                    first = None if started is None else started[part]
                    stacks.append(_Stack(_client_of(work, sites[0]), part, sites, own, first))
        return stacks

    def _fit(self, stack: _Stack, work: Work) -> ReplyBlock:
        """Train a stack, and keep the memories."""
        memories, rows, started, request = self._memories, stack.rows, stack.started, work.request
        recalled: list[tuple[IntArray, Payload | None]] = [(np.arange(len(stack.sites)), None)]
        if memories is not None and rows is not None and started is not None and started.any():
            back, new_ones = np.flatnonzero(started), np.flatnonzero(started == 0)
            recalled = [(back, memories.read(rows[back])), *([(new_ones, None)] if len(new_ones) else [])]
        arrived, up, new = fit_block(stack.client, stack.sites, recalled, request.parameters, request.config)
        points = as_array(arrived)
        points.flags.writeable = False
        server_round = int(request.config[ROUND])
        if new is not None and memories is not None and rows is not None:
            sound, fields = choose_sound(new, np.isfinite(points).all(axis=1))
            if self._files is not None and sound.any():
                clients = np.array([site.partition_id for site in stack.sites])[sound]
                self._files.save(server_round, memories.kind, clients, {name: fields[name] for name in new.durable()})
            memories.keep(rows[sound], fields, server_round)
        return ReplyBlock(server_round, points, up, [len(site) for site in stack.sites], started)


def introduce_all(cohort: Broadcast, contexts: Mapping[int, Context]) -> tuple[list[SiteReport], dict[str, Any]] | None:
    """Return the answers of nodes to the handshake: their reports, and the facts that are the same for all.

    Returns:
        None: each node must answer its message, since the first node cannot, or since sites read their own files.
    """
    try:
        work = Work.of(cohort[0], contexts[cohort.nodes[0]])
        if reads_own(work.run) or not isinstance(work.run.algorithm.sites, RowSites):
            return None
        first = chain.run(work, introduce)
        reports = [report_of(contexts[node], work.run) for node in cohort.nodes]
    except Exception:  # the ClientApp reports the error
        return None
    assert first.config is not None
    return reports, first.config


def _open(cohort: Broadcast, contexts: Mapping[int, Context], place: int) -> Work:
    """Run the guards of one client up to its training, and return its work.

    Raises:
        Exception: A guard refuses, or the message is malformed.
    """
    work = Work.of(cohort[place], contexts[cohort.nodes[place]])
    steps = surround(work, take_part)
    resume(steps)
    steps.close()
    return work


def _is_common(work: Work) -> bool:
    """Return whether all clients of a run do the same work as this client, apart from their data."""
    client, privacy, sites = work.client, work.run.privacy, type(work.run.algorithm.sites)
    own = any(getattr(sites, name) is not getattr(Sites, name) for name in ("audit", "begin", "end"))
    if own or not isinstance(client, MethodClient) or not client.method.stacked or stacking_of(client) is None:
        return False
    if privacy.secure_sum or privacy.epsilon or client.memory is not client.method.records.memory:
        return False
    store = StateStore.of(work.context, work.request.config, work.request.local, work.partition)
    return client.memory is None or store is None or not store.flushed


def _client_of(work: Work, site: Site) -> MethodClient[Any]:
    """Return the client of a site, with the record from the server."""
    run = work.run
    client: Any = run.algorithm.client(site, run.algorithm.sites.model(run, site), run.training, run.family)
    client.inbox = work.client.inbox
    assert isinstance(client, MethodClient)
    return client
