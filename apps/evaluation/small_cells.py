"""Small cells: counts of so few rows that they could identify persons, and are left out of a run's results.

A site's least cell is the smallest count that it reveals. A site with its own file sends no counts below its least
cell, and the server checks this again. If the server has all rows itself, it leaves out the figures of sites with fewer
than `LEAST_CELL` rows. The results are result.json, the model card and the report.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from logging import WARNING
from typing import Any

from flwr.common import log

from apps.run_config.algorithm import RunConfig
from payloads.handshake import SiteReport
from payloads.held_out import SCORE_COUNTS, TEST_SCORE_COUNTS, held_counts
from problems.data import OWN
from problems.least_cell import LEAST_CELL, is_small
from strategies.rounds.errors import SetupError


@dataclass(frozen=True)
class SmallCells:
    """The least cells of a run's sites.

    Attributes:
        sites: The number of sites.
        least_cells: The least cell of each site, by partition id. Empty if the server has all rows.
        withheld: The number of sites that do not count their evaluated rows.
    """

    sites: int
    least_cells: Mapping[int, int]
    withheld: int

    @classmethod
    def of(cls, config: RunConfig, reports: Sequence[SiteReport]) -> SmallCells:
        """Return the least cells in the sites' reports; `LEAST_CELL` for a site that does not report it.

        Args:
            config: The run config.
            reports: The sites' reports.
        """
        if config.data.partition != OWN or config.data.data_dir:
            return cls(len(reports), {}, 0)
        least_cells = {
            report.partition_id: LEAST_CELL if report.least_cell is None else int(report.least_cell[0])
            for report in reports
        }
        phase = TEST_SCORE_COUNTS if config.evaluation.tests else SCORE_COUNTS
        return cls(len(reports), least_cells, _count_withheld(reports, phase))

    def of_site(self, partition: int) -> int:
        """Return the fewest rows with which a site gets figures.

        Args:
            partition: The site's partition id.
        """
        return self.least_cells.get(partition, LEAST_CELL)

    def of_counts(self, partition: int) -> int:
        """Return the smallest count that the figures of a site, or of all sites, may contain.

        1 if the server has all rows.

        Args:
            partition: The site's partition id. Any other number: all sites.
        """
        return self.least_cells.get(partition, max(self.least_cells.values(), default=1))

    def hide(self, partition: int, confusion: dict[str, int]) -> dict[str, int] | None:
        """Return a confusion matrix, or None if one of its counts is too small to be published.

        Args:
            partition: The site's partition id. Any other number: all sites.
            confusion: The counts, such as ``true_positives``, by name.
        """
        return None if is_small(list(confusion.values()), self.of_counts(partition)) else confusion


def _count_withheld(reports: Sequence[SiteReport], phase: str) -> int:
    """Return the number of sites that have a least cell and do not count their held-out rows."""
    counts = [held_counts(report, phase) for report in reports if report.least_cell is not None]
    return sum(count is not None and not count.any() for count in counts)


def warn_of_withheld(config: RunConfig, reports: Sequence[SiteReport]) -> None:
    """Warn before round 1 of sites whose held-out rows are too few to be counted.

    Args:
        config: The run config.
        reports: The sites' reports.

    Raises:
        SetupError: No site has enough rows.
    """
    phases = {SCORE_COUNTS: "validation" if config.data.validation_fraction else "held-out"}
    if config.evaluation.tests:
        phases[TEST_SCORE_COUNTS] = "test"
    for phase, rows in {} if config.data.data_dir else phases.items():
        sites = _count_withheld(reports, phase)
        if sites and sites == len(reports):
            raise SetupError(
                f"{rows} rows",
                got="at each site fewer rows of a class than the site's least-cell, so no site counts them",
                allowed=f"a site with enough rows, such as {LEAST_CELL} of each class",
                hint="raise test-fraction or validation-fraction, or set data-dir to a test file of the server",
            )
        if sites:
            text = "left out of the metrics on %s rows: %d of %d sites, which have fewer rows of a class than their"
            log(WARNING, f"{text} least-cell", rows, sites, len(reports))


def left_out(sites: int) -> dict[str, Any]:
    """Return the entry of result.json about sites without figures. {} if all sites have figures.

    Args:
        sites: The number of these sites.
    """
    return {"left_out": {"sites": sites, "fewer_than": LEAST_CELL}} if sites else {}


def describe_left_out(entry: Mapping[str, int]) -> str:
    """Describe the sites without figures.

    Args:
        entry: The entry of result.json.
    """
    sites = "1 site" if entry["sites"] == 1 else f"{entry['sites']} sites"
    return f"left out: {sites} with fewer than {entry['fewer_than']} rows, or than least-cell of a class"
