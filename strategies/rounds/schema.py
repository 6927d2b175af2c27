"""The common schema of sites that read their own files: shapes, columns, labels, and the scaling of columns.

The server compares the sites' reports of the handshake, and ends the run if they do not fit together.
"""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from logging import WARNING

import numpy as np
from flwr.common import log
from numpy.typing import NDArray

from payloads.handshake import Scaling, SiteReport
from payloads.record import PayloadError
from problems.data import DataError, Preprocessing
from problems.data.agreement import Agreed, Statistics, fit
from problems.data.agreement import agree as agree_on
from problems.data.doubts import OTHER_UNITS, join_doubts
from problems.data.findings import find_shares
from problems.data.spec import NUMBER
from problems.data.times import agree_on_borders, find_sketch_fault
from problems.data.units import find_strange_sites
from strategies.rounds.errors import SetupError

# the maximum number of names or errors that a message lists
_SHOWN = 8
_SAME_APP = "run the same release of the ClientApp at every site"


@dataclass(frozen=True, eq=False)
class Schema:
    """The common properties of all sites' rows.

    Attributes:
        shape: The shape of one sample's features.
        preprocessing: The conversion of raw rows to features. None if the features do not come from tables.
        scaling: The statistics for scaling and filling. None if nothing is scaled or filled.
        negative_labels, positive_labels: The label values of all sites' files, sorted.
        pixel_max: The pixel value that was scaled to 1, for images of more than 8 bits.
    """

    shape: tuple[int, ...]
    preprocessing: Preprocessing | None
    scaling: Scaling | None
    negative_labels: tuple[str, ...]
    positive_labels: tuple[str, ...]
    pixel_max: float | None = None


def agree(reports: Sequence[SiteReport], *, labelled: bool = True) -> Schema | None:
    """Return the common schema of all sites; None if no site reads its own file.

    Warns of a site without a positive label, and of negative labels that only one site has.

    Args:
        reports: The sites' reports.
        labelled: Whether sites must report their label values, unless labels are numbers.

    Raises:
        SetupError: A site differs from the first site that reads a file, a site without a positive label shares no
            label with any other site, or a column has too few cells at every site to scale or fill it.
    """
    first = next((report for report in reports if report.shape is not None), None)
    if first is None:
        return None
    for report in reports:
        if difference := _difference(first, report, labelled=labelled):
            key, got, allowed, hint = difference
            raise SetupError(f"handshake: {report.label}: {key}", got=got, allowed=allowed, hint=hint)
    if not first.has_numbers:
        _compare_labels(reports)
    assert first.shape is not None
    shape: tuple[int, ...] = tuple(first.shape.tolist())
    negative, positive = (
        tuple(sorted({value for report in reports for value in report.label_values[side]})) for side in (0, 1)
    )
    scaling: Scaling | None = None
    read = {report.label: read_columns(report) for report in reports}
    tables = {label: table for label, table in read.items() if table is not None}
    if not tables:
        totals = _share_findings(None, None, reports)
        scaling = None if totals is None else Scaling(**vars(totals))
        return Schema(shape, None, scaling, negative, positive, _join_depths(reports))
    table = _join(tables)
    _warn_of_names(table)
    reported = [statistics for statistics in map(statistics_of, reports) if statistics is not None]
    try:
        agreed = agree_on(table, reported) if reported else None
        if first.event_times is not None:
            borders = agree_on_borders(*zip(*map(_event_times, reports), strict=True))
            agreed = replace(agreed or Agreed.identity(table), time_borders=np.array(borders))
        agreed = _share_findings(agreed, table, reports)
    except DataError as error:
        raise SetupError.of(error, "handshake") from None
    if agreed is not None:
        if reported:
            _warn_of_units(table, reports, reported)
            _warn_of_constants(table, agreed.deviations.tolist())
        table, scaling = fit(table, agreed), Scaling(**vars(agreed))
    return Schema((len(table.outputs),), table.with_labels(positive), scaling, negative, positive)


def _share_findings(agreed: Agreed | None, table: Preprocessing | None, reports: Sequence[SiteReport]) -> Agreed | None:
    """Add the findings' shares and priors over all sites to the agreed numbers. The numbers stay without findings."""
    counts = [report.finding_counts for report in reports if report.finding_counts is not None]
    if not counts:
        return agreed
    rows = sum(int(report.class_counts.sum()) for report in reports if report.class_counts is not None)
    shares, priors = find_shares(np.stack(counts).sum(axis=0, dtype=np.int64), rows)
    return replace(agreed or Agreed.identity(table), shares=shares, priors=priors)


def _find_finding_fault(site: SiteReport, first: SiteReport) -> str:
    """Describe the first field of a site's counts of findings that is impossible; "" if all are possible."""
    for name, rows in (
        ("finding_counts", site.class_counts),
        ("held_out_findings", site.held_out_counts),
        ("test_findings", site.test_counts),
    ):
        counts, wanted = getattr(site, name), getattr(first, name)
        if (counts is None) != (wanted is None) or (counts is not None and counts.shape != wanted.shape):
            sizes = [0 if each is None else len(each) for each in (counts, wanted)]
            return f"{name} of {sizes[0]} findings, and of {sizes[1]} at {first.label}"
        if counts is not None and (rows is None or counts.sum(axis=1).max(initial=0) > rows.sum()):
            return f"{name} of more rows than the site has"
    return ""


