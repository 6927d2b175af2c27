"""The guard of the demands that the site's owner makes on runs."""

from apps.guards.guard import Proceed, SiteGuard, Steps
from apps.guards.work import Work
from apps.sites.policy import check_demands


class PolicyGuard(SiteGuard):
    """A guard that refuses a run that does not meet the owner's demands, before any data are read."""

    def at_site(self, work: Work, proceed: Proceed) -> Steps:
        check_demands(work.node, work.run)
        return (yield from proceed(work))
