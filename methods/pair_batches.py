"""The batches of the pairwise methods: a site's samples, and predictions of other sites' samples from the pool."""

from typing import Any, NamedTuple

from jaxtyping import Float64, Int64
from torch import Tensor

from problems.sampling import Indices, on_device


class ActiveBatch(NamedTuple):
    """The samples of a local step: b positives and m partners.

    Attributes:
        features: (*stack, b + m, *shape) The features of the positives, then of the partners.
        u_rows: The positives' row numbers in the table of u.
        labels: The labels of the partners. None: the loss ignores labels.
        events: The interval of each positive's event. None: the loss ignores times.
        spans: The spans of the partners, see `problems.objectives.concordance`. None: the loss ignores times.
    """

    features: Tensor
    u_rows: Int64[Tensor, "*stack b"]
    labels: Float64[Tensor, "*stack m"] | None
    events: Int64[Tensor, "*stack b"] | None = None
    spans: Int64[Tensor, "*stack m 2"] | None = None


class Predictions(NamedTuple):
    """Scores of other clients' samples from the pool, either of positives or of partners.

    Attributes:
        scores: The score of each sample.
        weights: The weight of each sample in a mean.
        u: The positives' u, NaN if unknown. None for partners, or if u is not tracked.
        labels: The partners' labels. None for positives, or if the loss ignores labels.
        times: The interval of each positive's event, or each partner's span. None: the loss ignores times.
    """

    scores: Float64[Tensor, "*stack entries"]
    weights: Float64[Tensor, "*stack entries"]
    u: Any = None  # Float64[Tensor, "*stack entries k"] | None
    labels: Float64[Tensor, "*stack entries"] | None = None
    times: Any = None  # Int64[Tensor, "*stack entries"] | Int64[Tensor, "*stack entries 2"] | None

    def take(self, rows: Indices) -> "Predictions":
        """Return some of the predictions, by row number."""
        chosen = on_device(rows, self.scores.device)
        return Predictions._make(None if value is None else value[chosen] for value in self)


class PairBatch(NamedTuple):
    """The input of a local step of FedX.

    Attributes:
        active: The active halves of the pairs: samples of the site.
        positives, partners: The lazy halves: predictions from the pool.
        independent: With ``independent-history``, the samples whose scores are recorded instead of the active ones.
    """

    active: ActiveBatch
    positives: Predictions
    partners: Predictions
    independent: ActiveBatch | None = None
