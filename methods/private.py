"""Differential privacy of a site's samples (M. Abadi et al., "Deep Learning with Differential Privacy", CCS 2016,
Algorithm 1). In a method whose gradients are all means over single samples, each gradient

    (1/b) sum_{j in batch} g_j,

is replaced by

    (1/b) ( sum_{j in batch} g_j min(1, C / |g_j|)  +  N(0, (s C)^2 I) ),

where g_j is the gradient of sample j and b the mean size of a batch. Each of the site's n samples is in a batch with
chance b / n, independently. The method itself is unchanged. A ridge term, which has no samples, is added afterwards.

| paper | here |
|---|---|
| C | ``privacy.clip`` |
| sigma, s above | ``noise`` |
| lot, L | a batch, ``batch-size`` |

Neighbouring data sets differ in one sample, whose gradient is 0 in one of them. The numbers of samples of each class
are public. The draws and the noise come from the system's generator, since the run's seed is public. If a method
computes k gradients on one batch, their noise is sqrt(k) times as large, so they reveal no more than a single gradient.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from functools import partial
from typing import Any, Self

import numpy as np
import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor

from methods.method import SampleGradients
from methods.samples import Batch, HazardObjective, SampleObjective, Slope
from payloads.settings import TrainingSettings
from privacy.budget import Releases
from problems.errors import InputError
from problems.minimax.auc import AUCOracle
from problems.models.flat import FlatModel
from problems.randomness import Purpose, secret_normal
from problems.sampling import Indices, PoissonSampler, rate_of
from problems.site import Site

_CHUNK = 1024  # samples whose activations are in memory at a time
_LATTICE = 2.0**-20  # the limit, in clips, by which rounding to the lattice may lengthen a clipped gradient


class BudgetError(InputError, ValueError):
    """An error: the server requested more gradients than the run's privacy budget allows."""


def releases_of(taken: SampleGradients, training: TrainingSettings, samples: int, rounds: int) -> Releases:
    """Count a method's releases, the noisy gradients of a site's samples.

    Args:
        taken: The gradients that the method computes.
        training: The settings; determine the number of batches in a round.
        samples: The number of the site's samples.
        rounds: The number of rounds.
    """
    batches = rounds * training.local_steps + (taken.first if rounds else 0)
    return Releases(rate_of(training.batch_size, samples), batches, rounds * taken.whole)


@dataclass
class Ledger:
    """The counter of a site's releases, which raises an error for more releases than allowed.

    Attributes:
        allowed: The allowed releases.
        of_batch: The allowed number of gradients on one batch.
        batches, whole: The batches drawn so far, and the gradients over all samples so far.
        left: The number of gradients still allowed on the newest batch.
    """

    allowed: Releases
    of_batch: int = 1
    batches: int = 0
    whole: int = 0
    left: int = 0

    def draw(self) -> None:
        """Count a batch.

        Raises:
            BudgetError: The batch exceeds the allowed number.
        """
        self.batches, self.left = self.batches + 1, self.of_batch
        self._check()

    def release(self, *, whole: bool) -> None:
        """Count a gradient.

        Args:
            whole: Whether the gradient is over all samples, not on the newest batch.

        Raises:
            BudgetError: The gradient exceeds the allowed number.
        """
        self.whole += whole
        self.left -= not whole
        self._check()

    def _check(self) -> None:
        limit = self.allowed
        if self.batches > limit.batches or self.whole > limit.whole or self.left < 0:
            got = f"a request for more than {limit.batches} batches or {limit.whole} gradients over all samples"
            allowed = "the number in num-server-rounds rounds, for which the noise was computed"
            raise BudgetError("privacy.epsilon", got=got, allowed=allowed, hint="start a new run")


def refuse_phase(phase: str) -> BudgetError:
    """Return the error for a phase that uses samples in another way than by private gradients."""
    allowed = "a phase that the budget covers"
    return BudgetError("privacy.epsilon", got=f"the phase {phase!r}", allowed=allowed, hint="set privacy.epsilon to 0")


