"""The lines of an experiment. A line is a method in a setting: a row of the table, and a run for each seed."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from apps.config import Scalar
from simulations.experiments.experiment import Injected, Run
from simulations.results.output import format_cell

DATASET, METHOD = "dataset", "method"  # the coordinates that every line has (see `simulations.experiments.experiment`)


@dataclass(frozen=True, eq=False)
class Line:
    """A method on a data set in a setting: a row of the table and a curve of the figure.

    Attributes:
        run: The method.
        at: The coordinates, including method and data set.
        clients: The number of clients.
        config: The flat run config without seed and run directory.
        origin: The data set outside profiles. A profile may replace it.
        injected: The artificial delays of a vertical run.
        seeds: The number of seeds.
        panel: The name of the panel in the figure. Empty until the config has been checked.
        curve: The name of the curve in the figure. Empty until the config has been checked.
    """

    run: Run
    at: dict[str, Scalar]
    clients: int
    config: dict[str, Scalar]
    origin: str
    injected: Injected = field(default_factory=dict)
    seeds: int = 1
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
        """The coordinates except method and data set, as text for people."""
        return words({key: value for key, value in self.at.items() if key not in (METHOD, DATASET)})

    @property
    def title(self) -> str:
        """The line's method, data set and setting, as text for people."""
        return "  ".join(filter(None, [self.method, self.dataset, self.setting]))


@dataclass(frozen=True)
class PlannedRun:
    """A run to compute: a line with a seed.

    Attributes:
        name: The name of the run directory.
        line: The line.
        seed: The seed.
        changes: The run-config keys in which the run differs from its line.
        note: The changes as text for people.
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
        """The flat run config without the run directory."""
        return {**self.line.config, **self.changes, "seed": self.seed}

    @property
    def title(self) -> str:
        """The line's title with the changes and the seed, as text for people."""
        return "  ".join(filter(None, [self.line.title, self.note, f"seed {self.seed}"]))


def settings(values: Mapping[str, Scalar]) -> list[str]:
    """Return ``key = value`` for each value, as text for people.

    Returns:
        A text for each value, in their order. Floats have at most six digits.
    """
    return [f"{key} = {format_cell(value)}" for key, value in values.items()]


def words(at: Mapping[str, Scalar]) -> str:
    """Return coordinates as text for people. Method and data set come first, without their keys."""
    names = [format_cell(at[key]) for key in (METHOD, DATASET) if key in at]
    return ", ".join([*names, *settings({key: at[key] for key in at if key not in (METHOD, DATASET)})])


def run_folder(line: Line, seed: int, *more: str) -> str:
    """Return a run directory's name, such as ``fedsgda-mb_synthetic-pl_s-5-k-5_seed-0``.

    Args:
        line: The line.
        seed: The seed.
        more: Further texts for the name, such as the values of a grid search.

    Returns:
        A name of a-z, 0-9, ``-``, ``_`` and ``.``. The number -5 becomes ``minus-5``. Other characters become a dash,
        so different lines may get the same name.
    """
    parts = [line.method, line.dataset, line.setting, *more, f"seed {seed}"]
    parts = [re.sub(r"(?<![A-Za-z0-9.])-(?=\.?\d)", "minus ", part) for part in parts]
    return "_".join(re.sub(r"[^a-z0-9.]+", "-", part.lower()).strip("-.") for part in parts if part)
