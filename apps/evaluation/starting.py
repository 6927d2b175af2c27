"""The starting point of a run: the seeded initial weights, or the weights of a model file."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor

from apps.run_config.algorithm import Evaluator, RunConfig
from apps.run_config.settings import ConfigError
from payloads.record import FloatArray
from problems.models.networks import SADDLE_NAMES

KEY = "init-from"
_PAGE = "see docs/configuration.md"


def starting_point(config: RunConfig, evaluator: Evaluator) -> list[FloatArray]:
    """Return the initial model of a new run, as flat arrays.

    The scalars a, b and lambda of the minimax AUC loss are not part of the network. If the file lacks these scalars,
    they start at their defaults. If the run's loss does not have them, the file's scalars are ignored.

    Args:
        config: The run config. ``init-from`` names the file, or is empty.
        evaluator: The run's evaluator.

    Raises:
        ConfigError: The file cannot be read, has other names or shapes than the model, or has values that are not
            finite.
    """
    file = config.run.init_from
    if not file:
        return evaluator.start()
    tensors = _read(file)
    expected = {name: tuple(value.shape) for name, value in evaluator.name_arrays(evaluator.start()).items()}
    tensors = {name: value for name, value in tensors.items() if name in expected or name not in SADDLE_NAMES}
    if differing := _differences(expected, tensors):
        got, allowed = f"{file}, which {differing}", f"the names and shapes of model {config.run.model!r} in this run"
        raise ConfigError(
            KEY, got=got, allowed=allowed, hint="set model and the columns as in the run that wrote this file"
        )
    for name, value in tensors.items():
        if not value.isfinite().all():
            got = f"{file}, whose {name!r} is not finite"
            raise ConfigError(KEY, got=got, allowed="finite numbers", hint=f"set {KEY} to another file")
    return evaluator.start_from(tensors)


def _read(file: str) -> dict[str, Tensor]:
    path = Path(file).expanduser()
    if not path.is_absolute():
        got, allowed = f"{file!r}, which is relative", "an absolute path, since an app runs in another folder"
        raise ConfigError(KEY, got=got, allowed=allowed, hint=f"set {KEY} to the absolute path")
    try:
        with safe_open(path, framework="pt") as content:
            return {name: content.get_tensor(name) for name in content.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        allowed = "a complete safetensors file that the server can read, such as a run's model.safetensors"
        raise ConfigError(KEY, got=f"{file} ({error})", allowed=allowed, hint=_PAGE) from None


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
