"""The table behind "swap strategies with one key": run-config name -> what it starts.

An algorithm is four modules: payload, client, strategy, and in `apps.algorithms` its row. What lies there is found.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping

from apps import algorithms
from apps.algorithms import Algorithm

__all__ = ["ALGORITHMS", "Algorithm", "gathered"]


def rows_of(module: str) -> dict[str, Algorithm]:
    """The ``ROWS`` of a module.

    Raises:
        ValueError: it has none, or something else under that name.
    """
    rows = getattr(importlib.import_module(module), "ROWS", None)
    if not isinstance(rows, dict) or not all(isinstance(row, Algorithm) for row in rows.values()):
        raise ValueError(f"{module}: ROWS must be a dict from a run-config name to an Algorithm, got {rows!r}")
    return rows


def gathered(families: Mapping[str, Mapping[str, Algorithm]]) -> dict[str, Algorithm]:
    """The rows of all families in one table, in their order.

    Args:
        families: module -> its rows.

    Raises:
        ValueError: two modules claim one name, or one run-config table stands for two settings models.
    """
    found: dict[str, Algorithm] = {}
    named: dict[str, str] = {}
    tables: dict[str, tuple[str, Algorithm]] = {}
    for module, rows in families.items():
        for name, row in rows.items():
            if name in named:
                raise ValueError(f"strategy {name!r} has a row in {named[name]} and in {module}; rename one of them")
            where, first = tables.setdefault(row.table, (module, row)) if row.table else (module, row)
            if row.settings is not first.settings:
                raise ValueError(
                    f"table {row.table!r} is {first.settings.__name__} in {where} and {row.settings.__name__} in "
                    f"{module}; rename one of them"
                )
            named[name], found[name] = module, row
    return found


def _families() -> dict[str, dict[str, Algorithm]]:
    """The modules of `apps.algorithms`, in alphabetical order, with their rows."""
    names = sorted(module.name for module in pkgutil.iter_modules(algorithms.__path__, f"{algorithms.__name__}."))
    return {name: rows_of(name) for name in names}


ALGORITHMS: dict[str, Algorithm] = gathered(_families())
