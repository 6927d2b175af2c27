"""The server half of local SGD; `methods.local_sgd` is the method."""

from __future__ import annotations

from methods.local_sgd import LOCAL_SGD
from strategies.method import MethodStrategy


class LocalSGD(MethodStrategy):
    """Averages the models of the round's clients; nothing else travels."""

    method = LOCAL_SGD
