"""The errors that a user sees: `InputError` for invalid input, `MissingExtraError` for a package that is not installed.

An `InputError` has the key at fault, the value that it got, the allowed values, and a hint for the user's next step.
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
"""The text of `got` if a key has no value, or something is missing."""

_LONGEST = 240  # characters of `got`, which may quote a user's whole file or another library's message


class InputError(Exception):
    """An error in a user's input. Its text has all parts in one line and needs no traceback.

    Args:
        key: The input at fault: a run-config key, an option, a file, or a location such as ``partition 3``.
        got: The value of the key, in quotes if it is a user's text. `NOTHING` if the key has no value.
        allowed: The allowed values and, if it is not obvious, the reason.
        hint: The user's next step: a setting, an action, a command, or a page.
        also: Further errors, printed in the same line.

    Attributes:
        key, got, allowed, hint: The arguments, as texts of one line.
        also: The further errors, as a tuple.

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
    def of(cls, error: InputError, location: str = "", *, hint: str | None = None) -> Self:
        """Return an error of this class with the fields of another error.

        Args:
            error: The other error.
            location: A text to put before the key, such as ``partition 3``. "": no text.
            hint: A new hint. None: the other error's hint.
        """
        return cls(
            f"{location}: {error.key}" if location else error.key,
            got=error.got,
            allowed=error.allowed,
            hint=error.hint if hint is None else hint,
            also=error.also,
        )

    @classmethod
    def join(cls, errors: Sequence[InputError]) -> Self:
        """Combine errors in one error, whose text has the texts of all.

        Args:
            errors: At least one error. The result has the fields of the first.
        """
        first = errors[0]
        return cls(first.key, got=first.got, allowed=first.allowed, hint=first.hint, also=errors[1:])

    def at(self, location: str) -> Self:
        """Return the same error with a location before its key.

        Args:
            location: A location such as ``partition 3``.
        """
        return type(self).of(self, location)

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
    """Return a hint that begins with the name that a user probably meant, if a word is a misspelling of a name.

    Words and names are compared part by part; parts are separated by hyphens, dots and underscores. Two parts match if
    they have the same first letter and digits, and differ by one letter or two swapped letters. Parts of up to three
    letters may only have swapped letters. Parts of eight letters or more may have two differences. Hyphens alone may be
    missing. In ``table.key`` both sides must match. A key of two or more parts may lack parts of the name.

    Args:
        word: A user's text.
        names: The names that the user may mean.
        hint: The hint without a suggestion.

    Example:
        >>> print(did_you_mean("scafold", ["local-sgd", "scaffold"], "see `florilegium list strategies`"))
        did you mean 'scaffold'? If not, see `florilegium list strategies`
    """
    distance, nearest = min(((_distance(word, name), name) for name in names), default=(math.inf, ""))
    return f"did you mean {nearest!r}? If not, {hint}" if distance < math.inf else hint


def _distance(word: str, name: str) -> float:
    """Return the number of edits from a word to a name, or infinity if the word is not a misspelling of the name."""
    (table, _, key), (own, _, full) = word.lower().rpartition("."), name.lower().rpartition(".")
    parts, wanted = re.split("[-_]", key), re.split("[-_]", full)
    missing = len(wanted) - len(parts)
    if missing > 0 and len(parts) > 1 and _is_within(parts, wanted):
        return _edits(table, own) + 3 * missing
    if missing:
        return _edits(table, own) + (0 if "".join(parts) == "".join(wanted) else math.inf)
    return _edits(table, own) + sum(map(_edits, parts, wanted))


def _is_within(parts: Sequence[str], wanted: Sequence[str]) -> bool:
    """Return whether the parts are a subsequence of the wanted parts."""
    remaining = iter(wanted)  # a membership test consumes the iterator up to the match
    return all(part in remaining for part in parts)


def _edits(word: str, name: str) -> float:
    """Return the number of inserted, deleted, replaced and swapped letters, or infinity if there are too many."""
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
        for j, wanted in enumerate(name):
            row.append(min(last[j + 1] + 1, row[j] + 1, last[j] + (letter != wanted)))
            if i and j and letter == name[j - 1] and word[i - 1] == wanted:
                row[-1] = min(row[-1], earlier[j - 1] + 1)
        earlier, last = last, row
    return last[-1] if last[-1] <= (2 if length >= 8 else 1) else math.inf


def _one_line(value: str | float | Path) -> str:
    return " ".join(str(value).split())


def _shorten(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 60]} ... {text[-50:]}"


class MissingExtraError(ValueError):
    """An error: a feature needs a package that is not installed. The text names the feature and the extra."""


def join_first(names: Sequence[str], limit: int) -> str:
    """Join names by commas. If there are more than `limit`, an ellipsis stands for the last names.

    Example:
        >>> join_first(["a", "b", "c"], 2)
        'a, b, ...'
    """
    return ", ".join([*names[:limit], *(["..."] if len(names) > limit else [])])


def install(extra: str) -> str:
    """Return the command that installs an extra of this project."""
    return f'pip install "florilegium[{extra}]"'


def importable(module: str) -> bool:
    """Return whether a module is installed, without importing it."""
    return find_spec(module) is not None


def require(what: str, extra: str, *modules: str) -> None:
    """Check that modules of an extra are installed, without importing them.

    Args:
        what: The feature that needs the modules, for the error's text.
        extra: The extra of this project that installs the modules.
        modules: The names of the modules.

    Raises:
        MissingExtraError: A module is not installed.
    """
    missing = [module for module in modules if not importable(module)]
    if missing:
        raise MissingExtraError(f"{what}: needs {', '.join(missing)}, not installed here: {install(extra)}")
