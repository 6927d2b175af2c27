"""report.html: a reproduction on one page that needs nothing beside it."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from apps.config import SHOWING_KEYS, Scalar, flattened, parse_run_config
from simulations.experiments.expansion import Expansion, Line
from simulations.experiments.experiment import SET_BY_COMMAND
from simulations.experiments.reports.claims import LEGEND as CLAIMS_LEGEND
from simulations.experiments.reports.claims import Judged
from simulations.experiments.reports.figures import LABELS
from simulations.experiments.reports.page_template import PAGE
from simulations.experiments.reports.tables import LEGEND, Row, counted, pair, shown_pair, tuned_sentence, tuned_table
from simulations.experiments.tuned_values import Tuned
from simulations.results.output import shown, shown_metric
from simulations.results.paired import Difference
from simulations.results.records import RunRecord

_UNSAID = (*SET_BY_COMMAND, *SHOWING_KEYS, "data-dir")  # those of one run, or of one machine
_WIDTH = 0.7  # below this part of its own width a figure's text is too small to read
# matplotlib's black and white, and its colours of curves in their order, which a dark page has otherwise
_INK, _GROUND = "#000000", "#ffffff"
_CYCLE = (
    *("#1f77b4", "#ff7f0e", "#2ca02c", "#d62728", "#9467bd"),
    *("#8c564b", "#e377c2", "#7f7f7f", "#bcbd22", "#17becf"),
)


@dataclass(frozen=True)
class Cell:
    """A table's cell: what it says, and the number it is sorted by."""

    text: str
    number: float | None = None
    numeric: bool = False

    @property
    def key(self) -> str:
        """What the page's script reads the number from; empty: there is none."""
        return "" if self.number is None or not math.isfinite(self.number) else repr(float(self.number))


@dataclass(frozen=True)
class Table:
    """A table under its caption, rows of cells."""

    caption: str
    columns: list[str]
    rows: list[list[Cell]]


def as_html(
    expansion: Expansion,
    records: Mapping[str, RunRecord],
    rows: Sequence[Row],
    judged: Sequence[Judged],
    curves: str,
    failed: Mapping[str, str],
    missing: int,
) -> str:
    """The page; the same runs are the same text.

    Args:
        expansion: what was to be run.
        records: the finished runs, by their names.
        rows: the table.
        judged: the paper's claims.
        curves: the text of curves.svg; empty: nothing was drawn.
        failed: the titles of the runs that failed, with the reasons.
        missing: the number of runs that have not been made.
    """
    from jinja2 import Environment, StrictUndefined
    from markupsafe import Markup

    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    experiment = expansion.experiment
    profile = experiment.profile(expansion.profile)
    shared, defaults, methods = configuration(expansion)
    tuned = expansion.tuned
    return environment.from_string(PAGE).render(
        experiment=experiment,
        profile=expansion.profile,
        seeds=counted(expansion.seeds, "seed"),
        runs=f"{len(records)} of {counted(len(expansion.runs), 'run')} finished",
        minutes=f"{profile.minutes:g}",
        datasets=", ".join(dict.fromkeys(line.dataset for line in expansion.lines)),
        claims=[(claim.sentence, _claim_table(claim)) for claim in judged],
        claims_legend=CLAIMS_LEGEND,
        tables=[_results(metric, rows, expansion.seeds) for metric in experiment.metrics],
        legend=LEGEND,
        full_paper=any(row.paper is not None for row in rows) and expansion.profile != "full",
        curves=Markup(inlined(curves)) if curves else None,
        drawn=f"{experiment.y_label or experiment.metrics[0]} by {' and by '.join(experiment.x)}",
        tuned=None if tuned is None else (tuned_sentence(tuned), _tuned_table(tuned)),
        differs=[*experiment.differs, *profile.differs, *_untuned(expansion)],
        shared=shared,
        defaults=defaults,
        methods=methods,
        versions=versions(records.values()),
        failed={title: " ".join(reason.split()) for title, reason in failed.items()},
        missing=counted(missing, "run") if missing else "",
        cycle=_CYCLE,
    )


def _results(metric: str, rows: Sequence[Row], seeds: int) -> Table:
    """The rows of a metric; columns that say nothing are left out."""
    found = [row for row in rows if row.metric == metric]
    columns = {
        "data set": [Cell(row.dataset) for row in found],
        "method": [Cell(row.method) for row in found],
        "setting": [Cell(row.setting) for row in found],
        "last round": [_number(pair(row), row.mean) for row in found],
        "last tenth": [_number(shown_pair(row.tail_mean, row.tail_std), row.tail_mean) for row in found],
        "seeds": [
            _number(str(row.seeds) if row.seeds == seeds else f"{row.seeds} of {seeds}", row.seeds) for row in found
        ],
        "paper": [_number(shown_pair(row.paper, row.paper_std), row.paper) for row in found],
        "difference": [_difference(row) for row in found],
        "in the paper": [Cell(row.paper_source) for row in found],
    }
    if len({row.dataset for row in found}) == 1:
        del columns["data set"]  # the page's head says it
    optional = ("setting", "paper", "difference", "in the paper")
    kept = {
        name: cells
        for name, cells in columns.items()
        if name not in optional or any(cell.text not in ("", "-") for cell in cells)
    }
    label = LABELS.get(metric, "")
    caption = metric if not label or "$" in label or label.lower() == metric else f"{metric}: {label}"
    return Table(caption, list(kept), [list(cells) for cells in zip(*kept.values(), strict=True)])


