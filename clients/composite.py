"""The client halves of the methods for f + g; `methods.composite` and its neighbours are the methods."""

from __future__ import annotations

from clients.base import ScoringClient
from methods.composite import COMPOSITE
from methods.fast_fedda import FAST_FEDDA
from methods.fedda import FEDDA, FEDMID


class CompositeClient(ScoringClient):
    """Algorithm 1: corrected gradients at the post-proximal point move the pre-proximal one, which is sent."""

    method = COMPOSITE


class FedMidClient(ScoringClient):
    """FedMid: proximal SGD."""

    method = FEDMID


class FedDAClient(ScoringClient):
    """FedDA: steps of a dual point."""

    method = FEDDA


class FastFedDAClient(ScoringClient):
    """Fast-FedDA: dual averaging over all points and gradients of the run."""

    method = FAST_FEDDA
