"""The command ``compare``: tables of several runs' metrics, costs and differing run-config keys, and their curves.

Runs that differ only in the seed form a group. The runs need not have finished.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from apps.config import ConfigError
from apps.run_directory.curves import RANKING, rows_in_words
from apps.run_directory.missing import in_words
from problems.errors import require
from problems.files import write_atomic
from simulations.results.figure import draw
from simulations.results.output import Table, format_cell, format_megabytes, metric_cell
from simulations.results.paired import COLUMNS, Difference, difference
from simulations.results.records import (
    FINISHED,
    METRICS,
    OF_TRAINING,
    UNTOLD,
    RunRecord,
    defaults,
    differing,
    evaluation,
    read_run,
)
from simulations.results.target import check_target, make_out

UNCOMPARED = ("pauc_fpr30_raw", "pauc_fpr50_raw", "accuracy")  # metrics that the table for people omits
INNER = "inner"  # the view of local-scgdam
MISSING = " (sites missing)"
_NO_VERDICT = "no verdict: sites were missing"


@dataclass(frozen=True)
class Comparison:
    """A comparison of runs.

    Attributes:
        runs: The runs.
        names: The name of each group of runs, by the group's label. Empty: the labels are the names.
    """

    runs: list[RunRecord]
    names: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, paths: Sequence[Path], names: Sequence[str] = ()) -> Comparison:
        """Read runs and name them after their folders, or by their paths if two folders have the same name.

        Args:
            paths: The run directories.
            names: A name for each group of runs, in the order of each group's first run. Empty: a group's name is the
                text of its differing config keys.

        Raises:
            ConfigError: A directory contains no run, or ``names`` has not one different name for each group.
        """
        folders = [path.resolve().name for path in paths]
        unique = len(set(folders)) == len(folders)
        comparison = cls(
            [read_run(path, name if unique else str(path)) for path, name in zip(paths, folders, strict=True)]
        )
        labels = list(dict.fromkeys(map(comparison.label, comparison.runs)))
        if names and (len(names) != len(labels) or len(set(names)) < len(names)):
            got = f"{len(names)}: {', '.join(names)}"
            allowed = f"{len(labels)} different names, for: {'; '.join(labels)}"
            raise ConfigError("--name", got=got, allowed=allowed, hint="set --name once for each group, in this order")
        return cls(comparison.runs, dict(zip(labels, names, strict=True)) if names else {})

    @cached_property
    def differing(self) -> list[str]:
        """The config keys, and ``clients``, whose values differ between runs."""
        configs = [{key: run.setting(key) for key in run.config if key not in UNTOLD} for run in self.runs]
        keys = differing(configs)
        clients = {run.setting("clients") for run in self.runs} - {None}  # None: an unfinished run
        return [*keys, "clients"] if len(clients) > 1 else keys

    @cached_property
    def _shown(self) -> list[str]:
        """The keys of `differing` that the tables show: some run's value is not the default of its strategy."""
        return [
            key
            for key in self.differing
            if key in ("strategy", "clients")
            or any(run.setting(key) not in (None, defaults(run.config.get("strategy")).get(key)) for run in self.runs)
        ]

    @cached_property
    def metrics(self) -> list[str]:
        """All metrics of the runs, in the order of `METRICS`, followed by other metrics."""
        names = dict.fromkeys(name for run in self.runs for line in run.lines for name in evaluation(line))
        return sorted(names, key=lambda name: METRICS.index(name) if name in METRICS else len(METRICS))

    @property
    def compared(self) -> list[str]:
        """The `metrics` that the table for people shows. A view's metrics need a run that shows the view in its log."""
        views = () if any(run.setting("scgdam.headline") == INNER for run in self.runs) else (f"_{INNER}",)
        return [name for name in self.metrics if not name.startswith(UNCOMPARED) and not name.endswith(views)]

    @cached_property
    def _labels_with_missing(self) -> set[str]:
        return {self._label(run) for run in self.runs if run.dropped}

    @cached_property
    def _some_select(self) -> bool:
        return any(run.selected is not None for run in self.runs)

    def label(self, run: RunRecord) -> str:
        """Return the label of a run's group: its name, or a text such as ``learning-rate=0.1  batch-size=8``.

        The text also mentions if any run of the group had missing sites.
        """
        label = self._label(run)
        label += MISSING if label in self._labels_with_missing else ""
        return self.names.get(label, label)

    def _label(self, run: RunRecord) -> str:
        keys = [key for key in self._shown if key != "seed"]
        parts = [f"{key}={format_cell(run.setting(key))}" for key in keys if run.setting(key) is not None]
        text = "  ".join(parts) or f"{run.setting('strategy')} on {run.config.get('dataset')}"
        return text if run.status == FINISHED else f"{text} ({run.status})"

    def rows(self) -> list[dict[str, Any]]:
        """Return a row for each run: name, status, facts, metrics and, under ``config``, the differing keys."""
        return [
            {
                "run": run.name,
                "path": str(run.path),
                "status": run.status,
                "reason": run.reason,
                **run.facts,
                **({"selected": run.selected} if self._some_select else {}),
                **{name: run.metrics.get(name) for name in self.metrics},
                "config": {key: run.setting(key) for key in self.differing},
            }
            for run in self.runs
        ]

    def tables(self, metric: str | None = None) -> list[Table]:
        """Return a table of the runs, and a table of their differing config keys.

        Args:
            metric: The metric of a third table, of each group's difference from the first group. It requires groups
                with several common seeds. None: no such table.
        """
        rows = self.rows()
        facts = ["run", "status", "strategy", "dataset", "seed", "rounds", *(["selected"] * self._some_select)]
        cells = [
            [
                *(row[name] for name in facts),
                *(metric_cell(row[name]) for name in self.compared),
                *((format_megabytes(row[name]), row[name]) for name in ("bytes_up", "bytes_down")),
                (format_cell(row["seconds"], 1), row["seconds"]),
            ]
            for row in rows
        ]
        tables = [Table("", [*facts, *self.compared, "MB up", "MB down", "seconds"], cells)]
        if keys := [key for key in self._shown if key not in ("strategy", "dataset", "seed")]:
            settings = [[row["run"], *(row["config"][key] for key in keys)] for row in rows]
            tables.append(Table("what differs", ["run", *keys], settings))
        if metric is not None and (gaps := self.differences(metric)):
            first = next(iter(gaps.values()))[0]
            words = ("above", "within the noise", "below")
            verdicts = [
                [label, *gap.cells, _NO_VERDICT if MISSING in label + first else gap.verdict(*words)]
                for label, (_, gap) in gaps.items()
            ]
            caption = f"{metric}, seed by seed minus {first} (paired t-test)"
            tables.append(Table(caption, ["runs", "difference", *COLUMNS], verdicts))
        return tables

    @property
    def reasons(self) -> list[str]:
        """Lines about runs without a result, selected rounds, and missing sites."""
        ended = [(run, " ".join(run.reason.split())) for run in self.runs if run.reason]
        lines = [f"{run.name} {run.status}: {reason}" for run, reason in ended]
        chosen = [(run.name, run.selection) for run in self.runs if run.selection]
        lines += [f"{name}: {selection}; its metrics are measured on the test rows" for name, selection in chosen]
        return lines + [
            f"{run.name} {run.status} with sites missing: {in_words(run.dropped, run.facts['rounds'], run.site_names)}"
            for run in self.runs
            if run.dropped
        ]

    def text(self, metric: str | None = None) -> str:
        """Return the `tables` and `reasons` for a terminal."""
        blocks = [table.text() for table in self.tables(metric)]
        return "\n\n".join([*blocks, *(["\n".join(self.reasons)] if self.reasons else [])])

    def csv(self) -> str:
        """Return `rows` as the text of compare.csv. A config key that is also a fact, such as ``seed``, occurs once."""
        return csv_text([{**row, **config, **row} for row in self.rows() for config in [row.pop("config")]])

    def choose_metric(self, metric: str | None) -> str | None:
        """Return the metric to draw.

        Args:
            metric: The requested metric. None: the first of `metrics`.

        Returns:
            The metric. None: no run has any metrics.

        Raises:
            ConfigError: No run has the requested metric.
        """
        if metric is not None and metric not in self.metrics:
            allowed = ", ".join(self.metrics) or "none, since no round was evaluated"
            raise ConfigError(
                "--metric",
                got=repr(metric),
                allowed=f"metrics of these runs: {allowed}",
                hint="set --metric to a metric of the runs, or remove --metric",
            )
        return metric or next(iter(self.metrics), None)

    def save(self, folder: Path, metric: str | None) -> None:
        """Write compare.csv and, with a metric, compare.png. Files of an earlier comparison are replaced.

        Args:
            folder: The folder of the files.
            metric: The metric to draw. None: no compare.png.

        Raises:
            ConfigError: The folder cannot be created, or a file of this name exists that ``compare`` did not write.
            MissingExtraError: There is a metric to draw, but Matplotlib is not installed.
        """
        if metric is not None:
            require("--out", "reports", "matplotlib")
        make_out(folder)
        text = self.csv()
        check_target(folder / "compare.csv", lambda content: content.startswith(b"run,path,status,reason,"))
        if not (folder / "compare.csv").exists():
            check_target(folder / "compare.png", lambda content: False)
        write_atomic(folder / "compare.csv", text.encode())
        (folder / "compare.png").unlink(missing_ok=True)
        if metric is not None:
            draw({f"{RANKING.get(metric, metric)}{self.where(metric)}": self.curves(metric)}, folder / "compare.png")

    def where(self, *metrics: str) -> str:
        """Return the rows on which metrics were measured, such as " on the test set".

        Empty: all metrics were measured on training rows.
        """
        rows = dict.fromkeys(rows_in_words(run.config) for run in self.runs)
        return f" on {' or '.join(rows)}" if {*metrics} - {*OF_TRAINING} else ""

    def differences(self, metric: str) -> dict[str, tuple[str, Difference]]:
        """Return each group's difference of a metric from the first group, over common seeds.

        Returns:
            By group label: the first group's label, and the difference. Only for groups of finished runs with finite
            metrics and at least two seeds in common with the first group.
        """
        ends: dict[str, dict[int, float]] = {}
        for run in self.runs:
            if metric in run.metrics and run.status == FINISHED:
                ends.setdefault(self.label(run), {})[run.facts["seed"]] = run.metrics[metric]
        first, *further = ends or [""]
        gaps = {label: difference(ends[label], ends[first]) for label in further}
        return {label: (first, gap) for label, gap in gaps.items() if gap is not None and gap.seeds > 1}

    def curves(self, metric: str) -> dict[str, list[dict[int, float]]]:
        """Return the curves of each group's runs, by group label.

        Returns:
            Each curve as metric by round. Runs without the metric are excluded.
        """
        groups: dict[str, list[dict[int, float]]] = {}
        for run in self.runs:
            if run.curve(metric):
                groups.setdefault(self.label(run), []).append(run.curve(metric))
        return groups


def csv_text(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return rows as csv text, with a column for each key. Booleans are in lower case.

    Args:
        rows: The rows. None and missing keys become empty cells.
    """
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, list(dict.fromkeys(key for row in rows for key in row)), lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow({name: str(cell).lower() if isinstance(cell, bool) else cell for name, cell in row.items()})
    return buffer.getvalue()
