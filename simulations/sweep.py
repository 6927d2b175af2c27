"""Runs a sweep and keeps its books: sweep.toml, sweep.csv after every trial, best.toml, and what can be resumed."""

from __future__ import annotations

import json
import math
import shutil
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import tomli_w

from apps.config import SHOWING_KEYS, ConfigError, Scalar
from apps.files import write_atomic
from problems.extras import require
from simulations.compare import csv_text
from simulations.flower import nested
from simulations.output import shown, shown_metric, table
from simulations.plan import Sweep, Trial, check_same, write_asked
from simulations.records import FAILED, FINISHED, STOPPED, STOPPED_EARLY, UNFINISHED, RunRecord, read_run

_SHOWN_CONFIGS = 20


@dataclass(frozen=True)
class Row:
    """How a trial stands. ``status`` is waiting, finished, stopped, failed or unfinished."""

    status: str = "waiting"
    final: float | None = None  # the metric of the last evaluated round
    best: float | None = None
    rounds: int = 0
    seconds: float = 0.0
    reason: str = ""


@dataclass(frozen=True)
class Standing:
    """One configuration over its seeds. ``mean`` and ``spread`` (sample standard deviation) are of finished trials."""

    varied: dict[str, Scalar]
    seeds: int
    finished: int
    mean: float | None
    spread: float | None


