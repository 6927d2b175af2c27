"""Names and words that a reader understands at first reading: functions are verbs, docstrings have sections."""

import ast
import inspect
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import florilegium
from tests.docs.markdown import PAGES, PROJECT, prose
from tests.docs.phrases import compare, count

PACKAGES = (
    "apps",
    "clients",
    "florilegium",
    "methods",
    "payloads",
    "privacy",
    "problems",
    "simulations",
    "strategies",
    "vertical",
)
MODULES = sorted(path for package in PACKAGES for path in (PROJECT / package).rglob("*.py"))
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)

# Participles that say what has happened: the callbacks of a link, of a party's segment, and of runs that end.
EVENTS = {"aborted", "arrived", "contributed", "ended", "finished", "greeted", "linked", "opened", "received"}
EVENTS |= {"relayed", "stopped"}
# Verbs that end like participles, two commands and a demonstration that are named after a setting.
OTHERS = {"assembled", "centralized", "embed", "exceed", "feed", "need", "nonfederated", "proceed", "seed"}
IRREGULAR = {"blown", "chosen", "drawn", "given", "held", "known", "own", "risen", "shown", "spent", "told"}

# Words that have another one here (docs/glossary.md), or that say nothing.
WORDS = {
    "aggregator": "server",
    "communication round": "round",
    "daemon": "process",
    "hyperparameter": "key",
    "leverage": "use",
    "local iteration": "local step",
    "obviously": "",
    "of course": "",
    "simply": "",
    "utilise": "use",
    "utilize": "use",
    "whilst": "while",
}


def participles(path: Path) -> Iterator[str]:
    """The functions of a module that are named by a participle alone; properties are values and may be."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, FUNCTIONS) and not any("property" in ast.unparse(one) for one in node.decorator_list):
            name = node.name.removeprefix("_")
            if (re.fullmatch("[a-z]+ed", name) or name in IRREGULAR) and name not in EVENTS | OTHERS:
                yield f"{path.relative_to(PROJECT)}:{node.lineno}: {node.name}"


def public_functions() -> Iterator[tuple[str, str]]:
    """Name and docstring of the documented functions with arguments that ``import florilegium`` leads to."""
    kinds = filter(inspect.isclass, (getattr(florilegium, name) for name in florilegium.__all__))
    ours = {one for kind in kinds for one in kind.__mro__ if one.__module__.partition(".")[0] in PACKAGES}
    for owner, (name, member) in ((kind, item) for kind in ours for item in vars(kind).items()):
        one = getattr(member, "__func__", member)
        if inspect.isfunction(one) and one.__doc__ and not name.startswith("_"):
            arguments = inspect.signature(one).parameters.keys() - {"self", "cls"}
            if arguments:
                yield f"{owner.__qualname__}.{name}", one.__doc__


def docstrings(path: Path) -> str:
    """All docstrings of a module."""
    nodes = ast.walk(ast.parse(path.read_text("utf-8")))
    return "\n".join(ast.get_docstring(n) or "" for n in nodes if isinstance(n, (*FUNCTIONS, ast.ClassDef, ast.Module)))


def test_functions_are_not_named_by_participles() -> None:
    assert [found for path in MODULES for found in participles(path)] == []


def test_three_in_four_public_functions_have_sections() -> None:
    functions = dict(public_functions())
    sections = re.compile(r"^ +(Args|Returns|Raises|Yields):$", re.M)
    without = [name for name, text in functions.items() if not sections.search(text)]
    assert len(functions) > 80
    assert len(without) <= len(functions) / 4, without


def test_no_two_classes_share_a_name() -> None:
    places = defaultdict(list)
    for path in MODULES:
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.ClassDef):
                places[node.name].append(str(path.relative_to(PROJECT)))
    # each method has its own Carry and Batch
    outside = {name: found for name, found in places.items() if not all(one.startswith("methods/") for one in found)}
    assert {name: found for name, found in outside.items() if len(found) > 1} == {}


def test_pages_and_docstrings_use_the_words_of_the_glossary() -> None:
    texts = {path: prose(path) for path in PAGES} | {path: docstrings(path) for path in MODULES}
    found = [
        f"{path.relative_to(PROJECT)}: {word!r}; " + (f"say {instead!r}" if instead else "leave it out")
        for word, instead in WORDS.items()
        for path, text in texts.items()
        if re.search(rf"\b{word}s?\b", text, re.I)
    ]
    assert found == []


def test_hard_phrases_become_fewer() -> None:
    more, fewer = compare()
    assert more == []
    assert fewer == [], "lower the ceilings: python -m tests.docs.phrases"


def test_hard_phrases_are_found_over_line_ends_in_entries_and_in_errors() -> None:
    docstring = (
        '"""Do it.\n\n    Args:\n        x: of a site.\n        y: A site.\n\n    Raises:\n        E: as is.\n    """'
    )
    raised = 'raise E("k", got=1, allowed="one that exists", hint="give it")'
    text = f"# What\n# the page says, so that\ndef f(x, y):\n    {docstring}\n    {raised}\n"
    hits = {"what": 1, "says": 1, "so that": 1, "entries": 1, "errors": 2}
    assert {name: number for name, number in count("a.py", text).items() if number} == hits
