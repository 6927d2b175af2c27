"""The guard of single samples: budgets for everything that training reveals about them."""

from flwr.app import MessageType

from apps.guards.guard import Guard, Proceed, Steps
from apps.guards.work import Work
from apps.sites.sample_privacy import count_pools, guard_samples, keep_ledger, lock_samples, refuse_losses
from payloads.wire import PHASE


class SamplePrivacy(Guard):
    """Puts a guard before the client's samples, and keeps the ledger of what it has released, also if it fails."""

    def at_site(self, work: Work, proceed: Proceed) -> Steps:
        request, run, context = work.request, work.run, work.context
        if request.kind == MessageType.EVALUATE and PHASE not in request.config:
            refuse_losses(run)
        if request.kind != MessageType.TRAIN:
            return (yield from proceed(work))
        with lock_samples(run, context, work.place):
            guard_samples(work.client, run, context)
            count_pools(work.client, run, context)
            try:
                return (yield from proceed(work))
            finally:
                keep_ledger(work.client, context)
