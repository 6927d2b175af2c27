"""Clipping and weight decay of the gradient g of a local step at weights w, before a method uses g.

g <- g min(1, C / |g|), then g <- g + lambda w, with C = ``clip-gradient`` and lambda = ``weight-decay``.

Both act on all trained parameters. They equal ``torch.nn.utils.clip_grad_norm_`` and the weight decay of
``torch.optim.SGD``, in which the decay is a part of the gradient (L2). With AdamW the decay is a separate step
w <- (1 - eta lambda) w (Loshchilov, Hutter, "Decoupled Weight Decay Regularization", ICLR 2019, Algorithm 2).
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
        decoupled: Whether the decay is AdamW's, a separate step.
    """

    max_length: float
    decay: float
    decoupled: bool = False

    @classmethod
    def of(cls, training: TrainingSettings) -> Self | None:
        """Return the run's adjustment; None if it neither clips nor decays."""
        if not (training.clip_gradient or training.weight_decay):
            return None
        decoupled = training.local_optimizer == "adamw"
        return cls(training.clip_gradient, training.weight_decay, decoupled)

    def __call__(self, gradient: Float[Tensor, "*stack d"], w: Float[Tensor, "*stack d"]) -> Float[Tensor, "*stack d"]:
        """Adjust the gradient at w in place. In a stack of clients, each gradient is clipped separately."""
        if self.max_length:
            length = gradient.norm(dim=-1, keepdim=True)
            gradient.mul_(self.max_length / length.clamp_(min=self.max_length))
        if self.decay and not self.decoupled:
            gradient.add_(w, alpha=self.decay)
        return gradient

    def shrink(self, w: Float[Tensor, "*stack d"], eta: float) -> None:
        """Take AdamW's step of the decay in place: w <- (1 - eta lambda) w. No effect with other optimizers.

        Args:
            w: The weights.
            eta: The step size.
        """
        if self.decay and self.decoupled:
            w.mul_(1 - eta * self.decay)
