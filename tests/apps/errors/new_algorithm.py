"""Errors of ``new-algorithm``: the words that describe an algorithm, and the checkout that it is written into."""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path
from typing import Any

from tests.apps.errors.harness import ROOT
from tests.apps.errors.row import Row, Says, command

PAGES = ("docs/configuration.md", "docs/privacy.md", "docs/disclosure.md")
WAY_OUT = "take the project's own file"
LONG = "a" * 33


def told(name: str, algorithm: str, *options: str, says: Says) -> Row:
    """Words that are refused before a checkout is looked at."""
    return command(name, "new-algorithm", algorithm, *options, says=says)


def written(name: str, algorithm: str, *options: str, says: Says, **change: Any) -> Row:
    """What a checkout in ``{tmp}/project`` refuses; ``change`` is of `checkout`."""
    arguments = ("new-algorithm", algorithm, *options, "--into", "{tmp}/project")
    return command(name, *arguments, says=says, before=partial(checkout, **change))


def checkout(tmp: Path, finished: Path, *, file: str = "", before: str = "", after: str = "") -> None:
    """The files of the project that the command reads, one of them without a text, or away."""
    root = tmp / "project"
    for folder in ("docs", "payloads", "clients", "strategies", "apps/algorithms", "tests/algorithms"):
        (root / folder).mkdir(parents=True)
    for name in ("pyproject.toml", *PAGES, "payloads/fedx.py"):
        shutil.copy(ROOT / name, root / name)
    if before:
        text = (root / file).read_text("utf-8")
        assert before in text
        (root / file).write_text(text.replace(before, after), "utf-8")
    elif file:
        (root / file).unlink()


ROWS = [
    # the name
    told(
        "algorithm in capitals", "FedAvgM", says=("NAME", "got 'FedAvgM'", "kebab-case", "choose one such as fed-avgm")
    ),
    told("algorithm of a long name", LONG, says=("NAME", f"got '{LONG}'", "at most 32", "choose one such as fed-avgm")),
    told(
        "algorithm that is a word of Python",
        "lambda",
        says=("NAME", "got 'lambda'", "the name of a Python module", "choose one with --family"),
    ),
    told(
        "module that is a word of Python",
        "fed-avgm",
        "--family",
        "class",
        says=("--family", "got 'class'", "the name of a Python module", "choose one with --family"),
    ),
    told(
        "class that is none",
        "fed-avgm",
        "--class-name",
        "fedAvgM",
        says=("--class-name", "got 'fedAvgM'", "the Python name of a class", "choose one such as FedAvgM"),
    ),
    told(
        "loss that is no mean",
        "fed-avgm",
        "--loss",
        "psm",
        says=("--loss", "got 'psm'", "allowed: cross-entropy, squared-error", "take the modules"),
    ),
    # settings
    told(
        "setting without a default",
        "fed-avgm",
        "--setting",
        "momentum",
        says=("--setting", "got 'momentum'", "key=default", "give one such as momentum=0.9"),
    ),
    told(
        "setting of a bare word",
        "fed-avgm",
        "--setting",
        "mode=auto",
        says=("--setting mode", "got 'auto'", "a text in double quotes", "give one, e.g. 'mode=\"auto\"'"),
    ),
    told(
        "setting with a bar",
        "fed-avgm",
        "--setting",
        'mode="a|b"',
        says=("--setting mode", "a|b", "up to 60 plain characters", "choose such a text"),
    ),
    told(
        "setting of a name that every model has",
        "fed-avgm",
        "--setting",
        "copy=1",
        says=("--setting copy", "has something of that name", "allowed: any other", "choose one"),
    ),
    told(
        "setting twice",
        "fed-avgm",
        "--setting",
        "a=1",
        "--setting",
        "a=2",
        says=("--setting", "got a, a", "each key once", "leave one out"),
    ),
    # fields
    told(
        "field that is no name",
        "fed-avgm",
        "--up",
        "my-field",
        says=("--up", "got 'my-field'", "the Python name of a field", "choose another"),
    ),
    told(
        "field twice",
        "fed-avgm",
        "--memory",
        "a",
        "--memory",
        "a",
        says=("--memory", "got a, a", "each field once", "leave one out"),
    ),
    # what is there already
    written(
        "strategy that there is",
        "fedprox",
        says=("NAME", "got 'fedprox'", "allowed: a new one", "`python -m simulations list strategies`"),
    ),
    written(
        "module that there is",
        "my-fedx",
        "--family",
        "fedx",
        says=(
            "--family",
            "got 'fedx'",
            "payloads/fedx.py is there already, allowed: a name of no module",
            "choose another",
        ),
    ),
    written(
        "table that there is",
        "fed-avgm",
        "--family",
        "synthetic",
        "--setting",
        "a=1",
        says=("--family", "got run-config table 'synthetic'", "allowed: a new one", "choose another --family"),
    ),
    written(
        "class that there is",
        "reply",
        says=("--class-name", "got 'Reply'", "allowed: a beginning of new names", "choose another --class-name"),
    ),
    # the checkout
    command(
        "no checkout",
        "new-algorithm",
        "fed-avgm",
        "--into",
        "{tmp}",
        says=("--into", "{tmp} is no checkout", "allowed: the root of one", "give its root with --into"),
    ),
    written(
        "project without a run config",
        "fed-avgm",
        file="pyproject.toml",
        before="[tool.flwr.app.config",
        after="[tool.other.config",
        says=("{tmp}/project/pyproject.toml", "no table [tool.flwr.app.config]", "expected the run config", WAY_OUT),
    ),
    written(
        "page that is missing",
        "fed-avgm",
        file="docs/privacy.md",
        says=("{tmp}/project/docs/privacy.md", "No such file", "the algorithm must be named", WAY_OUT),
    ),
    written(
        "page without strategies",
        "fed-avgm",
        file="docs/configuration.md",
        before="| `strategy` |",
        after="| strategy |",
        says=("docs/configuration.md", "no row `strategy`", "expected one that lists all names", WAY_OUT),
    ),
    written(
        "page without tables",
        "fed-avgm",
        "--setting",
        "momentum=0.9",
        file="docs/configuration.md",
        before="## Table ",
        after="## The table ",
        says=("docs/configuration.md", "no section 'Table ...'", "expected one at least", WAY_OUT),
    ),
    written(
        "page without a row an algorithm",
        "fed-avgm",
        file="docs/privacy.md",
        before="## Which with which",
        after="## Which",
        says=("docs/privacy.md", "no table under 'Which with which'", "expected one", WAY_OUT),
    ),
]
