"""A reader of a site's settings, from the node config and from the TOML file that its key ``site-config`` names.

The owner of the site writes the file. `flower-supernode --node-config` silently skips text that it does not recognise.
This module therefore refuses a file with an unknown key, and unknown keys of the node config that resemble a setting.
"""

import difflib
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from flwr.app import Context
from pydantic import ValidationError

from apps.run_config.settings import ConfigError, Scalar
from apps.sites.settings import CHANGE, KEYS, PATHS, TABLES, SiteConfig, list_faults
from apps.sites.staying import SITE_CONFIG
from payloads.flower_internals import make_twin
from payloads.settings import kebab
from problems.errors import did_you_mean
from problems.toml_files import read_toml, reason_of

# The smallest similarity, at most 1, of a misspelt key: "fewest-partys" has 0.89 to "fewest-parties". "dataset-path",
# which is another word, has 0.857 to "data-path".
_ALIKE, _ALIKE_SITE_CONFIG = 0.86, 0.75
# these keys differ between the sites of a federation, so they must be on the command line
NODE_KEYS = ("partition-id", "num-partitions", SITE_CONFIG)
KNOWN = frozenset((*KEYS, *NODE_KEYS))


def at_site(context: Context) -> Context:
    """Return a copy of a context whose node config also has the keys of the site's file. Both share their state.

    Raises:
        ConfigError: The file cannot be used, an unknown key resembles a known key, a key has two values, or a value is
            not allowed.
    """
    twin = make_twin(context)
    twin.node_config = effective(context.node_config)
    return twin


def effective(node: Mapping[str, Scalar]) -> dict[str, Scalar]:
    """Return the settings of a site: its node config, and the keys of its file. Each call reads the file.

    Args:
        node: The node config.

    Raises:
        ConfigError: An unknown key resembles a known key, the file cannot be used, a key has two values, or a value is
            not allowed. The site must then refuse the run, since it does not know its owner's demands.
    """
    _check_names(tuple(node.items()))
    settings = read_site(node)
    for key in sorted(settings.keys() & node.keys()):
        if type(settings[key]) is not type(node[key]) or settings[key] != node[key]:
            got = f"{node[key]!r} in the node config and {settings[key]!r} in {node[SITE_CONFIG]}"
            raise ConfigError(key, got=got, allowed="a single value", hint=f"remove {key} from the node config")
    SiteConfig.of({**node, **settings})
    return {**node, **settings}


def read_site(node: Mapping[str, Scalar]) -> dict[str, Scalar]:
    """Return the keys of the file that a node config names. {} if it names no file. All paths are absolute.

    Args:
        node: The node config.

    Raises:
        ConfigError: The file cannot be read, or a key is unknown, in the wrong table or of the wrong type.
    """
    if SITE_CONFIG not in node:
        return {}
    value = node[SITE_CONFIG]
    path = Path(str(value))
    if not isinstance(value, str) or not path.is_absolute():
        hint = f"set {SITE_CONFIG} to a path such as /srv/site.toml"
        raise ConfigError(SITE_CONFIG, got=repr(value), allowed="the absolute path of a TOML file", hint=hint)
    try:
        content = read_toml(path)
    except (OSError, ValueError) as error:
        got = f"{path}: {reason_of(error)}"
        raise ConfigError(SITE_CONFIG, got=got, allowed="a TOML file that can be read", hint=CHANGE) from None
    tables, faults = _regroup(content)
    if not tables and not faults:  # refused, since an editor may empty a file for a moment while it writes
        raise _refuse(
            SITE_CONFIG, f"{path}: no key", "a file with at least one key", "add a key, or remove site-config"
        )
    try:
        SiteConfig.model_validate(tables)
    except ValidationError as error:
        faults += list_faults(error)
    if faults:
        raise ConfigError.join([fault.at(str(path)) for fault in faults])
    return {
        key: _start_at(path.parent, value) if key in PATHS else value
        for table in tables.values()
        for key, value in table.items()
    }


def _start_at(folder: Path, text: str) -> str:
    """Return the path of a file's key. A relative path starts at the folder of the file."""
    return text if text.startswith("~") else str(folder / text)


def _regroup(content: Mapping[str, Any]) -> tuple[dict[str, dict[str, Any]], list[ConfigError]]:
    """Return the values of a file by table and key, and its faults. A key outside all tables is put in its table."""
    tables: dict[str, dict[str, Any]] = {}
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
            faults.append(
                _refuse(where, f"a key of [{KEYS[key].table}]", allowed, f"move {key} to [{KEYS[key].table}]")
            )
        elif key in tables.setdefault(KEYS[key].table, {}):
            faults.append(_refuse(where, f"{key} twice", "each key once"))
        else:
            tables[KEYS[key].table][key] = value
    return tables, faults


def _unknown(where: str, key: str, value: Any) -> ConfigError:
    if key in NODE_KEYS:
        return _refuse(where, repr(value), "a key of the node config", f"move {key} to the SuperNode's --node-config")
    if isinstance(value, Mapping):
        allowed = ", ".join(f"[{table}]" for table in TABLES)
        return _refuse(where, "an unknown table", allowed, did_you_mean(key, TABLES, CHANGE))
    allowed = f"the {len(KEYS)} keys in docs/site-settings.md"
    return _refuse(where, "an unknown key", allowed, did_you_mean(key, KEYS, CHANGE))


def _refuse(where: str, got: str, allowed: str, hint: str = CHANGE) -> ConfigError:
    return ConfigError(where, got=got, allowed=allowed, hint=hint)


@lru_cache(maxsize=1024)
def _check_names(items: tuple[tuple[str, Scalar], ...]) -> None:
    """Refuse an unknown key of a node config that resembles a known key: a misspelt demand would have no effect."""
    for key, value in items:
        if key not in KNOWN and (meant := _similar(key, value)):
            allowed = f"{meant!r}; other keys must not resemble it"
            raise _refuse("node config", repr(key), allowed, f"write {meant}, or rename the key")


def _similar(key: str, value: Scalar) -> str:
    """Return the known key that an unknown key resembles, or "".

    This comparison accepts more words than `did_you_mean`.
    """
    table, _, name = (plain := kebab(key.lower())).rpartition(".")
    for word in (plain, name) if table in TABLES else (plain,):
        if meant := difflib.get_close_matches(word, sorted(KNOWN), n=1, cutoff=_ALIKE):
            return meant[0]
    if table in TABLES or difflib.get_close_matches(plain, [SITE_CONFIG], cutoff=_ALIKE_SITE_CONFIG):
        return SITE_CONFIG
    return SITE_CONFIG if isinstance(value, str) and value.lower().endswith(".toml") else ""


def list_settings(node: Mapping[str, Scalar]) -> list[tuple[str, Scalar, str]]:
    """Return the key, the value and the origin of each effective setting of a site.

    Args:
        node: The node config.

    Raises:
        ConfigError: As for `effective`.
    """
    settings = effective(node)
    order = [key for key in (*NODE_KEYS, *KEYS) if key in settings]
    unknown = [key for key in settings if key not in KNOWN]
    return [(key, settings[key], "node config" if key in node else f"{node[SITE_CONFIG]}") for key in order] + [
        (key, settings[key], "node config; not a key of this project, without effect") for key in unknown
    ]
