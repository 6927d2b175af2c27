"""The files of table one: describe.json, describe.csv (one line for each figure) and describe.txt (for people)."""

import csv
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from problems.files import write_atomic

NAME = "describe"
Cell = str | int | float | None
_QUARTILES = ("q50", "q25", "q75")
MOST_SITES = 8
"""The largest number of sites that have their own column in describe.txt."""
ALL = "all"
_FIELDS = ("site", "column", "level", "statistic", "value", "note")


def write(folder: Path, table: Mapping[str, Any]) -> None:
    """Write the three files into a run directory."""
    texts = {"json": json.dumps(table, indent=2) + "\n", "csv": as_csv(table), "txt": as_text(table)}
    for ending, text in texts.items():
        write_atomic(folder / f"{NAME}.{ending}", text.encode())


def as_csv(table: Mapping[str, Any]) -> str:
    """Return the figures in long form: site, column, level, statistic, value, note."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(_FIELDS)
    writer.writerows(_figures(table))
    return text.getvalue()


def _figures(table: Mapping[str, Any]) -> Iterator[Sequence[Cell]]:
    parts = [(ALL, table), *((site["site"], site) for site in table["sites"])]
    for site, part in parts:
        for name in ("rows", "positives", "negatives", "prevalence"):
            note = "hidden" if part.get(name) is None else ""
            yield site, "", "", name, part.get(name), note
    for column in table["columns"]:
        name = column["column"]
        described = [column["all"], *column["by_site"]]
        for (site, _), entry in zip(parts, described, strict=False):
            yield from _of_entry(site, name, entry)
        for (site, _), difference in zip(parts[1:], column["differences"], strict=False):
            yield site, name, "", "standardised difference", difference, "from all other sites"
        note = _note(column["information_rounded"])
        yield ALL, name, "", "information value", column["information_value"], note
        note = f"bin; {note}" if note else "bin"
        for one in column["bins"]:
            for statistic in ("negatives", "positives", "weight_of_evidence"):
                yield ALL, name, one["bin"], statistic.replace("_", " "), one[statistic], note
        for warning in column["warnings"]:
            yield ALL, name, "", "warning", None, f"{warning['warning']}: {warning['text']}"


def _of_entry(site: str, name: str, entry: Mapping[str, Any] | None) -> Iterator[Sequence[Cell]]:
    if entry is None:
        return
    for statistic, value in entry.items():
        if isinstance(value, bool) or statistic == "levels":
            continue
        note = _note(statistic == "missing" and entry["missing_hidden"])
        if statistic in ("mean", "deviation") and entry["rare_values_changed"]:
            note = "rare values changed"
        yield site, name, "", statistic.replace("_", " "), value, note
    for level in entry.get("levels", []):
        note = _note(level["hidden"])
        yield site, name, level["level"], "count", level["count"], note
        yield site, name, level["level"], "share", level["share"], note


def _note(hidden: bool) -> str:
    return "rare counts hidden" if hidden else ""


def as_rows(table: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Return table one for people: the heads of its columns, and its rows.

    With more than `MOST_SITES` sites, a single column has the range over the sites.
    """
    sites, columns = table["sites"], table["columns"]
    wide = 0 < len(sites) <= MOST_SITES
    heads = ["", ALL, *([site["site"] for site in sites] if wide else ["range over sites"] if sites else [])]
    heads += ["largest SMD", "IV"]
    parts = [table, *sites]
    rows = [
        _line("rows", [_count(part["rows"]) for part in parts], [part["rows"] for part in parts], wide=wide),
    ]
    shares = [None if part["rows"] is None else part["prevalence"] for part in parts]
    texts = [_share(part.get("positives"), share) for part, share in zip(parts, shares, strict=True)]
    outcome = f"{table['outcome'] or 'outcome'} = {table['positive_label'] or 'positive'}, n (%)"
    rows.append(_line(outcome, texts, shares, wide=wide, percent=True))
    for column in columns:
        entries = [column["all"], *column["by_site"]]
        lines = _of_text(column, entries, wide) if column["kind"] == "category" else _of_number(column, entries, wide)
        lines[0] += [_decimal(column["largest_difference"]), write_information(column)]
        rows += lines
    return heads, [[*row, *[""] * (len(heads) - len(row))] for row in rows]


def _line(name: str, texts: Sequence[str], values: Sequence[Any], *, wide: bool, percent: bool = False) -> list[str]:
    """Return a row: the text of all sites, and each site's text, or the range of the sites' values."""
    if wide or len(texts) == 1:
        return [name, *texts]
    known = [100 * value if percent else value for value in values[1:] if value is not None]
    unit = " %" if percent else ""
    return [name, texts[0], f"{_number(min(known))} to {_number(max(known))}{unit}" if known else "-"]


def _of_number(column: Mapping[str, Any], entries: Sequence[Any], wide: bool) -> list[list[str]]:
    name = column["column"]

    def get(key: str) -> list[Any]:
        return [None if entry is None else entry.get(key) for entry in entries]

    means, deviations = get("mean"), get("deviation")
    marks = ["~" if entry and entry["rare_values_changed"] else "" for entry in entries]
    texts = [
        "-" if mean is None else f"{mark}{_number(mean)} ({_number(deviation)})"
        for mean, deviation, mark in zip(means, deviations, marks, strict=True)
    ]
    lines = [_line(f"{name}, mean (SD)", texts, means, wide=wide)]
    middle, low, high = map(get, _QUARTILES)
    texts = [
        "-" if one is None else f"{_number(one)} ({_number(below)} to {_number(above)})"
        for one, below, above in zip(middle, low, high, strict=True)
    ]
    lines.append(_line("  median (quartiles)", texts, middle, wide=wide))
    return [*lines, *_missing(entries, wide)]


