"""A site's own estimate, for the meta-analysis of `methods.newton`."""

import numpy as np
import torch
from jaxtyping import Float, Float64
from torch import Tensor

from methods.newton_client import Design, NewtonTask, check_rows
from methods.newton_records import NewtonQuestion, SiteEstimate
from methods.solving import SingularError, solve

STEPS = 25


def answer_estimate(x: Float[Tensor, "d"], down: NewtonQuestion, task: NewtonTask) -> SiteEstimate:
    """Answer with the site's own estimate as sums for a meta-analysis.

    Args:
        x: The message's model; without effect.
        down: The question; provides the free coefficients and, for random effects, the variances between sites.
        task: The client's task.
    """
    check_rows(task)
    return weigh(fit_alone(task.f, down.free), down)


def weigh(fit: tuple[Float64[np.ndarray, "d"], Float64[np.ndarray, "d"]] | None, down: NewtonQuestion) -> SiteEstimate:
    """Return the sums for a meta-analysis from a site's estimates and their variances; None: no estimate."""
    if fit is None:
        return SiteEstimate.zeros(len(down.free))
    estimate, variance = fit
    weight = np.where(variance > 0, 1 / np.where(variance > 0, variance + down.between, 1.0), 0.0)
    return SiteEstimate.of(weight, estimate)


def fit_alone(design: Design, free: np.ndarray) -> tuple[Float64[np.ndarray, "d"], Float64[np.ndarray, "d"]] | None:
    """Fit the model to a site's rows alone.

    Args:
        design: The site's rows.
        free: Whether each coefficient is estimated; the rest stays 0. The intercept is always estimated.

    Returns:
        The estimates and their variances, 0 for coefficients without an estimate. None without any estimate:
        fewer rows than coefficients, columns that do not vary at the site, or separated outcomes.
    """
    family, chosen = design.family, np.array(free, dtype=bool)
    if design.intercept:
        chosen[-1] = True
    if len(design.outcomes) <= chosen.sum() or not family.fits(design.outcomes):
        return None
    columns = design.columns[:, torch.from_numpy(chosen).to(design.columns.device)]
    weights, working = family.start(design.outcomes)
    right = columns.T @ (weights * (working - design.offsets))
    point = np.zeros(len(right))
    for _ in range(STEPS):
        information = (columns.T @ (weights[:, None] * columns)).cpu().numpy()
        try:
            move, inverse = solve(information, right.cpu().numpy())
        except (SingularError, np.linalg.LinAlgError):
            return None
        point = point + move
        scores = columns @ torch.from_numpy(point).to(columns) + design.offsets
        weights, slope = family.curvature(scores, design.outcomes), family.loss.slope(scores, design.outcomes)
        if not torch.isfinite(weights).all():
            return None
        if float(move @ information @ move) <= 1e-16 * max(1.0, len(point)):
            break
        right = -(columns.T @ slope)
    else:
        return None
    spread = 1.0
    if family.dispersed:
        deviance = float(family.deviance(scores, design.outcomes).sum())
        spread = deviance / (len(design.outcomes) - len(point))
    if not spread > 0:
        return None
    estimate, variance = np.zeros(len(chosen)), np.zeros(len(chosen))
    estimate[chosen], variance[chosen] = point, spread * np.diag(inverse)
    return estimate, variance
