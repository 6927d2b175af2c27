"""The commands ``florilegium provision`` and ``florilegium kit``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

kit = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False)
Folder = Annotated[Path, typer.Argument(metavar="KIT", help="the folder of the kit", exists=True, file_okay=False)]


def provision(
    project: Annotated[Path, typer.Argument(metavar="PROJECT", help="the project file, such as project.toml")],
    out: Annotated[Path, typer.Option("--out", help="folder of the kits; existing kits in it are updated")],
    renew: Annotated[
        bool, typer.Option("--renew", help="replace the SuperLink's key and certificate; sites change nothing")
    ] = False,
) -> None:
    """Write a startup kit for the SuperLink and for each site of a project file.

    Existing private keys and the owners' settings are kept.
    """
    from simulations.kits.project import read_project
    from simulations.kits.provision import provision as write

    for line in write(read_project(project.expanduser()), out.expanduser(), renew=renew):
        typer.echo(line)


@kit.command()
def start(
    folder: Folder,
    unchecked: Annotated[bool, typer.Option("--unchecked", help="start without the doctor's checks")] = False,
    show: Annotated[bool, typer.Option("--show", help="print the command of Flower, and start nothing")] = False,
    host: Annotated[str, typer.Option(help="another host at which the SuperLink listens")] = "",
) -> None:
    """Start the SuperLink or the SuperNode of a kit. The doctor checks the machine first."""
    from simulations.kits.start import start as run

    raise typer.Exit(run(folder, unchecked=unchecked, show=show, host=host))


@kit.command()
def keys(folder: Folder) -> None:
    """Make the private keys of a site's kit if they are missing, and list the files for the other participants."""
    from simulations.kits.kit import Kit

    made = Kit.read(folder)
    operator, *others = made.make_keys(folder)
    typer.echo(f"{operator}: send it to the operator of the SuperLink")
    for path in others:
        typer.echo(f"{path}: send it to the other parties, and read them its SHA-256 by telephone: {digest_of(path)}")


def digest_of(path: Path) -> str:
    """Return the SHA-256 of a certificate in a file."""
    from vertical.transport.identity import fingerprint, read_certificates

    return fingerprint(read_certificates(path)[0])


@kit.command()
def pin(folder: Folder) -> None:
    """Accept the other parties by their authorities in the kit's folder peers, and print each SHA-256."""
    from simulations.kits.kit import SITE_FILE, Kit

    for peer, digest in Kit.read(folder).pin_peers(folder).items():
        typer.echo(f"{peer}: compare with the SHA-256 that {peer} has read to you: {digest}")
    typer.echo(f"{folder / SITE_FILE} has the pins")


@kit.command()
def run(
    folder: Folder,
    config: Annotated[
        list[str] | None,
        typer.Option("--config", "-c", help="run-config keys or a TOML file, in addition to the kit's run.toml"),
    ] = None,
    name: Annotated[str, typer.Option("--name", help="name of the run directory in the kit's folder results")] = "",
    app: Annotated[
        Path | None, typer.Option("--app", help="the Flower app; default: the checkout of this project")
    ] = None,
) -> None:
    """Wait until all sites are online, then start a run on the SuperLink of a kit, and follow it to its end."""
    from simulations.kits.submit import submit

    typer.echo(f"finished: {submit(folder, config or [], name, app)}")
