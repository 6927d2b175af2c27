"""The reproduction of an experiment: computes all its runs, and writes tables, curves and report.html about them.

Finished runs stay in the directory, so an interrupted reproduction continues if the user repeats the command.
"""

from __future__ import annotations

import fcntl
import tomllib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from apps.config import ConfigError, Scalar, parse_run_config
from problems.data import OWN, SPARSE_LOGISTIC, UNLABELLED, DataError, DataSpec
from problems.data.formats.readers import read
from problems.data.spec import in_data_set
from problems.errors import require
from problems.files import write_atomic
from simulations.arguments import Stack
from simulations.engines.planned import RunHook, Runs
from simulations.engines.workers import WorkerTask, run_all
from simulations.experiments.expansion import Expansion
from simulations.experiments.lines import PlannedRun
from simulations.experiments.reports import claims, page, tables
from simulations.experiments.reports.figures import draw
from simulations.results.compare import csv_text
from simulations.results.records import RunsInterruptedError
from simulations.results.target import make_out

_OF_FINISHED = ("runs.csv", "curves.png", "curves.svg")  # files that exist only if a run has finished


@dataclass(frozen=True)
class ReproductionOutcome:
    """The outcome of a reproduction.

    Attributes:
        expansion: The experiment.
        out: The reproduction's directory.
        rows: The rows of the table.
        judged: The paper's claims with their verdicts.
        failed: The reasons of failed runs, by the run's name.
    """

    expansion: Expansion
    out: Path
    rows: list[tables.Row]
    judged: list[claims.Judged]
    failed: dict[str, str]

    def text(self) -> str:
        """Return the table, and a line with the names of the written files."""
        optional = [name for name in _OF_FINISHED if (self.out / name).exists()]
        files = ", ".join(["table.csv", "table.md", "report.html", *optional])
        shown = tables.results(self.rows, without=["difference"])
        return f"{shown.text()}\n{files}: in {self.out}"

    def json(self) -> dict[str, Any]:
        """Return the object that ``--json`` prints."""
        tuned = self.expansion.tuned
        return {
            "experiment": self.expansion.experiment.name,
            "profile": self.expansion.profile,
            "seeds": self.expansion.seeds,
            "out": str(self.out),
            "tuned": [] if tuned is None else [{"at": c.at, "values": c.values} for c in tuned.chosen],
            "rows": self.rows,
            "claims": self.judged,
            "failed": self.failed,
        }


