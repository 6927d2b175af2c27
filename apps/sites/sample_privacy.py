"""What a node does for `privacy.epsilon`: it puts a guard before its client's samples, and keeps the guard's ledger.

The ledger stands in the node's context and, with a ``state-dir``, on its disk, so that a server that asks for a round
twice is refused. The owner bounds budgets by keys of the site's settings: ``largest-epsilon`` and ``largest-delta`` the
budget of a run, ``largest-total-epsilon`` the budgets of all runs on the site's file together.
"""

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from flwr.app import Context

from apps.run_config.algorithm import RunConfig
from apps.run_config.settings import ConfigError, Scalar
from apps.sites.ledger import check_folder, one_at_a_time, open_record, pledge_epsilon
from clients.base import MethodClient, PayloadClient
from methods.private import BudgetError, Guard, Ledger, releases_of
from privacy.budget import noise_of_batches

SPENT, POOLS = "samples-spent", "pools-released"
LARGEST, LARGEST_TOTAL, LARGEST_DELTA = "largest-epsilon", "largest-total-epsilon", "largest-delta"


def check_epsilon(node: Mapping[str, Scalar], config: RunConfig) -> None:
    """Refuse a run that may tell more of a sample than the owner allows, before any data is read.

    Raises:
        ConfigError: names the key of the node config, and what the run has.
    """
    for key in (LARGEST, LARGEST_TOTAL):
        largest = node.get(key)
        if largest is None:
            continue
        if isinstance(largest, bool) or not isinstance(largest, int | float) or not largest > 0:
            raise ConfigError(key, got=repr(largest), allowed="a number > 0", hint="change the site's settings")
        epsilon = config.privacy.epsilon
        if not 0 < epsilon <= largest:
            got = f"a run with privacy.epsilon={epsilon:g}"
            allowed = f"above 0 and at most {largest:g}, which this site's settings demand"
            raise ConfigError(key, got=got, allowed=allowed, hint="set privacy.epsilon")
    if LARGEST_TOTAL in node:
        check_folder(node, LARGEST_TOTAL)
    if (largest := node.get(LARGEST_DELTA)) is None:
        return
    if isinstance(largest, bool) or not isinstance(largest, int | float) or not 0 < largest < 1:
        allowed = "a number in (0, 1)"
        raise ConfigError(LARGEST_DELTA, got=repr(largest), allowed=allowed, hint="change the site's settings")
    for key, delta in _deltas_of(config).items():
        if delta > largest:
            got, allowed = f"a run with {key}={delta:g}", f"at most {largest:g}, which this site's settings demand"
            raise ConfigError(LARGEST_DELTA, got=got, allowed=allowed, hint=f"set {key} to {largest:g} or less")


def _deltas_of(config: RunConfig) -> dict[str, float]:
    """The deltas of the budgets that a run has, by their keys."""
    deltas = {"privacy.delta": config.privacy.delta} if config.privacy.epsilon else {}
    if getattr(config.family, "pool_epsilon", 0.0):
        deltas["fedx.pool-delta"] = config.family.pool_delta  # type: ignore[attr-defined]
    return deltas


def _check_delta(key: str, delta: float, samples: int) -> None:
    """Refuse a delta with which a site could reveal one of its samples as it is, and still keep its budget."""
    if delta * samples > 1:
        got, allowed = f"{delta:g}", f"at most 1 / {samples}, one over this site's number of training rows"
        raise ConfigError(key, got=got, allowed=allowed, hint=f"set {key} to a smaller number")


