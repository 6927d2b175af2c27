"""Import what a run config names by ``package.module:name``: a model's factory, a problem, a data set's loader."""

import importlib
from collections.abc import Callable
from typing import Any

from problems.errors import InputError


def is_dotted(text: str) -> bool:
    """Whether a text has the form ``package.module:name``."""
    module_name, _, name = text.partition(":")
    return bool(module_name and name)


def import_named(path: str, refuse: Callable[[str], InputError]) -> Any:
    """Return what a path names.

    Args:
        path: ``package.module:name``.
        refuse: makes the error from what was got, which names the path.

    Raises:
        InputError: the one that ``refuse`` makes: the module cannot be imported, or has no such name.
    """
    module_name, _, name = path.partition(":")
    try:
        module = importlib.import_module(module_name)
    except Exception as error:  # a module's own code may raise anything while it is imported
        raise refuse(f"'{path}': cannot import '{module_name}' ({first_line(error)})") from error
    if not hasattr(module, name):
        raise refuse(f"'{path}': module '{module_name}' has no attribute '{name}'")
    return getattr(module, name)


def first_line(error: Exception) -> str:
    """The error's type and the first line of its message."""
    text = str(error).strip()
    return f"{type(error).__name__}: {text.splitlines()[0]}" if text else type(error).__name__
