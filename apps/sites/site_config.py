"""The settings of a site: one typed model, read from the TOML file that the node config's ``site-config`` names.

The owner of the site keeps the file. `flower-supernode --node-config` skips text that it does not recognise; this
module refuses a file with anything in it that is not a setting. A key may also be in the node config itself.
"""

import difflib
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from flwr.app import Context
from pydantic import Field, ValidationError, create_model
from pydantic.fields import FieldInfo

from apps.run_config.settings import ConfigError, DataSettings, Scalar
from apps.sites.policy import FIXED
from apps.sites.rows import DIALECT
from apps.sites.staying import SITE_CONFIG
from payloads.flower_internals import make_twin
from payloads.settings import Settings, kebab
from privacy.secure_sum import FEWEST_MEMBERS
from problems.errors import did_you_mean
from problems.least_cell import LEAST_CELL
from problems.toml_files import read_toml, reason_of
from vertical.policy import DEFAULT_FEWEST_ROWS, SCORES_FOR
from vertical.problem.blocks.network import NETWORKS

# how alike two keys are, of 1: "fewest-partys" is .89 "fewest-parties", and "dataset-path" .857 "data-path"
_ALIKE, _ALIKE_SITE_CONFIG = 0.86, 0.75
# For a party with its own file. One varying column follows from the first sums, up to its scale; two columns take two
# looks at each row.
DEFAULT_FEWEST_COLUMNS = 2
DEFAULT_LARGEST_EMBEDDING = 16
_CHANGE = "change the site's settings"


def _key(allowed: str, meaning: str, default: Any = None, **bounds: Any) -> Any:
    return Field(default, title=allowed, description=meaning, **bounds)


def _path(meaning: str, default: Any = None) -> Any:
    return _key("a path that is not empty", meaning, default, min_length=1)


def _count(meaning: str, default: int | None = 0, smallest: int = 0) -> Any:
    return _key(f"an integer >= {smallest}", meaning, default, ge=smallest)


class _Rows(Settings):
    data_path: str = _path("the site's own file or folder; a party's columns in vertical runs")
    split_seed: int = _count("the seed of the site's held-out rows; also fixes all keys of the data", None)


_fixed: dict[str, Any] = {
    name: (field.annotation, _key(field.description or "", f"fixes {kebab(name)} of the run config"))
    for name, field in DataSettings.model_fields.items()
    if kebab(name) in FIXED
}
_dialect: dict[str, Any] = {
    name: (field.annotation, _key(field.description or "", f"{name} of the site's own csv", "the run config's"))
    for name, field in DataSettings.model_fields.items()
    if name in DIALECT
}
DataTable = create_model("DataTable", __base__=_Rows, **_fixed, **_dialect)


class PrivacyTable(Settings):
    """Which runs a site takes part in, and how much it reveals."""

    allowed_strategies: str = _key("names with commas", "the strategies of the runs that the site takes part in")
    most_handshakes: int = _count("handshakes over the life of the file; needs state-dir")
    most_evaluations: int = _count("counts of held-out scores over the life of the file; needs state-dir")
    largest_epsilon: float = _key("a number > 0", "the largest privacy.epsilon of a run", gt=0)
    largest_total_epsilon: float = _key("a number > 0", "the largest sum of the epsilons of all runs", gt=0)
    secure_sum: bool = _key("true or false", "true: refuse runs whose server sees more than sums", False)
    fewest_summed: int = _count("the fewest clients in a secure sum", FEWEST_MEMBERS, FEWEST_MEMBERS)
    sum_key: str = _path("the site's private key for secure sums")
    sum_peers: str = _path("the public keys of the sites that may take part in a secure sum")
    least_cell: int = _count("the least number of rows in a count that leaves the site; 1: any", LEAST_CELL, 1)
    verbose_errors: bool = _key("true or false", "true: errors that leave the site quote its log", False)
    largest_delta: float = _key("a number in (0, 1)", "the largest delta of a run's budgets", gt=0, lt=1)


