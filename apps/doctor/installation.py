"""Checks of what is installed, and of the folders that a run writes to."""

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
    """Check that every package the project requires is installed, in a version it allows."""
    from packaging.requirements import Requirement

    try:
        wanted = [Requirement(line) for line in requires(NAME) or []]
    except PackageNotFoundError:
        got = "a package that is not installed here"
        raise WrongError(NAME, got=got, allowed="an installation", hint=INSTALL) from None
    needed = [one for one in wanted if one.marker is None or one.marker.evaluate({"extra": ""})]
    bad = []
    for one in needed:
        try:
            found = version(one.name)
        except PackageNotFoundError:
            found = NOTHING
        if found == NOTHING or not one.specifier.contains(found, prereleases=True):
            allowed = str(one.specifier) or "any version"
            bad.append(WrongError(one.name, got=found, allowed=allowed, hint=INSTALL))
    if bad:
        raise WrongError.join(bad)
    return f"{len(needed)} of {len(needed)}, flwr {version('flwr')}, torch {version('torch')}"


def no_installation(environment: Mapping[str, str]) -> str:
    """Check that Flower does not install the project's dependencies anew for every run.

    Raises:
        WrongError: the variable that forbids it is not "1" in ``environment``.
    """
    got = environment.get(NO_INSTALLATION, NOTHING)
    if got != "1":  # as Flower reads it: "true" is not enough
        hint = "give flower-superlink --disable-runtime-dependency-installation"
        raise WrongError(NO_INSTALLATION, got=got, allowed="1, or every run installs all packages anew", hint=hint)
    return f"{NO_INSTALLATION} is set"


def writable(folder: Path) -> str:
    """Check that a folder exists and can be written to, by a file that is removed at once.

    Raises:
        WrongError: there is no such folder.
        OSError: it cannot be written to.
    """
    if not folder.is_dir():
        raise WrongError("folder", got=folder, allowed="one that exists", hint="make it, or give another")
    with tempfile.NamedTemporaryFile(dir=folder) as file:
        file.write(b"0")
    return f"{folder} can be written to"
