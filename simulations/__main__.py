"""``python -m simulations``: run, check, compare, sweep, reproduce, list, and the two references."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from apps.config import ConfigError, Scalar, known_keys, parse_run_config
from apps.evaluation.metric_names import better, shown
from apps.registry import ALGORITHMS
from apps.run_directory.missing import WITH_MISSING, in_words
from apps.server_app import EXPECTED, RunFailedError
from problems.data import DATASETS, PARTITIONS
from problems.models import MODELS
from simulations.arguments import node_configs_of, overrides_of, parse_grid, parse_random, placed
from simulations.catalogue import catalogue, description, summary
from simulations.checking import check_run
from simulations.choosing import Choosing
from simulations.compare import Comparison
from simulations.expansion import expand
from simulations.experiment import find_experiment
from simulations.flower import FlowerError, gpu_share, run_with_flower
from simulations.launch import run_centralized, run_federation, run_nonfederated
from simulations.output import log_off, print_json, progress, stdout_to_stderr
from simulations.plan import TEST, VALIDATION, Sweep
from simulations.records import FINISHED, STOPPED
from simulations.reproduce import Reproduction, ReproductionInterruptedError
from simulations.sweep import SweepInterruptedError, run_sweep
from simulations.tuned import Tuned, find_tuned

SITES_MISSING = 3  # exit code of a run that has finished without some site in some round

cli = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False)

Overrides = Annotated[
    list[str] | None,
    typer.Option("--config", "-c", help="run-config overrides, e.g. 'strategy=\"fedx2\" fedx.gamma=0.5'"),
]
Out = Annotated[Path, typer.Option("--out", help="the run directory to write")]
Clients = Annotated[int, typer.Option("--clients", min=1, help="number of clients")]
ClientsOrSites = Annotated[
    int | None, typer.Option("--clients", min=1, help="number of clients; 8, or one a --node-config")
]
NodeConfigs = Annotated[
    list[str] | None,
    typer.Option("--node-config", "-n", help="once a site: its node config, e.g. 'data-path=\"/srv/a.csv\"'"),
]
Quiet = Annotated[
    bool, typer.Option("--quiet", help="print nothing but errors and missing sites (and what --json asks for)")
]
Json = Annotated[bool, typer.Option("--json", help="print the outcome on stdout as one JSON object, nothing else")]


class Engine(StrEnum):
    """Where the federation runs."""

    INPROCESS = "inprocess"
    FLOWER = "flower"


class SelectOn(StrEnum):
    """The rows by which a sweep chooses."""

    VALIDATION = VALIDATION
    TEST = TEST


class Mode(StrEnum):
    """Which values of a metric are better."""

    MAX = "max"
    MIN = "min"


class Section(StrEnum):
    """What `list` can list."""

    STRATEGIES = "strategies"
    DATASETS = "datasets"
    PARTITIONS = "partitions"
    MODELS = "models"
    KEYS = "keys"
    EXPERIMENTS = "experiments"


class Profile(StrEnum):
    """How much of an experiment is run."""

    SMOKE = "smoke"
    QUICK = "quick"
    FULL = "full"


SECTIONS = {
    "strategies": ("strategies", {name: row.description for name, row in ALGORITHMS.items()}),
    "datasets": ("data sets", DATASETS),
    "partitions": ("partitions", PARTITIONS),
    "models": ("models", {name: entry.description for name, entry in MODELS.items()}),
    "keys": ("run-config keys", known_keys()),
}


@cli.command()
def run(
    out: Out,
    config: Overrides = None,
    clients: ClientsOrSites = None,
    node_config: NodeConfigs = None,
    engine: Annotated[Engine, typer.Option(help="in this process, or Flower's Ray simulation")] = Engine.INPROCESS,
    threads: Annotated[int, typer.Option(min=1, help="clients that train at once (in process); changes no result")] = 1,
    client_gpus: Annotated[
        float | None, typer.Option(min=0, max=1, help="share of a GPU for a client (flower); without, CPUs share them")
    ] = None,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Run one federation and write its run directory. Exit code 3: it has finished, but sites were missing."""
    flat = placed(overrides_of(config), out)
    parse_run_config(flat)
    clients, nodes = _sites(clients, node_config)
    if nodes and engine is Engine.FLOWER:
        raise ConfigError(
            "--node-config",
            got=f"{len(nodes)} with --engine flower",
            allowed="in this process only",
            hint="leave --engine out",
        )
    with log_off(quiet), stdout_to_stderr(as_json):
        try:
            if engine is Engine.FLOWER:
                _run_with_flower(out, clients, flat, client_gpus, quiet)
            else:
                run_federation(clients, flat, threads, nodes)
        except RunFailedError:
            if quiet or engine is Engine.FLOWER:
                raise
            raise SystemExit(1) from None  # the ServerApp has logged the reason
        except KeyboardInterrupt as error:
            print(str(error) or "interrupted", file=sys.stderr)  # Typer would end without a word
            raise SystemExit(130) from None
    outcome = out.expanduser() / "result.json"
    text = outcome.read_text("utf-8")
    if as_json:
        typer.echo(text, nl=False)
    result = json.loads(text)
    if result["dropped"]:
        if quiet:
            missing = in_words(result["dropped"], result["rounds"])
            print(f"{WITH_MISSING}: {missing}; see {outcome}", file=sys.stderr)
        raise SystemExit(SITES_MISSING)


