"""Guards: wrappers around the server's exchanges that change the messages or the replies.

An exchange runs as a generator: it yields the messages, receives the replies, and returns the good replies. A guard
wraps this generator in another generator.
"""

from collections.abc import Callable, Generator, Iterable, Sequence
from functools import partial

from flwr.app import Message

from strategies.rounds.exchange import Exchange
from strategies.rounds.family import Family
from strategies.rounds.replies import Reply

Steps = Generator[Sequence[Message], Iterable[Message], list[Reply]]
Proceed = Callable[[Exchange, Sequence[int]], Steps]


class ExchangeGuard:
    """Base of the guards. By default a guard accepts every run and changes nothing."""

    def check(self, family: Family, clients: int) -> None:
        """Check a run before round 1.

        Args:
            family: The strategy.
            clients: The number of clients in a round.

        Raises:
            SetupError: The guard does not support the run.
        """

    def at_server(self, exchange: Exchange, clients: Sequence[int], proceed: Proceed) -> Steps:
        """Run an exchange, and change its messages or its replies.

        Args:
            exchange: The exchange, not yet open.
            clients: The partition ids of the exchange's clients.
            proceed: A function that starts the inner guards and the exchange.

        Returns:
            The good replies.
        """
        return (yield from proceed(exchange, clients))


def surround(exchange: Exchange, clients: Sequence[int], guards: Sequence[ExchangeGuard]) -> Steps:
    """Wrap an exchange, which is not yet open, in guards. The first guard is outermost."""
    proceed: Proceed = _run
    for guard in reversed(guards):
        proceed = partial(guard.at_server, proceed=proceed)
    return proceed(exchange, clients)


def _run(exchange: Exchange, clients: Sequence[int]) -> Steps:
    replies = yield exchange.write(clients)
    return exchange.receive(replies)
