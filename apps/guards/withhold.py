"""The guard of errors: it keeps error texts that may quote the site's rows from the server."""

from apps.guards.guard import Proceed, SiteGuard, Steps
from apps.guards.work import Work
from apps.sites.withheld import withhold


class ErrorGuard(SiteGuard):
    """A guard that replaces errors of the work by errors without details, see `withhold`."""

    def at_site(self, work: Work, proceed: Proceed) -> Steps:
        with withhold(work.run, work.node):
            return (yield from proceed(work))
