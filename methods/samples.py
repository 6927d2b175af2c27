"""Shared by the methods whose f_i is a mean over single samples: its gradient, and mini-batches of all samples."""

from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor

from methods.method import Task
from payloads.settings import Settings, TrainingSettings
from problems.models import FlatModel
from problems.objectives.classification import SAMPLE_LOSSES
from problems.randomness import Purpose
from problems.sampling import EpochSampler
from problems.site import Site

# features (b, *shape) and labels (b,)
Batch = tuple[Tensor, Tensor]
Slope = Callable[[Tensor, Tensor], Tensor]


class SampleObjective:
    """f_i(w): the mean loss of the site's samples and, where there is a ridge term, sum_j ridge_j w_j^2 / 2.

    Attributes:
        loss: None where every call of `gradient` must give a slope.
        ridge: (d,) factors of the ridge term, or None.
    """

    ridge: Tensor | None = None

    def __init__(self, model: FlatModel, site: Site, loss: str, training: TrainingSettings, settings: Settings) -> None:
        self.model, self.loss = model, SAMPLE_LOSSES.get(loss)

    def gradient(self, w: Tensor, batch: Batch, slope: Slope | None = None) -> Tensor:
        """(d,) the gradient at w; valid until the next call.

        Args:
            slope: like `SampleLoss.slope`; None: that of the loss itself.
        """
        scores, pull = self.model.forward(w, batch[0])
        gradient = pull(self._slopes(scores, batch[1], slope))
        return gradient if self.ridge is None else gradient.addcmul_(w, self.ridge)

    def descend(self, w: Tensor, batch: Batch, eta: float) -> None:
        """w <- w - eta * gradient, in place; without a ridge term the model may add to w with no tensor in between."""
        if self.ridge is not None:
            w.sub_(self.gradient(w, batch), alpha=eta)
            return
        scores, pull = self.model.forward(w, batch[0])
        pull(self._slopes(scores, batch[1]), into=w, alpha=-eta)

    def _slopes(self, scores: Tensor, labels: Tensor, slope: Slope | None = None) -> Tensor:
        """(..., b) the derivatives of the mean loss with respect to the scores."""
        if slope is None:
            assert self.loss is not None
            slope = self.loss.slope
        return slope(scores, labels).div_(labels.shape[-1] or 1)


def make_sampler(task: Task[Any, Any], purpose: Purpose = Purpose.SAMPLES) -> EpochSampler:
    """Mini-batches of ``batch-size`` of the site's samples, numbered over the whole run."""
    return task.site.sampler(task.site.everyone, task.training.batch_size, task.training.seed, purpose)


def sample_batches(task: Task[Any, Any], down: object) -> Iterator[tuple[float, Batch]]:
    """The step size and the mini-batch of ``batch-size`` samples of each of the round's iterations."""
    site = task.site
    if not 0 < task.training.batch_size < len(site):
        for iteration in task.iterations:
            yield task.eta(iteration), (site.features, site.labels)
        return
    sampler = make_sampler(task)
    for iteration in task.iterations:
        yield task.eta(iteration), site.samples(sampler.batch(iteration))
