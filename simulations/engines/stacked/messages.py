"""Replies to a round's messages: local training of many clients in stacks, other messages by the ordinary ClientApp."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from logging import INFO
from typing import Any, TypeVar

import torch
from flwr.app import ConfigRecord, Context, Message, MessageType
from flwr.common import log

from apps.client_app import take_part
from apps.config import Scalar, parse_run_config
from apps.guards.chain import TRIAL, fit, resume, surround
from apps.guards.guard import Steps
from apps.guards.work import Request, Work, run_config
from apps.sites import resources
from clients.base import Fitted, MethodClient
from payloads.broadcast import Broadcast, ReplyBlock
from payloads.handshake import SiteReport
from payloads.wire import CONFIG, PHASE, need
from problems.augmentation import NONE
from problems.image_tensor import ImageTensor
from simulations.arguments import AUTO, Stack, wrong_stack
from simulations.engines.flower_internals import make_reply
from simulations.engines.stacked.carries import NotAlikeError
from simulations.engines.stacked.cohorts import CohortTrainer, introduce_all
from simulations.engines.stacked.fitting import attempt, fit_together, stacking_of
from simulations.engines.stacked.stacking import Stacking

T = TypeVar("T")
R = TypeVar("R")
# the stack sizes that ``auto`` tries, in addition to one stack of all similar clients
TRIED = 1, 8, 24, 64


def make_stacker(stack: Stack, config: Mapping[str, Scalar]) -> Stacker | None:
    """Return the function that answers a run's messages in place of its ClientApp, `apps.client_app.app`.

    Args:
        stack: The maximum number of clients in a stack, or `AUTO`.
        config: The flat run config.

    Returns:
        The function. None if all clients train alone: with ``stack`` 1, and in vertical runs.

    Raises:
        ConfigError: ``stack`` is neither `AUTO` nor an integer above 0.
    """
    if stack != AUTO and (not isinstance(stack, int) or stack < 1):
        raise wrong_stack("stack", stack)
    if stack == 1 or parse_run_config(config).algorithm.strategy.clients_meet:
        return None
    return Stacker(stack)


class Stacker:
    """A function that answers messages like `apps.client_app.app`, but trains several clients in one computation.

    Messages other than local training go to the ordinary ClientApp, and so do all messages if the first client cannot
    be stacked. On a CPU, ``torch-threads`` stacks train at the same time with one thread each, since the matrix
    products of one stack are too small for several threads.

    Args:
        stack: The maximum number of clients in a stack. `AUTO`: the fastest number, which is measured when clients with
            batches of a new shape first train.
    """

    def __init__(self, stack: Stack) -> None:
        self.stack = stack
        self._stackable = True
        self._stacking: Stacking | None = None  # a run has one algorithm and one network
        self._chosen: dict[Hashable, int] = {}
        self._pool: ThreadPoolExecutor | None = None
        self._trainer = CohortTrainer()

    def introduce(
        self, cohort: Broadcast, contexts: Mapping[int, Context]
    ) -> tuple[list[SiteReport], dict[str, Any]] | None:
        """Answer the handshake for all nodes; see `in_process.Together`."""
        return introduce_all(cohort, contexts)

    def answer_cohort(
        self, cohort: Broadcast, contexts: Mapping[int, Context]
    ) -> Sequence[tuple[ReplyBlock, Sequence[int]]]:
        """Train the clients of a cohort as blocks; see `in_process.Together`."""
        if not self._stackable or not asks_for_steps(cohort[0], contexts[cohort.nodes[0]]):
            return []
        training = run_config(contexts[cohort.nodes[0]]).training
        threads = training.torch_threads if resources.device_of(training).type == "cpu" else 1
        sizes, run = partial(self._sizes, threads=threads), partial(self._map, threads=threads)
        return self._trainer.train(cohort, contexts, sizes, run)

    def give_back(self, context: Context) -> None:
        """Move a client's memory to its node's context; see `in_process.Together`."""
        self._trainer.give_back(context)

    def _sizes(self, kind: Hashable, count: int, threads: int) -> Sequence[int] | None:
        """Return the sizes of the stacks of similar clients. None: the fastest size is not known yet."""
        largest = self._chosen.get(kind, 0) if self.stack == AUTO else int(self.stack)
        if count == 1:
            return [1]
        return None if not largest else [end - begin for begin, end in _cut(count, largest, threads)]

    def _map(self, do: Callable[[T], R], stacks: Sequence[T], threads: int) -> list[R]:
        """Call a function for each stack, with one thread for each of ``threads`` stacks at a time."""
        if threads == 1 or len(stacks) == 1:
            return [do(stack) for stack in stacks]
        self._pool = self._pool or ThreadPoolExecutor(threads, "stack", torch.set_num_threads, (1,))
        return list(self._pool.map(do, stacks))

    def __call__(
        self, messages: Sequence[Message], contexts: Sequence[Context | None]
    ) -> list[Message | Exception | None]:
        """Return the reply to each message, its client's exception, or None; see `in_process.Together`."""
        outcomes: list[Message | Exception | None] = [None] * len(messages)
        groups: dict[tuple[Hashable, ...], list[int]] = {}
        works: dict[int, Work] = {}
        steps: dict[int, Steps] = {}
        requests: dict[int, Request | None] = {}  # by content, since the clients of a round share a content
        for index, (message, context) in enumerate(zip(messages, contexts, strict=True)):
            if context is None or not self._stackable:
                continue
            shared = id(message.content)
            if shared not in requests:
                requests[shared] = Request(message.content) if asks_for_steps(message, context) else None
            request = requests[shared]
            if request is None:
                continue
            work = attempt(Work.of, message, context, request)
            if isinstance(work, Exception):
                outcomes[index] = work
                continue
            works[index], steps[index] = work, surround(work, take_part)
            if (refused := attempt(resume, steps[index])) is not None:
                assert isinstance(refused, Exception)
                outcomes[index] = refused
                continue
            self._stacking = self._stacking or stacking_of(work.client)  # type: ignore[arg-type]
            if self._stacking is None:
                self._stackable = False
                if work.run.run.augment != NONE:
                    log(
                        INFO,
                        "augment %r: clients train one by one, since a stack reads plain images",
                        work.run.run.augment,
                    )
                if isinstance(work.client.site.features, ImageTensor):
                    log(INFO, "image-cache: clients train one by one, since a stack reads images from memory")
                # the guards have already run; the ClientApp would run them again
                outcomes[index] = _reply(steps[index], fit(work), message)
                continue
            groups.setdefault((shared, *likeness(work, self._stacking)), []).append(index)
        for key, group in groups.items():
            alike = [works[index] for index in group]
            trained = self._fit(alike, self._largest(key[-1], alike))
            for index, fitted in zip(group, trained, strict=True):
                outcomes[index] = _reply(steps[index], fitted, messages[index])
        return outcomes

    def _largest(self, kind: Hashable, works: Sequence[Work]) -> int:
        """Return the maximum stack size for similar clients.

        Args:
            kind: The last entry of the clients' `likeness`, under which the fastest size is cached.
            works: The work of these clients.
        """
        count = len(works)
        if count == 1 or self.stack != AUTO:
            return 1 if count == 1 else int(self.stack)
        if kind not in self._chosen:
            self._time(works[:2], 2)  # initialises the sites' data, which must not be timed
            sizes = [size for size in (*TRIED, count) if size <= count]
            # the faster of two times, since the first stack of a new size also allocates memory
            seconds = {size: min(self._time(works, size) for _ in range(2)) for size in sizes}
            self._chosen[kind] = best = min(seconds, key=lambda size: seconds[size])
            text = "stacking up to %d clients: %.2f ms for each client, instead of %.2f ms without stacks"
            log(INFO, text, best, 1000 * seconds[best], 1000 * seconds[1])
        return self._chosen[kind]

    def _time(self, works: Sequence[Work], size: int) -> float:
        """Measure the seconds per client in stacks of a size. The trained results are discarded."""
        trials = [replace(work) for work in works[: size * _threads_of(works[0])]]
        for trial in trials:
            resume(surround(trial, take_part, TRIAL))
        begun = time.perf_counter()
        self._fit(trials, size)
        return (time.perf_counter() - begun) / len(trials)

    def _fit(self, works: Sequence[Work], largest: int) -> list[Fitted | BaseException]:
        """Return each client's trained result, or its exception.

        Args:
            works: The work of similar clients.
            largest: The maximum number of clients in a stack.
        """
        threads = _threads_of(works[0])
        parts = [works[begin:end] for begin, end in _cut(len(works), largest, threads)]
        stacked = self._map(_fit_stack, parts, 1 if largest == 1 else threads)
        fitted: list[Fitted | BaseException] = []
        for part, outcomes in zip(parts, stacked, strict=True):
            fitted += _fit_alone(part) if outcomes is None else outcomes
        return fitted


