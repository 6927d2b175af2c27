"""The versions of the software that determines a result, including the project's own version."""

import platform
import tomllib
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

NAME = "florilegium"
_PYPROJECT = Path(__file__).resolve().parents[2] / "pyproject.toml"


@cache
def project_version() -> str:
    """Return the project's version: from the checkout's or app bundle's pyproject.toml, else of the package."""
    try:
        project = tomllib.loads(_PYPROJECT.read_text("utf-8"))["project"]
        if project["name"] == NAME:
            return str(project["version"])
    except (OSError, ValueError, KeyError):
        pass
    try:
        return version(NAME)
    except PackageNotFoundError:
        return "unknown"


def versions() -> dict[str, str]:
    """Return the versions of the software that determines a result."""
    packages = {package: _read_version(package) for package in ("flwr", "torch", "numpy", "scikit-learn")}
    return {"python": platform.python_version(), NAME: project_version(), **packages}


@cache
def _read_version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"
