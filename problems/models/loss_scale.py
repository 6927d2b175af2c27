"""Loss scaling for gradients in float16, whose smallest positive number is 6e-8.

The loss is multiplied by a power of 2 before the backward pass, and the gradient divided by it. As in PyTorch's
GradScaler, the factor is 2^16 at first, half after an overflow, and twice after 2000 gradients without an overflow.
GradScaler skips a step whose gradient overflows. Here this gradient is computed again, since algorithms rely on each of
a round's K steps, and on differences of gradients.
"""

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

_START, _PATIENCE = 2.0**16, 2000


class LossScale:
    """The factor of the loss.

    Attributes:
        factor: The factor, at least 1.
        finite: The number of gradients since the factor changed.
    """

    def __init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        """Return to the first factor, at the beginning of a client's round."""
        self.factor, self.finite = _START, 0

    def unscale(self, compute: Callable[[float], Float[Tensor, "d"]]) -> Float[Tensor, "d"]:
        """Return a gradient.

        Args:
            compute: A function that returns the gradient of a multiple of the loss, for a given factor.

        Returns:
            The last result of ``compute``, divided in place by the factor. Not finite if ``compute`` overflows even
            with the factor 1.
        """
        gradient = compute(self.factor)
        while self.factor > 1 and not torch.isfinite(gradient).all():
            self.factor, self.finite = self.factor / 2, 0
            gradient = compute(self.factor)
        gradient.div_(self.factor)
        self.finite += 1
        if self.finite == _PATIENCE:
            self.factor, self.finite = self.factor * 2, 0
        return gradient
