"""The command line ``florilegium``.

Each command imports its modules when it runs. ``--help``, ``--version``, ``list`` and shell completion load neither
PyTorch nor Flower, and therefore respond at once.
"""

from __future__ import annotations

import json
import logging
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn

import click
import typer
from typer.core import TyperGroup

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
from simulations.describing import describe
from simulations.experiments.command import reproduce
from simulations.listing import list_everything
from simulations.results.output import log_off, print_json, progress, stdout_to_stderr
from simulations.scoring.command import card, evaluate, export, predict, scorecard
from simulations.sweeps.command import sweep

SITES_MISSING = 3  # exit code of a finished run in which a site was missing in some round


class _Commands(TyperGroup):
    """The commands. An error about a key without ``-c`` names the option."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except click.UsageError as error:
            options = [name for option in error.ctx.command.params for name in option.opts] if error.ctx else []
            if "unexpected extra argument" in error.message and "=" in error.message and "-c" in options:
                hint = "Keys are one text after -c, for example -c 'strategy=\"fedx2\" fedx.gamma=0.5'"
                raise click.UsageError(f"{error.message}. {hint}", error.ctx) from None
            raise


cli = typer.Typer(cls=_Commands, no_args_is_help=True, pretty_exceptions_enable=False)


def _print_version(wanted: bool) -> None:
    from apps.run_directory.versions import NAME, project_version

    if wanted:
        typer.echo(f"{NAME} {project_version()}")
        raise typer.Exit


@cli.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="print the version")
    ] = False,
) -> None:
    """Federated learning beyond empirical risk minimisation."""


@cli.command()
def run(
    out: Out,
    config: Overrides = None,
    clients: ClientsOrSites = None,
    node_config: NodeConfigs = None,
    engine: Annotated[
        Literal["inprocess", "ray", "flower"],
        typer.Option(help="where clients run: in this process, in Ray workers, or in Flower's own simulation"),
    ] = "inprocess",
    threads: Annotated[
        int,
        typer.Option(
            min=1, help="number of clients that train at the same time (same results); needs --engine inprocess"
        ),
    ] = 1,
    stack: Stacked = "1",
    client_gpus: Annotated[
        float | None,
        typer.Option(
            min=0,
            max=1,
            help="share of a GPU for each client; needs --engine flower; default: all GPUs divided by the CPUs",
        ),
    ] = None,
    address: Annotated[
        str | None,
        typer.Option(
            help="address of a Ray cluster's head node, or auto for a Ray on this machine; needs --engine ray; "
            "default: start a local Ray"
        ),
    ] = None,
    workers: Annotated[
        int | None, typer.Option(min=1, help="number of Ray workers; needs --engine ray; default: one for each CPU")
    ] = None,
    gpus_per_worker: Annotated[
        float | None, typer.Option(min=0, help="share of a GPU for each Ray worker; needs --engine ray")
    ] = None,
    baselines: Annotated[
        bool,
        typer.Option(
            "--baselines", help="compare the run with a model of each site's rows alone, and of all sites' rows pooled"
        ),
    ] = False,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Run a federation on this machine or a Ray cluster, and write its run directory.

    Exit code 3: the run has finished, but a site was missing in at least one round.
    """
    from apps.config import ConfigError, parse_run_config
    from apps.run_directory.missing import WITH_MISSING, in_words
    from apps.server_app import RunFailedError
    from simulations.baselines import check_baselines, train_baselines
    from simulations.engines.launch import run_federation

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
            hint = f"remove {option}, or add --engine ray"
            raise ConfigError(option, got=got, allowed="a value only with --engine ray", hint=hint)
    if engine == "flower":
        for option, value in (("--node-config", len(nodes)), ("--stack", 0 if limit == 1 else limit)):
            if value:
                got, allowed = f"{value} with --engine flower", "a value only with --engine inprocess or ray"
                raise ConfigError(option, got=got, allowed=allowed, hint=f"remove {option}, or remove --engine")
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
            raise SystemExit(1) from None  # the ServerApp has already logged the reason
        except KeyboardInterrupt as error:
            print(str(error) or "interrupted", file=sys.stderr)  # Typer would print nothing
            raise SystemExit(130) from None
    if baselines:
        with progress(clients + 1, quiet) as show:
            compared = train_baselines(out.expanduser(), clients, flat, nodes, show)
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
            missing = in_words(result["dropped"], result["rounds"], result.get("site_names"))
            print(f"{WITH_MISSING}: {missing}; see {outcome}", file=sys.stderr)
        raise SystemExit(SITES_MISSING)