def guard_samples(client: PayloadClient[Any], config: RunConfig, context: Context) -> None:
    """Put a guard before a client's samples, if the run has a budget.

    Raises:
        ConfigError: delta is so large that a site could tell one of its samples and keep the budget; or the run began
            with another budget or number of rounds.
        ModelError: the model's scores of a sample depend on others, or are random.
    """
    privacy, training = config.privacy, config.training
    if not privacy.epsilon:
        return
    assert isinstance(client, MethodClient)
    assert client.method.taken is not None
    taken, samples = client.method.taken, len(client.site)
    _check_delta("privacy.delta", privacy.delta, samples)
    most = releases_of(taken, training, samples, training.num_server_rounds)
    if (most_of_all := context.node_config.get(LARGEST_TOTAL)) is not None:
        pledge_epsilon(context, privacy.epsilon, float(most_of_all))
    agreed = {
        "epsilon": privacy.epsilon,
        "delta": privacy.delta,
        "rate": most.rate,
        "most-batches": most.batches,
        "most-whole": most.whole,
    }
    with open_record(context, client.site.partition_id, SPENT) as spent:
        if any(spent.get(key, value) != value for key, value in agreed.items()):
            got = f"{privacy.epsilon:g}, with another budget, number of rounds or file than the run began with"
            raise ConfigError("privacy.epsilon", got=got, allowed="the same in all of a run", hint="start a new run")
        if "noise" not in spent:
            noise = noise_of_batches(privacy.epsilon, privacy.delta, most)
            spent.update(agreed, noise=noise, batches=0, whole=0)
        ledger = Ledger(most, taken.of_batch, int(spent["batches"]), int(spent["whole"]))
        noise = float(spent["noise"])
    client.protect(Guard(privacy.clip, noise, max(most.rate * samples, 1.0), ledger))


def count_pools(client: PayloadClient[Any], config: RunConfig, context: Context) -> None:
    """Count a histogram of scores that a client is about to release, if ``fedx.pool-epsilon`` bounds them.

    Args:
        client: The node's client.
        config: The run config.
        context: The node's context.

    Raises:
        BudgetError: The run has as many histograms as its noise was computed for, or it began with another budget.
        ConfigError: As for `guard_samples`.
    """
    epsilon, delta = (getattr(config.family, f"pool_{name}", 0.0) for name in ("epsilon", "delta"))
    if not epsilon:
        return
    _check_delta("fedx.pool-delta", delta, len(client.site))
    most = config.training.num_server_rounds + 1  # one before round 1
    agreed = {"epsilon": epsilon, "delta": delta, "most": most}
    with open_record(context, client.site.partition_id, POOLS) as released:
        if any(released.get(key, value) != value for key, value in agreed.items()):
            got, allowed = f"{epsilon:g} over {most} histograms", "the budget that the run began with"
            raise BudgetError("fedx.pool-epsilon", got=got, allowed=allowed, hint="start a new run")
        if (histograms := int(released.get("histograms", 0))) >= most:
            got, allowed = f"a request for more than {most} histograms", "one for each round, and one before round 1"
            raise BudgetError("fedx.pool-epsilon", got=got, allowed=allowed, hint="start a new run")
        released.update(agreed, histograms=histograms + 1)


def lock_samples(config: RunConfig, context: Context, place: int) -> AbstractContextManager[None]:
    """Hold back a node's other messages while a client releases something of its samples, if the run has a budget.

    Args:
        config: The run config.
        context: The node's context.
        place: The node's partition id.
    """
    return one_at_a_time(context, place) if config.privacy.epsilon else nullcontext()


def refuse_losses(config: RunConfig) -> None:
    """Refuse a request for the loss of training rows, which a run's budget does not cover.

    Raises:
        BudgetError: The run has a budget.
    """
    if config.privacy.epsilon:
        raise BudgetError(
            "privacy.epsilon",
            got="a request for the loss of training rows",
            allowed="none, since its budget is for training alone",
            hint="evaluate on held-out rows",
        )


def keep_ledger(client: PayloadClient[Any], context: Context) -> None:
    """Keep what a client has released, for the next message.

    Args:
        client: with a guard or without.
        context: the node's.
    """
    if isinstance(client, MethodClient) and (guard := client.guard):
        with open_record(context, client.site.partition_id, SPENT) as spent:
            spent.update(batches=guard.ledger.batches, whole=guard.ledger.whole)
