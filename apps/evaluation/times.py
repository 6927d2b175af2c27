"""The evaluator of networks whose rows have times to an event: concordance, and figures at the horizon."""

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float, Int64

from apps.evaluation.bounded import score_in
from apps.evaluation.networks import NetworkEvaluator
from apps.run_config.algorithm import RunConfig
from methods.fedx_settings import FedXSettings
from payloads.record import FloatArray
from problems.data import Preprocessing, Samples
from problems.models import FlatModel
from problems.objectives.concordance import concordance_risk
from problems.objectives.hazard import CONCORDANCE, HAZARD, encode, hazard_loss, survive
from problems.objectives.pairwise import make_objective
from problems.site import as_tensor
from problems.survival.brier import brier_scores
from problems.survival.concordance import harrell, uno
from problems.survival.dynamic_auc import dynamic_auc

MOST_BINS = 4096


def find_horizon(table: Preprocessing, horizon: float) -> int:
    """Return the interval that contains the horizon.

    Args:
        table: The preprocessing, with the borders of the intervals.
        horizon: The value of ``horizon``; 0 stands for the middle border.
    """
    borders = table.time_borders
    return int(np.searchsorted(borders, horizon)) if horizon else len(borders) // 2


def count_cells(
    samples: Samples, scores: Float[np.ndarray, "n"]
) -> tuple[Int64[np.ndarray, "grid 2 bins"], Int64[np.ndarray, "n"]]:
    """Count rows by interval, event and score; return the counts, and the bin of each row.

    Args:
        samples: The rows.
        scores: Their scores. Each different score is a bin, up to 4,096 bins; else bins have nearly equal numbers of
            rows.
    """
    assert samples.periods is not None
    values, bins = np.unique(scores, return_inverse=True)
    if len(values) > MOST_BINS:
        edges = np.unique(np.quantile(scores, np.arange(1, MOST_BINS) / MOST_BINS))
        bins = np.searchsorted(edges, scores, "right")
    cells = np.zeros((samples.periods.num_intervals, 2, int(bins.max(initial=0)) + 1), dtype=np.int64)
    np.add.at(cells, (samples.periods.exits, samples.labels.astype(np.int64), bins), 1)
    return cells, bins


class TimeEvaluator(NetworkEvaluator):
    """Metrics of a network's risk scores of rows with times.

    Metrics are ``concordance`` (Harrell's), ``concordance_uno``, ``auc_horizon`` (the AUC of events until the horizon)
    with the losses "hazard" and "concordance" ``loss``, and with "hazard" ``brier_horizon``, the Brier score of
    survival until the horizon.

    Args:
        config: The run config.
        model: The network.
        test: The rows.
        table: The preprocessing of the run's tables.
    """

    def __init__(self, config: RunConfig, model: FlatModel, test: Samples, table: Preprocessing) -> None:
        super().__init__(config, model)
        assert test.periods is not None
        self.features = as_tensor(test.features, model.dtype, model.device)
        self.rows, self.horizon = test, find_horizon(table, config.evaluation.horizon)
        self.codes = encode(torch.tensor(test.labels, dtype=torch.float64), test.periods)

    def __call__(self, arrays: Sequence[FloatArray]) -> dict[str, float]:
        self.model.load(arrays)
        predicted = self.model.predict(self.features).double().cpu()
        if not torch.isfinite(predicted).all():
            raise self.explain_divergence()
        cells, bins = count_cells(self.rows, predicted.numpy())
        at = np.array([self.horizon])
        metrics = {
            "concordance": harrell(cells).value,
            "concordance_uno": uno(cells).value,
            "auc_horizon": float(dynamic_auc(cells, at)[0][0]),
        }
        if self.config.training.loss == HAZARD:
            baseline = self.model.parameters[-len(cells) :].double().cpu()
            survival = survive(predicted, baseline)[:, at].numpy()
            sizes = np.bincount(bins, minlength=cells.shape[2])
            means = np.bincount(bins, survival[:, 0], cells.shape[2]) / np.maximum(sizes, 1)
            metrics["brier_horizon"] = float(brier_scores(cells, means[:, None], at).model[0])
            metrics["loss"] = float(hazard_loss(predicted, self.codes, baseline).mean())
        elif self.config.training.loss == CONCORDANCE:
            metrics["loss"] = self.risk(predicted)
        return {name: value for name, value in metrics.items() if np.isfinite(value)} | self.nonzeros(arrays)

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
