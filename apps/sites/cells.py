"""The least cell of a site with its own file: the smallest count of rows that the site reveals.

Smaller counts could identify persons. The owner sets ``least-cell`` in the site's settings. No key of a run config can
lower it.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from apps.run_config.algorithm import RunConfig
from apps.run_config.settings import Scalar
from apps.sites.settings import SiteConfig
from problems.data import DataError, Samples, SiteRows
from problems.data.outcomes import check_counts
from problems.errors import join_first
from problems.least_cell import is_small
from problems.objectives.classification import SOFTMAX
from problems.objectives.number_losses import POISSON

LEAST = "least-cell"


def least_cell(node: Mapping[str, Scalar]) -> int:
    """Return the least cell of a site.

    Args:
        node: The site's effective node config.

    Raises:
        ConfigError: A setting of the site has a wrong value.
    """
    return SiteConfig.of(node).privacy.least_cell


def check_classes(rows: SiteRows, least: int) -> None:
    """Refuse to train with too few rows of a class, since the weights in training reveal the rows of each class.

    Args:
        rows: The site's rows.
        least: The least cell.

    Raises:
        DataError: A class has at least one training row, but fewer than the least cell.
    """
    if is_small(rows.class_counts(rows.train_rows), least):
        of_class, none = ("a class with ", "no rows of a class, or ") if rows.has_classes else ("", "")
        raise DataError(
            "training rows",
            got=f"{of_class}fewer than {least} rows",
            allowed=f"{none}at least {least} ({LEAST} of the site's settings)",
            hint=f"add rows, or let the site's owner set {LEAST} to 1",
        )


def check_outcomes(config: RunConfig, rows: SiteRows | Samples) -> None:
    """Check that labels fit the run's loss.

    Args:
        config: The run config.
        rows: The rows.

    Raises:
        DataError: The loss is for counts, and a label is below 0. Or the loss is the softmax, and a row does not have
            one class.
    """
    if config.training.loss == SOFTMAX and rows.findings is not None:
        rows.findings.check_exclusive()
    if rows.numeric and config.training.loss == POISSON:
        check_counts(rows.labels.astype(np.float64), config.data.labels_in)


def held_out_counts(rows: SiteRows, indices: NDArray[np.int64], least: int) -> NDArray[np.int64]:
    """Return the numbers of held-out negatives and positives that a site reports.

    Args:
        rows: The site's rows.
        indices: The indices of the held-out rows.
        least: The least cell.

    Returns:
        The numbers (2,). Both are 0 if a class has at least one row, but fewer than the least cell. The site then
        counts no scores.
    """
    counts = np.array(rows.class_counts(indices))
    return np.zeros_like(counts) if is_small(counts, least) else counts


def common_labels(rows: SiteRows, least: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the negative and the positive label values that occur in enough rows of a site.

    Args:
        rows: The site's rows.
        least: The least cell.

    Raises:
        DataError: A class has rows, but none of its label values has enough rows.
    """
    common_values = []
    for values, counts in zip(rows.label_values, rows.label_rows, strict=True):
        common = tuple(value for value, count in zip(values, counts, strict=True) if count >= least)
        if values and not common:
            allowed = f"a value with at least {least} rows in each class ({LEAST} of the site's settings)"
            hint = f"merge rare labels, or let the site's owner set {LEAST} to 1"
            raise DataError("labels", got="a class with only rare values", allowed=allowed, hint=hint)
        common_values.append(common)
    return common_values[0], common_values[1]


def _find_rare(rows: SiteRows, indices: NDArray[np.int64], least: int) -> list[str]:
    """Return the findings that become unknown in all of some rows, see `Findings.without_small_cells`."""
    before, after = (rows.findings_of(indices, cell) for cell in (1, least))
    if before is None or after is None:
        return []
    pairs = zip(before.names, before.known.T, after.known.T, strict=True)
    return [name for name, known, still in pairs if known.any() and not still.any()]


def describe_left_out(rows: SiteRows, least: int) -> list[str]:
    """Return lines for the site's log about the figures that the site does not reveal.

    Args:
        rows: The site's rows.
        least: The least cell.
    """
    parts: dict[str, Any] = {"evaluation": rows.evaluated_rows}
    if rows.validation_rows is not None:
        parts = {"validation": rows.validation_rows, "test": rows.test_rows}
    lines = []
    for name, indices in parts.items():
        if is_small(rows.class_counts(indices), least):
            text = f"{'a class has' if rows.has_classes else 'they are'} fewer than {least} rows ({LEAST})"
            lines.append(f"left out of the {name} of models: all {len(indices)} held-out rows, since {text}")
    for name, indices in {"training": rows.train_rows, **parts}.items():
        if hidden := _find_rare(rows, indices, least):
            text = f"{join_first(hidden, 8)}, since fewer than {least} rows ({LEAST}) are 0 or 1"
            lines.append(f"findings that are unknown in all {name} rows: {text}")
    if constant := rows.nearly_constant(least):
        names = ", ".join(map(repr, constant))
        lines.append(f"reported as constant: {len(constant)} columns with fewer than {least} other cells: {names}")
    rare = sum(0 < count < least for counts in rows.label_rows for count in counts)
    if rare:
        lines.append(f"left out of the report to the server: {rare} label values of fewer than {least} rows ({LEAST})")
    return lines
