"""The command ``report``: a page about runs, finished or not."""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from apps.config import ConfigError
from apps.evaluation.metric_names import better
from apps.evaluation.small_cells import describe_left_out
from apps.run_directory.coefficients import (
    COEFFICIENTS,
    META,
    META_COLUMNS,
    cells_of,
    columns_of,
    describe_table,
    meta_cells,
    notes,
)
from apps.run_directory.curves import CONCORDANCES, RANKING
from apps.run_directory.table_one import NAME as DESCRIBE
from payloads.site_names import label_entry, label_site
from problems.errors import require
from problems.intervals import FIGURES
from simulations.results.after import tabulate_importance, tabulate_subgroups
from simulations.results.board import (
    NO_BASELINES,
    NO_LABELS,
    Board,
    describe_findings,
    describe_numbers,
    tabulate_findings,
)
from simulations.results.board_figures import draw_board
from simulations.results.compare import Comparison
from simulations.results.described import read_description
from simulations.results.figure import Groups, draw
from simulations.results.output import Table, format_cell, format_megabytes, format_metric, metric_cell
from simulations.results.page import render
from simulations.results.records import UNFINISHED, RunRecord
from simulations.results.survival_board import (
    describe_calibration,
    draw_survival,
    read_survival,
    tabulate_metrics,
    tabulate_sites,
)
from simulations.results.target import is_page, write_output
from simulations.results.tripod import checklist

NAME = "report.html"
# the parts of a finished run's page, which are None if a run does not have them
_PARTS = (
    *("threshold", "counts", "decisions", "recalibration", "recalibrations", "subgroups", "importance"),
    *("metrics", "calibration", "survival_by_site", "findings"),
)
_PANEL = (4.2, 3.4)  # inches of a panel of a single run, which a phone can show


def write_report(paths: Sequence[Path], out: Path | None = None) -> Path:
    """Write the page of runs.

    Args:
        paths: The run directories.
        out: The file. None: ``report.html`` in the run directory, for a single run.

    Returns:
        The file.

    Raises:
        ConfigError: A directory contains no run, several runs have no ``out``, or the file cannot be written.
        MissingExtraError: Matplotlib or Jinja is not installed.
    """
    require("report", "reports", "jinja2", "matplotlib")
    if out is None and len(paths) > 1:
        allowed = "a file, since there are several runs"
        raise ConfigError("--out", got="nothing", allowed=allowed, hint=f"set a file, such as --out {NAME}")
    page = as_html(Comparison.of([path.expanduser() for path in paths]))
    target = (out or paths[0] / NAME).expanduser()
    write_output(target, page.encode(), None if out is None else is_page)
    return target


def as_html(comparison: Comparison) -> str:
    """Return the page's text. The same runs give the same text."""
    runs, metrics = comparison.runs, comparison.compared
    several = len(runs) > 1
    labels = {**RANKING, **CONCORDANCES}
    panels = {labels.get(metric, metric): comparison.curves(metric) for metric in metrics}
    return render(
        Path(__file__).with_name("report.html"),
        _draw(panels) if several and panels else "",
        title=f"{len(runs)} runs" if several else comparison.label(runs[0]),
        drawn=f"{', '.join(metrics)} by round{comparison.where(*metrics)}",
        tables=comparison.tables(comparison.choose_metric(None)) if several else [],
        reasons=comparison.reasons if several else [],
        runs=[_tell(run, comparison) for run in runs],
        rounds=[] if several else [_draw({label: groups}) for label, groups in panels.items()],
        board=None if several else _describe(runs[0]),
        described=None if several else read_description(runs[0].path),
    )


def _draw(panels: Mapping[str, Groups]) -> str:
    """Return the SVG file of metrics by round."""
    figure = io.BytesIO()
    draw(panels, figure, "svg", size=_PANEL if len(panels) == 1 else None)
    return figure.getvalue().decode()


def _describe(run: RunRecord) -> dict[str, Any] | None:
    """Return a finished run's part of the page for a board. None: the run is not finished."""
    if not run.result or run.facts["strategy"] == DESCRIBE:
        return None
    board = Board.of(run)
    if not (board.is_binary or board.is_timed):
        headline = describe_numbers(run) or describe_findings(run) or NO_LABELS
        return {"headline": headline, "checklist": None, "findings": tabulate_findings(run)}
    common = {
        "headline": board.headline(),
        "comparison": board.comparison(),
        "no_comparison": NO_BASELINES,
        "checklist": checklist(board),
    }
    return {**dict.fromkeys(_PARTS), **common, **(_describe_times(run) if board.is_timed else _describe_classes(board))}


def _describe_times(run: RunRecord) -> dict[str, Any]:
    """Return the parts of the page that only runs with times to an event have."""
    survival = read_survival(run)
    if not survival:
        return {"figures": []}
    return {
        "figures": list(draw_survival(run, survival)),
        "metrics": tabulate_metrics(run, survival),
        "calibration": describe_calibration(survival),
        "survival_by_site": tabulate_sites(survival),
    }


