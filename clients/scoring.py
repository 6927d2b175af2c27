"""The client classes of the methods in `methods`; `clients.vfb2` has the clients of vertical learning."""

from typing import Any

from clients.base import Config, Fitted, MethodClient, ScoringClient, client_of
from methods.coda import CODA
from methods.codasca import CODASCA
from methods.composite import COMPOSITE
from methods.cox import REGRESSION
from methods.fast_fedda import FAST_FEDDA
from methods.fedcanon import FEDCANON
from methods.fedda import FEDDA, FEDMID
from methods.fedprox import FEDPROX, PROXIMAL_MU
from methods.fedsgda import FEDSGDA_MB, FEDSGDA_SPIDER, FEDSGDA_STORM, FEDSGDA_SVRG
from methods.fedx import FEDX1, FEDX2, SCORING, SCORING_ROUND
from methods.fgdro import FGDRO_CVAR, FGDRO_KL
from methods.local_pair import LOCAL_PAIR
from methods.local_sgd import LOCAL_SGD
from methods.scaffold import SCAFFOLD
from methods.scgdam import LOCAL_SCGDAM
from methods.sgdam import LOCAL_SGDAM
from methods.sgdm import LOCAL_SGDM, LOCAL_SGDM_RATIO
from payloads.record import FloatArray
from payloads.wire import PHASE, ROUND
from problems.minimax import Oracle

CompositeClient = client_of(COMPOSITE, "Composite")
FastFedDAClient = client_of(FAST_FEDDA, "FastFedDA")
FedCanonClient = client_of(FEDCANON, "FedCanon")
FedDAClient = client_of(FEDDA, "FedDA")
FedMidClient = client_of(FEDMID, "FedMid")
FGDROKLClient = client_of(FGDRO_KL, "FGDROKL")
FGDROCVaRClient = client_of(FGDRO_CVAR, "FGDROCVaR")
LocalPairClient = client_of(LOCAL_PAIR, "LocalPair")
LocalSGDClient = client_of(LOCAL_SGD, "LocalSGD")
LocalSGDMClient = client_of(LOCAL_SGDM, "LocalSGDM")
LocalSGDMRatioClient = client_of(LOCAL_SGDM_RATIO, "LocalSGDMRatio")
NewtonClient = client_of(REGRESSION, "Newton")
ScaffoldClient = client_of(SCAFFOLD, "Scaffold")


class FedProxClient(ScoringClient):
    """The client half of FedProx. mu may come from Flower's own FedProx strategy."""

    method = FEDPROX

    def received(self, config: Config) -> float | None:
        mu = config.get(PROXIMAL_MU)
        return None if mu is None else float(mu)


class FedX1Client(ScoringClient):
    """The client half of FedX, Algorithm 1: linear f."""

    method = FEDX1

    def fit(self, parameters: list[FloatArray], config: Config) -> Fitted:
        """Train for one round. In round 0, the scoring round, only score samples with the initial model.

        Args:
            parameters: The model's arrays.
            config: The message's scalars. The round's number is sufficient; the phase may be absent in round 0.
        """
        phase: Config = {PHASE: SCORING} if config[ROUND] == SCORING_ROUND else {}
        return super().fit(parameters, config | phase)


FedX2Client = client_of(FEDX2, "FedX2", FedX1Client)


class MinimaxClient(MethodClient[Oracle]):
    """Base class of the minimax clients. ``model`` is the oracle of the site's f_i, at the point z = (x, y)."""

    def received(self, config: Config) -> Any:
        """Return the record sent with the model, or an empty record."""
        assert self.down is not None
        return self.inbox or self.down()

    def evaluate(self, parameters: list[FloatArray], config: Config) -> tuple[float, int, Config]:
        """Measure a point on the site's own samples.

        Returns:
            f_i over all samples, with the site's own share of positives and weight 1; the number of samples; no
            metrics.
        """
        self.model.load(parameters)
        return self.model.weigh(self.site.class_counts[1] / len(self.site)).value(), len(self.site), {}


CodaClient = client_of(CODA, "Coda", MinimaxClient)
CodascaClient = client_of(CODASCA, "Codasca", MinimaxClient)
FedSGDAClient = client_of(FEDSGDA_MB, "FedSGDA", MinimaxClient)
FedSGDAStormClient = client_of(FEDSGDA_STORM, "FedSGDAStorm", MinimaxClient)
FedSGDASpiderClient = client_of(FEDSGDA_SPIDER, "FedSGDASpider", MinimaxClient)
FedSGDASvrgClient = client_of(FEDSGDA_SVRG, "FedSGDASvrg", MinimaxClient)
LocalSCGDAMClient = client_of(LOCAL_SCGDAM, "LocalSCGDAM", MinimaxClient)
LocalSGDAMClient = client_of(LOCAL_SGDAM, "LocalSGDAM", MinimaxClient)
