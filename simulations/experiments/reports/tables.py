"""What a reproduction found, in numbers: table.csv for programs, table.md for people."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from apps.config import Scalar
from simulations.experiments.expansion import Expansion, settings
from simulations.experiments.tuned_values import Tuned
from simulations.results.compare import csv_text
from simulations.results.output import shown, shown_metric, table
from simulations.results.records import RunRecord

_TAIL = 10  # a run's tail is this part of its evaluated rounds
LEGEND = (
    "Mean ± sample standard deviation over seeds: of the last evaluated round, and of each seed's mean over the last "
    "tenth of its evaluated rounds. nan: in one seed or more it is not finite."
)


@dataclass(frozen=True)
class Row:
    """One metric of one method in one setting. Standard deviations are those of a sample; None for one seed.

    Where a seed's value is not finite, the mean is nan and there is no standard deviation: those of the other seeds
    would say that the method works.
    """

    experiment: str
    dataset: str
    method: str
    setting: str
    metric: str
    # of the last evaluated round, over the finished seeds
    mean: float | None
    std: float | None
    seeds: int
    not_finite: int  # seeds whose metric is nan or infinite there
    # the paper's
    paper: float | None
    paper_std: float | None
    paper_source: str
    # of each seed's mean over the last tenth of its evaluated rounds
    tail_mean: float | None
    tail_std: float | None


def rows(expansion: Expansion, records: Mapping[str, RunRecord]) -> list[Row]:
    """The table, by data set, then as in the experiment's file.

    Args:
        expansion: what was to be run.
        records: the finished runs, by their names.
    """
    found = []
    experiment = expansion.experiment
    places = sorted(range(len(expansion.lines)), key=lambda place: _first(expansion, place))
    for place in places:
        line = expansion.lines[place]
        ended = [records[run.name] for run in expansion.runs if run.line is line and run.name in records]
        for metric in experiment.metrics:
            curves = [list(run.curve(metric).values()) for run in ended]
            curves = [curve for curve in curves if curve]
            last = [curve[-1] for curve in curves]
            value = expansion.paper.get((place, metric))
            found.append(
                Row(
                    experiment.name,
                    line.dataset,
                    line.method,
                    line.setting,
                    metric,
                    *_statistics(last),
                    len(curves),
                    sum(not math.isfinite(value) for value in last),
                    None if value is None else value.mean,
                    None if value is None else value.std,
                    "" if value is None else value.source or experiment.figure,
                    *_statistics([tail(curve) for curve in curves]),
                )
            )
    return found


def _first(expansion: Expansion, place: int) -> int:
    """Where the data set of a line occurs first."""
    names = [line.dataset for line in expansion.lines]
    return names.index(names[place])


def tail(curve: Sequence[float]) -> float:
    """The mean over the last tenth of a curve, the initial model's value apart; at least over the last value."""
    trained = curve[1:] or curve
    return _mean(trained[-len(trained) // _TAIL :])


def _statistics(values: Sequence[float]) -> tuple[float | None, float | None]:
    mean = _mean(values) if values else None
    return mean, statistics.stdev(values) if len(values) > 1 and all(map(math.isfinite, values)) else None


def _mean(values: Sequence[float]) -> float:
    """nan where one of them is not finite, infinities of both signs among them."""
    return statistics.fmean(values) if all(map(math.isfinite, values)) else math.nan


def as_csv(found: Sequence[Row]) -> str:
    """table.csv."""
    dicts = [asdict(row) for row in found]
    return csv_text(list(dicts[0]), dicts)


def shown_pair(mean: float | None, std: float | None) -> str:
    """A mean and its standard deviation, for people."""
    return shown_metric(mean) if std is None else f"{shown_metric(mean)} ± {shown_metric(std, like=mean)}"


def pair(row: Row) -> str:
    """The last round's mean and standard deviation, for people, or in how many seeds it is not finite."""
    shown = shown_pair(row.mean, row.std)
    return f"{shown} ({row.not_finite} of {counted(row.seeds, 'seed')} not finite)" if row.not_finite else shown


def _columns(found: Sequence[Row], seeds: int) -> tuple[list[str], list[list[str]]]:
    """The table for people: columns that say nothing are left out."""
    columns = {
        "data set": [row.dataset for row in found],
        "method": [row.method for row in found],
        "setting": [row.setting for row in found],
        "metric": [row.metric for row in found],
        "last round": [pair(row) for row in found],
        "last tenth": [shown_pair(row.tail_mean, row.tail_std) for row in found],
        "seeds": [str(row.seeds) if row.seeds == seeds else f"{row.seeds} of {seeds}" for row in found],
        "paper": [shown_pair(row.paper, row.paper_std) for row in found],
        "in the paper": [row.paper_source for row in found],
    }
    unsaid = {"setting": "", "paper": "-", "in the paper": ""}
    kept = {name: cells for name, cells in columns.items() if name not in unsaid or set(cells) != {unsaid[name]}}
    return list(kept), [list(cells) for cells in zip(*kept.values(), strict=True)]


def as_text(expansion: Expansion, found: Sequence[Row]) -> str:
    """The table for a terminal."""
    return table(*_columns(found, expansion.seeds))


def as_markdown(
    expansion: Expansion, found: Sequence[Row], claims: Sequence[str], failed: Mapping[str, str], missing: int
) -> str:
    """table.md.

    Args:
        expansion: what was to be run.
        found: the rows.
        claims: the lines on what the paper claims.
        failed: the titles of the runs that failed, with the reasons.
        missing: the number of runs that have not been made.
    """
    experiment = expansion.experiment
    columns, cells = _columns(found, expansion.seeds)
    tuned = expansion.tuned
    what = f"Experiment `{experiment.name}`, profile `{expansion.profile}`, {counted(expansion.seeds, 'seed')}."
    lines = [
        f"# {experiment.title}",
        "",
        f"{experiment.paper}, {experiment.figure}. {what}",
        "",
        *_markdown(columns, cells),
        "",
        LEGEND,
    ]
    if any(row.paper is not None for row in found) and expansion.profile != "full":
        lines += ["", f"The paper's numbers are those of its full experiment, not of profile `{expansion.profile}`."]
    lines += claims
    if tuned is not None:
        lines += ["", tuned_sentence(tuned), "", *_markdown(*tuned_table(tuned))]
    if missing:
        lines += ["", f"Interrupted: {counted(missing, 'run')} not made yet."]
    if failed:
        lines += ["", "Failed runs:", "", *(f"- {title}: {' '.join(why.split())}" for title, why in failed.items())]
    return "\n".join(lines) + "\n"


def tuned_sentence(tuned: Tuned) -> str:
    """How run-config values were chosen, for people."""
    number = "one seed" if tuned.seeds == 1 else f"the mean of {tuned.seeds} seeds"
    by = f"Chosen by {tuned.metric} ({tuned.mode}imum) after the last round, {number}"
    if not tuned.validation_fraction:
        return f"{by}; it is not measured on test rows."
    return (
        f"{by}, on a validation split of {shown(100 * tuned.validation_fraction)} % of the training rows. No test row "
        "was looked at; the runs of the table train on all training rows."
    )


def tuned_table(tuned: Tuned) -> tuple[list[str], list[list[str]]]:
    """Columns, and a row for each choice: for which runs, what, from which values, and how well it did."""
    rows = []
    for choice in tuned.chosen:
        ends = dict.fromkeys(choice.ends, " (an end of the range)")
        chosen = [
            f"{told}{ends.get(key, '')}" for key, told in zip(choice.values, settings(choice.values), strict=True)
        ]
        ranges = [f"{key} in {{{', '.join(map(shown, values))}}}" for key, values in choice.grid.items()]
        score = shown_pair(choice.score.mean, choice.score.std)
        if choice.score.missing:
            score += f" (sites missing in {choice.score.missing} of {counted(choice.score.finished, 'seed')})"
        rows.append([_runs_of(choice.at), ", ".join(chosen), "; ".join(ranges), score])
    return ["runs", "chosen", "from", tuned.metric], rows


def _runs_of(at: Mapping[str, Scalar]) -> str:
    named = [shown(at[key]) for key in ("method", "dataset") if key in at]
    return ", ".join([*named, *settings({key: at[key] for key in at if key not in ("method", "dataset")})])


def _markdown(columns: Sequence[str], cells: Sequence[Sequence[str]]) -> list[str]:
    return [f"| {' | '.join(map(_escaped, row))} |" for row in (columns, ["---"] * len(columns), *cells)]


def counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _escaped(cell: str) -> str:
    return cell.replace("|", "\\|")


def as_json(found: Sequence[Row]) -> list[dict[str, Any]]:
    """The rows for --json."""
    return [asdict(row) for row in found]
