"""The evaluator of networks whose rows with times stay at the sites, which count them by time and score."""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from jaxtyping import Int64

from apps.evaluation.networks import NetworkEvaluator
from apps.evaluation.times import baseline_of, check_horizon, find_horizon
from apps.run_config.algorithm import RunConfig
from apps.run_config.settings import ConfigError
from payloads.handshake import SiteReport
from payloads.record import FloatArray
from problems.binned_scores import RISK_EDGES, centres
from problems.data import Preprocessing
from problems.errors import join_first
from problems.models import FlatModel
from problems.objectives.hazard import HAZARD, survive
from problems.survival.intervals import measure_cells
from problems.survival.summary import CountedRows

# a function: the arrays of a model -> the counts of the sites' held-out rows by interval, class and bin of the score
CountTimes = Callable[[Sequence[FloatArray]], Int64[np.ndarray, "intervals 2 bins"]]


def check_counted_times(config: RunConfig, reports: Sequence[SiteReport]) -> None:
    """Check that the sites can count their held-out rows by time, if the server has no test file.

    Args:
        config: The run config.
        reports: The sites' reports.

    Raises:
        ConfigError: A site protects small cells, and the run has no secure sums; or rows enter late.
    """
    if not config.data.has_times or config.data.data_dir:
        return
    alone = [report.label for report in reports if report.smallest_count > 1]
    hint = "set data-dir to a test file of the server"
    if config.data.entry_column:
        allowed = "'' without a test file, since sites do not count the entries of held-out rows"
        raise ConfigError("entry-column", got=repr(config.data.entry_column), allowed=allowed, hint=hint)
    if alone and not config.privacy.secure_sum:
        got = f"false, with sites that have a least-cell above 1 ({join_first(alone, 8)})"
        allowed = "true, since the counts of held-out rows by time and score are small"
        raise ConfigError("privacy.secure-sum", got=got, allowed=allowed, hint=f"set it to true, or {hint}")


class SiteTimeEvaluator(NetworkEvaluator):
    """The metrics of `TimeEvaluator`, except ``loss``, from counts in bins of scores.

    A score counts as the middle of its bin.

    Args:
        config: The run config.
        model: The network.
        table: The preprocessing of the sites' tables.
        count_times: The function that lets the sites count times.
    """

    def __init__(self, config: RunConfig, model: FlatModel, table: Preprocessing, count_times: CountTimes) -> None:
        super().__init__(config, model)
        check_horizon(table, config.evaluation.horizon)
        self.summary += "; evaluated by the sites"
        self._newest: tuple[list[FloatArray], Int64[np.ndarray, "intervals 2 bins"]] | None = None
        self.borders = table.time_borders
        self.horizon, self.count_times = find_horizon(table, config.evaluation.horizon), count_times

    def count(self, arrays: Sequence[FloatArray]) -> CountedRows:
        """Count the rows under a model, for its survival curves. The counts of the newest model are not asked again.

        Args:
            arrays: The model.
        """
        if self._newest is None or not all(map(np.array_equal, self._newest[0], arrays)):
            self._newest = [array.copy() for array in arrays], self.count_times(arrays)
        return CountedRows(self._newest[1], centres(RISK_EDGES))

    def __call__(self, arrays: Sequence[FloatArray]) -> dict[str, float]:
        self._newest = None
        cells, survival = self.count(arrays).cells, None
        if self.config.training.loss == HAZARD:
            self.model.load(arrays)
            baseline = baseline_of(self.model, self.config)[: len(cells)]
            survival = survive(torch.from_numpy(centres(RISK_EDGES)), baseline)[:, self.horizon].numpy()
        return measure_cells(cells, self.horizon, survival) | self.nonzeros(arrays)
