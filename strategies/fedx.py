"""The server halves of FedX, `methods.fedx`, and of its local counterpart, `methods.local_pair`."""

from collections.abc import Mapping

from flwr.app import ArrayRecord
from flwr.serverapp import Grid

from methods.fedx import FEDX1, FEDX2, SCORING, SCORING_ROUND, take_in
from methods.local_pair import LOCAL_PAIR
from methods.pairwise import FedXSettings, count_halves
from methods.predictions import FedXPredictions
from payloads.record import FloatArray, PayloadError
from payloads.settings import Settings, TrainingSettings
from privacy.budget import epsilon_of
from problems.objectives.pairwise import make_objective, pairwise_score
from strategies.method import MethodStrategy
from strategies.rounds.errors import SetupError
from strategies.rounds.handshake import Roster
from strategies.rounds.replies import Reply


class PairwiseStrategy(MethodStrategy):
    """Base of FedX and its local counterpart: the objective, and checks that sites can fill the batches."""

    unread = ("batch_size", "server_learning_rate")
    settings: FedXSettings

    def __init__(self, training: TrainingSettings | None = None, settings: Settings | None = None) -> None:
        super().__init__(training, settings)
        self.objective = make_objective(self.loss, **self.settings.objective_options)

    def meet(self, roster: Roster) -> None:
        self.check_classes(roster, "a pairwise risk")
        fedx, kind = self.settings, "samples" if self.objective.partners == "all" else "negatives"
        positives, partners = (counts.tolist() for counts in count_halves(self.objective, roster.class_counts))
        self.check_batch("fedx.positive-batch-size", fedx.positive_batch_size, "positives", positives)
        self.check_batch("fedx.negative-batch-size", fedx.negative_batch_size, kind, partners)


class LocalPair(PairwiseStrategy):
    """Averages the models and, for non-linear f, the momenta; no prediction leaves a site."""

    method = LOCAL_PAIR
    default_step = 0.1  # with larger steps an mlp fits too closely to small sites, of 30 to 200 rows


class FedX1(PairwiseStrategy):
    """Algorithm 1 (linear f): plain mean of the models; keeps and sends the pool of the last ``tau`` rounds."""

    method = FEDX1
    needs_examples = "has a risk over the pairs of all sites for its objective, whatever each holds"
    weighted_gradients = True
    linear_only = True
    sums_instead = "set fedx.pool to histogram"

    def __init__(self, training: TrainingSettings | None = None, settings: Settings | None = None) -> None:
        super().__init__(training, settings)
        if self.linear_only and not self.objective.linear:
            got = f"{self.loss!r}, whose f is not linear"
            raise SetupError("loss", got=got, allowed="a linear f with strategy fedx1", hint="set strategy to fedx2")
        if self.counts and pairwise_score(self.training.score, self.loss).bounds is None:
            got, allowed = f"'histogram' with score={self.training.score!r}", "a score that is bounded"
            raise SetupError("fedx.pool", got=got, allowed=allowed, hint="set score to sigmoid or tanh")
        if self.settings.pool_epsilon and not self.counts:
            got = f"{self.settings.pool_epsilon:g} with fedx.pool={self.settings.pool!r}"
            hint = "set fedx.pool to histogram"
            raise SetupError("fedx.pool-epsilon", got=got, allowed="0, without histograms", hint=hint)

    def combine(self, server_round: int, replies: list[Reply]) -> tuple[list[FloatArray], dict[str, float]]:
        combined = super().combine(server_round, replies)
        if self.state.precision is not None:
            self.report.extras["pool_epsilon"] = epsilon_of(
                self.state.precision[0] ** -0.5, self.settings.pool_delta, 1
            )
        return combined

    @property
    def counts(self) -> bool:
        """Whether clients send counts in the place of scores."""
        return self.settings.pool == "histogram"

    @classmethod
    def own_values(cls, settings: Settings) -> str:
        assert isinstance(settings, FedXSettings)
        return "" if settings.pool == "histogram" else super().own_values(settings)

    def prologue(self, arrays: ArrayRecord, grid: Grid) -> None:
        """Lines 3-4: every client scores K batches, whatever ``fraction-train`` says.

        Args:
            arrays: the initial model, which gives the scores.
        """
        self.admit(self.ask(SCORING_ROUND, range(len(self.roster)), arrays, None, SCORING))

    def admit(self, scored: list[Reply]) -> None:
        """Start the pool.

        Args:
            scored: the replies of the scoring round, in order of partition id.
        """
        x, plan = self.model[0], self.plan(SCORING_ROUND)
        self.state = take_in(x, self.method.server.init(x, plan), self.replies(scored), plan)

    def limits(self, place: int) -> Mapping[str, int]:
        """Bound the predictions by K batches, each no larger than what the site holds, and by ``history-size``, if set.

        Returns:
            The most positives p and partners q, and the number k of inner components; or the number h of bins.
        """
        fedx, steps = self.settings, self.training.local_steps
        if self.counts:
            return {"p": 0, "q": 0, "k": 0, "h": fedx.bins}
        own = [int(counts[place]) for counts in count_halves(self.objective, self.roster.class_counts)]
        positives = steps * min(fedx.positive_batch_size, own[0])
        partners = steps * min(fedx.negative_batch_size, own[1])
        most = fedx.history_size or max(positives, partners)
        return {"p": min(most, positives), "q": min(most, partners), "k": self.objective.inner_dim, "h": 0}

    def check_payload(self, payload: FedXPredictions) -> None:
        counts = [one for one in (payload.positive_counts, payload.negative_counts) if one is not None]
        if len(counts) != 2 * self.counts:
            raise PayloadError("positive_counts, negative_counts: needed with fedx.pool='histogram', and only then")
        for one in counts:
            if len(one) != self.settings.bins or ((one < 0).any() and not self.settings.pool_epsilon):
                raise PayloadError(f"counts in {len(one)} bins, expected numbers >= 0 in {self.settings.bins}")
        if self.counts:
            return
        inner = self.objective.inner_dim
        if payload.positive_u is not None and payload.positive_u.shape[1] != inner:
            raise PayloadError(f"positive_u: {payload.positive_u.shape[1]} components, expected {inner}")
        if (payload.partner_labels is None) != (self.objective.partners == "negatives"):
            raise PayloadError("partner_labels: needed for auprc and for no other loss")


class FedX2(FedX1):
    """Algorithms 2 and 3 (non-linear f): the pool carries u, and the momenta are averaged with the models."""

    method = FEDX2
    default_step = LocalPair.default_step
    linear_only = False

    def check_payload(self, payload: FedXPredictions) -> None:
        super().check_payload(payload)
        if self.counts:
            return
        noisy = self.settings.prediction_noise > 0
        if payload.momentum is not None and payload.positive_u is None and not noisy:
            raise PayloadError("positive_u: missing beside a momentum")
        if payload.positive_u is not None and noisy:
            raise PayloadError("positive_u: would undo the noise of fedx.prediction-noise, which is on")