@dataclass(frozen=True)
class Guard:
    """The computation of a site's private gradients: clipping, noise and counting.

    Attributes:
        clip: C.
        noise: s for one gradient on each batch; more gradients on a batch have more noise.
        batch: b, the mean number of samples in a batch.
        ledger: The counter of the site's releases.
    """

    clip: float
    noise: float
    batch: float
    ledger: Ledger

    def sum(
        self,
        model: FlatModel,
        w: Float[Tensor, "d"],
        samples: tuple[Tensor, ...],
        derivatives: Callable[..., tuple[Tensor, ...]],
    ) -> Float[Tensor, "d"]:
        """Sum the clipped gradients of samples.

        A sample with a non-finite gradient is left out, so no sample changes the sum by more than C, whatever w is.

        Args:
            model: The model that scores the samples.
            w: The model's weights. The last entries may be other variables, such as a saddle's scalars.
            samples: The features and labels, and perhaps offsets; may be empty.
            derivatives: (scores, labels) -> each sample's derivatives in its score and in the last entries of w.

        Returns:
            The sum, in float64.
        """
        total = torch.zeros(len(w), dtype=torch.float64, device=w.device)
        for chunk in zip(*(torch.split(part, _CHUNK) for part in samples), strict=True):
            features, labels, *offsets = chunk
            if not len(labels):
                continue
            with np.errstate(over="ignore", invalid="ignore"):
                scores, lengths, pull = model.forward_records(w, features)
            for offset in offsets:
                scores = scores + offset
            slopes, *scalars = derivatives(scores, labels)
            outside = torch.stack(scalars) if scalars else slopes.new_zeros(0, len(labels))
            lengths = lengths.mul_(slopes.abs()).square_().add_(outside.double().square().sum(0)).sqrt_()
            usable = lengths.isfinite()
            if not usable.all():
                total += self.sum(model, w, tuple(part[usable] for part in chunk), derivatives)
                continue
            factors = _without_subnormal((self.clip / lengths.clamp_(min=self.clip)).to(slopes.dtype))
            total += pull(_without_subnormal(slopes * factors))
            if scalars:
                total[-len(scalars) :] += outside @ factors
        return total

    def blur(
        self,
        total: Float64[Tensor, "d"],
        like: Float[Tensor, "d"],
        whole: int = 0,
    ) -> Float[Tensor, "d"]:
        """Turn a sum of clipped gradients into the noisy mean.

        Sum and noise are rounded to multiples of the same small step, a lattice, before they are added. So the result
        has no bits below this step (I. Mironov, "On significance of the least significant bits for differential
        privacy", CCS 2012). Rounding moves the sum by at most 2^-20 clips, and the noise is enlarged accordingly.

        Args:
            total: The sum; overwritten.
            like: A tensor with the number type of the mean.
            whole: The number of the site's samples, if the sum is over all of them. 0: the sum is over a batch.
        """
        noise = torch.from_numpy(secret_normal(len(total))).to(total.device)
        times = 1 if whole else self.ledger.of_batch
        deviation = self.noise * self.clip * math.sqrt(times) * (1 + _LATTICE)
        if not deviation:
            return total.div_(whole or self.batch).to(like.dtype)
        share = (whole or self.batch) / self.batch  # a batch's noise, rescaled to a mean over all samples
        step = 2.0 ** math.floor(math.log2(self.clip * _LATTICE / math.sqrt(len(total))))
        noise.mul_(deviation * share / step).round_()
        return total.div_(step).round_().add_(noise).mul_(step / (whole or self.batch)).to(like.dtype)


def _without_subnormal(values: Float[Tensor, "n"]) -> Float[Tensor, "n"]:
    """Set subnormal numbers to 0. Rounding may have doubled them, and a gradient could then be longer than the clip."""
    return values.masked_fill_(values.abs() < torch.finfo(values.dtype).tiny, 0.0)


