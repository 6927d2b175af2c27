"""The evaluator of networks whose rows have times to an event: concordance, and figures at the horizon."""

from collections.abc import Sequence
from logging import WARNING

import numpy as np
import torch
from flwr.common import log
from jaxtyping import Float, Int64

from apps.evaluation.bounded import score_in
from apps.evaluation.networks import NetworkEvaluator
from apps.run_config.algorithm import RunConfig
from apps.run_config.settings import ConfigError
from methods.fedx_settings import FedXSettings
from payloads.record import FloatArray
from problems.data import Preprocessing, Samples
from problems.data.times import count_intervals
from problems.models import FlatModel
from problems.objectives.concordance import concordance_risk
from problems.objectives.hazard import CONCORDANCE, HAZARD, encode, hazard_loss, survive
from problems.objectives.pairwise import make_objective
from problems.site import as_tensor
from problems.survival.intervals import measure_cells
from problems.survival.paired import bin_rows, count_entries
from problems.survival.summary import CountedRows


def find_horizon(table: Preprocessing, horizon: float) -> int:
    """Return the interval that contains the horizon.

    Args:
        table: The preprocessing, with the borders of the intervals.
        horizon: The value of ``horizon``; 0 stands for the middle border.
    """
    borders = table.time_borders
    return int(np.searchsorted(borders, horizon)) if horizon else len(borders) // 2


def check_horizon(table: Preprocessing, horizon: float) -> None:
    """Log a warning if the horizon is not a border.

    Args:
        table: The preprocessing, with the borders of the intervals.
        horizon: The value of ``horizon``.

    Raises:
        ConfigError: The horizon lies after the last border.
    """
    borders = table.time_borders
    if horizon > (last := max(borders, default=0)):
        allowed = f"times up to the last border, {last:g}"
        raise ConfigError("horizon", got=horizon, allowed=allowed, hint="choose an earlier time, or set time-borders")
    if horizon and (border := borders[find_horizon(table, horizon)]) != horizon:
        text = "horizon = %g is not a border of time: figures are until %g, the next border; set time-borders with %g"
        log(WARNING, text, horizon, border, horizon)


def baseline_of(model: FlatModel, config: RunConfig) -> Float[torch.Tensor, "k"]:
    """Return the baselines of hazards of a model. Tied quantiles make fewer intervals than the model has baselines.

    Args:
        model: The model, whose parameters end with the baselines.
        config: The run config.
    """
    return model.parameters[-count_intervals(config.data) :].double().cpu()


def count_cells(
    samples: Samples, scores: Float[np.ndarray, "n"]
) -> tuple[Int64[np.ndarray, "grid 2 bins"], Int64[np.ndarray, "n"]]:
    """Count rows by interval, event and score; return the counts, and the bin of each row.

    Args:
        samples: The rows.
        scores: Their scores, see `problems.survival.paired.bin_rows`.
    """
    assert samples.periods is not None
    return bin_rows(samples.periods.exits, samples.labels, scores, samples.periods.num_intervals)


class TimeEvaluator(NetworkEvaluator):
    """Metrics of a network's risk scores of rows with times.

    Metrics are ``concordance`` (Harrell's), ``concordance_uno``, ``auc_horizon`` (the AUC of events until the horizon).
    The losses "hazard" and "concordance" add ``loss``, and "hazard" adds ``brier_horizon``, the Brier score of survival
    until the horizon.

    Args:
        config: The run config.
        model: The network.
        test: The rows.
        table: The preprocessing of the run's tables.
    """

    def __init__(self, config: RunConfig, model: FlatModel, test: Samples, table: Preprocessing) -> None:
        super().__init__(config, model)
        check_horizon(table, config.evaluation.horizon)
        assert test.periods is not None
        self.features = as_tensor(test.features, model.dtype, model.device)
        self.borders = table.time_borders
        self.rows, self.horizon = test, find_horizon(table, config.evaluation.horizon)
        self.codes = encode(torch.tensor(test.labels, dtype=torch.float64), test.periods)

    def count(self, arrays: Sequence[FloatArray]) -> CountedRows:
        """Count the rows under a model, for its survival curves.

        Args:
            arrays: The model.
        """
        scores, periods, labels = self.predict(arrays).numpy(), self.rows.periods, self.rows.labels.astype(np.int64)
        assert periods is not None
        cells, bins = count_cells(self.rows, scores)
        sizes = cells.sum(axis=(0, 1))
        means = np.bincount(bins, scores, len(sizes)) / np.maximum(sizes, 1)
        entries, sites = count_entries(periods.entries, bins, cells), None
        if self.rows.sites is not None:
            sites = {int(site): np.zeros(cells.shape[:2], np.int64) for site in np.unique(self.rows.sites) if site >= 0}
            for site, counts in sites.items():
                own = self.rows.sites == site
                np.add.at(counts, (periods.exits[own], labels[own]), 1)
        return CountedRows(cells, means, entries, None if entries is not None else sites)

    def predict(self, arrays: Sequence[FloatArray]) -> torch.Tensor:
        """Return the rows' scores under a model (n,), in double precision.

        Args:
            arrays: The model.

        Raises:
            ValueError: A score is not finite.
        """
        self.model.load(arrays)
        predicted = self.model.predict(self.features).double().cpu()
        if not torch.isfinite(predicted).all():
            raise self.explain_divergence()
        return predicted

    def __call__(self, arrays: Sequence[FloatArray]) -> dict[str, float]:
        predicted = self.predict(arrays)
        cells, bins = count_cells(self.rows, predicted.numpy())
        assert self.rows.periods is not None
        entries = count_entries(self.rows.periods.entries, bins, cells)
        if self.config.training.loss != HAZARD:
            loss = {"loss": self.risk(predicted)} if self.config.training.loss == CONCORDANCE else {}
            return measure_cells(cells, self.horizon, None, entries) | loss | self.nonzeros(arrays)
        baseline = baseline_of(self.model, self.config)[: len(cells)]
        survival = survive(predicted, baseline)[:, self.horizon].numpy()
        sizes = np.bincount(bins, minlength=cells.shape[2])
        means = np.bincount(bins, survival, cells.shape[2]) / np.maximum(sizes, 1)
        loss = {"loss": float(hazard_loss(predicted, self.codes, baseline).mean())}
        return measure_cells(cells, self.horizon, means, entries) | loss | self.nonzeros(arrays)

    def risk(self, outputs: Float[torch.Tensor, "n"]) -> float:
        """Return the risk of ``concordance`` on all pairs of the rows.

        Args:
            outputs: The outputs of the network.
        """
        assert self.rows.periods is not None
        assert isinstance(self.config.family, FedXSettings)
        objective = make_objective(CONCORDANCE, **self.config.family.objective_options)
        scores = score_in(self.config.training).value(outputs)
        return concordance_risk(objective, scores, torch.tensor(self.rows.labels).double(), self.rows.periods)
