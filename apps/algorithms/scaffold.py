"""SCAFFOLD: the rows of the registry."""

from __future__ import annotations

from apps.algorithms import Algorithm
from clients.scaffold import ScaffoldClient
from problems.objectives.classification import CROSS_ENTROPY
from strategies.scaffold import Scaffold

ROWS = {
    "scaffold": Algorithm(
        Scaffold,
        ScaffoldClient,
        "",
        (CROSS_ENTROPY,),
        "local SGD on cross-entropy with control variates against unequal sites (SCAFFOLD, Karimireddy et al. 2020)",
        "control variates",
    ),
}
