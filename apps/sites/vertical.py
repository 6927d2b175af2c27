"""The parties of vertical learning: what a node holds, from the run's data set or from the site's own file."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from flwr.app import Context
from numpy.typing import NDArray

from apps.run_config.algorithm import RunConfig
from apps.run_config.settings import ConfigError
from apps.sites.files import make_folder, write_tensors
from apps.sites.flip_memory import FlipMemory
from apps.sites.party_policy import policy_of
from apps.sites.party_table import PartyTable
from apps.sites.rows import DATA_PATH
from apps.sites.state_store import RUN_TOKEN, state_dir
from clients.parties import Party, PartyData, Rows
from clients.vertical.policy import Policy, PolicyError
from clients.vertical.segment.plan import Holding
from clients.vertical.transport.identity import Identity
from clients.vfb2 import VFB2Client
from payloads.settings import Settings
from payloads.vfb2 import VFB2Settings
from problems.data import DataError, DataSpec
from problems.data.spec import DRAWN, GENERIC
from problems.errors import NOTHING
from problems.vertical.data import VerticalData, load_vertical
from problems.vertical.objectives import make_objective

PEER_FILES = ("peer-cert", "peer-key", "peer-ca")
# What `partition` means where columns are spread instead of rows.
COLUMN_PARTITIONS = {"iid": "random", "consecutive": "consecutive"}

_load_lock = threading.Lock()
T = TypeVar("T", bool, str)


def check_columns(strategy: str, spec: DataSpec, vfb2: Settings) -> None:
    """Refuse data settings that make no sense where all clients hold the same rows."""
    assert isinstance(vfb2, VFB2Settings)
    clients_columns = f"since the clients of strategy {strategy!r} hold columns of the same rows"
    if spec.dataset in DRAWN:
        raise ConfigError(
            "dataset",
            got=f"{spec.dataset!r}, whose clients draw rows of their own",
            allowed=f"any but {', '.join(DRAWN)}, {clients_columns}",
            hint="see docs/vertical.md",
        )
    partitions = " or ".join(COLUMN_PARTITIONS)
    for key, got, fits, allowed in (
        ("partition", spec.partition, spec.partition in COLUMN_PARTITIONS, partitions),
        ("feature-columns", spec.feature_columns, not spec.feature_columns, "''"),
        ("standardise", spec.standardise, spec.standardise, "True"),
        ("client-shift", spec.client_shift, spec.client_shift == 0, "0.0"),
        ("partition-sites", spec.partition_sites, spec.partition_sites == 0, "0"),
    ):
        if not fits:
            way_out = "leave it out, see docs/vertical.md"
            raise ConfigError(key, got=repr(got), allowed=f"{allowed}, {clients_columns}", hint=way_out)
    if vfb2.label_epsilon and not make_objective(vfb2.problem).classification:
        raise ConfigError(
            "vfb2.label-epsilon",
            got=vfb2.label_epsilon,
            allowed=f"0, since problem {vfb2.problem!r} has no classes",
            hint="leave it out, or set vfb2.problem",
        )


class SimulatedParty:
    """A party's columns of a data set that all simulated parties load. Row numbers serve as ids."""

    def __init__(self, data: VerticalData, place: int, *, labelled: bool) -> None:
        train, test = data.party(place)
        self.names = [str(column) for column in data.columns[place]]
        labels = (data.train_labels, data.test_labels) if labelled else (None, None)
        self.labelled = labelled
        self.columns = int(train.shape[1])
        self._holding = Holding(train, test, *labels)
        self._rows = int(train.shape[0]) + int(test.shape[0])

    def ids(self, rows: Rows | None) -> Sequence[str]:
        return [str(row) for row in (range(self._rows) if rows is None else rows)]

    def holding(self, rows: Rows | None) -> Holding:
        if rows is not None:
            raise ValueError("simulated parties hold the same rows")
        return self._holding

    def keepsake(self, rows: Rows | None) -> dict[str, NDArray[np.float64]]:
        return {}

    def training_marks(self, rows: Rows | None) -> Sequence[str] | None:
        return None


def vertical_data(config: RunConfig, parties: int) -> VerticalData:
    """The data set with its columns spread over the parties, loaded once per process."""
    numbers = config.data.dataset in GENERIC and not config.data.positive_label
    regression = numbers and not make_objective(settings_of(config).problem).classification
    with _load_lock:
        return _vertical_data(config.data, parties, regression)


@lru_cache(maxsize=2)
def _vertical_data(spec: DataSpec, parties: int, regression: bool) -> VerticalData:
    how = COLUMN_PARTITIONS[spec.partition]
    return load_vertical(replace(spec, partition="iid"), parties, partition=how, regression=regression)


def settings_of(config: RunConfig) -> VFB2Settings:
    """The run's table ``vfb2``."""
    assert isinstance(config.family, VFB2Settings)
    return config.family


