"""The form of a text table: the separator of its columns, its decimal mark and its encoding."""

import codecs
from collections.abc import Sequence
from dataclasses import dataclass
from typing import AnyStr

from problems.data.spec import AUTO, DataError, DataSpec

SEPARATORS = {"comma": ",", "semicolon": ";", "tab": "\t", "bar": "|", "space": " "}
"""Names of separators. `guess_separator` tries all except the space."""
DECIMALS = (AUTO, ".", ",")

_SAMPLE = 100  # number of lines that determine the separator


@dataclass(frozen=True)
class Dialect:
    """The settings for reading a text table.

    Attributes:
        separator: `AUTO`, one of `SEPARATORS`, or the character itself.
        decimal: One of `DECIMALS`.
        encoding: `AUTO`, or the name of one of Python's text encodings.
    """

    separator: str = AUTO
    decimal: str = AUTO
    encoding: str = AUTO

    @classmethod
    def of(cls, spec: DataSpec) -> "Dialect":
        """Return the dialect that the keys of a data set select."""
        return cls(spec.separator, spec.decimal, spec.encoding)

    @property
    def mark(self) -> str:
        """The separator as a character; empty if it is to be guessed."""
        text = "\t" if self.separator == r"\t" else self.separator
        return SEPARATORS.get(text, "" if text == AUTO else text)

    def check(self) -> None:
        """Check the three keys.

        Raises:
            DataError: A value is not allowed.
        """
        mark = self.mark
        if self.separator != AUTO and (
            len(mark) != 1 or not 1 <= ord(mark) < 128 or mark.isalnum() or mark in '"\r\n.+-'
        ):
            allowed = f"{AUTO}, {', '.join(SEPARATORS)}, or one character such as ^"
            raise DataError(
                "separator", got=repr(self.separator), allowed=allowed, hint="set separator to one of these"
            )
        if self.decimal not in DECIMALS:
            allowed = f"{AUTO}, a point or a comma"
            raise DataError("decimal", got=repr(self.decimal), allowed=allowed, hint='set decimal to "." or ","')
        if self.encoding != AUTO and not is_encoding(self.encoding):
            allowed = f"{AUTO}, or a text encoding that Python knows, such as utf-8, cp1252, mac-roman or utf-16-le"
            raise DataError("encoding", got=repr(self.encoding), allowed=allowed, hint="set encoding to one of these")


PLAIN = Dialect("comma", ".", "utf-8")


def is_encoding(name: str) -> bool:
    """Return whether Python knows a text encoding of this name."""
    try:
        return isinstance("".encode(codecs.lookup(name).name), bytes)
    except (LookupError, ValueError):
        return False


def name_separator(mark: str) -> str:
    """Return a separator's name in the plural, for the log and for errors."""
    names = {character: f"{name}s" for name, character in SEPARATORS.items()}
    return names.get(mark, repr(mark))


def guess_separator(lines: Sequence[bytes]) -> tuple[str, bool]:
    """Find the separator of a table.

    Args:
        lines: The first lines that are not empty; the header is the first.

    Returns:
        The separator, and whether it is certain. A comma if no line has a separator.
    """
    counts = {mark: [count_separators(line, mark.encode()) for line in lines[:_SAMPLE]] for mark in ",;\t|"}
    in_header = {mark: per_line for mark, per_line in counts.items() if per_line[0]}
    # a separator occurs equally often in each line, except in damaged lines and in quoted cells with several of them
    even = {mark: per_line for mark, per_line in in_header.items() if len(set(per_line)) == 1}
    candidates = even or in_header
    if not candidates:
        return ",", True
    max_count = max(per_line[0] for per_line in candidates.values())
    best = [mark for mark, per_line in candidates.items() if per_line[0] == max_count]
    return best[0], len(best) == 1


def count_separators(line: AnyStr, mark: AnyStr) -> int:
    """Return the number of separators that are outside quotes.

    Args:
        line: The line.
        mark: The separator.
    """
    quote = '"' if isinstance(line, str) else b'"'
    return sum(part.count(mark) for part in line.split(quote)[::2])
