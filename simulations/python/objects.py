"""Python objects as the data and the network of a run, under names that a run config can contain.

Tables go through a parquet file in a temporary folder, so all rules of tables (docs/data.md) apply to them:
categories, missing cells, scaling. Other objects stay in this process.
"""

from __future__ import annotations

import copy
import importlib
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from apps.config import ConfigError, Scalar

if TYPE_CHECKING:
    import pandas as pd

LABEL, SITE = "label", "site"
"""The names of columns that the objects do not name."""
_FORMS = "a DataFrame, (X, y), a torch Dataset, a dict of tables by site, a function, or a name"
_numbers = count()


@contextmanager
def place_objects(
    dataset: Any, model: Any, partition: Any = None, metrics: Sequence[Any] = ()
) -> Iterator[dict[str, Scalar]]:
    """Yield the run-config keys that refer to objects, as long as the context is open.

    Args:
        dataset: The data, see `simulations.python.runs.run`. None: no key.
        model: The network, see `simulations.python.runs.run`. None: no key.
        partition: The partition, a function or a name. None: no key.
        metrics: Further metrics, functions or names.

    Raises:
        ConfigError: An object has another type, or its columns do not fit.
    """
    with tempfile.TemporaryDirectory(prefix="florilegium-") as folder:
        keys: dict[str, Scalar] = {} if model is None else {"model": _name_model(model)}
        if partition is not None:
            keys["partition"] = partition if isinstance(partition, str) else _name_function(partition)
        if metrics:
            keys["metrics"] = ", ".join(own if isinstance(own, str) else _name_function(own) for own in metrics)
        yield keys | ({} if dataset is None else _name_data(dataset, Path(folder)))


def _name_data(data: Any, folder: Path) -> dict[str, Scalar]:
    import pandas as pd

    if isinstance(data, str):
        return {"dataset": data}
    sites: dict[str, Scalar] = {}
    table: tuple[pd.DataFrame, str] | None
    if isinstance(data, Mapping):
        given = {str(name): _as_table(table) for name, table in data.items()}
        tables = {name: table for name, table in given.items() if table is not None and SITE not in table[0]}
        if not tables or len(tables) < len(data):
            allowed = f"one DataFrame or (X, y) with rows for each site, without a column {SITE!r}"
            raise ConfigError("dataset", got="another dict", allowed=allowed, hint="give each site a table")
        frames = [frame.assign(**{SITE: name}) for name, (frame, _) in tables.items()]
        _, label = next(iter(tables.values()))
        table, sites = (pd.concat(frames), label), {"site-column": SITE, "partition": "natural"}
    else:
        table = _as_table(data)
    if table is not None:
        frame, label = table
        path = folder / "table.parquet"
        try:
            frame.to_parquet(path, index=False)
        except (ValueError, TypeError) as error:  # pyarrow's errors are of these types
            words = str(error).partition("\n")[0]
            allowed = "columns with one type of cells"
            raise ConfigError("dataset", got=words, allowed=allowed, hint="convert the column") from error
        named: dict[str, Scalar] = {"label-column": label} if label else {}
        return {"dataset": "parquet", "data-dir": str(path), **named, **sites}
    if callable(data):
        return {"dataset": _name_function(data)}
    if hasattr(data, "__getitem__") and hasattr(data, "__len__"):
        return {"dataset": _keep(lambda: data)}
    raise ConfigError("dataset", got=f"a {type(data).__name__}", allowed=_FORMS, hint="convert the data")


def _as_table(data: Any) -> tuple[pd.DataFrame, str] | None:
    """Return a table and its label column, "" if unnamed. None: the data are not a table."""
    import pandas as pd

    if isinstance(data, pd.DataFrame):
        return data, ""
    if not (isinstance(data, tuple) and len(data) == 2):
        return None
    features, labels = data
    if not isinstance(features, pd.DataFrame):
        features = np.asarray(features)
        if features.ndim != 2:
            return None
        features = pd.DataFrame(features, columns=[f"x{column}" for column in range(features.shape[1])])
    label = str(getattr(labels, "name", None) or LABEL)
    if label in features or len(features) != len(labels):
        got = f"{len(features)} rows and {len(labels)} labels named {label!r}"
        allowed = "one label for each row, under a name that no column of X has"
        raise ConfigError("dataset", got=got, allowed=allowed, hint="change X or y")
    return features.assign(**{label: np.asarray(labels)}), label


def _name_model(model: Any) -> str:
    from torch import nn

    if isinstance(model, str):
        return model
    if isinstance(model, nn.Module):
        return _keep(lambda input_shape: copy.deepcopy(model))
    if callable(model):
        return _name_function(model)
    got, allowed = f"a {type(model).__name__}", "a torch module, a function of the input shape, or a name"
    raise ConfigError("model", got=got, allowed=allowed, hint="set model")


def _name_function(function: Callable[..., Any]) -> str:
    """Return the function's own path if another process could import it, else a name of this process."""
    module, name = getattr(function, "__module__", ""), getattr(function, "__qualname__", "")
    importable = module and module != "__main__" and name.isidentifier()
    if importable and getattr(importlib.import_module(module), name, None) is function:
        return f"{module}:{name}"
    return _keep(function)


def _keep(value: Callable[..., Any]) -> str:
    """Keep an object for this process, and return its path."""
    name = f"object_{next(_numbers)}"
    globals()[name] = value
    return f"{__name__}:{name}"
