"""Tests whether a reproduction measured the orderings that a paper claims."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from apps.config import Scalar
from apps.evaluation.metric_names import better
from simulations.experiments.expansion import Expansion
from simulations.experiments.lines import Line
from simulations.experiments.reports.tables import Row, pair
from simulations.results.output import format_cell
from simulations.results.paired import LEAST_SEEDS, LEVEL, Difference, difference
from simulations.results.records import RunRecord

SHOWS, NOISE, CONTRARY = "shows up", "within the noise", "does not show up"
UNMEASURED = "not measured"
_VERDICTS = {1: SHOWS, 0: NOISE, -1: CONTRARY}
LEGEND = (
    "In the last evaluated round. A gap is the mean of the differences seed by seed, since a seed's data are the same "
    "for both sides, and positive where it has the claimed order; beside it its 95 % confidence interval and p, of a "
    f"paired t-test. It is within the noise where p is {LEVEL:g} or more. Fewer than {LEAST_SEEDS} seeds give no "
    "verdict. Each claim is tested by itself."
)


@dataclass(frozen=True)
class ClaimFinding:
    """One claim as measured in one setting; ``better`` and ``than`` are the rows that it compares."""

    setting: str
    better: Row
    than: Row
    gap: Difference | None  # positive: as claimed; None: not measured

    @property
    def verdict(self) -> str:
        """Whether the claim shows up here."""
        if self.gap is None:
            return UNMEASURED
        return self.gap.undecided if self.gap.sign is None else _VERDICTS[self.gap.sign]


@dataclass(frozen=True)
class Judged:
    """A claim with a finding for each setting."""

    text: str
    metric: str
    better: str
    than: str
    findings: list[ClaimFinding]

    @property
    def sentence(self) -> str:
        """The claim, and in how many settings it shows up."""
        if not self.findings:
            return f"{self.text}: no two runs of this profile are about it."
        counts = Counter(finding.verdict for finding in self.findings)
        if len(self.findings) == 1:
            return f"{self.text}: {next(iter(counts))}."
        order = (SHOWS, NOISE, CONTRARY, *sorted({*counts} - {SHOWS, NOISE, CONTRARY, UNMEASURED}), UNMEASURED)
        parts = [f"{verdict} in {counts[verdict]}" for verdict in order if verdict in counts]
        return f"{self.text}: {', '.join(parts)} of {len(self.findings)} settings."


def judge(expansion: Expansion, rows: Sequence[Row], records: Mapping[str, RunRecord]) -> list[Judged]:
    """Judge every claim of the experiment.

    Args:
        rows: the table's, with one for each line and metric.
        records: the finished runs by the names of their run directories.

    Returns:
        Each claim of the file; it has no finding if this profile has no two runs that it compares.
    """
    by = {(row.method, row.dataset, row.setting, row.metric): row for row in rows}
    found = []
    for claim, places in zip(expansion.experiment.claims, expansion.claims, strict=True):
        metric = claim.metric or expansion.experiment.metrics[0]
        findings = []
        for place, other in places:
            lines = expansion.lines[place], expansion.lines[other]
            ahead, behind = (by[line.method, line.dataset, line.setting, metric] for line in lines)
            ends = [
                {seed: end for seed, run in ended.items() if (end := run.final(metric)) is not None}
                for ended in (expansion.find_ended(line, records) for line in lines)
            ]
            gap = difference(*(ends if better(metric) is max else ends[::-1]))
            findings.append(ClaimFinding(_setting(expansion, lines[0], claim.better), ahead, behind, gap))
        found.append(Judged(claim.text, metric, _words(claim.better), _words(claim.than), findings))
    return found


def _words(side: Mapping[str, Scalar]) -> str:
    return ", ".join(
        format_cell(value) if key == "method" else f"{key} = {format_cell(value)}" for key, value in side.items()
    )


def _setting(expansion: Expansion, line: Line, side: Mapping[str, Scalar]) -> str:
    """The coordinates that the two sides have in common, without those that all runs share."""
    parts = []
    for key in ("dataset", "method", *(key for key in line.at if key not in ("dataset", "method"))):
        if key in side or all(other.at.get(key) == line.at[key] for other in expansion.lines):
            continue
        parts.append(
            format_cell(line.at[key]) if key in ("dataset", "method") else f"{key} = {format_cell(line.at[key])}"
        )
    return ", ".join(parts)


def as_json(judged: Sequence[Judged]) -> list[dict[str, Any]]:
    """The claims for --json.

    Returns:
        An object for each; a finding's ``gap`` is a `Difference`, which `print_json` can write, or None.
    """
    found = []
    for claim in judged:
        findings = [{"setting": one.setting, "gap": one.gap, "verdict": one.verdict} for one in claim.findings]
        sides = {"better": claim.better, "than": claim.than}
        found.append({"text": claim.text, "metric": claim.metric, **sides, "findings": findings})
    return found


def as_markdown(judged: Sequence[Judged]) -> list[str]:
    """The lines of table.md on the claims.

    Returns:
        Lines without line ends, first an empty one and last `LEGEND`; none if there is no claim.
    """
    if not judged:
        return []
    lines = ["", "What the paper claims:", ""]
    for claim in judged:
        lines.append(f"- {claim.sentence}")
        for finding in claim.findings:
            where = f"{finding.setting}: " if finding.setting else ""
            sides = f"{claim.metric} {pair(finding.better)} with {claim.better}, {pair(finding.than)} with {claim.than}"
            lines.append(f"  - {where}{sides}{_format_gap(finding.gap)}; {finding.verdict}")
    return [*lines, "", LEGEND]


def _format_gap(gap: Difference | None) -> str:
    if gap is None:
        return ""
    mean, interval, p = gap.format_cells()
    return f"; gap {mean}" + (f" ({interval}, p = {p}, {gap.seeds} seeds)" if gap.p is not None else "")
