"""The settings that a site's owner may set, as typed tables: data, privacy, vertical runs, and the site's process.

Keys that the owner does not set have defaults. docs/site-settings.md lists all keys.
"""

from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import PlainValidator, ValidationError
from pydantic.fields import FieldInfo

from apps.run_config.settings import ConfigError, Scalar
from payloads.settings import Settings, describe_allowed, kebab, setting
from payloads.site_names import ALLOWED_NAMES, check_name
from privacy.secure_sum import FEWEST_MEMBERS
from problems.data.spec import parse_names
from problems.errors import NOTHING, InputError
from problems.least_cell import LEAST_CELL
from vertical.policy import DEFAULT_FEWEST_ROWS, parse_maskings, parse_pins
from vertical.problem.blocks.network import NETWORKS
from vertical.records import UNREACHABLE
from vertical.segment.plan import PAIRWISE, TWO_TREES
from vertical.transport.addresses import Address

CHANGE = "change the site's settings"
_FIXES = "Fixes the same key of the run config: the site refuses a run with another value."
_NAMES, _ADDRESS = "names separated by commas", "host:port, an IPv6 host in brackets, with a port of 1 to 65535"
# the keys of the form of the site's own csv file, which may differ from the run config's keys of the same name
DIALECT = ("separator", "decimal", "encoding")
# Defaults of a party with its own file. If only one column of a party varies, the first sums that it sends reveal the
# column up to its scale. To determine two columns, peers need two sums for each row.
DEFAULT_FEWEST_COLUMNS, DEFAULT_LARGEST_EMBEDDING = 2, 16


def _parse_by(parse: Callable[[str], Any]) -> PlainValidator:
    """Return a validator that parses a text."""

    def read(value: object) -> Any:
        if not isinstance(value, str):
            raise ValueError("not a text")
        return parse(value)

    return PlainValidator(read)


def _path(text: str) -> Path:
    if not text:
        raise ValueError("an empty path")
    return Path(text).expanduser()


def _address(text: str, *special: str) -> str:
    if text not in special:
        Address("tcp", text)
    return text


def _parse_at_least_one(key: str, text: str) -> tuple[str, ...]:
    if not (names := parse_names(key, text)):
        raise ConfigError(key, got=NOTHING, allowed="at least one name", hint=f"add a name, or remove {key}")
    return names


def _file(meaning: str) -> Any:
    return setting(meaning, None, "a path that is not empty")


File = Annotated[Path | None, _parse_by(_path)]


class DataTable(Settings):
    """The site's own file."""

    data_path: File = _file("The site's own file or folder. In vertical runs: the file of the party's columns.")
    site_name: Annotated[str | None, _parse_by(check_name)] = setting(
        "The site's name in results and logs of all parties. Without it the site is called by its partition id.",
        None,
        ALLOWED_NAMES,
    )
    split_seed: int | None = setting(
        "The seed that draws the site's held-out rows. It also fixes all keys of the data.", ge=0
    )
    dataset: str | None = setting(_FIXES)
    label_column: str | None = setting(_FIXES)
    label_type: str | None = setting(_FIXES)
    offset_column: str | None = setting(_FIXES)
    time_column: str | None = setting(_FIXES)
    entry_column: str | None = setting(_FIXES)
    time_borders: str | None = setting(_FIXES)
    positive_label: str | None = setting(_FIXES)
    feature_columns: str | None = setting(_FIXES)
    drop_columns: str | None = setting(_FIXES)
    group_column: str | None = setting(_FIXES)
    image_column: str | None = setting(_FIXES)
    subgroups: str | None = setting(_FIXES)
    missing: str | None = setting(_FIXES)
    missing_values: str | None = setting(_FIXES)
    scale: str | None = setting(_FIXES)
    borders: str | None = setting(_FIXES)
    test_fraction: float | None = setting(_FIXES)
    validation_fraction: float | None = setting(_FIXES)
    separator: str | None = setting("The separator of the site's own csv. Without it the run config's value applies.")
    decimal: str | None = setting("The decimal mark of the site's own csv. Without it the run config's value applies.")
    encoding: str | None = setting("The encoding of the site's own csv. Without it the run config's value applies.")

    def dialect(self) -> dict[str, Any]:
        """Return the csv keys that the owner sets (``separator``, ``decimal``, ``encoding``), each with its value."""
        return {name: getattr(self, name) for name in DIALECT if getattr(self, name) is not None}


