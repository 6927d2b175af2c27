"""The results of a sweep: its trials, its ranked configurations, and the best configuration's metric on test rows."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomli_w

from apps.config import Scalar
from problems.files import write_atomic
from simulations.arguments import nest
from simulations.engines.planned import Runs
from simulations.results.compare import csv_text
from simulations.results.output import Table, format_cell, format_metric, format_pair
from simulations.results.ranking import over_seeds, rank
from simulations.results.records import OF_TRAINING, UNFINISHED, RunRecord
from simulations.sweeps.plan import FRACTION, TEST, Sweep, Trial, without_fraction

_SHOWN_CONFIGS = 20


@dataclass(frozen=True)
class Standing:
    """The result of a configuration, over its seeds.

    Attributes:
        varied: The values of the varied keys.
        seeds: The number of trials.
        finished: The number of finished trials with a finite metric.
        mean: The metric's mean over the finished trials. None: no trial finished.
        spread: The metric's sample standard deviation. None: fewer than two trials finished.
        missing: The number of finished trials with a missing site in any round.
    """

    varied: dict[str, Scalar]
    seeds: int
    finished: int
    mean: float | None
    spread: float | None
    missing: int = 0


class Trials(Runs[Trial]):
    """The trials of a sweep, and the file sweep.csv with a row for each trial.

    Args:
        sweep: The sweep.
        trials: The trials.
        folder: The folder of the trials' run directories.
        table: The path of sweep.csv.
    """

    def __init__(self, sweep: Sweep, trials: Iterable[Trial], folder: Path, table: Path) -> None:
        super().__init__(trials, folder, sweep.metric)
        self.sweep, self.table = sweep, table

    def value(self, run: Trial, record: RunRecord) -> float | None:
        """Return a trial's metric in its last or selected round. Without held-out rows: the final model's metric."""
        return record.last(self.metric) if run.fraction else record.final(self.metric)

    def end(self, run: Trial, reason: str = "") -> str:
        """Record how a run ended, see `Runs.end`, and write the table."""
        line = super().end(run, reason)
        self.write()
        return line

    def row(self, trial: Trial) -> dict[str, Any]:
        """Return a trial's row. Its status is waiting, finished, stopped, failed or unfinished."""
        begun = (self.folder / trial.name / "config.toml").exists()
        none = RunRecord(trial.name, self.folder, UNFINISHED if begun else "waiting", "", {}, {}, [])
        record = self.records.get(trial.name, none)
        curve, facts = record.curve(self.metric), record.facts
        better = min if self.sweep.mode == "min" else max
        return {
            "status": record.status,
            "final": self.value(trial, record),
            "best": better(curve.values()) if curve else None,
            "rounds": facts["rounds"],
            "seconds": facts["seconds"],
            "reason": record.reason,
            "missing": facts["rounds_with_missing_sites"],
        }

    def write(self) -> None:
        """Write the table."""
        heads = {"final": self.metric, "best": f"best_{self.metric}", "missing": "rounds_with_missing_sites"}
        rows = [
            {"trial": trial.name, **trial.varied, "seed": trial.seed}
            | {heads.get(key, key): value for key, value in self.row(trial).items()}
            for trial in self.runs.values()
        ]
        write_atomic(self.table, csv_text(rows).encode())

    def standings(self) -> list[Standing]:
        """Return the configurations, best first, see `rank`."""
        groups: dict[str, list[Trial]] = {}
        for trial in self.runs.values():
            groups.setdefault(repr(trial.varied), []).append(trial)
        standings, finished = [], self.finished
        for group in groups.values():
            ended = [(trial, finished[trial.name]) for trial in group if trial.name in finished]
            seeds = over_seeds((self.value(trial, record), bool(record.dropped)) for trial, record in ended)
            standings.append(Standing(group[0].varied, len(group), *seeds))
        return sorted(standings, key=lambda row: rank(row.finished, row.missing, row.mean, self.sweep.mode))


