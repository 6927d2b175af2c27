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

    def broken(self, tree: Path) -> str:
        """The file's text with the mistake in it; ValueError or SyntaxError where it cannot be made or tried."""
        if missing := [name for name in (self.file, *self.tests.split()) if not (tree / name).exists()]:
            raise ValueError(f"no {missing[0]}")
        source = (tree / self.file).read_text(encoding="utf-8")
        if (count := source.count(self.old)) != 1:
            raise ValueError(f"its old text occurs {count} times in {self.file}")
        broken = source.replace(self.old, self.new)
        if self.file.endswith(".py"):
            compile(broken, self.file, "exec")
        return broken


def read_breaks() -> Iterator[Break]:
    """All breaks, room by room."""
    for path in sorted(Path(__file__).parent.glob("*.toml")):
        for name, fields in tomllib.loads(path.read_text(encoding="utf-8")).items():
            yield Break(name, **fields)
