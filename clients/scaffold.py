"""The client half of SCAFFOLD; `methods.scaffold` is the method."""

from __future__ import annotations

from clients.base import ScoringClient
from methods.scaffold import SCAFFOLD


class ScaffoldClient(ScoringClient):
    """K steps whose gradients are corrected by c - c_i; the client keeps c_i, zeros at first."""

    method = SCAFFOLD
