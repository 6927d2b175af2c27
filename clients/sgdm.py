"""The client halves of local SGD with momentum; `methods.sgdm` is the method."""

from __future__ import annotations

from dataclasses import replace

from clients.base import ScoringClient
from methods.sgdm import LOCAL_SGDM
from problems.objectives.classification import RATIO_LOSS


class LocalSGDMClient(ScoringClient):
    """K steps along the momentum, from the server's; the first of a run is its first gradient."""

    method = LOCAL_SGDM


class LocalSGDMRatioClient(LocalSGDMClient):
    """The same on the ratio loss."""

    method = replace(LOCAL_SGDM, loss=RATIO_LOSS)
