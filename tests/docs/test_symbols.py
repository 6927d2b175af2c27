"""docs/symbols.md: every code name is there, in the module or the run config that its row names."""

import importlib
import inspect
import re

import pytest

from apps.config import known_keys
from tests.docs.markdown import PROJECT, codes, rows, section

PACKAGES = ("apps", "clients", "methods", "payloads", "problems", "strategies")
PAGE = PROJECT / "docs" / "symbols.md"


def exists(module: str, name: str) -> bool:
    """Whether a module has the class or function, and that the field, method or attribute after the dot."""
    outer, _, inner = name.partition(".")
    found = getattr(importlib.import_module(module), outer, None)
    if not inner or hasattr(found, inner):
        return found is not None
    given = rf"^    {inner}: |\bself\.{inner}\b[^=\n]* = "
    own = [base for base in getattr(found, "__mro__", ()) if base.__module__.partition(".")[0] in PACKAGES]
    return any(re.search(given, inspect.getsource(base), re.MULTILINE) for base in own)


@pytest.mark.parametrize("paper", ["FedX", "LocalSCGDAM", "FedSGDA", "Composite FL", "VFB2"])
def test_every_code_name_is_there(paper: str) -> None:
    table = rows(section(PAGE, paper))
    assert table
    missing = []
    for _, _, code, where in table:
        (link,) = re.findall(r"\]\(([^)]+)\)", where)
        if link == "configuration.md":
            missing += [name for name in codes(code) if name not in known_keys()]
        else:
            module = link.removeprefix("../").removesuffix(".py").replace("/", ".")
            missing += [f"{module}: {name}" for name in codes(code) if not exists(module, name)]
    assert not missing
