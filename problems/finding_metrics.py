"""Metrics of the scores of findings: of each finding on the rows in which it is known, and their means."""

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import torch
from jaxtyping import Float, Float64, Int8

from problems.data.findings import Findings
from problems.metrics import Interval, accuracy, binary_metrics

# (scores (m,), whether each is of a positive (m,)) -> a number
Loss = Callable[[torch.Tensor, torch.Tensor], float]


def finding_metrics(
    findings: Findings,
    scores: Float[np.ndarray, "n findings"],
    loss: Loss | None = None,
    thresholds: Sequence[float] | None = None,
    *,
    exclusive: bool = False,
) -> dict[str, float]:
    """Return the mean of each metric over the findings, and ``auc_NAME``, the AUC of each finding.

    Args:
        findings: The findings; of each both values must be known.
        scores: The scores.
        loss: See `mean_metrics`.
        thresholds: See `mean_metrics`.
        exclusive: Whether the findings are classes, of which each row has one. ``accuracy`` is then the share of rows
            whose class has the largest score.

    Raises:
        ValueError: See `mean_metrics`.

    Example:
        >>> values = np.array([[0, 1], [1, 0], [1, -1]], np.int8)
        >>> metrics = finding_metrics(Findings.of(values, ("a", "b")), np.array([[0.1, 1], [2, 2], [3, 0]]))
        >>> metrics["auc_a"], metrics["auc_b"], metrics["auc"]
        (1.0, 0.0, 0.5)
    """
    known = findings.known.T
    rows = [(findings.values[own, index], scores[own, index].astype(np.float64)) for index, own in enumerate(known)]
    metrics = mean_metrics(findings.names, rows, loss, thresholds)
    return metrics | {"accuracy": class_accuracy(findings, scores)} if exclusive else metrics


def class_accuracy(findings: Findings, scores: Float[np.ndarray, "n findings"]) -> float:
    """Return the share of rows whose class has the largest score.

    Args:
        findings: The classes, of which each row has one.
        scores: The scores.
    """
    return float(np.mean(scores.argmax(axis=1) == findings.values.argmax(axis=1)))


def mean_metrics(
    names: Sequence[str],
    rows: Sequence[tuple[Int8[np.ndarray, "_"], Float64[np.ndarray, "_"]]],
    loss: Loss | None = None,
    thresholds: Sequence[float] | None = None,
) -> dict[str, float]:
    """Return the mean of each metric over the findings, and ``auc_NAME``, the AUC of each finding.

    Args:
        names: The names of the findings.
        rows: The values, 0 or 1, and the scores of the rows in which each finding is known.
        loss: A function of scores (m,), and of whether each is of a positive (m,), the metric ``loss``. None: no such
            metric.
        thresholds: The smallest score of each finding that counts as 1 in ``accuracy``. None: 0.

    Raises:
        ValueError: A score is not a number, or a finding has one value only.
    """
    each = []
    for (labels, own), threshold in zip(rows, thresholds or [0.0] * len(rows), strict=True):
        metrics = binary_metrics(labels, own) | {"accuracy": accuracy(labels, own, threshold)}
        if loss is not None:
            metrics["loss"] = loss(torch.from_numpy(own), torch.tensor(labels == 1))
        each.append(metrics)
    means = {name: float(np.mean([metrics[name] for metrics in each])) for name in each[0]}
    return means | {f"auc_{name}": metrics["auc"] for name, metrics in zip(names, each, strict=True)}


def finding_intervals(
    findings: Findings,
    scores: Float[np.ndarray, "n findings"],
    thresholds: Sequence[float] | None = None,
    *,
    exclusive: bool = False,
    resamples: int = 1000,
    confidence: float = 0.95,
    seed: int = 0,
) -> dict[str, Interval]:
    """Return `finding_metrics` with bootstrap intervals: percentiles over resamples of n rows with replacement.

    Resamples in which a finding has one value only do not count.

    Args:
        findings: The findings.
        scores: The scores.
        thresholds: See `mean_metrics`.
        exclusive: See `finding_metrics`.
        resamples: The number of resamples, at least 1.
        confidence: The share of the resamples inside the interval, in (0, 1).
        seed: The seed of the resamples.

    Raises:
        ValueError: See `finding_metrics`.
    """
    measure = partial(finding_metrics, thresholds=thresholds, exclusive=exclusive)
    values, rng = measure(findings, scores), np.random.default_rng(seed)
    draws: dict[str, list[float]] = {name: [] for name in values}
    for _ in range(resamples):
        rows = rng.integers(len(scores), size=len(scores))
        if not all({0, 1} <= {*column} for column in findings.values[rows].T.tolist()):
            continue
        for name, value in measure(findings[rows], scores[rows]).items():
            draws[name].append(value)
    tail = (1 - confidence) / 2
    return {
        name: Interval(value, *np.quantile(draws[name] or [np.nan], (tail, 1 - tail)).tolist())
        for name, value in values.items()
    }
