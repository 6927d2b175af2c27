"""The registry of algorithms: a row (`Algorithm`) for each value of the run-config key ``strategy``.

`pair` makes a row from a strategy class and a client class; `adapt` derives both classes from a `Method`.
"""

from functools import partial

from apps.evaluation.composite import CompositeEvaluation
from apps.evaluation.models import RowEvaluation
from apps.evaluation.no_model import NoEvaluation
from apps.evaluation.vertical import VerticalEvaluator
from apps.parties.sites import PartySites
from apps.run_config.algorithm import Algorithm
from apps.sites.columns import ColumnSites
from apps.sites.rows import RowSites
from clients import scoring
from clients.base import client_of
from clients.describe import DescribeClient
from clients.vfb2 import SharedSGDClient, VFB2SAGAClient, VFB2SGDClient, VFB2SVRGClient
from methods.method import Method
from strategies import composite, fedx, local_sgd, minimax, newton
from strategies.describe import Describe
from strategies.method import strategy_of
from strategies.shared_sgd import SharedSGD
from strategies.vfb2 import VFB2SAGA, VFB2SGD, VFB2SVRG

__all__ = ["ALGORITHMS", "ANALYSES", "Algorithm", "adapt", "pair"]

# Makes a row of the registry from the two classes. By default, each client has data rows, not columns.
pair = partial(Algorithm, sites=RowSites(), evaluation=RowEvaluation())


def adapt(method: Method, name: str, description: str) -> Algorithm:
    """Return the registry's row of a method, with the strategy class and the client class that Flower runs.

    Args:
        method: The method. It trains a network that gives each sample a score.
        name: The name of the strategy class. The client class has the same name with ``Client`` appended.
        description: One line for ``florilegium list``.

    Example:
        >>> from methods.fedprox import FEDPROX
        >>> adapt(FEDPROX, "MyFedProx", "FedProx under another name").strategy.__name__
        'MyFedProx'
    """
    return pair(strategy_of(method, name), client_of(method, name), description)


_composite = partial(Algorithm, sites=RowSites(), evaluation=CompositeEvaluation())
_vertical = partial(Algorithm, sites=PartySites(), evaluation=VerticalEvaluator)

# Values of ``strategy`` that train no model: sites answer questions about their rows before round 1.
ANALYSES: dict[str, Algorithm] = {
    "describe": Algorithm(
        Describe,
        DescribeClient,
        "table one of all sites before training: counts, moments, quantiles, differences, information values",
        sites=ColumnSites(),
        evaluation=NoEvaluation(),
    ),
}

