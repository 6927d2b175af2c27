"""Writes a new algorithm into a checkout: its stubs, and its name wherever all algorithms are named.

Everything is worked out before the first file is written. ``flwr run`` refuses keys that pyproject.toml does not have,
and the pages that list all keys or all algorithms are held against the registry.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

from apps.config import ConfigError
from apps.registry import ALGORITHMS
from simulations.new_algorithm import NewAlgorithm
from simulations.stubs import clashes, files, paths

PYPROJECT = "pyproject.toml"
CONFIGURATION = "docs/configuration.md"
PRIVACY = "docs/privacy.md"
DISCLOSURE = "docs/disclosure.md"
_WAY_OUT = "take the project's own file, or give another checkout with --into"
_STRATEGIES = re.compile(r"^(\| `strategy` \|[^|]*\|)((?: `[a-z0-9-]+`,?)+)(?= \|)", re.MULTILINE)


def checkout(into: Path | None) -> Path:
    """The root of the checkout to write into: the one given, or the one this package lies in.

    Raises:
        ConfigError: it is none.
    """
    root = Path(__file__).resolve().parents[1] if into is None else into.expanduser().resolve()
    missing = [
        name for name in (PYPROJECT, CONFIGURATION, "apps/algorithms", "tests/algorithms") if not (root / name).exists()
    ]
    if missing:
        raise ConfigError(
            "--into",
            got=f"{root}, which has no {missing[0]}",
            allowed="the root of a checkout of Florilegium",
            hint="clone the project and give its root with --into",
        )
    return root


def write(one: NewAlgorithm, root: Path) -> tuple[list[Path], list[Path]]:
    """Write the stubs and the test, and enter the algorithm where a page or a table names all of them.

    Returns:
        The new files, and those that were changed, relative to the root.

    Raises:
        ConfigError: a name is taken or a file is there already; nothing has been written.
    """
    if one.name in {*ALGORITHMS, *strategies_of(root)}:
        raise ConfigError(
            "NAME",
            got=f"{one.name!r}, but there is a strategy of that name",
            allowed="a new one",
            hint="choose one that `python -m simulations list strategies` does not show",
        )
    for path in paths(one).values():
        for there in (path, path.with_suffix("")):
            if (root / there).exists():
                raise ConfigError(
                    "--family",
                    got=f"{one.family!r}, but {there} is there already",
                    allowed="a name of no module",
                    hint="choose another --family, or move it away",
                )
    if one.table in run_config_of(root):
        raise ConfigError(
            "--family",
            got=f"run-config table {one.table!r}, but there is a key or table of that name",
            allowed="a new one",
            hint="choose another --family",
        )
    if names := clashes(one):
        raise ConfigError(
            "--class-name",
            got=f"{one.prefix!r}, but class {min(names)} is there already",
            allowed="a beginning of new names",
            hint="choose another --class-name",
        )
    new, changed = files(one), enrolled(one, root)
    for path, text in {**new, **changed}.items():
        (root / path).write_text(text, "utf-8")
    return list(new), list(changed)


def run_config_of(root: Path) -> dict[str, Any]:
    """The keys and tables of ``[tool.flwr.app.config]``.

    Raises:
        ConfigError: pyproject.toml is not one of a Flower app.
    """
    try:
        project = tomllib.loads((root / PYPROJECT).read_text("utf-8"))
        config: dict[str, Any] = project["tool"]["flwr"]["app"]["config"]
    except (tomllib.TOMLDecodeError, KeyError) as error:
        raise ConfigError(
            root / PYPROJECT,
            got=f"no table [tool.flwr.app.config] ({error})",
            allowed="the run config's defaults",
            hint=_WAY_OUT,
        ) from None
    return config


def strategies_of(root: Path) -> list[str]:
    """The names that docs/configuration.md allows for ``strategy``."""
    return re.findall(r"`([^`]+)`", _strategies(_read(root, CONFIGURATION))[2])


def enrolled(one: NewAlgorithm, root: Path) -> dict[Path, str]:
    """The texts of the files that must name the algorithm, path -> what it becomes.

    Raises:
        ConfigError: a file has not the place where it belongs.
    """
    page = _read(root, CONFIGURATION)
    found = _strategies(page)
    page = f"{page[: found.end()]}, `{one.name}`{page[found.end() :]}"
    changed = {}
    if one.table:
        changed[Path(PYPROJECT)] = _with_table(one, root)
        page = _with_section(one, page)
    changed[Path(CONFIGURATION)] = page
    sent = ", ".join(f"`{field}`" for field in one.up)
    kind = "model" if sent else "covered"
    privacy = f"| `{one.name}` | works | {kind} | {kind} | {kind} | {f'{sent}, each (d,)' if sent else 'nothing'} |"
    disclosure = f"| `{one.name}` | {sent or 'nothing'} | {'(d,) each' if sent else ''} |".replace("|  |", "| |")
    changed[Path(PRIVACY)] = _with_row(_read(root, PRIVACY), PRIVACY, "Which with which", privacy)
    changed[Path(DISCLOSURE)] = _with_row(_read(root, DISCLOSURE), DISCLOSURE, "By algorithm", disclosure)
    return changed


def _read(root: Path, name: str) -> str:
    try:
        return (root / name).read_text("utf-8")
    except OSError as error:
        raise ConfigError(
            root / name,
            got=error.strerror or str(error),
            allowed="a file, where the algorithm must be named",
            hint=_WAY_OUT,
        ) from None


def _strategies(page: str) -> re.Match[str]:
    found = _STRATEGIES.search(page)
    if found is None:
        raise ConfigError(
            CONFIGURATION,
            got="no row `strategy`",
            allowed="one that lists all names, where the new one belongs",
            hint=_WAY_OUT,
        )
    return found


def _with_table(one: NewAlgorithm, root: Path) -> str:
    """pyproject.toml with the table of the algorithm's settings after the other tables of the run config."""
    before = run_config_of(root)
    text = _read(root, PYPROJECT)
    *_, last = re.finditer(r"^\[tool\.flwr\.app\.config.*\]$", text, re.MULTILINE)
    following = re.compile(r"^\[", re.MULTILINE).search(text, last.end())
    place = len(text) if following is None else following.start()
    lines = [f"[tool.flwr.app.config.{one.table}]", *(f"{setting.key} = {setting.toml}" for setting in one.settings)]
    table, rest = "\n".join(lines), text[place:]
    result = f"{text[:place].rstrip()}\n\n{table}\n" + (f"\n{rest}" if rest else "")
    after = tomllib.loads(result)["tool"]["flwr"]["app"]["config"]
    assert after == {**before, one.table: {setting.key: setting.default for setting in one.settings}}
    return result


