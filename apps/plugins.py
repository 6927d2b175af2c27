"""Strategies of other packages. ``strategy`` selects them by the path of their registry row, or by an entry point."""

import tomllib
from collections.abc import Collection, Mapping

from apps.registry import ALGORITHMS, ANALYSES
from apps.run_config.algorithm import PRIVACY, SYNTHETIC, Algorithm
from apps.run_config.settings import ConfigError, Scalar, flatten
from problems.errors import InputError, did_you_mean
from problems.importing import ROWS, Plugin, find_plugin, import_named, is_dotted, plugins

ROW_FORM = "package.module:ROW"
SETTINGS = "strategy-settings"
PAGE = "docs/tutorials/your-own-algorithm.md"
# other common names of a strategy -> its name in the registry
_SYNONYMS = dict.fromkeys(("fedavg", "fed-avg", "federated-averaging"), "local-sgd")


def find_row(strategy: str) -> Algorithm:
    """Return a strategy's row: its `Algorithm`, which names the classes that Flower runs.

    Args:
        strategy: A name in the registry, ``package.module:ROW``, or the name of an entry point.

    Raises:
        ConfigError: The strategy does not exist, or the object of that name is not a row.
    """
    if row := ALGORITHMS.get(strategy) or ANALYSES.get(strategy):
        return row
    path = strategy
    if not is_dotted(strategy):
        plugin = find_plugin(ROWS, strategy, _refuse)
        if plugin is None:
            raise _unknown(strategy)
        path = plugin.path
    return _import_row(path)


# A key that `add_settings` appends to the user's text. It is lost if the text closes its table or begins a comment.
_END = "end-of-settings"


def describe_plugins(group: str, hidden: Collection[str]) -> dict[str, str]:
    """Return descriptions of the entry points of a group, by name.

    Args:
        group: The group. The rows of `ROWS` are imported for their descriptions.
        hidden: Names that the project uses itself. Entry points with these names have no effect.
    """
    return {plugin.name: _describe(group, plugin) for plugin in plugins(group) if plugin.name not in hidden}


def add_settings(flat: Mapping[str, Scalar], strategy: str, row: Algorithm) -> dict[str, Scalar]:
    """Return a flat run config with the values of ``strategy-settings`` as keys of the strategy's table.

    `flwr run` refuses keys that the project's pyproject.toml lacks, such as the keys of another package's strategy.

    Args:
        flat: The run config.
        strategy: The name of its strategy.
        row: The strategy's row.

    Raises:
        ConfigError: The strategy is the project's own, the text is not TOML, or the run config also has a key of the
            text.
    """
    text = flat.get(SETTINGS, "")
    if not text or not isinstance(text, str):
        return dict(flat)

    def refuse(got: str, allowed: str, hint: str) -> ConfigError:
        return ConfigError(SETTINGS, got=got, allowed=allowed, hint=hint)

    if strategy in ALGORITHMS or not row.table:
        keys = f"has its keys in table {row.table!r}" if row.table else "has no keys"
        raise refuse(repr(text), f"'', since strategy {strategy!r} {keys}", f"remove {SETTINGS}")
    try:
        settings = flatten(tomllib.loads(f"{row.table} = {{{text}, {_END}=0}}"))
        if settings.pop(f"{row.table}.{_END}", None) is None:  # the text closes the table itself
            raise ValueError("it has a closing brace too many")
    except ValueError as error:
        example = "key=value pairs separated by commas, such as \"momentum=0.5, kind='plain'\""
        raise refuse(f"{text!r} ({error})", example, f"see {PAGE}") from None
    if twice := [key for key in settings if key in flat]:
        raise refuse(f"{text!r}, and also {twice[0]}", "each key once", f"remove {twice[0]} from {SETTINGS}")
    return {**flat, **settings, SETTINGS: ""}


def _import_row(path: str) -> Algorithm:
    row = import_named(path, _refuse)
    if not isinstance(row, Algorithm):
        raise _refuse(f"'{path}', a {type(row).__name__}")
    used = {algorithm.table: algorithm.settings for algorithm in ALGORITHMS.values() if algorithm.table}
    if row.table in (PRIVACY, SYNTHETIC) or used.get(row.table, row.settings) is not row.settings:
        got = f"'{path}', whose table {row.table!r} belongs to another strategy"
        raise ConfigError("strategy", got=got, allowed="an unused table name", hint=f"rename the table, see {PAGE}")
    return row


def _refuse(got: str) -> InputError:
    allowed = f"'{ROW_FORM}' that names an Algorithm, such as apps.registry.adapt returns"
    return ConfigError("strategy", got=got, allowed=allowed, hint=f"see {PAGE}")


def _unknown(strategy: str) -> ConfigError:
    registered = _SYNONYMS.get(strategy.lower())
    names = list(dict.fromkeys([*ALGORITHMS, *ANALYSES, *(plugin.name for plugin in plugins(ROWS)), ROW_FORM]))
    hint = did_you_mean(strategy, names, "see `florilegium list strategies`")
    if registered:
        hint = f"set strategy to {registered!r}, the name of this algorithm in Florilegium"
    return ConfigError("strategy", got=repr(strategy), allowed=", ".join(names), hint=hint)


def _describe(group: str, plugin: Plugin) -> str:
    text = plugin.path
    if group == ROWS:
        try:
            text = _import_row(plugin.path).description
        except ConfigError as error:
            text = f"cannot be used: {error.got}"
    return f"{text} [{plugin.package}]"
