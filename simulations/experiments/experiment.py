"""The file format of an experiment: a TOML file that lists the runs of a paper's table or figure.

A run is a method (``[[runs]]``) in one case of each axis (``[axes]``), such as ``K = 5``. Its coordinates are its
method, its data set and the cases' values; they identify the run in tables, figures and other keys of the file. A
profile (smoke, quick, full) makes an experiment smaller or larger.

The run config merges the keys of ``[config]``, the method, the cases, the profile, and the method's table for the
profile, of which the last value counts. In these tables each key that is not a field below is a run-config key.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import tomli_w
from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, model_validator

from apps.config import ConfigError, Scalar, flatten
from payloads.settings import Settings
from problems.errors import did_you_mean
from simulations import PAGE
from simulations.experiments.files import Count, ProfileName, Sentences, check_free, read_settings
from simulations.experiments.tuning import SeedsAt, Tuning, seeds_of

_LISTED = "see `florilegium list experiments`"
PACKAGED = Path(__file__).parent

# artificial delays in vertical runs: seconds for each update and message of a party, and the last party's slowdown
Injected = dict[Literal["compute", "delay", "slowest"], Annotated[float, Field(ge=0)]]
Abscissa = Literal["round", "iteration", "communication", "seconds", "megabytes", "clients"]


def _as_list(value: Any) -> Any:
    """Convert a single text to a list."""
    return [value] if isinstance(value, str) else value


class _Overrides(Settings):
    """A table with a few fields. All its other keys are run-config keys."""

    model_config = ConfigDict(extra="allow")

    @property
    def config(self) -> dict[str, Scalar]:
        """The flat run-config keys."""
        return flatten(self.model_extra or {})

    @model_validator(mode="after")
    def _scalars(self) -> Self:
        _checked_config(self.model_extra or {})
        return self


def _checked_config(config: dict[str, Any]) -> dict[str, Any]:
    for key, value in flatten(config).items():
        check_free(key, value)
        if not isinstance(value, Scalar):
            allowed = "a number, text, true or false"
            raise ConfigError(key, got=repr(value), allowed=allowed, hint="list several values under axes")
    return config


class Case(_Overrides):
    """A case of an axis, with its run-config keys. ``at`` has the case's coordinates, its name in tables and curves."""

    at: dict[str, Scalar] = Field(min_length=1)
    clients: Count | None = None
    injected: Injected = Field(default_factory=dict)


def _cases(axes: Any) -> Any:
    """Convert the short form ``local-steps = [4, 8]`` to cases that set this key and have it as their coordinate."""
    if not isinstance(axes, dict):
        return axes
    return {
        name: [{"at": {name: case}, name: case} if isinstance(case, Scalar) else case for case in cases]
        if isinstance(cases, list)
        else cases
        for name, cases in axes.items()
    }


Axes = Annotated[dict[str, list[Case]], BeforeValidator(_cases)]


class Run(_Overrides):
    """A method, with its run-config keys. Its axes are added to the file's axes, or replace axes of the same name."""

    name: str = Field(min_length=1)
    engine: Literal["in-process", "centralized", "nonfederated"] = "in-process"
    clients: Count | None = None
    communications: Count = 1  # communications in a round, for an x axis that counts them
    axes: Axes = Field(default_factory=dict)
    # run-config keys of this method in a profile, which replace the profile's keys
    profiles: dict[ProfileName, _Overrides] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _alone(self) -> Self:
        if self.engine == "nonfederated" and self.clients is not None:
            raise ConfigError(
                "clients", got=self.clients, allowed="no clients in a nonfederated run", hint="remove clients"
            )
        return self


class Profile(_Overrides):
    """A smaller or larger version of the experiment. ``only`` lists the values to keep of some coordinates."""

    minutes: float = Field(gt=0)
    clients: Count | None = None
    injected: Injected = Field(default_factory=dict)
    seeds: Count | None = None
    # sentences about differences from the paper's setting, in addition to the experiment's
    differs: Sentences = Field(default_factory=list)
    only: dict[str, Annotated[list[Scalar], Field(min_length=1)]] = Field(default_factory=dict)


class LeftOut(Settings):
    """Runs with the coordinates ``at`` that are not made, such as a method that a setting does not support."""

    at: dict[str, Scalar] = Field(min_length=1)
    reason: str = Field(min_length=1)  # for reports


class PaperValue(Settings):
    """A number from the paper, for the runs with this method and the coordinates ``at``."""

    method: str
    at: dict[str, Scalar] = Field(default_factory=dict)
    metric: str = ""  # empty: the experiment's first metric
    mean: float
    std: float | None = None
    source: str = ""  # table and column; empty: the experiment's figure


def _side(side: Any) -> Any:
    """Convert a single text to the coordinate ``method``."""
    return {"method": side} if isinstance(side, str) else side


Side = Annotated[dict[str, Scalar], BeforeValidator(_side), Field(min_length=1)]


