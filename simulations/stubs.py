"""The stubs of a new algorithm: payload, client, strategy and the row of the registry, which its author fills in, and a
test that holds the halves against a reference."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from problems.objectives.classification import CROSS_ENTROPY
from simulations.new_algorithm import NewAlgorithm
from simulations.stub_templates import STUBS

# stands in a stub where words are missing; a test of the registry refuses it
MARK = "Fill in:"
WIDTH = 120


def paths(one: NewAlgorithm) -> dict[str, Path]:
    """Template -> the file it becomes, below a checkout's root: the four of the algorithm, and its test."""
    file = Path(f"{one.family}.py")
    return {
        "payload": "payloads" / file,
        "client": "clients" / file,
        "strategy": "strategies" / file,
        "row": "apps/algorithms" / file,
        "test": Path(f"tests/algorithms/test_{file}"),
    }


def files(one: NewAlgorithm) -> dict[Path, str]:
    """The text of each."""
    from jinja2 import DictLoader, Environment, StrictUndefined

    environment = Environment(
        loader=DictLoader(STUBS),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    common: dict[str, Any] = {name: getattr(one, name) for name in ("name", "prefix", "table", "settings", "sends")}
    common |= {name: getattr(one, name) for name in ("down", "up", "state", "memory", "records")}
    first = one.losses[0]
    common |= {
        "mark": MARK,
        "losses": [_constant(loss) for loss in one.losses],
        "default_loss": "" if first == CROSS_ENTROPY else _constant(first),
    }
    imports = _imports(one)
    return {
        path: environment.get_template(part).render(common, imports=_block(imports.get(part, {})))
        for part, path in paths(one).items()
    }


def _imports(one: NewAlgorithm) -> dict[str, dict[str, set[str]]]:
    """What each stub imports of ours: module -> names."""
    own = f"payloads.{one.family}"
    classes = {record.name.removeprefix(one.prefix): record.name for record in one.records}
    settings = {f"{one.prefix}Settings"} if one.settings else set()
    client: dict[str, set[str]] = {
        "clients.local_sgd": {"SampleLossClient"},
        own: settings | {classes[part] for part in ("Down", "Up", "Memory") if part in classes},
        "payloads.record": {"FloatArray"},
    }
    strategy: dict[str, set[str]] = {
        own: settings | {classes[part] for part in ("Down", "Up", "State") if part in classes},
        "payloads.record": {"FloatArray"},
        "strategies.base": {"PayloadStrategy"},
        "strategies.replies": {"Reply"},
        "strategies.roster": {"Roster"},
    }
    losses = {"problems.objectives.classification": {_constant(loss) for loss in one.losses}}
    if one.losses[0] != CROSS_ENTROPY:
        client["problems.objectives.classification"] = {_constant(one.losses[0])}
    return {
        "payload": {
            **({"payloads.record": {"FloatArray", "Payload", "array"}} if one.records else {}),
            **({"payloads.settings": {"Settings"}} if one.settings else {}),
        },
        "client": client,
        "strategy": strategy,
        "row": {
            "apps.algorithms": {"Algorithm"},
            f"clients.{one.family}": {f"{one.prefix}Client"},
            f"strategies.{one.family}": {one.prefix},
            **losses,
        },
    }


def clashes(one: NewAlgorithm) -> set[str]:
    """Classes of its own that would hide one that a stub imports."""
    own = {one.prefix, f"{one.prefix}Client", f"{one.prefix}Settings", *(record.name for record in one.records)}
    modules = {f"{floor}.{one.family}" for floor in ("payloads", "clients", "strategies")}
    taken = {"Scalar", "Field", "Path", "Array", "SmallRun"}
    for imports in _imports(one).values():
        for module, names in imports.items():
            taken |= set() if module in modules else names
    return own & taken


def _block(imports: Mapping[str, set[str]]) -> str:
    """Import lines as ruff sorts and wraps them: constants first, then classes, then the rest."""
    lines = []
    for module, names in sorted(imports.items()):
        ordered = sorted(names, key=lambda name: (not name.isupper(), name[0].islower(), name.lower()))
        line = f"from {module} import {', '.join(ordered)}"
        wrapped = "\n".join([f"from {module} import (", *(f"    {name}," for name in ordered), ")"])
        if names:
            lines.append(line if len(line) <= WIDTH else wrapped)
    return "\n".join(lines)


def _constant(loss: str) -> str:
    """The name of a loss's name in `problems.objectives.classification`."""
    return loss.replace("-", "_").upper()
