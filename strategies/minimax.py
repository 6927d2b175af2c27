"""The strategies of the minimax methods. Each method is a module of `methods`."""

from methods.coda import CODA
from methods.codasca import CODASCA
from methods.fedgda_gt import FEDGDA_GT
from methods.fedsgda import FEDSGDA_MB, FEDSGDA_SPIDER, FEDSGDA_STORM, FEDSGDA_SVRG
from methods.fedsgda_m import FEDSGDA_M
from methods.scgdam import LOCAL_SCGDAM
from methods.scgdam_multi import SCGDAM_MULTI
from methods.sgdam import LOCAL_SGDAM
from strategies.method import MethodStrategy, strategy_of


class MinimaxStrategy(MethodStrategy):
    """Base of the minimax strategies: the exchanged model is the flat point z = (x, y)."""


class StagewiseStrategy(MinimaxStrategy):
    """Base of CoDA and CODASCA, which train in stages."""


class FedSGDA(MinimaxStrategy):
    """Base of FedSGDA's variants, which differ in their gradient estimator."""


Coda = strategy_of(CODA, "Coda", StagewiseStrategy)
Codasca = strategy_of(CODASCA, "Codasca", StagewiseStrategy)
FedSGDAMB = strategy_of(FEDSGDA_MB, "FedSGDAMB", FedSGDA)
FedSGDASTORM = strategy_of(FEDSGDA_STORM, "FedSGDASTORM", FedSGDA)
FedSGDASPIDER = strategy_of(FEDSGDA_SPIDER, "FedSGDASPIDER", FedSGDA)
FedSGDASVRG = strategy_of(FEDSGDA_SVRG, "FedSGDASVRG", FedSGDA)
FedGDAGT = strategy_of(FEDGDA_GT, "FedGDAGT", MinimaxStrategy)
LocalSGDAM = strategy_of(LOCAL_SGDAM, "LocalSGDAM", MinimaxStrategy)
FedSGDAM = strategy_of(FEDSGDA_M, "FedSGDAM", MinimaxStrategy)
LocalSCGDAM = strategy_of(LOCAL_SCGDAM, "LocalSCGDAM", MinimaxStrategy)
SCGDAMMulti = strategy_of(SCGDAM_MULTI, "SCGDAMMulti", MinimaxStrategy)

FedSGDAMB.matching_client, FedSGDASTORM.matching_client = "FedSGDAClient", "FedSGDAStormClient"
FedSGDASPIDER.matching_client, FedSGDASVRG.matching_client = "FedSGDASpiderClient", "FedSGDASvrgClient"
