"""The data of sites that have rows: parts of the run's data set, or the sites' own files.

A site with its own file reports the facts that all sites must agree on, such as columns and counts (`own_report`). The
server may test the model on a file of the server.
"""

import json
import threading
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from logging import INFO
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from flwr.app import Context
from flwr.common import log
from numpy.typing import NDArray

from apps.run_config.algorithm import Held, RunConfig, Sites
from apps.run_config.settings import ConfigError
from apps.sites.cells import (
    check_classes,
    check_outcomes,
    common_labels,
    describe_left_out,
    held_out_counts,
    least_cell,
)
from apps.sites.resources import augment_site, device_of, dtype_of, federated_data, get_trainee, site
from apps.sites.settings import DIALECT, SiteConfig
from clients.base import Site, Trained
from payloads.handshake import LONGEST_LABEL, MOST_LABELS, Scaling, SiteReport, encode_name, encode_names
from payloads.site_names import fit_names, label_site
from problems.data import OWN, DataError, DataSpec, FederatedData, Preprocessing, Samples, SiteRows, read_own
from problems.data.agreement import Agreed
from problems.data.dialect import Dialect
from problems.data.own import feature_columns
from problems.data.preprocessing import describe_text
from problems.data.quantiles import FEWEST_ROWS
from problems.data.spec import AUTO, PAGE
from problems.errors import NOTHING

DATA_PATH, SCORE_PATH = "data-path", "score-path"
SPLIT_SEED = "split-seed"

_load_lock = threading.Lock()


def reads_own(config: RunConfig) -> bool:
    """Return whether the run's sites read their own files."""
    return config.data.partition == OWN


def own_rows(config: RunConfig, node: Mapping[str, Any], partition_id: int, *, trains: bool = True) -> SiteRows:
    """Return the rows of a node's own file. A process reads the file once, and again after a change.

    Args:
        config: The run config.
        node: The node config.
        partition_id: The node's partition id.
        trains: Whether a class must have enough rows to train on.

    Raises:
        ConfigError: The node config names no file, or a value is not allowed.
        DataError: The file cannot be used, or has too few rows of a class. The error names the site.
    """
    own, label = SiteConfig.of(node), label_node(node, partition_id)
    if own.data.data_path is None:
        raise ConfigError(
            f"{label}: {DATA_PATH}",
            got=NOTHING,
            allowed=f"a path in every node config, since partition={OWN!r}",
            hint=f"set {DATA_PATH} in the node config, such as '{DATA_PATH}=\"/srv/site.csv\"'; see {PAGE}",
        )
    spec = with_dialect(config.data, node)
    if own.data.split_seed is not None:  # data_dir="": hold rows out even if the server has a test file
        spec = replace(spec, seed=own.data.split_seed, data_dir="")
    try:
        rows = read_file(own.data.data_path, spec, partition_id)
        if trains:
            check_classes(rows, own.privacy.least_cell)
    except DataError as error:
        raise error.at(label) from error
    return rows


def label_node(node: Mapping[str, Any], partition_id: int) -> str:
    """Return the text that stands for a node in errors: its ``site-name``, else its partition id."""
    return SiteConfig.of(node).data.site_name or label_site(partition_id)


def with_dialect(spec: DataSpec, node: Mapping[str, Any]) -> DataSpec:
    """Return the run's keys of the data, with the form of a node's own csv file: separator, decimal mark and encoding.

    Args:
        spec: The run's keys of the data.
        node: The node config. With ``split-seed`` the run config cannot set the form: otherwise a server could compare
            the facts from several ways to read the file.

    Raises:
        ConfigError: A key of the node config has a wrong value, or ``split-seed`` does not allow the run's value.
    """
    data = SiteConfig.of(node).data
    dialect = data.dialect()
    for key in DIALECT:
        wanted = getattr(spec, key)
        if key not in dialect and data.split_seed is not None and wanted != AUTO:
            allowed = f"{AUTO!r}, since this site's node config has {SPLIT_SEED} without {key}"
            raise ConfigError(key, got=f"a run with {key}={wanted!r}", allowed=allowed, hint=f'set {key}="{AUTO}"')
    spec = replace(spec, **dialect)
    try:
        Dialect.of(spec).check()
    except DataError as error:
        raise ConfigError.of(error, "node config") from None
    return spec


