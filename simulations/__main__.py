"""``python -m simulations``: runs and references, what becomes of them, sweeps, experiments and lists."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from apps.config import ConfigError, known_keys, parse_run_config
from apps.evaluation.metric_names import format_metrics
from apps.plugins import ROWS, describe_plugins
from apps.registry import ALGORITHMS
from apps.run_directory.missing import WITH_MISSING, in_words
from apps.server_app import EXPECTED, RunFailedError
from problems.data import DATASETS, PARTITIONS
from problems.data.spec import LOADERS
from problems.models import MODELS
from simulations.arguments import (
    Clients,
    ClientsOrSites,
    Cluster,
    Json,
    NodeConfigs,
    Out,
    Overrides,
    Quiet,
    Stacked,
    add_directory,
    overrides_of,
    sites_of,
    stack_of,
)
from simulations.baselines import check_baselines, train_baselines
from simulations.engines.checking import check_run
from simulations.engines.flower import FlowerError, gpu_share, run_with_flower
from simulations.engines.launch import run_centralized, run_federation, run_nonfederated
from simulations.experiments.command import catalogue, description, reproduce, summary
from simulations.results.compare import Comparison
from simulations.results.output import log_off, print_json, progress, stdout_to_stderr
from simulations.results.records import RunsInterruptedError
from simulations.results.report import write_report
from simulations.scoring.command import card, evaluate, export, predict
from simulations.sweeps.command import sweep

SITES_MISSING = 3  # exit code of a run that has finished, but with a site missing in some round

cli = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False)

Section = Literal["strategies", "datasets", "partitions", "models", "keys", "experiments"]
STACKED = {
    name: row.description + (" [--stack has no effect]" if row.strategy.clients_meet else "")
    for name, row in ALGORITHMS.items()
}
SECTIONS = {
    "strategies": ("strategies", STACKED),
    "datasets": ("data sets", DATASETS),
    "partitions": ("partitions", PARTITIONS),
    "models": ("models", {name: entry.description for name, entry in MODELS.items()}),
    "keys": ("run-config keys", known_keys()),
}
PLUGINS = {"strategies": ROWS, "datasets": LOADERS}  # the entry points that installed packages may add to a section


@cli.command()
def run(
    out: Out,
    config: Overrides = None,
    clients: ClientsOrSites = None,
    node_config: NodeConfigs = None,
    engine: Annotated[
        Literal["inprocess", "ray", "flower"],
        typer.Option(help="in this process, in workers of Ray, or Flower's Ray simulation"),
    ] = "inprocess",
    threads: Annotated[int, typer.Option(min=1, help="clients that train at once (in process); changes no result")] = 1,
    stack: Stacked = "1",
    client_gpus: Annotated[
        float | None, typer.Option(min=0, max=1, help="share of a GPU for a client (flower); without, CPUs share them")
    ] = None,
    address: Annotated[
        str | None, typer.Option(help="of a Ray cluster's head, or auto (ray); without, a Ray of its own")
    ] = None,
    workers: Annotated[
        int | None, typer.Option(min=1, help="number of workers (ray); without, one for each CPU")
    ] = None,
    gpus_per_worker: Annotated[float | None, typer.Option(min=0, help="share of a GPU for a worker (ray)")] = None,
    baselines: Annotated[
        bool, typer.Option("--baselines", help="compare with each site alone, and with all rows in one place")
    ] = False,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Run one federation and write its run directory. Exit code 3: it has finished, but sites were missing."""
    flat = add_directory(overrides_of(config), out)
    parsed = parse_run_config(flat)
    if baselines:
        check_baselines(parsed)
    clients, nodes = sites_of(clients, node_config)
    limit = stack_of(stack)
    placing = {"--address": address, "--workers": workers, "--gpus-per-worker": gpus_per_worker}
    for option, value in placing.items():
        if value is not None and engine != "ray":
            got = f"{value} with --engine {engine}"
            raise ConfigError(option, got=got, allowed="with --engine ray only", hint="leave it out")
    if engine == "flower":
        for option, given in (("--node-config", len(nodes)), ("--stack", 0 if limit == 1 else limit)):
            if given:
                got = f"{given} with --engine flower"
                raise ConfigError(option, got=got, allowed="in this process only", hint="leave --engine out")
    with log_off(quiet), stdout_to_stderr(as_json):
        try:
            if engine == "flower":
                _run_with_flower(out, clients, flat, client_gpus, quiet)
            else:
                cluster = Cluster(address or "", workers, gpus_per_worker or 0.0) if engine == "ray" else None
                run_federation(clients, flat, threads, nodes, limit, cluster)
        except RunFailedError:
            if quiet or engine == "flower":
                raise
            raise SystemExit(1) from None  # the ServerApp has logged the reason
        except KeyboardInterrupt as error:
            print(str(error) or "interrupted", file=sys.stderr)  # Typer would print nothing
            raise SystemExit(130) from None
    if baselines:
        with progress(clients + 1, quiet) as say:
            compared = train_baselines(out.expanduser(), clients, flat, nodes, say)
        if not (quiet or as_json):
            typer.echo(compared.text())
    outcome = out.expanduser() / "result.json"
    text = outcome.read_text("utf-8")
    if as_json:
        typer.echo(text, nl=False)
    result = json.loads(text)
    if quiet:
        for warning in result.get("warnings", []):
            print(f"warning: {warning}; see {outcome}", file=sys.stderr)
    if result["dropped"]:
        if quiet:
            missing = in_words(result["dropped"], result["rounds"])
            print(f"{WITH_MISSING}: {missing}; see {outcome}", file=sys.stderr)
        raise SystemExit(SITES_MISSING)