def _number(text: str, number: float | None) -> Cell:
    return Cell(text, None if number is None or math.isnan(number) else number, numeric=True)


def _difference(row: Row) -> Cell:
    """Measured less the paper's."""
    if row.mean is None or row.paper is None:
        return _number("-", None)
    gap = row.mean - row.paper
    return _number(("+" if gap > 0 else "") + shown_metric(gap, like=row.paper), gap)


def _claim_table(claim: Judged) -> Table:
    columns = ["setting", f"{claim.better}", f"{claim.than}", "gap", "95 % interval", "p", "seeds", "verdict"]
    rows = [
        [
            Cell(finding.setting),
            _number(pair(finding.better), finding.better.mean),
            _number(pair(finding.than), finding.than.mean),
            *_gap_cells(finding.gap),
            Cell(finding.verdict),
        ]
        for finding in claim.findings
    ]
    if not any(row[0].text for row in rows):
        columns, rows = columns[1:], [row[1:] for row in rows]
    return Table(f"{claim.metric}, mean ± sample standard deviation", columns, rows)


def _untuned(expansion: Expansion) -> list[str]:
    """What differs from the paper because nothing has been chosen."""
    tune = expansion.experiment.tune
    return [] if tune is None or expansion.tuned is not None else tune.in_profile(expansion.profile).without


def _tuned_table(tuned: Tuned) -> Table:
    columns, rows = tuned_table(tuned)
    cells = [
        [*map(Cell, row[:-1]), _number(row[-1], choice.score.mean)]
        for row, choice in zip(rows, tuned.chosen, strict=True)
    ]
    return Table("Chosen values, their ranges and their scores", columns, cells)


def _gap_cells(gap: Difference | None) -> list[Cell]:
    if gap is None:
        return [_number("-", None), Cell("-"), _number("-", None), _number("0", 0)]
    mean, interval, p = gap.shown()
    return [_number(mean, gap.mean), Cell(interval), _number(p, gap.p), _number(str(gap.seeds), gap.seeds)]


def configuration(
    expansion: Expansion,
) -> tuple[dict[str, str], dict[str, str], dict[str, Table]]:
    """The keys that all runs share, set by the experiment and by default, and each method's own, a row a setting."""
    resolved = {line: _resolved(line) for line in expansion.lines}
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
        rows = [[Cell(_place(line)), *(_value(resolved[line].get(key)) for key in keys)] for line in own if keys]
        methods[method] = Table(method, ["setting", *keys], rows)
    shared, defaults = (
        {key: shown(value) or '""' for key, value in common.items() if (key in named) == wanted}
        for wanted in (True, False)
    )
    return shared, defaults, methods


def _resolved(line: Line) -> dict[str, Scalar]:
    config = flattened(parse_run_config(line.config).resolved())
    kept = {key: value for key, value in config.items() if key not in _UNSAID}
    return {"engine": line.engine, "clients": line.clients, **kept}


def _place(line: Line) -> str:
    return ", ".join(filter(None, [line.dataset, line.setting]))


def _value(value: Scalar | None) -> Cell:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return Cell(shown(value), float(value) if is_number else None, numeric=is_number)  # type: ignore[arg-type]


def versions(records: Any) -> dict[str, str]:
    """Package -> its version, or those that the runs had, as their result.json says."""
    found: dict[str, list[str]] = {}
    for record in records:
        for package, version in record.result.get("versions", {}).items():
            found.setdefault(package, [])
            if version not in found[package]:
                found[package].append(version)
    return {package: ", ".join(sorted(several)) for package, several in found.items()}


def inlined(svg: str) -> str:
    """curves.svg as a part of a page: its head is left out, and its colours become the page's."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<!--.*?-->|<metadata>.*?</metadata>|<style.*?</style>", "", svg, flags=re.DOTALL)
    for number, colour in enumerate(_CYCLE):
        svg = svg.replace(colour, f"var(--curve-{number})")
    svg = svg.replace(_INK, "currentColor").replace(_GROUND, "var(--ground)")
    width = re.search(r'width="([\d.]+)pt" height="[\d.]+pt"|$', svg)
    assert width is not None  # the second alternative matches
    if width[1]:
        # 1 pt is 4/3 px
        least, most = (round(float(width[1]) * 4 / 3 * part) for part in (_WIDTH, 1.4))
        svg = svg.replace(f"{width[0]}", f'style="min-width: {least}px; max-width: {most}px"', 1)
    return svg
