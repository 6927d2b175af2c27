"""The list of deliberate mistakes, read from the TOML files in this folder, one for each area of the product."""

import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Break:
    """A deliberate mistake in a file of the product.

    Attributes:
        name: The break's unique name.
        file: The file of the product, relative to the root of the tree.
        old: A text that occurs exactly once in the file.
        new: The replacement of the text.
        tests: Files or folders of the fast suite, the quickest first. At least one of them must fail.
        breaks: The effect of the mistake, as a sentence.
        message: Whether the mistake only changes an error's text.
    """

    name: str
    file: str
    old: str
    new: str
    tests: str
    breaks: str
    message: bool = False

    def broken(self, tree: Path) -> str:
        """Return the file's text with the mistake.

        Raises:
            ValueError: A file is missing, or the old text does not occur exactly once.
            SyntaxError: The new text is not valid Python.
        """
        if missing := [name for name in (self.file, *self.tests.split()) if not (tree / name).exists()]:
            raise ValueError(f"the tree has no file {missing[0]}")
        source = (tree / self.file).read_text(encoding="utf-8")
        if (count := source.count(self.old)) != 1:
            raise ValueError(f"the old text of this break occurs {count} times in {self.file}, and not once")
        broken = source.replace(self.old, self.new)
        if self.file.endswith(".py"):
            compile(broken, self.file, "exec")
        return broken


def read_breaks() -> Iterator[Break]:
    """Yield all breaks, file by file."""
    for path in sorted(Path(__file__).parent.glob("*.toml")):
        for name, fields in tomllib.loads(path.read_text(encoding="utf-8")).items():
            yield Break(name, **fields)
