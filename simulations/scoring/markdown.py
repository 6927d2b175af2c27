"""Parts of a Markdown page."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

from simulations.results.output import Table


def make_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table."""
    lines = [columns, ["---"] * len(columns), *rows]
    cells = [[join_lines(cell).replace("|", r"\|") for cell in line] for line in lines]
    return "\n".join(f"| {' | '.join(line)} |" for line in cells)


def show_part(part: str | Table) -> str:
    """Return a sentence, or a table with its caption."""
    if isinstance(part, str):
        return part
    caption = f"{part.caption[:1].upper()}{part.caption[1:]}"
    return f"{caption}:\n\n{make_table(part.columns, [[*map(escape, row)] for row in part.texts])}"


def escape(text: str) -> str:
    """Return a text without signs that Markdown would read. `make_table` escapes bars.

    Example:
        >>> print(escape("St. *Anna*"))
        St. \\*Anna\\*
    """
    return re.sub(r"([\\`*_{}\[\]<>#!~])", r"\\\1", text)


def join_lines(value: Any) -> str:
    """Return a value's text on one line."""
    return " ".join(str(value).split())
