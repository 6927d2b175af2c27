"""Table one of a run on a page: the table, its notes, and the bins of each column with their weights of evidence."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from apps.run_directory.table_one import NAME, as_rows, notes, write_information
from simulations.results.output import Table
from simulations.results.records import read_object

_HEADS = ("negatives", "positives", "weight of evidence")


def read_description(folder: Path) -> dict[str, Any] | None:
    """Return the parts of the page about table one; None if the run directory has no table one.

    Args:
        folder: The run directory.
    """
    try:
        table = read_object(folder / f"{NAME}.json")
    except (OSError, ValueError):
        return None
    if not table:
        return None
    heads, rows = as_rows(table)
    return {
        "table": Table("", heads, [[row[0].replace("  ", "\u2003"), *row[1:]] for row in rows]),
        "notes": notes(table),
        "bins": [_bins(column) for column in table["columns"] if column["information_value"] is not None],
    }


def _bins(column: Mapping[str, Any]) -> Table:
    rows = [[row["bin"], row["negatives"], row["positives"], row["weight_of_evidence"]] for row in column["bins"]]
    title = f"{column['column']}: information value {write_information(column)}"
    return Table(title, ["bin", *_HEADS], rows)
