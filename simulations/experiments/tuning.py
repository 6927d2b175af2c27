"""The table ``[tune]`` of an experiment's file: the run-config keys to choose, and the values to try."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from apps.config import ConfigError, Scalar, flatten
from payloads.settings import Settings
from simulations import PAGE
from simulations.experiments.files import Count, ProfileName, Sentences, check_free


def keys_of(joined: str) -> list[str]:
    """Return the run-config keys that a key of a grid names.

    Args:
        joined: A key, or several keys joined by ``&``, which all have the same value.
    """
    return [key.strip() for key in joined.split("&")]


def _flat_grid(nested: Any) -> Any:
    """Check and convert ``{"fedx": {"gamma": [0.5, 1]}}`` to ``{"fedx.gamma": [0.5, 1]}``."""
    if not isinstance(nested, dict):
        return nested
    grid = flatten(nested)
    for key, values in grid.items():
        for one in keys_of(key):
            check_free(one, values)
        if not isinstance(values, list) or not values or not all(isinstance(value, Scalar) for value in values):
            raise ConfigError(key, got=repr(values), allowed="a list of numbers, text, true or false", hint=PAGE)
        if len({repr(value) for value in values}) < len(values):
            raise ConfigError(
                key, got=f"{values!r}, with a repeated value", allowed="each value once", hint="remove the repetition"
            )
    return grid


# the candidate values by run-config keys (see `keys_of`)
Grid = Annotated[dict[str, list[Scalar]], BeforeValidator(_flat_grid)]


class SeedsAt(Settings):
    """The number of seeds for runs with the coordinates ``at``."""

    at: dict[str, Scalar] = Field(min_length=1)
    seeds: Count


class MetricAt(Settings):
    """The metric by which values are chosen for runs with the coordinates ``at``."""

    at: dict[str, Scalar] = Field(min_length=1)
    metric: str


class TuningProfile(Settings):
    """The fields in which a profile differs from `Tuning`."""

    seeds: Count | None = None
    at: dict[str, Scalar] | None = None
    grid: Grid | None = None
    methods: dict[str, Grid] = Field(default_factory=dict)
    without: Sentences | None = None


class Tuning(Settings):
    """The run-config keys that are chosen on a validation split, and their candidate values."""

    # the criterion
    metric: str = ""  # empty: the experiment's first
    metric_at: list[MetricAt] = Field(default_factory=list)  # instead of `metric`; the last that fits counts
    mode: Literal["", "max", "min"] = ""  # the direction of `metric`; empty: its better direction
    seeds: Count = 1
    seeds_at: list[SeedsAt] = Field(default_factory=list)  # instead of `seeds`; the last that fits counts
    validation_fraction: float = Field(0.2, ge=0, lt=1)
    # the candidates
    grid: Grid = Field(default_factory=dict)
    methods: dict[str, Grid] = Field(default_factory=dict)  # grids that replace `grid`, by method; empty: no grid
    at: dict[str, Scalar] = Field(default_factory=dict)  # choose only at these coordinates, for all their values
    without: Sentences = Field(default_factory=list)  # differences from the paper if nothing has been chosen
    profiles: dict[ProfileName, TuningProfile] = Field(default_factory=dict)

    def in_profile(self, name: str) -> Tuning:
        """Return a copy with the fields that a profile sets.

        Returns:
            The copy. The profile's ``methods`` replace all others if it sets a ``grid``, else they are added. If it
                sets ``seeds``, they apply everywhere.
        """
        own = self.profiles.get(name, TuningProfile())  # type: ignore[call-overload]
        there = own.model_dump(exclude_unset=True)
        methods = {**({} if "grid" in there else self.methods), **own.methods}
        seeds_at = [] if "seeds" in there else self.seeds_at
        return self.model_copy(update={**there, "methods": methods, "seeds_at": seeds_at})

    def seeds_of(self, at: Mapping[str, Scalar]) -> int:
        """Return the number of seeds of each point of the grid, for runs with the coordinates ``at``."""
        return next((one.seeds for one in reversed(self.seeds_at) if one.at.items() <= at.items()), self.seeds)

    def metric_of(self, at: Mapping[str, Scalar]) -> str:
        """Return the metric of the choice for runs with the coordinates ``at``; empty: the experiment's first."""
        return next((one.metric for one in reversed(self.metric_at) if one.at.items() <= at.items()), self.metric)

    def grid_of(self, method: str) -> Grid:
        """Return the grid that is tried for a method.

        Returns:
            The method's own grid, else the common grid. Empty: the method keeps the file's values.
        """
        return self.methods.get(method, self.grid)
