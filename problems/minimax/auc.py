"""l2-relaxed AUC maximisation as a minimax problem (Xie et al., "A Federated Learning Framework for Nonconvex-PL
Minimax Problems", equation (63); Ying, Wen, Lyu 2016), over any model and data set.

x = (w, a, b), the network's weights and two numbers, and y = lambda; with p the share of positives of all sites
together and s the score,

    F = (1 - p) (s - a)^2 [positive] + p (s - b)^2 [negative]
        + 2 (1 + lambda) (p s [negative] - (1 - p) s [positive]) - p (1 - p) lambda^2.

Site i weighs F's terms with omega_i, except the last term, which does not depend on samples:

    f_i = omega_i (mean over its samples of F's other terms) - p (1 - p) lambda^2,     omega_i = N n_i / n

for N sites with n samples in total, n_i at site i. The plain mean of the f_i is therefore f, the mean of F over all
samples, for any division of the samples into sites, and every f_i is as strongly concave in lambda as f
(docs/minimax.md).
"""

import math
from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor

from problems.augmentation import Augmentation
from problems.image_tensor import read_rows
from problems.minimax.oracle import Oracle
from problems.models.flat import FlatModel
from problems.models.networks import SCALARS
from problems.models.vectors import Copy, FloatArray
from problems.objectives.scores import SCORES, Score
from problems.sampling import on_device

AUC_MINIMAX = "auc-minimax"
# The default s of a run. F squares s, so with raw outputs the most extreme rows would limit the step size. tanh bounds
# large outputs, and is almost the raw output near 0.
AUC_SCORE = "tanh"
_CHUNK = 1024  # samples whose activations are in memory at a time


def saddle_value(
    scores: Float[Tensor, "n"],
    labels: Float[Tensor, "n"],
    saddle: Float[Tensor, "3"],
    prior: float,
    weight: float = 1.0,
) -> Float[Tensor, ""]:
    """Return f_i of some samples.

    Args:
        scores: s of each sample.
        labels: 1 for a positive, else 0.
        saddle: a, b and lambda.
        prior: p, the share of positives of all sites together.
        weight: omega_i.
    """
    a, b, dual = saddle
    negatives = 1 - labels
    squares = (1 - prior) * (scores - a) ** 2 * labels + prior * (scores - b) ** 2 * negatives
    linear = 2 * (1 + dual) * scores * (prior * negatives - (1 - prior) * labels)
    value: Tensor = weight * (squares + linear).mean() - prior * (1 - prior) * dual**2
    return value


def best_saddle(scores: Float[Tensor, "n"], labels: Float[Tensor, "n"]) -> Float[Tensor, "3"]:
    """Return the best a, b and lambda for given scores: E[s|+], E[s|-] and E[s|-] - E[s|+].

    Args:
        scores: s of each sample.
        labels: 1 for a positive, else 0. Both must occur.
    """
    a, b = scores[labels > 0.5].mean(), scores[labels < 0.5].mean()
    return torch.stack([a, b, b - a])


