"""Local SGD with momentum: the rows of the registry."""

from __future__ import annotations

from apps.algorithms import Algorithm
from clients.sgdm import LocalSGDMClient, LocalSGDMRatioClient
from problems.objectives.classification import CROSS_ENTROPY, RATIO_LOSS
from strategies.sgdm import LocalSGDM, LocalSGDMRatio

ROWS = {
    "local-sgdm": Algorithm(
        LocalSGDM,
        LocalSGDMClient,
        "sgdm",
        (CROSS_ENTROPY,),
        "local SGD with momentum on cross-entropy, models and momenta averaged",
        "momentum",
    ),
    "local-sgdm-rl": Algorithm(
        LocalSGDMRatio,
        LocalSGDMRatioClient,
        "sgdm",
        (RATIO_LOSS,),
        "the same on the ratio loss, in which the rare class weighs more (Wang et al. 2021)",
        "momentum; class counts of all sites together",
    ),
}
