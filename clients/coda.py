"""The client halves of CoDA and CODASCA; `methods.coda` and `methods.codasca` are the methods."""

from __future__ import annotations

from clients.minimax import MinimaxClient
from methods.coda import CODA
from methods.codasca import CODASCA


class CodaClient(MinimaxClient):
    """CoDA: K proximal steps in x, ascent in y."""

    method = CODA


class CodascaClient(MinimaxClient):
    """CODASCA: K steps whose gradients are corrected by c - c_k; the client keeps c_k, zeros at first."""

    method = CODASCA
