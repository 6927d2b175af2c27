"""The strategy that describes columns: exchanges before round 1, and no rounds."""

from collections.abc import Callable
from typing import Any

import numpy as np
from flwr.app import ArrayRecord
from flwr.serverapp import Grid

from methods import noisy_counts
from methods.cohort import Columns
from methods.method import Traits
from methods.table_one import Part, Pool, first_borders, is_fine, refine
from payloads.description import BINS, PHASES, QUANTILES, TOTALS, BinQuestion
from payloads.record import FloatArray, Payload, PayloadError
from payloads.settings import Settings, TrainingSettings
from privacy.secure_sum import fewest_in_sum
from strategies.base import PayloadStrategy
from strategies.rounds.errors import SetupError
from strategies.rounds.handshake import Roster
from strategies.rounds.replies import Reply

# the training settings that describe reads; the others have no effect
_READ = frozenset(
    [
        *(
            "dtype",
            "seed",
            "device",
            "torch_threads",
            "fraction_train",
            "client_sampling",
            "min_train_nodes",
            "max_retries",
            "retry_wait",
        ),
        *("round_timeout", "handshake_timeout", "clip_gradient", "weight_decay", "local_optimizer"),
    ]
)


class Describe(PayloadStrategy):
    """The server half of a description of columns.

    All sites must answer each exchange, so all entries of the table are about the same rows.

    Attributes:
        pool: The sums over the sites, and their own sums unless the run has secure sums. None before the exchanges.
        raw_columns: The columns of all sites. None before the handshake.
        deviation: The standard deviation of the noise in each count over all sites. 0: no noise.
    """

    counts_samples = False
    trains = False
    down_type = BinQuestion
    phases = PHASES
    traits = Traits(
        sends="sums of rows by column, class and bin; no model",
        default_step=float(TrainingSettings.model_fields["learning_rate"].default),
        number_types=("float64",),
        needs_all_clients="describes the rows of all sites",
        retries_failed=True,
        weighted_gradients=True,
        unread=tuple(name for name in TrainingSettings.model_fields if name not in _READ),
    )

    def __init__(self, training: TrainingSettings | None = None, settings: Settings | None = None) -> None:
        super().__init__(training, settings)
        self.pool: Pool | None = None
        self.raw_columns: Columns | None = None
        self.deviation = 0.0

    @classmethod
    def own_values(cls, settings: Settings) -> str:
        """Return "", since quantiles of single sites are left out with secure sums."""
        return ""

    def meet(self, roster: Roster) -> None:
        if self.schema is None or self.schema.preprocessing is None:
            raise SetupError("columns", got="sites without a table", allowed="tables", hint="set dataset to a table")
        self.raw_columns = Columns(self.schema.preprocessing.inputs)
        if self.privacy.epsilon:
            sites = len(roster)
            summed = fewest_in_sum(sites, self.privacy.secure_threshold) if self.privacy.secure_sum else 1
            self.deviation = sites**0.5 * noisy_counts.deviation_of(self.privacy, self.raw_columns, summed)

    def limits(self, client: int) -> dict[str, int]:
        assert self.raw_columns is not None
        return self.raw_columns.limits()

    def check_payload(self, payload: Payload) -> None:
        if self.privacy.epsilon:
            return
        for name, values in payload.arrays().items():
            if values.dtype.kind == "i" and name not in ("sums", "offsets", "squares") and (values < 0).any():
                raise PayloadError(f"{type(payload).__name__}.{name}: got counts below 0")

    def combine(self, server_round: int, replies: list[Reply]) -> tuple[list[FloatArray], dict[str, float]]:
        raise AssertionError("a description has no rounds")

    def prologue(self, arrays: ArrayRecord, grid: Grid) -> None:
        assert self.raw_columns is not None

        def ask(phase: str, question: BinQuestion | None = None) -> list[Any]:
            return [reply.payload for reply in self.ask(0, range(len(self.roster)), arrays, question, phase)]

        if self.privacy.epsilon:
            self.pool = self._ask_for_noisy_counts(ask)
            return
        pool = self.pool = Pool.of(self.raw_columns, ask(TOTALS), summed=self.privacy.secure_sum)
        pool.grouped = sum(site.smallest_count for site in self.roster.reports if site.smallest_count > 1)
        borders = first_borders(len(self.raw_columns.numbers))
        for number, phase in enumerate(BINS):
            origins = pool.means() if number == 0 else np.zeros(0)
            pool.add_bins(borders, origins, ask(phase, BinQuestion(borders=borders, origins=origins)))
            if is_fine(pool.borders, pool.counts) or phase == BINS[-1]:
                break
            borders = refine(borders, pool.counts)
        if not self.privacy.secure_sum:
            pool.quantiles = ask(QUANTILES)

    def _ask_for_noisy_counts(self, ask: Callable[..., list[Any]]) -> Pool:
        """Return the pool of `methods.noisy_counts`, and report the epsilon that it has spent."""
        assert self.raw_columns is not None
        columns = self.raw_columns
        pool = Pool.of(columns, ask(TOTALS), summed=True)
        pool.deviation = self.deviation
        pool.totals = [noisy_counts.fit_totals(pool.totals[0], columns)]
        borders, none = first_borders(len(columns.numbers)), np.zeros(0)
        sure = np.zeros((len(columns.numbers), 3, 1), dtype=np.int64)
        for phase in noisy_counts.NOISE_OF:
            pool.add_bins(borders, none, ask(phase, BinQuestion(borders=borders, origins=none)))
            if phase == BINS[0]:
                sure, fewest = noisy_counts.find_useful_size(pool.counts, self.deviation)
                borders = refine(borders, sure, fewest)
        pool.counts = noisy_counts.fit_bins(pool.counts, pool.totals[0])
        pool.counts[~noisy_counts.is_known(sure, pool.counts, pool.borders, self.deviation)] = 0
        sums, firsts, seconds = noisy_counts.estimate_sums(pool.borders, pool.counts)
        pool.totals = [{**pool.totals[0], **sums}]
        pool.parts = [Part(pool.totals[0], firsts, seconds)]
        self.report.extras["epsilon"] = self.privacy.epsilon
        return pool
