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
    out: Annotated[Path, typer.Option("--out", help="folder to write; the trials' run directories are in trials/")],
    config: Overrides = None,
    clients: ClientsOrSites = None,
    node_config: NodeConfigs = None,
    grid: Annotated[
        list[str] | None, typer.Option(help="a key and the values to try, e.g. 'learning-rate=0.01,0.1'; repeatable")
    ] = None,
    random: Annotated[
        list[str] | None,
        typer.Option(help="a key and its distribution, e.g. 'learning-rate=loguniform(1e-3,1)'; repeatable"),
    ] = None,
    samples: Annotated[int, typer.Option(min=1, help="number of random draws at each grid point")] = 1,
    search_seed: Annotated[int, typer.Option(min=0, help="seed of the random draws")] = 0,
    seeds: Annotated[
        int, typer.Option(min=1, help="number of seeds for each configuration: the run config's seed and the next ones")
    ] = 1,
    metric: Annotated[
        str, typer.Option(help="metric that ranks the configurations by its value in the last round")
    ] = "auc",
    mode: Annotated[
        Literal["max", "min"] | None,
        typer.Option(help="whether a larger or a smaller metric is better; default: min for loss, max otherwise"),
    ] = None,
    asha: Annotated[
        bool, typer.Option("--asha", help="stop bad trials early, by asynchronous successive halving (ASHA)")
    ] = False,
    grace: Annotated[int, typer.Option(min=1, help="number of rounds before --asha may stop a trial")] = 1,
    jobs: Annotated[int, typer.Option(min=1, help="number of trials at a time, with one CPU each")] = 1,
    address: Annotated[str, typer.Option(help="address of a Ray cluster; default: start a local Ray")] = "",
    select_on: Annotated[
        Literal["validation", "test"],
        typer.Option(help="rows on which trials are ranked: held-out training rows, or the test rows"),
    ] = "validation",
    stack: Stacked = "1",
    resume: Annotated[bool, typer.Option("--resume", help="continue the sweep in --out")] = False,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Search the best values of run-config keys, on a grid or by random draws, with Ray Tune.

    Each trial is a run with its own run directory.
    """
    from apps.config import ConfigError
    from apps.evaluation.metric_names import better
    from apps.server_app import RunFailedError
    from simulations.sweeps.plan import Sweep
    from simulations.sweeps.ranges import parse_grid, parse_random
    from simulations.sweeps.sweep import run_sweep

    if grace > 1 and not asha:
        got = f"{grace} without --asha"
        raise ConfigError("--grace", got=got, allowed="1, or any number with --asha", hint="add --asha")
    clients, nodes = sites_of(clients, node_config)
    plan = Sweep(
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
    trials = plan.trials()
    total = len(trials) + seeds * any(trial.fraction for trial in trials)  # the best trial also runs on the test rows
    with log_off(quiet), stdout_to_stderr(as_json), progress(total, quiet) as show:
        outcome = run_sweep(plan, out, resume=resume, jobs=jobs, address=address, show=show)
    if as_json:
        print_json(outcome.json())
    elif not quiet:
        typer.echo(outcome.text())
    if len(outcome.trials.failed) == len(trials):
        reason = next(iter(outcome.trials.failed.values()))
        raise RunFailedError(f"all {len(trials)} trials failed; the first: {' '.join(reason.split())}")
