"""The starting point of a run: seeded initial weights, the weights of a model file, or published weights."""

import math
from collections.abc import Callable, Mapping
from hashlib import sha256
from logging import INFO, WARNING
from pathlib import Path
from typing import Any

import torch
from flwr.common import log
from safetensors import SafetensorError, safe_open
from torch import Tensor

from apps.run_config.algorithm import Evaluator, RunConfig
from apps.run_config.settings import ConfigError
from payloads.record import FloatArray
from problems.errors import join_first
from problems.importing import first_line
from problems.models.networks import BASELINE, SADDLE_NAMES
from problems.models.published import find_weights, fit_weights

KEY = "init-from"
WEIGHTS = "weights"
# the wrapper's variables, which are not a part of the network
_WRAPPERS = (*SADDLE_NAMES, BASELINE)
_PAGE = "see docs/configuration.md"
_NETWORKS = "see docs/networks.md"
_SHOWN = 10  # names in a line of the log

Save = Callable[[dict[str, Any]], None]


def starting_point(config: RunConfig, evaluator: Evaluator, save: Save | None = None) -> list[FloatArray]:
    """Return the initial model of a new run, as flat arrays.

    The scalars a, b and lambda of the minimax AUC loss are not part of the network. If the file lacks these scalars,
    they start at their defaults. If the run's loss does not have them, the file's scalars are ignored.

    Args:
        config: The run config. ``init-from`` or ``weights`` names the file, or both are empty.
        evaluator: The run's evaluator.
        save: The function that stores a description of the published weights that the model starts from.

    Raises:
        ConfigError: The file cannot be read, or has values that are not finite. A file of ``init-from`` has other names
            or shapes than the model, or no entry of a file of ``weights`` fits.
    """
    if config.run.weights:
        return _start_from_published(config, evaluator, save)
    file = config.run.init_from
    if not file:
        return evaluator.start()
    tensors = _read(KEY, file)
    expected = {name: tuple(value.shape) for name, value in evaluator.name_arrays(evaluator.start()).items()}
    tensors = {name: value for name, value in tensors.items() if name in expected or name not in SADDLE_NAMES}
    if differing := _differences(expected, tensors):
        got, allowed = f"{file}, which {differing}", f"the names and shapes of model {config.run.model!r} in this run"
        raise ConfigError(
            KEY, got=got, allowed=allowed, hint="set model and the columns as in the run that wrote this file"
        )
    _check_finite(KEY, file, tensors)
    return evaluator.start_from(tensors)


def _start_from_published(config: RunConfig, evaluator: Evaluator, save: Save | None) -> list[FloatArray]:
    """Return the initial model with the entries of a file of published weights that fit. Log and store which."""
    file, start = config.run.weights, evaluator.name_arrays(evaluator.start())
    expected = {
        name: tuple(value.shape) for name, value in start.items() if value.dtype.kind == "f" and name not in _WRAPPERS
    }
    tensors = find_weights(_read_published(file))
    fit = fit_weights(tensors, expected)
    if not fit.tensors:
        got = f"{file}, whose {len(tensors)} weights do not fit ({join_first(list(tensors), 3)})"
        allowed = f"weights of {config.run.model!r}, such as {join_first(list(expected), 3)}"
        raise ConfigError(WEIGHTS, got=got, allowed=allowed, hint="set model to the network of the file")
    _check_finite(WEIGHTS, file, fit.tensors)
    numbers = sum(value.numel() for value in fit.tensors.values()), sum(map(math.prod, expected.values()))
    text = "weights: %d of %d entries (%d of %d numbers) are from %s"
    log(INFO, text, len(fit.tensors), len(expected), *numbers, file)
    for names, place in ((fit.random, "start at random"), (fit.summed, "are sums over the file's three colours")):
        if names:
            log(INFO, "weights: %d entries %s: %s", len(names), place, join_first(names, _SHOWN))
    if fit.unused:
        shown = join_first([f"{name} {shape}" for name, shape in fit.unused.items()], _SHOWN)
        log(INFO, "weights: %d entries of the file do not fit: %s", len(fit.unused), shown)
    if stuck := [name for name in fit.random if name in evaluator.frozen]:
        log(WARNING, "weights: %d frozen entries stay at random: %s", len(stuck), join_first(stuck, _SHOWN))
    if save is not None:
        entries = {"fitted": list(fit.tensors), "random": fit.random, "summed": fit.summed, "unused": list(fit.unused)}
        save({"file": file, "sha256": sha256(Path(file).expanduser().read_bytes()).hexdigest(), **entries})
    return evaluator.start_from(fit.tensors)


def _check_finite(key: str, file: str, tensors: Mapping[str, Tensor]) -> None:
    for name, value in tensors.items():
        if not value.isfinite().all():
            got = f"{file}, whose {name!r} is not finite"
            raise ConfigError(key, got=got, allowed="finite numbers", hint=f"set {key} to another file")


def _read_published(file: str) -> Any:
    """Return the content of a file of safetensors, or of a file that ``torch.save`` wrote, without running its code."""
    if file.endswith(".safetensors"):
        return _read(WEIGHTS, file)
    path = _absolute(WEIGHTS, file)
    allowed = "a .safetensors, .pth or .pt file"
    if path.suffix not in (".pth", ".pt"):
        raise ConfigError(WEIGHTS, got=file, allowed=allowed, hint=_NETWORKS)
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # its readers raise a dozen types
        allowed += " that the server can read, with tensors and plain values only"
        hint = "save the network's state_dict() again, as safetensors"
        raise ConfigError(WEIGHTS, got=f"{file} ({first_line(error)})", allowed=allowed, hint=hint) from None


def _absolute(key: str, file: str) -> Path:
    path = Path(file).expanduser()
    if not path.is_absolute():
        got, allowed = f"{file!r}, which is relative", "an absolute path, since an app runs in another folder"
        raise ConfigError(key, got=got, allowed=allowed, hint=f"set {key} to the absolute path")
    return path


def _read(key: str, file: str) -> dict[str, Tensor]:
    path = _absolute(key, file)
    try:
        with safe_open(path, framework="pt") as content:
            return {name: content.get_tensor(name) for name in content.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        allowed = "a complete safetensors file that the server can read, such as a run's model.safetensors"
        raise ConfigError(key, got=f"{file} ({error})", allowed=allowed, hint=_PAGE) from None


def _differences(expected: Mapping[str, tuple[int, ...]], tensors: Mapping[str, Any]) -> str:
    """Describe how the names and shapes of a file differ from a model's. "" without differences."""

    def shorten(names: list[str]) -> str:
        return ", ".join(map(repr, names[:5])) + (f" and {len(names) - 5} more" if len(names) > 5 else "")

    lacking = [name for name in expected if name not in tensors and name not in SADDLE_NAMES]
    more = [name for name in tensors if name not in expected]
    shapes = {name: tuple(tensors[name].shape) for name in expected if name in tensors}
    wrong = [f"{name!r} of {shape}, not {expected[name]}" for name, shape in shapes.items() if shape != expected[name]]
    parts = [f"lacks {shorten(lacking)}"] if lacking else []
    parts += [f"has {shorten(more)} in addition"] if more else []
    parts += [f"has {', '.join(wrong[:3])}"] if wrong else []
    return "; ".join(parts)
