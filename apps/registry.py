"""The table behind "swap strategies with one key": run-config name -> what it starts. An algorithm is one row here.

A row puts two classes together (`pair`), or makes both of a `Method` (`adapt`).
"""

from __future__ import annotations

from typing import Any

from apps.algorithm import Algorithm, Check, Evaluation, Sites
from apps.checks import check_columns, check_penalty
from apps.evaluators import CompositeEvaluation, RowEvaluation, VerticalEvaluation
from apps.party_sites import PartySites
from apps.sites import RowSites
from clients.base import PayloadClient, client_of
from clients.minimax import (
    CodaClient,
    CodascaClient,
    FedSGDAClient,
    FedSGDAStormClient,
    LocalSCGDAMClient,
    LocalSGDAMClient,
)
from clients.scoring import (
    CompositeClient,
    FastFedDAClient,
    FedDAClient,
    FedMidClient,
    FedProxClient,
    FedX1Client,
    FedX2Client,
    LocalPairClient,
    LocalSGDClient,
    LocalSGDMClient,
    LocalSGDMRatioClient,
    ScaffoldClient,
)
from clients.vfb2 import VFB2SAGAClient, VFB2SGDClient, VFB2SVRGClient
from methods.method import Method
from payloads.vfb2 import VERTICAL
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
from strategies.method import strategy_of
from strategies.pairwise import LocalPair
from strategies.scaffold import Scaffold
from strategies.scgdam import LocalSCGDAM
from strategies.sgdam import LocalSGDAM
from strategies.sgdm import LocalSGDM, LocalSGDMRatio
from strategies.vfb2 import VFB2SAGA, VFB2SGD, VFB2SVRG

__all__ = ["ALGORITHMS", "Algorithm", "adapt", "pair"]

ROWS, PARTIES = RowSites(), PartySites()
OF_ROWS, OF_COMPOSITE, OF_PARTIES = RowEvaluation(), CompositeEvaluation(), VerticalEvaluation()


def pair(
    strategy: type[PayloadStrategy],
    client: type[PayloadClient[Any]],
    table: str,
    losses: tuple[str, ...],
    description: str,
    sends: str,
    *,
    sites: Sites = ROWS,
    evaluation: Evaluation = OF_ROWS,
    check: Check | None = None,
    objection: str = "",
) -> Algorithm:
    """The row of an algorithm from its two halves; where nothing else is said its clients hold rows."""
    return Algorithm(strategy, client, table, losses, description, sends, sites, evaluation, check, objection)


def adapt(
    method: Method, name: str, table: str, losses: tuple[str, ...], description: str, sends: str, **traits: Any
) -> Algorithm:
    """The row of a method that trains a network's scores, with the classes that Flower runs.

    Args:
        name: of the strategy class; the client's is that with ``Client`` at its end.
        traits: class variables of the strategy, see `strategies.rounds.family.Family`.
    """
    return pair(strategy_of(method, name, **traits), client_of(method, name), table, losses, description, sends)


def _composite(
    strategy: type[PayloadStrategy], client: type[PayloadClient[Any]], description: str, sends: str, objection: str = ""
) -> Algorithm:
    return pair(
        strategy,
        client,
        "composite",
        tuple(SAMPLE_LOSSES),
        description,
        sends,
        evaluation=OF_COMPOSITE,
        check=check_penalty,
        objection=objection,
    )


def _vertical(
    strategy: type[PayloadStrategy], client: type[PayloadClient[Any]], description: str, sends: str
) -> Algorithm:
    return pair(
        strategy,
        client,
        "vfb2",
        (VERTICAL,),
        description,
        sends,
        sites=PARTIES,
        evaluation=OF_PARTIES,
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
        "the stage's reference point; class sums of scores between stages",
    ),
    "codasca": pair(
        Codasca,
        CodascaClient,
        "coda",
        (AUC_MINIMAX,),
        "the same with control variates against unequal sites (CODASCA, Yuan et al. 2021)",
        "control variates; the stage's reference point; class sums of scores between stages",
    ),
    # Composite FL and its rivals
    "composite": _composite(
        Composite,
        CompositeClient,
        "loss plus a nonsmooth penalty or constraint, exact on unequal sites (Composite FL, Zhang et al. 2023)",
        "nothing",
        "composite's clients work out their corrections from the models that travel: from one that was clipped or "
        "noised on its way they come out wrong, in every later round too; fedmid, fedda and fast-fedda have none",
    ),
    "fedmid": _composite(
        FedMid,
        FedMidClient,
        "the same by local proximal SGD and plain averaging (FedMid, Yuan et al. 2021)",
        "nothing",
    ),
    "fedda": _composite(
        FedDA,
        FedDAClient,
        "the same by dual averaging, which keeps sparsity (FedDualAvg, Yuan et al. 2021)",
        "nothing; the model is the dual point",
    ),
    "fast-fedda": _composite(
        FastFedDA,
        FastFedDAClient,
        "dual averaging over all points and gradients, steps decaying (Fast-FedDA, Bao et al. 2022)",
        "nothing; the model is the dual point",
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
        "a local gradient; the global estimate",
    ),
    "fedsgda-storm": pair(
        FedSGDASTORM,
        FedSGDAStormClient,
        "fedsgda",
        (AUC_MINIMAX,),
        "the same with the STORM estimator, which needs no large batch",
        "a difference of local gradients; the point before, the global estimate",
    ),
    "fedsgda-spider": pair(
        FedSGDASPIDER,
        FedSGDAClient,
        "fedsgda",
        (AUC_MINIMAX,),
        "the same with the SPIDER estimator and a periodic large batch of clients (Appendix B)",
        "a difference of local gradients; the point before, the global estimate",
    ),
    "fedsgda-svrg": pair(
        FedSGDASVRG,
        FedSGDAClient,
        "fedsgda",
        (AUC_MINIMAX,),
        "the same with the SVRG estimator and a periodic large batch of clients (Remark 1)",
        "a difference of local gradients; the last snapshot, the global estimate",
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
        "momentum, for non-linear f",
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
        "vertical: parties with columns of the same rows, asynchronous SGD under masks (VFB2, Zhang et al. 2021)",
        "between parties, masked partial sums and slopes; to the server what the reporter measured",
    ),
    "vfb2-svrg": _vertical(
        VFB2SVRG,
        VFB2SVRGClient,
        "the same with SVRG: a snapshot of all slopes before each epoch",
        "the same; all slopes once an epoch",
    ),
    "vfb2-saga": _vertical(
        VFB2SAGA,
        VFB2SAGAClient,
        "the same with SAGA: a slope kept for every row",
        "the same; all slopes once a run",
    ),
}
