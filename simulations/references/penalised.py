"""Logistic regression at its optimum, with an L2 penalty that is chosen by cross-validation.

| formula | here |
|---|---|
| min over w, b of (1/n) sum_i log(1 + exp(-y_i (w x_i + b))) + (lambda/2) |w|^2, y_i = -1 or 1 | `fit_penalised` |
| lambda | ``penalty``; scikit-learn's C is 1 / (n lambda) |

A run with ``weight-decay`` lambda has the same objective, except that the run also penalises b.
"""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int8

PENALTIES: tuple[float, ...] = tuple(10.0 ** (exponent / 2) for exponent in range(-8, 2))
FOLDS = 5
# With more rows the penalty hardly matters, so only one fold is held out instead of each fold in turn.
_MANY_ROWS = 20_000
# With more features a Newton step takes longer than many steps of L-BFGS.
_MANY_FEATURES = 300
# Feature arrays with more entries stay in single precision, to save memory.
_MANY_NUMBERS = 20_000_000


@dataclass(frozen=True, eq=False)
class Penalised:
    """A fitted logistic regression.

    Attributes:
        weights: The weights w.
        bias: The bias b. 0: the model has no intercept.
        penalty: The penalty lambda.
        folds: The number of cross-validation folds. 0: a class has only one row, so the penalty is 1/n.
    """

    weights: Float[np.ndarray, "d"]
    bias: float
    penalty: float
    folds: int


def fit_penalised(
    features: Float[np.ndarray, "n d"],
    labels: Int8[np.ndarray, "n"],
    *,
    intercept: bool = True,
    seed: int = 0,
    penalties: Sequence[float] = PENALTIES,
) -> Penalised:
    """Choose the penalty with the smallest cross-entropy on held-out folds, and fit the model on all rows.

    Args:
        features: The rows' features.
        labels: The rows' labels 0 and 1. Both labels must occur.
        intercept: Whether the model has a bias.
        seed: The seed that assigns rows to folds.
        penalties: The penalties to try.
    """
    from sklearn.linear_model import LogisticRegression, LogisticRegressionCV  # imported here, since it takes a second
    from sklearn.model_selection import StratifiedKFold

    rows = len(labels)
    if features.dtype != np.float64 and features.size <= _MANY_NUMBERS:
        features = features.astype(np.float64)
    solver = "newton-cholesky" if features.shape[1] <= _MANY_FEATURES else "lbfgs"
    options = {"fit_intercept": intercept, "max_iter": 1000, "solver": solver}
    folds = min(FOLDS, int(labels.sum()), int((1 - labels).sum()))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # warnings of solvers that end early, and of deprecated options
        if folds > 1:
            splits = list(StratifiedKFold(folds, shuffle=True, random_state=seed).split(features, labels))
            model = LogisticRegressionCV(
                Cs=[1 / (rows * penalty) for penalty in penalties],
                cv=splits if rows <= _MANY_ROWS else splits[:1],
                scoring="neg_log_loss",
                **options,
            ).fit(features, labels)
            penalty = 1 / (rows * float(np.ravel(model.C_)[0]))
        else:
            penalty = 1 / rows
            model = LogisticRegression(C=1.0, **options).fit(features, labels)
    bias = float(model.intercept_[0]) if intercept else 0.0
    return Penalised(model.coef_[0], bias, penalty, folds if folds > 1 else 0)
