"""The guard that refuses malformed messages."""

from apps.guards.guard import Proceed, SiteGuard, Steps
from apps.guards.work import Work


class FormGuard(SiteGuard):
    """A guard that refuses a malformed message before a limit counts the message, and before any data are read."""

    def at_site(self, work: Work, proceed: Proceed) -> Steps:
        work.request.check()
        return (yield from proceed(work))
