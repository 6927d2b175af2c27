"""The interface of a minimax problem, f_i(x, y; rows) on one site's data, and the import of a user's problem.

    class Robust(MinimaxProblem):
        def __init__(self, features, labels):          # the site's (n, *shape) and (n,)
            self.features, self.labels = features, labels
            self.primal_dim, self.dual_dim, self.num_samples = features.shape[1], 1, len(labels)

        def value(self, x, y, rows):
            ...                                        # a scalar tensor, the mean over the samples ``rows``

The run config selects it with ``loss = "package.module:Robust"``.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from problems.errors import InputError
from problems.importing import import_named

PAGE = "docs/minimax.md"


class ProblemError(InputError, ValueError):
    """An error in a user's minimax problem."""


class MinimaxProblem(ABC):
    """Base of a user's problem: one site's f_i(x, y), minimised over x and maximised over y.

    Attributes:
        primal_dim: p, the length of the primal block x.
        dual_dim: q, the length of the dual block y. May be 0.
        num_samples: n, the number of the site's samples.
        stochastic: Whether `value` draws from torch's generators. Both gradients of a step then draw the same numbers.
    """

    stochastic: bool = False
    primal_dim: int
    dual_dim: int
    num_samples: int

    @abstractmethod
    def value(self, x: Float[Tensor, "p"], y: Float[Tensor, "q"], rows: Int64[Tensor, "b"] | None) -> Float[Tensor, ""]:
        """Return f_i(x, y; rows), the mean over some samples.

        Args:
            x: The primal block.
            y: The dual block.
            rows: The samples' row numbers. None: all samples.
        """

    def checked_value(
        self, x: Float[Tensor, "p"], y: Float[Tensor, "q"], rows: Int64[Tensor, "b"] | None
    ) -> Float[Tensor, ""]:
        """Return `value` of the same arguments.

        Raises:
            ProblemError: The value is not a scalar tensor.
        """
        value = self.value(x, y, rows)
        if not isinstance(value, Tensor) or value.ndim:
            got = f"shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
            raise ProblemError(f"{type(self).__name__}.value", got=got, allowed="a scalar tensor", hint=f"see {PAGE}")
        return value

    def gradients(
        self, x: Float[Tensor, "p"], y: Float[Tensor, "q"], rows: Int64[Tensor, "b"] | None
    ) -> tuple[Float[Tensor, "p"], Float[Tensor, "q"]]:
        """Return the gradients of `value` in x and in y. The default uses automatic differentiation.

        Args:
            x: See `value`.
            y: See `value`.
            rows: See `value`.

        Raises:
            ProblemError: `value` does not return a scalar tensor.
        """
        with torch.enable_grad():
            x, y = x.detach().requires_grad_(), y.detach().requires_grad_()
            primal, dual = torch.autograd.grad(self.checked_value(x, y, rows), (x, y), materialize_grads=True)
        return primal, dual

    def batch_gradients(
        self, x: Float[Tensor, "p"], y: Float[Tensor, "q"], rows: Int64[Tensor, "K b"]
    ) -> tuple[Float[Tensor, "K p"], Float[Tensor, "K q"]] | None:
        """Return the results of `gradients` at the same point for K batches. None: not implemented (the default).

        Args:
            x: See `value`.
            y: See `value`.
            rows: The row numbers of each batch's samples.
        """
        return None

    def start(self) -> tuple[Float[Tensor, "p"], Float[Tensor, "q"]] | None:
        """Return the starting point (x, y), the same at every site. None: zeros."""
        return None

    def metrics(self, x: Float[Tensor, "p"], y: Float[Tensor, "q"]) -> dict[str, float]:
        """Return further metrics of a point by name, in addition to ``loss`` (`value` on all samples)."""
        return {}


def build_problem(path: str, features: Float[Tensor, "n *shape"], labels: Float[Tensor, "n"]) -> MinimaxProblem:
    """Make the problem of a site by calling a user's factory.

    Args:
        path: ``package.module:factory``.
        features: The site's features, the factory's first argument.
        labels: The site's labels, the factory's second argument.

    Raises:
        ProblemError: There is no such factory, or the factory does not return a `MinimaxProblem` with its sizes.
    """
    problem = find_factory(path)(features, labels)
    if not isinstance(problem, MinimaxProblem):
        got = f"{path!r}, which returned {type(problem).__name__}"
        raise ProblemError("loss", got=got, allowed="a MinimaxProblem", hint=f"see {PAGE}")
    for name, minimum in (("primal_dim", 1), ("dual_dim", 0), ("num_samples", 0)):
        size = getattr(problem, name, None)
        if not isinstance(size, int) or size < minimum:
            got = f"{path!r}, whose {name} is {size!r}"
            raise ProblemError("loss", got=got, allowed=f"an integer >= {minimum}", hint=f"see {PAGE}")
    return problem


def find_factory(path: str) -> Callable[[Tensor, Tensor], object]:
    """Return the factory at the path ``package.module:factory``.

    Raises:
        ProblemError: There is no such module, or the module has no callable object of that name.
    """

    def refuse(got: str, allowed: str = "'package.module:factory'") -> ProblemError:
        return ProblemError("loss", got=got, allowed=allowed, hint=f"see {PAGE}")

    factory: Callable[[Tensor, Tensor], object] = import_named(path, refuse)
    if not callable(factory):
        raise refuse(f"{path!r}, which is {type(factory).__name__}", "a class or function")
    return factory
