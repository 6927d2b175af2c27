"""Replies to the messages of a round, for clients that are trained together."""

from __future__ import annotations

import time
from collections.abc import Hashable, Mapping, Sequence
from logging import INFO
from typing import Any

from flwr.app import ConfigRecord, Context, Message, MessageType
from flwr.common import log

from apps.client_app import Work, answer, receive, run_config
from apps.config import Scalar, parse_run_config
from clients.base import Fitted, MethodClient
from payloads.wire import CONFIG, PHASE, ROUND, need
from simulations.arguments import AUTO, Stack, wrong_stack
from simulations.engines.stacked.carries import NotAlikeError
from simulations.engines.stacked.fitting import attempt, fit_together, stacking_of
from simulations.engines.stacked.stacking import Stacking

# how many clients ``auto`` tries to stack, beside all that are alike
TRIED = 1, 8, 64


def make_stacker(stack: Stack, config: Mapping[str, Scalar]) -> Stacker | None:
    """What answers messages of a run in place of its ClientApp, `apps.client_app.app`.

    Args:
        stack: how many clients are stacked at most, or `AUTO`.

    Returns:
        None where all clients train alone: with ``stack`` 1, and in vertical runs, whose parties talk to each other.

    Raises:
        ConfigError: ``stack`` is neither `AUTO` nor an integer above 0.
    """
    if stack != AUTO and (not isinstance(stack, int) or stack < 1):
        raise wrong_stack("stack", stack)
    if stack == 1 or parse_run_config(config).algorithm.strategy.vertical:
        return None
    return Stacker(stack)


class Stacker:
    """Answers messages as `apps.client_app.app` does, with the local training of several clients at once.

    It leaves to others what is no local training, and all messages of a run whose clients cannot be stacked.

    Args:
        stack: how many clients are stacked at most; `AUTO`: as many as turn out to be fastest when clients that are
            alike first have to train.
    """

    def __init__(self, stack: Stack) -> None:
        self.stack = stack
        self._stackable = True
        self._chosen: dict[Hashable, int] = {}

    def __call__(
        self, messages: Sequence[Message], contexts: Sequence[Context | None]
    ) -> list[Message | Exception | None]:
        """The reply to each message, the exception that its client met, or None; see `in_process.Together`."""
        outcomes: list[Message | Exception | None] = [None] * len(messages)
        groups: dict[Hashable, list[int]] = {}
        works: dict[int, Work] = {}
        asked: dict[int, tuple[Message, Context]] = {}
        wanted: dict[int, bool] = {}  # the clients of a round share one content
        for place, (message, context) in enumerate(zip(messages, contexts, strict=True)):
            if context is None or not self._stackable:
                continue
            if id(message.content) not in wanted:
                wanted[id(message.content)] = asks_for_steps(message, context)
            if not wanted[id(message.content)]:
                continue
            work = attempt(receive, message, context, {})
            if isinstance(work, Exception):
                outcomes[place] = work
                continue
            stacking = stacking_of(work.client)  # type: ignore[arg-type]
            if stacking is None:  # a run has one algorithm and one network
                self._stackable = False
                continue
            works[place], asked[place] = work, (message, context)
            groups.setdefault(likeness(work, stacking), []).append(place)
        for key, group in groups.items():
            largest = self._largest(key, [asked[place] for place in group])
            for start in range(0, len(group), largest):
                places = group[start : start + largest]
                for place, fitted in zip(places, _fit([works[place] for place in places]), strict=True):
                    if not isinstance(fitted, Exception):
                        outcomes[place] = attempt(answer, works[place], fitted, *asked[place])
                    else:
                        outcomes[place] = fitted
        return outcomes

    def _largest(self, key: Any, asked: Sequence[tuple[Message, Context]]) -> int:
        """How many of some clients that are alike to stack at most.

        Args:
            key: their `likeness`.
            asked: the messages to these clients, with their contexts.
        """
        count = len(asked)
        if count == 1 or self.stack != AUTO:
            return 1 if count == 1 else int(self.stack)
        kind = key[-1]
        if kind not in self._chosen:
            _time(asked[:2])  # makes what is made once, such as the sites' data
            seconds = {size: _time(asked[:size]) / size for size in (*TRIED, count) if size <= count}
            self._chosen[kind] = best = min(seconds, key=lambda size: seconds[size])
            text = "stacking up to %d clients: %.2f ms a client, %.2f ms alone"
            log(INFO, text, best, 1000 * seconds[best], 1000 * seconds[1])
        return self._chosen[kind]


def asks_for_steps(message: Message, context: Context) -> bool:
    """Whether a message asks a client of a method for local steps."""
    if message.metadata.message_type != MessageType.TRAIN or PHASE in need(message.content, CONFIG, ConfigRecord):
        return False
    return issubclass(run_config(context).algorithm.client, MethodClient)


def likeness(work: Work, stacking: Stacking) -> Hashable:
    """What clients must have in common to be stacked; the last entry depends on the site and not on the round."""
    client: Any = work.client
    received = tuple(array.__array_interface__["data"][0] for array in work.parameters), id(client.inbox)
    shape = stacking.shape(client.task(int(work.config[ROUND])))
    return id(client.objective.model), received, tuple(work.config.items()), shape


def _time(asked: Sequence[tuple[Message, Context]]) -> float:
    """The seconds that some clients take, stacked. Nothing is kept of what they train."""
    works = [receive(*one, {}) for one in asked]
    begun = time.perf_counter()
    _fit(works)
    return time.perf_counter() - begun


def _fit(works: Sequence[Work]) -> Sequence[Fitted | Exception]:
    """What each client has trained, or the exception that it met."""
    clients: list[Any] = [work.client for work in works]
    if len(works) > 1:
        try:
            return fit_together(clients, works[0].parameters, works[0].config)
        except NotAlikeError:
            pass
        except Exception as error:  # each client answers with it, as if it had met it alone
            return [error] * len(works)
    return [attempt(client.fit, work.parameters, work.config) for client, work in zip(clients, works, strict=True)]
