"""The command ``describe``: table one of all sites, before any model is trained."""

from __future__ import annotations

import json

import typer

from simulations.arguments import (
    ClientsOrSites,
    Json,
    NodeConfigs,
    Out,
    Overrides,
    Quiet,
    add_directory,
    overrides_of,
    sites_of,
)
from simulations.results.output import log_off, stdout_to_stderr

STRATEGY = "describe"


def describe(
    out: Out,
    config: Overrides = None,
    clients: ClientsOrSites = None,
    node_config: NodeConfigs = None,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Print table one of all sites: counts, means, quantiles, categories, differences between sites, warnings.

    No model is trained. The same as `florilegium run` with strategy="describe". Writes describe.txt, describe.csv (one
    line for each figure) and describe.json to the run directory.
    """
    from apps.config import ConfigError
    from apps.server_app import RunFailedError
    from simulations.engines.launch import run_federation

    flat = add_directory({"strategy": STRATEGY, **overrides_of(config)}, out)
    if flat["strategy"] != STRATEGY:
        hint = "remove strategy, or use `florilegium run`"
        raise ConfigError("strategy", got=repr(flat["strategy"]), allowed=repr(STRATEGY), hint=hint)
    clients, nodes = sites_of(clients, node_config)
    with log_off(quiet), stdout_to_stderr(as_json):
        try:
            run_federation(clients, flat, node_configs=nodes)
        except RunFailedError:
            if quiet:
                raise
            raise SystemExit(1) from None  # the ServerApp has already logged the reason
    folder = out.expanduser()
    if as_json:
        typer.echo(json.dumps(json.loads((folder / "describe.json").read_text("utf-8")), indent=2))
    elif not quiet:
        typer.echo((folder / "describe.txt").read_text("utf-8"), nl=False)
