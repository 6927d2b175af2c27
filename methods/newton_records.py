"""The settings and the records of `methods.newton`.

The records of clients are sums over rows. Each number is four integers of `payloads.limbs`, so the sum over sites
is exact and can be a secure sum.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self

import numpy as np
from jaxtyping import Float64
from numpy.typing import ArrayLike
from torch import Tensor

from payloads.limbs import LIMBS, join, split
from payloads.record import BoolArray, FloatArray, IntArray, Payload, array, specs_of
from payloads.settings import Settings, setting

MODEL, ROBUST, CLUSTERED = "model", "robust", "clustered"
EFRON, BRESLOW = "efron", "breslow"
# the dimensions of fields that are split floats; the other fields are counts
_EXACT = ("s", "i", "m", "f", "r", "q", LIMBS)


class NewtonSettings(Settings):
    """Settings of exact regression (table ``newton``)."""

    ridge: float = setting(
        "The [ridge penalty](regression.md#ridge) on the weights, not on the intercept. 0: none.", 0.0, ge=0
    )
    site_effects: bool = setting("Whether each site has its own [intercept](regression.md#site-effects).", False)
    intervals: Literal["model", "robust", "clustered"] = setting(
        "The [standard errors](regression.md#standard-errors) of intervals and p-values.", MODEL
    )
    meta_analysis: bool = setting(
        "Whether sites also send their own estimates for a [meta-analysis](regression.md#meta-analysis).", True
    )
    ties: Literal["efron", "breslow"] = setting(
        "The treatment of [events at equal times](regression.md#cox-model) in a Cox model.", EFRON
    )
    tolerance: float = setting("The run ends after a step of at most this many standard errors.", 1e-6, gt=0, lt=1)


def triangle(dim: int) -> int:
    """Return the number of entries of a symmetric matrix on and above the diagonal."""
    return dim * (dim + 1) // 2


def upper(matrix: ArrayLike) -> Float64[np.ndarray, "_"]:
    """Return the entries of a symmetric matrix on and above the diagonal, row by row."""
    values = np.asarray(matrix, np.float64)
    return values[np.triu_indices(len(values))]


def whole(entries: Float64[np.ndarray, "_"], dim: int) -> Float64[np.ndarray, "d d"]:
    """Return the symmetric matrix of the result of `upper`."""
    matrix = np.zeros((dim, dim))
    matrix[np.triu_indices(dim)] = entries
    result: np.ndarray = matrix + np.triu(matrix, 1).T
    return result


def _numpy(value: Tensor | ArrayLike) -> Float64[np.ndarray, "*shape"]:
    return value.cpu().numpy() if isinstance(value, Tensor) else np.asarray(value, np.float64)


@dataclass(frozen=True, eq=False)
class ExactSums(Payload):
    """Base of the records of sums.

    If a value is too large for a sum, all values are 0, and ``failed`` is 1.
    """

    failed: IntArray = array(1, kind="int", combined="total")

    @classmethod
    def make(cls, **values: Any) -> Self:
        """Return a record. Integers stay; floats, matrices as on and above the diagonal, are split."""
        arrays = {}
        failed = 0
        for name, value in values.items():
            numbers = _numpy(value)
            if specs_of(cls)[name].dims[0] not in _EXACT:
                arrays[name] = np.asarray(value, np.int64)
                continue
            flat = upper(numbers) if numbers.ndim == 2 else numbers.ravel()
            try:
                arrays[name] = split(flat)
            except OverflowError:
                arrays[name], failed = split(np.zeros(flat.size)), 1
        if failed:
            arrays = {name: np.zeros_like(value) for name, value in arrays.items()}
        return cls(**arrays, failed=np.array([failed]))

    @classmethod
    def total(cls, records: Sequence[Self]) -> dict[str, Any]:
        """Return the sums over clients by field: floats (k,), and the counts as integers."""
        sums = {name: sum(getattr(record, name) for record in records) for name in specs_of(cls)}
        exact = {name for name, spec in specs_of(cls).items() if spec.dims[0] in _EXACT}
        return {name: join(value) if name in exact else value for name, value in sums.items()}


@dataclass(frozen=True, eq=False)
class NewtonSums(ExactSums):
    """A client's reply in a round: the score (d), the information (d x d), the deviance; the number of its rows.

    In round 1: X'Wz, X'WX and 0, of the working outcomes z.
    """

    score: IntArray = array("s", kind="int", combined="total")
    information: IntArray = array("i", kind="int", combined="total")
    deviance: IntArray = array(LIMBS, kind="int", combined="total")
    rows: IntArray = array(1, kind="int", combined="total")

    @classmethod
    def of(cls, score: Tensor, information: Tensor, deviance: float, rows: int) -> Self:
        """Return the record of sums over a number of rows."""
        return cls.make(score=score, information=information, deviance=[deviance], rows=[rows])

    @classmethod
    def zeros(cls, dim: int) -> Self:
        """Return the record of a site that contributes nothing to d coefficients."""
        return cls.make(score=np.zeros(dim), information=np.zeros((dim, dim)), deviance=[0.0], rows=[0])


@dataclass(frozen=True, eq=False)
class NewtonVariance(ExactSums):
    """A client's answer after the last step.

    Attributes:
        information: The information (d x d).
        squares: The sum over rows of the products of a row's score with itself (d x d).
        clustered: The product of the site's score with itself (d x d).
        figures: Deviance; log likelihood; number of rows times the site's own intercept.
        counts: Numbers of rows, of sites, and of sites that withhold ``squares``.
    """

    information: IntArray = array("i", kind="int", combined="total")
    squares: IntArray = array("i", kind="int", combined="total")
    clustered: IntArray = array("i", kind="int", combined="total")
    figures: IntArray = array("f", kind="int", combined="total")
    counts: IntArray = array(3, kind="int", combined="total")

    @classmethod
    def zeros(cls, dim: int) -> Self:
        """Return the record of a site that contributes nothing to d coefficients."""
        empty = np.zeros((dim, dim))
        return cls.make(information=empty, squares=empty, clustered=empty, figures=np.zeros(3), counts=[0, 0, 0])


@dataclass(frozen=True, eq=False)
class SiteEstimate(ExactSums):
    """A client's own estimate, as the sums of a meta-analysis.

    Attributes:
        weights: For each of the d coefficients its weight w, which is 1 / (variance + variance between sites); then
            each w b of the estimate b, each w b^2, and each w^2.
        counts: 1 for a site with an estimate, else 0.
    """

    weights: IntArray = array("m", kind="int", combined="total")
    counts: IntArray = array(1, kind="int", combined="total")

    @classmethod
    def of(cls, weight: Float64[np.ndarray, "d"], estimate: Float64[np.ndarray, "d"]) -> Self:
        """Return the record of an estimate and the weight of each coefficient."""
        sums = [weight, weight * estimate, weight * estimate**2, weight**2]
        return cls.make(weights=np.concatenate(sums), counts=[1])

    @classmethod
    def zeros(cls, dim: int) -> Self:
        """Return the record of a site without an estimate."""
        return cls.make(weights=np.zeros(4 * dim), counts=[0])


@dataclass(frozen=True, eq=False)
class NewtonQuestion(Payload):
    """The server's message in the exchanges after the last step.

    Attributes:
        point: The final coefficients.
        free: Whether each coefficient is estimated. The rest is 0.
        between: The variance between sites of each coefficient, for random effects.
    """

    point: FloatArray = array("d")
    free: BoolArray = array("d", kind="bool")
    between: FloatArray = array("d")


@dataclass(frozen=True, eq=False)
class NewtonState(Payload):
    """The server's state.

    Attributes:
        free: Whether each coefficient is estimated. Not the reference categories, which are 0.
        scale: The root mean square of each column, weighted as in round 1.
        point: The newest point that did not raise the objective.
        objective: The objective at this point; None before round 2.
        step: The step from this point to the point of the next round.
        flat: The number of newest rounds in a row whose step was long although the likelihood hardly changed.
        converged: 1 after the last step of a converged run, else 0.
        information, squares, clustered, figures, counts: The sums of `NewtonVariance` at the final point.
        estimates, random, fitted: The sums of `SiteEstimate` without and with a variance between sites, and the number
            of sites with an estimate.
    """

    free: BoolArray = array("d", kind="bool")
    scale: FloatArray = array("d")
    point: FloatArray = array("d")
    step: FloatArray = array("d")
    objective: FloatArray | None = array(1, optional=True)
    flat: IntArray = array(1, kind="int")
    converged: IntArray = array(1, kind="int")
    information: FloatArray | None = array("d", "d", optional=True)
    squares: FloatArray | None = array("d", "d", optional=True)
    clustered: FloatArray | None = array("d", "d", optional=True)
    figures: FloatArray | None = array(3, optional=True)
    counts: IntArray | None = array(3, kind="int", optional=True)
    estimates: FloatArray | None = array(4, "d", optional=True)
    random: FloatArray | None = array(4, "d", optional=True)
    fitted: IntArray | None = array(1, kind="int", optional=True)
