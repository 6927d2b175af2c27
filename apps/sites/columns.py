"""The data of sites whose columns are described: all rows of a site's own file, or a client's rows of the run's data.

All rows are described, neither scaled nor filled. So neither the seed nor the split changes the description.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
from flwr.app import Context

from apps.run_config.algorithm import Held, RunConfig, Sites
from apps.sites.cells import least_cell
from apps.sites.rows import encode_columns, label_node, own_rows, reads_own
from clients.base import Trained
from clients.vfb2 import NoModel
from methods.cohort import Cohort, Columns
from payloads.handshake import Scaling, SiteReport, encode_name
from payloads.site_names import fit_names
from problems.data import DataError, DataSpec, FederatedData, Preprocessing
from problems.data.raw_columns import load_columns, name_features, remove_scaling


@lru_cache(maxsize=4)
def _load(spec: DataSpec, num_clients: int) -> FederatedData:
    return load_columns(spec, num_clients)


@lru_cache(maxsize=256)
def _client(spec: DataSpec, num_clients: int, partition_id: int) -> tuple[Cohort, Preprocessing]:
    data = _load(spec, num_clients)
    samples, table = data.client(partition_id), data.columns
    assert table is not None
    return Cohort(partition_id, Columns(table.inputs), np.asarray(samples.features, np.float64), samples.labels), table


@lru_cache(maxsize=64)
def _cohort(rows: Any, table: Preprocessing, partition_id: int, least: int) -> Cohort:
    return Cohort(partition_id, Columns(table.inputs), rows.features.astype(np.float64), rows.labels, least)


class ColumnSites(Sites):
    """The columns of nodes that have different rows."""

    def hold(self, config: RunConfig, context: Context, partition: tuple[int, int], scaling: Scaling | None) -> Held:
        cohort, _ = _read(config, context.node_config, partition)
        return cohort

    def report(self, config: RunConfig, context: Context, partition: tuple[int, int]) -> SiteReport:
        """Return the names and kinds of a node's columns. No number of rows is reported.

        Raises:
            ConfigError, DataError: As for `own_rows`, or the data set cannot be loaded or is not a table.
        """
        cohort, table = _read(config, context.node_config, partition)
        name = ""
        if not reads_own(config):
            names = fit_names(_load(config.data, partition[1]).site_names)
            name = names[partition[0]] if names else ""
        return SiteReport(
            identity=np.array(partition),
            shape=np.array([len(table.inputs)]),
            columns=encode_columns(table),
            least_cell=np.array([cohort.least_cell]),
            name=encode_name(name),
        )

    def model(self, config: RunConfig, site: Held) -> Trained:
        return NoModel()


def _read(config: RunConfig, node: Mapping[str, Any], partition: tuple[int, int]) -> tuple[Cohort, Preprocessing]:
    """Return a node's rows and their columns.

    Raises:
        ConfigError, DataError: See `ColumnSites.report`.
    """
    if not reads_own(config):
        return _client(config.data, partition[1], partition[0])
    rows = own_rows(replace(config, data=remove_scaling(config.data)), node, partition[0], trains=False)
    try:
        table = rows.preprocessing or name_features(rows.features)
    except DataError as error:
        raise error.at(label_node(node, partition[0])) from None
    return _cohort(rows, table, partition[0], least_cell(node)), table
