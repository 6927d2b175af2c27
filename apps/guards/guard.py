"""The base of all guards.

A site's work is a generator: it yields once where the client must fit, is sent the fitted model, and returns the
answer. A guard is such a generator around another one: it may refuse by an error before or after the work that it
surrounds, and change the answer. An engine can so suspend the work of several sites and fit their clients together.
"""

from collections.abc import Callable, Generator

from apps.guards.work import Answer, Work
from clients.base import Fitted

Steps = Generator[None, Fitted, Answer]
Proceed = Callable[[Work], Steps]


class SiteGuard:
    """A concern that surrounds a site's work. Subclasses override `at_site`."""

    def at_site(self, work: Work, proceed: Proceed) -> Steps:
        """Surround a site's work.

        Args:
            work: The work.
            proceed: The guards further inside, and the work itself.

        Returns:
            The answer, which the guards further outside may change.
        """
        return (yield from proceed(work))