class PrivacyTable(Settings):
    """The settings that limit the runs of a site, and the facts that the site reveals."""

    allowed_strategies: str | None = setting("The strategies of the runs that the site takes part in.", None, _NAMES)
    most_handshakes: int = setting("The most handshakes over the life of the file. Needs state-dir. 0: any.", 0, ge=0)
    most_evaluations: int = setting(
        "The most evaluations, which send counts of scores, over the life of the file. Needs state-dir. 0: any.",
        0,
        ge=0,
    )
    largest_epsilon: float | None = setting("The largest privacy.epsilon of a run.", gt=0)
    largest_total_epsilon: float | None = setting("The largest sum of the epsilons of all runs. Needs state-dir.", gt=0)
    largest_delta: float | None = setting("The largest delta of a run's budgets.", gt=0, lt=1)
    secure_sum: bool = setting(
        "Whether the site joins only runs whose server sees sums, not single sites' values.", False
    )
    fewest_summed: int = setting("The fewest clients in a secure sum.", FEWEST_MEMBERS, ge=FEWEST_MEMBERS)
    sum_key: File = _file("The file of the site's private key for secure sums.")
    sum_peers: File = _file("The file of the public keys of the sites that may take part in a secure sum.")
    least_cell: int = setting("The least number of rows in a count that leaves the site. 1: any.", LEAST_CELL, ge=1)
    verbose_errors: bool = setting(
        "Whether the server gets the full text of the site's errors, which may quote rows.", False
    )


class VerticalTable(Settings):
    """The settings of a party of a vertical run."""

    labels: Annotated[tuple[str, ...], _parse_by(partial(parse_names, "labels"))] = setting(
        "The columns that may be a label. Without it the party is never active.", (), _NAMES
    )
    columns: Annotated[tuple[str, ...] | None, _parse_by(partial(_parse_at_least_one, "columns"))] = setting(
        "The columns that may be features. Without it all except the ids and the labels.", None, _NAMES
    )
    id_column: str = setting("Fixes vfb2.id-column of the run config.", "", "a name", min_length=1)
    models: Annotated[tuple[str, ...], _parse_by(partial(_parse_at_least_one, "models"))] = setting(
        "The allowed values of vfb2.model.", NETWORKS, _NAMES
    )
    model: str = setting(
        "The party's own network. It replaces vfb2.model.", "", "a network, as vfb2.model", min_length=1
    )
    fewest_rows: int = setting(
        "The fewest training rows, and the fewest scored rows, of a party with its own file.", DEFAULT_FEWEST_ROWS, ge=1
    )
    fewest_columns: int = setting("The fewest columns that vary over the rows.", DEFAULT_FEWEST_COLUMNS, ge=1)
    largest_embedding: int = setting("The largest vfb2.embedding.", DEFAULT_LARGEST_EMBEDDING, ge=1)
    most_looks: int = setting(
        "The most numbers that peers may learn about each row, in all runs. Needs state-dir. 0: any.", 0, ge=0
    )
    fewest_parties: int = setting("The fewest parties of a run.", 0, ge=0)
    pinned_peers: Annotated[dict[str, str], _parse_by(parse_pins)] = setting(
        "The certificates of the accepted parties. Without it all are accepted.",
        {},
        "name=SHA-256 pairs separated by spaces",
    )
    peer_hosts: Annotated[tuple[str, ...], _parse_by(lambda text: tuple(text.split()))] = setting(
        "The only hosts to which the party connects. Without it any host.", (), "hosts separated by spaces"
    )
    largest_label_epsilon: float | None = setting("The largest vfb2.label-epsilon of a run.", gt=0)
    allow_intersection: bool = setting("Whether to take part in runs that compute the parties' common ids.", True)
    allowed_maskings: Annotated[tuple[str, ...], _parse_by(parse_maskings)] = setting(
        "The allowed values of vfb2.masking, and shares for shared-sgd.",
        (PAIRWISE, TWO_TREES),
        "pairwise, two-trees, shares, or several separated by commas",
    )
    allow_scores_for: Literal["nobody", "label-holders", "all"] = setting("The parties that may learn scores.", "all")
    share_block: bool = setting("Whether the server may get the party's block of the model.", True)
    block: File = _file("The block of a finished run, for a run that scores.")
    score_path: File = _file("The file of the new rows, for a run that scores. Without it data-path applies.")
    scores_path: File = _file("The file to which a run that scores writes the scores.")
    audit_log: File = _file("The file of the party's audit log. Without it the log is in state-dir.")
    advertise: Annotated[str, _parse_by(lambda text: _address(text, UNREACHABLE))] = setting(
        "The address at which the other parties reach this party.",
        "",
        f"{_ADDRESS}; or {UNREACHABLE!r} if no other party can reach it",
    )
    listen: Annotated[str, _parse_by(_address)] = setting(
        "The address at which the party listens, if advertise is another address.", "", _ADDRESS
    )
    peer_cert: File = _file("The file of the party's certificate.")
    peer_key: File = _file("The file of the party's private key.")
    peer_ca: File = _file("The file of the authorities that signed the certificates of all parties.")
    dealer: Annotated[str, _parse_by(_address)] = setting(
        "The third party that deals the random numbers of shared-sgd. Without it the server deals.", "", _ADDRESS
    )
    dealer_cert: File = _file("The file of the dealer's certificate.")


