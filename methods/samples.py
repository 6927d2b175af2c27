"""Gradients and mini-batches of the methods whose f_i is a mean over single samples."""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from methods.adjustment import Adjustment
from methods.method import Task
from payloads.settings import Settings, TrainingSettings
from problems.models import FlatModel
from problems.objectives.classification import CROSS_ENTROPY, SAMPLE_LOSSES, SOFTMAX
from problems.objectives.hazard import HAZARD, hazard_slopes
from problems.objectives.number_losses import NUMBER_LOSSES
from problems.randomness import Purpose
from problems.sampling import EpochSampler
from problems.site import Site

# features (*stack, b, *shape), which jaxtyping cannot annotate, labels (*stack, b) and, if there are any, offsets
Batch = tuple[Tensor, ...]
# the losses of methods that need only the slope of a sample's loss
LOSSES = (CROSS_ENTROPY, SOFTMAX, *NUMBER_LOSSES, HAZARD)
# (scores, labels) -> the derivative of each sample's loss with respect to its score
Slope = Callable[[Float[Tensor, "*stack b"], Float[Tensor, "*stack b"]], Float[Tensor, "*stack b"]]


class SampleObjective:
    """f_i(w): the mean loss of the site's samples, plus sum_j ridge_j w_j^2 / 2 if there is a ridge term.

    Attributes:
        loss: The loss. None: every call of `gradient` must pass a slope.
        adjust: The clipping and weight decay of the mean loss's gradient, or None.
        ridge: The factors of the ridge term, or None.
    """

    ridge: Float[Tensor, "d"] | None = None

    def __init__(self, model: FlatModel, site: Site, loss: str, training: TrainingSettings, settings: Settings) -> None:
        self.model, self.loss = model, SAMPLE_LOSSES.get(loss)
        self.adjust = Adjustment.of(training)

    def gradient(
        self, w: Float[Tensor, "*stack d"], batch: Batch, slope: Slope | None = None
    ) -> Float[Tensor, "*stack d"]:
        """Return the gradient at w, on a batch; valid until the next call.

        Args:
            slope: A replacement for `SampleLoss.slope`. None: the loss's own slope.
        """
        scores, pull = self.model.forward(w, batch[0])
        gradient = pull(self._slopes(scores, batch, slope))
        if self.adjust is not None:
            gradient = self.adjust(gradient, w)
        return gradient if self.ridge is None else gradient.addcmul_(w, self.ridge)

    def descend(self, w: Float[Tensor, "*stack d"], batch: Batch, eta: float) -> None:
        """Take the step w <- w - eta * gradient. Without ridge term and adjustment, no temporary tensor is needed.

        Args:
            w: The point, changed in place.
            batch: The batch.
            eta: The step size.
        """
        if self.ridge is not None or self.adjust is not None:
            w.sub_(self.gradient(w, batch), alpha=eta)
            return
        scores, pull = self.model.forward(w, batch[0])
        pull(self._slopes(scores, batch), into=w, alpha=-eta)

    def measure(
        self, w: Float[Tensor, "*stack d"], batch: Batch
    ) -> tuple[Float[Tensor, "*stack"], Float[Tensor, "*stack d"]]:
        """Return the mean loss of a batch at w, and its gradient, which is valid until the next call."""
        assert self.loss is not None
        scores, pull = self.model.forward(w, batch[0])
        gradient = pull(self._slopes(scores, batch))
        loss = self.loss.each(add_offsets(scores, batch), batch[1]).mean(-1)
        return loss, gradient if self.adjust is None else self.adjust(gradient, w)

    def _slopes(
        self, scores: Float[Tensor, "*stack b"], batch: Batch, slope: Slope | None = None
    ) -> Float[Tensor, "*stack b"]:
        """Return the derivatives of the mean loss with respect to the scores, to which the offsets are added."""
        labels, scores = batch[1], add_offsets(scores, batch)
        if slope is None:
            assert self.loss is not None
            slope = self.loss.slope
        return slope(scores, labels).div_(labels.shape[-1] or 1)


def add_offsets(scores: Float[Tensor, "*stack b"], batch: Batch) -> Float[Tensor, "*stack b"]:
    """Return the scores with the batch's offsets, if it has any."""
    for offset in batch[2:]:
        scores = scores + offset
    return scores


