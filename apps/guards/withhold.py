"""The guard of errors: texts that may quote the site's rows stay at the site."""

from apps.guards.guard import Proceed, SiteGuard, Steps
from apps.guards.work import Work
from apps.sites.withheld import withhold


class ErrorGuard(SiteGuard):
    """A guard that replaces the errors of the surrounded work, see `withhold`."""

    def at_site(self, work: Work, proceed: Proceed) -> Steps:
        with withhold(work.run, work.node):
            return (yield from proceed(work))
