"""Readers of a run directory's files that score rows: the preprocessing and the network's weights."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from apps.config import RunConfig
from apps.sites.resources import dtype_of
from problems.data import DataError
from problems.data.preprocessing import Preprocessing
from problems.minimax import SADDLES
from problems.models import FlatModel, build_model
from problems.models.networks import SADDLE_NAMES


def read_preprocessing(path: Path) -> Preprocessing | None:
    """Return the content of columns.json. None: the file does not exist.

    Args:
        path: The file.

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


def read_network(path: Path, config: RunConfig, shape: tuple[int, ...]) -> FlatModel:
    """Return the network with the weights of a file, on a GPU if there is one and the run's ``device`` is not "cpu".

    Args:
        path: The file.
        config: The run config.
        shape: The shape of a sample's features.

    Raises:
        DataError: The file is damaged, or its weights belong to another network.
    """
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
