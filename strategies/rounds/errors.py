"""Why a run ends, and why a reply does not count, in words."""

from __future__ import annotations

import re

from flwr.app import ConfigRecord, Error, Message

from payloads.flower_internals import CLIENT_EXCEPTION
from payloads.handshake import REFUSAL
from payloads.wire import CONFIG, find
from problems.errors import InputError

# why a client that sent nothing gave no good reply
NO_ANSWER = "no answer"
# characters of a reason that are kept: a site may have chosen its words
LONGEST_REASON = 1000


class StrategyError(RuntimeError):
    """A run that cannot go on; the message says at which round and why.

    Of this class itself is what fails on the way: a site's own words, or too few good replies. What the run config,
    the sites or their data must be changed for is a `SetupError`.
    """


class SetupError(InputError, StrategyError):
    """A run config, sites or data that a strategy cannot run with."""


class DivergedError(SetupError):
    """A round that left the server no numbers to go on from; nothing of it may be kept."""


def reason_of(error: Error) -> str:
    """A ClientApp's exception in its own words, without the wrapping Flower puts around it."""
    wrapped = re.fullmatch(CLIENT_EXCEPTION, error.reason or "", re.DOTALL)
    return wrapped[1] if wrapped else error.reason or f"error code {error.code}"


def refusal_of(reply: Message) -> str | None:
    """Why a site cannot or will not take part, in its own words, or None where it does not say so."""
    if not reply.has_content():
        return None
    config = find(reply.content, CONFIG, ConfigRecord)
    return None if config is None or REFUSAL not in config else shortened(str(config[REFUSAL]))


def shortened(reason: str) -> str:
    """A reason on one line and of a length fit for a log."""
    kept = "".join(char if char.isprintable() else " " for char in reason[:LONGEST_REASON])
    return kept if len(reason) <= LONGEST_REASON else f"{kept}... ({len(reason) - LONGEST_REASON} more characters)"


def way_out(reason: str, steps: str) -> str:
    """What to do about a site that is dropped again and again; ``steps``: the keys of step sizes."""
    if "not finite" in reason:
        return f"its steps are too large: lower {steps}"
    if NO_ANSWER in reason:
        return "start it again, or raise round-timeout where it is only slow"
    return "its own log says more"
