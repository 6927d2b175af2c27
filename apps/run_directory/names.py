"""The names of run directories: a name, and the same name with a number."""

import re
from pathlib import Path


def make_name(text: str) -> str:
    """Return a text as a folder's name. Names of a user's own strategies and data sets contain colons and slashes."""
    return re.sub(r"[^\w.-]+", "-", text)


def find_numbered(base: Path, name: str) -> list[Path]:
    """Return the directory of a name and its numbered successors, in the order of their numbers."""
    numbered = [p for p in base.glob(f"{name}-*") if p.name.removeprefix(f"{name}-").isdigit()]
    return [base / name, *sorted(numbered, key=lambda path: number_of(path, name))]


def number_of(path: Path, name: str) -> int:
    """Return the number that ends a directory's name; 1 without a number."""
    return int(path.name.removeprefix(name).removeprefix("-") or 1)
