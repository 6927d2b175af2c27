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
    """Return the flat arrays that a new run starts from.

    The scalars of an AUC saddle belong to the loss, not to the network. If the file lacks them, they start at their
    defaults. If the loss has no such scalars, the file's are ignored.

    Args:
        config: The run config. ``init-from`` names the file, or is empty.
        evaluator: The run's evaluator.

    Raises:
        ConfigError: The file cannot be read, has other names or shapes than the model, or has values that are not
            finite.
    """
    place = config.run.init_from
    if not place:
        return evaluator.start()
    named = _read(place)
    expected = {name: tuple(value.shape) for name, value in evaluator.name_arrays(evaluator.start()).items()}
    named = {name: value for name, value in named.items() if name in expected or name not in SADDLE_NAMES}
    if differing := _differences(expected, named):
        got, allowed = f"{place}, which {differing}", f"the names and shapes of model {config.run.model!r} in this run"
        raise ConfigError(KEY, got=got, allowed=allowed, hint="set model and columns as in that file's run")
    for name, value in named.items():
        if not value.isfinite().all():
            got = f"{place}, whose {name!r} is not finite"
            raise ConfigError(KEY, got=got, allowed="finite numbers", hint=f"set {KEY} to another file")
    return evaluator.start_from(named)


def _read(place: str) -> dict[str, Tensor]:
    path = Path(place).expanduser()
    if not path.is_absolute():
        got, allowed = f"{place!r}, which is relative", "an absolute path, since an app runs in another folder"
        raise ConfigError(KEY, got=got, allowed=allowed, hint=f"set {KEY} to the absolute path")
    try:
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        allowed = "a complete safetensors file that the server can read, such as a run's model.safetensors"
        raise ConfigError(KEY, got=f"{place} ({error})", allowed=allowed, hint=_PAGE) from None


def _differences(expected: Mapping[str, tuple[int, ...]], named: Mapping[str, Any]) -> str:
    """Return the differences between the names and shapes of a file and a model, in words; "" without differences."""

    def shorten(names: list[str]) -> str:
        return ", ".join(map(repr, names[:5])) + (f" and {len(names) - 5} more" if len(names) > 5 else "")

    lacking = [name for name in expected if name not in named and name not in SADDLE_NAMES]
    more = [name for name in named if name not in expected]
    shapes = {name: tuple(named[name].shape) for name in expected if name in named}
    other = [f"{name!r} of {shape}, not {expected[name]}" for name, shape in shapes.items() if shape != expected[name]]
    parts = [f"lacks {shorten(lacking)}"] if lacking else []
    parts += [f"has {shorten(more)} in addition"] if more else []
    parts += [f"has {', '.join(other[:3])}"] if other else []
    return "; ".join(parts)
