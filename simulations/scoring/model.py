"""The trained model of a finished run, as a scikit-learn classifier.

`load` reads the model from a run directory: ``load("runs/a").predict_proba(table)[:, 1]``.
"""

from __future__ import annotations

import json
import logging
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import load_file
from sklearn.base import BaseEstimator, ClassifierMixin

from apps.config import ConfigError, RunConfig, parse_run_config
from apps.sites.resources import dtype_of, is_problem
from problems.calibration import Calibration, read_calibration
from problems.data import DataError, SampleFormat
from problems.data.formats.uci import base_codes
from problems.data.preprocessing import Preprocessing
from problems.data.unseen import find_unseen
from problems.errors import did_you_mean
from problems.minimax import SADDLES
from problems.models import FlatModel, build_model
from problems.models.networks import SADDLE_NAMES
from simulations.results.records import RunRecord, read_run

if TYPE_CHECKING:
    import pandas as pd

LAST, BEST = "last", "best"
SCORE, PROBABILITY = "score", "probability"  # columns of a table of scores, and outputs of an exported model
PREDICTED = "predicted"  # a column of a table of scores, with a threshold
_PAGE = "see docs/scoring.md"
_ALLOW = "set --allow-unseen (in Python allow_unseen=True) to score the rows without this column"
_PREFIX = "model_"  # the prefix of the files of all models except the last round's

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
        >>> from simulations.engines.launch import run
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

    If the run was trained on a table, rows are a pandas DataFrame with the raw columns. Otherwise rows are an array
    (n, \\*shape) of raw features, in which pixels are bytes or numbers in [0, 1]. `fit` raises an error.

    Args:
        run: The run directory.
        model: The name of the model, see `load`.
        allow_unseen: Whether to score rows even if the model has seen no value of some column in training.

    Attributes:
        classes_: 0 and 1.
        record: The content of the run directory.
        config: The run config.
        file: The file of the weights.
        chosen: The name of the model, such as "best" or "last".
        selected: The metric and the round of the selection. None: the model was not selected.
        server_round: The model's round.
        is_left: Whether the final metrics in result.json belong to this model.
        threshold: The minimum score that `predict` calls positive: the run's threshold for this model, or else 0, the
            score of probability one half.
        calibration: The map from scores to probabilities: the run's calibration of this model, or else the sigmoid.
        sample_format: The form of the run's samples.
        preprocessing: The preprocessing of the run's table. None: the run was not trained on a table.
        network: The network, which maps features to scores.

    Raises:
        ConfigError, DataError, ModelError: See `load`.
    """

    def __init__(self, run: str | Path, model: str = "", *, allow_unseen: bool = False) -> None:
        self.run = run
        self.model = model
        self.allow_unseen = allow_unseen
        path = Path(run).expanduser()
        self.classes_ = np.array([0, 1])
        self.record: RunRecord = read_run(path)
        self.config = _config_of(self.record)
        self.chosen, self.file = _choose_file(path, model)
        self.sample_format = SampleFormat.from_json(self.record.result.get("samples"))
        self.preprocessing = _read_preprocessing(path / "columns.json")
        self.network = _read_network(self.file, self.config, self.sample_format.shape)
        self.selected = self.record.result.get("selected") if self.chosen.startswith(BEST) else None
        self.server_round: int = (self.selected or {}).get("round", self.record.result["rounds"])
        result = self.record.result
        self.is_left = self.chosen == (BEST if "selected" in result else LAST)
        self.threshold = float(result["threshold"]["score"]) if self.is_left and "threshold" in result else 0.0
        self.calibration: Calibration = read_calibration(result.get("calibration") if self.is_left else None)

    def __getstate__(self) -> dict[str, Any]:
        state = dict(super().__getstate__())
        del state["config"]  # the config refers to classes that pickle cannot find
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self.config = parse_run_config(self.record.config)

    def fit(self, table: Any, labels: Any = None) -> TrainedModel:
        """Raise TypeError, since the run has already trained the model.

        Raises:
            TypeError: Always.
        """
        raise TypeError(f"{type(self).__name__} is already fitted; train another model with `florilegium run`")

    def decision_function(self, table: pd.DataFrame | NDArray[Any]) -> NDArray[Any]:
        """Return the raw scores.

        Args:
            table: The rows, see the class.

        Returns:
            The (n,) logits, in the number type of the run. A larger score means a more likely positive.

        Raises:
            DataError: The rows do not have the form of the training rows. The message names the column.
        """
        # a writable array, since PyTorch warns about read-only arrays
        features = np.require(self.features(table), requirements=["C", "W"])
        return self.network.predict(torch.from_numpy(features)).cpu().numpy()

    def predict_proba(self, table: pd.DataFrame | NDArray[Any]) -> NDArray[np.float64]:
        """Return probabilities: the scores mapped by the run's calibration or, without a calibration, by the sigmoid.

        The sigmoid of a score is a probability only if the run's loss is, for example, the cross-entropy.

        Args:
            table: The rows, see the class.

        Returns:
            The (n, 2) probabilities of label 0 and label 1.

        Raises:
            DataError: See `decision_function`.
        """
        return self.probabilities(self.decision_function(table))

    def probabilities(self, scores: NDArray[Any]) -> NDArray[np.float64]:
        """Return the probabilities (n, 2) of label 0 and of label 1 for scores (n,)."""
        positive = self.calibration(scores)
        return np.stack((1 - positive, positive), axis=1)

    def predict(self, table: pd.DataFrame | NDArray[Any]) -> NDArray[np.int64]:
        """Return 1 for scores of at least `threshold`, else 0.

        Args:
            table: The rows, see the class.

        Returns:
            The (n,) labels 0 and 1.

        Raises:
            DataError: See `decision_function`.
        """
        return (self.decision_function(table).astype(np.float64) >= self.threshold).astype(np.int64)

    def features(self, table: pd.DataFrame | NDArray[Any]) -> NDArray[np.float32]:
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
                raise DataError("rows", got=got, allowed=allowed, hint=f"the run had no table, {_PAGE}")
            return self.sample_format.scale(np.asarray(table))
        if not isinstance(table, pd.DataFrame):
            got, allowed = type(table).__name__, "a pandas DataFrame with the raw columns"
            raise DataError("rows", got=got, allowed=allowed, hint=f"the run was trained on a table, {_PAGE}")
        features = self.preprocessing.features(table)
        unseen = find_unseen(self.preprocessing, table, base_codes(self.config.data.dataset))
        refusals = [column.refusal(_ALLOW) for column in unseen if column.is_whole]
        if refusals and not self.allow_unseen:
            raise DataError.join(refusals)
        for column in unseen:
            _log.warning("%s", column.describe(quote=True))
        return features

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


def _config_of(record: RunRecord) -> RunConfig:
    """Return the config of a run, which must have finished and have trained a network.

    Raises:
        ConfigError: The run has no network, or has not finished.
    """
    path = str(record.path)
    if not record.result:
        reason = f"a run that is {record.status}" + f" ({record.reason})" * bool(record.reason)
        raise ConfigError(path, got=reason, allowed="a finished run", hint="let the run finish, or resume it")
    config = parse_run_config(record.config)
    allowed = "a run of a horizontal strategy that trains a network"
    if not config.algorithm.strategy.shares_model:
        got = f"a run of strategy {config.run.strategy!r}, whose parties each have a part of the model"
        raise ConfigError(path, got=got, allowed=allowed, hint="see docs/vertical-scoring.md")
    if not config.algorithm.strategy.trains:
        got = f"a run of strategy {config.run.strategy!r}, which trains no model"
        raise ConfigError(path, got=got, allowed=allowed, hint="train a model with another strategy")
    if is_problem(config):
        got = f"a run of the minimax problem {config.training.loss!r}, which has no network"
        raise ConfigError(path, got=got, allowed=allowed, hint=_PAGE)
    if "samples" not in record.result:
        got = "a run of release 0.1.0, which did not record the form of its samples"
        raise ConfigError(path, got=got, allowed="a run of a later release", hint="repeat the run")
    return config


def _choose_file(path: Path, model: str) -> tuple[str, Path]:
    """Return the name of a model of the run, and its file."""
    files = {LAST: path / "model.safetensors"} if (path / "model.safetensors").is_file() else {}
    files |= {file.stem.removeprefix(_PREFIX): file for file in sorted(path.glob(f"{_PREFIX}*.safetensors"))}
    if not files:
        raise ConfigError(path, got="no model.safetensors", allowed="a model file", hint="copy the whole run directory")
    name = model or (BEST if BEST in files else LAST)
    if name not in files:
        allowed = f"a model of this run: {', '.join(files)}"
        raise ConfigError("--model", got=repr(name), allowed=allowed, hint=did_you_mean(name, files, _PAGE))
    return name, files[name]


def _read_preprocessing(path: Path) -> Preprocessing | None:
    if not path.exists():
        return None
    try:
        value = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        got, allowed = f"an unreadable file ({error})", "JSON"
        raise DataError(path, got=got, allowed=allowed, hint="copy the file from the run again") from None
    return Preprocessing.from_json(value)


def _read_network(path: Path, config: RunConfig, shape: tuple[int, ...]) -> FlatModel:
    """Return the network with the weights of a file, on a GPU if there is one and the run's ``device`` is not "cpu"."""
    dtype = dtype_of(config.training)
    module = build_model(config.run.model, shape, config.training.seed).to(dtype)
    try:
        weights = load_file(path)
        if config.training.loss in SADDLES:
            weights = {name: value for name, value in weights.items() if name not in SADDLE_NAMES}
        module.load_state_dict(weights)
    except (OSError, SafetensorError, RuntimeError) as error:
        got = f"weights that do not fit model {config.run.model!r} ({' '.join(str(error).split())})"
        allowed = "the weights of this network"
        raise DataError(path, got=got, allowed=allowed, hint="use the model's code and file from the run") from None
    on_gpu = config.training.device != "cpu" and torch.cuda.is_available()
    return FlatModel(module, dtype=dtype, device="cuda" if on_gpu else "cpu")
