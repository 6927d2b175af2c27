"""Runs an experiment and keeps its directory: runs/, experiment.toml, tables, curves and report.html."""

from __future__ import annotations

import fcntl
import shutil
import tomllib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from apps.config import SHOWING_KEYS, ConfigError, Scalar, parse_run_config
from problems.data import OWN, SPARSE_LOGISTIC, UNLABELLED, DataError, DataSpec
from problems.data.formats.readers import read
from problems.data.spec import in_data_set
from problems.errors import require
from problems.files import write_atomic
from simulations.arguments import Stack, add_directory
from simulations.engines.launch import IN_PROCESS
from simulations.engines.workers import WorkerTask, run_all
from simulations.experiments.expansion import Expansion
from simulations.experiments.lines import PlannedRun
from simulations.experiments.reports import claims, page, tables
from simulations.experiments.reports.figures import draw
from simulations.results.compare import csv_text
from simulations.results.output import format_metric
from simulations.results.records import FAILED, FINISHED, RunRecord, RunsInterruptedError, leave_reason, read_run

_FREE = (*SHOWING_KEYS, "data-dir")  # a directory and its data may be moved
_OF_FINISHED = ("runs.csv", "curves.png", "curves.svg")  # which are there if a run has finished


@dataclass(frozen=True)
class ReproductionOutcome:
    """What a reproduction found. ``failed``: run -> reason."""

    expansion: Expansion
    out: Path
    rows: list[tables.Row]
    judged: list[claims.Judged]
    failed: dict[str, str]

    def text(self) -> str:
        """The table, and which files there are in which folder."""
        there = [name for name in _OF_FINISHED if (self.out / name).exists()]
        files = ", ".join(["table.csv", "table.md", "report.html", *there])
        return f"{tables.as_text(self.expansion, self.rows)}\n{files}: in {self.out}"

    def json(self) -> dict[str, Any]:
        """What ``--json`` prints."""
        tuned = self.expansion.tuned
        return {
            "experiment": self.expansion.experiment.name,
            "profile": self.expansion.profile,
            "seeds": self.expansion.seeds,
            "out": str(self.out),
            "tuned": [] if tuned is None else [{"at": c.at, "values": c.values} for c in tuned.chosen],
            "rows": self.rows,
            "claims": claims.as_json(self.judged),
            "failed": self.failed,
        }


