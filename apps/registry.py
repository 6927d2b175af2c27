"""The registry: value of the run-config key ``strategy`` -> the algorithm that it starts. Each algorithm is one row.

A row combines a strategy and a client class (`pair`), or makes both from a `Method` (`adapt`).
"""

from functools import partial
from typing import Any

from apps.evaluation.composite import CompositeEvaluation, check_penalty
from apps.evaluation.models import RowEvaluation
from apps.evaluation.vertical import VerticalEvaluator
from apps.parties.data import check_columns
from apps.parties.sites import PartySites
from apps.run_config.algorithm import Algorithm
from apps.sites.rows import RowSites
from clients.base import client_of
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
    ScaffoldClient,
)
from clients.vfb2 import VFB2SAGAClient, VFB2SGDClient, VFB2SVRGClient
from methods.method import Method
from problems.minimax import AUC_MINIMAX, COMPOSITIONAL_AUC
from problems.objectives.classification import CROSS_ENTROPY, RATIO_LOSS, SAMPLE_LOSSES
from problems.objectives.pairwise import LINEAR, PAIRWISE_LOSSES
from strategies.composite import Composite, FastFedDA, FedDA, FedMid
from strategies.fedx import FedX1, FedX2, LocalPair
from strategies.local_sgd import FedProx, LocalSGD, LocalSGDM, LocalSGDMRatio, Scaffold
from strategies.method import strategy_of
from strategies.minimax import (
    Coda,
    Codasca,
    FedSGDAMB,
    FedSGDASPIDER,
    FedSGDASTORM,
    FedSGDASVRG,
    LocalSCGDAM,
    LocalSGDAM,
)
from strategies.vfb2 import VFB2SAGA, VFB2SGD, VFB2SVRG
from vertical.records import VERTICAL

__all__ = ["ALGORITHMS", "Algorithm", "adapt", "pair"]

# Makes a row from the two classes; by default the clients hold rows.
pair = partial(Algorithm, sites=RowSites(), evaluation=RowEvaluation())


def adapt(
    method: Method, name: str, table: str, losses: tuple[str, ...], description: str, sends: str, **traits: Any
) -> Algorithm:
    """Return the row of a method that trains a network's scores, with the classes that Flower runs.

    Args:
        name: of the strategy class; the client class has ``Client`` appended.
        traits: class variables of the strategy, see `strategies.rounds.family.Family`.
    """
    return pair(strategy_of(method, name, **traits), client_of(method, name), table, losses, description, sends)


_composite = partial(
    pair, table="composite", losses=tuple(SAMPLE_LOSSES), evaluation=CompositeEvaluation(), check=check_penalty
)
_vertical = partial(
    pair,
    table="vfb2",
    losses=(VERTICAL,),
    sites=PartySites(),
    evaluation=VerticalEvaluator,
    check=check_columns,
    objection="no model travels in a vertical run, so that there is nothing to clip or to noise",
)

