"""Whether the orderings that a paper claims are those that a reproduction measured."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from apps.config import Scalar
from apps.evaluation import better
from simulations.expansion import Expansion, Line
from simulations.output import shown
from simulations.report import Row, pair

SHOWS, NOISE, CONTRARY = "shows up", "within the noise", "does not show up"
ONE_SEED, UNMEASURED = "cannot be told from one seed", "not measured"
_NOISE = 2.0  # pooled standard deviations
LEGEND = (
    "In the last evaluated round. A gap is positive where the measured means have the claimed order, and within the "
    f"noise where it is at most {_NOISE:g} of the two sides' pooled sample standard deviations."
)


@dataclass(frozen=True)
class Finding:
    """What was measured of one claim in one setting; ``better`` and ``than`` are the rows it compares."""

    setting: str
    better: Row
    than: Row
    gap: float | None  # between the means; positive: as claimed
    spreads: float | None  # the gap in pooled standard deviations; infinite where those are zero; None for one seed
    verdict: str


@dataclass(frozen=True)
class Judged:
    """A claim with what was measured of it, a finding a setting."""

    text: str
    metric: str
    better: str
    than: str
    findings: list[Finding]

    @property
    def sentence(self) -> str:
        """The claim, and in how many settings it shows up."""
        if not self.findings:
            return f"{self.text}: no two runs of this profile are about it."
        counts = Counter(finding.verdict for finding in self.findings)
        if len(self.findings) == 1:
            return f"{self.text}: {next(iter(counts))}."
        order = (SHOWS, NOISE, CONTRARY, ONE_SEED, UNMEASURED)
        told = [f"{verdict} in {counts[verdict]}" for verdict in order if verdict in counts]
        return f"{self.text}: {', '.join(told)} of {len(self.findings)} settings."


def judge(expansion: Expansion, rows: Sequence[Row]) -> list[Judged]:
    """Every claim of the experiment, held against the table."""
    by = {(row.method, row.dataset, row.setting, row.metric): row for row in rows}
    found = []
    for claim, places in zip(expansion.experiment.claims, expansion.claims, strict=True):
        metric = claim.metric or expansion.experiment.metrics[0]
        findings = []
        for place, other in places:
            ahead, behind = expansion.lines[place], expansion.lines[other]
            sides = [by[line.method, line.dataset, line.setting, metric] for line in (ahead, behind)]
            findings.append(_finding(_setting(expansion, ahead, claim.better), *sides))
        found.append(Judged(claim.text, metric, _words(claim.better), _words(claim.than), findings))
    return found


def _finding(setting: str, ahead: Row, behind: Row) -> Finding:
    gap = None
    if ahead.mean is not None and behind.mean is not None and math.isfinite(ahead.mean - behind.mean):
        gap = behind.mean - ahead.mean if better(ahead.metric) is min else ahead.mean - behind.mean
    if gap is None:
        return Finding(setting, ahead, behind, None, None, UNMEASURED)
    if ahead.std is None or behind.std is None:
        return Finding(setting, ahead, behind, gap, None, ONE_SEED)
    spreads = _ratio(gap, _pooled(ahead, behind))
    verdict = SHOWS if spreads > _NOISE else CONTRARY if spreads < -_NOISE else NOISE
    return Finding(setting, ahead, behind, gap, spreads, verdict)


def _pooled(*rows: Row) -> float:
    """The standard deviation that samples of different means share."""
    degrees = [row.seeds - 1 for row in rows]
    squares = sum(degree * (row.std or 0.0) ** 2 for degree, row in zip(degrees, rows, strict=True))
    return math.sqrt(squares / sum(degrees))


def _ratio(gap: float, pooled: float) -> float:
    if pooled == 0:
        return math.copysign(math.inf, gap) if gap else 0.0
    return gap / pooled


def _words(side: Mapping[str, Scalar]) -> str:
    return ", ".join(shown(value) if key == "method" else f"{key} = {shown(value)}" for key, value in side.items())


def _setting(expansion: Expansion, line: Line, side: Mapping[str, Scalar]) -> str:
    """What the two sides have in common: coordinates that all runs share are left out."""
    told = []
    for key in ("dataset", "method", *(key for key in line.at if key not in ("dataset", "method"))):
        if key in side or all(other.at.get(key) == line.at[key] for other in expansion.lines):
            continue
        told.append(shown(line.at[key]) if key in ("dataset", "method") else f"{key} = {shown(line.at[key])}")
    return ", ".join(told)


def shown_spreads(spreads: float | None) -> str:
    """A gap in standard deviations, for people."""
    if spreads is None:
        return "-"
    return f"{spreads:+.1f}".replace("inf", "∞")


def as_markdown(judged: Sequence[Judged]) -> list[str]:
    """The lines of table.md on the claims; none without a claim."""
    if not judged:
        return []
    lines = ["", "What the paper claims:", ""]
    for claim in judged:
        lines.append(f"- {claim.sentence}")
        for finding in claim.findings:
            where = f"{finding.setting}: " if finding.setting else ""
            sides = f"{claim.metric} {pair(finding.better)} with {claim.better}, {pair(finding.than)} with {claim.than}"
            gap = "" if finding.spreads is None else f"; gap {shown_spreads(finding.spreads)} standard deviations"
            lines.append(f"  - {where}{sides}{gap}; {finding.verdict}")
    return [*lines, "", LEGEND]