class HazardObjective(SampleObjective):
    """f_i(w, alpha): the mean loss of `problems.objectives.hazard`. The point ends with alpha."""

    def __init__(self, model: FlatModel, site: Site, loss: str, training: TrainingSettings, settings: Settings) -> None:
        super().__init__(model, site, loss, training, settings)
        self.intervals = model.parameter_shapes[-1][0]
        assert site.periods is not None
        assert site.periods.num_intervals <= self.intervals

    def gradient(
        self, w: Float[Tensor, "*stack d"], batch: Batch, slope: Slope | None = None
    ) -> Float[Tensor, "*stack d"]:
        scores, pull = self.model.forward(w, batch[0])
        slopes = hazard_slopes(scores, batch[1], w[..., -self.intervals :])
        rows = slopes.shape[-2] or 1
        gradient = pull(slopes.sum(-1) / rows)
        gradient[..., -self.intervals :] = slopes.sum(-2) / rows
        return gradient if self.adjust is None else self.adjust(gradient, w)

    def descend(self, w: Float[Tensor, "*stack d"], batch: Batch, eta: float) -> None:
        w.sub_(self.gradient(w, batch), alpha=eta)

    def derivatives(
        self, w: Float[Tensor, "*stack d"], scores: Float[Tensor, "*stack n"], codes: Float[Tensor, "*stack n"]
    ) -> tuple[Float[Tensor, "*stack n"], ...]:
        """Return the derivatives of each row's loss: in its score, and in the baseline of each interval.

        Args:
            w: The point.
            scores: The rows' scores at the point.
            codes: The rows' outcomes, see `problems.objectives.hazard.encode`.
        """
        slopes = hazard_slopes(scores, codes, w[..., -self.intervals :])
        return slopes.sum(-1), *slopes.unbind(-1)


class FindingsObjective(SampleObjective):
    """f_i(w): the mean over l findings of the mean loss over the rows of all sites in which the finding is known.

    This is the mean of the f_i over the sites, with each site's rows as its weight: a finding's term of f_i is the sum
    over the site's known rows, divided by all rows of the site and by the finding's share of known rows at all sites.

    With the loss `SOFTMAX` each row has one of the findings, its class, and f_i is the mean over the site's rows.
    """

    def __init__(self, model: FlatModel, site: Site, loss: str, training: TrainingSettings, settings: Settings) -> None:
        super().__init__(model, site, loss, training, settings)
        assert site.findings is not None
        shares = torch.tensor(site.findings.shares, dtype=model.dtype, device=model.device)
        self.weights = torch.ones_like(shares) if loss == SOFTMAX else 1 / (len(shares) * shares)

    def _slopes(
        self, scores: Float[Tensor, "*stack b l"], batch: Batch, slope: Slope | None = None
    ) -> Float[Tensor, "*stack b l"]:
        findings = batch[1]
        assert self.loss is not None
        slopes = self.loss.slope(scores, findings).mul_(findings >= 0)
        return slopes.mul_(self.weights / (findings.shape[-2] or 1))


def sample_objective(
    model: FlatModel, site: Site, loss: str, training: TrainingSettings, settings: Settings
) -> SampleObjective:
    """Return f_i, whose loss may have further variables besides the weights."""
    kind = HazardObjective if loss == HAZARD else SampleObjective if site.findings is None else FindingsObjective
    return kind(model, site, loss, training, settings)


def make_sampler(task: Task[Any, Any], purpose: Purpose = Purpose.SAMPLES) -> EpochSampler:
    """Make the sampler of a site's mini-batches of ``batch-size`` samples.

    Args:
        task: The client's task. The round has no effect, since batches are numbered over the whole run.
        purpose: The stream of random numbers. Two independent batches of a step need two purposes.
    """
    training, end = task.training, task.iterations.stop
    return task.site.sampler(task.site.everyone, training.batch_size, training.seed, purpose, end)


def sample_batches(task: Task[Any, Any], down: object) -> Iterator[tuple[float, Batch]]:
    """Draw a round's mini-batches of ``batch-size`` samples; a `ClientHalf.batches`.

    Args:
        down: The record sent with the model; without effect.

    Returns:
        The step size and the batch of each iteration. The batch is the whole site if ``batch-size`` is 0 or at least
        the site's number of samples.
    """
    site = task.site
    if site.is_one_batch(task.training.batch_size):
        for iteration in task.iterations:
            yield task.eta(iteration), site.batch
        return
    sampler = make_sampler(task)
    for iteration in task.iterations:
        yield task.eta(iteration), site.samples(sampler.batch(iteration))
