"""A reproduction's numbers: table.csv for programs, table.md for people."""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from apps.config import Scalar
from simulations.experiments.expansion import Expansion
from simulations.experiments.lines import settings
from simulations.experiments.tuned_values import Tuned
from simulations.results.output import Cell, Table, format_cell, format_pair, number_cell, table
from simulations.results.paired import format_signed
from simulations.results.records import RunRecord

_TAIL = 10  # a run's tail is this part of its evaluated rounds
LEGEND = (
    "Mean ± sample standard deviation over seeds: of the last evaluated round, and of each seed's mean over the last "
    "tenth of its evaluated rounds. nan: in one seed or more it is not finite."
)


@dataclass(frozen=True)
class Row:
    """One metric of one method in one setting. Standard deviations are those of a sample; None for one seed.

    If a seed's value is not finite, the mean is nan and the standard deviation None: those of the other seeds would
    make the method look as if it worked.
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
    """The table's rows: by data set, then in the order of the experiment's file.

    Returns:
        One for each line and metric, also where none of the finished runs, given by name, is of that line.
    """
    found = []
    experiment = expansion.experiment
    names = [line.dataset for line in expansion.lines]
    for place in sorted(range(len(names)), key=lambda place: names.index(names[place])):
        line = expansion.lines[place]
        ended = expansion.find_ended(line, records).values()
        for metric in experiment.metrics:
            curves = [curve for run in ended if (curve := list(run.curve(metric).values()))]
            last = [end for run in ended if (end := run.final(metric)) is not None]
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


def run_rows(expansion: Expansion, records: Mapping[str, RunRecord]) -> list[dict[str, Scalar]]:
    """A row for each finished run, with full digits.

    Args:
        records: the finished runs by the names of their run directories.

    Returns:
        Rows of coordinates, seed, chosen run-config values, clients, last metrics, seconds and versions.
    """
    found: list[dict[str, Scalar]] = []
    for line in expansion.lines:
        chosen = {} if expansion.tuned is None else expansion.tuned.values_of(line.at)
        for seed, record in expansion.find_ended(line, records).items():
            facts = {"clients": line.clients, **record.metrics, "seconds": record.facts["seconds"]}
            found.append({**line.at, "seed": seed, **chosen, **facts, **record.result.get("versions", {})})
    return found


def tail(curve: Sequence[float]) -> float:
    """The mean over the last tenth of a curve without the initial model's value, and over one value at least.

    Args:
        curve: the metric in each evaluated round, first of the initial model; not empty.

    Returns:
        The mean; nan if a value of that tenth is not finite.
    """
    trained = curve[1:] or curve
    return _mean(trained[-len(trained) // _TAIL :])


def _statistics(values: Sequence[float]) -> tuple[float | None, float | None]:
    mean = _mean(values) if values else None
    return mean, statistics.stdev(values) if len(values) > 1 and all(map(math.isfinite, values)) else None


def _mean(values: Sequence[float]) -> float:
    """The mean, or nan if a value is not finite; fmean would raise an error for infinities of both signs."""
    return statistics.fmean(values) if all(map(math.isfinite, values)) else math.nan


def pair(row: Row) -> str:
    """The last round's mean and standard deviation, for people, and in how many seeds it is not finite, if any.

    Returns:
        Text such as "0.9312 ± 0.0041", or "-" if no seed has finished.
    """
    shown = format_pair(row.mean, row.std)
    return f"{shown} ({row.not_finite} of {format_count(row.seeds, 'seed')} not finite)" if row.not_finite else shown


def results(found: Sequence[Row], seeds: int, caption: str = "", without: Collection[str] = ()) -> Table:
    """The rows as a table for people, without columns that would be empty.

    Args:
        found: the rows, in the order in which they are shown.
        seeds: how many were asked for; a row says so if it has another number.
        without: names of further columns to leave out.
    """
    columns = {
        "data set": [Cell(row.dataset) for row in found],
        "method": [Cell(row.method) for row in found],
        "setting": [Cell(row.setting) for row in found],
        "metric": [Cell(row.metric) for row in found],
        "last round": [number_cell(pair(row), row.mean) for row in found],
        "last tenth": [number_cell(format_pair(row.tail_mean, row.tail_std), row.tail_mean) for row in found],
        "seeds": [number_cell(_of(row.seeds, seeds), row.seeds) for row in found],
        "paper": [number_cell(format_pair(row.paper, row.paper_std), row.paper) for row in found],
        "difference": [_difference(row) for row in found],
        "in the paper": [Cell(row.paper_source) for row in found],
    }
    for name in ("setting", "paper", "difference", "in the paper"):
        if all(cell.text in ("", "-") for cell in columns[name]):
            del columns[name]
    kept = {name: cells for name, cells in columns.items() if name not in without}
    return Table(caption, list(kept), [list(cells) for cells in zip(*kept.values(), strict=True)])


def _of(number: int, all_of_them: int) -> str:
    return str(number) if number == all_of_them else f"{number} of {all_of_them}"


def _difference(row: Row) -> Cell:
    """The measured mean minus the paper's."""
    if row.mean is None or row.paper is None:
        return number_cell("-", None)
    gap = row.mean - row.paper
    return number_cell(format_signed(gap, like=row.paper), gap)


