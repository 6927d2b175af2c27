"""Sites that hold rows: a share of the run's data set, or files of their own."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
from flwr.app import Context, Message

from apps.run_config.algorithm import Held, RunConfig
from apps.sites import own_data, resources
from clients.base import PayloadClient, Site, Trained
from payloads.handshake import Scaling, SiteReport


class RowSites:
    """Clients that hold rows, all with the same features."""

    bring_files = False
    refusals: tuple[type[Exception], ...] = ()

    def hold(self, config: RunConfig, context: Context, place: tuple[int, int], scaling: Scaling | None) -> Site:
        """A node's rows, which stay in its process.

        Raises:
            ConfigError, DataError: the node config is wrong, or the data cannot be used.
        """
        partition_id, num_partitions = place
        if own_data.reads_own(config):
            rows = own_data.own_rows(config, context.node_config, partition_id)
            return own_data.own_site(config, rows, partition_id, scaling)
        return resources.site(config, num_partitions, partition_id)

    def report(self, config: RunConfig, context: Context, place: tuple[int, int]) -> SiteReport:
        """How many rows of each class a node holds and, where they are its own, what they look like.

        Raises:
            ConfigError, DataError: the node config is wrong, or the data cannot be used.
        """
        if own_data.reads_own(config):
            return own_data.own_report(own_data.own_rows(config, context.node_config, place[0]), *place)
        counts = self.hold(config, context, place, None).class_counts
        return SiteReport(identity=np.array(place), class_counts=np.array(counts))

    def model(self, config: RunConfig, site: Held) -> Trained:
        """The resident model, or the oracle of a minimax problem."""
        assert isinstance(site, Site)
        return resources.trained(config, site)

    def audit(
        self, config: RunConfig, event: str, context: Context, message: Message
    ) -> AbstractContextManager[dict[str, Any]]:
        """Nothing: these sites keep no log of their own."""
        return nullcontext({})

    def begin(self, client: PayloadClient[Any], facts: dict[str, Any]) -> None:
        """Nothing: a client of rows tells its owner no facts."""

    def end(self, client: PayloadClient[Any], context: Context, config: dict[str, Any]) -> None:
        """Nothing: a client of rows keeps nothing but its state."""
