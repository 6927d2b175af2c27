"""Guards around an exchange at the server: modes that change the messages of an exchange, or its replies.

An exchange is a generator: it yields the messages, is sent the replies, and returns the good ones. A guard is such a
generator around another one.
"""

from collections.abc import Callable, Generator, Iterable, Sequence
from functools import partial

from flwr.app import Message

from strategies.rounds.exchange import Exchange
from strategies.rounds.family import Family
from strategies.rounds.replies import Reply

Steps = Generator[list[Message], Iterable[Message], list[Reply]]
Proceed = Callable[[Exchange, Sequence[int]], Steps]


class ExchangeGuard:
    """A mode that surrounds the exchanges of a run. Subclasses override these methods."""

    def check(self, family: Family, clients: int) -> None:
        """Check a run before round 1.

        Args:
            family: The strategy.
            clients: The number of clients in a round.

        Raises:
            SetupError: The run does not suit the mode.
        """

    def at_server(self, exchange: Exchange, places: Sequence[int], proceed: Proceed) -> Steps:
        """Surround an exchange.

        Args:
            exchange: The exchange, not yet open.
            places: The places of its clients in the roster.
            proceed: The guards further inside, and the exchange itself.

        Returns:
            The good replies.
        """
        return (yield from proceed(exchange, places))


def surround(exchange: Exchange, places: Sequence[int], guards: Sequence[ExchangeGuard]) -> Steps:
    """Return an exchange inside of guards, the first outermost; it is not yet open."""
    proceed: Proceed = _hold
    for guard in reversed(guards):
        proceed = partial(guard.at_server, proceed=proceed)
    return proceed(exchange, places)


def _hold(exchange: Exchange, places: Sequence[int]) -> Steps:
    replies = yield exchange.write(places)
    return exchange.receive(replies)