def own_report(rows: SiteRows, partition_id: int, num_partitions: int, least: int = 1) -> SiteReport:
    """Return a site's report of its rows.

    Args:
        rows: The site's rows.
        partition_id: The site's number.
        num_partitions: The number of sites.
        least: The site's least cell.

    Raises:
        DataError: There are too few rows to reveal means, or the labels may name persons (`_check_labels`).
    """
    statistics = rows.statistics(least)
    _check_labels(rows)
    negative, positive = map(encode_names, common_labels(rows, least))
    names = ("counts", "means", "variances", "quantiles")
    reported = {} if statistics is None else {name: getattr(statistics, name) for name in names}
    parts = {"finding_counts": rows.train_rows, "held_out_findings": rows.evaluated_rows}
    if rows.validation_rows is not None:
        parts["test_findings"] = rows.test_rows
    for name, indices in parts.items():
        if (findings := rows.findings_of(indices, least)) is not None:
            reported[name] = findings.counts
    return SiteReport(
        identity=np.array([partition_id, num_partitions]),
        class_counts=np.array(rows.class_counts(rows.train_rows)),
        held_out_counts=held_out_counts(rows, rows.evaluated_rows, least),
        test_counts=None if rows.validation_rows is None else held_out_counts(rows, rows.test_rows, least),
        shape=np.array(rows.shape, dtype=np.int64),
        pixel_max=None if rows.pixel_max is None else np.array([rows.pixel_max]),
        columns=None if rows.preprocessing is None else encode_columns(rows.preprocessing),
        negative_labels=negative if rows.has_classes else None,
        positive_labels=positive if rows.has_classes else None,
        least_cell=np.array([least]),
        event_times=rows.event_times(least),
        **reported,
    )


def encode_columns(preprocessing: Preprocessing) -> NDArray[np.uint8]:
    """Return a preprocessing as the bytes of a message."""
    return np.frombuffer(json.dumps(preprocessing.to_json()).encode(), dtype=np.uint8)


