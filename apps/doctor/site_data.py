"""Checks of a site's data and of its device for a run config."""

from __future__ import annotations

import os

from flwr.app import Context

from apps.doctor.findings import WrongError
from apps.evaluation.labels import describe_labels
from apps.run_config.algorithm import Held, RunConfig
from payloads.handshake import SiteReport


def data(context: Context) -> str:
    """Check the node config and the run config, and read the site's data, as in the handshake.

    Raises:
        ConfigError: The node config or the run config is wrong.
        DataError: The data cannot be read.
        WrongError: The site's own file has several labels, and none of them is positive.
    """
    from apps.guards.work import report_of, run_config, site_of
    from apps.sites.policy import check_demands

    config = run_config(context)
    check_demands(context.node_config, config)
    report = report_of(context, config)
    held_out = 0 if report.held_out_counts is None else int(report.held_out_counts.sum())
    partition = f"partition {context.node_config['partition-id']} of {context.node_config['num-partitions']}"
    text = f"{partition} of {config.data.dataset} for {config.run.strategy}"
    if report.class_counts is None:
        return f"{text}: {_describe_labels(config, site_of(context, config))}"
    negatives, positives = report.class_counts
    if report.finding_counts is None:
        text = f"{text}: {negatives + positives:,} rows with labels, {positives:,} of them positive"
    else:
        text = f"{text}: {describe_labels(config.data, None, report.class_counts, report.finding_counts[None])[0]}"
    if held_out:
        text = f"{text}, {held_out:,} more held out"
    elif report.held_out_counts is not None and not config.data.data_dir:
        text = f"{text}; the held-out rows of a class are fewer than least-cell, so none are counted"
    if report.negative_labels is None:
        return text
    negative, positive = (", ".join(map(repr, values)) or "none" for values in report.label_values)
    if len(report.label_values[0]) > 1 and positive == "none":
        raise WrongError(
            "labels",
            got=f"{negative}, none of them in positive-label",
            allowed=f"{config.data.positive_label or '1'!r} among the labels",
            hint="write the labels as at the other sites, or set positive-label",
        )
    return f"{text}; positive labels: {positive}; negative: {negative}{_describe_columns(report)}"


def _describe_labels(config: RunConfig, party: Held) -> str:
    """Describe a party's labels, whose number its report does not contain. This reads the party's data."""
    from apps.parties.data import settings_of
    from vertical.parties import Party
    from vertical.problem.objectives import make_objective

    assert isinstance(party, Party)
    holding = party.data.holding(None)
    labels = holding.labels
    party.policy.check_rows(int(holding.features.shape[0]), holding.test_rows, settings_of(config).min_active)
    text = f"{0 if labels is None else len(labels):,} rows with labels"
    if labels is None or not make_objective(settings_of(config).problem).classification:
        return text
    return f"{text}, {(labels > 0).sum():,} of them positive"


def _describe_columns(report: SiteReport) -> str:
    """Describe the columns of a site's table: the dates and, if the site reports them, the counts of missing cells.

    The text begins with ";". It is empty if the data are not a table, or have neither.
    """
    from strategies.rounds.schema import read_columns, statistics_of

    table, statistics = read_columns(report), statistics_of(report)
    if table is None:
        return ""
    dates = f"; dates: {', '.join(map(repr, table.dates))}" if table.dates else ""
    if statistics is None:
        return dates
    gaps = dict(zip((feature.column for feature in table.inputs), statistics.rows - statistics.counts, strict=True))
    missing = [f"{name!r} {count:,}" for name, count in gaps.items() if count]
    return f"{dates}; missing of {statistics.rows:,} training rows: {', '.join(missing)}" if missing else dates


def audit_log(context: Context) -> str:
    """Check that a party can write its log, or can create the log's folder.

    Raises:
        ConfigError: The key is not a path.
        WrongError: The file or its folder is not writable.
    """
    from apps.parties.audit import log_path

    path = log_path(context.node_config)
    assert path is not None
    existing = next(candidate for candidate in (path, *path.absolute().parents) if candidate.exists())
    if path.is_dir() or (existing != path and not existing.is_dir()) or not os.access(existing, os.W_OK):
        hint = "set audit-log to another path, or make the folder writable"
        raise WrongError("file", got=path, allowed="a writable file", hint=hint)
    return f"{path} can be written"


def device(context: Context) -> str:
    """Check that the run's device is available.

    Raises:
        ConfigError: The run config is wrong.
        ValueError: The run config asks for CUDA, which is not available.
    """
    import torch

    from apps.guards.work import run_config
    from apps.sites.resources import device_of

    config = run_config(context)
    used = device_of(config.training)
    name = torch.cuda.get_device_name() if used.type == "cuda" else f"{config.training.torch_threads} threads"
    return f"{used.type} ({name}) for device={config.training.device!r}"
