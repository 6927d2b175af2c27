"""Clipping and weight decay of a step's gradient, before a method sees it: g <- g min(1, C / |g|), then
g <- g + lambda w.

Both act on all trained parameters. They equal ``torch.nn.utils.clip_grad_norm_`` and the weight decay of
``torch.optim.SGD``, in which the decay is a part of the gradient (L2).

| formula | here |
|---|---|
| C, lambda | ``clip-gradient``, ``weight-decay`` |
"""

from dataclasses import dataclass
from typing import Self

from jaxtyping import Float
from torch import Tensor

from payloads.settings import TrainingSettings
from problems.models import FlatModel


@dataclass(frozen=True)
class Adjustment:
    """C, lambda, and the frozen parts of the model."""

    longest: float
    decay: float
    frozen: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, training: TrainingSettings, model: FlatModel) -> Self | None:
        """Return the run's adjustment; None if it neither clips nor decays."""
        if not (training.clip_gradient or training.weight_decay):
            return None
        return cls(training.clip_gradient, training.weight_decay, model.frozen)

    def __call__(self, gradient: Float[Tensor, "*stack d"], w: Float[Tensor, "*stack d"]) -> Float[Tensor, "*stack d"]:
        """Adjust the gradient at w in place; each gradient of a stack is clipped by its own length."""
        if self.longest:
            length = gradient.norm(dim=-1, keepdim=True)
            gradient.mul_(self.longest / length.clamp_(min=self.longest))
        if self.decay:
            gradient.add_(w, alpha=self.decay)
            for start, stop in self.frozen:
                gradient[..., start:stop] = 0
        return gradient
