"""The error that a user sees for bad input: the key at fault, what it got, what is allowed, and what to do.

Also the error for packages that a base installation lacks, which names the extra that installs them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Self

NOTHING = "nothing"
"""`got` of a key without a value, or of a place where something is missing."""

_LONGEST = 240  # characters of `got`, which may quote a user's whole file or another library's message


class InputError(Exception):
    """Input that cannot be used. Its text has all parts in one line and needs no traceback.

    Args:
        key: what is at fault: a run-config key, an option, a file, or a place such as ``partition 3``.
        got: the value found, in quotes if it is a user's text; `NOTHING` if there is none.
        allowed: the allowed values and, if it is not obvious, why.
        hint: what to set or do, a command, or a page.
        also: further errors, printed in the same line.

    Attributes:
        key, got, allowed, hint: the arguments, as texts of one line.
        also: the argument, as a tuple.

    Example:
        >>> print(InputError("seed", got=-1, allowed="an integer >= 0", hint="set seed to 0"))
        seed: set seed to 0 (got -1; allowed: an integer >= 0)
    """

    def __init__(
        self,
        key: str | Path,
        *,
        got: str | float | Path,
        allowed: str | float,
        hint: str,
        also: Sequence[InputError] = (),
    ) -> None:
        super().__init__(str(key))
        self.key = _one_line(key)
        self.got = _shorten(_one_line(got))
        self.allowed = _one_line(allowed)
        self.hint = _one_line(hint)
        self.also = tuple(also)

    @classmethod
    def of(cls, error: InputError, place: str = "", *, hint: str | None = None) -> Self:
        """Copy an error into this class.

        Args:
            place: stands before the key; "" for none.
            hint: another one; None keeps the error's own.
        """
        return cls(
            f"{place}: {error.key}" if place else error.key,
            got=error.got,
            allowed=error.allowed,
            hint=error.hint if hint is None else hint,
            also=error.also,
        )

    @classmethod
    def join(cls, errors: Sequence[InputError]) -> Self:
        """Make one error of several, with the text of all.

        Args:
            errors: one at least; the first gives the fields.
        """
        first, *others = errors
        return cls(first.key, got=first.got, allowed=first.allowed, hint=first.hint, also=others)

    def at(self, place: str) -> Self:
        """Return the same error with a place before its key.

        Args:
            place: such as ``partition 3``.
        """
        return type(self).of(self, place)

    def __str__(self) -> str:
        errors = [self, *self.also]
        # a hint that repeats the hint before it is printed once
        before = ["", *(error.hint for error in errors)]
        texts = [
            (error.key if error.hint == hint else f"{error.key}: {error.hint}")
            + f" (got {error.got}; allowed: {error.allowed})"
            for error, hint in zip(errors, before, strict=False)
        ]
        return "; ".join(texts)

    def __reduce__(self) -> tuple[Any, ...]:
        # Unpickling passes `args` only, which lack the keyword arguments.
        return partial(type(self), got=self.got, allowed=self.allowed, hint=self.hint, also=self.also), (self.key,)


def did_you_mean(word: str, names: Iterable[str], hint: str) -> str:
    """Return a hint that asks first for a name that a word is a misspelling of, if there is such a name.

    A misspelling is close in each part between hyphens, dots and underscores. Parts are close if they have the same
    first letter and digits, and differ by one letter or two swapped letters. Parts of up to three letters may only
    swap. Parts of eight letters or more may differ twice. Hyphens alone may be missing. In ``table.key`` both sides
    must be close. A key of two or more parts may lack others.

    Args:
        word: The text of a user.
        names: The names that the user may mean.
        hint: The hint without a suggestion.

    Example:
        >>> print(did_you_mean("scafold", ["local-sgd", "scaffold"], "see `florilegium list strategies`"))
        did you mean 'scaffold'? If not, see `florilegium list strategies`
    """
    found = min(((_distance(word, name), name) for name in names), default=(math.inf, ""))
    return f"did you mean {found[1]!r}? If not, {hint}" if found[0] < math.inf else hint


def _distance(word: str, name: str) -> float:
    """The number of edits from a word to a name, or infinity if the word is not a misspelling of the name."""
    (table, _, key), (own, _, full) = word.lower().rpartition("."), name.lower().rpartition(".")
    parts, wanted = re.split("[-_]", key), re.split("[-_]", full)
    missing = len(wanted) - len(parts)
    if missing > 0 and len(parts) > 1 and _is_within(parts, wanted):
        return _edits(table, own) + 3 * missing
    if missing:
        return _edits(table, own) + (0 if "".join(parts) == "".join(wanted) else math.inf)
    return _edits(table, own) + sum(map(_edits, parts, wanted))


def _is_within(parts: Sequence[str], wanted: Sequence[str]) -> bool:
    """Whether all parts are among the wanted ones, in the same order."""
    rest = iter(wanted)
    return all(part in rest for part in parts)


def _edits(word: str, name: str) -> float:
    """The inserted, deleted, replaced and swapped letters between two parts of names, or infinity for other words."""
    if word == name:
        return 0
    length = max(len(word), len(name))
    swapped = sorted(word) == sorted(name)
    if re.findall(r"\d", word) != re.findall(r"\d", name) or not (swapped or (length > 3 and word[:1] == name[:1])):
        return math.inf
    # rows of the distance of Damerau and Levenshtein, as lists by the number of letters of `name`
    earlier, last = [0] * (len(name) + 1), list(range(len(name) + 1))
    for i, letter in enumerate(word):
        row = [i + 1]
        for j, other in enumerate(name):
            row.append(min(last[j + 1] + 1, row[j] + 1, last[j] + (letter != other)))
            if i and j and letter == name[j - 1] and word[i - 1] == other:
                row[-1] = min(row[-1], earlier[j - 1] + 1)
        earlier, last = last, row
    return last[-1] if last[-1] <= (2 if length >= 8 else 1) else math.inf


def _one_line(value: str | float | Path) -> str:
    return " ".join(str(value).split())


def _shorten(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 60]} ... {text[-50:]}"


class MissingExtraError(ValueError):
    """A feature needs a package of an extra; the message names both."""


def install(extra: str) -> str:
    """The command that installs an extra."""
    return f'pip install "florilegium[{extra}]"'


def importable(module: str) -> bool:
    """Whether a module is installed; it is not imported."""
    return find_spec(module) is not None


def require(what: str, extra: str, *modules: str) -> None:
    """Check that modules of an extra are installed, without importing them.

    Args:
        what: needs them, for the message.
        extra: of this project, which installs them.
        modules: their names.

    Raises:
        MissingExtraError: some are not there.
    """
    missing = [module for module in modules if not importable(module)]
    if missing:
        raise MissingExtraError(f"{what}: needs {', '.join(missing)}, not installed here: {install(extra)}")
