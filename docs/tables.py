"""Writes the tables that follow from the code: ``python docs/tables.py``.

- Settings, in configuration.md, site-settings.md and kits.md. A page names the keys of a table, in their order, in a
  comment such as ``<!-- run config: seed, fedx.* -->``; ``others`` are the keys that no other comment names. The rows
  up to ``<!-- end -->`` come from the fields of the settings and, for the run config's defaults, from pyproject.toml.
- Strategies, in algorithms/index.md, and the effect of Flower's mods on each, in flower-mods.md.
- The defaults of a new strategy's table, in pyproject.toml, and the lines of ``florilegium list``.
"""

import json
import re
import tomllib
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import tomli_w

from apps.config import allowed_values, flatten, known_fields, parse_run_config
from apps.mods import uncovered_fields
from apps.registry import ALGORITHMS
from apps.sites.settings import FIXED, KEYS
from payloads.settings import describe_allowed, kebab
from simulations import listing
from simulations.kits.project import Project

DOCS = Path(__file__).resolve().parent
PROJECT = DOCS.parent
PAGES = tuple(
    DOCS / name for name in ("configuration.md", "site-settings.md", "kits.md", "algorithms/index.md", "flower-mods.md")
)
BAR = r"\|"
OTHERS = "others"
TABLE = re.compile(r"(<!-- (run config|site|project): (.*?) -->\n).*?(?=<!-- end -->)", re.DOTALL)
LIST = re.compile(r"(<!-- (strategies|mods) -->\n).*?(?=<!-- end -->)", re.DOTALL)
EFFECTS = {
    "covered": "all that a site sends after the handshake is clipped or noised",
    "model": "[the other fields](who-sees-what.md#every-field-that-leaves-a-site) travel unchanged",
    "refused": "the run ends with the reason, for mods in the handshake and for wrappers before round 1",
}


def find_keys(kind: str, named: str) -> list[str]:
    """Return the keys of a table, in their order.

    Args:
        kind: The kind of the keys: "run config", "site" or "project".
        named: Keys and patterns of keys, with commas; not `OTHERS`.

    Raises:
        LookupError: A pattern fits no key.
    """
    known = list(_fields_of(kind))
    found = []
    for pattern in named.replace("\n", " ").split(", "):
        if not (fitting := [key for key in known if fnmatchcase(key, pattern.strip())]):
            raise LookupError(f"{kind}: no key {pattern!r}")
        found += fitting
    return found


def _fields_of(kind: str) -> dict[str, Any]:
    if kind == "run config":
        return dict(known_fields())
    if kind == "project":
        return {kebab(name): field for name, field in Project.model_fields.items()}
    return {key: row.field for key, row in KEYS.items()}


def fill(text: str) -> str:
    """Return a page with its tables made anew.

    Args:
        text: The page.
    """
    listed = [(kind, named) for _, kind, named in TABLE.findall(text) if named != OTHERS]
    used = {key for kind, named in listed for key in find_keys(kind, named)}
    others = ", ".join(key for key in known_fields() if key not in used)

    def table(found: re.Match[str]) -> str:
        named = others if found[3] == OTHERS else found[3]
        return found[1] + "\n" + "\n".join(_table(found[2], named) if named else ["None."]) + "\n\n"

    lists = {"strategies": _list_strategies, "mods": _list_effects}
    return LIST.sub(lambda found: found[1] + "\n" + "\n".join(lists[found[2]]()) + "\n\n", TABLE.sub(table, text))


def _list_strategies() -> Iterator[str]:
    yield "| `strategy` | algorithm | what travels | page |"
    yield "|---|---|---|---|"
    pages = {path: path.read_text("utf-8") for path in sorted((DOCS / "algorithms").glob("*.md"))}
    for name, row in ALGORITHMS.items():
        found = [(path, head) for path, text in pages.items() if (head := re.search(rf"^#+ (`{name}`:.*)", text, re.M))]
        link = "none"
        if found:
            path, head = found[0]
            anchor = re.sub(r"[^\w -]", "", head[1]).lower().replace(" ", "-")
            link = f"[{path.stem}]({path.name}{'' if head[0].startswith('# ') else '#' + anchor})"
        yield f"| `{name}` | {row.description} | {row.traits.sends} | {link} |"


def find_effect(strategy: str) -> str:
    """Return the effect of a mod that clips or noises the model: a key of `EFFECTS`.

    Args:
        strategy: The strategy's name.
    """
    config = parse_run_config({"strategy": strategy})
    if config.algorithm.traits.objection:
        return "refused"
    # CoDA sends more between two stages, of which a default run has only one
    stages = {"stage_rounds": 1} if config.algorithm.table == "coda" else {}
    family = config.family.model_copy(update=stages)
    return "model" if uncovered_fields(config.algorithm.strategy, family) else "covered"


def _list_effects() -> Iterator[str]:
    yield "| effect | strategies |"
    yield "|---|---|"
    found = {name: find_effect(name) for name in ALGORITHMS}
    for effect, meaning in EFFECTS.items():
        names = ", ".join(f"`{name}`" for name in ALGORITHMS if found[name] == effect)
        yield f"| {effect}: {meaning} | {names} |"


def _table(kind: str, named: str) -> Iterator[str]:
    site = kind == "site"
    yield f"| key |{' table |' * site} default | allowed | meaning |"
    yield f"|{'---|' * (4 + site)}"
    fields = _fields_of(kind)
    allowed = allowed_values(fields) if kind == "run config" else {key: describe_allowed(fields[key]) for key in fields}
    defaults = {key: None if field.is_required() else field.default for key, field in fields.items()}
    if kind == "run config":
        defaults = read_defaults()
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
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text("utf-8"))
    return dict(flatten(project["tool"]["flwr"]["app"]["config"]))


def _row(key: str, table: str, default: Any, *texts: str) -> str:
    shown = ", ".join(default) if isinstance(default, tuple) else default
    first = (f"`{key}`", table) if table else (f"`{key}`",)
    cells = (*first, "none" if shown is None or shown == {} else f"`{json.dumps(shown)}`", *texts)
    return f"| {' | '.join(cell.replace('|', BAR) for cell in cells)} |"


def add_defaults(text: str) -> str:
    """Return pyproject.toml with the defaults of strategies' tables that it lacks.

    Args:
        text: The file.
    """
    known = tomllib.loads(text)["tool"]["flwr"]["app"]["config"]
    for row in ALGORITHMS.values():
        if row.table and row.table not in known:
            known[row.table] = {kebab(name): value for name, value in row.settings().model_dump().items()}
            text += "\n" + tomli_w.dumps({"tool": {"flwr": {"app": {"config": {row.table: known[row.table]}}}}})
    return text


if __name__ == "__main__":
    project = PROJECT / "pyproject.toml"
    project.write_text(add_defaults(project.read_text("utf-8")), "utf-8")
    for page in PAGES:
        page.write_text(fill(page.read_text("utf-8")), "utf-8")
    listing.write()