class VerticalTable(Settings):
    """Settings of a party of a vertical run."""

    advertise: str = _key("host:port or none", "the address at which the other parties reach it", min_length=1)
    listen: str = _key("host:port", "the address at which it listens, if that differs from advertise", min_length=1)
    peer_cert: str = _path("its certificate")
    peer_key: str = _path("its private key")
    peer_ca: str = _path("the authorities that signed the certificates of all parties")
    share_block: bool = _key("true or false", "false: the server gets no party's block", True)
    model: str = _key("a network, as vfb2.model", "its own network", min_length=1)
    block: str = _path("the block of a finished run, for a run that scores")
    score_path: str = _path("the new rows, for a run that scores", "data-path")
    scores_path: str = _path("the file of the scores")
    audit_log: str = _path("its audit log", "in state-dir")
    fewest_parties: int = _count("the fewest parties of a run")
    pinned_peers: str = _key("name=SHA-256 pairs with spaces", "the certificates of the accepted parties", min_length=1)
    largest_label_epsilon: float = _key("a number > 0", "the largest vfb2.label-epsilon of a run", gt=0)
    allow_intersection: bool = _key("true or false", "false: refuse runs that look for the common ids", True)
    allowed_maskings: str = _key("pairwise, two-trees, or both with a comma", "the values of vfb2.masking", "both")
    allow_scores_for: str = _key(
        f"one of {', '.join(SCORES_FOR)}",
        "the parties that may learn scores",
        "all",
        pattern=f"^({'|'.join(SCORES_FOR)})$",
    )
    labels: str = _key("names with commas", "the columns that may be a label; none: the party is never active")
    columns: str = _key("names with commas", "the columns that may be features", "all except ids and labels")
    id_column: str = _key("a name", "fixes vfb2.id-column of the run config", min_length=1)
    models: str = _key("names with commas", "the values of vfb2.model", ", ".join(NETWORKS))
    fewest_rows: int = _count("the fewest training rows, and scored rows", DEFAULT_FEWEST_ROWS, 1)
    fewest_columns: int = _count("the fewest columns that vary over the rows", DEFAULT_FEWEST_COLUMNS, 1)
    largest_embedding: int = _count("the largest vfb2.embedding", DEFAULT_LARGEST_EMBEDDING, 1)
    peer_hosts: str = _key("hosts with spaces", "the only hosts to which it connects", min_length=1)
    most_looks: int = _count("numbers of every row that peers may compute in all runs; 0: any; needs state-dir")


class ProcessTable(Settings):
    """Where a site stores files, and how long its process stays."""

    state_dir: str = _path("the folder of the client's memory and of the disclosure ledger")
    stay: float = _key("seconds >= 0", "the time that a process waits for another message; 0: none stays", 0, ge=0)


class SiteConfig(Settings):
    """The content of a site's TOML file; every key may be left out."""

    data: DataTable = DataTable()
    privacy: PrivacyTable = PrivacyTable()
    vertical: VerticalTable = VerticalTable()
    process: ProcessTable = ProcessTable()


class SiteKey(NamedTuple):
    """One key: its table in the file, and its field in the table's model."""

    table: str
    field: FieldInfo


TABLES: dict[str, Any] = {name: field.annotation for name, field in SiteConfig.model_fields.items()}
KEYS = {
    kebab(name): SiteKey(table, field) for table, model in TABLES.items() for name, field in model.model_fields.items()
}
# these differ between the sites of a federation, and stay on the command line
NODE_KEYS = ("partition-id", "num-partitions", SITE_CONFIG)
KNOWN = frozenset((*KEYS, *NODE_KEYS))


def at_site(context: Context) -> Context:
    """A context with the effective node config of its site; shares its state with the other.

    Raises:
        ConfigError: As for `effective`.
    """
    twin = make_twin(context)
    twin.node_config = effective(context.node_config)
    return twin


def effective(node: Mapping[str, Scalar]) -> dict[str, Scalar]:
    """The settings of a site: its node config, and the file that it names. The file is read at each call.

    Args:
        node: The node config.

    Raises:
        ConfigError: A key resembles one of ours, the file cannot be used, or a key has two values. The site must then
            refuse the run: it does not know its owner's demands.
    """
    _check_node(tuple((key, value, type(value)) for key, value in node.items()))
    given = read_site(node)
    for key in sorted(given.keys() & node.keys()):
        if type(given[key]) is not type(node[key]) or given[key] != node[key]:
            got = f"{node[key]!r} in the node config and {given[key]!r} in {node[SITE_CONFIG]}"
            raise ConfigError(key, got=got, allowed="one value", hint=f"remove {key} from one of them")
    return {**node, **given}


