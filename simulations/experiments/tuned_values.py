"""``tuned.toml``: run-config values that were chosen on a validation split, for reproductions to read."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import tomli_w
from pydantic import Field

from apps.config import Scalar
from payloads.settings import Settings
from simulations.experiments.experiment import find_packaged
from simulations.experiments.files import Count, ProfileName, read_settings
from simulations.experiments.tuning import Grid, keys_of


class TriedPoint(Settings):
    """A point of a grid: ``mean`` and sample ``std`` of the last evaluated round, over the ``finished`` seeds."""

    values: dict[str, Scalar]
    finished: int = Field(ge=0)
    mean: float | None = None
    std: float | None = None
    reason: str = ""  # why a seed has not finished
    missing: int | None = Field(None, ge=1)  # number of finished seeds with a site missing in some round, if any


class TunedChoice(Settings):
    """The values chosen for runs with the coordinates ``at``, and the grid they come from with all its points."""

    at: dict[str, Scalar] = Field(min_length=1)
    values: dict[str, Scalar] = Field(min_length=1)
    metric: str | None = None  # None: that of `Tuned`
    seeds: Count | None = None  # of each point; None: as many as `Tuned` says
    grid: Grid
    points: list[TriedPoint]

    @property
    def score(self) -> TriedPoint:
        """The point that was chosen."""
        return next(point for point in self.points if point.values == self.values)

    @property
    def ends(self) -> list[str]:
        """The keys whose chosen value is an end of its range, so that a better one may lie beyond."""
        found = []
        for key, values in self.grid.items():
            numbers = [value for value in values if isinstance(value, int | float) and not isinstance(value, bool)]
            if len(numbers) > 1 and self.values[keys_of(key)[0]] in (min(numbers), max(numbers)):
                found += keys_of(key)
        return found


class Tuned(Settings):
    """The content of ``tuned.toml``."""

    experiment: str
    profile: ProfileName
    # how it was chosen
    metric: str
    mode: Literal["max", "min"]
    seeds: Count
    validation_fraction: float = Field(ge=0, lt=1)
    chosen: list[TunedChoice] = Field(min_length=1)

    def values_of(self, at: Mapping[str, Scalar]) -> dict[str, Scalar]:
        """Return the values chosen for runs with these coordinates.

        Returns:
            Run-config key -> value; empty if no choice is for them. Of several choices the last one counts.
        """
        return {key: value for choice in self.chosen if fits(choice.at, at) for key, value in choice.values.items()}

    def complete(self, other: Tuned) -> Tuned:
        """Return the same with the choices of another file for whatever has none here."""
        here, more = [choice.at for choice in self.chosen], []
        for choice in other.chosen:
            if choice.at not in here:
                metric, seeds = choice.metric or other.metric, choice.seeds or other.seeds
                own = {
                    "metric": None if metric == self.metric else metric,
                    "seeds": None if seeds == self.seeds else seeds,
                }
                more.append(choice.model_copy(update=own))
        return self.model_copy(update={"chosen": [*more, *self.chosen]})

    def toml(self) -> str:
        return tomli_w.dumps(self.model_dump(by_alias=True, exclude_none=True))


def fits(part: Mapping[str, Scalar], at: Mapping[str, Scalar]) -> bool:
    """Return whether the coordinates ``at`` include all of ``part``.

    Args:
        part: coordinate -> value; empty: it fits all.
    """
    return part.items() <= at.items()


def find_tuned(name: str, experiment: str, profile: str, out: Path) -> Tuned | None:
    """Find the values chosen for an experiment's profile; None if there are none.

    The first of these files is taken: ``tuned.toml`` in the reproduction's directory, the shipped one, and
    ``tuned.toml`` beside the experiment's file if it is of this experiment and profile. The second one that there is
    completes it, since ``--tune --only`` chooses values for some runs. ``name`` is that of a packaged experiment, or
    the path of a .toml file.

    Raises:
        ConfigError: A file that is there cannot be read.
    """
    path = Path(name) if name.endswith(".toml") else find_packaged()[name]
    beside = path.parent / "tuned.toml"
    first: Tuned | None = None
    for place in (out.expanduser() / "tuned.toml", shipped_path(path, profile), beside):
        if not place.is_file():
            continue
        tuned = read_tuned(place)
        if place != beside or (tuned.experiment, tuned.profile) == (experiment, profile):
            if first is not None:
                return first.complete(tuned)
            first = tuned
    return first


def shipped_path(experiment: Path, profile: str) -> Path:
    """Return the path of the values that are shipped with an experiment's file.

    Returns:
        A path, at which there need not be a file.
    """
    return experiment.parent / "tuned" / f"{experiment.stem}.{profile}.toml"


def read_tuned(path: Path) -> Tuned:
    """Read ``tuned.toml``.

    Raises:
        ConfigError: It cannot be read, or has other content.
    """
    way_out = "run --tune again, which writes it"
    return read_settings(Tuned, path, "what --tune writes", "run it again", way_out)
