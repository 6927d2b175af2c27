"""Simulated slowness of clients: the seconds from a message to its reply, and the replies that are therefore late.

Nothing waits for these seconds. Late replies are dropped as in a deployment: the client has trained, and its memory is
of that round, but the server does not get its reply.
"""

from collections.abc import Sequence

import numpy as np
from flwr.app import Message

from payloads.settings import TrainingSettings
from problems.errors import InputError
from problems.importing import import_named, is_dotted
from problems.randomness import stream

FORM = "median, median:spread, or package.module:function"
_KEY, _HINT = "reply-seconds", "see docs/simulations.md"


def has_function(text: str) -> bool:
    """Return whether the text names a user's function."""
    module_name, _, name = text.partition(":")
    return is_dotted(text) and module_name[0].isalpha() and not name[0].isdigit()


def parse_seconds(text: str) -> tuple[float, float]:
    """Return the median of the clients' seconds, and the standard deviation of their logarithms.

    Example:
        >>> parse_seconds("20:0.5")
        (20.0, 0.5)

    Raises:
        InputError: The text has another form.
    """
    median, _, spread = text.partition(":")
    try:
        numbers = float(median), float(spread or 0)
    except ValueError:
        numbers = 0.0, 0.0
    if not (0 < numbers[0] < np.inf and 0 <= numbers[1] < np.inf):
        raise InputError(_KEY, got=repr(text), allowed=f"{FORM}, such as 20 or 20:0.5", hint=_HINT)
    return numbers


def reply_seconds(training: TrainingSettings, client: int, server_round: int) -> float:
    """Return the simulated seconds from a round's message to a client's reply.

    Args:
        training: The settings; `reply_seconds` and `seed` are used.
        client: The client's partition id.
        server_round: The round.

    Raises:
        InputError: A user's function cannot be imported, or returns another value than a number >= 0.
    """
    path = training.reply_seconds
    if not has_function(path):
        median, spread = parse_seconds(path)
        return float(median * np.exp(spread * stream(training.seed, "reply seconds", client).normal()))

    def refuse(got: str) -> InputError:
        return InputError(_KEY, got=got, allowed="a function that returns seconds >= 0", hint=_HINT)

    rng = stream(training.seed, "reply seconds", client, server_round)
    seconds = import_named(path, refuse)(client, server_round, rng)
    if not isinstance(seconds, int | float | np.number) or not seconds >= 0:
        raise refuse(f"{path!r}, which returns {seconds!r} for client {client} in round {server_round}")
    return float(seconds)


def drop_late(
    training: TrainingSettings, clients: dict[int, int], server_round: int, replies: Sequence[Message]
) -> tuple[list[Message], float]:
    """Remove late replies.

    Args:
        training: The settings; `reply_seconds` and `round_timeout` are used.
        clients: The partition ids of the clients that the server has asked, by node id.
        server_round: The round.
        replies: The replies.

    Returns:
        The replies within ``round-timeout``, and the simulated seconds until the server goes on.
    """
    seconds = {node: reply_seconds(training, client, server_round) for node, client in clients.items()}
    limit = training.round_timeout
    kept = [reply for reply in replies if seconds.get(reply.metadata.src_node_id, 0.0) <= limit]
    return kept, min(max(seconds.values(), default=0.0), limit)
