"""The error that a user sees for bad input: the key at fault, what it got, what is allowed, and what to do.

Also the error for packages that a base installation lacks, which names the extra that installs them.
"""

from __future__ import annotations

import difflib
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
        texts = [f"{error.key}: got {error.got}, allowed: {error.allowed}" for error in errors]
        # a hint that the next error repeats is printed once
        following = [*(error.hint for error in self.also), ""]
        ends = [
            "" if error.hint == after else f"; {error.hint}" for error, after in zip(errors, following, strict=True)
        ]
        return "; ".join(text + end for text, end in zip(texts, ends, strict=True))

    def __reduce__(self) -> tuple[Any, ...]:
        # Unpickling passes `args` only, which lack the keyword arguments.
        return partial(type(self), got=self.got, allowed=self.allowed, hint=self.hint, also=self.also), (self.key,)


def did_you_mean(word: str, names: Iterable[str]) -> str:
    """Return a question in brackets that has the name closest to a word.

    Args:
        word: what a user wrote.
        names: what may be meant.

    Returns:
        Text that begins with a space, to be put behind a list of names; "" if no name is close.
    """
    close = difflib.get_close_matches(word, list(names), n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""


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
