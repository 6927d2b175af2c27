"""The guard of the owner's limits on the numbers of handshakes and evaluations."""

from flwr.app import MessageType

from apps.guards.guard import Proceed, SiteGuard, Steps
from apps.guards.work import Work
from apps.sites.ledger import EVALUATIONS, HANDSHAKES, count_answer

COUNTED = {MessageType.QUERY: HANDSHAKES, MessageType.EVALUATE: EVALUATIONS}


class LedgerGuard(SiteGuard):
    """A guard that counts handshakes and evaluations, and refuses more than the owner allows."""

    def at_site(self, work: Work, proceed: Proceed) -> Steps:
        if answers := COUNTED.get(work.request.kind):
            count_answer(work.node, answers)
        return (yield from proceed(work))
