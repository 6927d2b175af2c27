"""A method's checks of run configs, sites and clients' records. They run at the server."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from logging import getLogger
from typing import Any

import numpy as np
from jaxtyping import Float

from methods.server import Plan
from payloads.site_names import label_site
from problems.errors import InputError


def check_batch(
    key: str, batch_size: int, kind: str, counts: Sequence[int], names: Mapping[str, str] | None = None
) -> None:
    """Check that all sites together can fill a batch. Warn of single sites that cannot, and use all their elements.

    Args:
        key: The run-config key of the batch size.
        batch_size: The batch size.
        kind: The elements of a batch, e.g. "positives".
        counts: The number of these elements at each site.
        names: The names of sites, by partition id as text.

    Raises:
        InputError: All sites together cannot fill a batch.
    """
    total = sum(counts)
    if batch_size > total:
        allowed = f"at most {total}, since all {len(counts)} sites together have {total} {kind}"
        raise InputError(key, got=batch_size, allowed=allowed, hint=f"lower {key}")
    small = [
        f"{label_site(partition, names)} ({count})" for partition, count in enumerate(counts) if count < batch_size
    ]
    if small:
        listed = ", ".join(small[:8]) + (", ..." if len(small) > 8 else "")
        text = "%s = %d: %d of %d sites have fewer %s and use all of them: %s"
        getLogger("flwr").warning(text, key, batch_size, len(small), len(counts), kind, listed)


def check_batches(plan: Plan[Any]) -> None:
    """Check that the sites can fill batches of ``batch-size`` samples.

    Args:
        plan: The plan of round 0.

    Raises:
        InputError: All sites together have fewer samples than a batch.
    """
    check_batch(
        "batch-size", plan.training.batch_size, "samples", plan.class_counts.sum(axis=1).tolist(), plan.site_names
    )


@dataclass(frozen=True)
class Checks:
    """The server's checks. Each raises an error; the defaults check the batch size only.

    Attributes:
        run: (plan) -> None. Checks the run config before the handshake; raises `InputError`.
        sites: (plan) -> None. Checks the sites after the handshake; raises `InputError`.
        limits: (i, model, plan) -> for client i, the maximum length of each dimension of a record, by the letter that
            declares the dimension, except the model's length d. A longer record is refused unread.
        record: (record, model, plan) -> None. Checks the values of a client's well-formed record; raises
            `PayloadError`.
    """

    run: Callable[[Any], None] = lambda plan: None
    sites: Callable[[Any], None] = check_batches
    limits: Callable[[int, Sequence[Float[np.ndarray, "part"]], Any], Mapping[str, int]] = lambda i, model, plan: {}
    record: Callable[[Any, Sequence[Float[np.ndarray, "part"]], Any], None] = lambda record, model, plan: None


def check_classes(plan: Plan[Any], what: str) -> None:
    """Check that the sites together have both classes.

    Args:
        plan: The plan of round 0.
        what: The computation that needs both classes.

    Raises:
        InputError: There are no positives or no negatives.
    """
    negatives, positives = plan.class_counts.sum(axis=0).tolist()
    check_both_classes("labels", negatives, positives, f"{what} needs both", " at all sites together")


def check_both_classes(key: str, negatives: int, positives: int, why: str, where: str = "") -> None:
    """Check that rows are of both classes.

    Args:
        key: The name of the rows in the error.
        negatives: The number of negatives.
        positives: The number of positives.
        why: The reason why both classes are needed, such as "AUC needs both".
        where: The location of the rows, such as " at all sites together".

    Raises:
        InputError: A class has no rows.
    """
    if not negatives or not positives:
        got, allowed = f"{positives} positives and {negatives} negatives{where}", f"both classes, since {why}"
        raise InputError(key, got=got, allowed=allowed, hint="set positive-label, or add rows")