def _check_labels(rows: SiteRows) -> None:
    """Raise DataError if label values, which are sent to the server, are so many or so long that they may be names."""
    if not rows.has_classes:
        return
    values = sum(rows.label_values, ())
    max_values = min(MOST_LABELS, max(2, len(rows.labels) // 2))
    if len(values) > max_values or max(map(len, values)) > LONGEST_LABEL:
        got = f"{len(values)} different values, the longest of {max(map(len, values))} characters"
        allowed = f"at most {max_values} values of at most {LONGEST_LABEL} characters, since the server sees them"
        raise DataError("labels", got=got, allowed=allowed, hint="set label-column to the column of labels")


def find_scales(scaling: Scaling | None) -> Agreed | None:
    """Return the scaling in a message, in float64."""
    if scaling is None:
        return None
    arrays = scaling.arrays()
    return Agreed(
        **{name: array if array.dtype == bool else array.astype(np.float64) for name, array in arrays.items()}
    )


def read_file(file: Path, spec: DataSpec, partition_id: int | None) -> SiteRows:
    if not file.is_absolute():
        got, allowed = f"{str(file)!r}, which is relative", "an absolute path, since an app runs in another folder"
        raise DataError("data-dir, data-path", got=got, allowed=allowed, hint="set the key to an absolute path")
    status = file.stat() if file.exists() else None
    changed = (0, 0) if status is None else (status.st_mtime_ns, status.st_size)
    with _load_lock:
        return _rows(str(file), changed, spec, partition_id)


@lru_cache(maxsize=64)
def _rows(path: str, changed: tuple[int, int], spec: DataSpec, partition_id: int | None) -> SiteRows:
    rows, site = read_own(path, spec, partition_id), "server" if partition_id is None else f"partition {partition_id}"
    notes = [*rows.notes, *([] if rows.preprocessing is None else describe_text(rows.preprocessing))]
    for note in notes:
        log(INFO, "%s: %s", site, note)
    return rows


class _Same(NamedTuple):
    """The scaling that all clients share, as a key of a cache: it is compared by its bytes."""

    agreed: Agreed | None
    content: tuple[tuple[str, bytes], ...]

    def __hash__(self) -> int:
        return hash(self.content)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self.content == other.content


@lru_cache(maxsize=64)
def _site(rows: SiteRows, partition_id: int, same: _Same, dtype: torch.dtype, device: torch.device, least: int) -> Site:
    def part(indices: NDArray[np.int64], min_rows: int = 1) -> Site:
        return Site.of_samples(partition_id, rows.samples(indices, same.agreed, min_rows, least), dtype, device)

    def held_out(indices: NDArray[np.int64]) -> Site | None:
        codes = None if rows.subgroups is None else rows.subgroups[indices]
        return replace(part(indices), subgroups=codes) if len(indices) else None

    test = None if rows.validation_rows is None else held_out(rows.test_rows)
    train = replace(
        part(rows.train_rows, max(FEWEST_ROWS, least)),
        columns=feature_columns(rows, same.agreed),
        names=rows.names(same.agreed),
    )
    return replace(train, held_out=held_out(rows.evaluated_rows), test=test)


@lru_cache(maxsize=64)
def _with_least_cell(site: Site, least: int) -> Site:
    return replace(site, least_cell=least)


def _count_classes(samples: Samples) -> NDArray[np.int64]:
    return np.array([len(samples.negatives), len(samples.positives)])


def _evaluated_rows(data: FederatedData, partition_id: int) -> tuple[Samples, Samples | None]:
    """Return a client's rows that evaluate the rounds' models, and its test rows if the former are validation rows."""

    def select(rows: Samples) -> Samples:
        return rows.select(np.flatnonzero(rows.sites == partition_id))

    return select(data.evaluated), None if data.validation is None else select(data.test)


@lru_cache(maxsize=65536)
def _with_evaluated_rows(own: Site, data: FederatedData) -> Site:
    """Return a client's rows with the rows on which it measures its fine-tuned model."""
    held_out, test = (
        None if rows is None else Site.of_samples(own.partition_id, rows, own.features.dtype, own.features.device)
        for rows in _evaluated_rows(data, own.partition_id)
    )
    return replace(own, held_out=held_out, test=test)


class RowSites(Sites):
    """The data of clients that have different rows with the same features. A node's process caches its rows."""

    def hold(self, config: RunConfig, context: Context, partition: tuple[int, int], scaling: Scaling | None) -> Site:
        partition_id, num_partitions = partition
        if not reads_own(config):
            own = site(config, num_partitions, partition_id)
            if config.evaluation.fine_tune_steps:
                own = _with_evaluated_rows(own, federated_data(config.data, num_partitions))
            return augment_site(config, own)
        rows, agreed = own_rows(config, context.node_config, partition_id), find_scales(scaling)
        arrays = {} if scaling is None else scaling.arrays()
        same = _Same(agreed, tuple((name, array.tobytes()) for name, array in arrays.items()))
        with _load_lock:
            least = least_cell(context.node_config)
            data = _site(rows, partition_id, same, dtype_of(config.training), device_of(config.training), least)
            return augment_site(config, _with_least_cell(data, least))

    def report(self, config: RunConfig, context: Context, partition: tuple[int, int]) -> SiteReport:
        """Return a node's numbers of rows of each class. For a node with its own file: `own_report`.

        Raises:
            ConfigError, DataError: As for `own_rows`, or the data set cannot be loaded.
        """
        if reads_own(config):
            rows, least = own_rows(config, context.node_config, partition[0]), least_cell(context.node_config)
            label = label_node(context.node_config, partition[0])
            for line in describe_left_out(rows, least):
                log(INFO, "%s: %s", label, line)
            try:
                check_outcomes(config, rows)
                return own_report(rows, *partition, least)
            except DataError as error:
                raise error.at(label) from error
        data = federated_data(config.data, partition[1])
        samples = data.client(partition[0])  # no tensors before a site trains
        check_outcomes(config, samples)
        counts = _count_classes(samples)
        names = fit_names(data.site_names)
        name = encode_name(names[partition[0]]) if names else None
        findings = None if samples.findings is None else samples.findings.counts
        held_out, test = _evaluated_rows(data, partition[0]) if config.evaluation.fine_tune_steps else (None, None)
        return SiteReport(
            identity=np.array(partition),
            class_counts=counts,
            finding_counts=findings,
            name=name,
            held_out_counts=None if held_out is None else _count_classes(held_out),
            test_counts=None if test is None else _count_classes(test),
        )

    def model(self, config: RunConfig, site: Held) -> Trained:
        assert isinstance(site, Site)
        return get_trainee(config, site)
