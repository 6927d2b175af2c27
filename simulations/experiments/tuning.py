"""The table ``[tune]`` of an experiment's file: run-config keys that ``--tune`` chooses, and their candidate values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from apps.config import ConfigError, Scalar, flatten
from payloads.settings import Settings
from simulations import PAGE
from simulations.experiments.files import Count, ProfileName, Sentences, check_free


def keys_of(joined: str) -> list[str]:
    """Return the run-config keys in a key of a grid.

    Args:
        joined: A key, or several keys joined by ``&``, which all get the same value.
    """
    return [key.strip() for key in joined.split("&")]


def _flat_grid(nested: Any) -> Any:
    """Convert ``{"fedx": {"gamma": [0.5, 1]}}`` to ``{"fedx.gamma": [0.5, 1]}``, and check the keys and values."""
    if not isinstance(nested, dict):
        return nested
    grid = flatten(nested)
    for key, values in grid.items():
        for name in keys_of(key):
            check_free(name, values)
        if not isinstance(values, list) or not values or not all(isinstance(value, Scalar) for value in values):
            raise ConfigError(key, got=repr(values), allowed="a list of numbers, text, true or false", hint=PAGE)
        if len({repr(value) for value in values}) < len(values):
            raise ConfigError(
                key, got=f"{values!r}, with a repeated value", allowed="each value once", hint="remove the repetition"
            )
    return grid


# the candidate values by run-config key, or by several keys (see `keys_of`)
Grid = Annotated[dict[str, list[Scalar]], BeforeValidator(_flat_grid)]


class SeedsAt(Settings):
    """The number of seeds for runs with the coordinates ``at``."""

    at: dict[str, Scalar] = Field(min_length=1)
    seeds: Count


def seeds_of(entries: Sequence[SeedsAt], at: Mapping[str, Scalar], otherwise: int) -> int:
    """Return the seeds of the last entry that matches the coordinates ``at``, or else ``otherwise``."""
    return next((entry.seeds for entry in reversed(entries) if entry.at.items() <= at.items()), otherwise)


class MetricAt(Settings):
    """The metric by which values are chosen for runs with the coordinates ``at``."""

    at: dict[str, Scalar] = Field(min_length=1)
    metric: str


class TuningProfile(Settings):
    """The fields of `Tuning` that a profile replaces."""

    seeds: Count | None = None
    at: dict[str, Scalar] | None = None
    grid: Grid | None = None
    methods: dict[str, Grid] = Field(default_factory=dict)
    without: Sentences | None = None


class Tuning(Settings):
    """The table ``[tune]``: the run-config keys that are chosen on validation rows, and their candidate values."""

    # the criterion
    metric: str = ""  # empty: the experiment's first metric
    metric_at: list[MetricAt] = Field(default_factory=list)  # replaces `metric`; the last matching entry counts
    mode: Literal["", "max", "min"] = (
        ""  # whether a larger or smaller `metric` is better; empty: follows from the metric
    )
    seeds: Count = 1
    seeds_at: list[SeedsAt] = Field(default_factory=list)  # replaces `seeds`; the last matching entry counts
    validation_fraction: float = Field(0.2, ge=0, lt=1)
    # the candidates
    grid: Grid = Field(default_factory=dict)
    methods: dict[str, Grid] = Field(default_factory=dict)  # grids that replace `grid`, by method; empty: no search
    # search only in runs with these coordinates; the choice applies to runs with other values of these coordinates too
    at: dict[str, Scalar] = Field(default_factory=dict)
    # sentences about differences from the paper, for reports of runs without chosen values
    without: Sentences = Field(default_factory=list)
    profiles: dict[ProfileName, TuningProfile] = Field(default_factory=dict)

    def in_profile(self, name: str) -> Tuning:
        """Return a copy with the fields that a profile replaces.

        If the profile sets ``grid``, only its own ``methods`` count; else they are added to this table's ``methods``.
        If the profile sets ``seeds``, this table's ``seeds_at`` has no effect.
        """
        own = self.profiles.get(name, TuningProfile())  # type: ignore[call-overload]
        replaced = own.model_dump(exclude_unset=True)
        methods = {**({} if "grid" in replaced else self.methods), **own.methods}
        seeds_at = [] if "seeds" in replaced else self.seeds_at
        return self.model_copy(update={**replaced, "methods": methods, "seeds_at": seeds_at})

    def seeds_of(self, at: Mapping[str, Scalar]) -> int:
        """Return the number of seeds for each combination of values, for runs with the coordinates ``at``."""
        return seeds_of(self.seeds_at, at, self.seeds)

    def metric_of(self, at: Mapping[str, Scalar]) -> str:
        """Return the metric that decides for runs with the coordinates ``at``. Empty: the experiment's first metric."""
        return next((entry.metric for entry in reversed(self.metric_at) if entry.at.items() <= at.items()), self.metric)

    def grid_of(self, method: str) -> Grid:
        """Return the candidate values for a method: its own grid, or else the common grid.

        Returns:
            The grid. Empty: the method keeps the values in the experiment's file.
        """
        return self.methods.get(method, self.grid)