def _run_with_flower(out: Path, clients: int, flat: dict[str, Any], client_gpus: float | None, quiet: bool) -> None:
    config = parse_run_config(flat)
    gpus = gpu_share(config.training.device) if client_gpus is None else client_gpus
    try:
        run_with_flower(clients, flat, together=config.algorithm.strategy.clients_meet, client_gpus=gpus, quiet=quiet)
    except FlowerError as error:
        failure = out / "failure.json"
        reason = json.loads(failure.read_text("utf-8"))["reason"] if failure.exists() else str(error)
        raise RunFailedError(reason) from None
    if not (out / "result.json").exists():
        raise RunFailedError(f"the run completed, but left no {out / 'result.json'}")


@cli.command()
def check(config: Overrides = None, clients: ClientsOrSites = None, node_config: NodeConfigs = None) -> None:
    """Try a run config on its data, up to the first round: nothing is trained or written."""
    clients, nodes = sites_of(clients, node_config)
    for line in check_run(clients, overrides_of(config), nodes):
        typer.echo(line)


@cli.command()
def centralized(
    out: Out, config: Overrides = None, clients: Clients = 8, quiet: Quiet = False, as_json: Json = False
) -> None:
    """Train on the union of the clients' data: pairwise SGD, or SOX for a non-linear outer function."""
    _train_reference(partial(run_centralized, clients), out, config, quiet, as_json)


@cli.command()
def nonfederated(out: Out, config: Overrides = None, quiet: Quiet = False, as_json: Json = False) -> None:
    """Train a vertical strategy's problem with all columns in one place, without parties, masks or delay."""
    _train_reference(run_nonfederated, out, config, quiet, as_json)


def _train_reference(
    train: Callable[..., None], out: Path, config: list[str] | None, quiet: bool, as_json: bool
) -> None:
    flat = add_directory(overrides_of(config), out)
    hook = None if quiet else lambda r, m: typer.echo(f"round {r}  {format_metrics(m)}")
    with log_off(quiet), stdout_to_stderr(as_json):
        train(flat, hook)
    if as_json:
        typer.echo((out.expanduser() / "result.json").read_text("utf-8"), nl=False)


@cli.command("list")
def list_everything(
    section: Annotated[Section | None, typer.Argument(help="only these")] = None, as_json: Json = False
) -> None:
    """List strategies, data sets, partitions, models, run-config keys and experiments, one line each.

    Those of installed packages follow the project's own, with the package in brackets.
    """
    chosen = {
        name: (title, {**rows, **(describe_plugins(PLUGINS[name], rows) if name in PLUGINS else {})})
        for name, (title, rows) in SECTIONS.items()
        if section in (None, name)
    }
    experiments = catalogue() if section in (None, "experiments") else {}
    if as_json:
        found: dict[str, Any] = {name: rows for name, (_, rows) in chosen.items()}
        if experiments:
            found["experiments"] = {name: summary(experiment) for name, experiment in experiments.items()}
        print_json(found)
        return
    if experiments:
        lines = {name: description(experiment) for name, experiment in experiments.items()}
        chosen["experiments"] = ("experiments", lines)
    for title, rows in chosen.values():
        typer.echo(f"{title}:")
        width = max(map(len, rows))
        for name, text in rows.items():
            typer.echo(f"  {name:<{width}}  {text}")


@cli.command()
def compare(
    directories: Annotated[list[Path], typer.Argument(metavar="DIR...", help="run directories")],
    metric: Annotated[str | None, typer.Option(help="whose curve compare.png shows; auc where runs have it")] = None,
    name: Annotated[
        list[str] | None, typer.Option(help="once a curve, runs that differ only in their seed being one: its name")
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", help="a folder for compare.csv and compare.png")] = None,
    as_json: Json = False,
) -> None:
    """Compare runs: metrics of the last evaluated round, or of the selected model on the test rows; costs; configs."""
    comparison = Comparison.of(directories, name or ())
    drawn = comparison.choose_metric(metric)
    if out is not None:
        comparison.save(out, drawn)
    if as_json:
        found = {} if drawn is None else comparison.differences(drawn)
        differences = [{"runs": label, "less": first, **asdict(gap)} for label, (first, gap) in found.items()]
        print_json(
            {"metric": drawn, "differing": comparison.differing, "runs": comparison.rows(), "differences": differences}
        )
    else:
        typer.echo(comparison.text(drawn))


@cli.command()
def report(
    directories: Annotated[list[Path], typer.Argument(metavar="RUN...", help="run directories")],
    out: Annotated[
        Path | None, typer.Option("--out", help="the page; without, report.html in the directory of the one run")
    ] = None,
) -> None:
    """Write one self-contained HTML page about runs, finished or not: curves, metrics, missing sites, config."""
    typer.echo(write_report(directories, out))


for command in (predict, evaluate, export, card, sweep, reproduce):
    cli.command()(command)


def main() -> None:
    """Entry point: wrong input is one message on stderr and exit code 1, never a traceback."""
    if logging.lastResort is not None:  # prints the warnings of modules that know no Flower
        logging.lastResort.setFormatter(logging.Formatter("%(levelname)s: %(message)s"))
    try:
        cli()
    except (*EXPECTED, RunFailedError) as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(1) from None
    except RunsInterruptedError as error:
        print(error, file=sys.stderr)
        raise SystemExit(130) from None
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        raise SystemExit(130) from None


if __name__ == "__main__":
    main()