@dataclass(frozen=True)
class Outcome:
    """A sweep's trials, and its configurations, best first."""

    sweep: Sweep
    out: Path
    trials: list[Trial]
    rows: dict[str, Row]
    standings: list[Standing]

    def count(self, *statuses: str) -> int:
        """Trials of some status."""
        return sum(row.status in statuses for row in self.rows.values())

    @property
    def best(self) -> Standing | None:
        """The best configuration, where any trial finished."""
        return self.standings[0] if self.standings and self.standings[0].finished else None

    def text(self) -> str:
        """The configurations as a table, best first, and why trials failed."""
        sweep = self.sweep
        columns = [*sweep.varied, "finished", f"{sweep.metric} (mean)", "std"]
        cells = [
            [
                *(shown(row.varied[key]) for key in sweep.varied),
                f"{row.finished}/{row.seeds}",
                shown_metric(row.mean),
                shown_metric(row.spread, like=row.mean),
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
        return "\n".join(lines)

    def json(self) -> dict[str, Any]:
        """What ``--json`` prints."""
        return {
            "out": str(self.out),
            "metric": self.sweep.metric,
            "mode": self.sweep.mode,
            "best": None if self.best is None else asdict(self.best),
            "configurations": [asdict(standing) for standing in self.standings],
            "trials": [
                {"trial": t.name, "config": t.varied, "seed": t.seed, **asdict(self.rows[t.name])} for t in self.trials
            ],
        }


class Books:
    """A sweep's directory while the sweep is under way."""

    def __init__(self, sweep: Sweep, out: Path, trials: Sequence[Trial], say: Callable[[str], None]) -> None:
        self.sweep, self.out, self.trials, self.say = sweep, out, list(trials), say
        self.rows = {trial.name: Row() for trial in trials}

    def open(self, resume: bool) -> None:
        """Begin, or take the trials that an earlier sweep ended.

        Raises:
            ConfigError: the directory is taken, or there is nothing to resume, or it is another sweep's.
        """
        if resume:
            check_same(self.sweep, self.out / "sweep.toml")
            for trial in self.trials:
                row = self.ended_before(trial)
                if row is not None:
                    self.rows[trial.name] = row
                elif trial.path.exists():
                    shutil.rmtree(trial.path)
        else:
            if self.out.exists() and (not self.out.is_dir() or any(self.out.iterdir())):
                raise ConfigError(
                    "--out",
                    got=f"{self.out}, which is not empty",
                    allowed="a new directory",
                    hint="choose another, or continue a sweep with --resume",
                )
            try:
                self.out.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise ConfigError(
                    "--out",
                    got=f"{self.out}, which cannot be created ({error.strerror})",
                    allowed="a folder that can be written to",
                    hint="choose one",
                ) from None
            write_asked(self.sweep, self.out / "sweep.toml")
        (self.out / "best.toml").unlink(missing_ok=True)
        self.write()

    def waiting(self) -> list[Trial]:
        """The trials that have not been run."""
        return [trial for trial in self.trials if self.rows[trial.name].status == "waiting"]

    def ended_before(self, trial: Trial) -> Row | None:
        """How a trial of this very config finished, or was stopped early, in an earlier sweep."""
        try:
            run = read_run(trial.path)
        except ConfigError:
            return None
        same_clients = run.status == STOPPED or run.result.get("clients") == self.sweep.clients
        same = same_clients and not run.unlike(trial.config, free=SHOWING_KEYS)
        return self.row(run) if same and run.status in (FINISHED, STOPPED) else None

    def row(self, run: RunRecord) -> Row:
        """A trial's standing from its run directory."""
        curve = run.curve(self.sweep.metric)
        better = min if self.sweep.mode == "min" else max
        return Row(
            run.status,
            curve[max(curve)] if curve else None,
            better(curve.values()) if curve else None,
            int(run.facts["rounds"]),
            float(run.facts["seconds"]),
            run.reason,
        )

    # What Tune tells.

    def ended(self, trial: Trial, died: str) -> None:
        """A trial's run ended; ``died`` says why its process did, if it did."""
        try:
            row = self.row(read_run(trial.path))
        except ConfigError as error:
            row = Row(FAILED, reason=str(error))
        if row.status != FINISHED:
            row = Row(FAILED, row.final, row.best, row.rounds, row.seconds, died or row.reason or "it left no result")
            self.fail(trial, row.reason)
        self.note(trial, row)

    def stopped(self, trial: Trial, reason: str) -> None:
        """A trial was stopped early."""
        self.fail(trial, f"{STOPPED_EARLY}: {reason}")
        self.note(trial, self.row(read_run(trial.path)))

    def fail(self, trial: Trial, reason: str) -> None:
        """Leave the reason with the run, for `compare` and for --resume."""
        if trial.path.is_dir():
            write_atomic(trial.path / "failure.json", (json.dumps({"reason": reason}, indent=2) + "\n").encode())

    def note(self, trial: Trial, row: Row) -> None:
        """Put a trial's row down, and say so."""
        self.rows[trial.name] = row
        self.write()
        count = sum(row.status != "waiting" for row in self.rows.values())
        values = f"{shown_metric(row.final)} (best {shown_metric(row.best)})"
        told = f"{self.sweep.metric} {values}  {row.rounds} rounds"
        why = f"  {' '.join(row.reason.split())}" if row.status == FAILED else ""
        self.say(f"{count}/{len(self.rows)}  {row.status:<8}  {trial.name}  {told}  {row.seconds:.1f} s{why}")

    # What is left.

    def write(self) -> None:
        """Write sweep.csv."""
        metric = self.sweep.metric
        columns = [
            "trial",
            *self.sweep.varied,
            "seed",
            "status",
            metric,
            f"best_{metric}",
            "rounds",
            "seconds",
            "reason",
        ]
        rows = []
        for trial in self.trials:
            row = self.rows[trial.name]
            told = {metric: row.final, f"best_{metric}": row.best, "status": row.status, "rounds": row.rounds}
            end = {"seconds": row.seconds, "reason": row.reason}
            rows.append({"trial": trial.name, **trial.varied, "seed": trial.seed, **told, **end})
        write_atomic(self.out / "sweep.csv", csv_text(columns, rows).encode())

    def interrupt(self) -> int:
        """Put down which trials were cut off; returns how many have ended."""
        for trial in self.waiting():
            if (trial.path / "config.toml").exists():
                self.rows[trial.name] = Row(UNFINISHED)
        self.write()
        return sum(row.status not in ("waiting", UNFINISHED) for row in self.rows.values())

    def close(self) -> Outcome:
        """Rank the configurations and write best.toml."""
        ranked = standings(self.trials, self.rows, self.sweep.mode)
        outcome = Outcome(self.sweep, self.out, self.trials, self.rows, ranked)
        if outcome.best is not None:
            write_atomic(self.out / "best.toml", best_toml(self.sweep, outcome.best).encode())
        return outcome


def standings(trials: Sequence[Trial], rows: Mapping[str, Row], mode: str) -> list[Standing]:
    """Configurations, best first: by finished seeds, then by the mean of the last round's metric over them.

    A mean over fewer seeds is not compared with one over more: seeds that failed or were stopped were the worse ones.
    """
    groups: dict[str, list[Trial]] = {}
    for trial in trials:
        groups.setdefault(repr(trial.varied), []).append(trial)
    found = []
    for group in groups.values():
        ended = [rows[trial.name] for trial in group if rows[trial.name].status == FINISHED]
        values = [row.final for row in ended if row.final is not None and math.isfinite(row.final)]
        mean = statistics.fmean(values) if values else None
        spread = statistics.stdev(values) if len(values) > 1 else None
        found.append(Standing(group[0].varied, len(group), len(values), mean, spread))
    sign = 1 if mode == "min" else -1
    return sorted(found, key=lambda standing: (-standing.finished, sign * (standing.mean or 0.0)))


def best_toml(sweep: Sweep, best: Standing) -> str:
    """The best configuration as a file for ``-c``, its merit in a comment."""
    spread = "" if best.spread is None else f", standard deviation {best.spread:.6g}"
    heading = f"# {sweep.metric} {best.mean:.6g} after the last round: mean of {best.finished} seeds{spread}\n"
    return heading + tomli_w.dumps(nested({**sweep.config, **best.varied}))


def run_sweep(
    sweep: Sweep,
    out: Path,
    *,
    resume: bool = False,
    jobs: int = 1,
    address: str = "",
    say: Callable[[str], None] = lambda line: None,
) -> Outcome:
    """Run a sweep's trials, or those that an interrupted sweep has left.

    Args:
        sweep: what is asked.
        out: its directory.
        resume: continue the sweep that is there.
        jobs: trials at a time.
        address: a Ray cluster's address; empty: a Ray of its own in this machine.
        say: takes a line a trial that has ended.

    Raises:
        ConfigError: a trial's config is wrong, or the directory is; nothing was started.
        MissingExtraError: Ray is not installed.
        SweepInterruptedError: Ctrl-C.
    """
    require("sweep", "sweep", "ray", "tensorboardX")
    out = out.expanduser().resolve()
    trials = sweep.trials(out)
    books = Books(sweep, out, trials, say)
    books.open(resume)
    waiting = books.waiting()
    try:
        if waiting:
            from simulations.tuning import run_trials  # takes a second, and only this needs Ray

            run_trials(sweep, waiting, out / ".tune", jobs, address, books.ended, books.stopped)
    except KeyboardInterrupt:
        raise SweepInterruptedError(books.interrupt(), len(trials)) from None
    return books.close()


class SweepInterruptedError(Exception):
    """Ctrl-C during a sweep; the message says how to go on."""

    def __init__(self, ended: int, trials: int) -> None:
        super().__init__(f"interrupted: {ended} of {trials} trials have ended; the same command with --resume goes on")
