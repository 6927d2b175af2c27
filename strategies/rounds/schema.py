"""What sites with files of their own must agree on before round 1: shapes, columns, labels, what to scale by."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from logging import WARNING

import numpy as np
from flwr.common import log

from payloads.handshake import Scaling, SiteReport
from payloads.record import PayloadError
from problems.means import pooled_moments
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


def agreed(reports: Sequence[SiteReport]) -> Schema | None:
    """The schema that all sites agree on; None if no site reads a file of its own.

    Warns of a site without a positive label, and of negative labels that a single site has.

    Raises:
        SetupError: names a site that differs from the first, and in what; or all sites that have no positive label and
            share no label with another site.
    """
    first = reports[0]
    if all(report.shape is None for report in reports):
        return None
    for report in reports:
        difference = _difference(first, report)
        if difference:
            raise difference.at(f"handshake: partition {report.partition_id}")
    _compare_labels(reports)
    assert first.shape is not None
    return Schema(tuple(first.shape.tolist()), first.column_names, pooled(reports))


def pooled(reports: Sequence[SiteReport]) -> Scaling | None:
    """Means and deviations of all sites' training rows together; None if nothing is standardised.

    A column that is constant everywhere has exactly its value as mean and exactly 0 as deviation.
    """
    if reports[0].means is None:
        return None
    counts = np.array([sum(report.counts) for report in reports], dtype=np.float64)
    means = np.stack([np.asarray(report.means, dtype=np.float64) for report in reports])
    variances = np.stack([np.asarray(report.variances, dtype=np.float64) for report in reports])
    constant = (means == means[0]).all(axis=0) & (variances == 0).all(axis=0)
    mean, variance = pooled_moments(counts, means, variances)
    return Scaling(means=np.where(constant, means[0], mean), deviations=np.where(constant, 0.0, np.sqrt(variance)))


def _compare_labels(reports: Sequence[SiteReport]) -> None:
    """Raise SetupError for sites that share no label with any other, and warn of less certain differences."""
    sites = Counter(value for report in reports for values in report.label_values for value in set(values))
    strangers, doubts = list[SetupError](), list[str]()
    for report in reports:
        negative, positive = report.label_values
        alone = [value for value in negative if sites[value] == 1]
        if not positive and len(reports) > 1 and len(alone) == len(negative):
            others = [value for value in sites if value not in negative]
            strangers.append(
                SetupError(
                    f"handshake: partition {report.partition_id}: labels",
                    got=f"{_named(alone)}, none of them in positive-label or at another site",
                    allowed=f"those of the other sites: {_named(others)}",
                    hint="write them alike at every site, or name all positive ones in positive-label",
                )
            )
        elif not positive:
            doubts.append(f"partition {report.partition_id} has no positive one, but {_named(negative)}")
        elif alone and len(reports) > 1:
            doubts.append(f"partition {report.partition_id} alone has {_named(alone)}")
    if strangers:
        raise SetupError.joined(strangers[:_SHOWN])
    if doubts:
        more = f"; and {len(doubts) - _SHOWN} more" if len(doubts) > _SHOWN else ""
        told = "labels that positive-label does not name count as negative, however they are written: %s%s"
        log(WARNING, told, "; ".join(doubts[:_SHOWN]), more)


def _difference(first: SiteReport, other: SiteReport) -> SetupError | None:
    """How a site differs from the first; None if it does not."""
    than = f"partition {first.partition_id}"
    if (first.shape is None) != (other.shape is None):
        with_file, without = (other, first) if first.shape is None else (first, other)
        got = f"a file of its own at partition {with_file.partition_id}, none at {without.partition_id}"
        hint = "give every node a data-path, or none"
        return SetupError("data-path", got=got, allowed="one at every site, or at none", hint=hint)
    assert first.shape is not None
    assert other.shape is not None
    try:
        here, there = other.column_names, first.column_names
    except PayloadError as error:
        return SetupError("columns", got=f"no names: {error}", allowed="a name for each", hint=_SAME_APP)
    if here != there:
        lacks = [name for name in there if name not in here]
        more = [name for name in here if name not in there]
        if not lacks and not more:
            return SetupError(
                "columns", got=f"another order than {than}", allowed="the same", hint="set feature-columns"
            )
        parts = [f"a table that lacks {_named(lacks)}"] * bool(lacks) + [f"{_named(more)} besides"] * bool(more)
        hint = "make them alike, or set feature-columns"
        return SetupError("columns", got=" and ".join(parts), allowed=f"the columns of {than}", hint=hint)
    try:
        _ = other.label_values
    except PayloadError as error:
        return SetupError("labels", got=f"no values: {error}", allowed="what the site holds", hint=_SAME_APP)
    own, shape = tuple(other.shape.tolist()), tuple(first.shape.tolist())
    if own != shape:
        allowed = f"that of {than}, {shape}"
        return SetupError("samples", got=f"shape {own}", allowed=allowed, hint="make them alike")
    if (first.means is None) != (other.means is None):
        return SetupError("means", got=f"them from it or from {than} alone", allowed="from both", hint=_SAME_APP)
    if other.means is not None and (other.variances is None or len(other.means) != len(here)):
        return SetupError("means", got="those of other columns", allowed="of the columns it names", hint=_SAME_APP)
    if other.variances is not None and (other.variances < 0).any():
        return SetupError("variances", got="one below 0", allowed="0 or more", hint=_SAME_APP)
    return None


def _named(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(map(repr, names[:_SHOWN])) + more
