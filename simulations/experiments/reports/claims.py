"""Tests of a paper's claimed orderings on a reproduction's results."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from apps.evaluation.metric_names import better
from simulations.experiments.expansion import Expansion
from simulations.experiments.lines import words
from simulations.experiments.reports.tables import Row
from simulations.results.output import Table
from simulations.results.paired import COLUMNS, LEAST_SEEDS, LEVEL, Difference, adjust, difference
from simulations.results.records import RunRecord, differing

SHOWS, NOISE, CONTRARY = "shows up", "within the noise", "does not show up"
UNMEASURED = "not measured"
LEGEND = (
    "In the last evaluated round. A gap is the mean of the differences seed by seed, since a seed's data are the same "
    "for both sides. It is positive if the order is as claimed. Beside it stand its 95 % confidence interval, p of a "
    "paired t-test, and q, the p adjusted by Benjamini and Hochberg for the number of gaps on this page. A gap is "
    f"within the noise if q is {LEVEL:g} or more: of the other verdicts, at most {LEVEL:.0%} are expected to be due to "
    f"chance. Fewer than {LEAST_SEEDS} seeds give no verdict."
)


@dataclass(frozen=True)
class ClaimFinding:
    """A claim as measured in a setting. ``better`` and ``than`` are the compared rows."""

    setting: str
    better: Row
    than: Row
    gap: Difference | None  # positive: as claimed; None: not measured

    @property
    def verdict(self) -> str:
        """Whether the claim shows up here."""
        return UNMEASURED if self.gap is None else self.gap.verdict(SHOWS, NOISE, CONTRARY)


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
        """The claim, and the numbers of settings by verdict."""
        if not self.findings:
            return f"{self.text}: this profile has no two runs that compare it."
        counts = Counter(finding.verdict for finding in self.findings)
        if len(self.findings) == 1:
            return f"{self.text}: {next(iter(counts))}."
        order = (SHOWS, NOISE, CONTRARY, *sorted({*counts} - {SHOWS, NOISE, CONTRARY, UNMEASURED}), UNMEASURED)
        parts = [f"{verdict} in {counts[verdict]}" for verdict in order if verdict in counts]
        return f"{self.text}: {', '.join(parts)} of {len(self.findings)} settings."

    @property
    def table(self) -> Table:
        """The findings as a table, without an empty column of settings."""
        rows = [
            [
                one.setting,
                one.better.last,
                one.than.last,
                *(one.gap.cells if one.gap else ("-", "-", "-", 0)),
                "-" if one.gap is None or one.gap.q is None else (f"{one.gap.q:.2g}", one.gap.q),
                one.verdict,
            ]
            for one in self.findings
        ]
        start = 0 if any(one.setting for one in self.findings) else 1
        columns = ["setting", self.better, self.than, "gap", *COLUMNS[:-1], "q", COLUMNS[-1]]
        caption = f"{self.metric}, mean ± sample standard deviation"
        return Table(caption, columns[start:], [row[start:] for row in rows])


def judge(expansion: Expansion, rows: Sequence[Row], records: Mapping[str, RunRecord]) -> list[Judged]:
    """Judge every claim of the experiment.

    Args:
        expansion: The experiment.
        rows: The table's rows, one for each line and metric.
        records: The finished runs by the names of their run directories.

    Returns:
        Each claim of the file. It has no finding if this profile lacks runs to compare.
    """
    by = {(row.method, row.dataset, row.setting, row.metric): row for row in rows}
    differ = differing([line.at for line in expansion.lines])
    found = []
    for claim, places in zip(expansion.experiment.claims, expansion.claims, strict=True):
        metric = claim.metric or expansion.experiment.metrics[0]
        findings = []
        for pair in places:
            lines = [expansion.lines[place] for place in pair]
            ends = [
                {seed: end for seed, run in ended.items() if (end := run.final(metric)) is not None}
                for ended in (expansion.find_ended(line, records) for line in lines)
            ]
            gap = difference(*(ends if better(metric) is max else ends[::-1]))
            # the common coordinates of the two sides, except coordinates that all runs share
            common = {key: lines[0].at[key] for key in differ if key in lines[0].at and key not in claim.better}
            ahead, behind = (by[line.method, line.dataset, line.setting, metric] for line in lines)
            findings.append(ClaimFinding(words(common), ahead, behind, gap))
        found.append(Judged(claim.text, metric, words(claim.better), words(claim.than), findings))
    gaps = iter(adjust([finding.gap for claim in found for finding in claim.findings]))
    return [
        replace(claim, findings=[replace(finding, gap=next(gaps)) for finding in claim.findings]) for claim in found
    ]