def as_text(expansion: Expansion, found: Sequence[Row]) -> str:
    """The table for a terminal.

    Returns:
        Aligned lines, without the difference from the paper's numbers.
    """
    rows = results(found, expansion.seeds, without=["difference"])
    return table(rows.columns, rows.texts)


def as_markdown(
    expansion: Expansion, found: Sequence[Row], claims: Sequence[str], failed: Mapping[str, str], missing: int
) -> str:
    """table.md.

    Args:
        expansion: what was to be run.
        found: the rows.
        claims: the lines on what the paper claims.
        failed: title -> reason, of runs that failed.
        missing: the number of runs that have not been made.
    """
    experiment = expansion.experiment
    tuned = expansion.tuned
    what = f"Experiment `{experiment.name}`, profile `{expansion.profile}`, {format_count(expansion.seeds, 'seed')}."
    lines = [
        f"# {experiment.title}",
        "",
        f"{experiment.paper}, {experiment.figure}. {what}",
        "",
        *_markdown(results(found, expansion.seeds, without=["difference"])),
        "",
        LEGEND,
    ]
    if any(row.paper is not None for row in found) and expansion.profile != "full":
        lines += ["", f"The paper's numbers are those of its full experiment, not of profile `{expansion.profile}`."]
    lines += claims
    if tuned is not None:
        lines += ["", tuned_sentence(tuned), "", *_markdown(tuned_table(tuned))]
    if missing:
        lines += ["", f"Interrupted: {format_count(missing, 'run')} not made yet."]
    if failed:
        lines += ["", "Failed runs:", "", *(f"- {title}: {' '.join(why.split())}" for title, why in failed.items())]
    return "\n".join(lines) + "\n"


def tuned_sentence(tuned: Tuned) -> str:
    """How run-config values were chosen, for people."""
    counts = sorted({choice.seeds or tuned.seeds for choice in tuned.chosen})
    among = " to ".join(map(str, dict.fromkeys((counts[0], counts[-1]))))
    number = "one seed" if among == "1" else f"the mean of {among} seeds"
    others = dict.fromkeys(choice.metric for choice in tuned.chosen if choice.metric)
    where = f", or by {' or '.join(map(str, others))} where it stands beside the score," if others else ""
    by = f"Chosen by {tuned.metric} ({tuned.mode}imum){where} after the last round, {number}"
    if not tuned.validation_fraction:
        return f"{by}; it is not measured on test rows."
    return (
        f"{by}, on a validation split of {format_cell(100 * tuned.validation_fraction)} % of the training rows. "
        "No test row was looked at; the runs of the table train on all training rows."
    )


def tuned_table(tuned: Tuned) -> Table:
    """A row for each choice: its runs, the chosen values, the ranges they come from, and their score.

    Returns:
        A table whose last column, the score, is named after the metric.
    """
    rows = []
    for choice in tuned.chosen:
        ends = dict.fromkeys(choice.ends, " (an end of the range)")
        chosen = [text + ends.get(key, "") for key, text in zip(choice.values, settings(choice.values), strict=True)]
        ranges = [f"{key} in {{{', '.join(map(format_cell, values))}}}" for key, values in choice.grid.items()]
        score = format_pair(choice.score.mean, choice.score.std)
        if choice.metric:
            score = f"{choice.metric} {score}"
        if choice.score.missing:
            score += f" (sites missing in {choice.score.missing} of {format_count(choice.score.finished, 'seed')})"
        texts = (_runs_of(choice.at), ", ".join(chosen), "; ".join(ranges))
        rows.append([*map(Cell, texts), number_cell(score, choice.score.mean)])
    return Table("Chosen values, their ranges and their scores", ["runs", "chosen", "from", tuned.metric], rows)


def _runs_of(at: Mapping[str, Scalar]) -> str:
    named = [format_cell(at[key]) for key in ("method", "dataset") if key in at]
    return ", ".join([*named, *settings({key: at[key] for key in at if key not in ("method", "dataset")})])


def _markdown(content: Table) -> list[str]:
    rows = [content.columns, ["---"] * len(content.columns), *content.texts]
    return ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]


def format_count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
