"""The base of all guards.

A site's work is a generator: it yields once when the client must fit, receives the fitted model, and returns the
answer. A guard wraps such a generator in another generator. It may raise an error before or after the wrapped work, and
may change the answer. An engine can therefore suspend the work of several sites and fit their clients together.
"""

from collections.abc import Callable, Generator

from apps.guards.work import Answer, Work
from clients.base import Fitted

Steps = Generator[None, Fitted, Answer]
Proceed = Callable[[Work], Steps]


class SiteGuard:
    """The base of guards. Subclasses override `at_site`."""

    def at_site(self, work: Work, proceed: Proceed) -> Steps:
        """Surround a site's work.

        Args:
            work: The work.
            proceed: The guards further inside, and the work itself.

        Returns:
            The answer, which the guards further outside may change.
        """
        return (yield from proceed(work))
