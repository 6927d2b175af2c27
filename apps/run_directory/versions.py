"""The versions of the software that determines a result, including the project's own version."""

import platform
import tomllib
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

NAME = "florilegium"
_PYPROJECT = Path(__file__).resolve().parents[2] / "pyproject.toml"


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
    numbers = {"python": platform.python_version(), NAME: project_version()}
    for package in ("flwr", "torch", "numpy", "scikit-learn"):
        try:
            numbers[package] = version(package)
        except PackageNotFoundError:
            numbers[package] = "not installed"
    return numbers
