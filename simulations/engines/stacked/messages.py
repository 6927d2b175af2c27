"""Replies to the messages of a round, for clients that are trained together."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from logging import INFO
from typing import Any

from flwr.app import ConfigRecord, Context, Message, MessageType
from flwr.common import log

from apps.client_app import Work, answer, receive, run_config
from apps.config import ConfigError, Scalar, parse_run_config
from clients.base import Fitted, MethodClient
from payloads.wire import CONFIG, PHASE, ROUND, need
from simulations.arguments import AUTO, Stack
from simulations.engines.stacked.carries import NotAlikeError
from simulations.engines.stacked.fitting import fit_together, stacking_of

# how a ClientApp answers: a message, its context -> the reply
Answer = Callable[[Message, Context], Message]


# how many clients ``auto`` tries to stack, beside all that are alike
TRIED = 1, 8, 64


def make_stacker(app: Answer, stack: Stack, config: Mapping[str, Scalar]) -> Stacker | None:
    """What answers the messages of a run in place of its ClientApp.

    Args:
        stack: how many clients are stacked at most, or `AUTO`.

    Returns:
        None where all clients train alone: with ``stack`` 1, and in vertical runs, whose parties talk to each other.

    Raises:
        ConfigError: ``stack`` is neither `AUTO` nor an integer above 0.
    """
    if stack != AUTO and (not isinstance(stack, int) or stack < 1):
        allowed = "auto, or an integer >= 1"
        raise ConfigError("stack", got=repr(stack), allowed=allowed, hint="auto tries what is fastest")
    if stack == 1 or parse_run_config(config).algorithm.strategy.vertical:
        return None
    return Stacker(app, stack)


class Stacker:
    """Answers messages as `apps.client_app.app` does, with the local training of several clients at once.

    Args:
        app: answers what cannot be stacked.
        stack: how many clients are stacked at most; `AUTO`: as many as turn out to be fastest when clients that are
            alike first have to train.
    """

    def __init__(self, app: Answer, stack: Stack) -> None:
        self.app, self.stack = app, stack
        self._chosen: dict[Hashable, int] = {}

    def __call__(self, messages: Sequence[Message], contexts: Sequence[Context]) -> list[Message | Exception]:
        """The reply to each message or, where a client failed, its exception."""
        outcomes: dict[int, Message | Exception] = {}
        groups: dict[Hashable, list[int]] = {}
        works: dict[int, Work] = {}
        for place, (message, context) in enumerate(zip(messages, contexts, strict=True)):
            try:
                if can_be_stacked(message, context):
                    works[place] = receive(message, context, {})
                    groups.setdefault(likeness(works[place]), []).append(place)
            except Exception as error:
                outcomes[place] = error
        for group in groups.values():
            largest = self._largest([(messages[place], contexts[place]) for place in group], works[group[0]])
            for start in range(0, len(group), largest):
                places = group[start : start + largest]
                for place, fitted in zip(places, _fit([works[place] for place in places]), strict=False):
                    outcomes[place] = attempt(_reply, works[place], fitted, messages[place], contexts[place])
        for place, (message, context) in enumerate(zip(messages, contexts, strict=True)):
            if place not in outcomes:
                outcomes[place] = attempt(self.app, message, context)
        return [outcomes[place] for place in range(len(messages))]

    def _largest(self, asked: Sequence[tuple[Message, Context]], work: Work) -> int:
        """How many of some clients that are alike to stack at most.

        Args:
            asked: the messages to these clients, with their contexts.
            work: of the first of them.
        """
        if self.stack != AUTO:
            return int(self.stack)
        kind, count = (type(work.client), likeness(work)[-1]), len(asked)
        if count == 1:
            return 1
        if kind not in self._chosen:
            _fit([receive(*one, {}) for one in asked[:2]])  # what is made once, such as the sites' data
            seconds = {size: _time(asked[:size]) / size for size in (*TRIED, count) if size <= count}
            self._chosen[kind] = best = min(seconds, key=lambda size: seconds[size])
            text = "stacking up to %d clients: %.2f ms a client, %.2f ms alone"
            log(INFO, text, best, 1000 * seconds[best], 1000 * seconds[1])
        return self._chosen[kind]


def _time(asked: Sequence[tuple[Message, Context]]) -> float:
    """The seconds that some clients take, stacked. Nothing is kept of what they train."""
    works = [receive(*one, {}) for one in asked]
    begun = time.perf_counter()
    if not _fit(works):
        for work in works:
            work.client.fit(work.parameters, work.config)
    return time.perf_counter() - begun


def _fit(works: Sequence[Work]) -> Sequence[Fitted | Exception]:
    """What each client has trained; nothing where they can only train alone."""
    if len(works) == 1:
        return ()
    clients: list[Any] = [work.client for work in works]
    try:
        return fit_together(clients, works[0].parameters, works[0].config)
    except NotAlikeError:
        return ()
    except Exception as error:  # each client answers with it, as if it had met it alone
        return [error] * len(works)


def can_be_stacked(message: Message, context: Context) -> bool:
    """Whether a message asks for local steps, of a method whose clients may be stacked."""
    if message.metadata.message_type != MessageType.TRAIN or PHASE in need(message.content, CONFIG, ConfigRecord):
        return False
    return issubclass(run_config(context).algorithm.client, MethodClient)


def likeness(work: Work) -> tuple[Any, ...]:
    """What clients must have in common to be stacked; a value of its own for one that can only train alone.

    The last entry depends on the site and the settings, not on the round.
    """
    client: Any = work.client
    stacking = stacking_of(client)
    if stacking is None or client.model.stochastic:
        return (object(),)
    received = tuple(array.__array_interface__["data"][0] for array in work.parameters), id(client.inbox)
    return (
        type(client),
        id(client.objective.model),
        received,
        tuple(work.config.items()),
        stacking.shape(client.task(int(work.config[ROUND]))),
    )


def attempt(call: Callable[..., Message], *arguments: Any) -> Message | Exception:
    """What a call returns, or the exception that it raises."""
    try:
        return call(*arguments)
    except Exception as error:
        return error


def _reply(work: Work, fitted: Fitted | Exception, message: Message, context: Context) -> Message:
    if isinstance(fitted, Exception):
        raise fitted
    return answer(work, fitted, message, context)