def _with_section(one: NewAlgorithm, page: str) -> str:
    """docs/configuration.md with a section on the table, after those of the other tables."""
    sections = list(re.finditer(r"^## .*$", page, re.MULTILINE))
    tables = [place for place, found in enumerate(sections) if found[0].startswith("## Table ")]
    if not tables:
        raise ConfigError(
            CONFIGURATION,
            got="no section 'Table ...'",
            allowed="one at least, after which the new one belongs",
            hint=_WAY_OUT,
        )
    place = sections[tables[-1] + 1].start() if tables[-1] + 1 < len(sections) else len(page)
    allowed = {"bool": "`true`, `false`", "int": "integer", "float": "number", "str": "text"}
    rows = [
        f"| `{one.table}.{setting.key}` | `{setting.toml}` | {allowed[setting.type]} | "
        f"`{setting.field}` of `{one.prefix}Settings` |"
        for setting in one.settings
    ]
    module = f"payloads/{one.family}.py"
    lines = [
        f"## Table {one.table}",
        "",
        f"Read by {one.name}; [{module}](../{module}) says what is allowed.",
        "",
        "| key | default | allowed | meaning |",
        "|---|---|---|---|",
        *rows,
    ]
    section = "\n".join(lines)
    return f"{page[:place].rstrip()}\n\n{section}\n" + (f"\n{page[place:]}" if page[place:] else "")


def _with_row(page: str, name: str, title: str, row: str) -> str:
    """A page with one more row at the end of the table under a heading."""
    heading = re.search(rf"^## {re.escape(title)}$", page, re.MULTILINE)
    table = heading and re.compile(r"(?:^\|.*\n)+", re.MULTILINE).search(page, heading.end())
    if not table:
        raise ConfigError(
            name, got=f"no table under {title!r}", allowed="one, where a row on the algorithm belongs", hint=_WAY_OUT
        )
    return f"{page[: table.end()]}{row}\n{page[table.end() :]}"
