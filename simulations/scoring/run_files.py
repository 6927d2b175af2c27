"""The files of a finished run from which a trained model is read: its config, weights and preprocessing."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import load_file

from apps.config import ConfigError, RunConfig, parse_run_config
from apps.run_config.settings import LOCAL_NORMS
from apps.sites.resources import dtype_of, is_problem
from problems.data import DataError
from problems.data.preprocessing import Preprocessing
from problems.errors import did_you_mean
from problems.minimax import SADDLES
from problems.models import FlatModel, build_model
from problems.models.networks import BASELINE, SADDLE_NAMES
from problems.objectives.classification import SOFTMAX
from simulations.results.records import RunRecord

LAST, BEST = "last", "best"
PAGE = "see docs/scoring.md"
_PREFIX = "model_"  # the prefix of the files of all models except the last round's


def read_config(record: RunRecord) -> RunConfig:
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
        raise ConfigError(path, got=got, allowed=allowed, hint=PAGE)
    if "samples" not in record.result:
        got = "a run of release 0.1.0, which did not record the form of its samples"
        raise ConfigError(path, got=got, allowed="a run of a later release", hint="repeat the run")
    return config


def choose_file(path: Path, model: str) -> tuple[str, Path]:
    """Return the name of a model of the run, and its file.

    Args:
        path: The run directory.
        model: The name of the model, see `simulations.scoring.model.load`.

    Raises:
        ConfigError: The model does not exist.
    """
    files = {LAST: path / "model.safetensors"} if (path / "model.safetensors").is_file() else {}
    files |= {file.stem.removeprefix(_PREFIX): file for file in sorted(path.glob(f"{_PREFIX}*.safetensors"))}
    if not files:
        raise ConfigError(path, got="no model.safetensors", allowed="a model file", hint="copy the whole run directory")
    name = model or (BEST if BEST in files else LAST)
    if name not in files:
        allowed = f"a model of this run: {', '.join(files)}"
        raise ConfigError("--model", got=repr(name), allowed=allowed, hint=did_you_mean(name, files, PAGE))
    return name, files[name]


def read_preprocessing(path: Path) -> Preprocessing | None:
    """Return the preprocessing in columns.json. None: the run was not trained on a table.

    Raises:
        DataError: The file is damaged.
    """
    if not path.exists():
        return None
    try:
        value = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        got, allowed = f"an unreadable file ({error})", "JSON"
        raise DataError(path, got=got, allowed=allowed, hint="copy the file from the run again") from None
    return Preprocessing.from_json(value)


def read_hazards(path: Path) -> NDArray[np.float64] | None:
    """Return the baselines of hazards in a file of weights. None: the file has none.

    Args:
        path: The file, which `read_network` has read.
    """
    found = load_file(path).get(BASELINE)
    return None if found is None else found.double().numpy()


def read_network(path: Path, config: RunConfig, shape: tuple[int, ...]) -> FlatModel:
    """Return the network with the weights of a file, on a GPU if there is one and the run's ``device`` is not "cpu".

    Args:
        path: The file of the weights.
        config: The run config.
        shape: The shape of a sample.

    Raises:
        DataError: The weights do not fit the network.
        ModelError: The network cannot be built.
    """
    dtype = dtype_of(config.training)
    outputs, exclusive = config.data.num_labels, config.training.loss == SOFTMAX
    module = build_model(config.run.model, shape, config.training.seed, outputs, exclusive=exclusive).to(dtype)
    try:
        weights = load_file(path)
        further = {*(SADDLE_NAMES if config.training.loss in SADDLES else ()), BASELINE}
        weights = {name: value for name, value in weights.items() if name not in further}
        module.load_state_dict(weights)
    except (OSError, SafetensorError, RuntimeError) as error:
        got = f"weights that do not fit model {config.run.model!r} ({' '.join(str(error).split())})"
        allowed, hint = "the weights of this network", "use the model's code and file from the run"
        if config.run.batch_norm == LOCAL_NORMS:
            hint = "replace the file by a site's own model, see docs/networks.md"
        raise DataError(path, got=got, allowed=allowed, hint=hint) from None
    on_gpu = config.training.device != "cpu" and torch.cuda.is_available()
    return FlatModel(module, dtype=dtype, device="cuda" if on_gpu else "cpu", outputs=outputs)