def _sites(clients: int | None, node_config: list[str] | None) -> tuple[int, list[dict[str, Scalar]]]:
    """The number of clients, and their node configs, if they have any."""
    nodes = node_configs_of(node_config)
    if nodes and clients not in (None, len(nodes)):
        raise ConfigError(
            "--node-config",
            got=f"{len(nodes)}, but --clients {clients}",
            allowed="one for each client",
            hint="leave --clients out",
        )
    return clients or len(nodes) or 8, nodes


def _run_with_flower(out: Path, clients: int, flat: dict[str, Any], client_gpus: float | None, quiet: bool) -> None:
    try:
        config = parse_run_config(flat)
        gpus = gpu_share(config.training.device) if client_gpus is None else client_gpus
        together = config.algorithm.strategy.concurrent
        run_with_flower(clients, flat, together=together, client_gpus=gpus, quiet=quiet)
    except FlowerError as error:
        failure = out / "failure.json"
        reason = json.loads(failure.read_text("utf-8"))["reason"] if failure.exists() else str(error)
        raise RunFailedError(reason) from None
    if not (out / "result.json").exists():
        raise RunFailedError(f"the run completed, but left no {out / 'result.json'}")


@cli.command()
def check(config: Overrides = None, clients: ClientsOrSites = None, node_config: NodeConfigs = None) -> None:
    """Try a run config on its data, up to the first round: nothing is trained or written."""
    clients, nodes = _sites(clients, node_config)
    for line in check_run(clients, overrides_of(config), nodes):
        typer.echo(line)


@cli.command()
def centralized(
    out: Out, config: Overrides = None, clients: Clients = 8, quiet: Quiet = False, as_json: Json = False
) -> None:
    """Train on the union of the clients' data: pairwise SGD, or SOX for a non-linear outer function."""
    flat = placed(overrides_of(config), out)
    hook = None if quiet else lambda r, m: typer.echo(f"round {r}  {shown(m)}")
    with log_off(quiet), stdout_to_stderr(as_json):
        run_centralized(clients, flat, hook)
    if as_json:
        typer.echo((out / "result.json").read_text("utf-8"), nl=False)


@cli.command("nonfederated")
def run_without_parties(out: Out, config: Overrides = None, quiet: Quiet = False, as_json: Json = False) -> None:
    """Train a vertical strategy's problem with all columns in one place, without parties, masks or delay."""
    flat = placed(overrides_of(config), out)
    hook = None if quiet else lambda r, m: typer.echo(f"round {r}  {shown(m)}")
    with log_off(quiet), stdout_to_stderr(as_json):
        run_nonfederated(flat, hook)
    if as_json:
        typer.echo((out / "result.json").read_text("utf-8"), nl=False)


@cli.command("list")
def list_everything(
    section: Annotated[Section | None, typer.Argument(help="only these")] = None, as_json: Json = False
) -> None:
    """List strategies, data sets, partitions, models, run-config keys and experiments, one line each."""
    chosen = {name: rows for name, rows in SECTIONS.items() if section in (None, name)}
    experiments = catalogue() if section in (None, Section.EXPERIMENTS) else {}
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
        for name, told in rows.items():
            typer.echo(f"  {name:<{width}}  {told}")


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
    """Compare runs: their metrics in the last evaluated round, their costs, and what differs in their configs."""
    comparison = Comparison.of(directories, name or ())
    drawn = comparison.drawn(metric)
    if out is not None:
        comparison.save(out, drawn)
    if as_json:
        found = {} if drawn is None else comparison.differences(drawn)
        told = [{"runs": label, "less": first, **asdict(gap)} for label, (first, gap) in found.items()]
        print_json({"metric": drawn, "differing": comparison.differing, "runs": comparison.rows(), "differences": told})
    else:
        typer.echo(comparison.text(drawn))


