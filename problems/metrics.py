"""Ranking metrics of a binary classifier: AUC, one-way partial AUC in both conventions, average precision.

All use one sort. AUC is the Mann-Whitney statistic with ties at one half. `pauc_fprXX` is the
standardised partial area of D. K. McClish, "Analyzing a Portion of the ROC Curve" (Medical Decision Making 9,
1989), which is 0.5 at chance and equals scikit-learn's `roc_auc_score(max_fpr=0.XX)`; `pauc_fprXX_raw`
is area / 0.XX.
"""

import math
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float64, Int64
from numpy.typing import ArrayLike

from problems.delong import auc_interval, few_rows

PARTIAL_FPR = (0.3, 0.5)


def binary_metrics(labels: ArrayLike, scores: ArrayLike) -> dict[str, float]:
    """Return `auc`, `pauc_fpr30`, `pauc_fpr30_raw`, `pauc_fpr50`, `pauc_fpr50_raw` and `average_precision`.

    Args:
        labels: (n,) of 0 and 1.
        scores: (n,), larger for positives; only their order matters.

    Raises:
        ValueError: A score is NaN, a class is missing, or the shapes do not fit.

    Example:
        >>> f"{binary_metrics([0, 0, 1, 1], [0.1, 0.4, 0.35, 0.8])['auc']:.2f}"
        '0.75'
    """
    positive, score = _check(labels, scores)
    positives = int(positive.sum())
    negatives = len(positive) - positives
    if positives == 0 or negatives == 0:
        raise ValueError(f"ranking metrics need both classes, got {positives} positives and {negatives} negatives")

    order = np.argsort(-score, kind="stable")
    ranked, hit = score[order], positive[order]
    last_of_tie = np.append(np.flatnonzero(ranked[1:] != ranked[:-1]), len(ranked) - 1)
    true = np.concatenate(([0], np.cumsum(hit)[last_of_tie]))  # positives at or above each distinct score
    false = np.concatenate(([0], last_of_tie + 1 - true[1:]))  # negatives at or above it
    return {name: float(value) for name, value in ranking_metrics(true, false).items()}


def ranking_metrics(
    true: Int64[np.ndarray, "*draws corners"], false: Int64[np.ndarray, "*draws corners"]
) -> dict[str, Float64[np.ndarray, "*draws"]]:
    """Return the metrics of `binary_metrics` from counts, for many samples of rows at once.

    Args:
        true: The positives at or above each score: first 0, then the scores in descending order.
        false: The negatives at or above each score, in the same order.

    Returns:
        Each metric of each sample; nan for a sample with only one class.
    """
    positives, negatives = true[..., -1], false[..., -1]
    new_true, new_false = np.diff(true), np.diff(false)
    with np.errstate(divide="ignore", invalid="ignore"):
        # Twice the number of correctly ordered pairs, a tie counting one half: an integer, hence exact.
        pairs = (new_false * (true[..., 1:] + true[..., :-1])).sum(axis=-1)
        metrics = {"auc": pairs / (2 * positives * negatives)}
        true_rate, false_rate = true / positives[..., None], false / negatives[..., None]
        for limit in PARTIAL_FPR:
            area = _area_up_to(false_rate, true_rate, limit)
            chance, perfect = limit**2 / 2, limit
            name = f"pauc_fpr{round(100 * limit)}"
            metrics[name] = 0.5 * (1 + (area - chance) / (perfect - chance))
            metrics[f"{name}_raw"] = area / limit
        precision = true[..., 1:] / np.maximum(true[..., 1:] + false[..., 1:], 1)
        average = (new_true * precision).sum(axis=-1) / positives
        metrics["average_precision"] = np.where(negatives > 0, average, np.nan)
    return {name: np.asarray(value) for name, value in metrics.items()}


@dataclass(frozen=True)
class Interval:
    """A metric, and the range of its values in most resamples. nan: the metric has no value in any resample."""

    value: float
    low: float
    high: float


