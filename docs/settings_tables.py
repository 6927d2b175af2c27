"""Fills the tables of settings in configuration.md and site-settings.md: ``python docs/settings_tables.py``.

A page names the keys of a table, in their order, in a comment such as ``<!-- run config: seed, fedx.* -->``. The rows
up to ``<!-- end -->`` come from the fields of the settings and, for the run config's defaults, from pyproject.toml.
"""

import json
import re
import tomllib
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from apps.config import allowed_values, flatten, known_fields
from apps.sites.settings import FIXED, KEYS
from payloads.settings import describe_allowed

DOCS = Path(__file__).resolve().parent
PAGES = (DOCS / "configuration.md", DOCS / "site-settings.md")
BAR = r"\|"
TABLE = re.compile(r"(<!-- (run config|site): (.*?) -->\n).*?(?=<!-- end -->)", re.DOTALL)


def find_keys(kind: str, named: str) -> list[str]:
    """Return the keys of a table, in their order.

    Args:
        kind: The kind of the keys: "run config" or "site".
        named: Keys and patterns of keys, with commas.

    Raises:
        LookupError: A pattern fits no key.
    """
    known = list(known_fields() if kind == "run config" else KEYS)
    found = []
    for pattern in named.replace("\n", " ").split(", "):
        if not (fitting := [key for key in known if fnmatchcase(key, pattern.strip())]):
            raise LookupError(f"{kind}: no key {pattern!r}")
        found += fitting
    return found


def fill(text: str) -> str:
    """Return a page with its tables made anew.

    Args:
        text: The page.
    """
    return TABLE.sub(lambda found: found[1] + "\n" + "\n".join(_table(found[2], found[3])) + "\n\n", text)


def _table(kind: str, named: str) -> Iterator[str]:
    site = kind == "site"
    yield f"| key |{' table |' * site} default | allowed | meaning |"
    yield f"|{'---|' * (4 + site)}"
    fields = known_fields() if kind == "run config" else {key: row.field for key, row in KEYS.items()}
    allowed = allowed_values(fields) if kind == "run config" else {key: describe_allowed(fields[key]) for key in fields}
    defaults = read_defaults() if kind == "run config" else {key: field.default for key, field in fields.items()}
    fixed = [key for key in find_keys(kind, named) if site and key in FIXED]
    if fixed:
        names = "`, `".join(fixed)
        yield _row(names, "data", None, "as in the [run config](configuration.md)", str(fields[fixed[0]].description))
    for key in find_keys(kind, named):
        if key not in fixed:
            kinds = fields[key].annotation
            choices = [f"`{name}`" for name in get_args(kinds)] if get_origin(kinds) is Literal else []
            table = KEYS[key].table if site else ""
            yield _row(key, table, defaults[key], ", ".join(choices) or allowed[key], str(fields[key].description))


def read_defaults() -> dict[str, Any]:
    """Return the run config's defaults."""
    project = tomllib.loads((DOCS.parent / "pyproject.toml").read_text("utf-8"))
    return dict(flatten(project["tool"]["flwr"]["app"]["config"]))


def _row(key: str, table: str, default: Any, *texts: str) -> str:
    shown = ", ".join(default) if isinstance(default, tuple) else default
    first = (f"`{key}`", table) if table else (f"`{key}`",)
    cells = (*first, "none" if shown is None or shown == {} else f"`{json.dumps(shown)}`", *texts)
    return f"| {' | '.join(cell.replace('|', BAR) for cell in cells)} |"


if __name__ == "__main__":
    for page in PAGES:
        page.write_text(fill(page.read_text("utf-8")), "utf-8")
