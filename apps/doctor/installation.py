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
    """Check that every required package is installed in an allowed version.

    Raises:
        WrongError: The project or a required package is not installed, or has a wrong version.
    """
    from packaging.requirements import Requirement

    try:
        wanted = [Requirement(line) for line in requires(NAME) or []]
    except PackageNotFoundError:
        got = "no installed package of this name"
        raise WrongError(NAME, got=got, allowed="an installed package", hint=f"run {INSTALL}") from None
    needed = [each for each in wanted if each.marker is None or each.marker.evaluate({"extra": ""})]
    bad = []
    for requirement in needed:
        try:
            installed = version(requirement.name)
        except PackageNotFoundError:
            installed = NOTHING
        if installed == NOTHING or not requirement.specifier.contains(installed, prereleases=True):
            allowed = str(requirement.specifier) or "any version"
            bad.append(WrongError(requirement.name, got=installed, allowed=allowed, hint=f"run {INSTALL}"))
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
        raise WrongError(
            NO_INSTALLATION, got=got, allowed="1, since otherwise every run installs all packages again", hint=hint
        )
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