class Claim(Settings):
    """A claim of the paper: runs with the coordinates ``better`` end with a better metric than runs with ``than``."""

    text: str = Field(min_length=1)
    metric: str = ""  # empty: the experiment's first metric
    # coordinates of the two compared sides
    better: Side
    than: Side
    at: dict[str, Scalar] = Field(default_factory=dict)  # empty: in every setting

    @model_validator(mode="after")
    def _comparable(self) -> Self:
        if self.better.keys() != self.than.keys() or self.better == self.than:
            got = f"{self.than}, and better = {self.better}"
            raise ConfigError("than", got=got, allowed="different values of the same coordinates", hint=PAGE)
        if twice := self.at.keys() & self.better.keys():
            allowed = "coordinates that are not in better and than"
            hint = "remove these coordinates from at"
            raise ConfigError("at", got=", ".join(sorted(twice)), allowed=allowed, hint=hint)
        return self


class Experiment(Settings):
    """The content of an experiment's file."""

    # the paper
    name: str
    title: str = Field(min_length=1)
    paper: str = Field(min_length=1)
    figure: str = Field(min_length=1)
    paper_values: list[PaperValue] = Field(default_factory=list)
    claims: list[Claim] = Field(default_factory=list)
    differs: Sentences = Field(default_factory=list)  # differences from the paper's setting, in every profile
    # the runs
    clients: Count = 8
    seeds: Count = 3
    seeds_at: list[SeedsAt] = Field(default_factory=list)  # replaces `seeds`; the last matching entry counts
    injected: Injected = Field(default_factory=dict)
    config: Annotated[dict[str, Any], AfterValidator(_checked_config)] = Field(default_factory=dict)
    axes: Axes = Field(default_factory=dict)
    runs: list[Run] = Field(min_length=1)
    left_out: list[LeftOut] = Field(default_factory=list)
    profiles: dict[ProfileName, Profile] = Field(min_length=1)
    tune: Tuning | None = None
    # the presentation
    metrics: list[str] = Field(min_length=1)  # the table has all; the first is drawn
    scale: Literal["linear", "log"] = "linear"
    # a single text stands for a list
    x: Annotated[list[Abscissa], BeforeValidator(_as_list)] = Field(default=["round"], min_length=1)
    x_label: Annotated[list[str], BeforeValidator(_as_list)] = Field(default_factory=list)  # empty: the labels of x
    y_label: str = ""  # empty: the metric's
    panel: str = "{dataset}"  # curves with the same text share axes
    curve: str = "{method} {setting}"
    # only in the copy that a reproduction writes
    reproduced: dict[str, Scalar] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _x_axes(self) -> Self:
        if len(set(self.x)) < len(self.x) or ("clients" in self.x and len(self.x) > 1):
            hint = (
                "remove the repeated value"
                if len(set(self.x)) < len(self.x)
                else "remove 'clients', or all other values"
            )
            raise ConfigError("x", got=", ".join(self.x), allowed="each value once; 'clients' only alone", hint=hint)
        if self.x_label and len(self.x_label) != len(self.x):
            allowed = f"no labels, or {len(self.x)}: one for each of {', '.join(self.x)}"
            hint = "give each value of x an x-label, or remove x-label"
            raise ConfigError("x-label", got=f"{len(self.x_label)} labels", allowed=allowed, hint=hint)
        return self

    def profile(self, name: str) -> Profile:
        """Return a profile by its name.

        Raises:
            ConfigError: The profile does not exist. The message lists the experiment's profiles.
        """
        if name not in self.profiles:
            allowed = f"profiles of experiment {self.name!r}: {', '.join(self.profiles)}"
            raise ConfigError("--profile", got=repr(name), allowed=allowed, hint=_LISTED)
        return self.profiles[name]

    def seeds_of(self, at: Mapping[str, Scalar], profile: str) -> int:
        """Return the number of seeds in a profile for runs with the coordinates ``at``."""
        return self.profile(profile).seeds or seeds_of(self.seeds_at, at, self.seeds)

    def find_left_out(self, at: Mapping[str, Scalar]) -> LeftOut | None:
        """Return the first entry of ``left-out`` for runs with the coordinates ``at``. None: the runs are made."""
        return next((entry for entry in self.left_out if entry.at.items() <= at.items()), None)

    def toml(self, reproduced: Mapping[str, Scalar]) -> str:
        """Return the file's text, with a table of its runs.

        Args:
            reproduced: The content of the table, such as profile and seeds.
        """
        content = self.model_dump(by_alias=True, exclude_unset=True, exclude_none=True)
        return tomli_w.dumps({**content, "reproduced": dict(reproduced)})


def find_packaged() -> dict[str, Path]:
    """Return the experiments that come with the project."""
    return {path.stem: path for path in sorted(PACKAGED.glob("*.toml"))}


def find_experiment(name: str) -> Experiment:
    """Return a packaged experiment by its name, or any experiment by the path of its .toml file.

    Raises:
        ConfigError: The experiment does not exist, or its file is wrong. The message names file and key.
    """
    if name.endswith(".toml"):
        return read_experiment(Path(name))
    known = find_packaged()
    if name not in known:
        allowed = f"{', '.join(known)}, or the path of a .toml file"
        raise ConfigError("experiment", got=repr(name), allowed=allowed, hint=did_you_mean(name, known, _LISTED))
    return read_experiment(known[name])


def read_experiment(path: Path) -> Experiment:
    """Read an experiment's file. The experiment's name is the key ``name``, or else the name of the file.

    Raises:
        ConfigError: The file cannot be read, or a key is missing, unknown or wrong.
    """
    return read_settings(Experiment, path, "TOML", f"use the path of a TOML file, {PAGE}", PAGE, name=path.stem)