def asks_for_steps(message: Message, context: Context) -> bool:
    """Return whether a message asks a client of a method for local steps."""
    if message.metadata.message_type != MessageType.TRAIN or PHASE in need(message.content, CONFIG, ConfigRecord):
        return False
    return issubclass(run_config(context).algorithm.client, MethodClient)


def likeness(work: Work, stacking: Stacking) -> tuple[Hashable, ...]:
    """Return the properties that must be equal for clients of a common stack, in addition to a common request.

    The last entry depends only on the site, not on the round.
    """
    client: Any = work.client
    task = client.task(work.request.config)
    return id(client.objective.model), id(client.inbox), (task.training.local_steps, stacking.shape(task))


def _cut(count: int, largest: int, threads: int) -> Iterable[tuple[int, int]]:
    """Return the first and the last place (exclusive) of each stack of ``count`` clients.

    Args:
        count: The number of clients.
        largest: The maximum number of clients in a stack.
        threads: The number of threads. All are used, with at least two clients in each stack.
    """
    stacks = math.ceil(count / largest)
    if largest > 1:
        stacks = max(stacks, min(threads, count // 2))
    return itertools.pairwise(count * part // stacks for part in range(stacks + 1))


def _reply(steps: Steps, fitted: Fitted | BaseException, message: Message) -> Message | Exception:
    answer = attempt(resume, steps, fitted)
    if isinstance(answer, Exception):
        return answer
    assert answer is not None
    return make_reply(answer.to_records(), message)


def _threads_of(work: Work) -> int:
    """Return the number of stacks that may train at the same time."""
    return work.run.training.torch_threads if work.client.model.device.type == "cpu" else 1


def _fit_stack(works: Sequence[Work]) -> Sequence[Fitted | Exception] | None:
    """Return each client's trained result, or its exception. None: the clients must train alone."""
    clients: list[Any] = [work.client for work in works]
    if len(clients) == 1:
        return None
    try:
        return fit_together(clients, works[0].request.parameters, works[0].request.config)
    except NotAlikeError:
        return None
    except Exception as error:  # each client replies with the error, as if the client had trained alone
        return [error] * len(works)


def _fit_alone(works: Sequence[Work]) -> list[Fitted | BaseException]:
    return [fit(work) for work in works]