class Outcome:
    """The outcome of a sweep: its configurations, best first.

    Args:
        trials: The ended trials.
        finals: The best configuration's runs on all training rows, measured on the test rows. None: no such runs, since
            the configuration was not chosen on held-out training rows.

    Attributes:
        best: The best configuration. None: no trial finished.
        fraction: The share of the training rows that was held out to choose the best configuration. 0: no such rows.
    """

    def __init__(self, trials: Trials, finals: Trials | None = None) -> None:
        self.trials, self.sweep, self.out = trials, trials.sweep, trials.table.parent
        self.standings = trials.standings()
        self.best = self.standings[0] if self.standings[0].finished else None
        self.final = None if finals is None else finals.standings()[0]
        self.fraction = next((trial.fraction for trial in self.chosen), 0.0)

    @property
    def chosen(self) -> list[Trial]:
        """The trials of the best configuration."""
        return [run for run in self.trials.runs.values() if self.best is not None and run.varied == self.best.varied]

    def text(self) -> str:
        """Return a table of the configurations, best first, and the reasons why trials failed."""
        sweep, missing = self.sweep, any(row.missing for row in self.standings)
        columns = [*sweep.varied, "finished", *(["sites missing"] * missing), f"{sweep.metric} (mean)", "std"]
        cells = [
            [
                *(row.varied[key] for key in sweep.varied),
                *(f"{count}/{row.seeds}" for count in (row.finished, row.missing)[: 1 + missing]),
                *(format_metric(row.mean), format_metric(row.spread, like=row.mean)),
            ]
            for row in self.standings[:_SHOWN_CONFIGS]
        ]
        lines = [Table("", columns, cells).text()]
        if len(self.standings) > _SHOWN_CONFIGS:
            lines.append(f"and {len(self.standings) - _SHOWN_CONFIGS} more")
        lines += [f"{name} failed: {' '.join(reason.split())}" for name, reason in self.trials.failed.items()]
        if self.best is not None:
            best, every = self.out / "best.toml", self.out / "sweep.csv"
            lines += [f"the best configuration is in {best}, all trials in {every}", *self.words()]
        return "\n".join(lines)

    def words(self) -> list[str]:
        """Return phrases about the rows of the choice, missing sites, and the best configuration's test metric."""
        metric, notes = self.sweep.metric, []
        if self.best is not None and self.best.missing:
            notes.append("its runs had missing sites: no configuration finished more seeds with all sites")
        elif any(row.missing for row in self.standings):
            notes.append(
                "configurations with missing sites are ranked after configurations that finished with all sites"
            )
        if not self.fraction:
            if self.sweep.select_on == TEST and metric not in OF_TRAINING:
                return [*notes, f"chosen by {metric} on the test rows, so this value is too optimistic"]
            none = "without held-out training rows, since this metric is not measured on test rows"
            return [*notes, f"chosen by {metric}, {none}"]
        notes += [f"chosen by {metric} on validation rows, {format_cell(100 * self.fraction)} % of the training rows"]
        if self.final is not None:
            of = f"{self.final.finished} of {self.final.seeds} seeds"
            value = format_pair(self.final.mean, self.final.spread)
            config = self.chosen[0].config
            keeps_rows = FRACTION in without_fraction(config)
            training = "trained without these rows" if keeps_rows else "trained on all training rows"
            if by := config.get("select-by"):
                training += f", the round selected by {by}"
            notes.append(f"{training}, on the test rows: {metric} {value} ({of}, in best/)")
        return notes

    def json(self) -> dict[str, Any]:
        """Return the object that ``--json`` prints."""
        trials = self.trials
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
                {"trial": trial.name, "config": trial.varied, "seed": trial.seed, **trials.row(trial)}
                for trial in trials.runs.values()
            ],
        }

    def write(self) -> None:
        """Write best.toml: the best configuration as a file for ``-c``, with comments about its metric.

        It has no ``validation-fraction``, unless the config chooses a model or a threshold on validation rows.
        """
        if self.best is None:
            return
        spread = "" if self.best.spread is None else f", standard deviation {self.best.spread:.6g}"
        when = "of the selected round" if self.sweep.config.get("select-by") else "after the last round"
        heading = f"{self.sweep.metric} {self.best.mean:.6g} {when}: mean of {self.best.finished} seeds{spread}"
        comments = "".join(f"# {line}\n" for line in (heading, *self.words()))
        config = without_fraction({**self.sweep.config, **self.best.varied})
        write_atomic(self.out / "best.toml", (comments + tomli_w.dumps(nest(config))).encode())
