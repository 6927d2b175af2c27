"""The base class of all guards.

A site's work for a message is a generator: it yields once when the client must fit, receives the fitted model, and
returns the answer. A guard wraps such a generator in another generator, which may raise an error before or after the
wrapped work, and may change the answer. Since work is a generator, a simulation can suspend the work of several sites
and fit their clients together.
"""

from collections.abc import Callable, Generator

from apps.guards.work import Answer, Work
from clients.base import Fitted

Steps = Generator[None, Fitted, Answer]
Proceed = Callable[[Work], Steps]


class SiteGuard:
    """The base class of guards. Subclasses override `at_site`."""

    def at_site(self, work: Work, proceed: Proceed) -> Steps:
        """Surround a site's work.

        Args:
            work: The work.
            proceed: Function of the work. It returns the wrapped generator: the inner guards and the work itself.

        Returns:
            The answer, which the outer guards may change.
        """
        return (yield from proceed(work))
