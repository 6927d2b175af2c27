"""Errors that a strategy finds once it knows its clients."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from apps.config import Scalar, parse_run_config
from apps.vertical_evaluation import VerticalEvaluator
from payloads.vfb2 import Credentials, VFB2Settings
from simulations.arguments import overrides_of, placed
from simulations.launch import run_federation
from simulations.output import log_off
from strategies.meeting import addresses_of, check_simulation, check_step
from tests.apps.errors.row import called, run

DATA = 'dataset="breast-cancer" model="linear" num-server-rounds=1 local-steps=1'
VERTICAL = 'strategy="vfb2-sgd" dataset="breast-cancer" num-server-rounds=1'
OWN = "tests.apps.errors.own"


def federation(*nodes: Mapping[str, Scalar], config: str = "") -> Callable[[Path], None]:
    """A run of SuperNodes that say of themselves what --node-config of ``run`` may not."""

    def play(tmp: Path) -> None:
        flat = placed(overrides_of([f'strategy="local-sgd" {DATA} {config}']), tmp / "run")
        with log_off(True):
            run_federation(len(nodes), flat, node_configs=nodes)

    return play


def met(hosts: Sequence[str], transport: str) -> Callable[[Path], object]:
    """Parties of some hosts that look for each other."""

    def meet(tmp: Path) -> object:
        text = {name: np.frombuffer(b"", np.uint8) for name in ("folder", "advertised", "certificate", "digest")}
        shown = []
        for host in hosts:
            given = {**text, "host": np.frombuffer(host.encode(), np.uint8), "port": np.array([1])}
            credentials = object.__new__(Credentials)
            for name, value in given.items():
                object.__setattr__(credentials, name, value)
            shown.append(credentials)
        return addresses_of(shown, transport, 0)  # type: ignore[arg-type]

    return meet


def unmeasured(tmp: Path) -> None:
    config = parse_run_config({"strategy": "vfb2-sgd", "dataset": "breast-cancer"})
    VerticalEvaluator(config, 3, pooled=False).relate({"objective": math.nan})


ROWS = [
    run(
        "more nodes than there are",
        'strategy="local-sgd" min-train-nodes=5',
        DATA,
        says=("min-train-nodes", "2 are connected", "5 clients are needed", "lower min-train-nodes"),
        clients=2,
    ),
    run(
        "more positives than there are",
        'strategy="fedx2" fedx.positive-batch-size=1000',
        DATA,
        says=("fedx.positive-batch-size", "got 1000", "together hold", "lower fedx.positive-batch-size"),
        clients=2,
    ),
    run(
        "larger batch than clients",
        'strategy="fedsgda-spider" fedsgda.large-batch=5',
        DATA,
        says=("fedsgda.large-batch", "got 5", "there are 2 clients", "lower it"),
        clients=2,
    ),
    run(
        "no good reply",
        f'strategy="local-sgd" model="{OWN}:Replacing"',
        'dataset="breast-cancer" num-server-rounds=1',
        says=("min-train-nodes", "0 good replies of 2", "expected the same tensor", "change buffers in place"),
        clients=2,
    ),
    run(
        "no good reply for long",
        f'strategy="composite" model="{OWN}:Replacing" max-retries=0 composite.parameters="all"',
        'dataset="breast-cancer" num-server-rounds=1',
        says=("max-retries", "gave no good reply", "max-retries is 0", "change buffers in place"),
        clients=2,
    ),
    run("one party", VERTICAL, says=("VFB2", "got 1 parties", "at least 2 parties", "take more clients"), clients=1),
    run(
        "two parties", VERTICAL, says=("VFB2", "got 2 parties", "at least 3", "vfb2.allow-two-parties=true"), clients=2
    ),
    run(
        "more active parties than there are",
        VERTICAL,
        "vfb2.active-parties=5",
        says=("vfb2.active-parties", "got 5", "there are 3 parties", "lower it"),
        clients=3,
    ),
    run(
        "delays of other parties",
        VERTICAL,
        'vfb2.delay="0.1,0.2"',
        says=("vfb2.delay", "got 2 numbers", "one a party", "docs/vertical.md"),
        clients=3,
    ),
    run(
        "more parties than columns",
        VERTICAL,
        says=("dataset 'breast-cancer'", "30 columns", "over 31 parties", "take fewer"),
        clients=31,
    ),
    called(
        "step too large for the delay",
        lambda tmp: check_step(1000.0, 3.4, VFB2Settings(check_step="refuse")),
        says=("learning-rate", "got 1000", "steps below", "lower it"),
    ),
    run(
        "intersection of simulated parties",
        VERTICAL,
        'vfb2.alignment="intersection"',
        says=("vfb2.alignment", "got 'intersection'", "data-path", "leave it out"),
        clients=3,
    ),
    # what other machines say
    called(
        "partition claimed twice",
        federation({"partition-id": 0}, {"partition-id": 0}),
        says=("partition 0", "claimed by two sites", "allowed: one", "--node-config"),
    ),
    called(
        "sites that do not join",
        federation({"num-partitions": 3}, {}, config="handshake-timeout=0.1"),
        says=("handshake-timeout", "2 of 3 sites joined", "missing partitions: 2", "sets the wait"),
    ),
    called(
        "sockets of several hosts",
        met(["a", "b"], "unix"),
        says=("vfb2.transport", "got 'unix'", "allowed: auto, tcp", "leave it out"),
    ),
    called(
        "party without an address",
        met(["a", "b"], "auto"),
        says=("party 0, 1", "has no address", 'advertise="host:port"', "--node-config"),
    ),
    called(
        "parties and the machine's threads",
        lambda tmp: check_simulation(100, 2, None),
        says=("100 parties", "must run at once", "at most", "take fewer parties"),
    ),
    called(
        "parties and Ray's clients",
        lambda tmp: check_simulation(4, 8, 2),
        says=("4 parties", "Ray runs 2 clients", "must run at once", "--federation-config"),
    ),
    called(
        "vertical metrics that are not finite",
        unmeasured,
        says=("objective nan", "not finite", "the run has diverged", "lower learning-rate"),
    ),
]
