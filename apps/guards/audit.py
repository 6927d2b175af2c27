"""The guard that writes requests to the log of the site's owner."""

from apps.guards.guard import Proceed, SiteGuard, Steps
from apps.guards.work import Work


class AuditGuard(SiteGuard):
    """A guard that adds a line about each request, including failed ones, to the owner's log, if there is a log."""

    def at_site(self, work: Work, proceed: Proceed) -> Steps:
        sites = work.run.algorithm.sites
        with sites.audit(work.run, work.request.event, work.context, work.message) as work.facts:
            return (yield from proceed(work))
