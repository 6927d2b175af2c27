"""The files coefficients.csv and coefficients.json of a regression, and its table in the log."""

import csv
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from problems.errors import join_first
from problems.files import write_atomic

# the entry of result.json
COEFFICIENTS = "coefficients"
META = "meta_analysis"
META_COLUMNS = ("fixed effect", "random effects", "deviation between sites", "heterogeneity")
_QUANTILE = 1.959963984540054


def save_coefficients(folder: Path, result: Mapping[str, Any]) -> list[str]:
    """Write the two files, and return the lines of the table.

    Args:
        folder: The run directory.
        result: The entry `COEFFICIENTS` of result.json.
    """
    write_atomic(folder / f"{COEFFICIENTS}.json", (json.dumps(result, indent=2) + "\n").encode())
    rows = [{**row, **row.get(META, {})} for row in result["table"]]
    columns = [name for name in dict.fromkeys(name for row in rows for name in row) if name != META]
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_atomic(folder / f"{COEFFICIENTS}.csv", text.getvalue().encode())
    return [describe_table(result), *align(columns_of(result), cells_of(result)), *notes(result)]


def describe_table(result: Mapping[str, Any]) -> str:
    """Return the title of the table."""
    numbers = f"{result['rows']:,} rows at {result['sites']} sites"
    return f"coefficients of the {result['model']} regression on {numbers}, with {result['intervals']} standard errors"


def columns_of(result: Mapping[str, Any]) -> list[str]:
    """Return the names of the table's columns."""
    ratio = [result["ratio"], "95 % interval"] if result["ratio"] else []
    return ["coefficient", "estimate", "std. error", "95 % interval", "z", "p", *ratio]


def cells_of(result: Mapping[str, Any]) -> list[list[str]]:
    """Return the texts of the table's cells."""
    error, rows = f"std_error_{result['intervals']}", []
    for row in result["table"]:
        cells = [row["name"], _number(row["estimate"]), _number(row[error]), _interval(row["low"], row["high"])]
        cells += ["-" if row["z"] is None else f"{row['z']:.2f}", _p_value(row["p"])]
        if result["ratio"]:
            has = row.get("ratio") is not None
            cells += [_number(row["ratio"]) if has else "-"]
            cells += [_interval(row["ratio_low"], row["ratio_high"]) if has else "-"]
        rows.append(cells)
    return rows


def meta_cells(studies: Mapping[str, float]) -> list[str]:
    """Return the texts of the cells of a coefficient's meta-analysis, in the order of `META_COLUMNS`."""
    cells = []
    for name in ("fixed", "random"):
        estimate, error = studies[name], studies[f"{name}_std_error"]
        interval = _interval(estimate - _QUANTILE * error, estimate + _QUANTILE * error)
        cells.append(f"{_number(estimate)} ({interval})")
    return [*cells, _number(studies["between_sites"]), f"{studies['heterogeneity']:.0%}"]


def notes(result: Mapping[str, Any]) -> list[str]:
    """Return the lines below the table."""
    fit = f"log likelihood {result['log_likelihood']:.4f}, deviance {result['deviance']:.4f}, AIC {result['aic']:.4f}"
    lines = [f"{fit}, {result['parameters']} parameters"]
    if result["references"]:
        lines.append(f"reference categories: {join_first(list(result['references'].values()), 20)}")
    for name, reason in result["left_out"].items():
        lines.append(f"without a coefficient: {name!r}, {reason}")
    if result["sites_withheld"]:
        lines.append(f"no robust standard errors, since at {result['sites_withheld']} sites few rows dominate them")
    if result["ridge"]:
        lines.append(f"ridge {result['ridge']:g}: estimates are shrunk, and intervals are of the shrunk coefficients")
    if result["sites_fitted"] is not None:
        count = f"{result['sites_fitted']} of {result['sites']} sites"
        lines.append(f"meta-analysis: {count} have their own estimates; see {COEFFICIENTS}.csv")
    return lines


def align(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a table: the first column aligned to the left, the others to the right."""
    table = [columns, *rows]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    lines = []
    for first, *others in table:
        padded = [cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True)]
        lines.append("  ".join([first.ljust(widths[0]), *padded]))
    return lines


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


def _interval(low: float | None, high: float | None) -> str:
    return "-" if low is None or high is None else f"{low:.4g} to {high:.4g}"


def _p_value(value: float | None) -> str:
    if value is None:
        return "-"
    return "< 0.0001" if value < 1e-4 else f"{value:.4f}"
