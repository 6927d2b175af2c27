"""The loss of discrete-time survival: logistic hazards in intervals of time (D. R. Cox, "Regression Models and
Life-Tables", 1972, section 6; J. D. Singer, J. B. Willett, Journal of Educational Statistics 18, 1993).

In interval k a row i under observation has an event with probability sigmoid(f_i + alpha_k), with the row's score f_i
and the interval's baseline alpha_k. With the intervals entry_i to exit_i and the event e_i in {0, 1}, which happens in
interval exit_i, the loss of row i is the negative log likelihood

    sum_{k = entry_i}^{exit_i} log(1 + exp(f_i + alpha_k))  -  e_i (f_i + alpha_{exit_i}).

It is the cross-entropy of the pairs (row, interval), added up over the intervals of a row.
"""

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor
from torch.nn import functional

from problems.data.times import MOST_INTERVALS, Periods

HAZARD, COX, CONCORDANCE = "hazard", "cox", "concordance"
TIME_LOSSES = (HAZARD, COX, CONCORDANCE)
"""The losses of rows with times to an event."""
START = -3.0
"""The first value of each baseline, a hazard of 5 %."""


def encode(labels: Float[Tensor, "n"], periods: Periods) -> Float[Tensor, "n"]:
    """Return entry, exit and event of each row as one whole number, 2 (200 entry + exit) + event.

    It is exact in float32. A batch then has one number for each row, like with other losses.

    Args:
        labels: 1 for rows with an event.
        periods: The rows' intervals.
    """
    places = torch.from_numpy(periods.entries * MOST_INTERVALS + periods.exits).to(labels)
    return 2 * places + labels


def decode(
    codes: Float[Tensor, "*stack n"],
) -> tuple[Int64[Tensor, "*stack n"], Int64[Tensor, "*stack n"], Float[Tensor, "*stack n"]]:
    """Return entry, exit and event of each row.

    Args:
        codes: The result of `encode`.
    """
    whole = codes.long()
    places = whole // 2
    return places // MOST_INTERVALS, places % MOST_INTERVALS, (whole % 2).to(codes.dtype)


def _at_risk(
    codes: Float[Tensor, "*stack n"], intervals: int
) -> tuple[Bool[Tensor, "*stack n k"], Float[Tensor, "*stack n k"]]:
    """Return in which intervals each row is at risk, and in which it has an event."""
    entries, exits, events = decode(codes)
    steps = torch.arange(intervals, device=codes.device)
    last = steps == exits[..., None]
    return (steps >= entries[..., None]) & (steps <= exits[..., None]), last * events[..., None]


def hazard_loss(
    scores: Float[Tensor, "*stack n"], codes: Float[Tensor, "*stack n"], baseline: Float[Tensor, "*stack k"]
) -> Float[Tensor, "*stack n"]:
    """Return the loss of each row.

    Args:
        scores: f.
        codes: The result of `encode`.
        baseline: alpha.
    """
    at_risk, events = _at_risk(codes, baseline.shape[-1])
    logits = scores[..., None] + baseline[..., None, :]
    losses: Tensor = (functional.softplus(logits) * at_risk - events * logits).sum(-1)
    return losses


def hazard_slopes(
    scores: Float[Tensor, "*stack n"], codes: Float[Tensor, "*stack n"], baseline: Float[Tensor, "*stack k"]
) -> Float[Tensor, "*stack n k"]:
    """Return the derivatives of each row's loss in the baseline of each interval.

    Their sum over the intervals is the derivative in the row's score.

    Args:
        scores: f.
        codes: The result of `encode`.
        baseline: alpha.
    """
    at_risk, events = _at_risk(codes, baseline.shape[-1])
    slopes: Tensor = torch.sigmoid(scores[..., None] + baseline[..., None, :]).mul_(at_risk).sub_(events)
    return slopes


def survive(scores: Float[Tensor, "n"], baseline: Float[Tensor, "k"]) -> Float[Tensor, "n k"]:
    """Return the probability that each row has no event up to the end of each interval.

    Args:
        scores: f.
        baseline: alpha.
    """
    survival: Tensor = functional.logsigmoid(-(scores[:, None] + baseline)).cumsum(1).exp()
    return survival
