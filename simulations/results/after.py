"""Tables of a report about subgroups and about the importance of columns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from apps.evaluation.after import IMPORTANCE, SENSITIVITY, SPECIFICITY
from apps.run_directory.statistics import subgroup_rows
from problems.intervals import AUC
from problems.recalibration import RATIO, SLOPE, format_figure
from simulations.results.output import Table, format_metric

_FIGURES = (AUC, SENSITIVITY, SPECIFICITY, SLOPE, RATIO)


def tabulate_subgroups(result: Mapping[str, Any]) -> Table | None:
    """Return the figures of subgroups and of sites, or None if the run has no subgroups.

    Args:
        result: The content of result.json.
    """
    rows = subgroup_rows(result)
    shown = [name for name in _FIGURES if any(row[name] is not None for row in rows)]
    if not rows:
        return None
    cells = []
    for row in rows:
        figures = [
            None
            if row[name] is None
            else (format_figure([row[f"{name}{end}"] for end in ("", "_low", "_high")]), row[name])
            for name in shown
        ]
        cells.append([f"{row['column']}: {row['group']}", *figures[:1], row["rows"], row["positives"], *figures[1:]])
    caption = f"subgroups on {result['figures_on']}, with 95 % intervals"
    if any(row["rows"] is None or row["withheld_sites"] for row in rows):
        caption += "; sites do not reveal groups of too few rows"
    words = [name.replace("_", "/") for name in shown]
    return Table(caption, ["group", *words[:1], "rows", "positives", *words[1:]], cells)


def tabulate_importance(result: Mapping[str, Any]) -> Table | None:
    """Return the loss of AUC for each permuted column, or None if the run has not measured it.

    Args:
        result: The content of result.json.
    """
    if (found := result.get(IMPORTANCE)) is None:
        return None
    rows = [
        [each["column"], *((format_metric(each[name], 1.0), each[name]) for name in ("drop", "deviation"))]
        for each in found["columns"]
    ]
    caption = f"{AUC} lost if a column is permuted on {result['figures_on']}, {found['repeats']} repeats"
    return Table(caption, ["column", "loss", "deviation"], rows)
