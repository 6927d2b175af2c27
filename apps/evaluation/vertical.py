"""Metrics of a vertical run, in which parties have different columns of the same rows.

The parties measure the metrics. A server that has all columns, as in a simulation, adds ``suboptimality``: the distance
of the objective from its minimum.
"""

import math
from collections.abc import Hashable, Mapping, Sequence
from logging import WARNING
from typing import Any

import numpy as np
from flwr.common import log

from apps.evaluation.labels import describe_labels
from apps.parties.data import check_columns, settings_of, vertical_data
from apps.run_config.algorithm import Evaluator, RunConfig
from payloads.record import FloatArray
from problems.data.spec import GENERIC
from vertical.problem.analysis import minimum
from vertical.problem.blocks import NO_PENALTY
from vertical.problem.data import VerticalData
from vertical.problem.objectives import make_objective

SUBOPTIMALITY = "suboptimality"
# (data, index of the column of ones, objective) -> the objective's minimum, computed once per process
_minima: dict[Hashable, float | None] = {}


class VerticalEvaluator(Evaluator):
    """The reporting party's metrics and, if the server has all columns, ``suboptimality``: objective minus `minimum`.

    Args:
        config: The run config.
        parties: The number of parties.
        pooled: Whether the parties' data follow from the run config, so the server can load them too.
    """

    check = staticmethod(check_columns)

    def __init__(self, config: RunConfig, parties: int, *, pooled: bool = True) -> None:
        vfb2 = settings_of(config)
        self.config = config
        self.objective = make_objective(vfb2.problem, vfb2.factor)
        self.data: VerticalData | None = None
        # the minimum of networks is unknown
        if pooled and not vfb2.embedding and (config.data.data_dir or config.data.dataset not in GENERIC):
            self.data = vertical_data(config, parties)
            positives = int((self.data.train_labels > 0).sum())
            counts = np.array([[len(self.data.train_labels) - positives, positives]])
            self.notes = tuple(describe_labels(config.data, self.data.samples, counts))
        parts = f"networks of embedding {vfb2.embedding}" if vfb2.embedding else "blocks"
        penalty = "" if vfb2.penalty == NO_PENALTY else f", {vfb2.penalty} of weight {vfb2.penalty_weight:g}"
        self.summary = (
            f"problem {vfb2.problem}, weight {self.objective.weight:g}{penalty}; the {parts} stay at {parties} parties"
        )

    def start(self) -> list[FloatArray]:
        return [np.zeros(0)]

    def __call__(self, arrays: Sequence[FloatArray]) -> dict[str, float]:
        return {}

    def relate(self, measured: Mapping[str, float]) -> dict[str, float]:
        """Return the reporter's metrics, with the suboptimality added if the objective's minimum is known.

        Raises:
            ValueError: A metric is not finite: the run has diverged.
        """
        if not all(map(math.isfinite, measured.values())):
            values = ", ".join(f"{name} {value}" for name, value in measured.items())
            raise ValueError(f"the metrics are not finite ({values}): the run has diverged; lower learning-rate")
        related = dict(measured)
        optimum = self.minimum() if "objective" in related else None
        if optimum is not None:
            related[SUBOPTIMALITY] = related["objective"] - optimum
        return related

    def minimum(self) -> float | None:
        """Return the minimum of the objective, or None if it is unknown, as with a nonsmooth penalty.

        For a non-convex objective: the local minimum that the solver reaches from weights 0.
        """
        if self.data is None or settings_of(self.config).penalty != NO_PENALTY:
            return None
        key = (self.config.data, self.data.intercept, self.objective)
        if key not in _minima:
            _minima[key] = None
            try:
                _, _minima[key] = minimum(self.data.train_features, self.data.train_labels, self.objective)
            except RuntimeError as error:
                log(WARNING, "no suboptimality: %s", error)
        return _minima[key]

    def name_arrays(self, arrays: Sequence[FloatArray]) -> dict[str, Any]:
        """Return the arrays of the model file: ``weights.<p>``, the block of each party p.

        If the server has the data, also ``columns.<p>``, the columns of party p, and ``weights``, by column.

        Args:
            arrays: The block of each party: its part of the model. A single empty array if the server has no blocks,
                as then the result is {}.
        """
        if all(not block.size for block in arrays):
            return {}
        arrays_by_name: dict[str, Any] = {f"weights.{party}": block for party, block in enumerate(arrays)}
        if self.data is None or len(arrays) != len(self.data.columns):
            return arrays_by_name
        arrays_by_name |= {f"columns.{party}": columns for party, columns in enumerate(self.data.columns)}
        weights = np.zeros(sum(map(len, self.data.columns)))
        for columns, block in zip(self.data.columns, arrays, strict=True):
            weights[columns] = block
        return {"weights": weights, **arrays_by_name}
