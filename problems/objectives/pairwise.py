"""Compositional pairwise risks and their closed-form derivatives.

    F(w) = mean_{z in S_1} f( mean_{z' in S_2} l(h(w; z), h(w; z')) )                     FedX, equation (1)

S_1 are the positives, S_2 the partners (the negatives, or all samples), and h(w; z) is the score of z under weights w.

Every l here is a function of the difference s = h(z') - h(z) of a partner's and a positive's score, so one slope
dl/ds gives both partial derivatives: d/dh(z') = slope and d/dh(z) = -slope. An objective computes
observations of the inner mean, their average over time, the slopes f'(u) l'(s), and F.

| name | l(s) | f | form of the stored u |
|---|---|---|---|
| square | (1 + s)^2 | identity | - |
| psm (symmetric) | 1 / (1 + exp(-s)) | identity | - |
| squared-hinge | (margin + s)_+^2 | identity | - |
| logistic | log(1 + exp(s)) | identity | - |
| kl-opauc | exp((margin + s)_+^2 / lambda) | lambda log | log u |
| auprc | [1(y'=+) l(s), l(s)], S_2 = all | -u_1 / u_2 | u (2 values) |
| p-norm-push | squared-hinge or logistic | u^p | u |
| concordance | the surrogate of comparable pairs, else 0, S_2 = all | identity | - |

Sources: FedX (Guo et al.) Section 4 and Appendix A; Zhu et al. 2022 for kl-opauc; Qi et al. 2021 for auprc; Rudin
2009 for p-norm-push. Rudin raises the loss of each *negative* to the power p; here, as in the general form (1), the
outer mean runs over the positives. The paper maximises AUPRC's f = u_1 / u_2; here its negative is minimised.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from problems.objectives.hazard import CONCORDANCE
from problems.objectives.scores import CELLS, SCORES, Score, condense, condensed_classes, score_of

LINEAR = "square", "psm", "squared-hinge", "logistic"
NON_LINEAR = "kl-opauc", "auprc", "p-norm-push"
PAIRWISE_LOSSES = LINEAR + NON_LINEAR
"""The losses of classes."""
ALL_PAIRWISE = (*PAIRWISE_LOSSES, CONCORDANCE)
"""The losses of classes, and `CONCORDANCE` of times to an event."""
AUTO = "auto"


class Surrogate(NamedTuple):
    """A pairwise loss l(s) of the score difference s = partner - positive, and its derivative."""

    value: Callable[[Tensor], Tensor]
    slope: Callable[[Tensor], Tensor]


def make_surrogate(name: str, margin: float) -> Surrogate:
    """Return a surrogate by its name.

    Args:
        name: One of square, psm, squared-hinge and logistic.
        margin: The margin of squared-hinge.

    Raises:
        ValueError: The name is unknown.
    """
    surrogates = {
        "square": Surrogate(lambda s: (1 + s) ** 2, lambda s: 2 * (1 + s)),
        "psm": Surrogate(torch.sigmoid, lambda s: SCORES["sigmoid"].slope(torch.sigmoid(s))),
        "squared-hinge": Surrogate(lambda s: torch.relu(margin + s) ** 2, lambda s: 2 * torch.relu(margin + s)),
        "logistic": Surrogate(functional.softplus, torch.sigmoid),
    }
    if name not in surrogates:
        raise ValueError(f"surrogate {name!r}: allowed are {', '.join(surrogates)}")
    return surrogates[name]


@dataclass(frozen=True)
class PairwiseObjective(ABC):
    """A compositional pairwise risk of n positives and m partners, with k inner estimates u for each positive.

    Attributes:
        surrogate: l, or the surrogate inside l.
        inner_dim: k.
        linear: Whether f is the identity.
        partners: The rows of S_2.
        labelled: Whether l depends on the partner's label.
        timed: Whether l depends on the times of both rows, see `problems.objectives.concordance`.
    """

    surrogate: Surrogate
    inner_dim: ClassVar[int] = 1
    linear: ClassVar[bool] = False
    partners: ClassVar[Literal["negatives", "all"]] = "negatives"
    labelled: ClassVar[bool] = False
    timed: ClassVar[bool] = False

    def observe(
        self, s: Float[Tensor, "*stack n m"], labels: Any, weights: Float[Tensor, "*#stack m"] | None
    ) -> Float[Tensor, "*stack n k"]:
        """Return the observed inner mean (1/m) sum_j weights_j l(s_ij) of each positive, in the form of the stored u.

        Args:
            s: The partner's score minus the positive's, for all pairs.
            labels: The partners' labels (..., m), 1 for a positive. Only for ``auprc``.
            weights: The partners' weights in the mean. None: all weights are 1.
        """
        return _weighted_mean(self.surrogate.value(s), weights)[..., None]

    def average(
        self, u: Float[Tensor, "*stack n k"], observed: Float[Tensor, "*stack n k"], gamma: float
    ) -> Float[Tensor, "*stack n k"]:
        """Return u <- (1 - gamma) * u + gamma * observed, equation (8).

        Args:
            u: The estimates so far.
            observed: The result of `observe`.
            gamma: A weight in (0, 1].
        """
        return (1 - gamma) * u + gamma * observed

    @abstractmethod
    def slope(
        self, s: Float[Tensor, "*stack n m"], labels: Any, u: Any, num_partners: float = math.inf
    ) -> Float[Tensor, "*stack n m"]:
        """Return f'(u_i) dl/ds(s_ij) for each pair.

        Args:
            s: The partner's score minus the positive's, for all pairs.
            labels: The partners' labels (..., m), 1 for a positive. Only for ``auprc``.
            u: The inner estimates (..., n, k). A linear f ignores them.
            num_partners: |S_2|, the bound of l/u for an outdated u. If u has just been updated with these pairs, no
                bound is needed.
        """

    @abstractmethod
    def outer(self, u: Float[Tensor, "n k"]) -> Float[Tensor, "n"]:
        """Return f(u_i) of each positive."""

    def risk(
        self,
        positives: Float[Tensor, "n"],
        partners: Float[Tensor, "m"],
        labels: Float[Tensor, "m"] | None = None,
        block: int = 512,
        *,
        direct: int = 2**22,
        cells: int = CELLS,
    ) -> float:
        """Return F on given scores, over all pairs or, if there are too many, over condensed scores in O(n log n).

        docs/run-directory.md ("The risk in an evaluation") bounds the error of condensing for each loss.

        Args:
            positives: The positives' scores.
            partners: The partners' scores.
            labels: The partners' labels, 1 for a positive. Only for ``auprc``.
            block: The number of positives whose pairs are in memory at a time.
            direct: The maximum number of pairs up to which F is computed over all pairs.
            cells: The number of cells, see `condense`.
        """
        positives, partners = positives.double(), partners.double()
        total, rows, pairs = 0.0, len(positives), len(positives) * len(partners)
        counts, weights = torch.ones_like(positives), None
        if pairs > direct:
            positives, counts = condense(positives, cells)
            partners, weights, labels = condensed_classes(partners, labels, cells)
        for scores, count in zip(torch.split(positives, block), torch.split(counts, block), strict=True):
            u = self.observe(partners[None, :] - scores[:, None], labels, weights)
            total += float((self.outer(u) * count).sum())
        return total / rows


def times(matrix: Float[Tensor, "*stack n m"], vector: Float[Tensor, "*#stack m"]) -> Float[Tensor, "*stack n"]:
    """Return the product of a matrix and a vector, or of each pair in a stack."""
    product: Tensor = (matrix @ vector.unsqueeze(-1)).squeeze(-1)
    return product


def _weighted_mean(
    loss: Float[Tensor, "*stack n m"], weights: Float[Tensor, "*#stack m"] | None
) -> Float[Tensor, "*stack n"]:
    return loss.mean(dim=-1) if weights is None else times(loss, weights) / loss.shape[-1]


class LinearRisk(PairwiseObjective):
    """f = identity: the plain pairwise risk (11). No gradient depends on its inner estimate."""

    linear = True

    def slope(
        self, s: Float[Tensor, "*stack n m"], labels: Any, u: Any, num_partners: float = math.inf
    ) -> Float[Tensor, "*stack n m"]:
        return self.surrogate.slope(s)

    def outer(self, u: Float[Tensor, "n k"]) -> Float[Tensor, "n"]:
        return u[:, 0]


class ConcordanceRisk(LinearRisk):
    """The plain risk of comparable pairs. A pair that is not comparable has s = -inf, where l and its slope are 0."""

    partners = "all"
    timed = True


@dataclass(frozen=True)
class KLPartialAUC(PairwiseObjective):
    """One-way partial AUC (12): f = lambda log, l = exp(phi / lambda), phi the surrogate, a squared hinge.

    Gradients use only l / u, so log u is stored and no score overflows. The exact u is never smaller than l / |S_2|; an
    outdated u can be smaller, so l / u is capped at |S_2|.
    """

    temperature: float

    def observe(
        self, s: Float[Tensor, "*stack n m"], labels: Any, weights: Float[Tensor, "*#stack m"] | None
    ) -> Float[Tensor, "*stack n k"]:
        exponent = self.surrogate.value(s) / self.temperature
        if weights is not None:  # log 0 is a finite number, so sums of logarithms never form -inf - (-inf)
            exponent = exponent + torch.log(weights).clamp(min=-1e300).unsqueeze(-2)
        return (torch.logsumexp(exponent, dim=-1) - math.log(s.shape[-1] or 1))[..., None]

    def average(
        self, u: Float[Tensor, "*stack n k"], observed: Float[Tensor, "*stack n k"], gamma: float
    ) -> Float[Tensor, "*stack n k"]:
        if gamma == 1:
            return observed
        return torch.logaddexp(u + math.log1p(-gamma), observed + math.log(gamma))

    def slope(
        self,
        s: Float[Tensor, "*stack n m"],
        labels: Any,
        u: Float[Tensor, "*stack n k"],
        num_partners: float = math.inf,
    ) -> Float[Tensor, "*stack n m"]:
        log_ratio = (self.surrogate.value(s) / self.temperature - u).clamp_(max=math.log(num_partners))  # log(l / u)
        return log_ratio.exp_().mul_(self.surrogate.slope(s))

    def outer(self, u: Float[Tensor, "n k"]) -> Float[Tensor, "n"]:
        return self.temperature * u[:, 0]


class AUPRC(PairwiseObjective):
    """Average precision (14): u = (mean of l over positive partners, mean of l over all), f = -u_1 / u_2.

    A sample is its own partner, so the exact u_2 is never below l(0) / |S_2|; an outdated u_2 is raised to this bound.
    """

    inner_dim = 2
    partners = "all"
    labelled = True

    def observe(
        self,
        s: Float[Tensor, "*stack n m"],
        labels: Float[Tensor, "*#stack m"],
        weights: Float[Tensor, "*#stack m"] | None,
    ) -> Float[Tensor, "*stack n k"]:
        loss = self.surrogate.value(s)
        positive = loss * labels.unsqueeze(-2)
        return torch.stack([_weighted_mean(positive, weights), _weighted_mean(loss, weights)], dim=-1)

    def slope(
        self,
        s: Float[Tensor, "*stack n m"],
        labels: Float[Tensor, "*#stack m"],
        u: Float[Tensor, "*stack n k"],
        num_partners: float = math.inf,
    ) -> Float[Tensor, "*stack n m"]:
        floor = float(self.surrogate.value(s.new_zeros(()))) / num_partners
        u1, u2 = u[..., :1], u[..., 1:].clamp(min=max(floor, torch.finfo(u.dtype).tiny))
        return (u1 / u2 - labels.unsqueeze(-2)) / u2 * self.surrogate.slope(s)  # -y/u_2 + u_1/u_2^2

    def outer(self, u: Float[Tensor, "n k"]) -> Float[Tensor, "n"]:
        return -u[:, 0] / u[:, 1].clamp(min=torch.finfo(u.dtype).tiny)


@dataclass(frozen=True)
class PNormPush(PairwiseObjective):
    """f = u^p, p >= 1: a positive below many partners in the ranking has a more than proportional weight."""

    power: float

    def slope(
        self,
        s: Float[Tensor, "*stack n m"],
        labels: Any,
        u: Float[Tensor, "*stack n k"],
        num_partners: float = math.inf,
    ) -> Float[Tensor, "*stack n m"]:
        return self.power * u ** (self.power - 1) * self.surrogate.slope(s)

    def outer(self, u: Float[Tensor, "n k"]) -> Float[Tensor, "n"]:
        return u[:, 0] ** self.power


def pairwise_score(setting: str, loss: str) -> Score:
    """Return the score that a loss compares.

    With raw outputs, the derivative of a non-linear f multiplies unbounded losses. With a step size that suits most
    pairs, a single pair that is far out of order would ruin the model.

    Args:
        setting: A key of `SCORES`, or ``auto``: the sigmoid if the loss's f is not linear, else the raw output.
        loss: One of `ALL_PAIRWISE`.
    """
    return score_of(setting, "sigmoid" if loss in NON_LINEAR else "logit")


def make_objective(
    name: str, *, margin: float = 1.0, temperature: float = 1.0, surrogate: str = AUTO, power: float = 2.0
) -> PairwiseObjective:
    """Make the objective with a name, one of `ALL_PAIRWISE`.

    Args:
        margin: The margin of the hinge losses.
        temperature: The lambda of ``kl-opauc``.
        surrogate: The surrogate inside ``auprc``, ``p-norm-push`` and ``concordance``. Defaults to logistic for
            ``concordance``, whose steps with a squared hinge may diverge, and to squared-hinge for the others.
        power: The p of ``p-norm-push``.

    Raises:
        ValueError: The name is unknown, or the loss does not support the surrogate.
    """
    if name in LINEAR:
        return LinearRisk(make_surrogate(name, margin))
    if surrogate == AUTO:
        surrogate = "logistic" if name == CONCORDANCE else "squared-hinge"
    if name == CONCORDANCE:
        return ConcordanceRisk(make_surrogate(surrogate, margin))
    if name not in NON_LINEAR:
        raise ValueError(f"loss {name!r}: allowed are {', '.join(ALL_PAIRWISE)}")
    if name == "kl-opauc":
        return KLPartialAUC(make_surrogate("squared-hinge", margin), temperature)
    if name == "auprc" and surrogate == "squared-hinge" and margin == 0:
        raise ValueError("loss 'auprc' with surrogate 'squared-hinge' needs a margin > 0, got 0")
    if name == "p-norm-push" and surrogate == "psm":
        raise ValueError("loss 'p-norm-push': surrogate got 'psm', allowed: squared-hinge, logistic")
    inner = make_surrogate(surrogate, margin)
    return AUPRC(inner) if name == "auprc" else PNormPush(inner, power)
