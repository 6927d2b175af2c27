"""The settings of FedX and of local pairs, and the checks of their runs and sites."""

from typing import Any, Literal

import numpy as np
from jaxtyping import Int64

from methods.checks import check_batch, check_classes
from methods.server import Plan
from payloads.settings import Settings, setting
from problems.errors import InputError
from problems.objectives.pairwise import PairwiseObjective, make_objective, pairwise_score


class FedXSettings(Settings):
    """Hyper-parameters of FedX1, FedX2 and their local and centralised counterparts (table ``fedx``)."""

    # the estimators
    gamma: float = setting("The weight of a new observation in u (fedx2).", 0.9, gt=0, le=1)
    beta: float = setting("The weight of a new gradient in the momentum (fedx2).", 0.1, gt=0, le=1)
    # the objective
    lambda_: float = setting("The temperature of kl-opauc.", 3.0, gt=0)
    margin: float = setting("The margin of the hinge losses.", 1.0, ge=0)
    surrogate: Literal["auto", "squared-hinge", "logistic", "psm"] = setting(
        "The surrogate inside auprc, p-norm-push and concordance. auto: logistic for concordance, else squared-hinge.",
        "auto",
    )
    power: float = setting("The p of p-norm-push.", 2.0, ge=1)
    # batches and histories
    positive_batch_size: int = setting("The positives of a local step, or rows with an event.", 16, ge=1)
    negative_batch_size: int = setting(
        "The negatives of a local step, or any samples for auprc and concordance.", 16, ge=1
    )
    tau: int = setting("The rounds of predictions that the pool keeps.", 1, ge=1)
    history_size: int = setting("The predictions of each kind that a client sends in a round. 0: all.", 0, ge=0)
    independent_history: bool = setting(
        "Whether to record predictions of an independent sample (Algorithm 2, line 14).", False
    )
    pool: Literal["predictions", "histogram"] = setting("The form in which other sites' scores arrive.", "predictions")
    pool_epsilon: float = setting("The epsilon that all histograms of a run may spend. 0: no noise.", 0.0, ge=0)
    pool_delta: float = setting("The delta of the budget with pool-epsilon.", 1e-5, gt=0, lt=1)
    bins: int = setting("The bins of a histogram.", 32, ge=2, le=2**16)
    prediction_noise: float = setting(
        "The standard deviation of Gaussian noise on the scores that a client sends.", 0.0, ge=0
    )

    @property
    def fixes_rounds(self) -> bool:
        return self.pool_epsilon > 0  # the noise is computed for the total number of rounds

    @property
    def objective_options(self) -> dict[str, Any]:
        """The arguments of `make_objective` other than the name."""
        return {"margin": self.margin, "temperature": self.lambda_, "surrogate": self.surrogate, "power": self.power}


def objective_of(plan: Plan[FedXSettings]) -> PairwiseObjective:
    """Make the run's pairwise objective: the outer function f and the pair loss l (see `methods.pairwise`)."""
    return make_objective(plan.loss, **plan.settings.objective_options)


def count_halves(
    objective: PairwiseObjective, class_counts: Int64[np.ndarray, "N 2"]
) -> tuple[Int64[np.ndarray, "N"], Int64[np.ndarray, "N"]]:
    """Count the positives and the partners, the two halves of pairs, at every site.

    Args:
        objective: The objective; determines whether partners are the negatives or all samples.
        class_counts: The negatives and positives of every site.

    Returns:
        The numbers of positives, and the numbers of partners.
    """
    negatives, positives = class_counts.T
    return positives, negatives + positives if objective.partners == "all" else negatives


def check_pairs(plan: Plan[FedXSettings]) -> None:
    """Check that the sites have both classes and can fill both halves of a batch; a `Checks.sites`."""
    objective = objective_of(plan)
    if not objective.timed:
        check_classes(plan, "a pairwise risk")
    elif not plan.class_counts[:, 1].any():
        hint = "check label-column and positive-label"
        raise InputError("labels", got="no events at all sites together", allowed="at least one event", hint=hint)
    kind = "samples" if objective.partners == "all" else "negatives"
    positives, partners = (counts.tolist() for counts in count_halves(objective, plan.class_counts))
    sizes, names = plan.settings, plan.site_names
    own = "rows with an event" if objective.timed else "positives"
    check_batch("fedx.positive-batch-size", sizes.positive_batch_size, own, positives, names)
    check_batch("fedx.negative-batch-size", sizes.negative_batch_size, kind, partners, names)


def check_pool(plan: Plan[FedXSettings]) -> None:
    """Check that histograms have a bounded score, and that a budget has histograms; a `Checks.run`."""
    settings = plan.settings
    if settings.pool != "histogram" and settings.pool_epsilon:
        got = f"{settings.pool_epsilon:g} with fedx.pool={settings.pool!r}"
        hint = "set fedx.pool to histogram"
        raise InputError("fedx.pool-epsilon", got=got, allowed="0 without histograms", hint=hint)
    if settings.pool == "histogram" and pairwise_score(plan.training.score, plan.loss).bounds is None:
        got, allowed = f"'histogram' with score={plan.training.score!r}", "a bounded score"
        raise InputError("fedx.pool", got=got, allowed=allowed, hint="set score to sigmoid or tanh")


def check_linear(plan: Plan[FedXSettings]) -> None:
    """Check the pool, and that the loss has a linear f; a `Checks.run`."""
    if not objective_of(plan).linear:
        got = f"{plan.loss!r}, whose f is not linear"
        raise InputError("loss", got=got, allowed="a linear f with strategy fedx1", hint="set strategy to fedx2")
    check_pool(plan)
