"""The project's own version, installed or not."""

import tomllib
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

NAME = "florilegium"
_PYPROJECT = Path(__file__).resolve().parents[2] / "pyproject.toml"


def project_version() -> str:
    """The version of the running code: of its checkout or app bundle, else of the installed package."""
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
