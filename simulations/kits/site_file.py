"""The file of a site's settings, ``site.toml``: all keys of `apps.sites.settings`, each with its meaning, as comments.

Keys with a value in the kit are not commented. The owner of the site edits the file, so no command writes it twice,
except for the pins of a party's peers.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import NoneType
from typing import Any, get_args

from apps.run_config.pairs import format_value
from apps.run_config.settings import ConfigError
from apps.sites.settings import FIXED, KEYS, TABLES
from payloads.settings import describe_allowed

WIDTH = 100


def write_settings(values: Mapping[str, Any], head: str, *, vertical: bool) -> str:
    """Return the text of a settings file.

    Args:
        values: The keys with a value.
        head: A comment for the first lines.
        vertical: Whether the file has the table of parties.
    """
    lines = [*_comment(head)]
    for table in TABLES:
        if table != "vertical" or vertical:
            lines += ["", f"[{table}]", *_entries(table, values)]
    return "\n".join(lines) + "\n"


def _entries(table: str, values: Mapping[str, Any]) -> Iterator[str]:
    for key, row in KEYS.items():
        if row.table != table or (key in FIXED and key not in values and key != FIXED[0]):
            continue
        if key in FIXED and key not in values:
            yield from _comment(f"{row.field.description} The keys: {', '.join(FIXED)}.")
            continue
        yield from _comment(f"{row.field.description} Allowed: {describe_allowed(row.field)}.")
        yield f"{key} = {format_value(values[key])}" if key in values else f"# {key} = {_example(row.field)}"


def _example(field: Any) -> str:
    """Return the default of a key in TOML. A key without a default gets a placeholder, which TOML refuses."""
    default = field.default
    if isinstance(default, tuple):
        default = ", ".join(default)
    if isinstance(default, bool | int | float | str):
        return format_value(default)
    kinds = [kind for kind in get_args(field.annotation) or [field.annotation] if kind is not NoneType]
    return "..." if kinds[0] in (int, float) else '"..."'


def _comment(text: str) -> list[str]:
    return textwrap.wrap(text, WIDTH, initial_indent="# ", subsequent_indent="# ", break_on_hyphens=False)


def set_keys(path: Path, values: Mapping[str, Any]) -> None:
    """Set keys in a settings file. Each key must have a line, commented or not.

    Args:
        path: The file.
        values: The values by key.

    Raises:
        ConfigError: The file has no line, or several lines, of a key.
    """
    lines = path.read_text("utf-8").splitlines()
    for key, value in values.items():
        wanted = f"{key} = {format_value(value)}"
        places = [k for k, line in enumerate(lines) if re.match(rf"(?:# ?)?{re.escape(key)} *=", line)]
        if len(places) != 1:
            got = f"{len(places)} lines of {key}"
            raise ConfigError(path, got=got, allowed="a single line", hint=f"write the line {wanted}")
        lines[places[0]] = wanted
    path.write_text("\n".join(lines) + "\n", "utf-8")
