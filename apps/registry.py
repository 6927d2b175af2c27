"""The table behind "swap strategies with one key": run-config name -> what it starts.

Adding an algorithm is one row here plus its modules: payload, client, strategy.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from clients.base import PayloadClient
from clients.coda import CodaClient, CodascaClient
from clients.composite import CompositeClient, FastFedDAClient, FedDAClient, FedMidClient
from clients.fedprox import FedProxClient
from clients.fedsgda import FedSGDAClient, FedSGDAStormClient
from clients.fedx import FedX1Client, FedX2Client
from clients.local_sgd import LocalSGDClient
from clients.pairwise import LocalPairClient
from clients.scaffold import ScaffoldClient
from clients.scgdam import LocalSCGDAMClient
from clients.sgdam import LocalSGDAMClient
from clients.sgdm import LocalSGDMClient, LocalSGDMRatioClient
from clients.vfb2 import VFB2SAGAClient, VFB2SGDClient, VFB2SVRGClient
from payloads.coda import CodaSettings
from payloads.composite import CompositeSettings
from payloads.fedprox import FedProxSettings
from payloads.fedsgda import FedSGDASettings
from payloads.fedx import FedXSettings
from payloads.scgdam import SCGDAMSettings
from payloads.settings import Settings
from payloads.sgdam import SGDAMSettings
from payloads.sgdm import SGDMSettings
from payloads.vfb2 import VERTICAL, VFB2Settings
from problems.minimax import AUC_MINIMAX, COMPOSITIONAL_AUC
from problems.objectives.classification import CROSS_ENTROPY, RATIO_LOSS, SAMPLE_LOSSES
from problems.objectives.pairwise import LINEAR, PAIRWISE_LOSSES
from strategies.base import PayloadStrategy
from strategies.coda import Coda, Codasca
from strategies.composite import Composite, FastFedDA, FedDA, FedMid
from strategies.fedprox import FedProx
from strategies.fedsgda import FedSGDAMB, FedSGDASPIDER, FedSGDASTORM, FedSGDASVRG
from strategies.fedx import FedX1, FedX2
from strategies.local_sgd import LocalSGD
from strategies.pairwise import LocalPair
from strategies.scaffold import Scaffold
from strategies.scgdam import LocalSCGDAM
from strategies.sgdam import LocalSGDAM
from strategies.sgdm import LocalSGDM, LocalSGDMRatio
from strategies.vfb2 import VFB2SAGA, VFB2SGD, VFB2SVRG


@dataclass(frozen=True)
class Algorithm:
    """One row of the table.

    Attributes:
        strategy, client: the two halves.
        table: the run-config table of its own settings, or "" for none.
        settings: the model that table is parsed into.
        losses: the losses it can minimise; the client's ``default_loss`` is what ``loss = "auto"`` means.
        description: one line for ``python -m simulations list``.
        sends: what travels beside the model.
    """

    strategy: type[PayloadStrategy]
    client: type[PayloadClient[Any]]
    table: str
    settings: type[Settings]
    losses: tuple[str, ...]
    description: str
    sends: str


ALGORITHMS: dict[str, Algorithm] = {
    "fedx1": Algorithm(
        FedX1,
        FedX1Client,
        "fedx",
        FedXSettings,
        tuple(LINEAR),
        "pairwise risk with linear f (AUC) over all sites' pairs (FedX, Algorithm 1)",
        "prediction sets of positives and negatives",
    ),
    "fedx2": Algorithm(
        FedX2,
        FedX2Client,
        "fedx",
        FedXSettings,
        tuple(PAIRWISE_LOSSES),
        "compositional pairwise risk (partial AUC, AUPRC, p-norm push) over all sites' pairs (FedX, Algorithm 2)",
        "prediction sets, inner-function estimates u, momentum",
    ),
    "local-pair": Algorithm(
        LocalPair,
        LocalPairClient,
        "fedx",
        FedXSettings,
        tuple(PAIRWISE_LOSSES),
        "the same pairwise losses on each site's own pairs only (FedX's baseline)",
        "momentum, for non-linear f",
    ),
    "local-sgd": Algorithm(
        LocalSGD,
        LocalSGDClient,
        "",
        Settings,
        (CROSS_ENTROPY,),
        "local SGD on cross-entropy with plain averaging (Stich 2019)",
        "nothing",
    ),
    "local-sgdm": Algorithm(
        LocalSGDM,
        LocalSGDMClient,
        "sgdm",
        SGDMSettings,
        (CROSS_ENTROPY,),
        "local SGD with momentum on cross-entropy, models and momenta averaged",
        "momentum",
    ),
    "local-sgdm-rl": Algorithm(
        LocalSGDMRatio,
        LocalSGDMRatioClient,
        "sgdm",
        SGDMSettings,
        (RATIO_LOSS,),
        "the same on the ratio loss, in which the rare class weighs more (Wang et al. 2021)",
        "momentum; class counts of all sites together",
    ),
    "scaffold": Algorithm(
        Scaffold,
        ScaffoldClient,
        "",
        Settings,
        (CROSS_ENTROPY,),
        "local SGD on cross-entropy with control variates against unequal sites (SCAFFOLD, Karimireddy et al. 2020)",
        "control variates",
    ),
    "fedprox": Algorithm(
        FedProx,
        FedProxClient,
        "fedprox",
        FedProxSettings,
        (CROSS_ENTROPY,),
        "local SGD on cross-entropy with a pull to the server's model, averaged by samples (FedProx, Li et al. 2020)",
        "nothing",
    ),
    "fedsgda-mb": Algorithm(
        FedSGDAMB,
        FedSGDAClient,
        "fedsgda",
        FedSGDASettings,
        (AUC_MINIMAX,),
        "nonconvex-PL minimax, a few clients a round, minibatch estimator (FedSGDA, Frameworks 1-3)",
        "a local gradient; the global estimate",
    ),
    "fedsgda-storm": Algorithm(
        FedSGDASTORM,
        FedSGDAStormClient,
        "fedsgda",
        FedSGDASettings,
        (AUC_MINIMAX,),
        "the same with the STORM estimator, which needs no large batch",
        "a difference of local gradients; the point before, the global estimate",
    ),
    "fedsgda-spider": Algorithm(
        FedSGDASPIDER,
        FedSGDAClient,
        "fedsgda",
        FedSGDASettings,
        (AUC_MINIMAX,),
        "the same with the SPIDER estimator and a periodic large batch of clients (Appendix B)",
        "a difference of local gradients; the point before, the global estimate",
    ),
    "fedsgda-svrg": Algorithm(
        FedSGDASVRG,
        FedSGDAClient,
        "fedsgda",
        FedSGDASettings,
        (AUC_MINIMAX,),
        "the same with the SVRG estimator and a periodic large batch of clients (Remark 1)",
        "a difference of local gradients; the last snapshot, the global estimate",
    ),
    "coda": Algorithm(
        Coda,
        CodaClient,
        "coda",
        CodaSettings,
        (AUC_MINIMAX,),
        "minimax AUC by local descent ascent with all clients, stage by stage (CoDA, Guo et al. 2020)",
        "the stage's reference point; class sums of scores between stages",
    ),
    "codasca": Algorithm(
        Codasca,
        CodascaClient,
        "coda",
        CodaSettings,
        (AUC_MINIMAX,),
        "the same with control variates against unequal sites (CODASCA, Yuan et al. 2021)",
        "control variates; the stage's reference point; class sums of scores between stages",
    ),
    "local-sgdam": Algorithm(
        LocalSGDAM,
        LocalSGDAMClient,
        "sgdam",
        SGDAMSettings,
        (AUC_MINIMAX,),
        "local descent ascent with momentum and plain averaging (LocalSGDAM, Sharma et al. 2022)",
        "momentum",
    ),
    "local-scgdam": Algorithm(
        LocalSCGDAM,
        LocalSCGDAMClient,
        "scgdam",
        SCGDAMSettings,
        (COMPOSITIONAL_AUC,),
        "minimax AUC one cross-entropy step from the model, with momentum (LocalSCGDAM, Zhang et al. 2023)",
        "the inner estimate, momentum",
    ),
    "composite": Algorithm(
        Composite,
        CompositeClient,
        "composite",
        CompositeSettings,
        tuple(SAMPLE_LOSSES),
        "loss plus a nonsmooth penalty or constraint, exact on unequal sites (Composite FL, Zhang et al. 2023)",
        "nothing",
    ),
    "fedmid": Algorithm(
        FedMid,
        FedMidClient,
        "composite",
        CompositeSettings,
        tuple(SAMPLE_LOSSES),
        "the same by local proximal SGD and plain averaging (FedMid, Yuan et al. 2021)",
        "nothing",
    ),
    "fedda": Algorithm(
        FedDA,
        FedDAClient,
        "composite",
        CompositeSettings,
        tuple(SAMPLE_LOSSES),
        "the same by dual averaging, which keeps sparsity (FedDualAvg, Yuan et al. 2021)",
        "nothing; the model is the dual point",
    ),
    "fast-fedda": Algorithm(
        FastFedDA,
        FastFedDAClient,
        "composite",
        CompositeSettings,
        tuple(SAMPLE_LOSSES),
        "dual averaging over all points and gradients, steps decaying (Fast-FedDA, Bao et al. 2022)",
        "nothing; the model is the dual point",
    ),
    "vfb2-sgd": Algorithm(
        VFB2SGD,
        VFB2SGDClient,
        "vfb2",
        VFB2Settings,
        (VERTICAL,),
        "vertical: parties with columns of the same rows, asynchronous SGD under masks (VFB2, Zhang et al. 2021)",
        "between parties, masked partial sums and slopes; to the server what the reporter measured",
    ),
    "vfb2-svrg": Algorithm(
        VFB2SVRG,
        VFB2SVRGClient,
        "vfb2",
        VFB2Settings,
        (VERTICAL,),
        "the same with SVRG: a snapshot of all slopes before each epoch",
        "the same; all slopes once an epoch",
    ),
    "vfb2-saga": Algorithm(
        VFB2SAGA,
        VFB2SAGAClient,
        "vfb2",
        VFB2Settings,
        (VERTICAL,),
        "the same with SAGA: a slope kept for every row",
        "the same; all slopes once a run",
    ),
}
