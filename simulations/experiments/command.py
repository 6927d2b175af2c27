"""The command ``reproduce``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from simulations.arguments import Json, ProfileName, Quiet, Stacked, stack_of
from simulations.results.output import log_off, print_json, progress, stdout_to_stderr


def reproduce(
    name: Annotated[str, typer.Argument(metavar="NAME", help="experiment of `list experiments`, or a .toml file")],
    out: Annotated[Path, typer.Option("--out", help="folder to write; its runs are in runs/")],
    profile: Annotated[
        ProfileName,
        typer.Option(help="size of the reproduction; `florilegium list experiments` has the minutes of each"),
    ] = "quick",
    seeds: Annotated[
        int | None, typer.Option(min=1, help="number of seeds of each run; default: set by the profile")
    ] = None,
    jobs: Annotated[int, typer.Option(min=1, help="number of runs at a time, each in its own process")] = 2,
    data_dir: Annotated[Path | None, typer.Option("--data-dir", help="folder of the data sets' files")] = None,
    only: Annotated[
        list[str] | None,
        typer.Option("--only", help="run only a part of the experiment, e.g. 'method=\"FedX2\" K=10'"),
    ] = None,
    stack: Stacked = "1",
    tune: Annotated[
        bool,
        typer.Option(
            "--tune", help="first choose the hyper-parameters in the experiment's table 'tune', on a validation split"
        ),
    ] = False,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Reproduce a paper's experiment: run all methods, settings and seeds, and write a table and a figure.

    NAME is an experiment of `florilegium list experiments`, or the path of an experiment's .toml file.
    """
    from apps.config import ConfigError
    from apps.run_config.pairs import parse_pairs
    from apps.server_app import RunFailedError
    from simulations.experiments.choosing import Choosing
    from simulations.experiments.expansion import expand
    from simulations.experiments.experiment import find_experiment
    from simulations.experiments.reproduce import Reproduction
    from simulations.experiments.tuned_values import Tuned, find_tuned

    if data_dir is not None and not data_dir.expanduser().exists():
        got = f"{data_dir}, which does not exist"
        allowed = "an existing folder"
        raise ConfigError(
            "--data-dir", got=got, allowed=allowed, hint="set --data-dir to the folder of the data sets' files"
        )
    folder = None if data_dir is None else data_dir.expanduser().resolve()
    experiment, limit = find_experiment(name), stack_of(stack)
    coordinates = {key: value for text in only or [] for key, value in parse_pairs("--only", text).items()}
    if tune:
        choosing = Choosing(expand(experiment, profile, seeds, folder, only=coordinates), out, limit)
        with log_off(quiet), choosing.open(), progress(len(choosing.waiting), quiet) as show:
            tuned: Tuned | None = choosing.run(jobs, show)
    else:
        tuned = find_tuned(name, experiment.name, profile, out)
    reproduction = Reproduction(expand(experiment, profile, seeds, folder, tuned, coordinates), out, limit)
    with stdout_to_stderr(as_json), reproduction.open(), progress(len(reproduction.waiting), quiet) as show:
        outcome = reproduction.run(jobs, show)
    if as_json:
        print_json(outcome.json())
    elif not quiet:
        typer.echo(outcome.text())
    if outcome.failed:
        first, reason = next(iter(outcome.failed.items()))
        count = f"{len(outcome.failed)} of {len(reproduction.runs)} runs failed"
        raise RunFailedError(f"{count}; the first, {first}: {' '.join(reason.split())}")
