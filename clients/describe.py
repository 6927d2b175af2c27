"""The client that describes the columns of its site. It trains no model."""

from clients.base import Config, Fitted, PayloadClient
from clients.vfb2 import NoModel
from methods import noisy_counts
from methods.cohort import Cohort
from methods.describe import answer_bins, answer_quantiles, answer_totals
from methods.private import refuse_phase
from payloads.description import BINS, PHASES, QUANTILES, TOTALS, BinQuestion, Bins, Totals
from payloads.record import FloatArray, PayloadError
from payloads.settings import PrivacySettings
from payloads.wire import PHASE


class DescribeClient(PayloadClient[NoModel]):
    """The client half of a description of columns.

    Attributes:
        budget: The privacy budget of the site's rows, which the site's guard sets. None: no noise.
    """

    site: Cohort  # type: ignore[assignment]
    down = BinQuestion
    phases = PHASES
    budget: PrivacySettings | None = None

    def fit(self, parameters: list[FloatArray], config: Config) -> Fitted:
        """Answer an exchange.

        Args:
            parameters: Without effect.
            config: The message's scalars; the phase names the exchange.

        Returns:
            No model, no number of rows and no metrics.

        Raises:
            PayloadError: The exchange is unknown, or a question for bins is missing.
        """
        self.begin(parameters, config)
        phase = str(config.get(PHASE, ""))
        if self.budget:
            self.outbox = self._answer_with_noise(phase, self.budget)
        elif phase == TOTALS:
            self.outbox = answer_totals(self.site)
        elif phase == QUANTILES and self.summed == 1:
            self.outbox = answer_quantiles(self.site)
        elif phase in BINS and self.inbox is not None:
            self.outbox = answer_bins(self.site, self.inbox)
        else:
            raise PayloadError(f"{PHASE} {phase!r}: not an exchange of a description, or without its question")
        return [], 0, {}

    def _answer_with_noise(self, phase: str, budget: PrivacySettings) -> Totals | Bins:
        deviation = noisy_counts.deviation_of(budget, self.site.columns, self.summed)
        if phase == TOTALS:
            return noisy_counts.answer_totals(self.site, deviation)
        if phase not in noisy_counts.NOISE_OF or self.inbox is None or len(self.inbox.origins):
            raise refuse_phase(phase)
        return noisy_counts.answer_bins(self.site, self.inbox, deviation * noisy_counts.NOISE_OF[phase])
