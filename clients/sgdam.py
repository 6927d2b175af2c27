"""The client half of LocalSGDAM; `methods.sgdam` is the method."""

from __future__ import annotations

from clients.minimax import MinimaxClient
from methods.sgdam import LOCAL_SGDAM


class LocalSGDAMClient(MinimaxClient):
    """K steps along the momentum (u, v)."""

    method = LOCAL_SGDAM
