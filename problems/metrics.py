"""Ranking metrics of a binary classifier: AUC, one-way partial AUC in both conventions, average precision.

All come from one sort. AUC is the Mann-Whitney statistic with ties at one half. `pauc_fprXX` is the
standardised partial area of D. K. McClish, "Analyzing a Portion of the ROC Curve" (Medical Decision Making 9,
1989), which is 0.5 at chance and what scikit-learn's `roc_auc_score(max_fpr=0.XX)` returns; `pauc_fprXX_raw`
is area / 0.XX.
"""

import numpy as np
from jaxtyping import Bool, Float64
from numpy.typing import ArrayLike

PARTIAL_FPR = (0.3, 0.5)


def binary_metrics(labels: ArrayLike, scores: ArrayLike) -> dict[str, float]:
    """Return `auc`, `pauc_fpr30`, `pauc_fpr30_raw`, `pauc_fpr50`, `pauc_fpr50_raw` and `average_precision`.

    Args:
        labels: (n,) of 0 and 1.
        scores: (n,), larger for positives; only their order matters.

    Raises:
        ValueError: when a score is NaN, only one class is there, or the shapes do not fit.
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

    # Twice the number of correctly ordered pairs, a tie counting one half: an integer, hence exact.
    pairs = int(np.dot(np.diff(false), true[1:] + true[:-1]))
    metrics = {"auc": pairs / (2 * positives * negatives)}
    true_rate, false_rate = true / positives, false / negatives
    for limit in PARTIAL_FPR:
        area = _area_up_to(false_rate, true_rate, limit)
        chance, perfect = limit**2 / 2, limit
        name = f"pauc_fpr{round(100 * limit)}"
        metrics[name] = 0.5 * (1 + (area - chance) / (perfect - chance))
        metrics[f"{name}_raw"] = area / limit
    precision = true[1:] / (true[1:] + false[1:])
    metrics["average_precision"] = float(np.dot(np.diff(true), precision)) / positives
    return metrics


def accuracy(labels: ArrayLike, scores: ArrayLike, threshold: float) -> float:
    """Return the share of the labels that equal `score >= threshold`.

    Args:
        labels: (n,) of 0 and 1.
        scores: (n,), larger for positives.
        threshold: the least score that counts as positive.

    Raises:
        ValueError: when a score is NaN, there is no sample, or the shapes do not fit.
    """
    positive, score = _check(labels, scores)
    if len(score) == 0:
        raise ValueError("accuracy needs at least one sample")
    return float(np.mean((score >= threshold) == positive))


def _area_up_to(x: Float64[np.ndarray, "corners"], y: Float64[np.ndarray, "corners"], limit: float) -> float:
    """Area under the polygon (x, y), x ascending from 0 to 1, left of `limit`."""
    stop = int(np.searchsorted(x, limit, side="right"))
    height = np.interp(limit, x[stop - 1 : stop + 1], y[stop - 1 : stop + 1])
    x, y = np.append(x[:stop], limit), np.append(y[:stop], height)
    return float(np.dot(np.diff(x), y[1:] + y[:-1])) / 2


def _check(labels: ArrayLike, scores: ArrayLike) -> tuple[Bool[np.ndarray, "n"], Float64[np.ndarray, "n"]]:
    label, score = np.asarray(labels), np.asarray(scores, dtype=np.float64)
    if label.ndim != 1 or label.shape != score.shape:
        raise ValueError(f"labels and scores must be (n,) alike, got {label.shape} and {score.shape}")
    positive = label == 1
    if not np.array_equal(positive, label):
        raise ValueError(f"labels must be 0 or 1, got {np.unique(label).tolist()[:10]}")
    missing = int(np.isnan(score).sum())
    if missing:
        raise ValueError(f"{missing} of {len(score)} scores are NaN")
    return positive, score
