"""The tables of a finished run as CSV files: decision curve, recalibration, subgroups and importance."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from apps.evaluation.after import IMPORTANCE, SENSITIVITY, SPECIFICITY, SUBGROUPS
from apps.evaluation.site_figures import RECALIBRATION, is_probable
from payloads.site_names import label_entry
from problems.files import room_for, write_atomic
from problems.intervals import AUC, share_interval
from problems.recalibration import INTERCEPT, RATIO, SLOPE
from problems.score_groups import ScoreGroups

DECISION, RECALIBRATIONS = "decision.csv", "recalibration.csv"
SUBGROUP_FILE, IMPORTANCE_FILE = "subgroups.csv", "importance.csv"
SITE = "site"
ALL = "all"

Rows = Sequence[Mapping[str, Any]]


def write_tables(folder: Path, result: Mapping[str, Any]) -> None:
    """Write the tables of a run's result. A table that the run does not have is not written.

    Args:
        folder: The run directory.
        result: The content of result.json.

    Raises:
        DiskFullError: The disk is full.
    """
    tables = {
        DECISION: decision_rows(result),
        RECALIBRATIONS: recalibration_rows(result),
        SUBGROUP_FILE: subgroup_rows(result),
        IMPORTANCE_FILE: result.get(IMPORTANCE, {}).get("columns", []),
    }
    for name, rows in tables.items():
        if rows:
            with room_for(folder / name):
                write_atomic(folder / name, _csv(rows).encode())


def decision_rows(result: Mapping[str, Any]) -> Rows:
    """Return the points of the decision curve. Empty: the run has no groups of scores, or no probabilities."""
    entry = result.get(ALL, {}).get("by_score")
    if entry is None or not is_probable(result):
        return []
    names = ("threshold_probability", "net_benefit", "net_benefit_treat_all")
    points = np.stack(ScoreGroups.from_json(entry).decision(), axis=1).tolist()
    return [dict(zip(names, point, strict=True)) for point in points]


def recalibration_rows(result: Mapping[str, Any]) -> Rows:
    """Return the recalibration of all rows and of each site. Empty: there is none."""
    rows: list[dict[str, Any]] = []
    for entry in (*result.get("sites", []), *([result[ALL]] if ALL in result else [])):
        if figures := entry.get(RECALIBRATION):
            counts = {name: entry[name] for name in ("rows", "positives")}
            rows.append({"site": label_entry(entry) if "partition" in entry else ALL, **counts})
            for name in (INTERCEPT, SLOPE, RATIO):
                rows[-1] |= spread(name, figures.get(name))
    return rows


def subgroup_rows(result: Mapping[str, Any]) -> Rows:
    """Return the figures of each subgroup, and of each site. Empty: the run has no subgroups."""
    rows: list[dict[str, Any]] = []
    for column in result.get(SUBGROUPS, ()):
        rows += [_subgroup_row(column["column"], group["group"], group) for group in column["groups"]]
    return [*rows, *(_subgroup_row(SITE, label_entry(site), site) for site in result["sites"])] if rows else []


def _subgroup_row(column: str, name: str, entry: Mapping[str, Any]) -> dict[str, Any]:
    row: dict[str, Any] = {"column": column, "group": name, "rows": entry["rows"], "positives": entry["positives"]}
    figures = {figure: entry.get(figure) for figure in (AUC, SENSITIVITY, SPECIFICITY)}
    if counts := entry.get("confusion"):
        for figure, hit, miss in (
            (SENSITIVITY, "true_positives", "false_negatives"),
            (SPECIFICITY, "true_negatives", "false_positives"),
        ):
            of_class = counts[hit] + counts[miss]
            figures[figure] = [counts[hit] / of_class, *share_interval(counts[hit], of_class)] if of_class else None
    figures |= {figure: (entry.get(RECALIBRATION) or {}).get(figure) for figure in (INTERCEPT, SLOPE, RATIO)}
    for figure, value in figures.items():
        row |= spread(figure, value)
    return row | {"withheld_sites": entry.get("withheld_sites", 0)}


def spread(name: str, figure: Sequence[float] | None) -> dict[str, float | None]:
    """Return a number and the ends of its interval as three cells: ``name``, ``name_low`` and ``name_high``."""
    return dict(zip((name, f"{name}_low", f"{name}_high"), figure or (None, None, None), strict=True))


def _csv(rows: Rows) -> str:
    file = io.StringIO()
    writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return file.getvalue()
