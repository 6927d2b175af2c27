"""Checks of the installed packages, and of the folders to which a run writes."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path

from apps.doctor.findings import WrongError
from payloads.flower_internals import NO_INSTALLATION
from problems.errors import NOTHING

NAME = "florilegium"
INSTALL = "pip install -e . -c constraints.txt"


def packages() -> str:
    """Check that every required package is installed in an allowed version."""
    from packaging.requirements import Requirement

    try:
        wanted = [Requirement(line) for line in requires(NAME) or []]
    except PackageNotFoundError:
        got = "a package that is not installed here"
        raise WrongError(NAME, got=got, allowed="an installed package", hint=f"run {INSTALL}") from None
    needed = [one for one in wanted if one.marker is None or one.marker.evaluate({"extra": ""})]
    bad = []
    for one in needed:
        try:
            found = version(one.name)
        except PackageNotFoundError:
            found = NOTHING
        if found == NOTHING or not one.specifier.contains(found, prereleases=True):
            allowed = str(one.specifier) or "any version"
            bad.append(WrongError(one.name, got=found, allowed=allowed, hint=f"run {INSTALL}"))
    if bad:
        raise WrongError.join(bad)
    return f"{len(needed)} of {len(needed)}, flwr {version('flwr')}, torch {version('torch')}"


def no_installation(environment: Mapping[str, str]) -> str:
    """Check that Flower does not install the project's dependencies again for every run.

    Args:
        environment: The environment variables.

    Raises:
        WrongError: The variable that forbids the installation is not "1".
    """
    got = environment.get(NO_INSTALLATION, NOTHING)
    if got != "1":  # Flower accepts no other value, not even "true"
        hint = "start flower-superlink with --disable-runtime-dependency-installation"
        raise WrongError(NO_INSTALLATION, got=got, allowed="1, or every run installs all packages again", hint=hint)
    return f"{NO_INSTALLATION} is set"


def writable(folder: Path) -> str:
    """Check that a folder exists and is writable, with a temporary file.

    Raises:
        WrongError: The folder does not exist.
        OSError: The folder is not writable.
    """
    if not folder.is_dir():
        raise WrongError(
            "folder", got=folder, allowed="an existing folder", hint="create the folder, or choose another"
        )
    with tempfile.NamedTemporaryFile(dir=folder) as file:
        file.write(b"0")
    return f"{folder} can be written to"
