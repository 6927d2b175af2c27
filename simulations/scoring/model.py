"""The trained model of a finished run, as a scikit-learn classifier, or as a regressor if labels are numbers or times.

`load` reads the model from a run directory: ``load("runs/a").predict_proba(table)[:, 1]``.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.metrics import accuracy_score, r2_score
from sklearn.utils import RegressorTags

from apps.config import ConfigError, parse_run_config
from apps.evaluation.survival import read_baseline
from apps.evaluation.times import find_horizon
from problems.calibration import Calibration, Calibrations, read_calibration
from problems.data import DataError, SampleFormat
from problems.data.formats.uci import base_codes
from problems.data.image_rows import ImageRows
from problems.data.unseen import find_unseen
from problems.objectives.classification import SOFTMAX
from problems.objectives.number_losses import means
from problems.site import as_tensor
from problems.survival.baseline import Baseline
from simulations.results.records import RunRecord, read_run
from simulations.scoring.run_files import (
    BEST,
    LAST,
    PAGE,
    choose_file,
    read_config,
    read_hazards,
    read_network,
    read_preprocessing,
)
from simulations.scoring.survival import need_baseline, survive

if TYPE_CHECKING:
    import pandas as pd

SCORE, PROBABILITY = "score", "probability"  # columns of a table of scores, and outputs of an exported model
MEAN = "mean"  # the column and the output in place of the probability, if the labels are numbers
PREDICTED = "predicted"  # a column of a table of scores, with a threshold
_ALLOW = "set --allow-unseen (in Python allow_unseen=True) to score the rows without this column"

_log = logging.getLogger(__name__)


def load(run: str | Path, model: str = "", *, allow_unseen: bool = False) -> TrainedModel:
    """Return the trained model of a finished run.

    Args:
        run: The run directory.
        model: "last" (of the last round), "best" (of the round with the best validation metric), or the name of a
            further model of the strategy, such as "inner" for model_inner.safetensors. "": "best" if the run has it,
            else "last".
        allow_unseen: Whether to score rows even if the model has seen no value of some column in training.

    Raises:
        ConfigError: The model does not exist, or the run has no model that scores rows.
        DataError: A file of the run directory is damaged.
        ModelError: The network cannot be built, for example because a user's own module is not found.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> from florilegium import run
        >>> config = {"strategy": "local-sgd", "model": "linear", "num-server-rounds": 1, "pictures": False}
        >>> with TemporaryDirectory() as folder:
        ...     record = run(config, f"{folder}/run", clients=2, quiet=True)
        ...     model = load(record.path)
        >>> model.predict_proba(np.zeros((3, 64))).shape
        (3, 2)
    """
    return TrainedModel(run, model, allow_unseen=allow_unseen)


class TrainedModel(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A fitted classifier that scores new rows: a run's network, and the preprocessing of its table.

    If the run's labels are numbers, it is a regressor: `predict` returns means, and `predict_proba` raises an error.
    If rows have times to an event, `predict` returns risk scores, and `predict_survival` probabilities.
    If rows have several binary labels, the *findings* in ``label-columns``, all results have a column for each finding.

    If the run was trained on a table, rows are a pandas DataFrame with the raw columns. Otherwise rows are an array
    (n, \\*shape) of raw features, in which pixels are bytes or numbers in [0, 1]. `fit` raises an error.

    Args:
        run: The run directory.
        model: The name of the model, see `load`.
        allow_unseen: Whether to score rows even if the model has seen no value of some column in training.

    Attributes:
        classes_: 0 and 1, or the names of the findings. Missing if the labels are numbers, or rows have times.
        findings: The names of the findings; () if each row has one label.
        exclusive: Whether the findings are classes of a softmax, of which each row has one.
        numeric: Whether the labels are numbers.
        timed: Whether rows have times to an event.
        record: The content of the run directory.
        config: The run config.
        file: The file of the weights.
        chosen: The name of the model, such as "best" or "last".
        selected: The metric and the round of the selection. None: the model was not selected.
        server_round: The model's round.
        is_left: Whether the final metrics in result.json belong to this model.
        threshold: The minimum score that `predict` calls positive: the run's threshold for this model, or else 0, the
            score of probability one half. With findings an array of such scores.
        calibration: The map from scores to probabilities: the run's calibration of this model, or else the sigmoid.
            With findings such a map for each finding.
        chosen_entries: The entries of result.json about this model: of each finding, or of the single label.
        sample_format: The form of the run's samples.
        preprocessing: The preprocessing of the run's table. None: the run was not trained on a table.
        network: The network, which maps features to scores.
        baseline: The map from scores to survival, if rows have times. None: the scores have no probabilities.

    Raises:
        ConfigError, DataError, ModelError: See `load`.
    """

    def __init__(self, run: str | Path, model: str = "", *, allow_unseen: bool = False) -> None:
        self.run = run
        self.model = model
        self.allow_unseen = allow_unseen
        path = Path(run).expanduser()
        self.record: RunRecord = read_run(path)
        self.config = read_config(self.record)
        self.numeric, self.timed = self.config.data.has_numbers, self.config.data.has_times
        self.findings = self.config.data.findings
        self.exclusive = self.config.training.loss == SOFTMAX
        if not (self.numeric or self.timed):
            self.classes_ = np.array(self.findings or [0, 1])
        self.chosen, self.file = choose_file(path, model)
        self.sample_format = SampleFormat.from_json(self.record.result.get("samples"))
        self.preprocessing = read_preprocessing(path / "columns.json")
        self.network = read_network(self.file, self.config, self.sample_format.shape)
        self.selected = self.record.result.get("selected") if self.chosen.startswith(BEST) else None
        self.server_round: int = (self.selected or {}).get("round", self.record.result["rounds"])
        result = self.record.result
        self.is_left = self.chosen == (BEST if "selected" in result else LAST)
        of_findings = result.get("findings", {}) if self.findings else {}
        entries = [of_findings.get(name, {}) for name in self.findings] if self.findings else [result]
        self.chosen_entries: list[dict[str, Any]] = entries if self.is_left else [{} for _ in entries]
        thresholds = [float(entry.get("threshold", {"score": 0})["score"]) for entry in self.chosen_entries]
        calibrations = [read_calibration(entry.get("calibration")) for entry in self.chosen_entries]
        self.threshold: float | NDArray[np.float64] = np.array(thresholds) if self.findings else thresholds[0]
        self.calibration: Calibration | Calibrations = (
            Calibrations(tuple(calibrations)) if self.findings else calibrations[0]
        )
        self.baseline: Baseline | None = None
        if self.timed and self.preprocessing is not None:
            of_last = result if self.server_round == result["rounds"] else {}  # the baseline of Cox is of this round
            hazards = read_hazards(self.file)
            self.baseline = read_baseline(self.config.training.loss, self.preprocessing.time_borders, hazards, of_last)

    def __getstate__(self) -> dict[str, Any]:
        state = dict(super().__getstate__())
        del state["config"]  # the config refers to classes that pickle cannot find
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self.config = parse_run_config(self.record.config)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        if self.numeric or self.timed:
            tags.estimator_type, tags.classifier_tags, tags.regressor_tags = "regressor", None, RegressorTags()
        return tags

    def fit(self, table: Any, labels: Any = None) -> TrainedModel:
        """Raise TypeError, since the run has already trained the model.

        Raises:
            TypeError: Always.
        """
        raise TypeError(f"{type(self).__name__} is already fitted; train another model with `florilegium run`")

    def decision_function(self, table: pd.DataFrame | NDArray[Any] | ImageRows) -> NDArray[Any]:
        """Return the raw scores, with the offsets of the run's ``offset-column``.

        Args:
            table: The rows, see the class.

        Returns:
            The (n,) or (n, findings) logits, in the run's number type. A larger score means a more likely positive, a
            larger mean if labels are numbers, or an earlier event if rows have times.

        Raises:
            DataError: The rows do not have the form of the training rows. The message names the column.
        """
        return self.scores_of(self.features(table), self.offsets(table))

    def scores_of(self, features: NDArray[np.float32] | ImageRows, offsets: NDArray[np.float64] | None) -> NDArray[Any]:
        """Return the raw scores.

        Args:
            features: The (n, \\*shape) output of `features`.
            offsets: The output of `offsets`.

        Returns:
            The logits, see `decision_function`.
        """
        if not isinstance(features, ImageRows):
            # a writable array, since PyTorch warns about read-only arrays
            features = np.require(features, requirements=["C", "W"])
        tensor = as_tensor(features, torch.float32, "cpu")
        scores: NDArray[Any] = self.network.predict(tensor).cpu().numpy()
        return scores if offsets is None else (scores + offsets).astype(scores.dtype)

    def offsets(self, table: pd.DataFrame | NDArray[Any] | ImageRows) -> NDArray[np.float64] | None:
        """Return the offsets of rows (n,); None if the run has no ``offset-column``.

        Args:
            table: The rows, see the class.

        Raises:
            DataError: The offset's column is missing, or has cells that are not finite numbers.
        """
        if self.preprocessing is None or not self.preprocessing.offset_column:
            return None
        return self.preprocessing.offsets(cast("pd.DataFrame", table))

    def predict_proba(self, table: pd.DataFrame | NDArray[Any]) -> NDArray[np.float64]:
        """Return probabilities: the scores mapped by the run's calibration or, without a calibration, by the sigmoid.

        The sigmoid of a score is a probability only if the run's loss is, for example, the cross-entropy.

        Args:
            table: The rows, see the class.

        Returns:
            The (n, 2) probabilities of label 0 and label 1, or the (n, findings) probabilities of the findings.

        Raises:
            ConfigError: The labels are numbers, or rows have times.
            DataError: See `decision_function`.
        """
        if self.numeric or self.timed:
            got, hint = "a run with label-type 'number'", "use predict, which returns means"
            if self.timed:
                got, hint = "a run whose rows have times", "use predict_survival"
            raise ConfigError("predict_proba", got=got, allowed="a run whose labels are classes", hint=hint)
        positive = self.calibration(self.decision_function(table))
        return positive if self.findings else np.stack((1 - positive, positive), axis=1)

    def predict(self, table: pd.DataFrame | NDArray[Any]) -> NDArray[Any]:
        """Return 1 for scores of at least `threshold`, else 0. With the loss "softmax": the most probable class.

        If the labels are numbers: their predicted means. If rows have times: the risk scores.

        Args:
            table: The rows, see the class.

        Returns:
            The (n,) labels 0 and 1, names of classes, means, or risk scores; or the (n, findings) findings 0 and 1.

        Raises:
            DataError: See `decision_function`.
        """
        scores = self.decision_function(table).astype(np.float64)
        if self.timed:
            return scores
        if self.exclusive:
            return self.most_probable(scores)
        return self.means(scores) if self.numeric else (scores >= self.threshold).astype(np.int64)

    def predict_survival(self, table: pd.DataFrame | NDArray[Any], times: Sequence[float]) -> NDArray[np.float64]:
        """Return the probability that each row has no event until each time.

        The survival changes at the borders of the run's intervals only: a time between two borders has the survival
        until the first of them.

        Args:
            table: The rows, see the class.
            times: The times (t,), in the unit of the run's ``time-column``.

        Returns:
            The (n, t) probabilities.

        Raises:
            ConfigError: Rows of the run have no times, or its scores have no probabilities.
            DataError: A time is below 0, or after the last border. Or see `decision_function`.
        """
        return survive(need_baseline(self), self.decision_function(table).astype(np.float64), times)

    def most_probable(self, scores: NDArray[Any]) -> NDArray[np.str_]:
        """Return the names of the classes (n,) with the largest of the scores (n, classes)."""
        names: NDArray[np.str_] = np.array(self.findings)[scores.argmax(axis=1)]
        return names

    def means(self, scores: NDArray[Any]) -> NDArray[np.float64]:
        """Return the predicted means of the labels (n,) for scores (n,), if the labels are numbers."""
        return means(self.config.training.loss, scores.astype(np.float64))

    def score(self, table: Any, labels: Any, sample_weight: Any = None) -> float:
        """Return the accuracy of `predict` or, if the labels are numbers, R^2; see scikit-learn.

        Raises:
            ConfigError: Rows have times, so labels alone are not enough.
        """
        if self.timed:
            got, hint = "a run whose rows have times", "use the command evaluate, which measures the concordance"
            raise ConfigError("score", got=got, allowed="a run without times", hint=hint)
        measure = r2_score if self.numeric else accuracy_score
        return float(measure(labels, self.predict(table), sample_weight=sample_weight))

    def features(self, table: pd.DataFrame | NDArray[Any] | ImageRows) -> NDArray[np.float32] | ImageRows:
        """Return the network's input for rows, and log the numbers of cells with texts unknown to the model.

        Args:
            table: The rows, see the class.

        Returns:
            The (n, \\*shape) features.

        Raises:
            DataError: See `decision_function`. Or the model has seen no value of some column in training.
        """
        import pandas as pd

        if self.preprocessing is None:
            if isinstance(table, pd.DataFrame):
                got, allowed = "a table", f"(n, {', '.join(map(str, self.sample_format.shape))}) arrays"
                raise DataError("rows", got=got, allowed=allowed, hint=f"the run had no table, {PAGE}")
            return self.sample_format.scale(table if isinstance(table, ImageRows) else np.asarray(table))
        if not isinstance(table, pd.DataFrame):
            got, allowed = type(table).__name__, "a pandas DataFrame with the raw columns"
            raise DataError("rows", got=got, allowed=allowed, hint=f"the run was trained on a table, {PAGE}")
        features = self.preprocessing.features(table)
        unseen = find_unseen(self.preprocessing, table, base_codes(self.config.data.dataset))
        refusals = [column.refusal(_ALLOW) for column in unseen if column.is_whole]
        if refusals and not self.allow_unseen:
            raise DataError.join(refusals)
        for column in unseen:
            _log.warning("%s", column.describe(quote=True))
        return features

    @property
    def horizon(self) -> float:
        """The border until which events are predicted, if rows have times: of ``horizon``, or the middle border."""
        assert self.preprocessing is not None
        borders = self.preprocessing.time_borders
        return borders[min(find_horizon(self.preprocessing, self.config.evaluation.horizon), len(borders) - 1)]

    @property
    def label_column(self) -> str:
        """The table's column with the labels."""
        own = "" if self.preprocessing is None else self.preprocessing.label_column
        return own or self.config.data.labels_in

    @cached_property
    def feature_names_in_(self) -> NDArray[Any]:
        """The required raw columns, in order. The attribute exists only if the run was trained on a table."""
        if self.preprocessing is None:
            raise AttributeError("feature_names_in_: the run was not trained on a table")
        return np.array(self.preprocessing.columns, dtype=object)