def scored_metrics(
    labels: ArrayLike,
    scores: ArrayLike,
    probabilities: ArrayLike,
    predictions: ArrayLike,
    *,
    resamples: int = 1000,
    confidence: float = 0.95,
    seed: int = 0,
) -> dict[str, Interval]:
    """Return the metrics of `binary_metrics`, ``accuracy`` and ``brier``, with their bootstrap intervals.

    A resample draws n rows with replacement. The interval is from a low to a high percentile of the metric over the
    resamples; for ranking metrics, over the resamples in which both classes occur. With ten or fewer rows of a class
    the interval of ``auc`` is DeLong's on the logit scale (`problems.delong`), without resamples.

    Args:
        labels: (n,) of 0 and 1; both must occur.
        scores: (n,), larger for positives.
        probabilities: (n,), the probabilities of label 1.
        predictions: (n,) of 0 and 1.
        resamples: The number of resamples, at least 1.
        confidence: The share of the resamples inside the interval, in (0, 1).
        seed: The seed of the resamples.

    Raises:
        ValueError: See `binary_metrics`.
    """
    positive, score = _check(labels, scores)
    values = binary_metrics(positive, score)
    by_row = {
        "accuracy": np.asarray(predictions) == positive,
        "brier": np.square(np.asarray(probabilities, dtype=np.float64) - positive),
    }
    values |= {name: float(np.mean(value)) for name, value in by_row.items()}

    # Sorted once: a resample counts its rows in the cell of each label and distinct score, the largest score first.
    distinct, ranks = np.unique(-score, return_inverse=True)
    cells = ranks + len(distinct) * positive  # (n,)
    rng = np.random.default_rng(seed)
    draws: dict[str, list[float]] = {name: [] for name in values}
    for _ in range(resamples):
        rows = rng.integers(len(cells), size=len(cells))
        counts = np.bincount(cells[rows], minlength=2 * len(distinct)).reshape(2, -1)
        drawn = counts[0] + counts[1] > 0
        false, true = (np.concatenate(([0], np.cumsum(count[drawn]))) for count in counts)
        measured = {name: float(np.mean(each[rows])) for name, each in by_row.items()}
        if true[-1] and false[-1]:
            measured |= {name: float(value) for name, value in ranking_metrics(true, false).items()}
        for name, value in measured.items():
            draws[name].append(value)
    tail = (1 - confidence) / 2
    bounds = {name: np.quantile(draw or [math.nan], (tail, 1 - tail)).tolist() for name, draw in draws.items()}
    counts = np.bincount(cells, minlength=2 * len(distinct)).reshape(2, -1)[:, ::-1]  # ascending scores
    if few_rows(*counts.sum(axis=1).tolist()):
        bounds["auc"] = list(auc_interval(counts[0], counts[1], confidence))
    return {name: Interval(value, *bounds[name]) for name, value in values.items()}


def accuracy(labels: ArrayLike, scores: ArrayLike, threshold: float) -> float:
    """Return the share of the labels that equal `score >= threshold`.

    Args:
        labels: (n,) of 0 and 1.
        scores: (n,), larger for positives.
        threshold: The smallest score that counts as positive.

    Raises:
        ValueError: A score is NaN, there is no sample, or the shapes do not fit.

    Example:
        >>> float(accuracy([0, 0, 1, 1], [0.1, 0.4, 0.35, 0.8], threshold=0.3))
        0.75
    """
    positive, score = _check(labels, scores)
    if len(score) == 0:
        raise ValueError("accuracy needs at least one sample")
    return float(np.mean((score >= threshold) == positive))


def _area_up_to(
    x: Float64[np.ndarray, "*draws corners"], y: Float64[np.ndarray, "*draws corners"], limit: float
) -> Float64[np.ndarray, "*draws"]:
    """Return the area under the polygons (x, y), x ascending from 0 to 1, left of `limit`."""
    cut = np.minimum(x, limit)
    width, rise = np.diff(cut), np.diff(y)
    crossing = (x[..., :-1] < limit) & (x[..., 1:] > limit)
    height = np.where(crossing, y[..., :-1] + rise * width / np.where(crossing, np.diff(x), 1.0), y[..., 1:])
    return np.asarray((width * (height + y[..., :-1])).sum(axis=-1) / 2)


def _check(labels: ArrayLike, scores: ArrayLike) -> tuple[Bool[np.ndarray, "n"], Float64[np.ndarray, "n"]]:
    label, score = np.asarray(labels), np.asarray(scores, dtype=np.float64)
    if label.ndim != 1 or label.shape != score.shape:
        raise ValueError(f"labels and scores must have the same shape (n,), got {label.shape} and {score.shape}")
    positive = label == 1
    if not np.array_equal(positive, label):
        raise ValueError(f"labels must be 0 or 1, got {np.unique(label).tolist()[:10]}")
    missing = int(np.isnan(score).sum())
    if missing:
        raise ValueError(f"{missing} of {len(score)} scores are NaN")
    return positive, score
