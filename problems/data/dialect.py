"""The dialect of a csv file: the separator of its columns, its decimal mark and its encoding."""

import codecs
from collections.abc import Sequence
from dataclasses import dataclass
from typing import AnyStr

from problems.data.spec import AUTO, DataError, DataSpec

SEPARATORS = {"comma": ",", "semicolon": ";", "tab": "\t", "bar": "|", "space": " "}
"""Names of separators. `guess_separator` tries all except the space."""
DECIMALS = (AUTO, ".", ",")

_SAMPLE = 100  # the number of lines that determine the separator


@dataclass(frozen=True)
class Dialect:
    """The settings for reading a csv file.

    Attributes:
        separator: `AUTO`, a name in `SEPARATORS`, or a character.
        decimal: An entry of `DECIMALS`.
        encoding: `AUTO`, or the name of a text encoding that Python knows.
    """

    separator: str = AUTO
    decimal: str = AUTO
    encoding: str = AUTO

    @classmethod
    def of(cls, spec: DataSpec) -> "Dialect":
        """Return the dialect that a data set's options select."""
        return cls(spec.separator, spec.decimal, spec.encoding)

    @property
    def mark(self) -> str:
        """The separator as a character; "" for `AUTO`."""
        text = "\t" if self.separator == r"\t" else self.separator
        return SEPARATORS.get(text, "" if text == AUTO else text)

    def check(self) -> None:
        """Check the values of the keys separator, decimal and encoding.

        Raises:
            DataError: A value is not allowed.
        """
        mark = self.mark
        if self.separator != AUTO and (
            len(mark) != 1 or not 1 <= ord(mark) < 128 or mark.isalnum() or mark in '"\r\n.+-'
        ):
            allowed = f"{AUTO}, {', '.join(SEPARATORS)}, or one character such as ^"
            raise DataError(
                "separator", got=repr(self.separator), allowed=allowed, hint="set separator to an allowed value"
            )
        if self.decimal not in DECIMALS:
            allowed = f"{AUTO}, a point or a comma"
            raise DataError("decimal", got=repr(self.decimal), allowed=allowed, hint='set decimal to "." or ","')
        if self.encoding != AUTO and not is_encoding(self.encoding):
            allowed = f"{AUTO}, or a text encoding that Python knows, such as utf-8, cp1252, mac-roman or utf-16-le"
            raise DataError("encoding", got=repr(self.encoding), allowed=allowed, hint="set encoding to utf-8 or auto")


PLAIN = Dialect("comma", ".", "utf-8")


def is_encoding(name: str) -> bool:
    """Return whether Python knows a text encoding of this name."""
    try:
        return isinstance("".encode(codecs.lookup(name).name), bytes)
    except (LookupError, ValueError):
        return False


def name_separator(mark: str) -> str:
    """Return a separator's name in the plural, such as "commas", for the log and for errors."""
    names = {character: f"{name}s" for name, character in SEPARATORS.items()}
    return names.get(mark, repr(mark))


def guess_separator(lines: Sequence[bytes]) -> tuple[str, bool]:
    """Find the separator of a table.

    Args:
        lines: The header and the next lines, without empty lines.

    Returns:
        The separator, and whether it is certain. If no line has a separator, a comma.
    """
    counts = {mark: [count_separators(line, mark.encode()) for line in lines[:_SAMPLE]] for mark in ",;\t|"}
    in_header = {mark: per_line for mark, per_line in counts.items() if per_line[0]}
    # a separator occurs equally often in each line, except in damaged lines and inside quoted cells
    even = {mark: per_line for mark, per_line in in_header.items() if len(set(per_line)) == 1}
    candidates = even or in_header
    if not candidates:
        return ",", True
    max_count = max(per_line[0] for per_line in candidates.values())
    best = [mark for mark, per_line in candidates.items() if per_line[0] == max_count]
    return best[0], len(best) == 1


def count_separators(line: AnyStr, mark: AnyStr) -> int:
    """Return the number of separators (``mark``) in a line that are outside quotes."""
    quote = '"' if isinstance(line, str) else b'"'
    return sum(part.count(mark) for part in line.split(quote)[::2])