def _describe_classes(board: Board) -> dict[str, Any]:
    """Return the parts of the page that only runs with binary labels have."""
    return {
        "figures": list(draw_board(board)),
        "threshold": board.threshold(),
        "counts": board.counts(),
        "decisions": board.decisions(),
        "recalibration": board.recalibration(),
        "recalibrations": board.recalibrations(),
        "subgroups": tabulate_subgroups(board.run.result),
        "importance": tabulate_importance(board.run.result),
    }


def _tell(run: RunRecord, comparison: Comparison) -> dict[str, Any]:
    """Return a run's part of the page, with tables before and after its facts. Empty tables are not shown."""
    reason = " ".join(run.reason.split())
    if run.status == UNFINISHED:
        reason = "it is still running, or it ended before it could report a reason"
    before = [*_coefficients(run), _metrics(run, comparison.metrics), _sites(run), _missing(run)]
    behind = [_departures(run), _files(run.path)]
    return {
        "title": f"{run.name}, {run.status}",
        "reason": reason,
        "before": before,
        "facts": _facts(run),
        "behind": behind,
    }


def _coefficients(run: RunRecord) -> list[Table]:
    """Return the tables of a regression: its coefficients, and the meta-analysis of sites. None for other runs."""
    if not (result := run.result.get(COEFFICIENTS)):
        return []
    caption = "; ".join([describe_table(result), *notes(result)])
    studies = [[row["name"], *meta_cells(row[META])] for row in result["table"] if META in row]
    meta = f"meta-analysis of the estimates of {result['sites_fitted']} sites, with 95 % intervals"
    return [Table(caption, columns_of(result), cells_of(result)), Table(meta, ["coefficient", *META_COLUMNS], studies)]


def _facts(run: RunRecord) -> dict[str, str]:
    facts = run.facts
    found: dict[str, Any] = {
        **{key: facts[key] for key in ("strategy", "dataset", "clients")},
        "rounds": None
        if facts["strategy"] == DESCRIBE
        else f"{facts['rounds']} of {run.config.get('num-server-rounds')}",
        "selected": run.selection or None,
        "seed": facts["seed"],
        "engine": run.result.get("engine"),
        "wall time": f"{format_cell(facts['seconds'], 1)} s",
        "from the clients": f"{format_megabytes(facts['bytes_up'])} MB",
        "to the clients": f"{format_megabytes(facts['bytes_down'])} MB",
        "versions": ", ".join(f"{package} {one}" for package, one in run.result.get("versions", {}).items()) or None,
    }
    return {key: format_cell(value) for key, value in found.items() if value is not None}


def _metrics(run: RunRecord, metrics: Sequence[str]) -> Table:
    rows: list[list[Any]] = []
    tested = run.result.get("test_metrics", {})
    for metric in metrics:
        if curve := run.curve(metric):
            finite = {number: value for number, value in curve.items() if math.isfinite(value)}
            best = better(metric)(finite, key=finite.__getitem__, default=None)
            values = [next(reversed(curve.values())), finite.get(best)]
            more = [metric_cell(tested.get(metric))] if tested else []
            rows.append([metric, *map(metric_cell, values), best, *more])
    columns = ["metric", "last", "best", "best in round", *(["selected, on the test rows"] if tested else [])]
    return Table("metrics", columns, rows)


def _sites(run: RunRecord) -> Table:
    found = [*run.result.get("sites", []), *([run.result["all"]] if "all" in run.result else [])]
    figures = [name for name in FIGURES if found and name in found[0]]
    counts = ["true_positives", "false_positives", "true_negatives", "false_negatives"]
    counts = counts if found and "confusion" in found[0] else []
    rows = [
        [
            *(label_entry(one) if "partition" in one else "all", one["rows"], one["positives"]),
            *((one["confusion"] or {}).get(name) for name in counts),  # None: a count is too small to be shown
            *(_figure(one[name]) for name in figures),
        ]
        for one in found
    ]
    caption = f"figures on {run.result.get('figures_on')}, with 95 % intervals" if figures else "at the threshold"
    if left_out := run.result.get("left_out"):
        caption += f"; {describe_left_out(left_out)}"
    words = [name.replace("_", " ") for name in counts]
    return Table(caption, ["site", "rows", "positives", *words, *figures], rows)


def _figure(interval: Sequence[float] | None) -> tuple[str, float] | None:
    if interval is None:
        return None
    value, low, high = map(format_metric, interval)
    return f"{value} ({low} to {high})", interval[0]


def _missing(run: RunRecord) -> Table:
    of = run.facts["rounds"]
    rows = [
        [label_site(site, run.site_names), (f"{one['rounds']} of {of}", one["rounds"]), one["reason"]]
        for site, one in run.dropped.items()
    ]
    return Table("missing sites", ["site", "rounds", "last reason"], rows)


def _departures(run: RunRecord) -> Table:
    rows = [
        [key, *(format_cell(value) if value != "" else '""' for value in (run.config[key], default))]
        for key, default in run.departures.items()
    ]
    return Table("config keys that differ from the defaults", ["key", "value", "default"], rows)


def _files(folder: Path) -> Table:
    rows: list[list[Any]] = []
    for path in sorted(folder.iterdir()):
        if path.name != NAME:
            size = sum(file.stat().st_size for file in (path, *path.rglob("*")) if file.is_file())
            rows.append([path.name + "/" * path.is_dir(), size])
    return Table("files of the run directory", ["file", "bytes"], rows)
