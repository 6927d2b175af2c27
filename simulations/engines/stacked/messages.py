"""Replies to the messages of a round, for clients that are trained together."""

from __future__ import annotations

import time
from collections.abc import Hashable, Mapping, Sequence
from logging import INFO
from typing import Any

from flwr.app import ConfigRecord, Context, Message, MessageType
from flwr.common import log

from apps.client_app import Request, Work, answer, receive, run_config
from apps.config import Scalar, parse_run_config
from clients.base import Fitted, MethodClient
from payloads.wire import CONFIG, PHASE, ROUND, need
from simulations.arguments import AUTO, Stack, wrong_stack
from simulations.engines.flower_internals import make_reply
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
        self._stacking: Stacking | None = None  # a run has one algorithm and one network
        self._chosen: dict[Hashable, int] = {}

    def __call__(
        self, messages: Sequence[Message], contexts: Sequence[Context | None]
    ) -> list[Message | Exception | None]:
        """The reply to each message, the exception that its client met, or None; see `in_process.Together`."""
        outcomes: list[Message | Exception | None] = [None] * len(messages)
        groups: dict[tuple[Hashable, ...], list[int]] = {}
        works: dict[int, Work] = {}
        requests: dict[int, Request | Exception | None] = {}  # of each content: the clients of a round share one
        for place, (message, context) in enumerate(zip(messages, contexts, strict=True)):
            if context is None or not self._stackable:
                continue
            shared = id(message.content)
            if shared not in requests:
                asked = asks_for_steps(message, context)
                requests[shared] = attempt(Request.of, message.content) if asked else None
            request = requests[shared]
            if request is None:
                continue
            work = request if isinstance(request, Exception) else attempt(receive, request, context, {})
            if isinstance(work, Exception):
                outcomes[place] = work
                continue
            self._stacking = self._stacking or stacking_of(work.client)  # type: ignore[arg-type]
            if self._stacking is None:
                self._stackable = False
                continue
            works[place] = work
            groups.setdefault((shared, *likeness(work, self._stacking)), []).append(place)
        for key, group in groups.items():
            alike = [(works[place].request, context) for place in group if (context := contexts[place])]
            largest = self._largest(key[-1], alike)
            for start in range(0, len(group), largest):
                places = group[start : start + largest]
                for place, fitted in zip(places, _fit([works[place] for place in places]), strict=True):
                    outcomes[place] = _reply(works[place], fitted, messages[place], contexts[place])
        return outcomes

    def _largest(self, kind: Hashable, asked: Sequence[tuple[Request, Context]]) -> int:
        """How many of some clients that are alike to stack at most.

        Args:
            kind: what is remembered of them, the last entry of their `likeness`.
            asked: what these clients are asked, with their contexts.
        """
        count = len(asked)
        if count == 1 or self.stack != AUTO:
            return 1 if count == 1 else int(self.stack)
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


def likeness(work: Work, stacking: Stacking) -> tuple[Hashable, ...]:
    """What clients that share a request must have in common to be stacked; the last entry depends on the site and not
    on the round."""
    client: Any = work.client
    shape = stacking.shape(client.task(int(work.request.config[ROUND])))
    return id(client.objective.model), id(client.inbox), shape


def _time(asked: Sequence[tuple[Request, Context]]) -> float:
    """The seconds that some clients take, stacked. Nothing is kept of what they train."""
    works = [receive(*one, {}) for one in asked]
    begun = time.perf_counter()
    _fit(works)
    return time.perf_counter() - begun


def _reply(work: Work, fitted: Fitted | Exception, message: Message, context: Any) -> Message | Exception:
    if isinstance(fitted, Exception):
        return fitted
    records = attempt(answer, work, fitted, context)
    return records if isinstance(records, Exception) else make_reply(records, message)


def _fit(works: Sequence[Work]) -> Sequence[Fitted | Exception]:
    """What each client has trained, or the exception that it met."""
    clients: list[Any] = [work.client for work in works]
    request = works[0].request
    if len(works) > 1:
        try:
            return fit_together(clients, request.parameters, request.config)
        except NotAlikeError:
            pass
        except Exception as error:  # each client answers with it, as if it had met it alone
            return [error] * len(works)
    return [attempt(client.fit, request.parameters, request.config) for client in clients]
