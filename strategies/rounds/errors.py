"""The errors that end a run, and the reasons why the server drops a client's reply."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

from flwr.app import ConfigRecord, Error, Message

from payloads.flower_internals import CLIENT_EXCEPTION
from payloads.handshake import REFUSAL
from payloads.wire import CONFIG, find
from problems.errors import InputError

# the reason if a client sends nothing
NO_ANSWER = "no answer"
# the maximum characters of a reason, since a site may send any text
LONGEST_REASON = 1000


class StrategyError(RuntimeError):
    """An error that ends the run: a site failed, or too few replies are good. The text names the round and the reason.

    If the user must change the run config, the sites or their data, the error is a `SetupError`.
    """


class SetupError(InputError, StrategyError):
    """An error that ends the run, since the strategy does not support the run config, the sites or their data."""


@contextmanager
def raise_setup() -> Iterator[None]:
    """Convert an `InputError` of the enclosed block to a `SetupError`.

    Raises:
        SetupError: The block raised an `InputError`.
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
    """Return the reason why a site refuses to take part; None if its reply is not a refusal."""
    if not reply.has_content():
        return None
    config = find(reply.content, CONFIG, ConfigRecord)
    return None if config is None or REFUSAL not in config else shorten(str(config[REFUSAL]))


def shorten(reason: str) -> str:
    """Return a reason on one line, cut to `LONGEST_REASON` characters."""
    begin = "".join(char if char.isprintable() else " " for char in reason[:LONGEST_REASON])
    return begin if len(reason) <= LONGEST_REASON else f"{begin}... ({len(reason) - LONGEST_REASON} more characters)"


def advise(reason: str, steps: str) -> str:
    """Return advice for a site that is dropped repeatedly.

    Args:
        reason: The reason why the site was dropped.
        steps: The keys of the step sizes, joined by "or".
    """
    if "not finite" in reason:
        return f"its steps are too large: lower {steps}"
    if NO_ANSWER in reason:
        return "restart the site; if it is only slow, raise round-timeout"
    return "see the site's log"
