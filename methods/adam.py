"""Adam (Kingma, Ba, "Adam: A Method for Stochastic Optimization", ICLR 2015, Algorithm 1) for a round's local steps.

With AdamW, `methods.adjustment` also takes the step of the decay.

Its moments start at zero in every round, so they are neither sent nor stored. A client that is sampled again later
therefore never reuses stale moments. As the paper explains, eta bounds about how far a weight moves in a step, whatever
the scale of its gradient. On unequal sites the mean of such steps need not lead to a minimum of the mean loss (Wang,
Xu, Garrett, Charles, Liu, Joshi, "Local Adaptivity in Federated Learning: Convergence and Consistency", 2021); a
decaying step size keeps the difference small.

| paper | here |
|---|---|
| m, v | the two rows of ``moments`` |
| t | ``steps`` |
| alpha, beta_1, beta_2, epsilon | eta, `BETA_1`, `BETA_2`, `EPSILON`: the paper's values, which are PyTorch's |
"""

from dataclasses import dataclass, replace
from typing import TypeVar

from jaxtyping import Float
from torch import Tensor

from methods.adjustment import Adjustment

BETA_1, BETA_2, EPSILON = 0.9, 0.999, 1e-8
# eta of runs that do not set learning-rate
ADAM_STEP = 0.01


@dataclass(frozen=True)
class Point:
    """A client's state between two steps of a round.

    Attributes:
        x: The point w.
        moments: Adam's moments m and v. None: before the first step, or without Adam.
        steps: The number t of Adam's steps so far in the round.
    """

    x: Float[Tensor, "*stack d"]
    moments: Float[Tensor, "*stack 2 d"] | None = None
    steps: int = 0


P = TypeVar("P", bound=Point)


def adam_step(carry: P, gradient: Float[Tensor, "*stack d"], eta: float, adjust: Adjustment | None = None) -> P:
    """Take Adam's step: w <- w - eta m / (1 - beta_1^t) / (sqrt(v / (1 - beta_2^t)) + epsilon).

    Args:
        carry: The step's carry; its tensors are changed in place.
        gradient: The gradient at w; it may be overwritten afterwards.
        eta: The step size.
        adjust: The run's adjustment; provides AdamW's decay. None: no decay.

    Returns:
        The carry of the next step.
    """
    x, steps = carry.x, carry.steps + 1
    if adjust is not None:
        adjust.shrink(x, eta)
    moments = x.new_zeros((*x.shape[:-1], 2, x.shape[-1])) if carry.moments is None else carry.moments
    first, second = moments.unbind(-2)
    first.lerp_(gradient, 1 - BETA_1)
    second.mul_(BETA_2).addcmul_(gradient, gradient, value=1 - BETA_2)
    scale = (second / (1 - BETA_2**steps)).sqrt_().add_(EPSILON)
    x.addcdiv_(first, scale, value=-eta / (1 - BETA_1**steps))
    return replace(carry, moments=moments, steps=steps)