class ExperimentRuns(Runs[PlannedRun]):
    """Runs of an experiment, in a folder of the reproduction's directory.

    Args:
        expansion: The experiment.
        out: The reproduction's directory.
        runs: The runs.
        folder: The name of the runs' folder in the directory.
        metric: The metric that progress lines show.
        stack: The maximum number of clients in one computation.
    """

    def __init__(
        self, expansion: Expansion, out: Path, runs: Sequence[PlannedRun], folder: str, metric: str, stack: Stack = 1
    ) -> None:
        self.out = out.expanduser().resolve()
        super().__init__(runs, self.out / folder, metric)
        self.expansion, self.stack = expansion, stack

    @contextmanager
    def open(self) -> Iterator[None]:
        """Lock the directory for this process, and take over its finished runs.

        Raises:
            ConfigError: The directory has content of another kind, or another process is using the directory.
        """
        make_out(self.out)
        self._check_same()
        with (self.out / ".lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                got = f"{self.out}, which another process is using"
                hint = "set --out to another directory, or wait for the other process to end"
                raise ConfigError("--out", got=got, allowed="one process for each directory", hint=hint) from None
            self.take()
            self.folder.mkdir(exist_ok=True)
            of = self.expansion
            reproduced: dict[str, Scalar] = {"profile": of.profile, "seeds": of.seeds, "data-dir": of.data_dir}
            write_atomic(self.out / "experiment.toml", of.experiment.toml(reproduced).encode())
            yield

    def run_all(self, jobs: int, show: Callable[[str], None]) -> None:
        """Compute the waiting runs, see `Runs.make`.

        Args:
            jobs: The number of runs at a time.
            show: A function that shows a progress line after each run.

        Raises:
            DataError: Data sets cannot be read. The message names all of them. No run has started.
            RunsInterruptedError: The user pressed Ctrl-C. Finished runs are kept.
        """

        def start(ended: RunHook[PlannedRun]) -> None:
            tasks = [self._task(run) for run in self.waiting]
            order = list(dict.fromkeys(task.data for task in tasks))
            _check_readable(parse_run_config(self.config(run)).data for run in self.waiting)
            tasks.sort(key=lambda task: order.index(task.data))
            run_all(tasks, jobs, lambda task, reason: ended(self.runs[task.name], reason))

        self.make(start, show)

    def metrics_of(self, run: PlannedRun) -> list[str]:
        """Return the metrics that a run must measure."""
        return list(dict.fromkeys([self.metric_of(run), *self.expansion.experiment.metrics]))

    def _task(self, run: PlannedRun) -> WorkerTask:
        config = self.config(run)
        data = f"{run.clients} clients of {parse_run_config(config).data}"
        injected = dict[str, float](run.line.injected.items())
        metrics = tuple(self.metrics_of(run))
        return WorkerTask(run.name, run.engine, run.clients, config, metrics, data, self.stack, injected)

    def _check_same(self) -> None:
        """Raise ConfigError if the directory has other content."""
        path = self.out / "experiment.toml"
        if not any(self.out.iterdir()):
            return
        if not path.exists():
            got = f"{self.out}, which is not empty and contains no reproduction"
            allowed = "a new directory, or the directory of the same reproduction"
            raise ConfigError("--out", got=got, allowed=allowed, hint="set --out to another directory")
        try:
            before = tomllib.loads(path.read_text("utf-8"))
            was = {"experiment": before["name"], "profile": before["reproduced"]["profile"], "delays": _delays(before)}
        except (ValueError, KeyError, TypeError) as error:
            got = f"{path}, which cannot be read ({error})"
            allowed = "the directory of the same reproduction"
            raise ConfigError("--out", got=got, allowed=allowed, hint="set --out to another directory") from None
        of = self.expansion
        delays = _delays(tomllib.loads(of.experiment.toml({})))
        now = {"experiment": of.experiment.name, "profile": of.profile, "delays": delays}
        if was != now:
            got, allowed = (
                f"experiment {have['experiment']!r}, profile {have['profile']!r}"
                + (f", injected = {have['delays']}" if was["delays"] != delays else "")
                for have in (was, now)
            )
            got = f"{self.out}, which contains {got}"
            raise ConfigError("--out", got=got, allowed=allowed, hint="set --out to another directory")


def _delays(content: Any) -> list[Any]:
    """Return the values of all keys ``injected`` in an experiment's file. Run configs do not contain these delays."""
    if isinstance(content, list):
        return [delays for part in content for delays in _delays(part)]
    if not isinstance(content, dict):
        return []
    own = [content["injected"]] if content.get("injected") else []
    return own + [delays for key, part in content.items() if key != "injected" for delays in _delays(part)]


class Reproduction(ExperimentRuns):
    """All runs of an experiment, and their results."""

    def __init__(self, expansion: Expansion, out: Path, stack: Stack = 1) -> None:
        super().__init__(expansion, out, expansion.runs, "runs", expansion.experiment.metrics[0], stack)

    @contextmanager
    def open(self) -> Iterator[None]:
        """Open the directory, and save the values chosen by ``--tune`` in it, so a repeated command uses them again."""
        require("reproduce", "reports", "jinja2", "matplotlib")
        with super().open():
            if self.expansion.tuned is not None:
                write_atomic(self.out / "tuned.toml", self.expansion.tuned.toml().encode())
            yield

    def run(self, jobs: int, show: Callable[[str], None]) -> ReproductionOutcome:
        """Compute the waiting runs, and write the results. After Ctrl-C the results contain the finished runs.

        Args:
            jobs: The number of runs at a time.
            show: A function that shows a progress line after each run.

        Raises:
            DataError: A data set cannot be read. No run has started, and no results are written.
            RunsInterruptedError: The user pressed Ctrl-C.
        """
        try:
            self.run_all(jobs, show)
        except RunsInterruptedError:
            self.write()
            raise
        return self.write()

    def write(self) -> ReproductionOutcome:
        """Write the tables, the figure and the page of the finished runs."""
        records = self.finished
        rows = tables.rows(self.expansion, records)
        write_atomic(self.out / "table.csv", csv_text([asdict(row) for row in rows]).encode())
        failed = {self.runs[name].title: reason for name, reason in self.failed.items()}
        judged = claims.judge(self.expansion, rows, records)
        missing = len(self.waiting)
        for name in _OF_FINISHED:
            (self.out / name).unlink(missing_ok=True)
        if raw := tables.run_rows(self.expansion, records):
            write_atomic(self.out / "runs.csv", csv_text(raw).encode())
        draw(self.expansion, records, self.out)
        drawn = self.out / "curves.svg"
        curves = drawn.read_text("utf-8") if drawn.exists() else ""
        texts = page.as_markdown_and_html(self.expansion, records, rows, judged, curves, failed, missing)
        for name, text in zip(("table.md", "report.html"), texts, strict=True):
            write_atomic(self.out / name, text.encode())
        return ReproductionOutcome(self.expansion, self.out, rows, judged, self.failed)


def _check_readable(specs: Iterable[DataSpec]) -> None:
    """Read each data set that has files on this machine, and raise one DataError about all that cannot be read."""
    in_files = [spec for spec in specs if spec.partition != OWN and spec.dataset not in (*UNLABELLED, SPARSE_LOGISTIC)]
    faults = []
    different = {(spec.dataset, spec.data_dir, spec.label_column, spec.feature_columns): spec for spec in in_files}
    for spec in different.values():
        try:
            read(spec)
        except DataError as error:
            faults.append(in_data_set(error, spec))
    if faults:
        raise DataError.join(faults)