def read_site(node: Mapping[str, Scalar]) -> dict[str, Scalar]:
    """The keys of the file that a node config names, {} if it names none.

    Args:
        node: The node config.

    Raises:
        ConfigError: The file cannot be read, or a key is unknown, in the wrong table or of the wrong type.
    """
    if SITE_CONFIG not in node:
        return {}
    named = node[SITE_CONFIG]
    path = Path(str(named))
    if not isinstance(named, str) or not path.is_absolute():
        hint = f"set {SITE_CONFIG} to a path such as /srv/site.toml"
        raise ConfigError(SITE_CONFIG, got=repr(named), allowed="the absolute path of a TOML file", hint=hint)
    try:
        content = read_toml(path)
    except (OSError, ValueError) as error:
        got = f"{path}: {reason_of(error)}"
        raise ConfigError(SITE_CONFIG, got=got, allowed="a TOML file that can be read", hint=_CHANGE) from None
    found, faults = _regroup(content)
    if not found and not faults:  # as an editor may leave it for a moment while it writes
        raise _refuse(SITE_CONFIG, f"{path}: no key", "a file with a key", "add a key, or remove site-config")
    try:
        SiteConfig.model_validate(found)
    except ValidationError as error:
        wrong = {str(detail["loc"][1]): detail["input"] for detail in error.errors()}
        faults += [_refuse(key, repr(value), str(KEYS[key].field.title)) for key, value in wrong.items()]
    if faults:
        raise ConfigError.join([fault.at(str(path)) for fault in faults])
    return {key: value for table in found.values() for key, value in table.items()}


def _regroup(content: Mapping[str, Any]) -> tuple[dict[str, dict[str, Any]], list[ConfigError]]:
    """The values of a file by table and key, and its faults; a key outside of all tables goes to its own table."""
    found: dict[str, dict[str, Any]] = {}
    faults = []
    pairs = [("", key, value) for key, value in content.items() if key not in TABLES]
    for table in TABLES:
        if isinstance(inside := content.get(table, {}), Mapping):
            pairs += [(table, key, value) for key, value in inside.items()]
        else:
            faults.append(_refuse(table, repr(inside), f"the table [{table}]"))
    for table, key, value in pairs:
        where = f"[{table}] {key}" if table else key
        if key not in KEYS:
            faults.append(_unknown(where, key, value))
        elif table not in ("", KEYS[key].table):
            allowed = f"a key of [{table}]"
            faults.append(_refuse(where, f"a key of [{KEYS[key].table}]", allowed, f"move it to [{KEYS[key].table}]"))
        elif key in found.setdefault(KEYS[key].table, {}):
            faults.append(_refuse(where, f"{key} twice", "each key once"))
        else:
            found[KEYS[key].table][key] = value
    return found, faults


def _unknown(where: str, key: str, value: Any) -> ConfigError:
    if key in NODE_KEYS:
        return _refuse(where, repr(value), "the node config alone", f"move {key} to the SuperNode's --node-config")
    if isinstance(value, Mapping):
        allowed = ", ".join(f"[{table}]" for table in TABLES) + did_you_mean(key, TABLES)
        return _refuse(where, "an unknown table", allowed)
    allowed = f"the {len(KEYS)} of docs/deployment.md{did_you_mean(kebab(key.lower()), KEYS)}"
    return _refuse(where, "an unknown key", allowed)


def _refuse(where: str, got: str, allowed: str, hint: str = _CHANGE) -> ConfigError:
    return ConfigError(where, got=got, allowed=allowed, hint=hint)


@lru_cache(maxsize=1024)
def _check_node(items: tuple[tuple[str, Scalar, type], ...]) -> None:
    """Refuse a key of a node config that is nearly one of ours, which would demand nothing; and no text for a text."""
    for key, value, _ in items:
        if key in KEYS and KEYS[key].field.annotation is str and not isinstance(value, str):
            raise _refuse(f"node config: {key}", repr(value), "text", "change the site's settings")
        if key not in KNOWN and (meant := _similar(key, value)):
            allowed = f"{meant!r}; other keys must not resemble it"
            raise _refuse("node config", repr(key), allowed, f"write {meant}, or rename the key")


def _similar(key: str, value: Scalar) -> str:
    """The known key that an unknown one resembles, "" if there is none."""
    table, _, name = (plain := kebab(key.lower())).rpartition(".")
    for word in (plain, name) if table in TABLES else (plain,):
        if meant := difflib.get_close_matches(word, sorted(KNOWN), n=1, cutoff=_ALIKE):
            return meant[0]
    if table in TABLES or difflib.get_close_matches(plain, [SITE_CONFIG], cutoff=_ALIKE_SITE_CONFIG):
        return SITE_CONFIG
    return SITE_CONFIG if isinstance(value, str) and value.lower().endswith(".toml") else ""


def list_settings(node: Mapping[str, Scalar]) -> list[tuple[str, Scalar, str]]:
    """Each effective setting of a site: key, value, and the place that it comes from.

    Args:
        node: The node config.

    Raises:
        ConfigError: As for `effective`.
    """
    settings = effective(node)
    order = [key for key in (*NODE_KEYS, *KEYS) if key in settings]
    others = [key for key in settings if key not in KNOWN]
    return [(key, settings[key], "node config" if key in node else f"{node[SITE_CONFIG]}") for key in order] + [
        (key, settings[key], "node config; not a key of this project, without effect") for key in others
    ]
