"""``python -m simulations``: run, list and centralized references from the command line."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from apps import resources
from apps.artifacts import RunDirectory
from apps.client_app import app as client_app
from apps.config import ConfigError, RunConfig, Scalar, known_keys, parse_run_config
from apps.registry import ALGORITHMS
from apps.server_app import EXPECTED, RunFailedError
from apps.server_app import app as server_app
from apps.training import versions
from problems.data import DATASETS, PARTITIONS
from problems.models import MODELS
from simulations.centralized import centralized as train_centralized
from simulations.engine import run_in_process
from simulations.flower import FlowerError, run_with_flower

cli = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False)

Overrides = Annotated[
    list[str] | None,
    typer.Option("--config", "-c", help="run-config overrides, e.g. 'strategy=\"fedx2\" fedx.gamma=0.5'"),
]
Out = Annotated[Path, typer.Option("--out", help="the run directory to write")]
Clients = Annotated[int, typer.Option("--clients", min=1, help="number of clients")]


class Engine(StrEnum):
    """Where the federation runs."""

    INPROCESS = "inprocess"
    FLOWER = "flower"


def flat_config(overrides: Sequence[str] | None, out: Path) -> dict[str, Scalar]:
    """The flat run config of some ``key=value`` strings (or one TOML file), writing to ``out``."""
    import click
    from flwr.common.config import parse_config_args

    flat: dict[str, Scalar] = {}
    for text in overrides or []:
        try:
            flat |= parse_config_args([text])
        except click.ClickException:
            raise ConfigError(
                f"--config {text!r} is not a list of key=value pairs (strings in double quotes)"
            ) from None
        except (OSError, ValueError) as error:
            raise ConfigError(f"--config {text!r}: {error}") from None
        if text.strip() and "=" not in text and not text.endswith(".toml"):
            raise ConfigError(f"--config {text!r} is not a list of key=value pairs, nor a .toml file")
    for key in ("output-dir", "run-name"):
        if key in flat:
            raise ConfigError(f"{key}: set by --out here, leave it out of --config")
    target = out.expanduser().resolve()
    return {**flat, "output-dir": str(target.parent), "run-name": target.name}


@cli.command()
def run(
    out: Out,
    config: Overrides = None,
    clients: Clients = 8,
    engine: Annotated[Engine, typer.Option(help="in this process, or Flower's Ray simulation")] = Engine.INPROCESS,
) -> None:
    """Run one federation and write its run directory."""
    flat = flat_config(config, out)
    parse_run_config(flat)
    if engine is Engine.INPROCESS:
        try:
            run_in_process(server_app, client_app, clients, flat)
        except RunFailedError:
            raise SystemExit(1) from None  # the ServerApp has logged the reason
        return
    try:
        run_with_flower(clients, flat)
    except FlowerError as error:
        failure = out / "failure.json"
        reason = json.loads(failure.read_text("utf-8"))["reason"] if failure.exists() else str(error)
        raise RunFailedError(reason) from None
    if not (out / "result.json").exists():
        raise RunFailedError(f"the run completed, but left no {out / 'result.json'}")


@cli.command()
def centralized(out: Out, config: Overrides = None, clients: Clients = 8) -> None:
    """Train on the union of the clients' data: pairwise SGD, or SOX for a non-linear outer function."""
    parsed = parse_run_config(flat_config(config, out))
    if parsed.run.resume:
        raise ConfigError("resume: a centralised reference is trained in one go; leave the key out")
    begun = time.perf_counter()
    directory = RunDirectory.open(parsed)
    data = resources.federated_data(parsed.data, clients)
    history, named = train_centralized(parsed, data, lambda r, m: typer.echo(f"round {r}  {_shown(m)}"))
    every = parsed.training.evaluate_every
    total = parsed.training.num_server_rounds
    rounds = [0, *sorted({*range(every, total + 1, every), total})]
    for server_round, metrics in zip(rounds, history, strict=True):
        directory.append({"round": server_round, **metrics})
    directory.save_model(named)  # type: ignore[arg-type]
    directory.finish(_centralized_result(parsed, history, clients, time.perf_counter() - begun))


def _centralized_result(
    config: RunConfig, history: list[dict[str, float]], clients: int, seconds: float
) -> dict[str, Any]:
    best = {name: (min if name == "loss" else max)(m[name] for m in history) for name in history[-1]}
    return {
        "strategy": "centralized",
        "dataset": config.data.dataset,
        "seed": config.training.seed,
        "engine": "centralized",
        "rounds": config.training.num_server_rounds,
        "metrics": history[-1],
        "best": best,
        "bytes_up": 0,
        "bytes_down": 0,
        "wall_seconds": seconds,
        "clients": clients,
        "versions": versions(),
        "config": config.resolved(),
    }


def _shown(metrics: dict[str, float]) -> str:
    return "  ".join(f"{name} {metrics[name]:.4f}" for name in ("auc", "pauc_fpr30", "pauc_fpr50", "loss"))


@cli.command("list")
def list_everything() -> None:
    """List strategies, data sets, partitions, models and run-config keys, one line each."""
    sections = {
        "strategies": {name: row.description for name, row in ALGORITHMS.items()},
        "data sets": DATASETS,
        "partitions": PARTITIONS,
        "models": {name: entry.description for name, entry in MODELS.items()},
        "run-config keys": known_keys(),
    }
    for title, rows in sections.items():
        typer.echo(f"{title}:")
        width = max(map(len, rows))
        for name, description in rows.items():
            typer.echo(f"  {name:<{width}}  {description}")


def main() -> None:
    """Entry point: wrong input is one message on stderr and exit code 1, never a traceback."""
    try:
        cli()
    except (*EXPECTED, RunFailedError) as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(1) from None
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        raise SystemExit(130) from None


if __name__ == "__main__":
    main()