def _warn_of_units(table: Preprocessing, reports: Sequence[SiteReport], reported: Sequence[Statistics]) -> None:
    """Warn of sites whose statistics are far from the statistics of all other sites."""
    labels = [report.label for report in reports if report.counts is not None]
    if strange := find_strange_sites(table, reported):
        log(WARNING, OTHER_UNITS, join_doubts(f"{labels[index]}: {text}" for index, text in strange))


def _warn_of_constants(table: Preprocessing, deviations: Sequence[float]) -> None:
    """Warn of columns without effect: no site reports that they vary."""
    constant = [number.column for number, deviation in zip(table.inputs, deviations, strict=True) if deviation == 0]
    if constant:
        text = (
            "columns without effect (%d): %s; at each site fewer cells than least-cell differ from the commonest value"
        )
        log(WARNING, text, len(constant), _join_names(constant))


def _warn_of_names(table: Preprocessing) -> None:
    """Warn of ``missing-values`` markers for a column that no site has. No single site can detect such a marker."""
    known = {*table.columns, table.label_column}
    if lacking := [name for name, _ in table.column_markers if name not in known]:
        log(WARNING, "missing-values has markers for %s, which no site has as a feature", _join_names(lacking))


def read_columns(report: SiteReport) -> Preprocessing | None:
    """Return a site's preprocessing, not yet fitted; None if the site has no table.

    Raises:
        PayloadError: The bytes in the report are malformed.
    """
    if report.columns is None:
        return None
    try:
        table = Preprocessing.from_json(json.loads(report.columns.tobytes()))
    except (ValueError, RecursionError) as error:
        why = str(error) if isinstance(error, DataError) else "not JSON"
        raise PayloadError(f"SiteReport.columns: {why}") from None
    if table.inputs != table.outputs:
        raise PayloadError("SiteReport.columns: bins or features of missing cells before the sites have agreed on them")
    return table


def statistics_of(report: SiteReport) -> Statistics | None:
    """Return the column statistics that a site reported; None if it reported no statistics."""
    if report.counts is None:
        return None
    assert report.class_counts is not None
    return Statistics(
        int(report.class_counts.sum()),
        report.counts.astype(np.int64),
        *(
            part if part is None else part.astype(np.float64)
            for part in (report.means, report.variances, report.quantiles)
        ),
    )


def _event_times(report: SiteReport) -> tuple[int, NDArray[np.float64]]:
    """Return the number of events in a site's training rows, and the quantiles of their times."""
    assert report.class_counts is not None
    assert report.event_times is not None
    return int(report.class_counts[1]), report.event_times.astype(np.float64)


def _join(tables: Mapping[str, Preprocessing]) -> Preprocessing:
    """Join the preprocessing of all sites. A column's kind may be unknown at a site without cells in the column.

    Args:
        tables: The preprocessing of each site, by its label.

    Raises:
        SetupError: A column is of different kinds at two sites.
    """
    joint = next(iter(tables.values()))
    for label, table in tables.items():
        if clash := table.find_clash(joint):
            mine, joined = clash
            key, got = f"handshake: {label}: column {mine.column!r}", f"cells of kind {mine.kind!r}"
            allowed = f"cells of kind {joined.kind!r}, as at other sites"
            raise SetupError(key, got=got, allowed=allowed, hint="write the column in the same way at every site")
        joint = joint.join(table)
    return joint


def _compare_labels(reports: Sequence[SiteReport]) -> None:
    """Compare the sites' labels. Warn of differences that may be intended.

    Raises:
        SetupError: A site has no positive label, and no label that any other site has.
    """
    sites = Counter(value for report in reports for values in report.label_values for value in set(values))
    strangers, doubts = list[SetupError](), list[str]()
    for report in reports:
        negative, positive = report.label_values
        if not (negative or positive):  # the site hides its labels
            continue
        alone = [value for value in negative if sites[value] == 1 < len(reports)]
        if not positive and len(alone) == len(negative):
            error = SetupError(
                f"handshake: {report.label}: labels",
                got=f"{_join_names(alone)}, none of them in positive-label or at another site",
                allowed=f"other sites' labels: {_join_names([value for value in sites if value not in negative])}",
                hint="write labels in the same way at every site, or list all positive labels in positive-label",
            )
            strangers.append(error)
        elif not positive:
            doubts.append(f"{report.label} has no positive label, only {_join_names(negative)}")
        elif alone:
            doubts.append(f"only {report.label} has {_join_names(alone)}")
    if strangers:
        raise SetupError.join(strangers[:_SHOWN])
    if doubts:
        more = f"; and {len(doubts) - _SHOWN} more" if len(doubts) > _SHOWN else ""
        check = "labels that positive-label does not list count as negative; check the spelling: %s%s"
        log(WARNING, check, "; ".join(doubts[:_SHOWN]), more)