ALGORITHMS: dict[str, Algorithm] = {
    # CoDA
    "coda": pair(
        Coda,
        CodaClient,
        "coda",
        (AUC_MINIMAX,),
        "minimax AUC by local descent ascent with all clients, stage by stage (CoDA, Guo et al. 2020)",
        "down: the stage's reference point; up, between stages: class sums of scores",
    ),
    "codasca": pair(
        Codasca,
        CodascaClient,
        "coda",
        (AUC_MINIMAX,),
        "the same with control variates against unequal sites (CODASCA, Yuan et al. 2021)",
        "control variates; down: the stage's reference point; up, between stages: class sums of scores",
    ),
    # Composite FL and its rivals
    "composite": _composite(
        Composite,
        CompositeClient,
        description=(
            "loss plus a nonsmooth penalty or constraint, exact on unequal sites (Composite FL, Zhang et al. 2023)"
        ),
        sends="nothing",
        objection=(
            "composite's clients work out their corrections from the models that travel: from one that was clipped or "
            "noised on its way they come out wrong, in every later round too; fedmid, fedda and fast-fedda have none"
        ),
    ),
    "fedmid": _composite(
        FedMid,
        FedMidClient,
        description="the same by local proximal SGD and plain averaging (FedMid, Yuan et al. 2021)",
        sends="nothing",
    ),
    "fedda": _composite(
        FedDA,
        FedDAClient,
        description="the same by dual averaging, which keeps sparsity (FedDualAvg, Yuan et al. 2021)",
        sends="nothing, but the dual point in place of the model",
    ),
    "fast-fedda": _composite(
        FastFedDA,
        FastFedDAClient,
        description="dual averaging over all points and gradients, steps decaying (Fast-FedDA, Bao et al. 2022)",
        sends="nothing, but the dual point in place of the model",
    ),
    "fedprox": pair(
        FedProx,
        FedProxClient,
        "fedprox",
        (CROSS_ENTROPY,),
        "local SGD on cross-entropy with a pull to the server's model, averaged by samples (FedProx, Li et al. 2020)",
        "nothing",
    ),
    # FedSGDA
    "fedsgda-mb": pair(
        FedSGDAMB,
        FedSGDAClient,
        "fedsgda",
        (AUC_MINIMAX,),
        "nonconvex-PL minimax, a few clients a round, minibatch estimator (FedSGDA, Frameworks 1-3)",
        "up: a local gradient; down: the global estimate",
    ),
    "fedsgda-storm": pair(
        FedSGDASTORM,
        FedSGDAStormClient,
        "fedsgda",
        (AUC_MINIMAX,),
        "the same with the STORM estimator, which needs no large batch",
        "up: a difference of local gradients; down: the previous point, the global estimate",
    ),
    "fedsgda-spider": pair(
        FedSGDASPIDER,
        FedSGDASpiderClient,
        "fedsgda",
        (AUC_MINIMAX,),
        "the same with the SPIDER estimator and a periodic large batch of clients (Appendix B)",
        "up: a difference of local gradients; down: the previous point, the global estimate",
    ),
    "fedsgda-svrg": pair(
        FedSGDASVRG,
        FedSGDASvrgClient,
        "fedsgda",
        (AUC_MINIMAX,),
        "the same with the SVRG estimator and a periodic large batch of clients (Remark 1)",
        "up: a difference of local gradients; down: the last snapshot, the global estimate",
    ),
    # FedX, and the same losses without a pool
    "fedx1": pair(
        FedX1,
        FedX1Client,
        "fedx",
        tuple(LINEAR),
        "pairwise risk with linear f (AUC) over all sites' pairs (FedX, Algorithm 1)",
        "prediction sets of positives and negatives",
    ),
    "fedx2": pair(
        FedX2,
        FedX2Client,
        "fedx",
        tuple(PAIRWISE_LOSSES),
        "compositional pairwise risk (partial AUC, AUPRC, p-norm push) over all sites' pairs (FedX, Algorithm 2)",
        "prediction sets, inner-function estimates u, momentum",
    ),
    "local-pair": pair(
        LocalPair,
        LocalPairClient,
        "fedx",
        tuple(PAIRWISE_LOSSES),
        "the same pairwise losses on each site's own pairs only (FedX's baseline)",
        "momentum, if the loss's outer function f is not linear",
    ),
    # Baselines on cross-entropy
    "local-sgd": pair(
        LocalSGD,
        LocalSGDClient,
        "",
        (CROSS_ENTROPY,),
        "local SGD on cross-entropy with plain averaging (Stich 2019)",
        "nothing",
    ),
    "scaffold": pair(
        Scaffold,
        ScaffoldClient,
        "",
        (CROSS_ENTROPY,),
        "local SGD on cross-entropy with control variates against unequal sites (SCAFFOLD, Karimireddy et al. 2020)",
        "control variates",
    ),
    # Momentum
    "local-scgdam": pair(
        LocalSCGDAM,
        LocalSCGDAMClient,
        "scgdam",
        (COMPOSITIONAL_AUC,),
        "minimax AUC one cross-entropy step from the model, with momentum (LocalSCGDAM, Zhang et al. 2023)",
        "the inner estimate, momentum",
    ),
    "local-sgdam": pair(
        LocalSGDAM,
        LocalSGDAMClient,
        "sgdam",
        (AUC_MINIMAX,),
        "local descent ascent with momentum and plain averaging (LocalSGDAM, Sharma et al. 2022)",
        "momentum",
    ),
    "local-sgdm": pair(
        LocalSGDM,
        LocalSGDMClient,
        "sgdm",
        (CROSS_ENTROPY,),
        "local SGD with momentum on cross-entropy, models and momenta averaged",
        "momentum",
    ),
    "local-sgdm-rl": pair(
        LocalSGDMRatio,
        LocalSGDMRatioClient,
        "sgdm",
        (RATIO_LOSS,),
        "the same on the ratio loss, in which the rare class weighs more (Wang et al. 2021)",
        "momentum; class counts of all sites together",
    ),
    # Vertical learning
    "vfb2-sgd": _vertical(
        VFB2SGD,
        VFB2SGDClient,
        description=(
            "vertical: parties with columns of the same rows, asynchronous SGD under masks (VFB2, Zhang et al. 2021)"
        ),
        sends="between parties, masked partial sums and slopes; to the server what the reporter measured",
    ),
    "vfb2-svrg": _vertical(
        VFB2SVRG,
        VFB2SVRGClient,
        description="the same with SVRG: a snapshot of all slopes before each epoch",
        sends="the same; all slopes once an epoch",
    ),
    "vfb2-saga": _vertical(
        VFB2SAGA,
        VFB2SAGAClient,
        description="the same with SAGA: a slope kept for every row",
        sends="the same; all slopes once a run",
    ),
}
