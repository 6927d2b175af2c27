"""docs/symbols.md: every code name is there, in the module or the run config that its row names."""

import ast
import importlib
import inspect
import re
import textwrap

import pytest

from apps.config import known_keys
from tests.docs.markdown import PROJECT, codes, rows, section

PAGE = PROJECT / "docs" / "symbols.md"


def assigned(cls: type) -> set[str]:
    """The attributes that the methods of a class, or of one it inherits from, give to ``self``."""
    names = set()
    for base in cls.__mro__[:-1]:
        try:
            tree = ast.parse(textwrap.dedent(inspect.getsource(base)))
        except (OSError, TypeError):
            continue
        targets = (
            node for node in ast.walk(tree) if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
        )
        names |= {node.attr for node in targets if isinstance(node.value, ast.Name) and node.value.id == "self"}
    return names


def exists(module: str, name: str) -> bool:
    """Whether a module has the class or function, and that the field, method or attribute after the dot."""
    outer, _, inner = name.partition(".")
    found = getattr(importlib.import_module(module), outer, None)
    if not inner or found is None:
        return found is not None
    fields = {field for base in found.__mro__ for field in inspect.get_annotations(base)}
    return hasattr(found, inner) or inner in fields | assigned(found)


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
