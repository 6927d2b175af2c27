"""Federated learning beyond empirical risk minimisation: the public names of the project, imported on first use.

``import florilegium`` alone imports no other module of the project. A run in this process:

    import florilegium

    run = florilegium.run({"strategy": "fedx2", "num-server-rounds": 20}, "runs/first")
    print(run.metrics["auc"])
    model = florilegium.load("runs/first")
    print(model.predict_proba(rows))
"""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from typing import Any

# The stub, which type checkers and editors read, is the only list of the names: "from MODULE import NAME as NAME".
_STUB = Path(__file__).with_suffix(".pyi").read_text("utf-8")
_MODULES = {name: module for module, name in re.findall(r"^from (\S+) import (\w+) as", _STUB, re.MULTILINE)}

__all__ = sorted([*_MODULES, "__version__"])


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from apps.run_directory.versions import project_version

        return project_version()
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(_MODULES[name]), name)
    return value


def __dir__() -> list[str]:
    return __all__
