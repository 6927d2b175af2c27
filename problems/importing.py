"""Imports of ``package.module:name`` paths in a run config: a model's factory, a problem, a data set's loader.

An installed package can give such a path a short name, by an entry point.
"""

import importlib
import sys
from collections.abc import Callable
from functools import lru_cache
from importlib.metadata import entry_points
from typing import Any, NamedTuple

from problems.errors import InputError

# The groups of entry points by which installed packages add strategies and data sets.
ROWS = "florilegium.strategies"
LOADERS = "florilegium.datasets"


def is_dotted(text: str) -> bool:
    """Return whether a text has the form ``package.module:name``."""
    module_name, _, name = text.partition(":")
    return bool(module_name and name)


def import_named(path: str, refuse: Callable[[str], InputError]) -> Any:
    """Return the object at a path.

    Args:
        path: ``package.module:name``.
        refuse: A function that makes the error from the text of its `got`, which names the path.

    Raises:
        InputError: The result of ``refuse``: the module cannot be imported, or has no such name.
    """
    module_name, _, name = path.partition(":")
    try:
        module = importlib.import_module(module_name)
    except Exception as error:  # a module's own code may raise anything while it is imported
        raise refuse(f"'{path}': cannot import '{module_name}' ({first_line(error)})") from error
    if not hasattr(module, name):
        raise refuse(f"'{path}': module '{module_name}' has no attribute '{name}'")
    return getattr(module, name)


class Plugin(NamedTuple):
    """An entry point: its name, its path, and the name and version of its installed package."""

    name: str
    path: str
    package: str


def plugins(group: str) -> tuple[Plugin, ...]:
    """Return the entry points of a group, sorted by name; none of them is imported.

    Args:
        group: The name of the group, such as ``florilegium.datasets``.
    """
    return _plugins(group, tuple(sys.path))


@lru_cache(maxsize=8)  # the look-up reads the metadata of every installed package
def _plugins(group: str, places: tuple[str, ...]) -> tuple[Plugin, ...]:
    found = [(one, one.dist) for one in entry_points(group=group)]
    return tuple(
        sorted(Plugin(one.name, one.value, f"{dist.name} {dist.version}" if dist else "") for one, dist in found)
    )


def find_plugin(group: str, name: str, refuse: Callable[[str], InputError]) -> Plugin | None:
    """Return the entry point with a name; None if there is none.

    Args:
        group: See `plugins`.
        name: The name of the entry point.
        refuse: A function that makes the error from the text of its `got`.

    Raises:
        InputError: The result of ``refuse``: several packages have the name.
    """
    found = [one for one in plugins(group) if one.name == name]
    if len(found) > 1:
        raise refuse(f"{name!r}, a name of {' and of '.join(one.package for one in found)}")
    return found[0] if found else None


def first_line(error: Exception) -> str:
    """Return the error's type and the first line of its message."""
    text = str(error).strip()
    return f"{type(error).__name__}: {text.splitlines()[0]}" if text else type(error).__name__
