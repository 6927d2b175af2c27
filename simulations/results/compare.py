"""The comparison of finished, stopped, failed and unfinished runs by their directories."""

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

UNCOMPARED = ("pauc_fpr30_raw", "pauc_fpr50_raw", "accuracy")  # left out of the table for people
MISSING = " (sites missing)"
_NO_VERDICT = "no verdict: sites were missing"


@dataclass(frozen=True)
class Comparison:
    """A comparison of runs."""

    runs: list[RunRecord]
    # the name of each group of runs, by its label; empty: the labels are the names
    names: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, paths: Sequence[Path], names: Sequence[str] = ()) -> Comparison:
        """Read runs and name them after their folders, or by their paths if two folders have the same name.

        Args:
            paths: The run directories.
            names: A name for each group of runs that differ only in their seed, in the order of each group's first run.
                Empty: the differing config keys name a group.

        Raises:
            ConfigError: A directory contains no run (the message names the first such directory), or the groups do not
                have different names.
        """
        folders = [path.resolve().name for path in paths]
        unique = len(set(folders)) == len(folders)
        found = cls([read_run(path, name if unique else str(path)) for path, name in zip(paths, folders, strict=True)])
        labels = list(dict.fromkeys(map(found.label, found.runs)))
        if names and (len(names) != len(labels) or len(set(names)) < len(names)):
            got = f"{len(names)}: {', '.join(names)}"
            allowed = f"{len(labels)} different names, for: {'; '.join(labels)}"
            raise ConfigError("--name", got=got, allowed=allowed, hint="set --name once for each group, in this order")
        return cls(found.runs, dict(zip(labels, names, strict=True)) if names else {})

    @cached_property
    def differing(self) -> list[str]:
        """The config keys, and ``clients``, whose values differ between runs."""
        configs = [{key: run.setting(key) for key in run.config if key not in UNTOLD} for run in self.runs]
        found = differing(configs)
        clients = {run.setting("clients") for run in self.runs} - {None}  # unknown for an unfinished run
        return [*found, "clients"] if len(clients) > 1 else found

    @cached_property
    def _told(self) -> list[str]:
        """The keys of `differing` in which any run departs from the defaults of its strategy."""
        return [
            key
            for key in self.differing
            if key in ("strategy", "clients")
            or any(run.setting(key) not in (None, defaults(run.config.get("strategy")).get(key)) for run in self.runs)
        ]

    @cached_property
    def metrics(self) -> list[str]:
        """All metrics of the runs, known metrics first and in their order."""
        found = dict.fromkeys(name for run in self.runs for line in run.lines for name in evaluation(line))
        return sorted(found, key=lambda name: METRICS.index(name) if name in METRICS else len(METRICS))

    @property
    def compared(self) -> list[str]:
        """The `metrics` that people compare, including metrics of views."""
        return [name for name in self.metrics if not name.startswith(UNCOMPARED)]

    @cached_property
    def _labels_with_missing(self) -> set[str]:
        return {self._label(run) for run in self.runs if run.dropped}

    @cached_property
    def _some_select(self) -> bool:
        return any(run.selected is not None for run in self.runs)

    def label(self, run: RunRecord) -> str:
        """Return the label of a run and its other seeds: their differing keys, and whether any had missing sites.

        Returns:
            The group's name, or else a text such as ``learning-rate=0.1  batch-size=8``.
        """
        label = self._label(run)
        label += MISSING if label in self._labels_with_missing else ""
        return self.names.get(label, label)

    def _label(self, run: RunRecord) -> str:
        keys = [key for key in self._told if key != "seed"]
        parts = [f"{key}={format_cell(run.setting(key))}" for key in keys if run.setting(key) is not None]
        text = "  ".join(parts) or f"{run.setting('strategy')} on {run.config.get('dataset')}"
        return text if run.status == FINISHED else f"{text} ({run.status})"

    def rows(self) -> list[dict[str, Any]]:
        """Return a row for each run: name, status, facts, `RunRecord.metrics` and, under ``config``, differing keys."""
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
            metric: The metric whose differences from the first group are added, if groups have several common seeds.
                None: no differences.
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
        found = [Table("", [*facts, *self.compared, "MB up", "MB down", "seconds"], cells)]
        if keys := [key for key in self._told if key not in ("strategy", "dataset", "seed")]:
            settings = [[row["run"], *(row["config"][key] for key in keys)] for row in rows]
            found.append(Table("what differs", ["run", *keys], settings))
        if metric is not None and (gaps := self.differences(metric)):
            first = next(iter(gaps.values()))[0]
            words = ("above", "within the noise", "below")
            verdicts = [
                [label, *gap.cells, _NO_VERDICT if MISSING in label + first else gap.verdict(*words)]
                for label, (_, gap) in gaps.items()
            ]
            caption = f"{metric}, seed by seed minus {first} (paired t-test)"
            found.append(Table(caption, ["runs", "difference", *COLUMNS], verdicts))
        return found

    @property
    def reasons(self) -> list[str]:
        """Lines with the reasons of runs without a result, the selected rounds, and the missing sites."""
        ended = [(run, " ".join(run.reason.split())) for run in self.runs if run.reason]
        found = [f"{run.name} {run.status}: {reason}" for run, reason in ended]
        chosen = [(run.name, run.selection) for run in self.runs if run.selection]
        found += [f"{name}: {selection}; its metrics are measured on the test rows" for name, selection in chosen]
        return found + [
            f"{run.name} {run.status} with sites missing: {in_words(run.dropped, run.facts['rounds'], run.site_names)}"
            for run in self.runs
            if run.dropped
        ]

    def text(self, metric: str | None = None) -> str:
        """Return the `tables` and `reasons` for a terminal."""
        blocks = [one.text() for one in self.tables(metric)]
        return "\n\n".join([*blocks, *(["\n".join(self.reasons)] if self.reasons else [])])

    def csv(self) -> str:
        """Return an unrounded row for each run. Config keys with their own column are not repeated."""
        return csv_text([{**row, **config, **row} for row in self.rows() for config in [row.pop("config")]])

    def choose_metric(self, metric: str | None) -> str | None:
        """Return the metric to draw: the requested metric, else the runs' first; None if they have none.

        Raises:
            ConfigError: No run has the metric.
        """
        if metric is not None and metric not in self.metrics:
            allowed = ", ".join(self.metrics) or "none, since no round was evaluated"
            raise ConfigError(
                "--metric",
                got=repr(metric),
                allowed=f"metrics of these runs: {allowed}",
                hint="remove --metric to draw the first",
            )
        return metric or next(iter(self.metrics), None)

    def save(self, folder: Path, metric: str | None) -> None:
        """Write compare.csv and, with a metric, compare.png. Files of an earlier comparison are replaced.

        Args:
            metric: The metric to draw. None: no figure.

        Raises:
            ConfigError: The folder cannot be created, or has files of these names from another source.
            MissingExtraError: There is a metric to draw, but Matplotlib is not installed.
        """
        if metric is not None:
            require("--out", "reports", "matplotlib")
        make_out(folder)
        text = self.csv()
        check_target(folder / "compare.csv", lambda found: found.startswith(b"run,path,status,reason,"))
        if not (folder / "compare.csv").exists():
            check_target(folder / "compare.png", lambda found: False)
        write_atomic(folder / "compare.csv", text.encode())
        (folder / "compare.png").unlink(missing_ok=True)
        if metric is not None:
            draw({f"{RANKING.get(metric, metric)}{self.where(metric)}": self.curves(metric)}, folder / "compare.png")

    def where(self, *metrics: str) -> str:
        """Return the rows on which metrics were measured, such as " on the test set"; empty without held-out rows."""
        rows = dict.fromkeys(rows_in_words(run.config) for run in self.runs)
        return f" on {' or '.join(rows)}" if {*metrics} - {*OF_TRAINING} else ""

    def differences(self, metric: str) -> dict[str, tuple[str, Difference]]:
        """Return a metric's differences from the first group of runs (`RunRecord.metrics`), over common seeds.

        Returns:
            The first group's label and the difference, by label, for groups of finished runs with finite values that
                have at least two seeds in common with the first group.
        """
        ends: dict[str, dict[int, float]] = {}
        for run in self.runs:
            if metric in run.metrics and run.status == FINISHED:
                ends.setdefault(self.label(run), {})[run.facts["seed"]] = run.metrics[metric]
        first, *others = ends or [""]
        found = {label: difference(ends[label], ends[first]) for label in others}
        return {label: (first, gap) for label, gap in found.items() if gap is not None and gap.seeds > 1}

    def curves(self, metric: str) -> dict[str, list[dict[int, float]]]:
        """Return the curves of runs that differ only in their seed, by label.

        Returns:
            The curves as metrics by round. Runs that were never evaluated by the metric are excluded.
        """
        groups: dict[str, list[dict[int, float]]] = {}
        for run in self.runs:
            if run.curve(metric):
                groups.setdefault(self.label(run), []).append(run.curve(metric))
        return groups


def csv_text(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return comma-separated values under the keys of all rows. None is an empty cell, booleans are in lower case.

    Args:
        rows: The rows. A missing key is an empty cell.
    """
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, list(dict.fromkeys(key for row in rows for key in row)), lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow({name: str(cell).lower() if isinstance(cell, bool) else cell for name, cell in row.items()})
    return buffer.getvalue()
