"""The command ``florilegium``: `simulations.__main__`'s commands, ``doctor``, ``deal``, ``provision`` and ``kit``.

It runs in any folder.
"""

from __future__ import annotations

import sys
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[1]  # the folder of the project's packages


def put_last(folder: Path) -> None:
    """Put ``folder`` last in the module search path, so its modules never hide the project's packages.

    A user's folder may contain a package with the same name as a package of the project, such as ``apps``.

    Args:
        folder: The resolved folder. Existing entries for the same folder, and empty entries, are removed.
    """
    sys.path[:] = [entry for entry in sys.path if entry and Path(entry).resolve() != folder]
    sys.path.append(str(folder))


def main() -> None:
    """Run the command."""
    working_folder = Path.cwd().resolve()
    if working_folder != PROJECT:
        put_last(working_folder)
    from apps.doctor.command import cli as doctor
    from apps.parties.dealing import deal
    from simulations.__main__ import cli
    from simulations.__main__ import main as run
    from simulations.kits.command import kit, provision

    cli.command("deal")(deal)
    cli.command("provision")(provision)
    cli.add_typer(
        kit, name="kit", help="Start the SuperLink or SuperNode of a startup kit, make its keys, start a run."
    )
    cli.add_typer(doctor, name="doctor", help="Check the installation of a site or a SuperLink.")
    run()
