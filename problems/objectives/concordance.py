"""The concordance of scores and times to an event as a pairwise risk (F. E. Harrell and others, JAMA 247, 1982).

S_1 are the rows with an event, S_2 are all rows. A pair of a row i with an event in interval k_i and a row j is
*comparable* if j is observed at k_i and has no event up to it: j has entered by k_i and leaves later, or is censored
in k_i, since the events of an interval happen before its censorings. A larger score predicts an earlier event, so the
pair has the wrong order if s_ij = h_j - h_i > 0. The risk is

    F(w) = mean_{i in S_1} mean_{j in S_2} comparable(i, j) l(s_ij).

With l(s) = 1[s > 0] + 1[s = 0] / 2, F is the share of comparable pairs among all pairs times 1 minus Harrell's
concordance. Surrogates for l bound it (H. Steck and others, "On Ranking in Survival Analysis: Bounds on the Concordance
Index", NIPS 2007).

A row j is comparable with the events of consecutive intervals, its *span*: from its entry to its exit or, if it has an
event, to the interval before. A span without intervals ends before it begins.
"""

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from problems.data.times import Periods
from problems.objectives.pairwise import PairwiseObjective


def find_spans(periods: Periods, labels: Float[Tensor, "n"]) -> Int64[Tensor, "n 2"]:
    """Return the first and the last interval of each row's span.

    Args:
        periods: The rows' intervals.
        labels: 1 for rows with an event.
    """
    # copies, since Ray's arrays are read-only
    first, exits = (torch.tensor(places, device=labels.device) for places in (periods.entries, periods.exits))
    return torch.stack([first, exits - (labels > 0.5).long()], dim=-1)


def keep_comparable(
    s: Float[Tensor, "*stack b m"], events: Int64[Tensor, "*#stack b"], spans: Int64[Tensor, "*#stack m 2"]
) -> Float[Tensor, "*stack b m"]:
    """Return s, and -inf for the pairs that are not comparable.

    Args:
        s: The partner's score minus the score of the row with an event, for all pairs.
        events: The interval of each event.
        spans: The partners' spans.
    """
    at, first, last = events[..., None], spans[..., None, :, 0], spans[..., None, :, 1]
    return s.masked_fill((at < first) | (at > last), -torch.inf)


def concordance_risk(
    objective: PairwiseObjective,
    scores: Float[Tensor, "n"],
    labels: Float[Tensor, "n"],
    periods: Periods,
    direct: int = 2**22,
) -> float:
    """Return F on given scores; nan without events. It is a sum over the intervals, of plain risks.

    Args:
        objective: The objective, which provides l.
        scores: The rows' scores.
        labels: 1 for rows with an event.
        periods: The rows' intervals.
        direct: The maximum number of pairs of all intervals up to which F is computed over all pairs, see
            `PairwiseObjective.risk`.
    """
    spans, happened = find_spans(periods, labels), labels > 0.5
    exits, (first, last) = spans[:, 1] + happened.long(), spans.unbind(-1)
    total, pairs = 0.0, int(happened.sum()) * len(scores)
    for interval in torch.bincount(exits[happened]).nonzero().ravel().tolist():
        own = scores[happened & (exits == interval)]
        partners = scores[(first <= interval) & (interval <= last)]
        if len(partners):
            total += objective.risk(own, partners, direct=direct // periods.num_intervals) * len(own) * len(partners)
    return total / pairs if pairs else float("nan")
