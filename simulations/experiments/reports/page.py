"""The reports of a reproduction for people: table.md, and report.html, a self-contained page."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from apps.config import SHOWING_KEYS, Scalar, flatten, parse_run_config
from simulations.experiments.expansion import Expansion
from simulations.experiments.files import SET_BY_COMMAND
from simulations.experiments.lines import Line
from simulations.experiments.reports import claims, tables
from simulations.experiments.reports.figures import LABELS
from simulations.results.output import Table, format_cell, format_count
from simulations.results.page import render
from simulations.results.records import RunRecord, differing

_HIDDEN = (*SET_BY_COMMAND, *SHOWING_KEYS, "data-dir")  # keys of a single run or machine, which the report omits


def as_markdown_and_html(
    expansion: Expansion,
    records: Mapping[str, RunRecord],
    rows: Sequence[tables.Row],
    judged: Sequence[claims.Judged],
    curves: str,
    failed: Mapping[str, str],
    missing: int,
) -> tuple[str, str]:
    """Return the text of table.md and of report.html. The same runs give the same texts.

    Args:
        expansion: The experiment.
        records: The finished runs, by their names.
        rows: The rows of the table.
        judged: The paper's claims.
        curves: The text of curves.svg. Empty: no figure.
        failed: The titles of the runs that failed, with the reasons.
        missing: The number of runs that were not made.
    """
    experiment, tuned = expansion.experiment, expansion.tuned
    profile = experiment.profile(expansion.profile)
    shared, defaults, methods = _configuration(expansion)
    values = {
        "experiment": experiment,
        "profile": expansion.profile,
        "seeds": expansion.seeds_text,
        "runs": f"{len(records)} of {format_count(len(expansion.runs), 'run')} finished",
        "minutes": f"{profile.minutes:g}",
        "datasets": ", ".join(dict.fromkeys(line.dataset for line in expansion.lines)),
        "claims": judged,
        "claims_legend": claims.LEGEND,
        "results": tables.results(rows, without=["difference"]),
        "tables": [_results(metric, rows) for metric in experiment.metrics],
        "left_out": {line.title: reason for line, reason in expansion.left_out},
        "legend": tables.LEGEND,
        "full_paper": any(row.paper is not None for row in rows) and expansion.profile != "full",
        "drawn": f"{experiment.y_label or experiment.metrics[0]} by {' and by '.join(experiment.x)}",
        "tuned": None if tuned is None else (tables.tuned_sentence(tuned), tables.tuned_table(tuned)),
        "differs": [*experiment.differs, *profile.differs, *_list_untuned(expansion)],
        "shared": shared,
        "defaults": defaults,
        "methods": methods,
        "versions": _versions(records.values()),
        "failed": {title: " ".join(reason.split()) for title, reason in failed.items()},
        "missing": format_count(missing, "run") if missing else "",
    }
    here = Path(__file__)
    return render(here.with_name("table.jinja"), "", **values), render(here.with_name("page.html"), curves, **values)


def _results(metric: str, rows: Sequence[tables.Row]) -> Table:
    """Return the table of a metric."""
    selected = [row for row in rows if row.metric == metric]
    label = LABELS.get(metric, "")
    caption = metric if not label or "$" in label or label.lower() == metric else f"{metric}: {label}"
    # the page's head names a single data set
    without = ["metric", "data set"] if len({row.dataset for row in selected}) == 1 else ["metric"]
    return tables.results(selected, caption, without)


def _list_untuned(expansion: Expansion) -> list[str]:
    """Return sentences about differences from the paper that exist since no values were chosen for some methods."""
    if expansion.experiment.tune is None:
        return []
    tune, tuned = expansion.experiment.tune.in_profile(expansion.profile), expansion.tuned
    lines = [line for line in expansion.lines if tune.grid_of(line.method)]
    untuned = [line.title for line in lines if tuned is None or not tuned.values_of(line.at)]
    if not untuned:
        return []
    return tune.without + ([f"No values were chosen for {', '.join(untuned)}."] if len(untuned) < len(lines) else [])


def _configuration(expansion: Expansion) -> tuple[dict[str, str], dict[str, str], list[Table]]:
    """Return the runs' configs in three parts.

    Returns:
        Keys with one value in all runs, set by the experiment. Keys with one value in all runs, left at their default.
        For each method a table of its other keys, with a row for each setting.
    """
    configs = [_resolve(line) for line in expansion.lines]
    differ = differing(configs)
    configured = {"clients", "engine", *(key for line in expansion.lines for key in line.config)}
    common = {key: format_cell(value) or '""' for key, value in configs[0].items() if key not in differ}
    methods: dict[str, list[tuple[str, dict[str, Scalar]]]] = {}
    for line, config in zip(expansion.lines, configs, strict=True):
        methods.setdefault(line.method, []).append((", ".join(filter(None, [line.dataset, line.setting])), config))
    by_method = []
    for method, own in methods.items():
        if keys := [key for key in dict.fromkeys(key for _, config in own for key in config) if key in differ]:
            cells: list[list[Any]] = [[setting, *(config.get(key) for key in keys)] for setting, config in own]
            by_method.append(Table(method, ["setting", *keys], cells))
    shared, defaults = (
        {key: common[key] for key in common if (key in configured) == wanted} for wanted in (True, False)
    )
    return shared, defaults, by_method


def _resolve(line: Line) -> dict[str, Scalar]:
    config = flatten(parse_run_config(line.config).resolve())
    shown = {key: value for key, value in config.items() if key not in _HIDDEN}
    return {"engine": line.run.engine, "clients": line.clients, **shown}


def _versions(records: Iterable[RunRecord]) -> dict[str, str]:
    """Return by package the versions in the runs' result.json. Different versions are separated by commas."""
    versions: dict[str, set[str]] = {}
    for record in records:
        for package, version in record.result.get("versions", {}).items():
            versions.setdefault(package, set()).add(version)
    return {package: ", ".join(sorted(several)) for package, several in versions.items()}
