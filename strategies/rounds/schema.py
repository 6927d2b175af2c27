"""What sites with files of their own must have in common (shapes, columns, labels), and what scales their columns."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from logging import WARNING

import numpy as np
from flwr.common import log

from payloads.handshake import Scaling, SiteReport
from payloads.record import PayloadError
from problems.models.vectors import pooled_moments
from strategies.rounds.errors import SetupError

_SHOWN = 8
_SAME_APP = "run the same release of the ClientApp at every site"


@dataclass(frozen=True, eq=False)
class Schema:
    """What all sites' rows have in common.

    Attributes:
        shape: of one sample's features.
        columns: names of the features; () where they have none.
        scaling: what to standardise the columns by; None if they are not standardised.
    """

    shape: tuple[int, ...]
    columns: tuple[str, ...]
    scaling: Scaling | None


def agree(reports: Sequence[SiteReport]) -> Schema | None:
    """The schema that all sites agree on; None if no site reads a file of its own.

    Warns of a site without a positive label, and of labels counted as negative that only one site has.

    Raises:
        SetupError: a site differs from the first that reads a file, or sites without a positive label share no label.
    """
    first = next((report for report in reports if report.shape is not None), None)
    if first is None:
        return None
    for report in reports:
        if difference := _difference(first, report):
            key, got, allowed, hint = difference
            raise SetupError(f"handshake: partition {report.partition_id}: {key}", got=got, allowed=allowed, hint=hint)
    _compare_labels(reports)
    assert first.shape is not None
    return Schema(tuple(first.shape.tolist()), first.column_names, pool(reports))


def pool(reports: Sequence[SiteReport]) -> Scaling | None:
    """Means and deviations of all sites' training rows together, exact for constant columns; None: not standardised."""
    if reports[0].means is None:
        return None
    counts = np.array([report.class_counts for report in reports], dtype=np.float64).sum(axis=1)
    means = np.array([report.means for report in reports], dtype=np.float64)
    variances = np.array([report.variances for report in reports], dtype=np.float64)
    constant = (means == means[0]).all(axis=0) & (variances == 0).all(axis=0)
    mean, variance = pooled_moments(counts, means, variances)
    return Scaling(means=np.where(constant, means[0], mean), deviations=np.where(constant, 0.0, np.sqrt(variance)))


def _compare_labels(reports: Sequence[SiteReport]) -> None:
    """Raise SetupError for sites without a positive or a shared label; warn of differences that may be intended."""
    sites = Counter(value for report in reports for values in report.label_values for value in set(values))
    strangers, doubts = list[SetupError](), list[str]()
    for report in reports:
        partition, (negative, positive) = f"partition {report.partition_id}", report.label_values
        alone = [value for value in negative if sites[value] == 1 < len(reports)]
        if not positive and len(alone) == len(negative):
            error = SetupError(
                f"handshake: {partition}: labels",
                got=f"{_join_names(alone)}, none of them in positive-label or at another site",
                allowed=f"those of the other sites: {_join_names([value for value in sites if value not in negative])}",
                hint="write them alike at every site, or name all positive ones in positive-label",
            )
            strangers.append(error)
        elif not positive:
            doubts.append(f"{partition} has no positive label, only {_join_names(negative)}")
        elif alone:
            doubts.append(f"only {partition} has {_join_names(alone)}")
    if strangers:
        raise SetupError.join(strangers[:_SHOWN])
    if doubts:
        more = f"; and {len(doubts) - _SHOWN} more" if len(doubts) > _SHOWN else ""
        check = "every label that positive-label does not name counts as negative; check the spelling: %s%s"
        log(WARNING, check, "; ".join(doubts[:_SHOWN]), more)


def _difference(first: SiteReport, other: SiteReport) -> tuple[str, str, str, str] | None:
    """How a site differs from the first: key, got, allowed and hint of an error; None if it does not."""
    than = f"partition {first.partition_id}"
    if other.shape is None:
        got = f"a file of its own at {than}, none at {other.partition_id}"
        return "data-path", got, "one at every site, or at none", "give every node a data-path, or none"
    assert first.shape is not None
    try:
        here, there = other.column_names, first.column_names
    except PayloadError as error:
        return "columns", f"names that cannot be read: {error}", "a name for each column", _SAME_APP
    if here != there:
        lacks = [name for name in there if name not in here]
        more = [name for name in here if name not in there]
        if not lacks and not more:
            return "columns", f"another order than {than}", "the same", "set feature-columns"
        parts = [f"lacks {_join_names(lacks)}"] * bool(lacks) + [f"has {_join_names(more)} in addition"] * bool(more)
        hint = "make them alike, or set feature-columns"
        return "columns", f"a table that {' and '.join(parts)}", f"the columns of {than}", hint
    try:
        _ = other.label_values
    except PayloadError as error:
        return "labels", f"values that cannot be read: {error}", "the labels of the site's rows", _SAME_APP
    own, shape = tuple(other.shape.tolist()), tuple(first.shape.tolist())
    if own != shape:
        return "samples", f"shape {own}", f"that of {than}, {shape}", "make them alike"
    if (first.means is None) != (other.means is None):
        return "means", f"them from only one of this site and {than}", "from both or from neither", _SAME_APP
    if other.means is not None and (other.variances is None or len(other.means) != len(here)):
        return "means", "those of other columns", "a mean and a variance for each column", _SAME_APP
    if other.variances is not None and (other.variances < 0).any():
        return "variances", "one below 0", "0 or more", _SAME_APP
    return None


def _join_names(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(map(repr, names[:_SHOWN])) + more