class Runs:
    """Runs of an experiment, in a folder of its directory ``out``.

    Args:
        stack: clients that a federation computes as one, at most.
    """

    def __init__(
        self, expansion: Expansion, out: Path, runs: Sequence[PlannedRun], folder: str, stack: Stack = 1
    ) -> None:
        self.expansion, self.stack = expansion, stack
        self.out = out.expanduser().resolve()
        self.folder = self.out / folder
        self.runs = {run.name: run for run in runs}
        self.records: dict[str, RunRecord] = {}  # of finished runs
        self.failed: dict[str, str] = {}  # run -> reason

    @contextmanager
    def open(self) -> Iterator[None]:
        """Lock the directory for this process until the end, and take over the runs that have finished there.

        Raises:
            ConfigError: it holds something else, or another process uses it.
        """
        try:
            self.out.mkdir(parents=True, exist_ok=True)
            self._check_same()
        except OSError as error:
            got = f"{self.out}, which cannot be created ({error.strerror})"
            raise ConfigError("--out", got=got, allowed="a folder that can be written to", hint="choose one") from None
        with (self.out / ".lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                got, hint = f"{self.out}, where another process is reproducing", "choose another, or wait for its end"
                raise ConfigError("--out", got=got, allowed="one process a directory", hint=hint) from None
            for run in self.runs.values():
                self._take(run)
            for run in self.waiting:
                shutil.rmtree(self._path(run), ignore_errors=True)
            self.folder.mkdir(exist_ok=True)
            of = self.expansion
            reproduced: dict[str, Scalar] = {"profile": of.profile, "seeds": of.seeds, "data-dir": of.data_dir}
            write_atomic(self.out / "experiment.toml", of.experiment.toml(reproduced).encode())
            yield

    @property
    def waiting(self) -> list[PlannedRun]:
        """The runs that have not finished, and have not failed in this process."""
        return [run for run in self.runs.values() if not {run.name} & {*self.records, *self.failed}]

    def make(self, jobs: int, say: Callable[[str], None], leave: Callable[[], object]) -> None:
        """Make the runs that are waiting.

        Args:
            jobs: runs at a time.
            say: called with a line for each run that has ended.
            leave: called after Ctrl-C.

        Raises:
            DataError: data sets of theirs cannot be read; the message names them all, and nothing has been run.
            RunsInterruptedError: Ctrl-C; what has finished is kept.
        """

        def ended(task: WorkerTask, reason: str) -> None:
            say(self._ended(self.runs[task.name], reason))

        tasks = [self._task(run) for run in self.waiting]
        order = list(dict.fromkeys(task.data for task in tasks))
        try:
            _check_readable(parse_run_config(self._config(run)).data for run in self.waiting)
            run_all(sorted(tasks, key=lambda task: order.index(task.data)), jobs, ended)
        except KeyboardInterrupt:
            leave()
            count = f"{len(self.records)} of {len(self.runs)} runs have finished"
            raise RunsInterruptedError(f"interrupted: {count}; the same command goes on") from None

    def metrics_of(self, run: PlannedRun) -> list[str]:
        """The metrics that the run must have; its progress line shows the first."""
        return self.expansion.experiment.metrics

    def _path(self, run: PlannedRun) -> Path:
        return self.folder / run.name

    def _config(self, run: PlannedRun) -> dict[str, Scalar]:
        return add_directory(run.config, self._path(run))

    def _task(self, run: PlannedRun) -> WorkerTask:
        config = self._config(run)
        data = f"{run.line.clients} clients of {parse_run_config(config).data}"
        line, metrics = run.line, tuple(self.metrics_of(run))
        injected = dict[str, float](line.injected.items())
        return WorkerTask(run.name, line.run.engine, line.clients, config, metrics, data, self.stack, injected)

    def _check_same(self) -> None:
        """Raises ConfigError: the directory holds something else."""
        path = self.out / "experiment.toml"
        if not any(self.out.iterdir()):
            return
        if not path.exists():
            got = f"{self.out}, which is not empty and holds no reproduction"
            raise ConfigError("--out", got=got, allowed="a new directory, or a reproduction's", hint="choose another")
        try:
            before = tomllib.loads(path.read_text("utf-8"))
            was = {"experiment": before["name"], "profile": before["reproduced"]["profile"]}
        except (ValueError, KeyError, TypeError) as error:
            got = f"{path}, which cannot be read ({error})"
            allowed = "a reproduction's copy of its experiment"
            raise ConfigError("--out", got=got, allowed=allowed, hint="choose another") from None
        now = {"experiment": self.expansion.experiment.name, "profile": self.expansion.profile}
        if was != now:
            got = f"{self.out}, which holds experiment {was['experiment']!r}, profile {was['profile']!r}"
            allowed = f"{now['experiment']!r}, {now['profile']!r}"
            raise ConfigError("--out", got=got, allowed=allowed, hint="choose another")

    def _take(self, run: PlannedRun) -> None:
        """Take over a run if it has finished.

        Raises:
            ConfigError: it has finished with another config, engine or number of clients.
        """
        try:
            record = read_run(self._path(run))
        except ConfigError:
            return
        if record.status != FINISHED:
            return
        unlike = record.unlike(self._config(run), _FREE)
        if record.result.get("engine", IN_PROCESS) != run.line.run.engine:
            unlike.append("engine")
        if record.result.get("clients") != run.line.clients:
            unlike.append("clients")
        if unlike:
            got = f"a run in {self._path(run)} that has finished with another {', '.join(unlike)}"
            raise ConfigError("--out", got=got, allowed="the same", hint="choose another directory, or delete this run")
        self.records[run.name] = record

    def _ended(self, run: PlannedRun, reason: str) -> str:
        """Record how a run ended; returns its progress line."""
        try:
            record = read_run(self._path(run))
            seconds = f"  {record.facts['seconds']:.1f} s"
        except ConfigError as error:
            record, seconds, reason = None, "", reason or str(error)
        if record is not None and record.status == FINISHED:
            self.records[run.name] = record
            metric = self.metrics_of(run)[0]
            status, outcome = FINISHED, f"{metric} {format_metric(record.final(metric))}"
        else:
            reason = reason or (record.reason if record else "") or "it left no result"
            self.failed[run.name] = reason
            status, outcome = FAILED, " ".join(reason.split())
            if not (self._path(run) / "failure.json").exists():  # the run could not write it itself
                leave_reason(self._path(run), reason)
        return f"{len(self.runs) - len(self.waiting)}/{len(self.runs)}  {status:<8}  {run.title}  {outcome}{seconds}"


class Reproduction(Runs):
    """All runs of an experiment, and what they show."""

    def __init__(self, expansion: Expansion, out: Path, stack: Stack = 1) -> None:
        super().__init__(expansion, out, expansion.runs, "runs", stack)

    @contextmanager
    def open(self) -> Iterator[None]:
        """As `Runs.open`, and save the chosen values there, so that the same command continues with them."""
        require("reproduce", "reports", "jinja2", "matplotlib")
        with super().open():
            if self.expansion.tuned is not None:
                write_atomic(self.out / "tuned.toml", self.expansion.tuned.toml().encode())
            yield

    def run(self, jobs: int, say: Callable[[str], None]) -> ReproductionOutcome:
        """Make the runs that are waiting, as `Runs.make` does, and write the results, also after Ctrl-C.

        Raises:
            DataError: a data set cannot be read; nothing has been run, and there are no results.
            RunsInterruptedError: Ctrl-C; the results are those of the runs that have finished.
        """
        self.make(jobs, say, self.write)
        return self.write()

    def write(self) -> ReproductionOutcome:
        """Write the tables, the figure and the page of the runs that have finished."""
        rows = tables.rows(self.expansion, self.records)
        write_atomic(self.out / "table.csv", csv_text([asdict(row) for row in rows]).encode())
        failed = {self.runs[name].title: reason for name, reason in self.failed.items()}
        judged = claims.judge(self.expansion, rows, self.records)
        missing = len(self.waiting)
        text = tables.as_markdown(self.expansion, rows, claims.as_markdown(judged), failed, missing)
        write_atomic(self.out / "table.md", text.encode())
        for name in _OF_FINISHED:
            (self.out / name).unlink(missing_ok=True)
        if raw := tables.run_rows(self.expansion, self.records):
            write_atomic(self.out / "runs.csv", csv_text(raw).encode())
        draw(self.expansion, self.records, self.out)
        drawn = self.out / "curves.svg"
        curves = drawn.read_text("utf-8") if drawn.exists() else ""
        html = page.as_html(self.expansion, self.records, rows, judged, curves, failed, missing)
        write_atomic(self.out / "report.html", html.encode())
        return ReproductionOutcome(self.expansion, self.out, rows, judged, self.failed)


def _check_readable(specs: Iterable[DataSpec]) -> None:
    """Read each data set whose rows are on this machine once, and refuse all that are missing or damaged."""
    here = [spec for spec in specs if spec.partition != OWN and spec.dataset not in (*UNLABELLED, SPARSE_LOGISTIC)]
    faults = []
    for spec in {(one.dataset, one.data_dir, one.label_column, one.feature_columns): one for one in here}.values():
        try:
            read(spec)
        except DataError as error:
            faults.append(in_data_set(error, spec))
    if faults:
        raise DataError.join(faults)
