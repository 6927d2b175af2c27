"""A folder of planned runs, for sweeps and reproductions: which runs have ended, and which must still be computed."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from apps.config import SHOWING_KEYS, ConfigError, Scalar
from simulations.arguments import add_directory
from simulations.engines.launch import IN_PROCESS
from simulations.results.output import format_metric
from simulations.results.records import (
    FAILED,
    FINISHED,
    STOPPED,
    UNFINISHED,
    RunRecord,
    RunsInterruptedError,
    leave_reason,
    read_run,
)

_FREE = (*SHOWING_KEYS, "data-dir")  # keys that may differ between an ended run and the plan


class Planned(Protocol):
    """A run to compute. ``name`` is the name of its directory, and ``title`` describes it for people."""

    @property
    def name(self) -> str: ...
    @property
    def title(self) -> str: ...
    @property
    def engine(self) -> str: ...
    @property
    def clients(self) -> int: ...
    @property
    def config(self) -> Mapping[str, Scalar]: ...


R = TypeVar("R", bound=Planned)
# A function that is called when a run has ended. Arguments: the run, and the reason why it has no result, or "".
RunHook = Callable[[R, str], None]


class Runs(Generic[R]):
    """Planned runs, each with its own directory in a common folder.

    Args:
        runs: The planned runs, which have different names.
        folder: The common folder.
        metric: The metric that progress lines show.

    Attributes:
        runs: The planned runs by name.
        records: The ended runs by name. Runs of an earlier command count only if they finished or were stopped early.
    """

    def __init__(self, runs: Iterable[R], folder: Path, metric: str) -> None:
        self.runs = {run.name: run for run in runs}
        self.folder, self.metric = folder, metric
        self.records: dict[str, RunRecord] = {}

    @property
    def waiting(self) -> list[R]:
        """The runs that have not ended."""
        return [run for run in self.runs.values() if run.name not in self.records]

    @property
    def finished(self) -> dict[str, RunRecord]:
        """The runs that have finished, by name."""
        return {name: record for name, record in self.records.items() if record.status == FINISHED}

    @property
    def failed(self) -> dict[str, str]:
        """The reasons of the runs that failed, by name."""
        return {name: record.reason for name, record in self.records.items() if record.status == FAILED}

    def config(self, run: R) -> dict[str, Scalar]:
        """Return the flat run config of a run, with its directory."""
        return add_directory(run.config, self.folder / run.name)

    def metric_of(self, run: R) -> str:
        """Return the metric that a run's progress line shows."""
        return self.metric

    def value(self, run: R, record: RunRecord) -> float | None:
        """Return the value of the run's metric for its final model."""
        return record.final(self.metric_of(run))

    def take(self) -> None:
        """Take over the runs that an earlier command finished, and delete the directories of all other planned runs.

        Raises:
            ConfigError: A run in the folder has finished with another config, engine or number of clients.
        """
        for run in self.runs.values():
            try:
                record = read_run(self.folder / run.name)
            except ConfigError:
                continue
            if record.status not in (FINISHED, STOPPED):
                continue
            unlike = record.unlike(self.config(run), _FREE)
            if result := record.result:
                recorded = {"engine": result.get("engine", IN_PROCESS), "clients": result.get("clients")}
                unlike += [key for key, value in recorded.items() if value != getattr(run, key)]
            if unlike:
                got = f"a run in {record.path} that has finished with another {', '.join(unlike)}"
                hint = "set --out to another directory, or delete this run"
                raise ConfigError("--out", got=got, allowed="a directory with runs of the same plan", hint=hint)
            self.records[run.name] = record
        for run in self.waiting:
            shutil.rmtree(self.folder / run.name, ignore_errors=True)

    def make(self, start: Callable[[RunHook[R]], object], show: Callable[[str], None], option: str = "") -> None:
        """Compute the waiting runs.

        Args:
            start: A function that computes the waiting runs. Its argument is the function to call after each run.
            show: A function that shows the progress line of an ended run.
            option: The option with which the user can repeat the command to continue after Ctrl-C.

        Raises:
            RunsInterruptedError: The user pressed Ctrl-C. The ended runs are kept.
        """
        try:
            if self.waiting:
                start(lambda run, reason: show(self.end(run, reason)))
        except KeyboardInterrupt:
            count = f"{len(self.finished)} of {len(self.runs)} runs have finished"
            raise RunsInterruptedError(f"interrupted: {count}; the same command{option} continues") from None

    def end(self, run: R, reason: str = "") -> str:
        """Record that a run has ended. If the run wrote neither a result nor a reason, write a reason.

        Args:
            run: The run.
            reason: The reason why the run has no result. Empty: unknown, or there is a result.

        Returns:
            The progress line.
        """
        path = self.folder / run.name
        try:
            record = read_run(path)
            if record.status == UNFINISHED:
                leave_reason(path, reason or "the run ended without a result")
                record = read_run(path)
        except ConfigError as error:
            record = RunRecord(run.name, path, FAILED, reason or str(error), {}, dict(run.config), [])
        self.records[run.name] = record
        facts = record.facts
        value = f"{self.metric_of(run)} {format_metric(self.value(run, record))}"
        outcome = " ".join(record.reason.split()) if record.status == FAILED else value
        heading = f"{len(self.records)}/{len(self.runs)}  {record.status:<8}  {run.title}"
        line = f"{heading}  {outcome}  {facts['seconds']:.1f} s"
        missing = facts["rounds_with_missing_sites"]
        return f"{line}  sites were missing in {missing} of {facts['rounds']} rounds" if missing else line
