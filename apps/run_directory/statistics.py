"""The tables of a finished run as CSV files: decision curve, and recalibration by site."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from apps.evaluation.site_figures import RECALIBRATION, is_probable
from payloads.site_names import label_entry
from problems.files import room_for, write_atomic
from problems.recalibration import INTERCEPT, RATIO, SLOPE
from problems.score_groups import ScoreGroups

DECISION, RECALIBRATIONS = "decision.csv", "recalibration.csv"
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
    for name, rows in {DECISION: decision_rows(result), RECALIBRATIONS: recalibration_rows(result)}.items():
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


def spread(name: str, figure: Sequence[float] | None) -> dict[str, float | None]:
    """Return a number and the ends of its interval as three cells: ``name``, ``name_low`` and ``name_high``."""
    return dict(zip((name, f"{name}_low", f"{name}_high"), figure or (None, None, None), strict=True))


def _csv(rows: Rows) -> str:
    file = io.StringIO()
    writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return file.getvalue()
