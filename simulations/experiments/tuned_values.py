"""The file ``tuned.toml``: run-config values that ``reproduce --tune`` has chosen on validation rows."""

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
    """A combination of candidate values, and its metric in the last evaluated round, over the seeds that finished."""

    values: dict[str, Scalar]
    finished: int = Field(ge=0)  # the number of seeds that finished
    mean: float | None = None
    std: float | None = None  # the sample standard deviation
    reason: str = ""  # the reason why a seed did not finish
    missing: int | None = Field(None, ge=1)  # the number of finished seeds with a missing site in any round; None: 0


class TunedChoice(Settings):
    """The chosen values for runs with the coordinates ``at``, the candidate values, and all tried combinations."""

    at: dict[str, Scalar] = Field(min_length=1)
    values: dict[str, Scalar] = Field(min_length=1)
    metric: str | None = None  # None: the metric of `Tuned`
    seeds: Count | None = None  # seeds of each point; None: the number of `Tuned`
    grid: Grid
    points: list[TriedPoint]

    @property
    def score(self) -> TriedPoint:
        """The chosen point."""
        return next(point for point in self.points if point.values == self.values)

    @property
    def ends(self) -> list[str]:
        """The keys whose chosen value is the smallest or largest candidate, so a better value may lie outside."""
        ends = []
        for key, values in self.grid.items():
            numbers = [value for value in values if isinstance(value, int | float) and not isinstance(value, bool)]
            if len(numbers) > 1 and self.values[keys_of(key)[0]] in (min(numbers), max(numbers)):
                ends += keys_of(key)
        return ends


class Tuned(Settings):
    """The content of ``tuned.toml``."""

    experiment: str
    profile: ProfileName
    # the conditions of the choice
    metric: str
    mode: Literal["max", "min"]
    seeds: Count
    validation_fraction: float = Field(ge=0, lt=1)
    chosen: list[TunedChoice] = Field(min_length=1)

    def values_of(self, at: Mapping[str, Scalar]) -> dict[str, Scalar]:
        """Return the chosen values for runs with these coordinates.

        Returns:
            The values by run-config key. If several choices apply, the last choice counts. Empty: no choice applies.
        """
        return {key: value for choice in self.chosen if fits(choice.at, at) for key, value in choice.values.items()}

    def complete(self, other: Tuned) -> Tuned:
        """Return these choices, and another file's choices for all other runs."""
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
    """Return whether a run's coordinates include some values.

    Args:
        part: The values by coordinate. Empty: all runs fit.
        at: The run's coordinates.
    """
    return part.items() <= at.items()


def find_tuned(name: str, experiment: str, profile: str, out: Path) -> Tuned | None:
    """Return the chosen values for an experiment's profile.

    The first existing file of this list counts: ``tuned.toml`` in the reproduction's directory, the shipped file, and
    ``tuned.toml`` next to the experiment's file if it belongs to this experiment and profile. Since ``--tune --only``
    chooses values only for some runs, the next existing file provides the values for all other runs.

    Args:
        name: The name of a packaged experiment, or the path of a .toml file.
        experiment: The experiment's name.
        profile: The profile's name.
        out: The reproduction's directory.

    Returns:
        The values. None: no file exists.

    Raises:
        ConfigError: An existing file cannot be read.
    """
    path = Path(name) if name.endswith(".toml") else find_packaged()[name]
    beside = path.parent / "tuned.toml"
    first: Tuned | None = None
    for file in (out.expanduser() / "tuned.toml", shipped_path(path, profile), beside):
        if not file.is_file():
            continue
        tuned = read_tuned(file)
        if file != beside or (tuned.experiment, tuned.profile) == (experiment, profile):
            if first is not None:
                return first.complete(tuned)
            first = tuned
    return first


def shipped_path(experiment: Path, profile: str) -> Path:
    """Return the path of the tuned values that come with an experiment. The file need not exist.

    It is ``tuned/<experiment>.<profile>.toml`` in the folder of the experiment's file.
    """
    return experiment.parent / "tuned" / f"{experiment.stem}.{profile}.toml"


def read_tuned(path: Path) -> Tuned:
    """Read ``tuned.toml``.

    Raises:
        ConfigError: The file cannot be read, or was not written by ``--tune``.
    """
    hint = "write the file again with --tune"
    return read_settings(Tuned, path, "a file that --tune wrote", hint, hint)
