"""Federated learning beyond empirical risk minimisation: the public names of the project, imported on first use.

``import florilegium`` itself imports nothing else of it. A run in this process:

    import florilegium

    run = florilegium.run({"strategy": "fedx2", "num-server-rounds": 20}, "runs/first")
    print(run.metrics["auc"])
    model = florilegium.load("runs/first")
    print(model.predict_proba(rows))
"""

from __future__ import annotations

import ast
import importlib
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

# Read by type checkers, and by `_homes`.
if TYPE_CHECKING:
    from apps.config import ConfigError
    from apps.server_app import RunFailedError
    from clients.base import MethodClient, PayloadClient, ScoringClient, Site
    from clients.scoring import (
        CodaClient,
        CodascaClient,
        CompositeClient,
        FastFedDAClient,
        FedDAClient,
        FedMidClient,
        FedProxClient,
        FedSGDAClient,
        FedSGDASpiderClient,
        FedSGDAStormClient,
        FedSGDASvrgClient,
        FedX1Client,
        FedX2Client,
        LocalPairClient,
        LocalSCGDAMClient,
        LocalSGDAMClient,
        LocalSGDClient,
        LocalSGDMClient,
        LocalSGDMRatioClient,
        MinimaxClient,
        ScaffoldClient,
    )
    from clients.vfb2 import VFB2Client, VFB2SAGAClient, VFB2SGDClient, VFB2SVRGClient
    from methods.coda import ClassScores, CodaDown, CodaSettings, StageState
    from methods.codasca import CodascaDown
    from methods.composite import CorrectionState
    from methods.fedprox import FedProxSettings
    from methods.fedsgda import EstimatorState, FedSGDADown, FedSGDASettings, LocalGradient
    from methods.method import ClientHalf, Method, Phase, Plan, Records, Replies, ServerHalf, Task
    from methods.pairwise import FedXSettings, InnerEstimates, Momentum
    from methods.penalised import CompositeSettings, Smoothness
    from methods.predictions import FedXPool, FedXPredictions, FedXState
    from methods.scaffold import ControlChange, ControlVariate
    from methods.scgdam import CompositionalState, CompositionalUp, SCGDAMDown, SCGDAMSettings
    from methods.sgdam import SaddleMomentum, SGDAMDown, SGDAMSettings
    from methods.sgdm import LocalMomentum, SGDMDown, SGDMSettings
    from payloads.handshake import Scaling, SiteReport
    from payloads.held_out import ScoreCounts, ScoreEdges
    from payloads.record import Payload, PayloadError
    from payloads.settings import Settings, TrainingSettings
    from simulations.engines.launch import run
    from simulations.results.records import RunRecord
    from simulations.scoring.model import TrainedModel, load
    from strategies.base import PayloadStrategy
    from strategies.composite import Composite, FastFedDA, FedDA, FedMid, ProximalStrategy
    from strategies.fedx import FedX1, FedX2, LocalPair, PairwiseStrategy
    from strategies.local_sgd import FedProx, LocalSGD, LocalSGDM, LocalSGDMRatio, Scaffold
    from strategies.method import MethodStrategy
    from strategies.minimax import (
        Coda,
        Codasca,
        FedSGDA,
        FedSGDAMB,
        FedSGDASPIDER,
        FedSGDASTORM,
        FedSGDASVRG,
        LocalSCGDAM,
        LocalSGDAM,
        MinimaxStrategy,
        StagewiseStrategy,
    )
    from strategies.rounds.errors import StrategyError
    from strategies.vfb2 import VFB2, VFB2SAGA, VFB2SGD, VFB2SVRG
    from vertical.records import Credentials, DataSummary, Report, Segment, VFB2Progress, VFB2State
    from vertical.settings import VFB2Settings

__all__ = [
    "VFB2",
    "VFB2SAGA",
    "VFB2SGD",
    "VFB2SVRG",
    "ClassScores",
    "ClientHalf",
    "Coda",
    "CodaClient",
    "CodaDown",
    "CodaSettings",
    "Codasca",
    "CodascaClient",
    "CodascaDown",
    "Composite",
    "CompositeClient",
    "CompositeSettings",
    "CompositionalState",
    "CompositionalUp",
    "ConfigError",
    "ControlChange",
    "ControlVariate",
    "CorrectionState",
    "Credentials",
    "DataSummary",
    "EstimatorState",
    "FastFedDA",
    "FastFedDAClient",
    "FedDA",
    "FedDAClient",
    "FedMid",
    "FedMidClient",
    "FedProx",
    "FedProxClient",
    "FedProxSettings",
    "FedSGDA",
    "FedSGDAClient",
    "FedSGDADown",
    "FedSGDAMB",
    "FedSGDASPIDER",
    "FedSGDASTORM",
    "FedSGDASVRG",
    "FedSGDASettings",
    "FedSGDASpiderClient",
    "FedSGDAStormClient",
    "FedSGDASvrgClient",
    "FedX1",
    "FedX1Client",
    "FedX2",
    "FedX2Client",
    "FedXPool",
    "FedXPredictions",
    "FedXSettings",
    "FedXState",
    "InnerEstimates",
    "LocalGradient",
    "LocalMomentum",
    "LocalPair",
    "LocalPairClient",
    "LocalSCGDAM",
    "LocalSCGDAMClient",
    "LocalSGD",
    "LocalSGDAM",
    "LocalSGDAMClient",
    "LocalSGDClient",
    "LocalSGDM",
    "LocalSGDMClient",
    "LocalSGDMRatio",
    "LocalSGDMRatioClient",
    "Method",
    "MethodClient",
    "MethodStrategy",
    "MinimaxClient",
    "MinimaxStrategy",
    "Momentum",
    "PairwiseStrategy",
    "Payload",
    "PayloadClient",
    "PayloadError",
    "PayloadStrategy",
    "Phase",
    "Plan",
    "ProximalStrategy",
    "Records",
    "Replies",
    "Report",
    "RunFailedError",
    "RunRecord",
    "SCGDAMDown",
    "SCGDAMSettings",
    "SGDAMDown",
    "SGDAMSettings",
    "SGDMDown",
    "SGDMSettings",
    "SaddleMomentum",
    "Scaffold",
    "ScaffoldClient",
    "Scaling",
    "ScoreCounts",
    "ScoreEdges",
    "ScoringClient",
    "Segment",
    "ServerHalf",
    "Settings",
    "Site",
    "SiteReport",
    "Smoothness",
    "StageState",
    "StagewiseStrategy",
    "StrategyError",
    "Task",
    "TrainedModel",
    "TrainingSettings",
    "VFB2Client",
    "VFB2Progress",
    "VFB2SAGAClient",
    "VFB2SGDClient",
    "VFB2SVRGClient",
    "VFB2Settings",
    "VFB2State",
    "__version__",
    "load",
    "run",
]


@cache
def _homes() -> dict[str, str]:
    """Public name -> its module, read from the imports above."""
    tree = ast.parse(Path(__file__).read_text("utf-8"))
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    homes = {alias.name: str(node.module) for node in imports for alias in node.names}
    return {name: homes[name] for name in __all__ if name in homes}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from apps.run_directory.versions import project_version

        return project_version()
    if name not in _homes():
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(importlib.import_module(_homes()[name]), name)
    return found


def __dir__() -> list[str]:
    return __all__
