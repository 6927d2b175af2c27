"""The command ``florilegium``: `simulations.__main__`'s commands and ``doctor``, from any folder."""

from __future__ import annotations

import sys
from pathlib import Path

OURS = Path(__file__).resolve().parents[1]  # the folder of the project's packages


def put_last(folder: Path) -> None:
    """Put ``folder`` last in the module search path, to find a user's own modules after all other modules.

    A user's folder may contain names of the project's packages, such as ``apps``.

    Args:
        folder: The resolved folder. Other entries that lead to it, and empty entries, are removed.
    """
    sys.path[:] = [entry for entry in sys.path if entry and Path(entry).resolve() != folder]
    sys.path.append(str(folder))


def main() -> None:
    """Run the command."""
    here = Path.cwd().resolve()
    if here != OURS:
        put_last(here)
    from apps.doctor.command import cli as doctor
    from simulations.__main__ import cli
    from simulations.__main__ import main as run

    cli.add_typer(doctor, name="doctor", help="Check the installation of a site or a SuperLink.")
    run()
