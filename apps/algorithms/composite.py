"""Composite FL and its rivals: the rows of the registry."""

from __future__ import annotations

from apps.algorithms import Algorithm
from clients.composite import CompositeClient, FastFedDAClient, FedDAClient, FedMidClient
from problems.objectives.classification import SAMPLE_LOSSES
from strategies.composite import Composite, FastFedDA, FedDA, FedMid

ROWS = {
    "composite": Algorithm(
        Composite,
        CompositeClient,
        "composite",
        tuple(SAMPLE_LOSSES),
        "loss plus a nonsmooth penalty or constraint, exact on unequal sites (Composite FL, Zhang et al. 2023)",
        "nothing",
    ),
    "fedmid": Algorithm(
        FedMid,
        FedMidClient,
        "composite",
        tuple(SAMPLE_LOSSES),
        "the same by local proximal SGD and plain averaging (FedMid, Yuan et al. 2021)",
        "nothing",
    ),
    "fedda": Algorithm(
        FedDA,
        FedDAClient,
        "composite",
        tuple(SAMPLE_LOSSES),
        "the same by dual averaging, which keeps sparsity (FedDualAvg, Yuan et al. 2021)",
        "nothing; the model is the dual point",
    ),
    "fast-fedda": Algorithm(
        FastFedDA,
        FastFedDAClient,
        "composite",
        tuple(SAMPLE_LOSSES),
        "dual averaging over all points and gradients, steps decaying (Fast-FedDA, Bao et al. 2022)",
        "nothing; the model is the dual point",
    ),
}
