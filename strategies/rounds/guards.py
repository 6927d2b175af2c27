"""Guards around the server's exchanges, which change the messages or the replies.

An exchange is a generator: it yields the messages, receives the replies, and returns the good replies. A guard wraps
such a generator in another generator.
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
    """Base of the guards. Subclasses override these methods."""

    def check(self, family: Family, clients: int) -> None:
        """Check a run before round 1.

        Args:
            family: The strategy.
            clients: The number of clients in a round.

        Raises:
            SetupError: The guard does not support the run.
        """

    def at_server(self, exchange: Exchange, places: Sequence[int], proceed: Proceed) -> Steps:
        """Surround an exchange.

        Args:
            exchange: The exchange, not yet open.
            places: The places of its clients in the roster.
            proceed: A function that starts the inner guards and the exchange.

        Returns:
            The good replies.
        """
        return (yield from proceed(exchange, places))


def surround(exchange: Exchange, places: Sequence[int], guards: Sequence[ExchangeGuard]) -> Steps:
    """Wrap an exchange, which is not yet open, in guards. The first guard is outermost."""
    proceed: Proceed = _hold
    for guard in reversed(guards):
        proceed = partial(guard.at_server, proceed=proceed)
    return proceed(exchange, places)


def _hold(exchange: Exchange, places: Sequence[int]) -> Steps:
    replies = yield exchange.write(places)
    return exchange.receive(replies)
