"""The client that describes the columns of its site. It trains no model."""

from clients.base import Config, Fitted, PayloadClient
from clients.vfb2 import NoModel
from methods.cohort import Cohort
from methods.describe import answer_bins, answer_quantiles, answer_totals
from payloads.description import BINS, PHASES, QUANTILES, TOTALS, BinQuestion
from payloads.record import FloatArray, PayloadError
from payloads.wire import PHASE


class DescribeClient(PayloadClient[NoModel]):
    """The client half of a description of columns."""

    site: Cohort  # type: ignore[assignment]
    down = BinQuestion
    phases = PHASES

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
        if phase == TOTALS:
            self.outbox = answer_totals(self.site)
        elif phase == QUANTILES and self.summed == 1:
            self.outbox = answer_quantiles(self.site)
        elif phase in BINS and self.inbox is not None:
            self.outbox = answer_bins(self.site, self.inbox)
        else:
            raise PayloadError(f"{PHASE} {phase!r}: not an exchange of a description, or without its question")
        return [], 0, {}
