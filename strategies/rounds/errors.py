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
# characters kept of a reason, since a site may send any text
LONGEST_REASON = 1000


class StrategyError(RuntimeError):
    """The run cannot go on; the message says at which round and why.

    Errors of this class itself come up during a run: a site's own error, or too few good replies. If the run config,
    the sites or their data must be changed, it is a `SetupError`.
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
    """A ClientApp's exception in its own words, without the wrapping Flower puts around it."""
    wrapped = re.fullmatch(CLIENT_EXCEPTION, error.reason or "", re.DOTALL)
    return wrapped[1] if wrapped else error.reason or f"error code {error.code}"


def refusal_of(reply: Message) -> str | None:
    """Why a site cannot or will not take part, in its own words; None if it has not refused."""
    if not reply.has_content():
        return None
    config = find(reply.content, CONFIG, ConfigRecord)
    return None if config is None or REFUSAL not in config else shorten(str(config[REFUSAL]))


def shorten(reason: str) -> str:
    """A reason on one line and of a length fit for a log."""
    kept = "".join(char if char.isprintable() else " " for char in reason[:LONGEST_REASON])
    return kept if len(reason) <= LONGEST_REASON else f"{kept}... ({len(reason) - LONGEST_REASON} more characters)"


def way_out(reason: str, steps: str) -> str:
    """Say what to do about a site that is dropped again and again.

    Args:
        reason: Why it was dropped.
        steps: The keys of step sizes, in words.
    """
    if "not finite" in reason:
        return f"its steps are too large: lower {steps}"
    if NO_ANSWER in reason:
        return "start it again, or raise round-timeout where it is only slow"
    return "its own log says more"
