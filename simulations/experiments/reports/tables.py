"""The tables of a reproduction: rows of table.csv and runs.csv with all digits, and rounded tables for people."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from apps.config import Scalar
from simulations.experiments.expansion import Expansion
from simulations.experiments.lines import settings, words
from simulations.experiments.tuned_values import Tuned
from simulations.results.output import Table, format_cell, format_count, format_pair
from simulations.results.paired import format_signed
from simulations.results.ranking import mean_and_std
from simulations.results.records import RunRecord

_TAIL = 10  # a run's tail is the last tenth of its evaluated rounds
LEGEND = (
    "Mean ± sample standard deviation over seeds, of the last evaluated round, and of the mean over the last tenth of "
    "the evaluated rounds. nan: the metric of at least one seed is not finite."
)


@dataclass(frozen=True)
class Row:
    """A row of table.csv: a metric of a method in a setting, over the finished seeds.

    Standard deviations are sample standard deviations. None: there is only one seed. If a seed's value is not finite,
    the mean is nan and the standard deviation None, since a mean of the other seeds would hide the failure.
    """

    experiment: str
    dataset: str
    method: str
    setting: str
    metric: str
    # in the last evaluated round
    mean: float | None
    std: float | None
    seeds: int
    planned: int  # the number of seeds that the experiment asks for
    not_finite: int  # the number of seeds whose metric is nan or infinite
    # the paper's number
    paper: float | None
    paper_std: float | None
    paper_source: str
    # of the seeds' means over the last tenth of the evaluated rounds
    tail_mean: float | None
    tail_std: float | None

    @property
    def last(self) -> tuple[str, float | None]:
        """The cell about the last round: mean, standard deviation, and the number of seeds that are not finite."""
        shown = format_pair(self.mean, self.std)
        if self.not_finite:
            shown += f" ({self.not_finite} of {format_count(self.seeds, 'seed')} not finite)"
        return shown, self.mean


def rows(expansion: Expansion, records: Mapping[str, RunRecord]) -> list[Row]:
    """Return the rows of table.csv: by data set, then in the order of the experiment's file.

    Args:
        expansion: The experiment.
        records: The finished runs by the names of their run directories.

    Returns:
        A row for each line and metric, also for lines without a finished run.
    """
    table = []
    experiment = expansion.experiment
    names = [line.dataset for line in expansion.lines]
    for index, line in sorted(enumerate(expansion.lines), key=lambda pair: names.index(pair[1].dataset)):
        ended = expansion.find_ended(line, records).values()
        for metric in experiment.metrics:
            curves = [curve for run in ended if (curve := list(run.curve(metric).values()))]
            last = [end for run in ended if (end := run.final(metric)) is not None]
            value = expansion.paper.get((index, metric))
            table.append(
                Row(
                    *(experiment.name, line.dataset, line.method, line.setting, metric),
                    *mean_and_std(last),
                    len(curves),
                    line.seeds,
                    sum(not math.isfinite(value) for value in last),
                    None if value is None else value.mean,
                    None if value is None else value.std,
                    "" if value is None else value.source or experiment.figure,
                    *mean_and_std([tail(curve) for curve in curves]),
                )
            )
    return table


def run_rows(expansion: Expansion, records: Mapping[str, RunRecord]) -> list[dict[str, Scalar]]:
    """Return the rows of runs.csv: each finished run, with all digits.

    Args:
        expansion: The experiment.
        records: The finished runs by the names of their run directories.

    Returns:
        Rows of coordinates, seed, chosen run-config values, clients, last metrics, seconds and versions.
    """
    rows: list[dict[str, Scalar]] = []
    for line in expansion.lines:
        chosen = {} if expansion.tuned is None else expansion.tuned.values_of(line.at)
        for seed, record in expansion.find_ended(line, records).items():
            facts = {"clients": line.clients, **record.metrics, "seconds": record.facts["seconds"]}
            rows.append({**line.at, "seed": seed, **chosen, **facts, **record.result.get("versions", {})})
    return rows


def tail(curve: Sequence[float]) -> float:
    """Return the mean over the last tenth of a curve: at least one value, and not the initial model's value.

    Args:
        curve: The metric in each evaluated round, starting with the initial model. It has at least one value.

    Returns:
        The mean. nan: a value is not finite.
    """
    trained = curve[1:] or curve
    mean, _ = mean_and_std(trained[-len(trained) // _TAIL :])
    assert mean is not None
    return mean


def results(rows: Sequence[Row], caption: str = "", without: Collection[str] = ()) -> Table:
    """Return the rows as a table for people, without empty columns. Rows with missing seeds show both numbers of seeds.

    Args:
        rows: The rows, in their order in the table.
        caption: The table's caption.
        without: Names of further columns to omit.
    """
    cells = [
        {
            "data set": row.dataset,
            "method": row.method,
            "setting": row.setting or None,
            "metric": row.metric,
            "last round": row.last,
            "last tenth": (format_pair(row.tail_mean, row.tail_std), row.tail_mean),
            "seeds": row.seeds if row.seeds == row.planned else (f"{row.seeds} of {row.planned}", row.seeds),
            "paper": None if row.paper is None else (format_pair(row.paper, row.paper_std), row.paper),
            "difference": _difference(row),
            "in the paper": row.paper_source or None,
        }
        for row in rows
    ]
    optional = ("setting", "paper", "difference", "in the paper")
    columns = [
        name
        for name in cells[0]
        if name not in without and (name not in optional or any(row[name] is not None for row in cells))
    ]
    return Table(
        caption,
        columns,
        [
            ["" if row[name] is None and name in ("setting", "in the paper") else row[name] for name in columns]
            for row in cells
        ],
    )


def _difference(row: Row) -> tuple[str, float] | None:
    """Return the measured mean minus the paper's."""
    if row.mean is None or row.paper is None:
        return None
    gap = row.mean - row.paper
    return format_signed(gap, like=row.paper), gap


