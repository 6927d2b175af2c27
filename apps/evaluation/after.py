"""Statistics of a run's final model in result.json: figures of subgroups, and the importance of columns."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from apps.evaluation.sets import EvaluatedSets
from apps.evaluation.site_figures import RECALIBRATION
from problems.data.subgroups import Subgroups
from problems.delong import auc_interval
from problems.intervals import AUC, point_figures, share_interval
from problems.least_cell import LEAST_CELL, suppress
from problems.recalibration import format_figure, recalibrate
from problems.tallies import Tally
from strategies.set_counts import CountedSets

SUBGROUPS, IMPORTANCE = "subgroups", "importance"
SENSITIVITY, SPECIFICITY = "sensitivity", "specificity"
_TOP = 3  # the number of columns in the log


def describe_groups(
    sets: EvaluatedSets,
    columns: Sequence[Subgroups],
    least: int,
    prepare: Callable[[Tally], Tally],
    score: float | None,
    *,
    probable: bool,
    confusion_known: bool,
) -> list[dict[str, Any]]:
    """Return the figures of each subgroup.

    Args:
        sets: The sets of the evaluated rows.
        columns: The columns of ``subgroups``.
        least: The largest least cell of the sites. 1: the server has all rows.
        prepare: A function that adds the run's calibration to a tally.
        score: The run's threshold, or None.
        probable: Whether scores are probabilities, see `recalibrate`.
        confusion_known: Whether the result has the counts at the threshold for all rows.

    Returns:
        For each column its name and its ``groups`` with rows: ``group``, ``rows``, ``positives``, and with 95 %
        intervals ``auc``, ``sensitivity`` and ``specificity`` at the threshold and ``recalibration``; ``auc_error``,
        the largest error of the AUC because of the bins of scores; and ``withheld_sites``, the number of sites that do
        not reveal their rows of the group, unless it is 0. A figure is None with too few rows. ``rows`` is None if the
        whole group is withheld.
    """
    return [
        {
            "column": column.column,
            "groups": _describe_column(
                sets.count_groups(index, len(column.names)),
                column.names,
                least,
                prepare,
                score,
                probable=probable,
                confusion_known=confusion_known,
            ),
        }
        for index, column in enumerate(columns)
    ]


def _describe_column(
    counted: CountedSets,
    names: Sequence[str],
    least: int,
    prepare: Callable[[Tally], Tally],
    score: float | None,
    *,
    probable: bool,
    confusion_known: bool,
) -> list[dict[str, Any]]:
    tallies = [prepare(tally) for tally in counted.tallies]
    sizes = np.array([sum(tally.count()) for tally in tallies])
    hidden = suppress(sizes[:, None], LEAST_CELL)
    unknown = hidden.copy()
    if score is not None:
        matrices = np.array([list(tally.confusion(score).values()) for tally in tallies])
        small = np.array([((row > 0) & (row < least)).any() for row in matrices])
        unknown |= suppress(matrices, least) if confusion_known else small
    groups = []
    for index, (name, tally) in enumerate(zip(names, tallies, strict=True)):
        if not sizes[index] and not counted.withheld[index]:
            continue
        entry: dict[str, Any] = {"group": name, "rows": None, "positives": None, AUC: None, "auc_error": None}
        entry |= {SENSITIVITY: None, SPECIFICITY: None, RECALIBRATION: None}
        if sizes[index] and not hidden[index]:
            entry |= _figures(tally, None if unknown[index] else score)
            entry |= {"auc_error": counted.errors[index], RECALIBRATION: recalibrate(tally, least, probable=probable)}
        groups.append(entry | ({"withheld_sites": counted.withheld[index]} if counted.withheld[index] else {}))
    return groups


def _figures(tally: Tally, score: float | None) -> dict[str, Any]:
    negatives, positives = tally.count()
    figures: dict[str, Any] = {"rows": negatives + positives, "positives": positives}
    if negatives and positives:
        figures[AUC] = [
            point_figures(tally)[AUC],
            *auc_interval(tally.negatives.sum(axis=0), tally.positives.sum(axis=0)),
        ]
    if score is not None:
        counts = tally.confusion(score)
        for name, hits, rows in (
            (SENSITIVITY, counts["true_positives"], positives),
            (SPECIFICITY, counts["true_negatives"], negatives),
        ):
            figures[name] = [hits / rows, *share_interval(hits, rows)] if rows else None
    return figures


def describe_importance(sets: EvaluatedSets, names: Sequence[str], repeats: int, tally: Tally) -> dict[str, Any]:
    """Return the importance of each column: the AUC that is lost if the column's cells are permuted among the rows.

    Args:
        sets: The sets of the evaluated rows.
        names: The names of the columns.
        repeats: The number of permutations of each column.
        tally: The counted scores of the rows.

    Returns:
        ``repeats``; and ``columns``, a list with the largest loss first: ``column``, ``drop``, the mean loss over the
        repeats, ``deviation``, its standard deviation over the repeats (None for a single repeat), and ``auc_error``,
        the largest error of an AUC because of the bins of scores.
    """
    whole = point_figures(tally)[AUC]
    columns = []
    for index, name in enumerate(names):
        counted = sets.count_permuted(index, repeats)
        found = [point_figures(each)[AUC] if sum(each.count()) else None for each in counted.tallies]
        drops = [whole - value for value in found if whole is not None and value is not None]
        columns.append(
            {
                "column": name,
                "drop": float(np.mean(drops)) if drops else None,
                "deviation": float(np.std(drops, ddof=1)) if len(drops) > 1 else None,
                "auc_error": max(counted.errors),
            }
        )
    return {"repeats": repeats, "columns": sorted(columns, key=lambda each: -(each["drop"] or 0.0))}


def summarise(result: Mapping[str, Any]) -> Iterator[str]:
    """Yield sentences about subgroups and importance, for the log.

    Args:
        result: The content of result.json.
    """
    found = [(column["column"], group) for column in result.get(SUBGROUPS, ()) for group in column["groups"]]
    if found:
        known = [(name, group) for name, group in found if group[AUC]]
        text = f"{len(found)} subgroups"
        if known:
            name, worst = min(known, key=lambda pair: pair[1][AUC][0])
            text += f": {name} {worst['group']} has the lowest {AUC}, {format_figure(worst[AUC], 4)}"
        withheld = sum(group["rows"] is None for _, group in found)
        yield text + (f"; without figures: {withheld} with too few rows" if withheld else "")
    if columns := result.get(IMPORTANCE, {}).get("columns"):
        top = ", ".join(f"{each['column']} {each['drop']:.4f}" for each in columns[:_TOP] if each["drop"] is not None)
        yield f"importance, the {AUC} lost if a column is permuted: {top}"
