"""The interface of a minimax problem, f_i(x, y; rows) on one site's data, and the import of a user's own.

    class Robust(MinimaxProblem):
        def __init__(self, features, labels):          # the site's (n, *shape) and (n,)
            self.features, self.labels = features, labels
            self.primal_dim, self.dual_dim, self.num_samples = features.shape[1], 1, len(labels)

        def value(self, x, y, rows):
            ...                                        # a scalar tensor, the mean over the samples ``rows``

The run config names it by ``loss = "package.module:Robust"``.
"""

import importlib
from abc import ABC, abstractmethod
from collections.abc import Callable

import torch
from torch import Tensor

from problems.errors import InputError

PAGE = "docs/minimax.md"


class ProblemError(InputError, ValueError):
    """A minimax problem that cannot be used."""


class MinimaxProblem(ABC):
    """f_i of one site.

    Attributes:
        primal_dim: p of the primal block x (p,).
        dual_dim: q of the dual block y (q,); q may be 0.
        num_samples: n, the samples of the site.
        stochastic: whether `value` draws from torch's generators; both gradients of a step then draw the same.
    """

    stochastic: bool = False
    primal_dim: int
    dual_dim: int
    num_samples: int

    @abstractmethod
    def value(self, x: Tensor, y: Tensor, rows: Tensor | None) -> Tensor:
        """f_i(x, y; rows), a scalar: the mean over the samples ``rows`` (b,), or over all where it is None."""

    def checked_value(self, x: Tensor, y: Tensor, rows: Tensor | None) -> Tensor:
        """`value`, checked to be a scalar tensor."""
        value = self.value(x, y, rows)
        if not isinstance(value, Tensor) or value.ndim:
            got = f"shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
            raise ProblemError(f"{type(self).__name__}.value", got=got, allowed="a scalar tensor", hint=f"see {PAGE}")
        return value

    def gradients(self, x: Tensor, y: Tensor, rows: Tensor | None) -> tuple[Tensor, Tensor]:
        """The gradients of `value` in x (p,) and in y (q,); by automatic differentiation unless overridden."""
        with torch.enable_grad():
            x, y = x.detach().requires_grad_(), y.detach().requires_grad_()
            primal, dual = torch.autograd.grad(self.checked_value(x, y, rows), (x, y), materialize_grads=True)
        return primal, dual

    def batch_gradients(self, x: Tensor, y: Tensor, rows: Tensor) -> tuple[Tensor, Tensor] | None:
        """(K, p) and (K, q) gradients at one point for K batches ``rows`` (K, b) at once; None if not implemented."""
        return None

    def start(self) -> tuple[Tensor, Tensor] | None:
        """The starting point (x, y), the same on every site; None for zeros."""
        return None

    def metrics(self, x: Tensor, y: Tensor) -> dict[str, float]:
        """Further metrics of a point, besides ``loss`` (`value` on all samples), by name."""
        return {}


def build_problem(path: str, features: Tensor, labels: Tensor) -> MinimaxProblem:
    """Call a user's factory ``package.module:factory(features, labels)``.

    Raises:
        ProblemError: nothing is found there, or what it returns is not a `MinimaxProblem` with its sizes.
    """
    problem = find_factory(path)(features, labels)
    if not isinstance(problem, MinimaxProblem):
        got = f"{path!r}, which returned {type(problem).__name__}"
        raise ProblemError("loss", got=got, allowed="a MinimaxProblem", hint=f"see {PAGE}")
    for name, least in (("primal_dim", 1), ("dual_dim", 0), ("num_samples", 0)):
        size = getattr(problem, name, None)
        if not isinstance(size, int) or size < least:
            got = f"{path!r}, whose {name} is {size!r}"
            raise ProblemError("loss", got=got, allowed=f"an integer >= {least}", hint=f"see {PAGE}")
    return problem


def find_factory(path: str) -> Callable[[Tensor, Tensor], object]:
    """The factory at the path ``package.module:factory``.

    Raises:
        ProblemError: there is no such module, or nothing callable of that name in it.
    """
    module_name, _, name = path.partition(":")
    try:
        found = getattr(importlib.import_module(module_name), name)
    except Exception as error:  # a module's own code may raise anything while it is imported
        reason = " ".join(str(error).split()) or type(error).__name__
        got = f"{path!r}, which cannot be imported ({reason})"
        raise ProblemError("loss", got=got, allowed="'package.module:factory'", hint=f"see {PAGE}") from None
    if not callable(found):
        got = f"{path!r}, which is {type(found).__name__}"
        raise ProblemError("loss", got=got, allowed="a class or function", hint=f"see {PAGE}")
    factory: Callable[[Tensor, Tensor], object] = found
    return factory
