"""The lines of an experiment: each is one method on one data set in one setting, and has one run for each seed."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from apps.config import Scalar
from simulations.experiments.experiment import Injected, Run
from simulations.results.output import format_cell

DATASET, METHOD = "dataset", "method"  # the coordinates that every run has; coordinates tell lines apart


@dataclass(frozen=True, eq=False)
class Line:
    """One method on one data set in one setting: a row of the table and a curve of the figure.

    ``config`` has neither seed nor run directory.
    """

    run: Run
    at: dict[str, Scalar]  # coordinates, method and data set among them
    clients: int
    config: dict[str, Scalar]
    origin: str  # the data set that the experiment names; a profile may take another
    injected: Injected = field(default_factory=dict)
    # empty until the config has been checked
    panel: str = ""
    curve: str = ""

    @property
    def method(self) -> str:
        return self.run.name

    @property
    def dataset(self) -> str:
        return str(self.at[DATASET])

    @property
    def setting(self) -> str:
        """The coordinates besides method and data set, as text for people."""
        return words({key: value for key, value in self.at.items() if key not in (METHOD, DATASET)})

    @property
    def title(self) -> str:
        """A title that tells it from the other lines."""
        return "  ".join(filter(None, [self.method, self.dataset, self.setting]))


@dataclass(frozen=True)
class PlannedRun:
    """One line with one seed.

    ``name`` is its run directory's, ``changes`` are the keys in which it differs from its line, and ``note`` describes
    them for people.
    """

    name: str
    line: Line
    seed: int
    changes: Mapping[str, Scalar] = field(default_factory=dict)
    note: str = ""

    @property
    def engine(self) -> str:
        return self.line.run.engine

    @property
    def clients(self) -> int:
        return self.line.clients

    @property
    def config(self) -> dict[str, Scalar]:
        """Its flat run config without its run directory."""
        return {**self.line.config, **self.changes, "seed": self.seed}

    @property
    def title(self) -> str:
        """A title that tells it from the other runs."""
        return "  ".join(filter(None, [self.line.title, self.note, f"seed {self.seed}"]))


def settings(values: Mapping[str, Scalar]) -> list[str]:
    """``key = value`` for each, as text for people.

    Returns:
        One text for each, in their order; a float has six digits at most.
    """
    return [f"{key} = {format_cell(value)}" for key, value in values.items()]


def words(at: Mapping[str, Scalar]) -> str:
    """Coordinates as text for people: the method and the data set by their values alone, and first."""
    named = [format_cell(at[key]) for key in (METHOD, DATASET) if key in at]
    return ", ".join([*named, *settings({key: at[key] for key in at if key not in (METHOD, DATASET)})])


def run_folder(line: Line, seed: int, *more: str) -> str:
    """Return a run directory's name, such as ``fedsgda-mb_synthetic-pl_s-5-k-5_seed-0``.

    -5 becomes ``minus-5``, since a dash only separates words.

    Args:
        more: What else tells the run from others, such as the values that are tried.

    Returns:
        A name of a-z, 0-9, ``-``, ``_`` and ``.``, in which other characters are lost: lines that differ may share one.
    """
    parts = [line.method, line.dataset, line.setting, *more, f"seed {seed}"]
    parts = [re.sub(r"(?<![A-Za-z0-9.])-(?=\.?\d)", "minus ", part) for part in parts]
    return "_".join(re.sub(r"[^a-z0-9.]+", "-", part.lower()).strip("-.") for part in parts if part)