class PrivateSamples(SampleObjective):
    """The objective of single samples, with gradients that keep each sample private.

    Args:
        plain: The objective without privacy.
        guard: The site's guard.
    """

    def __init__(self, plain: SampleObjective, guard: Guard) -> None:
        self.model, self.loss, self.ridge, self.guard = plain.model, plain.loss, plain.ridge, guard
        self.adjust = plain.adjust
        self.model.check_records()

    def gradient(self, w: Float[Tensor, "d"], batch: Batch, slope: Slope | None = None) -> Float[Tensor, "d"]:
        assert slope or self.loss
        own = slope or self.loss.slope  # type: ignore[union-attr]
        self.guard.ledger.release(whole=False)
        total = self.guard.sum(self.model, w, batch, lambda scores, labels: (own(scores, labels),))
        gradient = self.guard.blur(total, w)
        if self.adjust is not None:
            gradient = self.adjust(gradient, w)
        return gradient if self.ridge is None else gradient.addcmul_(w, self.ridge)

    def descend(self, w: Float[Tensor, "d"], batch: Batch, eta: float) -> None:
        w.sub_(self.gradient(w, batch), alpha=eta)


class PrivateHazards(HazardObjective):
    """The objective of hazards, with gradients in (w, alpha) that keep each row private: all intervals of a patient.

    Args:
        plain: The objective without privacy.
        guard: The site's guard.
    """

    def __init__(self, plain: HazardObjective, guard: Guard) -> None:
        self.model, self.intervals, self.adjust, self.guard = plain.model, plain.intervals, plain.adjust, guard
        self.model.check_records()

    def gradient(self, w: Float[Tensor, "d"], batch: Batch, slope: Slope | None = None) -> Float[Tensor, "d"]:
        self.guard.ledger.release(whole=False)
        total = self.guard.sum(self.model, w, batch, partial(self.derivatives, w))
        gradient = self.guard.blur(total, w)
        return gradient if self.adjust is None else self.adjust(gradient, w)


class PrivateAUC(AUCOracle):
    """The oracle of AUC maximisation, with gradients in (w, a, b, lambda) that keep each sample private.

    Args:
        plain: The oracle without privacy.
        guard: The site's guard.
    """

    def __init__(self, plain: AUCOracle, guard: Guard) -> None:
        super().__init__(plain.model, plain.features, plain.labels, score=plain.score)
        self.augmentation, self.guard = plain.augmentation, guard
        self.model.check_records()

    def gradient(self, z: Float[Tensor, "d"], rows: Int64[np.ndarray, "b"] | None) -> Float[Tensor, "d"]:
        self.guard.ledger.release(whole=rows is None)
        total = self.guard.sum(self.model, z, self._batch(rows), partial(self.derivatives, z))
        gradient = self.guard.blur(total, z, whole=self.num_samples if rows is None else 0)
        gradient[-1] += self.dual_slope(z)
        return gradient

    def class_sums(self) -> tuple[Float[Tensor, "2"], Float[Tensor, "2"]]:
        raise refuse_phase("sums of scores by class")

    def value(self) -> float:
        raise refuse_phase("the value of f_i")


@dataclass(frozen=True, eq=False)
class PrivateSite(Site):
    """A site whose batches are drawn by the system's generator, so no one can predict them."""

    ledger: Ledger = field(kw_only=True)

    @classmethod
    def of(cls, site: Site, ledger: Ledger) -> Self:
        """Make a private site that shares the data of an ordinary site."""
        data = {attribute.name: getattr(site, attribute.name) for attribute in fields(site) if attribute.init}
        return cls(**data, ledger=ledger)

    def is_one_batch(self, batch_size: int) -> bool:
        """Return False: even batches of all samples are drawn, so they are counted."""
        return False

    def sampler(self, indices: Indices, batch_size: int, seed: int, purpose: Purpose, end: int | None = None) -> Any:
        return PoissonSampler(indices, batch_size, self.ledger.draw)


def protect(objective: Any, guard: Guard) -> PrivateSamples | PrivateHazards | PrivateAUC:
    """Return an objective with private gradients.

    Args:
        objective: A client's objective, whose gradients are means over single samples.
        guard: The site's guard.

    Raises:
        ModelError: The score of a sample depends on other samples, or is random.
        TypeError: The objective is of another kind.
    """
    kinds: dict[type, Any] = {
        AUCOracle: PrivateAUC,
        HazardObjective: PrivateHazards,
        SampleObjective: PrivateSamples,
    }
    if type(objective) not in kinds:
        raise TypeError(f"{type(objective).__name__} is not a mean over single samples")
    return kinds[type(objective)](objective, guard)  # type: ignore[no-any-return]
