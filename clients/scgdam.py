"""The client half of LocalSCGDAM; `methods.scgdam` is the method."""

from __future__ import annotations

from clients.minimax import MinimaxClient
from methods.scgdam import LOCAL_SCGDAM


class LocalSCGDAMClient(MinimaxClient):
    """K steps of x, y, h, u and v; its oracle is a `CompositionalOracle`."""

    method = LOCAL_SCGDAM