def _run_with_flower(out: Path, clients: int, flat: dict[str, Any], client_gpus: float | None, quiet: bool) -> None:
    from apps.config import parse_run_config
    from apps.server_app import RunFailedError
    from simulations.engines.flower import FlowerError, gpu_share, run_with_flower

    config = parse_run_config(flat)
    gpus = gpu_share(config.training.device) if client_gpus is None else client_gpus
    try:
        run_with_flower(clients, flat, together=config.algorithm.strategy.clients_meet, client_gpus=gpus, quiet=quiet)
    except FlowerError as error:
        failure = out / "failure.json"
        reason = json.loads(failure.read_text("utf-8"))["reason"] if failure.exists() else str(error)
        raise RunFailedError(reason) from None
    if not (out / "result.json").exists():
        raise RunFailedError(
            f"Flower completed the run, but the run did not write {out / 'result.json'}: "
            "repeat it without --quiet, and look for an error in Flower's log"
        )


@cli.command()
def check(config: Overrides = None, clients: ClientsOrSites = None, node_config: NodeConfigs = None) -> None:
    """Check a run config and its data: let all sites join and make the model, without training or writing files."""
    from simulations.engines.checking import check_run

    clients, nodes = sites_of(clients, node_config)
    for line in check_run(clients, overrides_of(config), nodes):
        typer.echo(line)


@cli.command()
def centralized(
    out: Out, config: Overrides = None, clients: Clients = 8, quiet: Quiet = False, as_json: Json = False
) -> None:
    """Train a reference on all clients' pooled data: the same loss, without a federation.

    The optimiser is mini-batch SGD, or SOX if the loss has a non-linear outer function. For a vertical strategy, whose
    parties have different columns, it is the strategy's algorithm with all columns pooled, without masks.
    """
    from apps.evaluation.metric_names import format_metrics
    from simulations.engines.launch import run_pooled

    flat = add_directory(overrides_of(config), out)
    hook = None if quiet else lambda r, m: typer.echo(f"round {r}  {format_metrics(m)}")
    with log_off(quiet), stdout_to_stderr(as_json):
        run_pooled(clients, flat, hook)
    if as_json:
        typer.echo((out.expanduser() / "result.json").read_text("utf-8"), nl=False)


@cli.command()
def compare(
    directories: Annotated[list[Path], typer.Argument(metavar="DIR...", help="run directories")],
    metric: Annotated[
        str | None, typer.Option(help="metric of the curves in compare.png; default: auc if the runs have it")
    ] = None,
    name: Annotated[
        list[str] | None,
        typer.Option(
            help="name of a curve; repeat the option for each curve; runs that differ only in the seed share a curve"
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", help="folder for compare.csv and compare.png")] = None,
    as_json: Json = False,
) -> None:
    """Print a table of the runs in DIR...: final metrics, costs, and the run-config keys in which they differ.

    The metrics are from the last evaluated round, or of the selected model on test rows if a run selected a round.
    """
    from simulations.results.compare import Comparison
    from simulations.results.row_differences import COMPARED, compare_rows, tabulate

    comparison = Comparison.of(directories, name or ())
    drawn = comparison.choose_metric(metric)
    if out is not None:
        comparison.save(out, drawn)
    if as_json:
        gaps = {} if drawn is None else comparison.differences(drawn)
        differences = [{"runs": label, "less": first, **asdict(gap)} for label, (first, gap) in gaps.items()]
        over_rows = compare_rows(comparison.runs, drawn) if drawn in COMPARED else []
        print_json(
            {
                "metric": drawn,
                "differing": comparison.differing,
                "runs": comparison.rows(),
                "differences": differences,
                "over_rows": over_rows,
            }
        )
    else:
        typer.echo(comparison.text(drawn))
        if drawn in COMPARED and (over_rows := compare_rows(comparison.runs, drawn)):
            typer.echo(f"\n{tabulate(over_rows).text()}")


@cli.command()
def report(
    directories: Annotated[list[Path], typer.Argument(metavar="RUN...", help="run directories")],
    out: Annotated[
        Path | None,
        typer.Option("--out", help="file to write; default for a single run: report.html in the run directory"),
    ] = None,
) -> None:
    """Write an HTML page about the run directories RUN...: curves, metrics, missing sites and config.

    The page needs no other files. The runs need not have finished.
    """
    from simulations.results.report import write_report

    typer.echo(write_report(directories, out))


cli.command("list")(list_everything)
for command in (describe, predict, scorecard, evaluate, export, card, sweep, reproduce):
    cli.command()(command)


def main() -> None:
    """Run the command line. Wrong input causes a message on stderr and exit code 1, never a traceback."""
    if logging.lastResort is not None:  # prints the warnings of modules without Flower
        logging.lastResort.setFormatter(logging.Formatter("%(levelname)s: %(message)s"))
    try:
        cli()
    except KeyboardInterrupt:
        _end("interrupted", 130)
    except Exception as error:
        from apps.server_app import EXPECTED, RunFailedError
        from simulations.results.records import RunsInterruptedError

        if isinstance(error, RunsInterruptedError):
            _end(str(error), 130)
        if isinstance(error, (*EXPECTED, RunFailedError)):
            _end(f"error: {error}", 1)
        raise


def _end(reason: str, code: int) -> NoReturn:
    print(reason, file=sys.stderr)
    raise SystemExit(code) from None


if __name__ == "__main__":
    main()
