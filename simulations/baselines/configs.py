"""The flat run config of a reference, made from the federated run's config."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from apps.config import ConfigError, DataSettings, EvaluationSettings, RunConfig, Scalar, flatten
from payloads.settings import UNIFORM, TrainingSettings, kebab
from problems.data.spec import TIMED
from simulations.baselines.rows import Rows

# The key ``dataset`` of a reference's config. The rows exist in memory, and only while the reference is trained.
LOADER = f"{__name__}:rows_of"


def rows_of(data_dir: str) -> tuple[NDArray[np.float32], NDArray[np.int8]]:
    """Raise an error, since the rows of a reference are not in a file.

    Args:
        data_dir: The reference's run directory.

    Raises:
        ConfigError: Always.
    """
    got, hint = f"{data_dir}, a reference whose rows were never saved", "repeat the run with --baselines"
    raise ConfigError("data-dir", got=got, allowed="a folder with data files", hint=hint)


def samples_per_round(config: RunConfig, rows: Rows) -> int:
    """Return the number of samples that a client processes in a round.

    Args:
        config: The run's config.
        rows: The client's rows.
    """
    flat = fit_batches(flatten(config.resolve()), rows)
    own: list[str] = [key for key in ("fedx.positive-batch-size", "fedx.negative-batch-size") if key in flat]
    keys = own or ["batch-size"]
    rows_of_step = sum(int(flat[key]) for key in keys) or len(rows.train)
    draws = len(config.data.findings) if own else 0  # each finding has its own pairs
    return config.training.local_steps * rows_of_step * max(draws, 1)


def fit_batches(flat: Mapping[str, Scalar], rows: Rows) -> dict[str, Scalar]:
    """Return a flat config with batch sizes of at most the number of training rows.

    Args:
        flat: The flat config.
        rows: The client's rows.
    """
    negatives, positives = rows.counts
    largest = {
        "batch-size": len(rows.train),
        "fedx.positive-batch-size": positives,
        "fedx.negative-batch-size": negatives,
    }
    return {**flat, **{key: min(flat[key], max(limit, 1)) for key, limit in largest.items() if key in flat}}


def reference_config(config: RunConfig, folder: Path) -> dict[str, Scalar]:
    """Return the flat config of a reference, in which the caller must set selection, rounds and penalty.

    Args:
        config: The run's config.
        folder: The reference's run directory.
    """
    flat = {key: value for key, value in flatten(config.resolve()).items() if not key.startswith("synthetic.")}
    flat |= {kebab(name): known.default for name, known in DataSettings.model_fields.items()}
    flat |= {kebab(name): known.default for name, known in EvaluationSettings.model_fields.items()}
    flat |= {"dataset": LOADER, "data-dir": str(folder.resolve()), "resume": False, "checkpoint-every": 0}
    flat |= {"pictures": False, "tracking-uri": ""}
    flat |= {"fraction-train": 1.0, "client-sampling": UNIFORM, "min-train-nodes": 0.5}
    flat |= {"privacy.secure-sum": False, "privacy.epsilon": 0.0}
    if config.data.has_times:
        flat |= {"time-column": config.data.time_column or "time", "horizon": config.evaluation.horizon}
        borders = config.data.time_borders or TIMED.get(config.data.dataset, "")
        flat |= {"dataset": "csv", "time-borders": borders}
    flat |= {"label-columns": config.data.label_columns}
    noise = ("fedx.pool-epsilon", "fedx.prediction-noise")
    return flat | {key: 0.0 for key in noise if key in flat}


def minimise_cross_entropy(flat: Mapping[str, Scalar]) -> dict[str, Scalar]:
    """Return a flat config with ``local-sgd``: plain SGD steps on the cross-entropy or, with times, on hazards.

    Args:
        flat: The flat config of a reference.
    """
    changed = {key: value for key, value in flat.items() if "." not in key or key.startswith("privacy.")}
    defaults = ("loss", "score", "learning_rate", "local_optimizer", "clip_gradient", "server_learning_rate")
    changed |= {kebab(name): TrainingSettings.model_fields[name].default for name in defaults}
    return changed | {"strategy": "local-sgd", "strategy-settings": "", "learning-rate": "auto"}
