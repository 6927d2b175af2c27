"""Replies to the messages of a round, for clients that are trained together."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Hashable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from logging import INFO
from typing import Any

import torch
from flwr.app import ConfigRecord, Context, Message, MessageType
from flwr.common import log

from apps.client_app import take_part
from apps.config import Scalar, parse_run_config
from apps.guards.chain import TRIAL, fit, resume, surround
from apps.guards.guard import Steps
from apps.guards.work import Request, Work, run_config
from clients.base import Fitted, MethodClient
from payloads.wire import CONFIG, PHASE, ROUND, need
from simulations.arguments import AUTO, Stack, wrong_stack
from simulations.engines.flower_internals import make_reply
from simulations.engines.stacked.carries import NotAlikeError
from simulations.engines.stacked.fitting import attempt, fit_together, stacking_of
from simulations.engines.stacked.stacking import Stacking

# the stack sizes that ``auto`` tries, in addition to all similar clients
TRIED = 1, 8, 24, 64


def make_stacker(stack: Stack, config: Mapping[str, Scalar]) -> Stacker | None:
    """Return the function that answers a run's messages in place of its ClientApp, `apps.client_app.app`.

    Args:
        stack: The maximum number of stacked clients, or `AUTO`.

    Returns:
        None if all clients train alone: with ``stack`` 1, and in vertical runs, whose parties talk to each other.

    Raises:
        ConfigError: ``stack`` is neither `AUTO` nor an integer above 0.
    """
    if stack != AUTO and (not isinstance(stack, int) or stack < 1):
        raise wrong_stack("stack", stack)
    if stack == 1 or parse_run_config(config).algorithm.strategy.clients_meet:
        return None
    return Stacker(stack)


class Stacker:
    """A function that answers messages like `apps.client_app.app`, but trains several clients at once.

    Messages other than local training, and runs whose first client cannot be stacked, go to the ordinary ClientApp. On
    a CPU, ``torch-threads`` stacks train at once, each on one thread: most products of a stack are too small to
    distribute over threads.

    Args:
        stack: The maximum number of stacked clients. `AUTO`: the fastest number, measured when similar clients first
            train.
    """

    def __init__(self, stack: Stack) -> None:
        self.stack = stack
        self._stackable = True
        self._stacking: Stacking | None = None  # a run has one algorithm and one network
        self._chosen: dict[Hashable, int] = {}
        self._pool: ThreadPoolExecutor | None = None

    def __call__(
        self, messages: Sequence[Message], contexts: Sequence[Context | None]
    ) -> list[Message | Exception | None]:
        """Return the reply to each message, its client's exception, or None; see `in_process.Together`."""
        outcomes: list[Message | Exception | None] = [None] * len(messages)
        groups: dict[tuple[Hashable, ...], list[int]] = {}
        works: dict[int, Work] = {}
        steps: dict[int, Steps] = {}
        requests: dict[int, Request | None] = {}  # by content, since the clients of a round share a content
        for place, (message, context) in enumerate(zip(messages, contexts, strict=True)):
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
                outcomes[place] = work
                continue
            works[place], steps[place] = work, surround(work, take_part)
            if (refused := attempt(resume, steps[place])) is not None:
                assert isinstance(refused, Exception)
                outcomes[place] = refused
                continue
            self._stacking = self._stacking or stacking_of(work.client)  # type: ignore[arg-type]
            if self._stacking is None:
                self._stackable = False
                outcomes[place] = _reply(steps[place], fit(work), message)  # its guards must not see it twice
                continue
            groups.setdefault((shared, *likeness(work, self._stacking)), []).append(place)
        for key, group in groups.items():
            alike = [works[place] for place in group]
            trained = self._fit(alike, self._largest(key[-1], alike))
            for place, fitted in zip(group, trained, strict=True):
                outcomes[place] = _reply(steps[place], fitted, messages[place])
        return outcomes

    def _largest(self, kind: Hashable, works: Sequence[Work]) -> int:
        """Return the maximum stack size for similar clients.

        Args:
            kind: The key of the cached size: the last entry of their `likeness`.
            works: The work of these clients.
        """
        count = len(works)
        if count == 1 or self.stack != AUTO:
            return 1 if count == 1 else int(self.stack)
        if kind not in self._chosen:
            self._time(works[:2], 2)  # initialises the sites' data, which is not to be timed
            sizes = [size for size in (*TRIED, count) if size <= count]
            # twice, since a stack of a new size first needs new memory
            seconds = {size: min(self._time(works, size) for _ in range(2)) for size in sizes}
            self._chosen[kind] = best = min(seconds, key=lambda size: seconds[size])
            text = "stacking up to %d clients: %.2f ms a client, %.2f ms alone"
            log(INFO, text, best, 1000 * seconds[best], 1000 * seconds[1])
        return self._chosen[kind]

    def _time(self, works: Sequence[Work], size: int) -> float:
        """Return the seconds per client in stacks of a size. The results of the training are discarded."""
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
            largest: The maximum stack size.
        """
        threads = _threads_of(works[0])
        count = math.ceil(len(works) / largest)
        if largest > 1:  # a stack of at least two clients for each thread
            count = max(count, min(threads, len(works) // 2))
        ends = [len(works) * part // count for part in range(count + 1)]
        parts = [works[begin:end] for begin, end in itertools.pairwise(ends)]
        if threads > 1 and count > 1 and largest > 1:
            self._pool = self._pool or ThreadPoolExecutor(threads, "stack", torch.set_num_threads, (1,))
            stacked = list(self._pool.map(_fit_stack, parts))
        else:
            stacked = [_fit_stack(part) for part in parts]
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
    """Return the properties that stacked clients with a common request must share.

    The last entry depends on the site and not on the round.
    """
    client: Any = work.client
    shape = stacking.shape(client.task(int(work.request.config[ROUND])))
    return id(client.objective.model), id(client.inbox), shape


def _reply(steps: Steps, fitted: Fitted | BaseException, message: Message) -> Message | Exception:
    answer = attempt(resume, steps, fitted)
    if isinstance(answer, Exception):
        return answer
    assert answer is not None
    return make_reply(answer.to_records(), message)


def _threads_of(work: Work) -> int:
    """Return the number of stacks that may train at once."""
    return work.run.training.torch_threads if work.client.model.device.type == "cpu" else 1


def _fit_stack(works: Sequence[Work]) -> Sequence[Fitted | Exception] | None:
    """Return each client's trained result, or its exception; None if the clients must train alone."""
    clients: list[Any] = [work.client for work in works]
    if len(clients) == 1:
        return None
    try:
        return fit_together(clients, works[0].request.parameters, works[0].request.config)
    except NotAlikeError:
        return None
    except Exception as error:  # each client answers with it, as if it had trained alone
        return [error] * len(works)


def _fit_alone(works: Sequence[Work]) -> list[Fitted | BaseException]:
    return [fit(work) for work in works]