class ProcessTable(Settings):
    """The settings of a site's files and of its process."""

    state_dir: File = _file("The folder of the client's memory and of the disclosure ledger.")
    stay: float = setting(
        "The most seconds for which a process waits for the next message. 0: each message starts a new process.",
        0.0,
        ge=0,
    )


class SiteConfig(Settings):
    """All settings of a site. Every key may be left out."""

    data: DataTable = DataTable()
    privacy: PrivacyTable = PrivacyTable()
    vertical: VerticalTable = VerticalTable()
    process: ProcessTable = ProcessTable()

    @staticmethod
    def of(node: Mapping[str, Any]) -> "SiteConfig":
        """Return the settings in a node config. They are validated once for each set of values.

        Args:
            node: The site's effective node config, see `apps.sites.site_config.effective`. Other keys are skipped.

        Raises:
            ConfigError: Values have a wrong type or are out of bounds. The error names all such keys.
        """
        return _read(tuple((key, value, type(value)) for key, value in node.items() if key in KEYS))


class SiteKey(NamedTuple):
    """A setting's table, and its field in the table's model."""

    table: str
    field: FieldInfo


TABLES: dict[str, Any] = {name: field.annotation for name, field in SiteConfig.model_fields.items()}
KEYS = {
    kebab(name): SiteKey(table, field) for table, model in TABLES.items() for name, field in model.model_fields.items()
}
PATHS = frozenset(key for key, row in KEYS.items() if row.field.annotation == Path | None)
FIXED = tuple(key for key, row in KEYS.items() if row.field.description == _FIXES)


@lru_cache(maxsize=1024)
def _read(items: tuple[tuple[str, Scalar, type], ...]) -> SiteConfig:
    nested: dict[str, dict[str, Any]] = {table: {} for table in TABLES}
    for key, value, _ in items:
        nested[KEYS[key].table][key] = value
    try:
        return SiteConfig.model_validate(nested)
    except ValidationError as error:
        raise ConfigError.join([fault.at("node config") for fault in list_faults(error)]) from None


def list_faults(error: ValidationError) -> list[ConfigError]:
    """Return one error for each key that the validation of `SiteConfig` refuses.

    Args:
        error: The validation's error.
    """
    faults = {}
    for detail in error.errors():
        key, cause = str(detail["loc"][1]), detail.get("ctx", {}).get("error")
        allowed = describe_allowed(KEYS[key].field)
        refused = ConfigError(key, got=repr(detail["input"]), allowed=allowed, hint=CHANGE)
        faults[key] = ConfigError.of(cause) if isinstance(cause, InputError) else refused
    return list(faults.values())
