"""Lines for the log, and for ``florilegium check``, about a run's labels and its columns of dates and text."""

from collections.abc import Sequence
from logging import WARNING

import numpy as np
from flwr.common import log
from jaxtyping import Int64

from payloads.handshake import SiteReport
from problems.data import DataSpec, Preprocessing, SampleFormat
from problems.data.cells import is_number
from problems.data.findings import check_values
from problems.data.preprocessing import describe_scales, describe_text
from problems.data.spec import GENERIC, OWN, is_hub, is_loader
from problems.errors import join_first
from strategies.rounds.errors import raise_setup

SHOWN = 8
"""The number of labels that a line lists."""


def join_labels(labels: Sequence[str]) -> str:
    """Return the first `SHOWN` labels in quotes with commas, and the number of further labels."""
    more = f" and {len(labels) - SHOWN:,} more" if len(labels) > SHOWN else ""
    return ", ".join(map(repr, labels[:SHOWN])) + more


def describe_labels(
    spec: DataSpec,
    samples: SampleFormat | None,
    class_counts: Int64[np.ndarray, "clients 2"],
    finding_counts: Int64[np.ndarray, "clients l 2"] | None = None,
) -> list[str]:
    """Return a line about the positive labels and a line about the negative labels, or a line about several labels.

    The list is empty without labels.

    Args:
        spec: The run's data.
        samples: The form of the samples, with the positive and the negative labels.
        class_counts: Each client's number of negative and positive training rows.
        finding_counts: Each client's number of known zeros and ones of each finding; None with one label.
    """
    if finding_counts is not None:
        counts = zip(spec.findings, finding_counts.sum(axis=0).tolist(), strict=True)
        texts = [f"{name} {ones:,} of {zeros + ones:,} known" for name, (zeros, ones) in counts]
        return [f"labels: {join_first(texts, SHOWN)}; {class_counts.sum():,} training rows"]
    if spec.has_numbers:
        offset = f", with the offset in column {spec.offset_column!r}" if spec.offset_column else ""
        return [f"labels: numbers of column {spec.labels_in!r}{offset}; {class_counts.sum():,} training rows"]
    if samples is None or not (samples.positive_labels or samples.negative_labels):
        return []
    negatives, positives = class_counts.sum(axis=0).tolist()
    lines = []
    sides = (("positive", positives, samples.positive_labels), ("negative", negatives, samples.negative_labels))
    for side, count, labels in sides:
        names = join_labels(labels) or "none"
        lines.append(f"labels: {side} {names} ({count:,} of {negatives + positives:,} training rows)")
    return [lines[0] + _reason(spec, samples), lines[1]]


def check_findings(spec: DataSpec, reports: Sequence[SiteReport]) -> None:
    """Check before round 1 that all sites together have both values of each finding, in each part of their rows.

    Warns of findings that sites do not count among rows for evaluation.

    Args:
        spec: The run's data.
        reports: The sites' reports.

    Raises:
        SetupError: A finding has one value only, or none that the sites report; lists such findings.
    """
    names, parts = spec.findings, {"finding_counts": "training"}
    if not spec.data_dir:
        parts |= {"held_out_findings": "held-out", "test_findings": "test"}
    for field, rows in parts.items():
        counts = [count for report in reports if (count := getattr(report, field)) is not None]
        if not counts:
            continue
        with raise_setup():
            check_values(np.sum(counts, axis=0), names, f"the {rows} rows of all sites")
        unknown = np.count_nonzero(~np.any(counts, axis=2), axis=0).tolist()
        if any(unknown):
            texts = [f"{name} at {count}" for name, count in zip(names, unknown, strict=True) if count]
            text = "findings that are unknown in all %s rows, or 0 or 1 in fewer than least-cell: %s of %d sites"
            log(WARNING, text, rows, join_first(texts, SHOWN), len(counts))


def describe_columns(columns: Preprocessing | None) -> list[str]:
    """Return lines about a table's columns of dates, of text and with long tails. [] if the data are not a table."""
    if columns is None:
        return []
    dates = [f"dates become days since 1970-01-01: {', '.join(map(repr, columns.dates))}"] if columns.dates else []
    return [*dates, *describe_text(columns), *describe_scales(columns)]


def _reason(spec: DataSpec, samples: SampleFormat) -> str:
    """Return the reason why the positive label is positive; "" if a key determines it."""
    generic = spec.dataset in GENERIC or is_hub(spec.dataset) or is_loader(spec.dataset)
    if spec.positive_label or not generic:
        return ""
    if spec.partition == OWN:
        return ", the default; set positive-label to choose another label"
    numbers = all(map(is_number, (*samples.positive_labels, *samples.negative_labels)))
    order = "the larger of two numbers" if numbers else "the last in alphabetical order"
    names = ", ".join(samples.negative_labels)
    return f', {order}, since positive-label is empty; set positive-label="{names}" if that is the positive label'
