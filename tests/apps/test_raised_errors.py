"""Errors of bad input, checked in the sources: no part is empty, and hints name existing keys and options only."""

import ast
import importlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import get_args

import pytest
import typer
from click import Command, Group

from apps.config import known_keys
from apps.doctor.command import cli as doctor
from apps.sites.site_config import KNOWN as KEYS_OF_SITES
from problems.errors import InputError
from simulations.__main__ import cli
from simulations.kits.command import kit, provision
from simulations.listing import Section

ROOT = Path(__file__).parents[2]
PACKAGES = ("apps", "clients", "simulations", "problems", "strategies")
VALUE = "\0"  # a value that is known only when the error is raised
KEYS = known_keys()
TABLES = {key.partition(".")[0] for key in KEYS if "." in key}
# options of Flower's commands, including the options of `flower-supernode` and `flower-superlink` in the doctor
FLOWERS = {"--disable-runtime-dependency-installation", "--federation-config", "--node-config"}


@dataclass(frozen=True)
class Made:
    """The place of an error in the sources and the texts of its parts; `VALUE` stands for a value."""

    place: str
    parts: dict[str, str]


def kinds(base: type[InputError] = InputError) -> set[str]:
    """Return the names of all classes of errors of bad input."""
    return {base.__name__}.union(*(kinds(below) for below in base.__subclasses__()))


def local(tree: ast.Module, name: ast.Name) -> ast.expr | None:
    """Return the expression that was assigned to a name in the innermost function around it, or None."""
    around = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and node.lineno <= name.lineno <= (node.end_lineno or 0)
    ]
    found = None
    for node in ast.walk(max(around, key=lambda node: node.lineno)) if around else ():
        if isinstance(node, ast.Assign) and node.lineno < name.lineno:
            pairs = [(node.targets[0], node.value)]
            if isinstance(node.targets[0], ast.Tuple) and isinstance(node.value, ast.Tuple):
                pairs = list(zip(node.targets[0].elts, node.value.elts, strict=True))
            values = [value for target, value in pairs if isinstance(target, ast.Name) and target.id == name.id]
            if values and (found is None or node.lineno > found.lineno):
                found = values[0]
    return found


def text(node: ast.expr, module: ModuleType, tree: ast.Module) -> str:
    """Return the text that an expression of a source produces."""
    match node:
        case ast.Constant():
            return str(node.value)
        case ast.JoinedStr():
            return "".join(text(part, module, tree) for part in node.values)
        case ast.FormattedValue():
            return text(node.value, module, tree)
        case ast.BinOp():
            return text(node.left, module, tree) + text(node.right, module, tree)
        case ast.Name() if value := local(tree, node):
            return text(value, module, tree)
        case ast.Name() if isinstance(value := getattr(module, node.id, None), str):
            return value
        case ast.Call(func=ast.Name(id="did_you_mean"), args=[*_, hint]):
            return text(hint, module, tree)
        case ast.Call(func=ast.Name(id="list_hint"), args=[ast.Constant(value=section)]):
            return f"see `florilegium list {section}`"
    return VALUE


def made_in(path: Path) -> Iterator[Made]:
    name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
    module = importlib.import_module(name.removesuffix(".__init__"))
    tree = ast.parse(path.read_text("utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in {*kinds(), "_unfit"}:
            given = {keyword.arg or "**": keyword.value for keyword in node.keywords}
            if node.func.id == "_unfit":  # makes the errors of unfit models, with a default hint
                given = dict(zip(("key", "got", "allowed", "hint"), [ast.Constant("model"), *node.args], strict=False))
                if len(given) < 4:
                    continue
            elif node.args:
                given["key"] = node.args[0]
            yield Made(f"{path.relative_to(ROOT)}:{node.lineno}", {k: text(v, module, tree) for k, v in given.items()})


@pytest.fixture(scope="module")
def made() -> list[Made]:
    paths = [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]
    found = [one for path in paths for one in made_in(path)]
    assert len(found) > 250
    return found


def options(command: Command) -> set[str]:
    inner = command.commands.values() if isinstance(command, Group) else ()
    own = {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}
    return own.union(*(options(one) for one in inner))


def test_all_parts_say_something(made: list[Made]) -> None:
    for one in made:
        assert {"key", "got", "allowed", "hint"} <= one.parts.keys(), one
        assert all(part.strip() for part in one.parts.values()), one


def test_a_way_out_names_pages_and_commands_that_there_are(made: list[Made]) -> None:
    program = typer.main.get_command(cli)
    assert isinstance(program, Group)
    kits = typer.Typer()
    kits.command()(provision)
    known = FLOWERS.union(options(program), *(options(typer.main.get_command(one)) for one in (doctor, kits, kit)))
    pages = commands = given = 0
    for one in made:
        hint = one.parts["hint"]
        for page in re.findall(r"\b(?:docs|deploy|examples)/[\w./-]+\.\w+", hint):
            assert (ROOT / page).is_file(), one
            pages += 1
        for words in re.findall(r"`florilegium ([^`]+)`", hint):
            name, *sections = words.split()
            assert name in program.commands, one
            assert set(sections) <= {*get_args(Section), f"{VALUE}s"}, one
            commands += 1
        for option in re.findall(r"(?<!\S)--[a-z-]+", hint):
            assert option in known, one
            given += 1
    assert min(pages, commands, given) >= 10


def test_a_way_out_names_run_config_keys_that_there_are(made: list[Made]) -> None:
    found = 0
    for one in made:
        hint = one.parts["hint"]
        told = re.findall(r"\b(?:set|raise|lower) (?!another |the )([a-z][\w.-]*[\w])", hint)
        told += [word for word in re.findall(r"(?<![\w/.-])[a-z\d]+\.[a-z-]+\b", hint) if word.split(".")[0] in TABLES]
        for key in told:
            if key != "it":
                assert key in KEYS or key in KEYS_OF_SITES, one
                found += 1
    assert found >= 30
