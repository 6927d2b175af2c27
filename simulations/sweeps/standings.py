"""A sweep's results: its configurations, best first, the rows that decided it, and the best one on the test rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import tomli_w

from apps.config import Scalar
from simulations.arguments import nest
from simulations.results.output import format_cell, format_metric, format_pair, table
from simulations.results.ranking import over_seeds, rank
from simulations.results.records import FAILED, FINISHED, OF_TRAINING
from simulations.sweeps.plan import FRACTION, TEST, Sweep, Trial, without_fraction

_SHOWN_CONFIGS = 20


@dataclass(frozen=True)
class TrialRow:
    """How a trial stands. ``status`` is waiting, finished, stopped, failed or unfinished."""

    status: str = "waiting"
    final: float | None = None  # the metric of the last evaluated round, or of the selected model
    best: float | None = None
    rounds: int = 0
    seconds: float = 0.0
    reason: str = ""
    missing: int = 0  # rounds in which a site was missing


@dataclass(frozen=True)
class Standing:
    """One configuration over its seeds.

    ``mean`` and ``spread`` (sample standard deviation) are over the finished trials with a finite metric; in
    ``missing`` of these a site was missing in some round.
    """

    varied: dict[str, Scalar]
    seeds: int
    finished: int
    mean: float | None
    spread: float | None
    missing: int = 0


@dataclass(frozen=True)
class Outcome:
    """A sweep's trials, and its configurations, best first."""

    sweep: Sweep
    out: Path
    trials: list[Trial]
    rows: dict[str, TrialRow]
    standings: list[Standing]
    # the best configuration on the test rows, trained on all training rows; None unless chosen on held-out rows
    final: Standing | None = None

    def count(self, *statuses: str) -> int:
        """The number of trials with one of these statuses.

        Args:
            statuses: waiting, finished, stopped, failed or unfinished.
        """
        return sum(row.status in statuses for row in self.rows.values())

    @property
    def best(self) -> Standing | None:
        """The best configuration; None if no trial finished."""
        return self.standings[0] if self.standings and self.standings[0].finished else None

    def text(self) -> str:
        """The configurations as a table, best first, and why trials failed."""
        sweep = self.sweep
        missing = any(row.missing for row in self.standings)
        columns = [*sweep.varied, "finished", *(["sites missing"] if missing else []), f"{sweep.metric} (mean)", "std"]
        cells = [
            [
                *(format_cell(row.varied[key]) for key in sweep.varied),
                f"{row.finished}/{row.seeds}",
                *([f"{row.missing}/{row.seeds}"] if missing else []),
                format_metric(row.mean),
                format_metric(row.spread, like=row.mean),
            ]
            for row in self.standings[:_SHOWN_CONFIGS]
        ]
        lines = [table(columns, cells)]
        if len(self.standings) > _SHOWN_CONFIGS:
            lines.append(f"and {len(self.standings) - _SHOWN_CONFIGS} more")
        failed = [(name, row.reason) for name, row in self.rows.items() if row.status == FAILED]
        lines += [f"{name} failed: {' '.join(reason.split())}" for name, reason in failed]
        if self.best is not None:
            lines.append(
                f"the best configuration is in {self.out / 'best.toml'}, all trials in {self.out / 'sweep.csv'}"
            )
            lines += self.words()
        return "\n".join(lines)

    @property
    def fraction(self) -> float:
        """The share of the training rows held out to choose the best configuration; 0: it was chosen on others."""
        chosen = None if self.best is None else self.best.varied
        return next((trial.fraction for trial in self.trials if trial.varied == chosen), 0.0)

    def words(self) -> list[str]:
        """Phrases on the rows by which the best configuration was chosen, on missing sites, and on its test metric."""
        metric, notes = self.sweep.metric, []
        if self.best is not None and self.best.missing:
            notes.append("sites were missing in it: no configuration finished as many seeds with all sites")
        elif any(row.missing for row in self.standings):
            notes.append("configurations in which sites were missing stand after those that finished with all sites")
        if not self.fraction:
            if self.sweep.select_on == TEST and metric not in OF_TRAINING:
                return [*notes, f"chosen by {metric} on the test rows, which makes it look better there than it is"]
            none = "for which no training row was held out; it is not measured on test rows"
            return [*notes, f"chosen by {metric}, {none}"]
        notes += [f"chosen by {metric} on validation rows, {format_cell(100 * self.fraction)} % of the training rows"]
        if self.final is not None:
            of = f"{self.final.finished} of {self.final.seeds} seeds"
            value = format_pair(self.final.mean, self.final.spread)
            config = self.trials[0].config
            made = "trained without them" if FRACTION in without_fraction(config) else "trained on all training rows"
            if by := config.get("select-by"):
                made += f", the round selected by {by}"
            notes.append(f"{made}, on the test rows: {metric} {value} ({of}, in best/)")
        return notes

    def json(self) -> dict[str, Any]:
        """What ``--json`` prints."""
        return {
            "out": str(self.out),
            "metric": self.sweep.metric,
            "mode": self.sweep.mode,
            "select_on": self.sweep.select_on,
            "validation_fraction": self.fraction,
            "test": self.final,
            "best": self.best,
            "configurations": self.standings,
            "trials": [
                {"trial": t.name, "config": t.varied, "seed": t.seed, **asdict(self.rows[t.name])} for t in self.trials
            ],
        }


def standings(trials: Sequence[Trial], rows: Mapping[str, TrialRow], mode: str) -> list[Standing]:
    """Configurations, best first; see `rank`.

    Args:
        trials: all; those with the same varied values are one configuration.
        rows: how each of them stands, by its name. Only finished ones count.
        mode: "min" or "max", whichever is better for the metric.
    """
    groups: dict[str, list[Trial]] = {}
    for trial in trials:
        groups.setdefault(repr(trial.varied), []).append(trial)
    found = []
    for group in groups.values():
        ended = [row for trial in group if (row := rows[trial.name]).status == FINISHED]
        seeds = over_seeds((row.final, row.missing > 0) for row in ended)
        found.append(Standing(group[0].varied, len(group), *seeds))
    return sorted(found, key=lambda one: rank(one.finished, one.missing, one.mean, mode))


def best_toml(outcome: Outcome) -> str:
    """The best configuration as a file for ``-c``; comments give metric and rows.

    It is without a validation fraction, unless it chooses a model or a threshold by one.

    Args:
        outcome: of a sweep with a best configuration.
    """
    sweep, best = outcome.sweep, outcome.best
    assert best is not None
    spread = "" if best.spread is None else f", standard deviation {best.spread:.6g}"
    when = "of the selected round" if sweep.config.get("select-by") else "after the last round"
    heading = f"# {sweep.metric} {best.mean:.6g} {when}: mean of {best.finished} seeds{spread}\n"
    heading += "".join(f"# {line}\n" for line in outcome.words())
    config = without_fraction({**sweep.config, **best.varied})
    return heading + tomli_w.dumps(nest(config))