def make_party(config: RunConfig, context: Context, place: int, parties: int) -> Party:
    """Return the party of a node. Its data are first read by `Party.data`, which raises `DataError` if they cannot be.

    Raises:
        ConfigError: the node config is wrong, or the run config does not fit it.
        PolicyError: the party's policy forbids the run.
    """
    node = context.node_config
    vfb2 = settings_of(config)
    policy = _policy(vfb2, node, place, parties)
    load: Callable[[], PartyData]
    if DATA_PATH in node:
        if config.data.dataset not in ("csv", "parquet"):
            allowed = f"csv, parquet, since a party with a {DATA_PATH} reads a table"
            raise ConfigError("dataset", got=repr(config.data.dataset), allowed=allowed, hint="set it to one")
        load = partial(_own_table, Path(str(node[DATA_PATH])).expanduser(), config, place)
    elif vfb2.alignment == "intersection":
        raise ConfigError(
            "vfb2.alignment",
            got="'intersection' with simulated parties, who hold the same rows",
            allowed=f"that for parties whose node config has a {DATA_PATH}",
            hint="give them one, or leave it out",
        )
    elif config.data.dataset in GENERIC and not config.data.data_dir:
        raise ConfigError(
            f"partition {place}: {DATA_PATH}",
            got=NOTHING,
            allowed=f"a table, since dataset {config.data.dataset!r} is read from files",
            hint=f"give the node a {DATA_PATH}, or set data-dir",
        )
    else:
        load = partial(_simulated, config, parties, place, labelled=place < vfb2.active_parties)
    folder = state_dir(node)
    identity, authority = _identity(node)
    return Party(
        place,
        parties,
        load,
        identity=identity,
        authority=authority,
        advertised=_of(node, "advertise", ""),
        share=_of(node, "share-block", True),
        policy=policy,
        flips=None if folder is None else FlipMemory(folder),
    )


def _policy(vfb2: VFB2Settings, node: Mapping[str, Any], place: int, parties: int) -> Policy:
    """Return a node's policy, after checking that it allows the run's settings.

    Raises:
        PolicyError: it does not allow them, or cannot be read.
    """
    try:
        policy = policy_of(node)
        policy.check_run(
            parties,
            label_epsilon=vfb2.label_epsilon,
            masking=vfb2.masking,
            intersection=vfb2.alignment == "intersection",
        )
    except PolicyError as error:
        raise error.at(f"party {place}") from None
    return policy


def keep(client: VFB2Client, context: Context, config: Mapping[str, Any]) -> None:
    """Write a party's own block after the last segment under its ``state-dir``, if it has one.

    Args:
        config: the message's config record.
    """
    base = state_dir(context.node_config)
    if client.keepsake is None or base is None:
        return
    run = str(config.get(RUN_TOKEN, "")) or client.inbox.salt.tobytes().hex()
    folder = base / run / f"client-{client.party.partition_id}"
    make_folder(folder, private=True)
    told = {"format": "florilegium-block", "columns": json.dumps(client.party.data.names)}
    write_tensors(folder / "block.safetensors", client.keepsake, told, private=True)


def _simulated(config: RunConfig, parties: int, place: int, *, labelled: bool) -> SimulatedParty:
    return _simulated_party(vertical_data(config, parties), place, labelled=labelled)


_simulated_party = lru_cache(maxsize=256)(SimulatedParty)


@lru_cache(maxsize=4)
def _read_table(path: Path, changed: int, spec: DataSpec, id_column: str, problem: str) -> PartyTable:
    return PartyTable(path, spec, id_column, classification=make_objective(problem).classification)


def _own_table(path: Path, config: RunConfig, place: int) -> PartyTable:
    vfb2 = settings_of(config)
    try:
        if not path.is_file():
            raise DataError(repr(str(path)), got="no such file", allowed="an existing file", hint="give its path")
        with _load_lock:
            return _read_table(path, path.stat().st_mtime_ns, config.data, vfb2.id_column, vfb2.problem)
    except DataError as error:
        raise DataError.of(
            error, f"partition {place}: {DATA_PATH}", hint=f"{error.hint}; see docs/vertical.md"
        ) from error


def _identity(node: Mapping[str, Any]) -> tuple[Identity | None, str | None]:
    """Return a node's own certificate and key, and the file of the authority that signs its peers' certificates."""
    named = {name: _of(node, name, "") for name in PEER_FILES}
    certificate, key, authority = (Path(path).expanduser() if path else None for path in named.values())
    if bool(certificate) != bool(key):
        got, lacks = ("peer-cert", "peer-key") if certificate else ("peer-key", "peer-cert")
        raise ConfigError(
            "node config", got=f"{got} without {lacks}", allowed="both or neither", hint=f"give {lacks} too"
        )
    if authority and not certificate:
        got, allowed = f"peer-ca {named['peer-ca']!r} alone", "that with peer-cert and peer-key"
        raise ConfigError("node config", got=got, allowed=allowed, hint="give them too")
    for name, path in named.items():
        if path and not Path(path).expanduser().is_file():
            got, hint = f"{path!r}, which does not exist", "give the path of a PEM file"
            raise ConfigError(f"node config: {name}", got=got, allowed="an existing file", hint=hint)
    if certificate is None or key is None:
        return None, None
    return Identity.from_files(certificate, key), str(authority) if authority else None


def _of(node: Mapping[str, Any], name: str, default: T) -> T:
    value = node.get(name, default)
    if not isinstance(value, type(default)):
        kind = "true or false" if isinstance(default, bool) else "text"
        raise ConfigError(f"node config: {name}", got=repr(value), allowed=kind, hint="see docs/vertical.md")
    return value
