"""The reference ``nonfederated`` of vertical learning: the same problem and algorithm with all columns pooled.

In vertical learning each party has some columns of all rows. Papers call this reference NonF.
"""

from __future__ import annotations

import numpy as np

from apps.config import ConfigError, RunConfig
from apps.evaluation.vertical import VerticalEvaluator
from apps.parties.data import settings_of, vertical_data
from apps.registry import ALGORITHMS
from problems.metrics import accuracy, binary_metrics
from simulations.references.centralized import RoundHook
from vertical.problem.blocks import GROUP_LASSO, L1_NORM, NO_PENALTY, make_block, make_nonsmooth
from vertical.problem.blocks.base import SAGA, SVRG
from vertical.problem.objectives import Array, Objective, make_objective
from vertical.problem.schedule import Schedule
from vertical.settings import VFB2Settings


def check_vertical(config: RunConfig) -> None:
    """Check that the strategy is vertical and the model linear, as this reference requires.

    Raises:
        ConfigError: The strategy is not vertical (the message lists the vertical strategies), the parties have neural
            networks, or the penalty is a group lasso.
    """
    if config.algorithm.settings is not VFB2Settings:
        vertical = ", ".join(name for name, row in ALGORITHMS.items() if row.settings is VFB2Settings)
        raise ConfigError(
            "strategy",
            got=f"{config.run.strategy!r}, which is not vertical",
            allowed=vertical,
            hint="remove the engine",
        )
    if embedding := settings_of(config).embedding:
        allowed = "0, since the reference is a linear model of all columns"
        raise ConfigError("vfb2.embedding", got=embedding, allowed=allowed, hint="remove vfb2.embedding")
    if settings_of(config).penalty == GROUP_LASSO:
        allowed = f"{NO_PENALTY}, {L1_NORM}, since the groups of columns are the parties"
        raise ConfigError("vfb2.penalty", got=repr(GROUP_LASSO), allowed=allowed, hint="remove vfb2.penalty")


def train_nonfederated(
    config: RunConfig, on_round: RoundHook | None = None
) -> tuple[list[dict[str, float]], dict[str, object]]:
    """Train on all columns with the true labels, without parties and delays.

    Args:
        config: The vertical run's config. A round has ``vfb2.epochs`` epochs, as in the vertical run.
        on_round: A function that is called after each evaluated round with its number and metrics.

    Returns:
        The metrics of each evaluated round, starting with weights 0, and the final weights by name.

    Raises:
        ConfigError: The strategy is not vertical.
    """
    check_vertical(config)
    training, vfb2 = config.training, settings_of(config)
    objective = make_objective(vfb2.problem, vfb2.factor)
    evaluator = VerticalEvaluator(config, 1, pooled=True)
    data = vertical_data(config, 1)
    algorithm = config.algorithm.client.algorithm  # type: ignore[attr-defined]
    block = make_block(data.train_features, algorithm, objective, training.learning_rate)
    penalised = np.where(np.arange(block.columns) == data.intercept, -1, 0)
    block.nonsmooth = make_nonsmooth(vfb2.penalty, vfb2.penalty_weight, penalised)
    schedule = Schedule(len(data.train_labels), 1, training.batch_size, training.seed)

    def metrics() -> dict[str, float]:
        measured = {"objective": float(objective.losses(block.partials(), data.train_labels).mean()) + block.penalty()}
        if vfb2.penalty != NO_PENALTY:
            measured["nonzeros"] = float(np.count_nonzero(block.weights))
        return evaluator.relate(
            {**measured, **_test_metrics(objective, block.predict(data.test_features), data.test_labels)}
        )

    history = [metrics()]
    for server_round in range(1, training.num_server_rounds + 1):
        block.set_step(vfb2.step(training, server_round))
        for epoch in range((server_round - 1) * vfb2.epochs, server_round * vfb2.epochs):
            if algorithm == SVRG or (algorithm == SAGA and epoch == 0):
                block.remember(objective.slopes(block.partials(), data.train_labels))
            for rows in schedule.batches(epoch, 0):
                block.apply(rows, objective.slopes(block.partials(rows), data.train_labels[rows]))
        if server_round % training.evaluate_every == 0 or server_round == training.num_server_rounds:
            history.append(metrics())
            if on_round is not None:
                on_round(server_round, history[-1])
    return history, {"weights": block.weights}


def _test_metrics(objective: Objective, z: Array, labels: Array) -> dict[str, float]:
    """Return the metrics of predictions z (k,).

    The metrics of a regression are `loss` (the mean) and `rmse`. The metrics of a classification are `loss`, `accuracy`
    (threshold 0) and, if both classes occur, `auc`.
    """
    metrics = {"loss": float(np.mean(objective.losses(z, labels)))}
    if not objective.classification:
        return {**metrics, "rmse": float(np.sqrt(np.mean(np.square(z - labels))))}
    positive = (labels > 0).astype(np.int64)
    metrics["accuracy"] = accuracy(positive, z, 0.0)
    if 0 < positive.sum() < len(positive):
        metrics["auc"] = binary_metrics(positive, z)["auc"]
    return metrics
