"""The data of a party in a vertical run: its columns of a data set that simulated parties share, or its own file."""

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from apps.parties.blocks import read_block
from apps.parties.column_use import ColumnUse, check_use
from apps.parties.score_table import SimulatedRows, check_scores_path, read_score_table
from apps.parties.table import INTERCEPT, PartyTable, read_own
from apps.run_config.algorithm import RunConfig
from apps.run_config.settings import ConfigError
from apps.sites.rows import DATA_PATH, with_dialect
from apps.sites.settings import SiteConfig
from payloads.settings import Settings, kebab
from problems.data import DataSpec, Preprocessing
from problems.data.spec import DRAWN, GENERIC, TABLES, is_hub, is_loader
from problems.errors import NOTHING
from vertical.parties import KeptBlock, PartyData, Rows
from vertical.problem.blocks import NO_PENALTY
from vertical.problem.blocks.network import check_name
from vertical.problem.data import VerticalData, load_vertical
from vertical.problem.errors import NetworkError
from vertical.problem.objectives import SOFTMAX, make_objective
from vertical.segment.plan import Holding
from vertical.settings import VFB2Settings

# the values of ``partition`` in vertical runs -> how columns, instead of rows, are spread over the parties
COLUMN_PARTITIONS = {"iid": "random", "consecutive": "consecutive"}
_PAGE = "see docs/vertical.md"

_load_lock = threading.Lock()


def settings_of(config: RunConfig) -> VFB2Settings:
    """Return the settings of the run's table ``vfb2``."""
    assert isinstance(config.family, VFB2Settings)
    return config.family


def check_columns(strategy: str, spec: DataSpec, vfb2: Settings) -> None:
    """Refuse keys of the data that do not fit a vertical run, in which all clients have the same rows.

    Raises:
        ConfigError: A key does not fit. The error names the first such key.
    """
    assert isinstance(vfb2, VFB2Settings)
    clients_columns = f"since the clients of strategy {strategy!r} have columns of the same rows"
    if spec.dataset in DRAWN:
        got, allowed = f"{spec.dataset!r}, whose clients draw their own rows", f"data sets except {', '.join(DRAWN)}"
        raise ConfigError("dataset", got=got, allowed=f"{allowed}, {clients_columns}", hint=_PAGE)
    partitions = " or ".join(COLUMN_PARTITIONS)
    required: tuple[tuple[str, object, bool, str], ...] = (
        ("partition", spec.partition, spec.partition in COLUMN_PARTITIONS, partitions),
        ("site-column", spec.site_column, not spec.site_column, "''"),
        ("test-sites", spec.test_sites, not spec.test_sites, "''"),
        ("group-column", spec.group_column, not spec.group_column, "''"),
        ("borders", spec.borders, not spec.borders, "''"),
        ("client-shift", spec.client_shift, spec.client_shift == 0, "0.0"),
        ("partition-sites", spec.partition_sites, spec.partition_sites == 0, "0"),
    )
    for key, value, fits, allowed in required:
        if not fits:
            allowed = f"{allowed}, {clients_columns}"
            raise ConfigError(key, got=repr(value), allowed=allowed, hint=f"remove {key}; {_PAGE}")
    if strategy == "shared-sgd":
        _check_shares(vfb2)
    elif vfb2.keep_shared:
        got, allowed = f"true with strategy {strategy!r}", "false, since only shared-sgd has shared weights"
        raise ConfigError("vfb2.keep-shared", got=got, allowed=allowed, hint='set strategy="shared-sgd"')
    if vfb2.label_epsilon and not make_objective(vfb2.problem).classification:
        key, allowed = "vfb2.label-epsilon", f"0, since problem {vfb2.problem!r} does not have two classes"
        raise ConfigError(
            key,
            got=vfb2.label_epsilon,
            allowed=allowed,
            hint=f"remove {key}, or set vfb2.problem to a problem with two classes",
        )
    if vfb2.problem == SOFTMAX and vfb2.embedding < 2 and not vfb2.score_run:
        key, allowed = "vfb2.embedding", "the number of classes, 2 or more, with vfb2.problem='softmax'"
        raise ConfigError(key, got=vfb2.embedding, allowed=allowed, hint=f"set {key} to the number of classes")
    if vfb2.embedding and not vfb2.score_run:
        _check_networks(strategy, vfb2)


