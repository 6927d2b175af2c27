"""Strategies of a user's own: rows of the registry in other packages, which a path or an entry point names."""

import tomllib
from collections.abc import Collection, Mapping

from apps.registry import ALGORITHMS
from apps.run_config.algorithm import PRIVACY, SYNTHETIC, Algorithm
from apps.run_config.settings import ConfigError, Scalar, flatten
from problems.errors import InputError, did_you_mean
from problems.importing import ROWS, Plugin, find_plugin, import_named, is_dotted, plugins

ROW_FORM = "package.module:ROW"
SETTINGS = "strategy-settings"
PAGE = "docs/tutorials/your-own-algorithm.md"
# names that others use for a strategy
_ALSO = dict.fromkeys(("fedavg", "fed-avg", "federated-averaging"), "local-sgd")


def find_row(strategy: str) -> Algorithm:
    """Return the row that a strategy's name stands for.

    Args:
        strategy: a name of the registry, ``package.module:ROW``, or the name of an entry point.

    Raises:
        ConfigError: there is no such strategy, or what is found is no row.
    """
    if strategy in ALGORITHMS:
        return ALGORITHMS[strategy]
    path = strategy
    if not is_dotted(strategy):
        plugin = find_plugin(ROWS, strategy, _refuse)
        if plugin is None:
            raise _unknown(strategy)
        path = plugin.path
    return _import_row(path)


# a key behind all of a text, which is lost if the text ends its table or begins a comment
_END = "end-of-settings"


def describe_plugins(group: str, hidden: Collection[str]) -> dict[str, str]:
    """Return what is known of the entry points of a group, by name.

    Args:
        group: `ROWS`, whose rows are imported for their descriptions, or another.
        hidden: names that stand for something of the project, which a package's entry point cannot change.
    """
    return {one.name: _describe(group, one) for one in plugins(group) if one.name not in hidden}


def add_settings(flat: Mapping[str, Scalar], strategy: str, row: Algorithm) -> dict[str, Scalar]:
    """Return a flat run config with the values of ``strategy-settings`` as keys of the strategy's table.

    `flwr run` refuses keys that are not in the project's pyproject.toml, such as those of another package's strategy.

    Args:
        flat: the run config.
        strategy: its strategy.
        row: of the strategy.

    Raises:
        ConfigError: the strategy is the project's own, the text is no TOML, or a key is given in both places.
    """
    text = flat.get(SETTINGS, "")
    if not text or not isinstance(text, str):
        return dict(flat)

    def refuse(got: str, allowed: str, hint: str) -> ConfigError:
        return ConfigError(SETTINGS, got=got, allowed=allowed, hint=hint)

    if strategy in ALGORITHMS or not row.table:
        where = f"table {row.table!r}" if row.table else "none"
        raise refuse(repr(text), f"'' with strategy {strategy!r}, whose own keys are: {where}", "leave it out")
    try:
        given = flatten(tomllib.loads(f"{row.table} = {{{text}, {_END}=0}}"))
        if given.pop(f"{row.table}.{_END}", None) is None:  # the text closes the table itself
            raise ValueError("a brace too many")
    except ValueError as error:
        example = "key=value pairs with commas, such as \"momentum=0.5, kind='plain'\""
        raise refuse(f"{text!r} ({error})", example, f"see {PAGE}") from None
    if twice := [key for key in given if key in flat]:
        raise refuse(f"{text!r}, and {twice[0]} besides", "a key once", "leave one out")
    return {**flat, **given, SETTINGS: ""}


def _import_row(path: str) -> Algorithm:
    row = import_named(path, _refuse)
    if not isinstance(row, Algorithm):
        raise _refuse(f"'{path}', a {type(row).__name__}")
    taken = {one.table: one.settings for one in ALGORITHMS.values() if one.table}
    if row.table in (PRIVACY, SYNTHETIC) or taken.get(row.table, row.settings) is not row.settings:
        got = f"'{path}', whose table {row.table!r} is there already"
        raise ConfigError("strategy", got=got, allowed="a table of its own", hint=f"rename it, see {PAGE}")
    return row


def _refuse(got: str) -> InputError:
    allowed = f"'{ROW_FORM}' with an Algorithm, as apps.registry.adapt makes it"
    return ConfigError("strategy", got=got, allowed=allowed, hint=f"see {PAGE}")


def _unknown(strategy: str) -> ConfigError:
    known_as = _ALSO.get(strategy.lower())
    names = list(dict.fromkeys([*ALGORITHMS, *(one.name for one in plugins(ROWS)), ROW_FORM]))
    hint = did_you_mean(strategy, names, "see `florilegium list strategies`")
    if known_as:
        hint = f"set strategy to {known_as!r}, its name here"
    return ConfigError("strategy", got=repr(strategy), allowed=", ".join(names), hint=hint)


def _describe(group: str, plugin: Plugin) -> str:
    text = plugin.path
    if group == ROWS:
        try:
            text = _import_row(plugin.path).description
        except ConfigError as error:
            text = f"cannot be used: {error.got}"
    return f"{text} [{plugin.package}]"
