"""Clipping and weight decay of the gradient g of a local step at weights w, before a method uses g.

g <- g min(1, C / |g|), then g <- g + lambda w, with C = ``clip-gradient`` and lambda = ``weight-decay``.

Both act on all trained parameters. They equal ``torch.nn.utils.clip_grad_norm_`` and the weight decay of
``torch.optim.SGD``, in which the decay is a part of the gradient (L2).
"""

from dataclasses import dataclass
from typing import Self

from jaxtyping import Float
from torch import Tensor

from payloads.settings import TrainingSettings


@dataclass(frozen=True)
class Adjustment:
    """The adjustment of gradients in a run.

    Attributes:
        max_length: C. 0: gradients are not clipped.
        decay: lambda. 0: no weight decay.
    """

    max_length: float
    decay: float

    @classmethod
    def of(cls, training: TrainingSettings) -> Self | None:
        """Return the run's adjustment; None if it neither clips nor decays."""
        if not (training.clip_gradient or training.weight_decay):
            return None
        return cls(training.clip_gradient, training.weight_decay)

    def __call__(self, gradient: Float[Tensor, "*stack d"], w: Float[Tensor, "*stack d"]) -> Float[Tensor, "*stack d"]:
        """Adjust the gradient at w in place. In a stack of clients, each gradient is clipped separately."""
        if self.max_length:
            length = gradient.norm(dim=-1, keepdim=True)
            gradient.mul_(self.max_length / length.clamp_(min=self.max_length))
        if self.decay:
            gradient.add_(w, alpha=self.decay)
        return gradient