def _missing(entries: Sequence[Any], wide: bool) -> list[list[str]]:
    if not any(entry and (entry["missing"] or entry["missing_hidden"]) for entry in entries):
        return []
    values = [None if entry is None else entry["missing"] for entry in entries]
    texts = [
        "-" if entry is None else f"{'~' if entry['missing_hidden'] else ''}{entry['missing']:,}" for entry in entries
    ]
    return [_line("  missing, n", texts, values, wide=wide)]


def _of_text(column: Mapping[str, Any], entries: Sequence[Any], wide: bool) -> list[list[str]]:
    lines = [[column["column"], *[""] * (len(entries) if wide or len(entries) == 1 else 2)]]
    for place, level in enumerate(column["all"]["levels"]):
        levels = [None if entry is None else entry["levels"][place] for entry in entries]
        shares = [None if one is None else one["share"] for one in levels]
        texts = ["-" if one is None else _share(one["count"], one["share"], one["hidden"]) for one in levels]
        lines.append(_line(f"  {level['level']}, n (%)", texts, shares, wide=wide, percent=True))
    for key, name in (("other_texts", "other texts"), ("suppressed", "in suppressed cells")):
        if any(entry and entry[key] for entry in entries):
            values = [None if entry is None else entry[key] for entry in entries]
            lines.append(_line(f"  {name}, n", [_count(value) for value in values], values, wide=wide))
    return [*lines, *_missing(entries, wide)]


def _count(value: int | None) -> str:
    return "-" if value is None else f"{value:,}"


def _share(count: int | None, share: float | None, hidden: bool = False) -> str:
    if count is None or share is None:
        return "-"
    if hidden:
        return f">= {count:,}" if count else "*"
    return f"{count:,} ({100 * share:.1f})"


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if abs(value) >= 10_000 else f"{value:.4g}"


def _decimal(value: float | None, digits: int = 2) -> str:
    return "" if value is None else f"{value:.{digits}f}"


def write_information(column: Mapping[str, Any]) -> str:
    """Return the information value of a column as text, "" if it was left out."""
    mark = "~" if _is_rounded(column) else ""
    return mark + _decimal(column["information_value"], 3)


def _is_rounded(column: Mapping[str, Any]) -> bool:
    return column["information_value"] is not None and column.get("information_rounded", False)


def notes(table: Mapping[str, Any]) -> list[str]:
    """Return the notes below table one."""
    lines = []
    if count := table["sites_that_show_nothing"]:
        lines.append(f"{count} site{'s show' if count > 1 else ' shows'} nothing, with too few rows.")
    if count := table["sites_that_hide_the_outcome"]:
        lines.append(f"{count} site{'s hide' if count > 1 else ' hides'} the outcome: a class is below least-cell.")
    if noise := table["noise"]:
        budget = f"epsilon {noise['epsilon']:g}, delta {noise['delta']:g}"
        lines.append(f"Noise: the standard deviation of each count is {noise['deviation']:.0f} rows ({budget}).")
        lines.append("Other figures are computed from these counts, and left out if the noise is large for them.")
    if table["secure_sum"]:
        lines.append("Secure sums: figures of single sites are unknown to the server.")
    if count := table.get("sum_of_least_cells"):
        lines.append(f"Sites count groups of rows: the ranks of quantiles may be wrong by about {count:,} rows.")
    if fewest := table.get("rows_for_information"):
        lines.append(f"No IV of numbers: a class has fewer than {fewest:,} rows, too few for counts of groups.")
    texts = [column for column in table["columns"] if column["kind"] == "category"]
    left_out = [column for column in texts if column["information_value"] is None]
    if names := [column["column"] for column in left_out if column.get("information_rounded")]:
        lines.append(f"No IV of {', '.join(names)}: too many counts are hidden.")
    entries = [entry for column in table["columns"] for entry in (column["all"], *column["by_site"]) if entry]
    rounded = any(entry["missing_hidden"] or entry.get("rare_values_changed") for entry in entries)
    if rounded or any(map(_is_rounded, table["columns"])):
        lines.append("~: rounded, since a site hides counts below its least-cell.")
    if any(level["hidden"] for entry in entries for level in entry.get("levels", [])):
        lines.append("* and >=: cells below a site's least-cell, and as many others as protect them, are suppressed.")
    return [*lines, *(f"{column}: {text}." for column, text in warnings(table))]


def warnings(table: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the column and the text of each warning, with the names of the sites that it is about."""
    for column in table["columns"]:
        for warning in column["warnings"]:
            where = ", ".join(table["sites"][site]["site"] for site in warning.get("sites", []))
            yield column["column"], f"{warning['text']}{f' ({where})' if where else ''}"


def as_text(table: Mapping[str, Any]) -> str:
    """Return table one and its notes for a terminal."""
    heads, rows = as_rows(table)
    cells = [[cell if cell.isprintable() else ascii(cell) for cell in row] for row in [heads, *rows]]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = [
        "  ".join([row[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(row[1:], widths[1:], strict=True))]).rstrip()
        for row in cells
    ]
    return "\n".join([*lines, "", *notes(table)]).rstrip() + "\n"
