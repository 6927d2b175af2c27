"""The model's quality, seen by the reporter alone: one masked sum over predictions and penalties."""

from __future__ import annotations

import numpy as np

from clients.vertical.agenda import EVALUATION
from clients.vertical.failures import PartyError
from clients.vertical.station import Done, Station
from problems.metrics import accuracy, binary_metrics
from problems.vertical.objectives import Array, Objective


class Evaluation:
    """The sum over all parties of (z of the training rows, z of the test rows, penalty) to the reporter."""

    answer_kind = -1

    def __init__(self, station: Station, done: Done) -> None:
        self._station, self._done = station, done
        self._own: Array | None = None

    def begin(self) -> None:
        station = self._station
        block, test = station.block, station.holding.test_features
        tested = np.zeros(0) if test is None else block.predict(test)
        values = np.concatenate([block.partials(), tested, [block.penalty()]])
        if station.place == 0:
            self._own = values
            self.pull()
        else:
            station.sums.contribute(EVALUATION, values, [(0, len(values))])
            self._done()

    def pull(self) -> None:
        station = self._station
        if self._own is None:
            return
        others = station.sums.take(EVALUATION)
        if others is None:
            return
        total, self._own = others + self._own, None
        rows, labels = station.plan.rows, station.holding.labels
        if labels is None:
            raise RuntimeError("the reporter has labels")
        trained = station.objective.losses(total[:rows], labels)
        station.metrics["objective"] = float(np.mean(trained)) + float(total[-1])
        if station.holding.test_labels is not None and station.plan.test_rows:
            station.metrics.update(test_metrics(station.objective, total[rows:-1], station.holding.test_labels))
        self._done()

    def answer(self, place: int, number: int, body: bytes | memoryview) -> None:
        raise PartyError(self._station.plan.active[place], "it sent theta during the evaluation")


def test_metrics(objective: Objective, z: Array, labels: Array) -> dict[str, float]:
    """The mean `loss` of (k,) predictions, with `rmse`, or `accuracy` (threshold 0) and, given both classes, `auc`."""
    metrics = {"loss": float(np.mean(objective.losses(z, labels)))}
    if not objective.classification:
        return {**metrics, "rmse": float(np.sqrt(np.mean(np.square(z - labels))))}
    positive = (labels > 0).astype(np.int64)
    metrics["accuracy"] = accuracy(positive, z, 0.0)
    if 0 < positive.sum() < len(positive):
        metrics["auc"] = binary_metrics(positive, z)["auc"]
    return metrics
