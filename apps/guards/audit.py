"""The guard that logs requests for the owner."""

from apps.guards.guard import Proceed, SiteGuard, Steps
from apps.guards.work import Work


class AuditGuard(SiteGuard):
    """A guard that adds a line about the work to the owner's log, if the owner keeps a log. Failed work counts too."""

    def at_site(self, work: Work, proceed: Proceed) -> Steps:
        sites = work.run.algorithm.sites
        with sites.audit(work.run, work.request.event, work.context, work.message) as work.facts:
            return (yield from proceed(work))