class AUCOracle(Oracle):
    """The oracle of equation (63) at one site, with closed-form gradients in a, b and lambda.

    Args:
        model: A `FlatModel` of a `SaddleNetwork`.
        features: The site's features.
        labels: 1 for a positive, else 0. Subclasses may have several labels for each row.
        score: s as a function of the network's output.

    Attributes:
        augmentation: The random changes of the images in gradients. None: no changes.
    """

    augmentation: Augmentation | None = None

    def __init__(
        self,
        model: FlatModel,
        features: Float[Tensor, "n *shape"],
        labels: Float[Tensor, "n *findings"],
        *,
        score: Score = SCORES["logit"],
    ) -> None:
        self.model, self.features, self.labels, self.score = model, features, labels, score
        self.device, self.parameters = model.device, model.parameters
        self.primal_dim, self.num_samples = model.dim - 1, len(labels)
        self.buffers, self.stochastic = model.statistics, model.stochastic

    def load(self, arrays: Sequence[FloatArray]) -> None:
        self.model.load(arrays)

    def arrays(self, copy: Copy = np.array) -> list[Float[np.ndarray, "_"]]:
        return self.model.arrays(copy)

    def scores(self, logits: Float[Tensor, "*stack n"]) -> Float[Tensor, "*stack n"]:
        """Return s of the network's outputs."""
        return self.score.value(logits)

    def value(self) -> float:
        scores = self.scores(self.model.predict(self.features))
        return float(saddle_value(scores, self.labels, self.parameters[-SCALARS:], self.prior, self.weight))

    def class_sums(self) -> tuple[Float[Tensor, "2"], Float[Tensor, "2"]]:
        """Return the sums of the site's scores by class, negatives first, and the numbers of samples."""
        scores, labels = self.scores(self.model.predict(self.features)), self.labels
        sums = torch.stack([(scores * (1 - labels)).sum(), (scores * labels).sum()])
        return sums, torch.stack([(1 - labels).sum(), labels.sum()])

    def gradient(self, z: Float[Tensor, "d"], rows: Int64[np.ndarray, "b"] | None) -> Float[Tensor, "d"]:
        if rows is not None or self.num_samples <= _CHUNK:
            return self._gradient(self.model, z, *self._batch(rows))
        total = torch.zeros_like(z)
        # parts of nearly equal size, since batch norm refuses a single sample
        for chunk in np.array_split(np.arange(self.num_samples), math.ceil(self.num_samples / _CHUNK)):
            gradient = self._gradient(self.model, z, *self._batch(slice(chunk[0], chunk[-1] + 1)))
            total.add_(gradient, alpha=len(chunk) / self.num_samples)
        return total

    def _batch(self, rows: Int64[np.ndarray, "b"] | slice | None) -> tuple[Tensor, Tensor]:
        """Return the features, after augmentation, and the labels of some samples; of all samples for None."""
        if isinstance(rows, np.ndarray):
            features, labels = read_rows(self.features, rows), self.labels.index_select(0, on_device(rows, self.device))
        else:  # without a copy
            span = rows or slice(None)
            features, labels = (part[span] for part in (self.features, self.labels))
            rows = np.arange(self.num_samples)[span]
        return features if self.augmentation is None else self.augmentation(features, rows), labels

    def _gradient(
        self, network: FlatModel, z: Float[Tensor, "*stack d"], features: Tensor, labels: Float[Tensor, "*stack n"]
    ) -> Float[Tensor, "*stack d"]:
        """Return the gradient at the point z = (x, y) over samples with features (..., n, *shape), scored by a network.

        For a stack of C clients `weight` is (C, 1).
        """
        logits, pull = network.forward(z, features)  # (n,)
        slopes, to_a, to_b, to_dual = self.derivatives(z, logits, labels)
        gradient = pull(slopes / labels.shape[-1])
        gradient[..., -SCALARS:] = torch.cat([values.mean(-1, True) for values in (to_a, to_b, to_dual)], -1)
        gradient[..., -1] += self.dual_slope(z)
        return gradient

    def saddle(self, z: Float[Tensor, "*stack d"]) -> tuple[Tensor, ...]:
        """Return a, b and lambda at a point, each (*stack, 1)."""
        return z[..., -SCALARS:, None].unbind(-2)

    def weigh_classes(self, labels: Float[Tensor, "*stack n"]) -> tuple[Tensor, Tensor]:
        """Return the weights of each sample's terms as a positive and as a negative; 0 for the other class."""
        return self.weight * (1 - self.prior) * labels, self.weight * self.prior * (1 - labels)

    def derivatives(
        self, z: Float[Tensor, "*point d"], logits: Float[Tensor, "*stack n"], labels: Float[Tensor, "*stack n"]
    ) -> tuple[Float[Tensor, "*stack n"], ...]:
        """Return the derivatives of each sample's terms: in its logit, in a, in b and in lambda.

        Args:
            z: The point (x, y).
            logits: The network's outputs at z.
            labels: 1 for a positive, else 0.
        """
        scores, (a, b, dual) = self.scores(logits), self.saddle(z)
        positive, negative = self.weigh_classes(labels)
        to_a, to_b, linear = positive * (scores - a), negative * (scores - b), negative - positive  # (n,)
        slopes = 2 * (to_a + to_b + (1 + dual) * linear) * self.score.slope(scores)
        return slopes, -2 * to_a, -2 * to_b, 2 * (linear * scores)

    def dual_slope(self, z: Float[Tensor, "*stack d"]) -> Float[Tensor, "*stack"]:
        """Return the derivative in lambda of F's last term, which does not depend on samples.

        Args:
            z: The point (x, y).
        """
        return -2 * self.prior * (1 - self.prior) * z[..., -1]
