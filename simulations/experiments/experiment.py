"""An experiment: one TOML file that says which runs make a table and a figure of a paper, and how they are shown.

A run config merges the keys of the file's ``[config]``, the method, a case of every axis, the profile, and the method
for this profile; later ones win. In runs, cases and profiles every key that is not a field here is a run-config key.
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
from simulations.experiments.tuning import Tuning

_LISTED = "see `florilegium list experiments`"
PACKAGED = Path(__file__).parent

# seconds added to each update and message of a party, and the factor of the last party's updates
Injected = dict[Literal["compute", "delay", "slowest"], Annotated[float, Field(ge=0)]]
Abscissa = Literal["round", "iteration", "communication", "seconds", "megabytes", "clients"]


def _as_list(value: Any) -> Any:
    """Expand a single text to a list of it."""
    return [value] if isinstance(value, str) else value


class _Overrides(Settings):
    """A table with a few fields; all other keys in it are run-config keys."""

    model_config = ConfigDict(extra="allow")

    @property
    def config(self) -> dict[str, Scalar]:
        """The run-config keys, flat."""
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
            raise ConfigError(key, got=repr(value), allowed=allowed, hint="give several values by axes")
    return config


class Case(_Overrides):
    """One point of an axis; ``at`` names it in tables and curves."""

    at: dict[str, Scalar] = Field(min_length=1)
    clients: Count | None = None
    injected: Injected = Field(default_factory=dict)


def _cases(axes: Any) -> Any:
    """Expand ``local-steps = [4, 8]`` to cases that set this key and are named by it."""
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
    """A method. Its own axes are added to the file's, or replace those of the same name."""

    name: str = Field(min_length=1)
    engine: Literal["in-process", "centralized", "nonfederated"] = "in-process"
    clients: Count | None = None
    communications: Count = 1  # in a round, for an x axis that counts them
    axes: Axes = Field(default_factory=dict)
    profiles: dict[ProfileName, _Overrides] = Field(default_factory=dict)  # its own keys there, over the profile's

    @model_validator(mode="after")
    def _alone(self) -> Self:
        if self.engine == "nonfederated" and self.clients is not None:
            raise ConfigError("clients", got=self.clients, allowed="none in a nonfederated run", hint="leave it out")
        return self


class Profile(_Overrides):
    """How an experiment is cut down; ``only`` keeps cases by their coordinates (``method`` is one too)."""

    minutes: float = Field(gt=0)
    clients: Count | None = None
    injected: Injected = Field(default_factory=dict)
    seeds: Count | None = None
    differs: Sentences = Field(default_factory=list)  # from the paper's setting, in addition to the experiment's
    only: dict[str, Annotated[list[Scalar], Field(min_length=1)]] = Field(default_factory=dict)


class PaperValue(Settings):
    """A number of the paper, for the one row with this method, these coordinates and this metric."""

    method: str
    at: dict[str, Scalar] = Field(default_factory=dict)
    metric: str = ""  # empty: the experiment's first
    mean: float
    std: float | None = None
    source: str = ""  # table and column; empty: the experiment's figure


def _side(side: Any) -> Any:
    """Expand a single text to the method of that name."""
    return {"method": side} if isinstance(side, str) else side


Side = Annotated[dict[str, Scalar], BeforeValidator(_side), Field(min_length=1)]


class Claim(Settings):
    """An ordering that the paper claims: a metric's last value is better with ``better`` than with ``than``."""

    text: str = Field(min_length=1)
    metric: str = ""  # empty: the experiment's first
    # coordinates
    better: Side
    than: Side
    at: dict[str, Scalar] = Field(default_factory=dict)  # empty: in every setting

    @model_validator(mode="after")
    def _comparable(self) -> Self:
        if self.better.keys() != self.than.keys() or self.better == self.than:
            got = f"{self.than}, and better = {self.better}"
            raise ConfigError("than", got=got, allowed="other values of the same coordinates", hint=PAGE)
        if twice := self.at.keys() & self.better.keys():
            allowed = "coordinates that better and than do not say"
            raise ConfigError("at", got=", ".join(sorted(twice)), allowed=allowed, hint="leave them out")
        return self


