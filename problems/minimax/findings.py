"""l2-relaxed AUC maximisation of several findings: the mean of `problems.minimax.auc`'s f over the findings.

x = (w, a, b) and y = lambda, with an entry of a, b and lambda for each of l findings. Over the training rows of all
sites, finding j is known in a share q_j of the rows, and p_j is the share of positives among them. Then

    f_i = mean over j of omega_i (mean over the site's samples of F_j's terms) / q_j - p_j (1 - p_j) lambda_j^2,

where F_j's terms are 0 for a sample with an unknown j. The plain mean of the f_i is therefore the mean over the
findings of f_j, the mean of F_j over all samples with a known j.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from problems.data.findings import Findings
from problems.minimax.auc import AUCOracle, saddle_value
from problems.minimax.compositional import CompositionalOracle
from problems.models.flat import FlatModel
from problems.objectives.scores import SCORES, Score


class FindingsAUCOracle(AUCOracle):
    """The oracle of AUC maximisation of several findings at one site.

    Args:
        model: A `FlatModel` of a `SaddleNetwork` with an output for each finding.
        features: The site's features.
        findings: The site's findings.
        score: s as a function of the network's outputs.
    """

    def __init__(
        self,
        model: FlatModel,
        features: Float[Tensor, "n *shape"],
        findings: Findings,
        *,
        score: Score = SCORES["logit"],
    ) -> None:
        super().__init__(model, features, _values_of(findings, model), score=score)
        self.count_findings(findings)

    def count_findings(self, findings: Findings) -> None:
        """Set the number of findings, their priors and their shares."""
        self.count = len(findings.names)
        self.primal_dim = self.model.dim - self.count
        self.priors, self.shares = (
            torch.tensor(part, dtype=self.model.dtype, device=self.device)
            for part in (findings.priors, findings.shares)
        )

    def value(self) -> float:
        scores, saddle = self.scores(self.model.predict(self.features)), self._saddle(self.parameters)
        total = 0.0
        for j, (prior, share) in enumerate(zip(self.priors.tolist(), self.shares.tolist(), strict=True)):
            known = self.labels[:, j] >= 0
            weight = self.weight * float(known.double().mean()) / share
            if known.any():
                total += float(saddle_value(scores[known, j], self.labels[known, j], saddle[:, j], prior, weight))
            else:
                total -= prior * (1 - prior) * float(saddle[2, j]) ** 2
        return total / self.count

    def class_sums(self) -> tuple[Float[Tensor, "2"], Float[Tensor, "2"]]:
        raise ValueError("sums of scores by class exist for a single label only, see `methods.coda.check_sites`")

    def saddle(self, z: Float[Tensor, "d"]) -> tuple[Float[Tensor, "l"], ...]:
        return self._saddle(z).unbind()

    def weigh_classes(self, labels: Float[Tensor, "n l"]) -> tuple[Float[Tensor, "n l"], Float[Tensor, "n l"]]:
        weight = self.weight / (self.count * self.shares)
        return weight * (1 - self.priors) * (labels == 1), weight * self.priors * (labels == 0)

    def dual_slope(self, z: Float[Tensor, "d"]) -> Float[Tensor, "l"]:
        return -2 * self.priors * (1 - self.priors) * self._saddle(z)[2] / self.count

    def _gradient(
        self, network: FlatModel, z: Float[Tensor, "d"], features: Tensor, labels: Float[Tensor, "n l"]
    ) -> Float[Tensor, "d"]:
        logits, pull = network.forward(z, features)
        slopes, *of_saddle = self.derivatives(z, logits, labels)
        gradient = pull(slopes / len(labels))
        parts = self._saddle(gradient)
        parts.copy_(torch.stack([values.mean(0) for values in of_saddle]))
        parts[2] += self.dual_slope(z)
        return gradient

    def _saddle(self, z: Float[Tensor, "d"]) -> Float[Tensor, "3 l"]:
        """Return a view of a, b and lambda, the last entries of a point."""
        return z[-3 * self.count :].view(3, self.count)


class FindingsCompositionalOracle(FindingsAUCOracle, CompositionalOracle):
    """The oracle of f(g(x), y) of several findings, see `problems.minimax.compositional`.

    f is the mean of the findings' f_j, and CE the mean of the findings' cross-entropies, each over the rows of all
    sites in which the finding is known.

    Args:
        model: See `FindingsAUCOracle`.
        inner: The second network.
        features: The site's features.
        findings: The site's findings.
        score: s as a function of the network's outputs.
    """

    def __init__(
        self,
        model: FlatModel,
        inner: FlatModel,
        features: Float[Tensor, "n *shape"],
        findings: Findings,
        *,
        score: Score = SCORES["logit"],
    ) -> None:
        CompositionalOracle.__init__(self, model, inner, features, _values_of(findings, model), score=score)
        self.count_findings(findings)

    def _errors(self, logits: Float[Tensor, "n l"], labels: Float[Tensor, "n l"]) -> Float[Tensor, "n l"]:
        weight = self.weight / (self.count * self.shares * len(labels))
        errors: Tensor = weight * (torch.sigmoid(logits) - labels) * (labels >= 0)
        return errors


def _values_of(findings: Findings, model: FlatModel) -> Float[Tensor, "n l"]:
    return torch.tensor(findings.values, dtype=model.dtype, device=model.device)
