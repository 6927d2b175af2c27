"""Local SGD's server half: the plain mean of the models (Stich 2019)."""

from __future__ import annotations

from strategies.base import PayloadStrategy


class LocalSGD(PayloadStrategy):
    """Averages the models of the round's clients, each with the same weight; nothing else travels."""
