"""The results of ``--baselines``: a table, a verdict in one line, baselines.json and baselines.png."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from apps.evaluation.metric_names import OF_TIMES, better
from apps.run_directory.artifacts import MATPLOTLIB
from problems.delong import PairedDifference
from problems.errors import importable
from problems.files import write_atomic
from simulations.baselines.personal import show_models
from simulations.baselines.picture import draw_joining
from simulations.results.compare import UNCOMPARED
from simulations.results.output import Table, format_count, format_metric, metric_cell
from simulations.results.paired import format_signed

FEDERATED, POOLED = "federated", "all rows in one place"
AHEAD, LEVEL, BEHIND = "ahead of", "level with", "behind"
_STANDINGS = {1: AHEAD, 0: LEVEL, -1: BEHIND}


@dataclass(frozen=True)
class Result:
    """The result of the federated run or of a reference: a row of the table.

    Attributes:
        name: The name of the run or of the reference.
        rows: The number of training rows.
        positives: The number of positives among the training rows; with times, of rows with an event.
        metrics: The model's metrics. Empty if no model could be trained.
        reason: Why no model could be trained, or "".
        curve: The run's main metric by round. A reference's rounds are converted to rounds of the federated run.
        samples: The number of samples that the training processed. None: a solver found the optimum.
        penalty: The factor of the L2 penalty, as ``weight-decay`` sets it. None: there is no model.
        trained: The training procedure, as text for people.
        difference: The federated run's AUC, or concordance, minus this reference's, with the paired interval. None: not
            measured.
    """

    name: str
    rows: int
    positives: int
    metrics: dict[str, float]
    reason: str = ""
    curve: dict[int, float] = field(default_factory=dict)
    samples: int | None = None
    penalty: float | None = None
    trained: str = ""
    difference: PairedDifference | None = None

    @property
    def standing(self) -> str:
        """The federated run compared with this reference: "ahead of", "level with", "behind", or "" without a test."""
        tested = self.difference is not None and self.difference.low is not None
        return _STANDINGS[self.difference.sign] if tested and self.difference is not None else ""


@dataclass(frozen=True)
class Baselines:
    """The federated run and its references.

    Attributes:
        metric: The run's main metric.
        where: The rows on which the metrics were measured, as text.
        federated: The run.
        pooled: The reference that is trained on all sites' rows.
        alone: The reference of each site, trained on this site's rows.
        notes: Sentences about the references' samples, penalties and selection.
        interval: The 95 % interval of the run's main metric. None: the run has not measured it.
        personal: The entries ``site_models`` of result.json. Empty without fine-tuning.
    """

    metric: str
    where: str
    federated: Result
    pooled: Result
    alone: list[Result]
    notes: Sequence[str] = ()
    interval: tuple[float, float] | None = None
    personal: Sequence[dict[str, Any]] = ()

    @property
    def results(self) -> list[Result]:
        """The run and all references, the run first."""
        return [self.federated, self.pooled, *self.alone]

    def text(self) -> str:
        """Return the table, the notes and the verdict, for a terminal."""
        shared = [result.metrics for result in self.results if result.metrics]
        names = [name for name in shared[0] if all(name in metrics for metrics in shared)]
        names = [name for name in names if not name.startswith(UNCOMPARED) and not name.endswith("_raw")]
        cells = [
            [
                *(result.name, result.rows, result.positives),
                "optimum" if result.metrics and result.samples is None else result.samples,
                None if result.penalty is None else f"{result.penalty:{'.2g' if result.penalty < 10 else 'g'}}",
                *(metric_cell(result.metrics.get(name)) for name in names),
                *_difference_cells(result.difference),
                result.standing or None,
            ]
            for result in self.results
        ]
        counted = "events" if self.metric.startswith(OF_TIMES) else "positives"
        columns = ["trained", "rows", counted, "samples", "penalty", *names]
        columns += [f"federated {self.metric} minus reference", "95 % interval", "federated is"]
        table = Table(f"evaluated on {self.where}", columns, cells).text()
        failed = [f"{result.name}: {result.reason}" for result in self.results if result.reason]
        personal = [show_models(self.personal)] if self.personal else []
        return "\n".join([table, *failed, *self.notes, *personal, self.verdict()])

    def verdict(self) -> str:
        """Return the run's standing against the sites alone and against all rows in one place, in one line."""
        trained = [result for result in self.alone if result.metrics]
        values = [result.metrics[self.metric] for result in trained]
        parts = [f"{self.metric}: federated {format_metric(self.federated.metrics[self.metric])}"]
        if trained:
            low, mean, high = (format_metric(float(value)) for value in (min(values), np.mean(values), max(values)))
            standings = [result.standing for result in trained]
            counts = ", ".join(f"{standing} {standings.count(standing)}" for standing in _STANDINGS.values())
            counts = counts if all(standings) else f"better than {self._count_worse(values)}, without intervals,"
            parts.append(f"{counts} of {len(trained)} sites alone ({low} to {high}, mean {mean})")
        if lost := len(self.alone) - len(trained):
            parts.append(f"{format_count(lost, 'site')} cannot be trained alone")
        pooled = f"{POOLED} {format_metric(self.pooled.metrics.get(self.metric))}"
        if self.pooled.standing:
            value, interval = _difference_cells(self.pooled.difference)
            pooled = f"{self.pooled.standing} {pooled} (difference {value}, 95 % interval {interval})"
        return "; ".join([*parts, pooled])

    def save(self, folder: Path, *, picture: bool) -> None:
        """Write baselines.json and baselines.png.

        Args:
            folder: The run directory.
            picture: Whether to draw baselines.png. It also needs Matplotlib.
        """
        results = [{**asdict(result), "federated_is": result.standing or None} for result in self.results]
        content = {"metric": self.metric, "verdict": self.verdict(), "notes": list(self.notes), "results": results}
        write_atomic(folder / "baselines.json", (json.dumps(content, indent=2) + "\n").encode())
        if not picture or not importable(MATPLOTLIB):
            return
        draw_joining(self, folder / "baselines.png")

    def _count_worse(self, values: Sequence[float]) -> int:
        """Return the number of values that are worse than the run's value."""
        best, own = better(self.metric), self.federated.metrics[self.metric]
        return sum(own != value and best(own, value) == own for value in values)


def _difference_cells(difference: PairedDifference | None) -> tuple[str, str]:
    """Return a difference and its interval as texts; "-" if they were not measured."""
    if difference is None:
        return "-", "-"
    low, high = difference.low, difference.high
    return _four(difference.value), "-" if low is None else f"{_four(low)} to {_four(high)}"


def _four(value: float | None) -> str:
    """Return a difference with four decimals."""
    return format_signed(value and round(value, 4) + 0.0, 1.0)
