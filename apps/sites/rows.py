"""Sites that hold rows: a share of the run's data set, or files of their own."""

from __future__ import annotations

import numpy as np
from flwr.app import Context

from apps.run_config.algorithm import Held, RunConfig, Sites
from apps.sites import own_data, resources
from clients.base import Site, Trained
from payloads.handshake import Scaling, SiteReport


class RowSites(Sites):
    """Clients that hold rows, all with the same features. A node's rows stay in its process."""

    def hold(self, config: RunConfig, context: Context, place: tuple[int, int], scaling: Scaling | None) -> Site:
        partition_id, num_partitions = place
        if own_data.reads_own(config):
            rows = own_data.own_rows(config, context.node_config, partition_id)
            return own_data.own_site(config, rows, partition_id, scaling)
        return resources.site(config, num_partitions, partition_id)

    def report(self, config: RunConfig, context: Context, place: tuple[int, int]) -> SiteReport:
        """How many rows of each class a node holds and, where they are its own, what they look like."""
        if own_data.reads_own(config):
            return own_data.own_report(own_data.own_rows(config, context.node_config, place[0]), *place)
        counts = self.hold(config, context, place, None).class_counts
        return SiteReport(identity=np.array(place), class_counts=np.array(counts))

    def model(self, config: RunConfig, site: Held) -> Trained:
        """The resident model, or the oracle of a minimax problem."""
        assert isinstance(site, Site)
        return resources.trained(config, site)
