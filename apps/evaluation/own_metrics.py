"""Metrics of the user: functions of the labels and scores of test rows, which the server must have."""

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import ArrayLike, NDArray

from apps.evaluation.metric_names import BOOKKEEPING, LOWER, OF_SOME_RUNS, OF_TIMES, SHOWN
from apps.run_config.settings import ConfigError
from problems.importing import import_named, is_dotted
from problems.metrics import binary_metrics

OwnMetric = Callable[[ArrayLike, ArrayLike], float]
_KEY, _HINT = "metrics", "see docs/python.md"
_FORM = "functions package.module:function of labels and scores, separated by commas"


def find_own_metrics(text: str) -> dict[str, OwnMetric]:
    """Return the functions of the key ``metrics`` by their names.

    Args:
        text: The value of the key.

    Raises:
        ConfigError: A function cannot be imported, has no name, or has the name of another metric or of another entry
            of a round's line.
    """

    def refuse(got: str) -> ConfigError:
        return ConfigError(_KEY, got=got, allowed=_FORM, hint=_HINT)

    found: dict[str, OwnMetric] = {}
    for path in filter(None, map(str.strip, text.split(","))):
        if not is_dotted(path):
            raise refuse(repr(path))
        function = import_named(path, refuse)
        name = getattr(function, "__name__", "")
        taken = {*SHOWN, *LOWER, *OF_TIMES, *binary_metrics([0, 1], [0, 1]), *found, "accuracy"}
        if name in BOOKKEEPING | OF_SOME_RUNS:
            raise refuse(f"{path!r} with the name {name!r}, which is an entry of a round's line in metrics.jsonl")
        if not (callable(function) and name.isidentifier() and name not in taken):
            raise refuse(f"{path!r} with the name {name!r}, which is not a new name of a metric")
        found[name] = function
    return found


def measure_own(
    metrics: Mapping[str, OwnMetric], labels: NDArray[np.number], scores: NDArray[np.floating]
) -> dict[str, float]:
    """Return the values of a user's metrics.

    Args:
        metrics: The functions by name.
        labels: The (n,) labels: 0 and 1, classes, or numbers.
        scores: The (n,) scores, before any sigmoid.

    Raises:
        ConfigError: A function fails, or returns another value than a finite number.
    """
    values = {}
    for name, function in metrics.items():
        try:
            value = float(function(labels, scores))
        except Exception as error:  # a user's function may raise anything
            value, fault = float("nan"), f"{name}, which raises {type(error).__name__}: {error}"
        else:
            fault = f"{name}, which returns {value}"
        if not np.isfinite(value):
            raise ConfigError(_KEY, got=fault, allowed="functions that return a finite number", hint=_HINT)
        values[name] = value
    return values
