"""The coefficients of a regression: their names, reference categories, units, and errors that name a column."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from jaxtyping import Bool, Float64

from methods.server import Plan
from methods.solving import SingularError, find_singular
from problems.data.preprocessing import MARKS, Feature
from problems.errors import InputError, join_first

INTERCEPT = "intercept"
_REPAIRS = "drop the column, merge its categories, or set newton.ridge to a number above 0"


@dataclass(frozen=True)
class Terms:
    """The terms of a regression.

    Attributes:
        names: The name of each coefficient.
        features: The feature of each weight; () if the features are not columns of a table.
        intercept: Whether the last coefficient is the intercept.
        site_effects: Whether each site has its own intercept instead.
        ridge: The factor of each squared coefficient's half in the objective (d,).
    """

    names: tuple[str, ...]
    features: tuple[Feature, ...]
    intercept: bool
    site_effects: bool
    ridge: Float64[np.ndarray, "d"]

    @classmethod
    def of(cls, plan: Plan[Any], dim: int) -> Self:
        """Return the terms of a run with a number of coefficients."""
        intercept = not plan.layout or any(name.endswith("bias") for name, _ in plan.layout)
        count = dim - int(intercept)
        features = () if plan.columns is None or len(plan.columns.outputs) != count else plan.columns.outputs
        names = tuple(map(_name, features)) or tuple(f"feature {index}" for index in range(count))
        if ranked := [repr(feature.name) for feature in features if feature.transform == "quantile"]:
            got = f"ranks among quantiles for column {join_first(ranked, 10)}"
            allowed = "numbers in a unit, since a coefficient is of one unit of its column"
            raise InputError("scale", got=got, allowed=allowed, hint='set scale to "standard" or "none"')
        ridge = np.full(dim, plan.settings.ridge)
        ridge[count:] = 0.0
        return cls((*names, *[INTERCEPT] * intercept), features, intercept, plan.settings.site_effects, ridge)

    @property
    def marks(self) -> Bool[np.ndarray, "d"]:
        """Whether each coefficient is of a feature that is 0 or 1, or of the intercept."""
        marks = np.zeros(len(self.names), dtype=bool)
        marks[: len(self.features)] = [_is_mark(feature) for feature in self.features]
        marks[len(self.names) - self.intercept :] = True
        return marks

    @property
    def groups(self) -> dict[str, list[int]]:
        """The indices of the features of each raw column that is coded by categories or by bins."""
        groups: dict[str, list[int]] = {}
        for index, feature in enumerate(self.features):
            if feature.kind in ("category", "other") or feature.transform == "bin":
                groups.setdefault(feature.column, []).append(index)
        for index, feature in enumerate(self.features):
            if feature.kind == "missing" and feature.column in groups:
                groups[feature.column].append(index)
        return groups

    def choose_free(self, information: Float64[np.ndarray, "d d"]) -> Bool[np.ndarray, "d"]:
        """Choose the coefficients to estimate; the rest is 0.

        If each row has a category of a column, the column's features add up to the intercept. The first category with
        rows is then the reference. Categories without rows have no estimate. With a ridge, all coefficients have one.

        Args:
            information: The information.
        """
        free = np.ones(len(self.names), dtype=bool)
        constant = [len(free) - 1] if self.intercept and not self.site_effects else []
        if self.intercept:
            free[-1] = not self.site_effects
        if self.ridge.any():
            return free
        for indices in self.groups.values():
            present = [index for index in indices if information[index, index] > 0]
            together = [*present, *constant]
            complete = find_singular(information[np.ix_(together, together)]) is not None
            free[indices] = False
            free[present[1:] if complete else present] = True
        return free

    def references(self, free: Bool[np.ndarray, "d"], information: Float64[np.ndarray, "d d"]) -> dict[str, str]:
        """Return the reference of each categorical column, by column: a category, or the rows of no listed category."""
        if self.ridge.any():
            return {}
        references = {}
        for column, indices in self.groups.items():
            fixed = [self.names[index] for index in indices if not free[index] and information[index, index] > 0]
            references[column] = fixed[0] if fixed else f"{column} of no listed category"
        return references

    def find_redundant(self, information: Float64[np.ndarray, "d d"], free: Bool[np.ndarray, "d"]) -> dict[str, str]:
        """Find the columns that are constant, or a combination of the columns before them.

        Args:
            information: The information.
            free: Whether each coefficient is estimated.

        Returns:
            The reason for each such column, by its name.
        """
        chosen, reasons = np.flatnonzero(free).tolist(), {}
        while (fault := find_singular(information[np.ix_(chosen, chosen)])) is not None:
            reasons[self.names[chosen[fault.index]]] = self._describe(fault, chosen)
            del chosen[fault.index]
        return reasons

    def _describe(self, fault: SingularError, indices: Sequence[int]) -> str:
        partners = [self.names[indices[partner]] for partner in fault.partners]
        if not partners or partners == [INTERCEPT]:
            return f"constant{' within each site' if self.site_effects else ''}"
        return f"a combination of {join_first([repr(partner) for partner in partners], 5)}"

    def explain_separation(self, index: int) -> InputError:
        """Return the error for a coefficient without a finite estimate."""
        got = "a coefficient that grows without bound: the column alone or with further columns separates the outcomes"
        allowed = "a column with different outcomes on both sides of each border, so its estimate is finite"
        return InputError(f"column {self.names[index]!r}", got=got, allowed=allowed, hint=_REPAIRS)

    def unit(self) -> tuple[Float64[np.ndarray, "d"], Float64[np.ndarray, "d"]]:
        """Return the divisor of each coefficient, and the shift of each column, for coefficients of raw columns.

        A raw coefficient is the coefficient divided by the divisor. The raw intercept is the intercept minus the sum
        of shift times raw coefficient.
        """
        divisor, shift = np.ones(len(self.names)), np.zeros(len(self.names))
        for index, feature in enumerate(self.features):
            if not _is_mark(feature) and feature.deviation > 0:
                divisor[index], shift[index] = feature.deviation, feature.mean
        return divisor, shift


def _is_mark(feature: Feature) -> bool:
    return feature.kind in MARKS or feature.transform == "bin"


def _name(feature: Feature) -> str:
    return f"log(1 + {feature.name})" if feature.transform == "log" else feature.name