@cli.command()
def sweep(
    out: Annotated[Path, typer.Option("--out", help="the sweep's directory; its runs are in trials/")],
    config: Overrides = None,
    clients: ClientsOrSites = None,
    node_config: NodeConfigs = None,
    grid: Annotated[list[str] | None, typer.Option(help="values to try, e.g. 'learning-rate=0.01,0.1'")] = None,
    random: Annotated[
        list[str] | None, typer.Option(help="values to draw, e.g. 'learning-rate=loguniform(1e-3,1)'")
    ] = None,
    samples: Annotated[int, typer.Option(min=1, help="draws of --random at each grid point")] = 1,
    search_seed: Annotated[int, typer.Option(min=0, help="seed of the draws")] = 0,
    seeds: Annotated[int, typer.Option(min=1, help="seeds of each configuration, counted up from the seed")] = 1,
    metric: Annotated[str, typer.Option(help="what is best is decided on it, in the last round")] = "auc",
    mode: Annotated[Mode | None, typer.Option(help="max or min; min for loss, otherwise max")] = None,
    asha: Annotated[bool, typer.Option("--asha", help="stop the worse trials early (ASHA)")] = False,
    grace: Annotated[int, typer.Option(min=1, help="rounds before --asha may stop a trial")] = 1,
    jobs: Annotated[int, typer.Option(min=1, help="trials at a time, one CPU each")] = 1,
    address: Annotated[str, typer.Option(help="a Ray cluster's address; without, a Ray of its own")] = "",
    select_on: Annotated[
        SelectOn, typer.Option(help="the rows by which is chosen: held out of the training rows, or the test rows")
    ] = SelectOn.VALIDATION,
    resume: Annotated[bool, typer.Option("--resume", help="continue the sweep in --out")] = False,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Search run-config keys on a grid and at random, with Ray Tune. Each trial is a run with its own directory."""
    wanted = mode or (Mode.MIN if better(metric) is min else Mode.MAX)
    if grace > 1 and not asha:
        raise ConfigError(
            "--grace",
            got=f"{grace}, but there is nothing to stop",
            allowed="1, or any with --asha",
            hint="give --asha too",
        )
    clients, nodes = _sites(clients, node_config)
    asked = Sweep(
        clients,
        overrides_of(config),
        parse_grid(grid),
        parse_random(random),
        samples,
        search_seed,
        seeds,
        metric,
        wanted.value,
        grace if asha else 0,
        nodes,
        select_on.value,
    )
    trials = asked.trials(out.expanduser().resolve())
    total = len(trials) + seeds * any(trial.fraction for trial in trials)  # the best runs on the test rows too
    with log_off(quiet), stdout_to_stderr(as_json), progress(total, quiet) as say:
        outcome = run_sweep(asked, out, resume=resume, jobs=jobs, address=address, say=say)
    if as_json:
        print_json(outcome.json())
    elif not quiet:
        typer.echo(outcome.text())
    if not outcome.count(FINISHED, STOPPED):
        reason = next(iter(outcome.rows.values())).reason
        raise RunFailedError(f"all {len(outcome.trials)} trials failed; the first: {' '.join(reason.split())}")


@cli.command()
def reproduce(
    name: Annotated[str, typer.Argument(metavar="NAME", help="an experiment of `list experiments`, or a .toml file")],
    out: Annotated[Path, typer.Option("--out", help="the reproduction's directory; its runs are in runs/")],
    profile: Annotated[Profile, typer.Option(help="how much of it is run")] = Profile.QUICK,
    seeds: Annotated[
        int | None, typer.Option(min=1, help="seeds of every run; without, as many as the profile")
    ] = None,
    jobs: Annotated[int, typer.Option(min=1, help="runs at a time, a process each")] = 2,
    data_dir: Annotated[Path | None, typer.Option("--data-dir", help="the folder of the data sets' files")] = None,
    tune: Annotated[
        bool, typer.Option("--tune", help="choose what [tune] of the file names, on a validation split, before")
    ] = False,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Run an experiment of a paper: all methods and settings with some seeds, a table and a figure."""
    if data_dir is not None and not data_dir.expanduser().exists():
        raise ConfigError(
            "--data-dir",
            got=f"{data_dir}, which does not exist",
            allowed="an existing folder",
            hint="give the folder of the data sets' files",
        )
    folder = None if data_dir is None else data_dir.expanduser().resolve()
    experiment = find_experiment(name)
    if tune:
        choosing = Choosing(expand(experiment, profile.value, seeds, folder), out)
        with log_off(quiet), choosing.open(), progress(len(choosing.waiting), quiet) as say:
            tuned: Tuned | None = choosing.run(jobs, say)
    else:
        tuned = find_tuned(name, experiment.name, profile.value, out)
    reproduction = Reproduction(expand(experiment, profile.value, seeds, folder, tuned), out)
    with stdout_to_stderr(as_json), reproduction.open(), progress(len(reproduction.waiting), quiet) as say:
        outcome = reproduction.run(jobs, say)
    if as_json:
        print_json(outcome.json())
    elif not quiet:
        typer.echo(outcome.text())
    if outcome.failed:
        first, reason = next(iter(outcome.failed.items()))
        count = f"{len(outcome.failed)} of {len(reproduction.runs)} runs failed"
        raise RunFailedError(f"{count}; the first, {first}: {' '.join(reason.split())}")


def main() -> None:
    """Entry point: wrong input is one message on stderr and exit code 1, never a traceback."""
    try:
        cli()
    except (*EXPECTED, RunFailedError) as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(1) from None
    except (SweepInterruptedError, ReproductionInterruptedError) as error:
        print(error, file=sys.stderr)
        raise SystemExit(130) from None
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        raise SystemExit(130) from None


if __name__ == "__main__":
    main()