ALGORITHMS: dict[str, Algorithm] = {
    # CoDA
    "coda": pair(
        minimax.Coda,
        scoring.CodaClient,
        "minimax AUC by local descent ascent with all clients, stage by stage (CoDA, Guo et al. 2020)",
    ),
    "codasca": pair(
        minimax.Codasca,
        scoring.CodascaClient,
        "the same with control variates against unequal sites (CODASCA, Yuan et al. 2021)",
    ),
    # Composite FL and its rivals
    "composite": _composite(
        composite.Composite,
        scoring.CompositeClient,
        "loss plus a nonsmooth penalty or constraint, exact on unequal sites (Composite FL, Zhang et al. 2023)",
    ),
    "fedcanon": _composite(
        composite.FedCanon,
        scoring.FedCanonClient,
        "the same by plain SGD steps, with one proximal step a round at the server (FedCanon, Zhou et al. 2025)",
    ),
    "fedmid": _composite(
        composite.FedMid,
        scoring.FedMidClient,
        "the same by local proximal SGD and plain averaging (FedMid, Yuan et al. 2021)",
    ),
    "fedda": _composite(
        composite.FedDA,
        scoring.FedDAClient,
        "the same by dual averaging, which keeps sparsity (FedDualAvg, Yuan et al. 2021)",
    ),
    "fast-fedda": _composite(
        composite.FastFedDA,
        scoring.FastFedDAClient,
        "dual averaging over all points and gradients, steps decaying (Fast-FedDA, Bao et al. 2022)",
    ),
    "fedprox": pair(
        local_sgd.FedProx,
        scoring.FedProxClient,
        "local SGD with a pull to the server's model, averaged by samples (FedProx, Li et al. 2020)",
    ),
    # FedSGDA
    "fedsgda-mb": pair(
        minimax.FedSGDAMB,
        scoring.FedSGDAClient,
        "nonconvex-PL minimax, a few clients a round, minibatch estimator (FedSGDA, Frameworks 1-3)",
    ),
    "fedsgda-storm": pair(
        minimax.FedSGDASTORM,
        scoring.FedSGDAStormClient,
        "the same with the STORM estimator, which needs no large batch",
    ),
    "fedsgda-spider": pair(
        minimax.FedSGDASPIDER,
        scoring.FedSGDASpiderClient,
        "the same with the SPIDER estimator and a periodic large batch of clients (Appendix B)",
    ),
    "fedsgda-svrg": pair(
        minimax.FedSGDASVRG,
        scoring.FedSGDASvrgClient,
        "the same with the SVRG estimator and a periodic large batch of clients (Remark 1)",
    ),
    # FedX, and the same losses without a pool
    "fedx1": pair(
        fedx.FedX1, scoring.FedX1Client, "pairwise risk with linear f (AUC) over all sites' pairs (FedX, Algorithm 1)"
    ),
    "fedx2": pair(
        fedx.FedX2,
        scoring.FedX2Client,
        "compositional pairwise risk (partial AUC, AUPRC, p-norm push) over all sites' pairs (FedX, Algorithm 2)",
    ),
    "local-pair": pair(
        fedx.LocalPair,
        scoring.LocalPairClient,
        "the same pairwise losses on each site's own pairs only (FedX's baseline)",
    ),
    # Baselines on the loss of single samples
    "local-sgd": pair(local_sgd.LocalSGD, scoring.LocalSGDClient, "local SGD with plain averaging (Stich 2019)"),
    "scaffold": pair(
        local_sgd.Scaffold,
        scoring.ScaffoldClient,
        "local SGD with control variates against unequal sites (SCAFFOLD, Karimireddy et al. 2020)",
    ),
    "newton": pair(
        newton.Newton,
        scoring.NewtonClient,
        "exact regression by sums: coefficients with standard errors, as on the pooled rows (Wolfson et al. 2010)",
    ),
    # The worst sites
    "fgdro-kl": pair(
        local_sgd.FGDROKL,
        scoring.FGDROKLClient,
        "cross-entropy with larger weights for sites with larger losses (FGDRO, Guo, Yang 2024)",
    ),
    "fgdro-cvar": pair(
        local_sgd.FGDROCVaR, scoring.FGDROCVaRClient, "the same for the worst share of the sites only (CVaR)"
    ),
    # Momentum
    "local-scgdam": pair(
        minimax.LocalSCGDAM,
        scoring.LocalSCGDAMClient,
        "minimax AUC one cross-entropy step from the model, with momentum (LocalSCGDAM, Zhang et al. 2023)",
    ),
    "local-sgdam": pair(
        minimax.LocalSGDAM,
        scoring.LocalSGDAMClient,
        "local descent ascent with momentum and plain averaging (LocalSGDAM, Sharma et al. 2022)",
    ),
    "local-sgdm": pair(
        local_sgd.LocalSGDM,
        scoring.LocalSGDMClient,
        "local SGD with momentum, models and momenta averaged",
    ),
    "local-sgdm-rl": pair(
        local_sgd.LocalSGDMRatio,
        scoring.LocalSGDMRatioClient,
        "the same on the ratio loss, in which the rare class weighs more (Wang et al. 2021)",
    ),
    # Vertical learning
    "vfb2-sgd": _vertical(
        VFB2SGD,
        VFB2SGDClient,
        "vertical: parties with columns of the same rows, asynchronous SGD under masks (VFB2, Zhang et al. 2021)",
    ),
    "vfb2-svrg": _vertical(VFB2SVRG, VFB2SVRGClient, "the same with SVRG: a snapshot of all slopes before each epoch"),
    "vfb2-saga": _vertical(VFB2SAGA, VFB2SAGAClient, "the same with SAGA: a slope kept for every row"),
    "shared-sgd": _vertical(
        SharedSGD,
        SharedSGDClient,
        "vertical, from two parties on: SGD on secret shares, so no party learns labels, scores or slopes",
    ),
}
