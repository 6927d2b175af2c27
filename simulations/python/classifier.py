"""`FederatedClassifier`: a federation in this process as a scikit-learn estimator.

Each of more than two classes is a finding (docs/findings.md): all classes share a softmax if the strategy can train it,
else each has its own binary objective, one against the rest.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_consistent_length, check_is_fitted, column_or_1d, validate_data

from apps.plugins import find_row
from problems.objectives.classification import SOFTMAX
from simulations.python.objects import LABEL, SITE
from simulations.python.runs import run
from simulations.scoring.model import TrainedModel


class FederatedClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A classifier that is trained by a federation of simulated sites.

    Rows are a DataFrame, also with categories and missing cells, or an array of numbers. The rules of
    tables (docs/data.md) apply to both: numbers are scaled, missing cells are filled.

    Args:
        strategy: The algorithm, a name of ``florilegium list strategies`` that trains a model of rows; for more than
            two classes, a strategy of docs/findings.md.
        rounds: The number of rounds.
        sites: The number of sites among which rows are divided at random, if `fit` gets no groups.
        model: The network, see `simulations.python.runs.run`.
        config: Further keys of the run config.
        seed: The seed.

    Attributes:
        classes_: The classes, sorted.
        history_: The metrics on the test rows by round. Of several classes, ``auc_0`` is the AUC of the first class.
        trained_: The trained model, with `simulations.scoring.model.TrainedModel`'s methods. Its classes are 0, 1, ...
        n_features_in_: The number of columns.

    Example:
        >>> from sklearn.datasets import load_breast_cancer
        >>> X, y = load_breast_cancer(return_X_y=True, as_frame=True)
        >>> hospitals = np.arange(len(y)) % 3
        >>> classifier = FederatedClassifier("fedx2", rounds=5).fit(X, y, groups=hospitals)
        >>> bool(classifier.score(X, y) > 0.9)
        True
    """

    def __init__(
        self,
        strategy: str = "local-sgd",
        *,
        rounds: int = 20,
        sites: int = 4,
        model: Any = "linear",
        config: Mapping[str, Any] | None = None,
        seed: int = 0,
    ) -> None:
        self.strategy = strategy
        self.rounds = rounds
        self.sites = sites
        self.model = model
        self.config = config
        self.seed = seed

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        return tags

    def fit(self, X: Any, y: Any, groups: Any = None) -> Self:
        """Train the model. A tenth of the rows are test rows of the run.

        Args:
            X: The (n, columns) rows.
            y: The n labels. The second of two classes in sorted order is the positive class.
            groups: The site of each row. None: rows are divided at random.

        Raises:
            ValueError: There is a single class, one of several classes has a single row, or the lengths differ.
            RunFailedError: The run has no result.
        """
        table = self._table(X, reset=True)
        labels = column_or_1d(y, warn=True)
        check_consistent_length(table, labels, groups)
        check_classification_targets(labels)
        self.classes_, codes = np.unique(labels, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError("Classifier can't train when only one class is present.")
        table = table.assign(**{LABEL: codes})
        config: dict[str, Any] = {"strategy": self.strategy, "num-server-rounds": self.rounds, "seed": self.seed}
        config |= {"label-column": LABEL, "pictures": False, "checkpoint-every": 0, "test-fraction": 0.1}
        if len(self.classes_) > 2:
            config |= self._train_several(codes)
        config |= {"batch-size": min(32, len(table) // 2)} | (
            {"missing": "mean"} if table.isna().any(axis=None) else {}
        )
        clients = min(self.sites, len(table))
        if groups is not None:
            table[SITE] = np.asarray(groups).astype(str)
            config |= {"site-column": SITE, "partition": "natural"}
            clients = table[SITE].nunique()
        config |= dict(self.config or {})
        result = run(config, clients=clients, dataset=table, model=self.model, quiet=True)
        self.history_: pd.DataFrame = result.history
        self.trained_: TrainedModel = result.classifier
        return self

    def decision_function(self, X: Any) -> NDArray[Any]:
        """Return the (n,) scores: larger for the second class. For several classes a score for each, (n, classes).

        Args:
            X: The rows.
        """
        check_is_fitted(self)
        return self.trained_.decision_function(self._table(X))

    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        """Return the (n, classes) probabilities of the classes. One against the rest, they are scaled to the sum 1.

        Args:
            X: The rows.
        """
        check_is_fitted(self)
        probabilities = self.trained_.predict_proba(self._table(X))
        if len(self.classes_) > 2:
            probabilities = np.maximum(probabilities, np.finfo(np.float64).tiny)
            probabilities /= probabilities.sum(axis=1, keepdims=True)
        return probabilities

    def predict(self, X: Any) -> NDArray[Any]:
        """Return the (n,) more probable classes.

        Args:
            X: The rows.
        """
        probabilities = self.predict_proba(X)
        several = len(self.classes_) > 2
        codes = probabilities.argmax(axis=1) if several else (probabilities[:, 1] >= 0.5).astype(int)
        labels: NDArray[Any] = self.classes_[codes]
        return labels

    def _train_several(self, codes: NDArray[np.int64]) -> dict[str, Any]:
        """Return the run-config keys of more than two classes.

        Args:
            codes: The index of each row's class.
        """
        if (counts := np.bincount(codes)).min() < 2:
            name = str(self.classes_[counts.argmin()])
            raise ValueError(f"Class {name!r} has one row; training and test need a row each.")
        loss = {"loss": SOFTMAX} if SOFTMAX in find_row(self.strategy).losses else {}
        return {"label-columns": ", ".join(map(str, range(len(self.classes_)))), **loss}

    def _table(self, X: Any, *, reset: bool = False) -> pd.DataFrame:
        """Return rows as a table; with ``reset`` also note its columns."""
        if isinstance(X, pd.DataFrame) and (clash := {LABEL, SITE} & set(X.columns)):
            raise ValueError(f"X must have no column {' or '.join(sorted(clash))}: rename it")
        if isinstance(X, pd.DataFrame) and not all(map(pd.api.types.is_numeric_dtype, X.dtypes)):
            validate_data(self, X, reset=reset, skip_check_array=True)
            return X.copy()
        checked = validate_data(self, X, reset=reset, ensure_all_finite="allow-nan", dtype="numeric")
        names = getattr(self, "feature_names_in_", [f"x{column}" for column in range(checked.shape[1])])
        return pd.DataFrame(checked, columns=list(names))