def _check_shares(vfb2: VFB2Settings) -> None:
    """Refuse settings that do not fit secret shares."""
    losses = ("logistic", "ridge", "robust")
    refused: tuple[tuple[str, object, bool, str], ...] = (
        ("vfb2.problem", vfb2.problem, vfb2.problem not in losses, f"one of {', '.join(losses)}"),
        ("vfb2.embedding", vfb2.embedding, vfb2.embedding > 0, "0, since networks need vfb2-sgd"),
        ("vfb2.penalty", vfb2.penalty, vfb2.penalty != NO_PENALTY, "none, since shares cannot be compared with 0"),
        ("vfb2.label-epsilon", vfb2.label_epsilon, vfb2.label_epsilon > 0, "0, since no party sees labels or slopes"),
        ("vfb2.update-passive", False, not vfb2.update_passive, "true, since all blocks are updated together"),
        ("vfb2.active-parties", vfb2.active_parties, vfb2.active_parties not in (1, "auto"), "1 or auto"),
        ("vfb2.assemble", True, vfb2.assemble and vfb2.keep_shared, "false, since vfb2.keep-shared opens no block"),
    )
    for key, value, wrong, allowed in refused:
        if wrong:
            got = f"{value!r} with strategy 'shared-sgd'"
            raise ConfigError(key, got=got, allowed=allowed, hint=f"remove {key}, or choose a strategy vfb2-*")


def _check_networks(strategy: str, vfb2: VFB2Settings) -> None:
    """Refuse settings that do not fit networks."""
    k, several = vfb2.embedding, vfb2.headed and vfb2.max_active > 1
    refused: tuple[tuple[str, object, bool, str], ...] = (
        ("strategy", strategy, strategy != "vfb2-sgd", "vfb2-sgd, since SVRG and SAGA need a linear model"),
        (
            "vfb2.active-parties",
            vfb2.active_parties,
            several,
            "1, or vfb2.embedding=1, since each active party would train its own head",
        ),
        ("vfb2.update-passive", False, not vfb2.update_passive, "true, since an untrained network is useless"),
        ("vfb2.assemble", True, vfb2.assemble, "false, since a party's network is private"),
        (
            "vfb2.penalty",
            vfb2.penalty,
            vfb2.penalty != NO_PENALTY,
            "none, since penalties need the columns of a linear model",
        ),
    )
    for key, value, wrong, allowed in refused:
        if wrong:
            hint = f"change {key}, or set vfb2.embedding to 0; see docs/vertical.md"
            raise ConfigError(key, got=f"{value!r} with vfb2.embedding={k}", allowed=allowed, hint=hint)
    try:
        check_name("vfb2.model", vfb2.model)
    except NetworkError as error:
        raise ConfigError.of(error) from None


class SimulatedParty:
    """A party's columns of a data set that all simulated parties load. The data set's row numbers are the ids.

    It implements `vertical.parties.PartyData`, which explains the methods.
    """

    block: KeptBlock | None = None

    def __init__(self, data: VerticalData, party: int, keys: tuple[tuple[str, Any], ...], *, labelled: bool) -> None:
        self.keys: Mapping[str, Any] = dict(keys)
        train, test = data.party(party)
        self.names = [INTERCEPT if column == data.intercept else str(column) for column in data.columns[party]]
        labels = (data.train_labels, data.test_labels) if labelled else (None, None)
        self.labelled = labelled
        self.classes = data.classes if labelled else ()
        self.columns = int(train.shape[1])
        # the group of each column, for a penalty; -1: the intercept is not penalised
        groups = np.where(data.columns[party] == data.intercept, -1, np.arange(self.columns))
        self._holding = Holding(train, test, *labels, groups=groups)
        self._rows = data.rows

    def ids(self, rows: Rows | None) -> Sequence[str]:
        return [str(row) for row in (self._rows if rows is None else self._rows[rows])]

    def holding(self, rows: Rows | None) -> Holding:
        if rows is not None:
            raise ValueError("simulated parties have the same rows")
        return self._holding

    def preprocessing(self, rows: Rows | None) -> Preprocessing | None:
        return None

    def training_marks(self, rows: Rows | None) -> Sequence[str] | None:
        return None


def vertical_data(config: RunConfig, parties: int) -> VerticalData:
    """Return the data set with its columns spread over the parties. A process loads it once.

    Raises:
        DataError: The data set cannot be loaded, or has fewer columns than parties.
    """
    objective = make_objective(settings_of(config).problem)
    # labels of a regression are read as numbers from a user's own data; a positive label makes two classes
    generic = config.data.dataset in GENERIC or is_loader(config.data.dataset) or is_hub(config.data.dataset)
    numbers = generic and not config.data.positive_label
    regression = numbers and not objective.classification and not objective.multiclass
    with _load_lock:
        return _vertical_data(
            config.data, parties, regression, objective.multiclass, settings_of(config).intercept is True
        )


@lru_cache(maxsize=2)
def _vertical_data(spec: DataSpec, parties: int, regression: bool, multiclass: bool, intercept: bool) -> VerticalData:
    how, rows = COLUMN_PARTITIONS[spec.partition], replace(spec, partition="iid")
    kinds = {"regression": regression, "multiclass": multiclass, "intercept": intercept}
    return load_vertical(rows, parties, partition=how, **kinds)


