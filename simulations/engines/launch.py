"""Entry points that compute a federation or a reference, and write the run directory.

A reference is a training without a federation: ``centralized`` (all rows pooled) or ``nonfederated`` (all columns).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

from apps.client_app import app as client_app
from apps.config import ConfigError, RunConfig, Scalar, parse_run_config
from apps.evaluation.metric_names import better
from apps.run_directory.artifacts import RunDirectory
from apps.run_directory.versions import versions
from apps.server_app import app as server_app
from apps.sites import resources
from problems.data import Preprocessing, SampleFormat
from problems.errors import require
from simulations.arguments import Cluster, Stack
from simulations.engines.in_process import run_in_process
from simulations.engines.stacked.messages import make_stacker
from simulations.references.centralized import RoundHook, check_centralized, train_centralized
from simulations.references.nonfederated import check_vertical, train_nonfederated

IN_PROCESS, CENTRALIZED, NONFEDERATED = "in-process", "centralized", "nonfederated"  # values of "engine" in result.json

# A trained reference: metrics of each evaluated round, entries of the model file, preprocessing, and form of samples.
Trained = tuple[list[dict[str, float]], dict[str, object], Preprocessing | None, SampleFormat | None]


def launch(engine: str, clients: int, config: Mapping[str, Scalar], stack: Stack = 1) -> None:
    """Compute a federation in this process, or a reference.

    Args:
        engine: "centralized" or "nonfederated" for a reference. Other values: a federation in this process.
        clients: The number of clients. A nonfederated reference ignores it.
        config: The flat run config, including the keys of the run directory (see `add_directory`).
        stack: The maximum number of clients in one computation, see `run_federation`.

    Raises:
        RunFailedError: A federation has no result.
        ConfigError: A reference cannot be trained with this config, or the run directory contains a run.
    """
    if engine == CENTRALIZED:
        run_centralized(clients, config)
    elif engine == NONFEDERATED:
        run_nonfederated(config)
    else:
        run_federation(clients, config, stack=stack)


def check_reference(engine: str, config: RunConfig) -> None:
    """Check that a reference can be trained with a config. Engines that are not references pass.

    Raises:
        ConfigError: The strategy of a nonfederated reference is not vertical. Or a centralized reference does not
            support the loss. Or the config sets an evaluation key, such as ``select-by``, which references lack.
    """
    if engine in (CENTRALIZED, NONFEDERATED):
        for key, value in config.evaluation.model_dump(by_alias=True, exclude_defaults=True).items():
            got = f"{value!r} for a {engine} reference"
            allowed = "no value, since a reference only measures each round's metrics"
            raise ConfigError(key, got=got, allowed=allowed, hint=f"remove {key}")
    if engine == NONFEDERATED:
        check_vertical(config)
    elif engine == CENTRALIZED:
        check_centralized(config)


def run_federation(
    clients: int,
    config: Mapping[str, Scalar],
    threads: int = 1,
    node_configs: Sequence[Mapping[str, Scalar]] = (),
    stack: Stack = 1,
    cluster: Cluster | None = None,
) -> None:
    """Run a federation in this process, or with its clients in Ray workers.

    Args:
        clients: The number of clients.
        config: The flat run config, including the keys of the run directory (see `add_directory`).
        threads: The number of clients that train at the same time.
        node_configs: The node config of each client. Empty: no node configs.
        stack: The maximum number of clients that train as one batched computation, or "auto" for the fastest number.
            Results differ by rounding errors. With 1 a run is bit-identical to a run on Flower's own engine.
        cluster: The Ray workers. None: everything runs in this process.

    Raises:
        ConfigError: ``threads`` is above 1, and ``stack`` is not 1 or there is a ``cluster``. Or there is a
            ``cluster``, and the strategy is vertical.
        MissingExtraError: Ray is not installed.
        RunFailedError: The run has no result. The log and failure.json also contain the reason.
    """
    if threads > 1 and (stack != 1 or cluster is not None):
        option = "--engine ray" if cluster is not None else f"--stack {stack}"
        raise ConfigError("--threads", got=f"{threads} with {option}", allowed="1", hint="remove --threads")
    if cluster is not None:
        if (parsed := parse_run_config(config)).algorithm.strategy.clients_meet:
            got = f"ray with strategy {parsed.run.strategy!r}"
            allowed = "inprocess or flower, since the parties of this strategy send messages to each other"
            raise ConfigError("--engine", got=got, allowed=allowed, hint="remove --engine")
        require("--engine ray", "simulation", "ray")
        from simulations.engines.on_ray import run_on_ray  # imported here, since Ray takes a second to load

        run_on_ray(server_app, clients, config, node_configs, stack, cluster=cluster)
        return
    together = make_stacker(stack, config)
    run_in_process(server_app, client_app, clients, config, threads, node_configs, together)


def run_pooled(clients: int, config: Mapping[str, Scalar], on_round: RoundHook | None = None) -> None:
    """Train the reference of a config's strategy, and write its run directory. Vertical: ``nonfederated``.

    Raises:
        ConfigError: The reference does not support the config, or the run directory contains a run.
    """
    if parse_run_config(config).algorithm.sites.hold_columns:
        run_nonfederated(config, on_round)
    else:
        run_centralized(clients, config, on_round)


def run_centralized(clients: int, config: Mapping[str, Scalar], on_round: RoundHook | None = None) -> None:
    """Train the reference with all clients' rows pooled, and write its run directory.

    Raises:
        ConfigError: The reference does not support the loss, or the run directory contains a run.
    """

    def train(parsed: RunConfig) -> Trained:
        data = resources.federated_data(parsed.data, clients)
        return *train_centralized(parsed, data, on_round), data.columns, data.sample_format

    run_reference(CENTRALIZED, config, clients, train)


def run_nonfederated(config: Mapping[str, Scalar], on_round: RoundHook | None = None) -> None:
    """Train the reference of a vertical strategy with all columns pooled, and write its run directory.

    Raises:
        ConfigError: The strategy is not vertical, or the run directory contains a run.
    """
    run_reference(NONFEDERATED, config, 1, lambda parsed: (*train_nonfederated(parsed, on_round), None, None))


def run_reference(name: str, config: Mapping[str, Scalar], clients: int, train: Callable[[RunConfig], Trained]) -> None:
    """Train a reference without interruption, and write its run directory.

    Args:
        name: The name of the reference in result.json.
        config: The flat run config, including the keys of the run directory.
        clients: The number of clients in result.json.
        train: A function that trains the reference.

    Raises:
        ConfigError: The config sets ``resume`` or a key that references lack, or the run directory contains a run.
    """
    parsed = parse_run_config(config)
    if parsed.run.resume:
        allowed = f"false, since a {name} reference is trained in one go"
        raise ConfigError("resume", got="true", allowed=allowed, hint="remove resume")
    check_reference(name, parsed)
    begun = time.perf_counter()
    directory = RunDirectory.open(parsed, name)
    history, entries, columns, sample_format = train(parsed)
    every, total = parsed.training.evaluate_every, parsed.training.num_server_rounds
    rounds = [0, *sorted({*range(every, total + 1, every), total})]
    for server_round, metrics in zip(rounds, history, strict=True):
        directory.append({"round": server_round, **metrics})
    if columns is not None:
        directory.save_columns(columns)
    directory.save_model(entries)  # type: ignore[arg-type]
    result = {
        "strategy": name,
        "dataset": parsed.data.dataset,
        "seed": parsed.training.seed,
        "engine": name,
        "rounds": total,
        "metrics": history[-1],
        "best": {metric: better(metric)(metrics[metric] for metrics in history) for metric in history[-1]},
        "bytes_up": 0,
        "bytes_down": 0,
        "wall_seconds": time.perf_counter() - begun,
        "clients": clients,
        "samples": sample_format and sample_format.to_json(),
        "versions": versions(),
        "config": parsed.resolve(),
    }
    directory.finish(result, pictures=parsed.run.pictures)
