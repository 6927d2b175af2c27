"""The guard that logs requests for the owner."""

from apps.guards.guard import Proceed, SiteGuard, Steps
from apps.guards.work import Work


class AuditGuard(SiteGuard):
    """Adds a line about the work to the owner's log, if there is one, also if the work fails."""

    def at_site(self, work: Work, proceed: Proceed) -> Steps:
        sites = work.run.algorithm.sites
        with sites.audit(work.run, work.request.event, work.context, work.message) as work.facts:
            return (yield from proceed(work))
