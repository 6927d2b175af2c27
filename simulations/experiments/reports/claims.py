"""Tests whether a paper's claims ("method A is better than B") show up in a reproduction's results."""

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
    "In the last evaluated round. A gap is the mean over seeds of the difference between the two sides, which have the "
    "same data for the same seed. A gap is positive if the order is as claimed. The next columns are its 95 % "
    "confidence interval, p of a paired t-test, and q, which is p adjusted for the number of gaps on this page "
    f"(Benjamini and Hochberg). A gap is within the noise if q is {LEVEL:g} or more. At most {LEVEL:.0%} of the other "
    f"verdicts are expected to be due to chance. Fewer than {LEAST_SEEDS} seeds give no verdict."
)


@dataclass(frozen=True)
class ClaimFinding:
    """A claim's result in one setting.

    Attributes:
        setting: The setting as text for people.
        better: The row that is better according to the claim.
        than: The row that is worse according to the claim.
        gap: The difference of the two rows, positive if the claim is right. None: not measured.
    """

    setting: str
    better: Row
    than: Row
    gap: Difference | None

    @property
    def verdict(self) -> str:
        """Whether the claim shows up in this setting, as text."""
        return UNMEASURED if self.gap is None else self.gap.verdict(SHOWS, NOISE, CONTRARY)


@dataclass(frozen=True)
class Judged:
    """A claim of the paper with a finding for each setting. ``better`` and ``than`` are the compared sides as texts."""

    text: str
    metric: str
    better: str
    than: str
    findings: list[ClaimFinding]

    @property
    def sentence(self) -> str:
        """The claim's text, and the number of settings for each verdict."""
        if not self.findings:
            return f"{self.text}: this profile has no pair of runs for the comparison."
        counts = Counter(finding.verdict for finding in self.findings)
        if len(self.findings) == 1:
            return f"{self.text}: {next(iter(counts))}."
        order = (SHOWS, NOISE, CONTRARY, *sorted({*counts} - {SHOWS, NOISE, CONTRARY, UNMEASURED}), UNMEASURED)
        parts = [f"{verdict} in {counts[verdict]}" for verdict in order if verdict in counts]
        return f"{self.text}: {', '.join(parts)} of {len(self.findings)} settings."

    @property
    def table(self) -> Table:
        """The findings as a table. It has no column of settings if all are empty."""
        rows = [
            [
                finding.setting,
                finding.better.last,
                finding.than.last,
                *(finding.gap.cells if finding.gap else ("-", "-", "-", 0)),
                "-" if finding.gap is None or finding.gap.q is None else (f"{finding.gap.q:.2g}", finding.gap.q),
                finding.verdict,
            ]
            for finding in self.findings
        ]
        start = 0 if any(finding.setting for finding in self.findings) else 1
        columns = ["setting", self.better, self.than, "gap", *COLUMNS[:-1], "q", COLUMNS[-1]]
        caption = f"{self.metric}, mean ± sample standard deviation"
        return Table(caption, columns[start:], [row[start:] for row in rows])


def judge(expansion: Expansion, rows: Sequence[Row], records: Mapping[str, RunRecord]) -> list[Judged]:
    """Test each claim of the experiment.

    Args:
        expansion: The experiment.
        rows: The table's rows, one for each line and metric.
        records: The finished runs by the names of their run directories.

    Returns:
        The claims in the order of the file. A claim has no findings if this profile lacks runs to compare.
    """
    by = {(row.method, row.dataset, row.setting, row.metric): row for row in rows}
    differ = differing([line.at for line in expansion.lines])
    judged = []
    for claim, pairs in zip(expansion.experiment.claims, expansion.claims, strict=True):
        metric = claim.metric or expansion.experiment.metrics[0]
        findings = []
        for pair in pairs:
            lines = [expansion.lines[index] for index in pair]
            ends = [
                {seed: end for seed, run in ended.items() if (end := run.final(metric)) is not None}
                for ended in (expansion.find_ended(line, records) for line in lines)
            ]
            gap = difference(*(ends if better(metric) is max else ends[::-1]))
            # the setting: common coordinates of the two sides, except coordinates that are equal in all runs
            common = {key: lines[0].at[key] for key in differ if key in lines[0].at and key not in claim.better}
            ahead, behind = (by[line.method, line.dataset, line.setting, metric] for line in lines)
            findings.append(ClaimFinding(words(common), ahead, behind, gap))
        judged.append(Judged(claim.text, metric, words(claim.better), words(claim.than), findings))
    gaps = iter(adjust([finding.gap for claim in judged for finding in claim.findings]))
    return [
        replace(claim, findings=[replace(finding, gap=next(gaps)) for finding in claim.findings]) for claim in judged
    ]
