"""What the methods share whose f_i is a mean over single samples: its gradient, and mini-batches of all samples."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor

from methods.method import Task
from payloads.settings import Settings, TrainingSettings
from problems.models import FlatModel
from problems.objectives.classification import SAMPLE_LOSSES
from problems.randomness import Purpose
from problems.site import Site

# features (b, *shape) and labels (b,)
Batch = tuple[Tensor, Tensor]


class SampleObjective:
    """f_i(w), the mean over samples of a loss of their scores, plus ridge' w^2 / 2.

    Args:
        model: whose scores they are.
        loss: a name of `SAMPLE_LOSSES`, or another where `slope` is overridden.
        ridge: (d,) factors of a ridge term, where there is one.
    """

    def __init__(self, model: FlatModel, loss: str, ridge: Tensor | None = None) -> None:
        self.model, self.ridge = model, ridge
        self.known = SAMPLE_LOSSES.get(loss)

    def slope(self, scores: Tensor, labels: Tensor) -> Tensor:
        """(b,) the derivative of each sample's loss in its score, a new tensor."""
        assert self.known is not None
        return self.known.slope(scores, labels)

    def gradient(self, w: Tensor, batch: Batch) -> Tensor:
        """(d,) the gradient at w; valid until the next call."""
        features, labels = batch
        scores, pull = self.model.forward(w, features)
        gradient = pull(self.slope(scores, labels).div_(len(labels) or 1))
        return gradient if self.ridge is None else gradient.addcmul_(w, self.ridge)

    def descend(self, w: Tensor, batch: Batch, eta: float) -> None:
        """w <- w - eta * gradient, in place; the gradient itself is not written down where the model can do without."""
        if self.ridge is not None:
            w.sub_(self.gradient(w, batch), alpha=eta)
            return
        features, labels = batch
        scores, pull = self.model.forward(w, features)
        pull(self.slope(scores, labels), into=w, alpha=-eta / (len(labels) or 1))


def sample_objective(
    model: FlatModel, site: Site, loss: str, training: TrainingSettings, settings: Settings
) -> SampleObjective:
    """f_i of the methods without a term of their own."""
    return SampleObjective(model, loss)


def sample_batches(task: Task[Any, Any], down: object) -> Iterator[tuple[float, Batch]]:
    """The step size and the mini-batch of ``batch-size`` samples of each of the round's iterations."""
    site, training = task.site, task.training
    if not 0 < training.batch_size < len(site):
        for iteration in task.iterations:
            yield task.eta(iteration), (site.features, site.labels)
        return
    sampler = site.sampler(site.everyone, training.batch_size, training.seed, Purpose.SAMPLES)
    for iteration in task.iterations:
        yield task.eta(iteration), site.samples(sampler.batch(iteration))