def data_loader(config: RunConfig, node: Mapping[str, Any], party: int, parties: int) -> Callable[[], PartyData]:
    """Return the function that reads a party's data. It raises `DataError` if the data cannot be read.

    Args:
        config: The run config.
        node: The party's node config.
        party: The party's index.
        parties: The number of parties.

    Raises:
        ConfigError: The node config names no file although the run needs one, or the run config does not fit the file.
        PolicyError: The owner does not allow the run's use of the columns.
    """
    vfb2, dataset = settings_of(config), config.data.dataset
    own = SiteConfig.of(node)
    file = (own.vertical.score_path if vfb2.score_run else None) or own.data.data_path
    use = ColumnUse.of(own.vertical)
    if file is not None or own.vertical.model_fields_set & {"models", "largest_embedding"}:
        check_use(use, config, own_model=bool(own.vertical.model))
    if file is not None:
        if dataset not in TABLES:
            allowed = f"{', '.join(TABLES)}, since a party with a {DATA_PATH} reads a table"
            hint = f"set dataset to {' or '.join(TABLES)}"
            raise ConfigError("dataset", got=repr(dataset), allowed=allowed, hint=hint)
        if vfb2.score_run:
            return partial(read_score_table, file, config, node, (party, parties), use)
        _check_as_it_is(config.data, vfb2)
        return partial(_own_table, file, config, with_dialect(config.data, node), party, use)
    if vfb2.alignment == "intersection":
        got = "'intersection' with simulated parties, which have the same rows"
        allowed = f"'intersection' with a {DATA_PATH} in each node config"
        hint = f"set {DATA_PATH} in each node config, or remove vfb2.alignment"
        raise ConfigError("vfb2.alignment", got=got, allowed=allowed, hint=hint)
    if dataset in GENERIC and not config.data.data_dir:
        key, allowed = f"partition {party}: {DATA_PATH}", f"a table, since dataset {dataset!r} is read from files"
        hint = f"set {DATA_PATH} in the node config, or set data-dir"
        raise ConfigError(key, got=NOTHING, allowed=allowed, hint=hint)
    if vfb2.score_run:
        return partial(_simulate_scoring, config, node, (party, parties))
    return partial(_simulate_party, config, parties, party, labelled=party < vfb2.max_active)


def _check_as_it_is(spec: DataSpec, vfb2: VFB2Settings) -> None:
    """Refuse keys that change or replace rows or labels, since a party's own file is used without changes."""
    classes = make_objective(vfb2.problem).classification
    for key, got, plain, why in (
        ("data-dir", spec.data_dir, "", f"this party has a {DATA_PATH}, and the server would measure on other rows"),
        ("imbalance", spec.imbalance, 0.0, "a party's own file is read as it is"),
        ("label-noise", spec.label_noise, 0.0, "a party's own file is read as it is"),
        (
            "positive-label",
            "" if classes else spec.positive_label,
            "",
            f"problem {vfb2.problem!r} does not have two classes",
        ),
    ):
        if got != plain:
            raise ConfigError(key, got=repr(got), allowed=f"{plain!r}, since {why}", hint=f"remove {key}; {_PAGE}")


def _simulate_party(config: RunConfig, parties: int, party: int, *, labelled: bool) -> SimulatedParty:
    keys = {kebab(name): value for name, value in asdict(config.data).items() if name != "data_dir"}
    keys["vfb2.intercept"] = settings_of(config).intercept is True
    return _simulated_party(vertical_data(config, parties), party, tuple(keys.items()), labelled=labelled)


_simulated_party = lru_cache(maxsize=256)(SimulatedParty)


def _simulate_scoring(config: RunConfig, node: Mapping[str, Any], partition: tuple[int, int]) -> SimulatedRows:
    vfb2 = settings_of(config)
    block = read_block(node, vfb2.score_run, vfb2.problem, partition)
    check_scores_path(node, vfb2.id_column, [block.path])
    party, parties = partition
    return SimulatedRows(_simulate_party(config, parties, party, labelled=False), block, party)


# changed, the file's change time, is only a part of the cache's key
@lru_cache(maxsize=4)
def _read_table(
    path: Path, changed: int, *, spec: DataSpec, id_column: str, problem: str, intercept: bool, use: ColumnUse
) -> PartyTable:
    return PartyTable(path, spec, id_column, make_objective(problem), intercept=intercept, use=use)


def _own_table(path: Path, config: RunConfig, spec: DataSpec, party: int, use: ColumnUse) -> PartyTable:
    vfb2 = settings_of(config)
    # networks have their own intercepts
    intercept = not vfb2.embedding if vfb2.intercept == "auto" else vfb2.intercept
    options = {"id_column": vfb2.id_column, "problem": vfb2.problem, "intercept": intercept, "use": use}
    read = partial(_read_table, spec=spec, **options)
    return read_own(path, f"partition {party}: {DATA_PATH}", read)
