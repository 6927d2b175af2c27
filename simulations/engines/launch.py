"""Starts one run here: a federation in this process, or a centralised reference. Both leave a run directory."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from apps.client_app import app as client_app
from apps.config import ConfigError, RunConfig, Scalar, flatten, parse_run_config
from apps.evaluation.metric_names import better
from apps.run_directory.artifacts import RunDirectory
from apps.run_directory.versions import versions
from apps.server_app import app as server_app
from apps.sites import resources
from problems.data import Preprocessing, SampleFormat
from problems.errors import require
from simulations.arguments import Cluster, Stack, add_directory
from simulations.engines.in_process import run_in_process
from simulations.engines.stacked.messages import make_stacker
from simulations.references.centralized import RoundHook, check_centralized, train_centralized
from simulations.references.nonfederated import check_vertical, train_nonfederated
from simulations.results.output import log_off
from simulations.results.records import RunRecord, read_run

IN_PROCESS, CENTRALIZED, NONFEDERATED = "in-process", "centralized", "nonfederated"  # as result.json names them

# the metrics of each evaluated round, the entries of the model file, a table's columns, and what the samples were
Trained = tuple[list[dict[str, float]], dict[str, object], Preprocessing | None, SampleFormat | None]


def launch(engine: str, clients: int, config: Mapping[str, Scalar], stack: Stack = 1) -> None:
    """Run a flat run config, which names its run directory, in this process or as a reference.

    Args:
        engine: "centralized" or "nonfederated" for a reference; anything else is a federation in this process.
        clients: Their number; a nonfederated reference has none.
        stack: Of a federation, see `run`.

    Raises:
        RunFailedError: A federation has no result.
        ConfigError: A reference cannot be trained with this config, or a run is there already.
    """
    if engine == CENTRALIZED:
        run_centralized(clients, config)
    elif engine == NONFEDERATED:
        run_nonfederated(config)
    else:
        run_federation(clients, config, stack=stack)


def check_reference(engine: str, config: RunConfig) -> None:
    """Check that there is the reference that an engine names; other engines pass.

    Raises:
        ConfigError: A nonfederated reference is named, but the strategy is not vertical, or a centralized one, but the
            loss has none; or the reference is to select a model, or to have figures.
    """
    if engine in (CENTRALIZED, NONFEDERATED):
        for key, value in config.evaluation.model_dump(by_alias=True, exclude_defaults=True).items():
            got, allowed = f"{value!r} of a {engine} reference", "nothing, since it has metrics of its rounds alone"
            raise ConfigError(key, got=got, allowed=allowed, hint="leave it out")
    if engine == NONFEDERATED:
        check_vertical(config)
    elif engine == CENTRALIZED:
        check_centralized(config)


def run(
    config: Mapping[str, Any],
    out: str | Path,
    clients: int | None = None,
    *,
    threads: int = 1,
    stack: Stack = 1,
    node_configs: Sequence[Mapping[str, Scalar]] = (),
    cluster: Cluster | None = None,
    quiet: bool = False,
) -> RunRecord:
    """Run one federation in this process, or with its clients in workers of Ray, and read its run directory.

    Args:
        config: The run config, with tables or with flat keys: ``{"fedx": {"gamma": 0.5}}`` or ``{"fedx.gamma": 0.5}``.
        out: The run directory to write.
        clients: Their number; without it 8, or one for each node config.
        threads: Clients that train at once; changes no result.
        stack: Clients that are computed as one, at most, or "auto"; changes results by rounding. With 1 a run is
            bit-identical to one of Flower's own engine.
        node_configs: One for each client, as its SuperNode would have; empty: none.
        cluster: Where the workers are; None: everything is in this process.
        quiet: Write no log.

    Raises:
        RunFailedError: The run has no result; the message says why.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> config = {"strategy": "local-sgd", "model": "linear", "num-server-rounds": 1, "pictures": False}
        >>> with TemporaryDirectory() as folder:
        ...     record = run(config, f"{folder}/run", clients=2, quiet=True)
        >>> record.status
        'finished'
    """
    flat = add_directory(flatten(config), Path(out))
    with log_off(quiet):
        run_federation(clients or len(node_configs) or 8, flat, threads, node_configs, stack, cluster)
    return read_run(Path(out).expanduser())


def run_federation(
    clients: int,
    config: Mapping[str, Scalar],
    threads: int = 1,
    node_configs: Sequence[Mapping[str, Scalar]] = (),
    stack: Stack = 1,
    cluster: Cluster | None = None,
) -> None:
    """Run a federation in this process, or with its clients in workers of Ray.

    Args:
        node_configs: One for each client, as SuperNodes have; empty: none.

    Raises:
        ConfigError: ``threads`` is above 1, and so is ``stack``; or there is a ``cluster``, and ``threads`` is above 1
            or the strategy vertical.
        MissingExtraError: Ray is not installed.
        RunFailedError: The run has no result; the log and failure.json have the reason too.
    """
    if threads > 1 and (stack != 1 or cluster is not None):
        other = "--engine ray" if cluster is not None else f"--stack {stack}"
        raise ConfigError("--threads", got=f"{threads} with {other}", allowed="1", hint="leave one of both out")
    if cluster is not None:
        if (parsed := parse_run_config(config)).algorithm.strategy.clients_meet:
            got, allowed = (
                f"ray with {parsed.run.strategy}",
                "inprocess or flower, since its parties talk to each other",
            )
            raise ConfigError("--engine", got=got, allowed=allowed, hint="leave it out")
        require("--engine ray", "simulation", "ray")
        from simulations.engines.on_ray import run_on_ray  # Ray takes a second that no other run needs

        run_on_ray(server_app, clients, config, node_configs, stack, cluster=cluster)
        return
    together = make_stacker(stack, config)
    run_in_process(server_app, client_app, clients, config, threads, node_configs, together)


def run_centralized(clients: int, config: Mapping[str, Scalar], on_round: RoundHook | None = None) -> None:
    """Run the same training with the clients' data in one place.

    Raises:
        ConfigError: There is no such reference, or a run is there already.
    """

    def train(parsed: RunConfig) -> Trained:
        data = resources.federated_data(parsed.data, clients)
        return *train_centralized(parsed, data, on_round), data.columns, data.sample_format

    run_reference(CENTRALIZED, config, clients, train)


def run_nonfederated(config: Mapping[str, Scalar], on_round: RoundHook | None = None) -> None:
    """Run the same training of a vertical strategy with all columns in one place.

    Raises:
        ConfigError: The strategy is not vertical, or a run is there already.
    """
    run_reference(NONFEDERATED, config, 1, lambda parsed: (*train_nonfederated(parsed, on_round), None, None))


def run_reference(name: str, config: Mapping[str, Scalar], clients: int, train: Callable[[RunConfig], Trained]) -> None:
    """Train a reference in one go and write its run directory.

    Args:
        name: The name of the reference, for result.json.
        config: The flat run config.
        clients: The number of clients, for result.json.
        train: Returns the metrics of each evaluated round, the entries of the model file, the columns and the format.

    Raises:
        ConfigError: The config asks for a resumed run, a selection or figures, or a run is there already.
    """
    parsed = parse_run_config(config)
    if parsed.run.resume:
        allowed = f"false, since a {name} reference is trained in one go"
        raise ConfigError("resume", got="true", allowed=allowed, hint="leave it out")
    check_reference(name, parsed)
    begun = time.perf_counter()
    directory = RunDirectory.open(parsed, name)
    history, named, columns, sample_format = train(parsed)
    every, total = parsed.training.evaluate_every, parsed.training.num_server_rounds
    rounds = [0, *sorted({*range(every, total + 1, every), total})]
    for server_round, metrics in zip(rounds, history, strict=True):
        directory.append({"round": server_round, **metrics})
    if columns is not None:
        directory.save_columns(columns)
    directory.save_model(named)  # type: ignore[arg-type]
    result = {
        "strategy": name,
        "dataset": parsed.data.dataset,
        "seed": parsed.training.seed,
        "engine": name,
        "rounds": total,
        "metrics": history[-1],
        "best": {metric: better(metric)(found[metric] for found in history) for metric in history[-1]},
        "bytes_up": 0,
        "bytes_down": 0,
        "wall_seconds": time.perf_counter() - begun,
        "clients": clients,
        "samples": sample_format and sample_format.to_json(),
        "versions": versions(),
        "config": parsed.resolve(),
    }
    directory.finish(result, pictures=parsed.run.pictures)
