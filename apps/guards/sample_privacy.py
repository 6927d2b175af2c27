"""The guard of single samples: privacy budgets that limit how much training reveals about a sample.

A ledger counts the noisy values that the site has released. It is in the node's context and, with a ``state-dir``, on
the node's disk. A site refuses a server that requests a round twice.
"""

from contextlib import nullcontext

from flwr.app import MessageType

from apps.config import ConfigError
from apps.guards.guard import Proceed, SiteGuard, Steps
from apps.guards.work import Work
from apps.sites.ledger import one_at_a_time, open_record, pledge_epsilon
from apps.sites.sample_privacy import LARGEST_TOTAL
from clients.base import MethodClient
from clients.describe import DescribeClient
from methods.private import BudgetError, Guard, Ledger, releases_of
from payloads.wire import PHASE
from privacy.budget import noise_of_batches

SPENT, POOLS, DESCRIBED = "samples-spent", "pools-released", "description-released"


class SampleGuard(SiteGuard):
    """A guard that limits the releases of values about samples, and stores their ledger even if the work fails."""

    def at_site(self, work: Work, proceed: Proceed) -> Steps:
        request, limited = work.request, work.run.privacy.epsilon > 0
        if limited and request.kind == MessageType.EVALUATE and PHASE not in request.config:
            raise BudgetError(
                "privacy.epsilon",
                got="a request for the loss of training rows",
                allowed="no such request, since the budget covers only training",
                hint="evaluate on held-out rows",
            )
        if request.kind != MessageType.TRAIN:
            return (yield from proceed(work))
        with one_at_a_time(work.context, work.partition) if limited else nullcontext():
            guard_samples(work)
            count_pools(work)
            try:
                return (yield from proceed(work))
            finally:
                _keep_ledger(work)


def _check_delta(key: str, delta: float, samples: int) -> None:
    """Refuse a delta so large that a site could publish a whole sample and still meet the definition of privacy."""
    if delta * samples > 1:
        got, allowed = f"{delta:g}", f"at most 1 / {samples}, the inverse of this site's number of training rows"
        raise ConfigError(key, got=got, allowed=allowed, hint=f"set {key} to a smaller number")


def guard_samples(work: Work) -> None:
    """Guard a client's samples, if the run has a budget.

    Args:
        work: The client's work.

    Raises:
        ConfigError: delta is too large, see `_check_delta`; or the run began with another budget or number of rounds.
        BudgetError: The exchange of a description has been answered.
        ModelError: The model's scores of a sample depend on other samples, or are random.
    """
    client, context, privacy, training = work.client, work.context, work.run.privacy, work.run.training
    if not privacy.epsilon:
        return
    samples = len(client.site)
    _check_delta("privacy.delta", privacy.delta, samples)
    if (largest_total := work.node.get(LARGEST_TOTAL)) is not None:
        pledge_epsilon(context, privacy.epsilon, float(largest_total))
    if isinstance(client, DescribeClient):
        _guard_counts(work, client)
        return
    assert isinstance(client, MethodClient)
    assert client.method.taken is not None
    taken = client.method.taken
    limits = releases_of(taken, training, samples, training.num_server_rounds)
    agreed = {
        "epsilon": privacy.epsilon,
        "delta": privacy.delta,
        "rate": limits.rate,
        "most-batches": limits.batches,
        "most-whole": limits.whole,
    }
    with open_record(context, client.site.partition_id, SPENT) as spent:
        if any(spent.get(key, value) != value for key, value in agreed.items()):
            got = f"{privacy.epsilon:g}, with another budget, number of rounds or file than at the start of the run"
            allowed = "the budget, number of rounds and file of the run's start"
            raise ConfigError("privacy.epsilon", got=got, allowed=allowed, hint="start a new run")
        if "noise" not in spent:
            noise = noise_of_batches(privacy.epsilon, privacy.delta, limits)
            spent.update(agreed, noise=noise, batches=0, whole=0)
        ledger = Ledger(limits, taken.of_batch, int(spent["batches"]), int(spent["whole"]))
        noise = float(spent["noise"])
    client.protect(Guard(privacy.clip, noise, max(limits.rate * samples, 1.0), ledger))


def _guard_counts(work: Work, client: DescribeClient) -> None:
    """Give a description its budget, and count the exchange: a site answers each of them once in a run."""
    privacy, phase = work.run.privacy, work.request.event
    budget = {"epsilon": privacy.epsilon, "delta": privacy.delta}
    with open_record(work.context, client.site.partition_id, DESCRIBED) as released:
        if phase in released or any(released.get(key, value) != value for key, value in budget.items()):
            raise BudgetError(
                "privacy.epsilon",
                got=f"another request for {phase!r}, or another budget than at the start of the run",
                allowed="one answer to each exchange of a description, since each answer has other noise",
                hint="start a new run",
            )
        released.update(budget, **{phase: 1})
    client.budget = privacy


def count_pools(work: Work) -> None:
    """Count the histogram of scores that a client is about to release, if ``fedx.pool-epsilon`` limits them.

    Args:
        work: The client's work.

    Raises:
        BudgetError: The run has released the largest number of histograms, or it began with another budget.
        ConfigError: As for `guard_samples`.
    """
    epsilon, delta = (getattr(work.run.family, f"pool_{name}", 0.0) for name in ("epsilon", "delta"))
    if not epsilon:
        return
    _check_delta("fedx.pool-delta", delta, len(work.client.site))
    max_histograms = work.run.training.num_server_rounds + 1  # including a histogram before round 1
    agreed = {"epsilon": epsilon, "delta": delta, "most": max_histograms}
    with open_record(work.context, work.client.site.partition_id, POOLS) as released:
        if any(released.get(key, value) != value for key, value in agreed.items()):
            begun = {**agreed, **{key: released[key] for key in agreed if key in released}}
            form = "epsilon {epsilon:g}, delta {delta:g} and {most} histograms"
            hint = "restore fedx.pool-epsilon, fedx.pool-delta and num-server-rounds, or start a new run"
            allowed = f"{form.format(**begun)}, as when the run began"
            raise BudgetError("fedx.pool-epsilon", got=form.format(**agreed), allowed=allowed, hint=hint)
        if (histograms := int(released.get("histograms", 0))) >= max_histograms:
            got = f"a request for more than {max_histograms} histograms"
            allowed = "one histogram for each round, and one before round 1"
            raise BudgetError("fedx.pool-epsilon", got=got, allowed=allowed, hint="start a new run")
        released.update(agreed, histograms=histograms + 1)


def _keep_ledger(work: Work) -> None:
    """Store the ledger of a client's releases, for the next message."""
    if isinstance(work.client, MethodClient) and (guard := work.client.guard):
        with open_record(work.context, work.client.site.partition_id, SPENT) as spent:
            spent.update(batches=guard.ledger.batches, whole=guard.ledger.whole)