def tuned_sentence(tuned: Tuned) -> str:
    """Return sentences for people about the choice of run-config values."""
    counts = sorted({choice.seeds or tuned.seeds for choice in tuned.chosen})
    among = " to ".join(map(str, dict.fromkeys((counts[0], counts[-1]))))
    number = "one seed" if among == "1" else f"the mean of {among} seeds"
    own_metrics = dict.fromkeys(choice.metric for choice in tuned.chosen if choice.metric)
    where = f", or by {' or '.join(map(str, own_metrics))} if the score names it," if own_metrics else ""
    by = f"Chosen by {tuned.metric} ({tuned.mode}imum){where} after the last round, {number}"
    if not tuned.validation_fraction:
        return f"{by}. This metric is not measured on test rows."
    return (
        f"{by}, on a validation split of {format_cell(100 * tuned.validation_fraction)} % of the training rows. "
        "No test row was used. The runs of the table train on all training rows."
    )


def tuned_table(tuned: Tuned) -> Table:
    """Return a table with a row for each choice: the runs, the chosen values, the candidate values, and the score.

    Returns:
        The table. The column of scores has the metric's name.
    """
    rows: list[list[Any]] = []
    for choice in tuned.chosen:
        ends = dict.fromkeys(choice.ends, " (an end of the range)")
        chosen = [text + ends.get(key, "") for key, text in zip(choice.values, settings(choice.values), strict=True)]
        ranges = [f"{key} in {{{', '.join(map(format_cell, values))}}}" for key, values in choice.grid.items()]
        score = f"{choice.metric or ''} {format_pair(choice.score.mean, choice.score.std)}".strip()
        if choice.score.missing:
            score += f" (sites missing in {choice.score.missing} of {format_count(choice.score.finished, 'seed')})"
        rows.append([words(choice.at), ", ".join(chosen), "; ".join(ranges), (score, choice.score.mean)])
    return Table("Chosen values, their ranges and their scores", ["runs", "chosen", "from", tuned.metric], rows)
