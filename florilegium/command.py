"""The command ``florilegium``: `simulations.__main__`'s commands and ``doctor``, from any folder."""

from __future__ import annotations

import sys
from pathlib import Path

OURS = Path(__file__).resolve().parents[1]  # the folder of the project's packages


def put_last(folder: Path) -> None:
    """Put ``folder`` last in the module search path, so that a user's own modules are found after all others.

    A user's folder may contain names that the project's packages have, such as ``apps``.

    Args:
        folder: As `Path.resolve` gives it; entries that lead there are removed, and empty ones.
    """
    sys.path[:] = [entry for entry in sys.path if entry and Path(entry).resolve() != folder]
    sys.path.append(str(folder))


def main() -> None:
    """The command's entry point."""
    here = Path.cwd().resolve()
    if here != OURS:
        put_last(here)
    from apps.doctor.command import cli as doctor
    from simulations.__main__ import cli
    from simulations.__main__ import main as run

    cli.add_typer(doctor, name="doctor", help="Look at what a site or a SuperLink needs.")
    run()
