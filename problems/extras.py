"""Packages that a base installation lacks, and the extras that install them."""

from __future__ import annotations

from importlib.util import find_spec


class MissingExtraError(ValueError):
    """A feature needs a package of an extra; the message names both."""


def install(extra: str) -> str:
    """The command that installs an extra."""
    return f'pip install "florilegium[{extra}]"'


def importable(module: str) -> bool:
    """Whether a module is installed; it is not imported."""
    return find_spec(module) is not None


def require(what: str, extra: str, *modules: str) -> None:
    """Check that modules of an extra are installed, without importing them.

    Raises:
        MissingExtraError: some are not there.
    """
    missing = [module for module in modules if not importable(module)]
    if missing:
        raise MissingExtraError(f"{what}: needs {', '.join(missing)}, not installed here: {install(extra)}")
