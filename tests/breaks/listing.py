"""The list of breaks: one file a room beside this one."""

import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Break:
    """One mistake in one file.

    Attributes:
        name: of the break, unlike all others.
        file: of the product, from the root of the tree.
        old: a text that occurs in it exactly once.
        new: what stands there instead.
        tests: files or folders of the fast suite of which one fails, the quickest first.
        breaks: what no longer holds, in words.
        message: it spoils nothing but the words of an error.
    """

    name: str
    file: str
    old: str
    new: str
    tests: str
    breaks: str
    message: bool = False

    def broken(self, source: str) -> str:
        """The file's text with the mistake in it; ValueError where the old text is not there exactly once."""
        if (count := source.count(self.old)) != 1:
            raise ValueError(f"its old text occurs {count} times in {self.file}")
        return source.replace(self.old, self.new)


def read_breaks() -> Iterator[Break]:
    """All breaks, room by room."""
    for path in sorted(Path(__file__).parent.glob("*.toml")):
        for name, fields in tomllib.loads(path.read_text(encoding="utf-8")).items():
            yield Break(name, **fields)
