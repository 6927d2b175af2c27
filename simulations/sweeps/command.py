"""The command ``sweep``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from simulations.arguments import (
    ClientsOrSites,
    Json,
    NodeConfigs,
    Overrides,
    Quiet,
    Stacked,
    overrides_of,
    sites_of,
    stack_of,
)
from simulations.results.output import log_off, print_json, progress, stdout_to_stderr


def sweep(
    out: Annotated[Path, typer.Option("--out", help="directory of the sweep; its runs are in trials/")],
    config: Overrides = None,
    clients: ClientsOrSites = None,
    node_config: NodeConfigs = None,
    grid: Annotated[list[str] | None, typer.Option(help="values to try, e.g. 'learning-rate=0.01,0.1'")] = None,
    random: Annotated[
        list[str] | None, typer.Option(help="values to draw, e.g. 'learning-rate=loguniform(1e-3,1)'")
    ] = None,
    samples: Annotated[int, typer.Option(min=1, help="number of draws of --random at each grid point")] = 1,
    search_seed: Annotated[int, typer.Option(min=0, help="seed of the draws")] = 0,
    seeds: Annotated[
        int, typer.Option(min=1, help="number of seeds of each configuration, counted up from the seed")
    ] = 1,
    metric: Annotated[str, typer.Option(help="metric of the last round that decides the best configuration")] = "auc",
    mode: Annotated[
        Literal["max", "min"] | None, typer.Option(help="max or min; default: min for loss, otherwise max")
    ] = None,
    asha: Annotated[bool, typer.Option("--asha", help="stop worse trials early (ASHA)")] = False,
    grace: Annotated[int, typer.Option(min=1, help="number of rounds before --asha may stop a trial")] = 1,
    jobs: Annotated[int, typer.Option(min=1, help="number of trials at a time, with one CPU each")] = 1,
    address: Annotated[str, typer.Option(help="address of a Ray cluster; default: a new local Ray")] = "",
    select_on: Annotated[
        Literal["validation", "test"],
        typer.Option(help="rows that decide: held out of the training rows, or the test rows"),
    ] = "validation",
    stack: Stacked = "1",
    resume: Annotated[bool, typer.Option("--resume", help="continue the sweep in --out")] = False,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Search values of run-config keys on a grid and at random, with Ray Tune. Each trial has its own run directory."""
    from apps.config import ConfigError
    from apps.evaluation.metric_names import better
    from apps.server_app import RunFailedError
    from simulations.sweeps.plan import Sweep
    from simulations.sweeps.ranges import parse_grid, parse_random
    from simulations.sweeps.sweep import run_sweep

    if grace > 1 and not asha:
        got = f"{grace}, but there is nothing to stop"
        raise ConfigError("--grace", got=got, allowed="1, or any number with --asha", hint="add --asha")
    clients, nodes = sites_of(clients, node_config)
    asked = Sweep(
        clients,
        overrides_of(config),
        parse_grid(grid),
        parse_random(random),
        samples,
        search_seed,
        seeds,
        metric,
        mode or ("min" if better(metric) is min else "max"),
        grace if asha else 0,
        nodes,
        select_on,
        stack_of(stack),
    )
    trials = asked.trials()
    total = len(trials) + seeds * any(trial.fraction for trial in trials)  # the best trial also runs on the test rows
    with log_off(quiet), stdout_to_stderr(as_json), progress(total, quiet) as say:
        outcome = run_sweep(asked, out, resume=resume, jobs=jobs, address=address, say=say)
    if as_json:
        print_json(outcome.json())
    elif not quiet:
        typer.echo(outcome.text())
    if len(outcome.trials.failed) == len(trials):
        reason = next(iter(outcome.trials.failed.values()))
        raise RunFailedError(f"all {len(trials)} trials failed; the first: {' '.join(reason.split())}")
