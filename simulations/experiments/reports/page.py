"""report.html: a reproduction on one self-contained page."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from apps.config import SHOWING_KEYS, Scalar, flatten, parse_run_config
from simulations.experiments.expansion import Expansion
from simulations.experiments.files import SET_BY_COMMAND
from simulations.experiments.lines import Line
from simulations.experiments.reports.claims import LEGEND as CLAIMS_LEGEND
from simulations.experiments.reports.claims import Judged
from simulations.experiments.reports.figures import LABELS
from simulations.experiments.reports.tables import (
    LEGEND,
    Row,
    format_count,
    pair,
    results,
    tuned_sentence,
    tuned_table,
)
from simulations.results.output import Cell, Table, format_cell, number_cell, value_cell
from simulations.results.page import render
from simulations.results.paired import Difference
from simulations.results.records import RunRecord

_UNSAID = (*SET_BY_COMMAND, *SHOWING_KEYS, "data-dir")  # keys of a single run or machine


def as_html(
    expansion: Expansion,
    records: Mapping[str, RunRecord],
    rows: Sequence[Row],
    judged: Sequence[Judged],
    curves: str,
    failed: Mapping[str, str],
    missing: int,
) -> str:
    """The page's text, which is always the same for the same runs.

    Args:
        expansion: what was to be run.
        records: the finished runs, by their names.
        rows: the table.
        judged: the paper's claims.
        curves: the text of curves.svg; empty: nothing was drawn.
        failed: the titles of the runs that failed, with the reasons.
        missing: the number of runs that have not been made.
    """
    experiment = expansion.experiment
    profile = experiment.profile(expansion.profile)
    shared, defaults, methods = configuration(expansion)
    tuned = expansion.tuned
    return render(
        Path(__file__).with_name("page.html"),
        experiment=experiment,
        profile=expansion.profile,
        seeds=format_count(expansion.seeds, "seed"),
        runs=f"{len(records)} of {format_count(len(expansion.runs), 'run')} finished",
        minutes=f"{profile.minutes:g}",
        datasets=", ".join(dict.fromkeys(line.dataset for line in expansion.lines)),
        claims=[(claim.sentence, _claim_table(claim)) for claim in judged],
        claims_legend=CLAIMS_LEGEND,
        tables=[_results(metric, rows, expansion.seeds) for metric in experiment.metrics],
        legend=LEGEND,
        full_paper=any(row.paper is not None for row in rows) and expansion.profile != "full",
        curves=curves,
        drawn=f"{experiment.y_label or experiment.metrics[0]} by {' and by '.join(experiment.x)}",
        tuned=None if tuned is None else (tuned_sentence(tuned), tuned_table(tuned)),
        differs=[*experiment.differs, *profile.differs, *_list_untuned(expansion)],
        shared=shared,
        defaults=defaults,
        methods=methods,
        versions=versions(records.values()),
        failed={title: " ".join(reason.split()) for title, reason in failed.items()},
        missing=format_count(missing, "run") if missing else "",
    )


def _results(metric: str, rows: Sequence[Row], seeds: int) -> Table:
    """The table of one metric."""
    found = [row for row in rows if row.metric == metric]
    label = LABELS.get(metric, "")
    caption = metric if not label or "$" in label or label.lower() == metric else f"{metric}: {label}"
    # a single data set is named in the page's head
    without = ["metric", "data set"] if len({row.dataset for row in found}) == 1 else ["metric"]
    return results(found, seeds, caption, without)


def _claim_table(claim: Judged) -> Table:
    columns = ["setting", f"{claim.better}", f"{claim.than}", "gap", "95 % interval", "p", "seeds", "verdict"]
    rows = [
        [
            Cell(finding.setting),
            number_cell(pair(finding.better), finding.better.mean),
            number_cell(pair(finding.than), finding.than.mean),
            *_gap_cells(finding.gap),
            Cell(finding.verdict),
        ]
        for finding in claim.findings
    ]
    if not any(row[0].text for row in rows):
        columns, rows = columns[1:], [row[1:] for row in rows]
    return Table(f"{claim.metric}, mean ± sample standard deviation", columns, rows)


def _list_untuned(expansion: Expansion) -> list[str]:
    """The differences from the paper that remain because no values have been chosen, and for which methods."""
    if expansion.experiment.tune is None:
        return []
    tune, tuned = expansion.experiment.tune.in_profile(expansion.profile), expansion.tuned
    lines = [line for line in expansion.lines if tune.grid_of(line.method)]
    untuned = [line.title for line in lines if tuned is None or not tuned.values_of(line.at)]
    if not untuned:
        return []
    return tune.without + ([f"No values were chosen for {', '.join(untuned)}."] if len(untuned) < len(lines) else [])


def _gap_cells(gap: Difference | None) -> list[Cell]:
    if gap is None:
        return [number_cell("-", None), Cell("-"), number_cell("-", None), number_cell("0", 0)]
    mean, interval, p = gap.format_cells()
    return [number_cell(mean, gap.mean), Cell(interval), number_cell(p, gap.p), number_cell(str(gap.seeds), gap.seeds)]


def configuration(expansion: Expansion) -> tuple[dict[str, str], dict[str, str], dict[str, Table]]:
    """The runs' configs in three parts.

    Returns:
        The keys with one value in all runs, those that the experiment sets and those at their default, and for each
            method a table of its other keys, with a row for each setting.
    """
    resolved = {line: _resolve(line) for line in expansion.lines}
    first = resolved[expansion.lines[0]]
    common = {
        key: value
        for key, value in first.items()
        if all(key in config and repr(config[key]) == repr(value) for config in resolved.values())
    }
    named = {"clients", "engine", *(key for line in expansion.lines for key in line.config)}
    methods: dict[str, Table] = {}
    for method in dict.fromkeys(line.method for line in expansion.lines):
        own = [line for line in expansion.lines if line.method == method]
        keys = [key for key in dict.fromkeys(key for line in own for key in resolved[line]) if key not in common]
        rows = [
            [
                Cell(", ".join(filter(None, [line.dataset, line.setting]))),
                *(value_cell(resolved[line].get(key)) for key in keys),
            ]
            for line in own
            if keys
        ]
        methods[method] = Table(method, ["setting", *keys], rows)
    shared, defaults = (
        {key: format_cell(value) or '""' for key, value in common.items() if (key in named) == wanted}
        for wanted in (True, False)
    )
    return shared, defaults, methods


def _resolve(line: Line) -> dict[str, Scalar]:
    config = flatten(parse_run_config(line.config).resolve())
    kept = {key: value for key, value in config.items() if key not in _UNSAID}
    return {"engine": line.run.engine, "clients": line.clients, **kept}


def versions(records: Iterable[RunRecord]) -> dict[str, str]:
    """The versions of packages that the runs' result.json name.

    Returns:
        Package -> its version; where the runs differ, all of them with commas between.
    """
    found: dict[str, set[str]] = {}
    for record in records:
        for package, version in record.result.get("versions", {}).items():
            found.setdefault(package, set()).add(version)
    return {package: ", ".join(sorted(several)) for package, several in found.items()}
