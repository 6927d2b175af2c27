"""What a site tells before round 1: who it is and how much of each class it holds. No data leaves the site."""

from __future__ import annotations

import dataclasses

from payloads.record import IntArray, Payload, array

# the reply's config entry of a site that cannot take part, with the reason
REFUSAL = "refusal"


@dataclasses.dataclass(frozen=True, eq=False)
class SiteReport(Payload):
    """A site's answer to the handshake.

    Beside it travel, as text in the same message, the site's device and the versions of the libraries that decide
    whether two sites compute the same thing.
    """

    # identity: partition id, number of partitions the site believes in
    identity: IntArray = array(2, kind="int")
    # class counts: negatives, positives
    class_counts: IntArray = array(2, kind="int")

    @property
    def partition_id(self) -> int:
        return int(self.identity[0])

    @property
    def num_partitions(self) -> int:
        return int(self.identity[1])

    @property
    def num_negatives(self) -> int:
        return int(self.class_counts[0])

    @property
    def num_positives(self) -> int:
        return int(self.class_counts[1])
