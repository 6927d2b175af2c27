"""The client half of local pairs; `methods.local_pair` is the method."""

from __future__ import annotations

from clients.base import ScoringClient
from methods.local_pair import LOCAL_PAIR


class LocalPairClient(ScoringClient):
    """The pairwise losses on the site's own pairs: mini-batch SGD for linear f; u and momentum for non-linear f."""

    method = LOCAL_PAIR