class Experiment(Settings):
    """The content of an experiment's file."""

    # what is reproduced
    name: str
    title: str = Field(min_length=1)
    paper: str = Field(min_length=1)
    figure: str = Field(min_length=1)
    paper_values: list[PaperValue] = Field(default_factory=list)
    claims: list[Claim] = Field(default_factory=list)
    differs: Sentences = Field(default_factory=list)  # from the paper's setting, in every profile
    # what is run
    clients: Count = 8
    seeds: Count = 3
    injected: Injected = Field(default_factory=dict)
    config: Annotated[dict[str, Any], AfterValidator(_checked_config)] = Field(default_factory=dict)
    axes: Axes = Field(default_factory=dict)
    runs: list[Run] = Field(min_length=1)
    profiles: dict[ProfileName, Profile] = Field(min_length=1)
    tune: Tuning | None = None
    # how it is shown
    metrics: list[str] = Field(min_length=1)  # the table has all; the first is drawn
    scale: Literal["linear", "log"] = "linear"
    # a single text is short for a list of it
    x: Annotated[list[Abscissa], BeforeValidator(_as_list)] = Field(default=["round"], min_length=1)
    x_label: Annotated[list[str], BeforeValidator(_as_list)] = Field(default_factory=list)  # empty: those of x
    y_label: str = ""  # empty: the metric's
    panel: str = "{dataset}"  # curves with the same text are in the same axes
    curve: str = "{method} {setting}"
    # only in the copy that a reproduction leaves
    reproduced: dict[str, Scalar] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _x_axes(self) -> Self:
        if len(set(self.x)) < len(self.x) or ("clients" in self.x and len(self.x) > 1):
            raise ConfigError("x", got=", ".join(self.x), allowed="each once, and clients only alone", hint=PAGE)
        if self.x_label and len(self.x_label) != len(self.x):
            got = ", ".join(self.x_label)
            raise ConfigError("x-label", got=got, allowed=f"as many as x has, {len(self.x)}, or none", hint=PAGE)
        return self

    def profile(self, name: str) -> Profile:
        """Return the profile of that name.

        Raises:
            ConfigError: There is none; the message names those of the experiment.
        """
        if name not in self.profiles:
            allowed = f"those of experiment {self.name!r}: {', '.join(self.profiles)}"
            raise ConfigError("--profile", got=repr(name), allowed=allowed, hint=_LISTED)
        return self.profiles[name]

    def toml(self, reproduced: Mapping[str, Scalar]) -> str:
        """Return the file again, with a table of what has been run of it.

        Args:
            reproduced: The content of that table, such as profile and seeds.
        """
        content = self.model_dump(by_alias=True, exclude_unset=True, exclude_none=True)
        return tomli_w.dumps({**content, "reproduced": dict(reproduced)})


def find_packaged() -> dict[str, Path]:
    """Return the experiments that come with the project."""
    return {path.stem: path for path in sorted(PACKAGED.glob("*.toml"))}


def find_experiment(name: str) -> Experiment:
    """Return a packaged experiment by its name, or any by the path of its .toml file.

    Raises:
        ConfigError: There is none, or its file is wrong; the message names file and key.
    """
    if name.endswith(".toml"):
        return read_experiment(Path(name))
    known = find_packaged()
    if name not in known:
        allowed = f"{', '.join(known)}, or the path of a .toml file"
        raise ConfigError("experiment", got=repr(name), allowed=allowed, hint=did_you_mean(name, known, _LISTED))
    return read_experiment(known[name])


def read_experiment(path: Path) -> Experiment:
    """Read an experiment's file; the experiment is named after the file unless it sets ``name``.

    Raises:
        ConfigError: It cannot be read, or a key is missing, unknown or wrong.
    """
    return read_settings(Experiment, path, "TOML", f"give the path of a TOML file, {PAGE}", PAGE, name=path.stem)
