"""Imports of the ``package.module:name`` paths in a run config, such as a model's factory or a data set's loader.

An installed package can define a short name for such a path, by an entry point.
"""

import importlib
import sys
from collections.abc import Callable
from functools import lru_cache
from importlib.metadata import entry_points
from typing import Any, NamedTuple

from problems.errors import InputError

# the groups of entry points by which installed packages add strategies and data sets
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
        refuse: A function that makes the error from the error's field `got`, a text that names the path.

    Raises:
        InputError: The module cannot be imported, or has no such name. The error is the result of ``refuse``.
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
    """An entry point of an installed package.

    Attributes:
        name: The entry point's name.
        path: The entry point's path, ``package.module:name``.
        package: The name and version of the package.
    """

    name: str
    path: str
    package: str


def plugins(group: str) -> tuple[Plugin, ...]:
    """Return the entry points of a group, sorted by name, without importing them.

    Args:
        group: The name of the group, such as ``florilegium.datasets``.
    """
    return _plugins(group, tuple(sys.path))


@lru_cache(maxsize=8)  # the look-up reads the metadata of every installed package
def _plugins(group: str, search_path: tuple[str, ...]) -> tuple[Plugin, ...]:
    entries = [(entry, entry.dist) for entry in entry_points(group=group)]
    return tuple(
        sorted(
            Plugin(entry.name, entry.value, f"{dist.name} {dist.version}" if dist else "") for entry, dist in entries
        )
    )


def find_plugin(group: str, name: str, refuse: Callable[[str], InputError]) -> Plugin | None:
    """Return the entry point with a name. None: no package has such an entry point.

    Args:
        group: See `plugins`.
        name: The name of the entry point.
        refuse: A function that makes the error from the error's field `got`.

    Raises:
        InputError: Several packages have the name. The error is the result of ``refuse``.
    """
    matches = [plugin for plugin in plugins(group) if plugin.name == name]
    if len(matches) > 1:
        raise refuse(f"{name!r}, a name of {' and of '.join(plugin.package for plugin in matches)}")
    return matches[0] if matches else None


def first_line(error: Exception) -> str:
    """Return the error's type and the first line of its message."""
    text = str(error).strip()
    return f"{type(error).__name__}: {text.splitlines()[0]}" if text else type(error).__name__
