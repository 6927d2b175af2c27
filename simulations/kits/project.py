"""The file of a project, ``project.toml``: the SuperLink's address, the sites or parties, and the run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError

from apps.config import flatten, parse_run_config
from apps.run_config.settings import ConfigError, Scalar
from apps.sites.settings import KEYS, SiteConfig, list_faults
from payloads.settings import Settings, describe_allowed, setting
from problems.errors import NOTHING, InputError, did_you_mean
from problems.toml_files import read_toml, reason_of
from simulations.kits.names import ADDRESSES, NAMES, AddressText, Host, Name
from vertical.transport.addresses import Address

AT_SITES, IN_KITS = "at-sites", "in-kits"
# the settings of a site that its operator may propose; the owner of the site decides about all others
PROPOSED = (*(key for key, row in KEYS.items() if row.table == "data"), "advertise", "listen")
_EXAMPLE = "see docs/kits.md"


class Project(Settings):
    """A federation's SuperLink and its sites.

    Attributes:
        sites: The sites, which have rows: the proposed settings of each, by name. Their order gives the partition ids.
        parties: The parties of vertical runs, which have columns. A project has either sites or parties.
        run: The run config of the project's runs, as tables.
    """

    name: Name = setting("The project's name, also the name of the connection for flwr commands.", ..., NAMES)
    superlink: AddressText = setting("The address at which the sites reach the SuperLink.", ..., ADDRESSES)
    listen: AddressText | None = setting(
        "The address at which the SuperLink listens. Without it 127.0.0.1, behind a reverse proxy.", None, ADDRESSES
    )
    hosts: list[Host] = setting(
        "Further names and addresses in the SuperLink's certificate.", [], "a list of host names and IP addresses"
    )
    first_port: int = setting(
        "The port of the first site's SuperNode for its own processes. Each further site has the next port.",
        9094,
        ge=1,
        le=65535,
    )
    days: int = setting("The days for which certificates are valid.", 365, ge=1, le=3650)
    keys: Literal["at-sites", "in-kits"] = setting(
        "The place where private keys are made: at each site, or by the command, which puts them into the kits.",
        AT_SITES,
    )
    sites: dict[Name, dict[str, Any]] = setting("The sites, a table for each.", {}, f"tables; names: {NAMES}")
    parties: dict[Name, dict[str, Any]] = setting("The parties, a table for each.", {}, f"tables; names: {NAMES}")
    run: dict[str, Any] = setting("The run config.", {}, "a table of run-config keys")

    @property
    def vertical(self) -> bool:
        """Whether the project has parties, for vertical runs."""
        return bool(self.parties)

    @property
    def members(self) -> dict[str, dict[str, Any]]:
        """The sites or the parties: the proposed settings by name."""
        return self.parties or self.sites

    @property
    def listens(self) -> str:
        """The address at which the SuperLink listens."""
        return self.listen or f"127.0.0.1:{Address('tcp', self.superlink).port}"

    @property
    def certified(self) -> list[str]:
        """The names and addresses in the SuperLink's certificate. Its child processes need the last two."""
        return list(dict.fromkeys([Address("tcp", self.superlink).host, *self.hosts, "127.0.0.1", "localhost"]))

    @property
    def run_config(self) -> dict[str, Scalar]:
        """The flat run config."""
        return dict(flatten(self.run))


def read_project(path: Path) -> Project:
    """Read and check a project file.

    Args:
        path: The file.

    Raises:
        ConfigError: The file cannot be read, or a key is missing, unknown or wrong. The error names all such keys.
    """
    try:
        content = read_toml(path)
    except (OSError, ValueError) as error:
        got = f"{path}: {reason_of(error)}"
        raise ConfigError("project", got=got, allowed="a TOML file that can be read", hint=_EXAMPLE) from None
    try:
        project = Project.model_validate(content)
    except ValidationError as error:
        raise ConfigError.join(list({fault.key: fault for fault in map(_fault, error.errors())}.values())) from None
    faults = [*_check_members(project), *_check_run(project)]
    if faults:
        raise ConfigError.join(faults)
    return project