def _difference(first: SiteReport, site: SiteReport, *, labelled: bool) -> tuple[str, str, str, str] | None:
    """Return the key, got, allowed and hint of an error if a site differs from the first site, else None."""
    reference = first.label
    if site.shape is None:
        got = f"a file at {reference}, no file at {site.label}"
        return "data-path", got, "a file at every site, or at no site", "set data-path at every node, or at no node"
    assert first.shape is not None
    try:
        table, first_table = read_columns(site), read_columns(first)
    except PayloadError as error:
        return "columns", f"unreadable columns: {error}", "the columns of a table", _SAME_APP
    names, first_names = (
        () if t is None else tuple(feature.name for feature in t.inputs) for t in (table, first_table)
    )
    if names != first_names:
        lacks = [name for name in first_names if name not in names]
        more = [name for name in names if name not in first_names]
        if not lacks and not more:
            return "columns", f"another order than {reference}", "the same order at all sites", "set feature-columns"
        parts = [f"lacks {_join_names(lacks)}"] * bool(lacks) + [f"has {_join_names(more)} in addition"] * bool(more)
        hint = "make the columns equal, or set feature-columns"
        return "columns", f"a table that {' and '.join(parts)}", f"the columns of {reference}", hint
    for report, columns in ((first, first_table), (site, table)):
        if labelled and report.has_numbers != (columns is not None and columns.label_type == NUMBER):
            got = f"{'numbers' if report.has_numbers else 'classes'} at {report.label}"
            return "labels", got, "labels of the run config's label-type", _SAME_APP
    if fault := _find_finding_fault(site, first):
        return "label-columns", fault, "equal numbers at all sites, of the site's rows", _SAME_APP
    try:
        _ = site.label_values
    except PayloadError as error:
        return "labels", f"values that cannot be read: {error}", "the labels of the site's rows", _SAME_APP
    shape, first_shape = tuple(site.shape.tolist()), tuple(first.shape.tolist())
    if shape != first_shape:
        return (
            "samples",
            f"shape {shape}",
            f"the shape {first_shape} of {reference}",
            "convert the samples to one shape",
        )
    if table is None or first_table is None:
        return None
    if shape != (len(names),):
        return "samples", f"shape {shape}", f"({len(names)},), the number of columns", _SAME_APP
    if replace(table, outputs=first_table.outputs) != first_table:
        got = f"other keys of the run config than {reference}"
        return "columns", got, "the same run config at all sites", _SAME_APP
    statistics = statistics_of(site)
    if (statistics is None) != (statistics_of(first) is None):
        got = f"means from only one of this site and {reference}"
        return "means", got, "means from both sites or neither", _SAME_APP
    if (site.event_times is None) != (first.event_times is None):
        got = f"times of events from only one of this site and {reference}"
        return "time-column", got, "times of events from both sites or neither", _SAME_APP
    fault = "" if statistics is None else statistics.find_fault(table)
    if site.event_times is not None and not fault:
        fault = find_sketch_fault(*_event_times(site), site.smallest_count)
    return ("columns", fault, "statistics of the site's rows", _SAME_APP) if fault else None


def _join_depths(reports: Sequence[SiteReport]) -> float | None:
    """Return the ``pixel_max`` of all sites' images. Warn if their depths differ.

    Raises:
        SetupError: Sites with 16-bit images use different numbers of bits.
    """
    maxima = [None if report.pixel_max is None else float(report.pixel_max[0]) for report in reports]
    largest = max(filter(None, maxima), default=None)
    for report, maximum in zip(reports, maxima, strict=True):
        if largest and not same_depth(maximum, largest):
            reference = reports[maxima.index(largest)].label
            raise SetupError(
                f"handshake: {report.label}: images",
                got=describe_pixels(maximum),
                allowed=f"{describe_pixels(largest)}, as at {reference}",
                hint=f"set pixel-bits={int(largest).bit_length()}, or save the images of all sites in one depth",
            )
    if len(counts := Counter(map(describe_pixels, maxima))) > 1:
        listed = ", ".join(f"{count} with {depth}" for depth, count in counts.items())
        log(WARNING, "depths differ between sites (%s): each image becomes 0 to 1 by its maximum", listed)
    return largest


def same_depth(first: float | None, second: float | None) -> bool:
    """Return whether images can be combined: except 16-bit images with different maxima, all can.

    Args:
        first: The ``pixel_max`` of the first images.
        second: The ``pixel_max`` of the second images.
    """
    return first == second or min(first or 1, second or 1) <= 1


def describe_pixels(pixel_max: float | None) -> str:
    """Return the depth of images in words.

    Args:
        pixel_max: The pixel value that was scaled to 1. None: the images have 8 bits.
    """
    if pixel_max is None:
        return "8-bit images"
    return "floating-point images" if pixel_max == 1 else f"16-bit images with numbers up to {pixel_max:g}"


def _join_names(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(map(repr, names[:_SHOWN])) + more
