"""The errors that end a run, and the reasons why a reply does not count."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

from flwr.app import ConfigRecord, Error, Message

from payloads.flower_internals import CLIENT_EXCEPTION
from payloads.handshake import REFUSAL
from payloads.wire import CONFIG, find
from problems.errors import InputError

# the reason of a client that sent nothing
NO_ANSWER = "no answer"
# characters; longer reasons are cut, since a site may send any text
LONGEST_REASON = 1000


class StrategyError(RuntimeError):
    """An error that ends the run; the message names the round and the reason.

    It occurs during a run: a site failed, or too few replies are good. If the run config, the sites or their data must
    be changed, the error is a `SetupError`.
    """


class SetupError(InputError, StrategyError):
    """A run config, sites or data that a strategy cannot run with."""


@contextmanager
def raise_setup() -> Iterator[None]:
    """Raise the `InputError` of a method as a `SetupError`.

    Raises:
        SetupError: The enclosed block raised an `InputError`.
    """
    try:
        yield
    except InputError as error:
        raise SetupError.of(error) from None


def reason_of(error: Error) -> str:
    """Return the text of a ClientApp's exception without Flower's wrapping."""
    wrapped = re.fullmatch(CLIENT_EXCEPTION, error.reason or "", re.DOTALL)
    return wrapped[1] if wrapped else error.reason or f"error code {error.code}"


def refusal_of(reply: Message) -> str | None:
    """Return the reason why a site cannot or will not take part; None if it has not refused."""
    if not reply.has_content():
        return None
    config = find(reply.content, CONFIG, ConfigRecord)
    return None if config is None or REFUSAL not in config else shorten(str(config[REFUSAL]))


def shorten(reason: str) -> str:
    """Return a reason on one line, cut to `LONGEST_REASON` characters."""
    kept = "".join(char if char.isprintable() else " " for char in reason[:LONGEST_REASON])
    return kept if len(reason) <= LONGEST_REASON else f"{kept}... ({len(reason) - LONGEST_REASON} more characters)"


def way_out(reason: str, steps: str) -> str:
    """Return advice for a site that is dropped repeatedly.

    Args:
        reason: The reason why it was dropped.
        steps: The keys of the step sizes, joined by "or".
    """
    if "not finite" in reason:
        return f"its steps are too large: lower {steps}"
    if NO_ANSWER in reason:
        return "restart the site; if it is only slow, raise round-timeout"
    return "see the site's log"