def _fault(detail: Mapping[str, Any]) -> ConfigError:
    key, *inside = map(str, detail["loc"])
    fields = {info.alias or name: info for name, info in Project.model_fields.items()}
    if detail["type"] == "extra_forbidden":
        allowed = ", ".join(fields)
        return ConfigError(key, got="an unknown key", allowed=allowed, hint=did_you_mean(key, fields, _EXAMPLE))
    allowed = describe_allowed(fields[key])
    if detail["type"] == "missing":
        return ConfigError(key, got=NOTHING, allowed=allowed, hint=f"add {key} to the project file, {_EXAMPLE}")
    place = ".".join([key, *(part for part in inside if part != "[key]" and not part.isdecimal())])
    return ConfigError(place, got=repr(detail["input"]), allowed=allowed, hint=f"change {key}, {_EXAMPLE}")


def _check_members(project: Project) -> list[ConfigError]:
    table = "parties" if project.vertical else "sites"
    if bool(project.sites) == project.vertical:
        got = "both tables" if project.vertical else "neither table"
        return [
            ConfigError(
                "sites",
                got=got,
                allowed="[sites.NAME] tables, or [parties.NAME] tables of vertical runs",
                hint=_EXAMPLE,
            )
        ]
    if project.vertical and project.keys == IN_KITS:
        return [
            ConfigError(
                "keys",
                got=repr(IN_KITS),
                allowed=f"{AT_SITES!r} with parties: with their keys the operator could read their sums",
                hint=f"remove keys, or set it to {AT_SITES!r}",
            )
        ]
    faults = []
    names = [name.casefold() for name in project.members]
    for name, settings in project.members.items():
        if names.count(name.casefold()) > 1:
            faults.append(ConfigError(f"{table}.{name}", got="a name twice", allowed="different names", hint="rename"))
        for key in settings.keys() - set(PROPOSED):
            known = key in KEYS
            got = "a setting that only the site's owner sets" if known else "an unknown key"
            hint = (
                "set it in the site's site.toml" if known else did_you_mean(key, PROPOSED, "see docs/site-settings.md")
            )
            allowed = "keys of [data] in docs/site-settings.md, advertise and listen"
            faults.append(ConfigError(f"{table}.{name}.{key}", got=got, allowed=allowed, hint=hint))
        faults += [fault.at(f"{table}.{name}") for fault in _check_settings(settings)]
        if project.vertical and "advertise" not in settings:
            hint = f"add advertise to [{table}.{name}]"
            allowed = describe_allowed(KEYS["advertise"].field)
            faults.append(ConfigError(f"{table}.{name}.advertise", got=NOTHING, allowed=allowed, hint=hint))
    return faults


def _check_settings(settings: Mapping[str, Any]) -> list[ConfigError]:
    """Return the errors of proposed settings, as the site itself would find them."""
    tables: dict[str, dict[str, Any]] = {}
    for key in settings.keys() & set(PROPOSED):
        tables.setdefault(KEYS[key].table, {})[key] = settings[key]
    try:
        SiteConfig.model_validate(tables)
    except ValidationError as error:
        return list_faults(error)
    return []


def _check_run(project: Project) -> list[ConfigError]:
    flat = project.run_config
    reserved = [key for key in ("output-dir", "run-name") if key in flat]
    faults = [
        ConfigError(f"run.{key}", got=repr(flat[key]), allowed="no value in [run]", hint=f"remove {key} from [run]")
        for key in reserved
    ]
    if not flat or faults:
        return faults
    try:
        config = parse_run_config(flat)
    except InputError as error:
        return [ConfigError.of(error, "run")]
    if config.algorithm.strategy.clients_meet != project.vertical:
        kind = "parties" if project.vertical else "sites"
        allowed = f"a strategy for {kind}"
        other = "sites" if project.vertical else "parties"
        hint = f"choose another strategy, or rename the tables [{kind}.NAME] to [{other}.NAME]"
        return [ConfigError("run.strategy", got=repr(config.run.strategy), allowed=allowed, hint=hint)]
    return []
