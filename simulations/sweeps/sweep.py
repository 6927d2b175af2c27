"""Runs or resumes a sweep and writes its files: sweep.toml, sweep.csv after every trial, and best.toml."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from apps.config import SHOWING_KEYS, ConfigError
from problems.errors import require
from problems.files import write_atomic
from simulations.results.compare import csv_text
from simulations.results.output import format_metric
from simulations.results.records import (
    FAILED,
    FINISHED,
    STOPPED,
    STOPPED_EARLY,
    UNFINISHED,
    RunRecord,
    RunsInterruptedError,
    leave_reason,
    read_run,
)
from simulations.sweeps.plan import Sweep, Trial, check_same, write_asked
from simulations.sweeps.standings import Outcome, TrialRow, best_toml, standings


class Books:
    """A sweep's directory while the sweep is under way.

    ``say`` is called with a line for each run that has ended; ``table`` is the file with a row for each run.
    """

    def __init__(
        self, sweep: Sweep, out: Path, trials: Sequence[Trial], say: Callable[[str], None], table: str = "sweep.csv"
    ) -> None:
        self.sweep, self.out, self.trials, self.say, self.table = sweep, out, list(trials), say, table
        self.rows = {trial.name: TrialRow() for trial in trials}

    def open(self, resume: bool) -> None:
        """Begin a sweep, or take over the trials that ended in an earlier one.

        Raises:
            ConfigError: the directory cannot be used, there is nothing to resume in it, or it is another sweep's.
        """
        if resume:
            check_same(self.sweep, self.out / "sweep.toml")
            self.take()
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
                got = f"{self.out}, which cannot be created ({error.strerror})"
                allowed = "a folder that can be written to"
                raise ConfigError("--out", got=got, allowed=allowed, hint="choose one") from None
            write_asked(self.sweep, self.out / "sweep.toml")
        (self.out / "best.toml").unlink(missing_ok=True)
        self.write()

    def take(self) -> None:
        """Take over the runs that ended before, and remove the directories of others."""
        for trial in self.trials:
            row = self.ended_before(trial)
            if row is not None:
                self.rows[trial.name] = row
            elif trial.path.exists():
                shutil.rmtree(trial.path)

    def waiting(self) -> list[Trial]:
        """The trials that have not been run."""
        return [trial for trial in self.trials if self.rows[trial.name].status == "waiting"]

    def ended_before(self, trial: Trial) -> TrialRow | None:
        """The row of a trial that ended before.

        Returns:
            None unless it finished or was stopped early, with the same config and, if it finished, number of clients.
        """
        try:
            run = read_run(trial.path)
        except ConfigError:
            return None
        same_clients = run.status == STOPPED or run.result.get("clients") == self.sweep.clients
        same = same_clients and not run.unlike(trial.config, free=SHOWING_KEYS)
        return self.row(trial, run) if same and run.status in (FINISHED, STOPPED) else None

    def row(self, trial: Trial, run: RunRecord) -> TrialRow:
        """A trial's row, read from its run directory.

        Returns:
            Its ``final`` and ``best`` metrics, the latter by the sweep's mode, are None if no round was evaluated. With
            ``select-by`` a trial that decides is final in the selected round, and one that does not on the test rows.
        """
        curve = run.curve(self.sweep.metric)
        better = min if self.sweep.mode == "min" else max
        return TrialRow(
            run.status,
            run.last(self.sweep.metric) if trial.fraction else run.final(self.sweep.metric),
            better(curve.values()) if curve else None,
            int(run.facts["rounds"]),
            float(run.facts["seconds"]),
            run.reason,
            run.facts["rounds_with_missing_sites"],
        )

    # Tune's events.

    def ended(self, trial: Trial, died: str) -> None:
        """Record that a trial's run ended; without a result it is a failed one.

        Args:
            died: why the trial's process ended before the run; empty: it did not.
        """
        try:
            row = self.row(trial, read_run(trial.path))
        except ConfigError as error:
            row = TrialRow(FAILED, reason=str(error))
        if row.status != FINISHED:
            row = TrialRow(
                FAILED, row.final, row.best, row.rounds, row.seconds, died or row.reason or "it left no result"
            )
            leave_reason(trial.path, row.reason)
        self.note(trial, row)

    def stopped(self, trial: Trial, reason: str) -> None:
        """Record that a trial was stopped early.

        Args:
            reason: its failure.json has it after "stopped early: ".
        """
        leave_reason(trial.path, f"{STOPPED_EARLY}: {reason}")
        self.note(trial, self.row(trial, read_run(trial.path)))

    def note(self, trial: Trial, row: TrialRow) -> None:
        """Record a trial's row, write the table, and report the row.

        Args:
            row: how the trial ended.
        """
        self.rows[trial.name] = row
        self.write()
        count = sum(row.status != "waiting" for row in self.rows.values())
        values = f"{format_metric(row.final)} (best {format_metric(row.best)})"
        outcome = f"{self.sweep.metric} {values}  {row.rounds} rounds"
        why = f"  {' '.join(row.reason.split())}" if row.status == FAILED else ""
        if row.missing:
            why = f"  sites were missing in {row.missing} of {row.rounds} rounds{why}"
        self.say(f"{count}/{len(self.rows)}  {row.status:<8}  {trial.name}  {outcome}  {row.seconds:.1f} s{why}")

    # Files and results.

    def write(self) -> None:
        """Write the table of the runs."""
        metric, rows = self.sweep.metric, []
        for trial in self.trials:
            row = self.rows[trial.name]
            cells: dict[str, Any] = {"trial": trial.name, **trial.varied, "seed": trial.seed, "status": row.status}
            cells |= {metric: row.final, f"best_{metric}": row.best, "rounds": row.rounds, "seconds": row.seconds}
            rows.append({**cells, "reason": row.reason, "rounds_with_missing_sites": row.missing})
        write_atomic(self.out / self.table, csv_text(rows).encode())

    def interrupt(self) -> int:
        """Record which trials were cut off; returns how many have ended."""
        for trial in self.waiting():
            if (trial.path / "config.toml").exists():
                self.rows[trial.name] = TrialRow(UNFINISHED)
        self.write()
        return sum(row.status not in ("waiting", UNFINISHED) for row in self.rows.values())

    def close(self) -> Outcome:
        """Rank the configurations and write best.toml."""
        ranked = standings(self.trials, self.rows, self.sweep.mode)
        outcome = Outcome(self.sweep, self.out, self.trials, self.rows, ranked)
        if outcome.best is not None:
            write_atomic(self.out / "best.toml", best_toml(outcome).encode())
        return outcome


def run_sweep(
    sweep: Sweep,
    out: Path,
    *,
    resume: bool = False,
    jobs: int = 1,
    address: str = "",
    say: Callable[[str], None] = lambda line: None,
) -> Outcome:
    """Run a sweep's trials, or those that an interrupted sweep has left, and then the best configuration once more.

    That happens if it was chosen on held-out training rows: its seeds then train on all training rows, for the metric
    on the test rows.

    Args:
        sweep: the sweep.
        out: its directory.
        resume: continue the sweep that is there.
        jobs: trials at a time.
        address: a Ray cluster's address; empty: a Ray of its own on this machine.
        say: called with a line for each trial that has ended.

    Raises:
        ConfigError: a trial's config or the directory is wrong; nothing was started.
        MissingExtraError: Ray is not installed.
        RunsInterruptedError: Ctrl-C.
    """
    require("sweep", "sweep", "ray", "tensorboardX")
    out = out.expanduser().resolve()
    trials = sweep.trials(out)
    books = Books(sweep, out, trials, say)
    books.open(resume)
    _run(books, jobs, address)
    outcome = books.close()
    if not outcome.fraction or outcome.best is None:
        return outcome
    chosen = [trial for trial in trials if trial.varied == outcome.best.varied]
    finals = Books(replace(sweep, grace=0), out, sweep.finals(chosen, out), say, "best.csv")
    for path in (out / "best").glob("*"):
        if path.name not in finals.rows:
            shutil.rmtree(path)
    finals.take()
    finals.write()
    _run(finals, jobs, address)
    (final,) = standings(finals.trials, finals.rows, sweep.mode)
    outcome = replace(outcome, final=final)
    write_atomic(out / "best.toml", best_toml(outcome).encode())
    return outcome


def _run(books: Books, jobs: int, address: str) -> None:
    """Make the runs that are waiting.

    Raises:
        RunsInterruptedError: Ctrl-C.
    """
    waiting = books.waiting()
    try:
        if waiting:
            from simulations.sweeps.tuning import run_trials  # takes a second, and only this needs Ray

            run_trials(books.sweep, waiting, books.out / ".tune", jobs, address, books.ended, books.stopped)
    except KeyboardInterrupt:
        ended = f"{books.interrupt()} of {len(books.trials)} trials have ended"
        raise RunsInterruptedError(f"interrupted: {ended}; the same command with --resume goes on") from None
