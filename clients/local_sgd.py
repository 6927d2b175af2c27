"""The client half of local SGD; `methods.local_sgd` is the method."""

from __future__ import annotations

from clients.base import ScoringClient
from methods.local_sgd import LOCAL_SGD


class LocalSGDClient(ScoringClient):
    """K steps of SGD; nothing but the model travels."""

    method = LOCAL_SGD
