"""What a user is told of bad input: the key at fault, what it got, what is allowed, and the way out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

NOTHING = "nothing"
"""What a key got that has no value, or a place that lacks what belongs there."""

_LONGEST = 240  # characters of `got`, which may be a whole file of the user's or the words of another library


class InputError(Exception):
    """Input that cannot be used. Its text, of all parts in one line, is complete and needs no traceback.

    Args:
        key: what is at fault: a run-config key, an option, a file, or a place such as ``partition 3``.
        got: what stands there, in quotes where it is a user's text; `NOTHING` where there is nothing.
        allowed: what may stand there, and since when that is not plain, why.
        hint: the way out: what to set or do, a command, or a page.
        also: further errors to be told in the same line.

    Attributes:
        key, got, allowed, hint: the same, as texts of one line.
        also: the same.
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
        self.got = _shortened(_one_line(got))
        self.allowed = _one_line(allowed)
        self.hint = _one_line(hint)
        self.also = tuple(also)

    @classmethod
    def of(cls, error: InputError, place: str = "", *, hint: str | None = None) -> Self:
        """The same as an error of this class, with a place before its key, or another way out."""
        return cls(
            f"{place}: {error.key}" if place else error.key,
            got=error.got,
            allowed=error.allowed,
            hint=error.hint if hint is None else hint,
            also=error.also,
        )

    @classmethod
    def joined(cls, errors: Sequence[InputError]) -> Self:
        """One error of several: the first one's fields, and the text of all."""
        first, *others = errors
        return cls(first.key, got=first.got, allowed=first.allowed, hint=first.hint, also=others)

    def at(self, place: str) -> Self:
        """The same error with a place before its key."""
        return type(self).of(self, place)

    def __str__(self) -> str:
        errors = [self, *self.also]
        texts = [f"{error.key}: got {error.got}, allowed: {error.allowed}" for error in errors]
        # a way out that the next error has too is said once
        following = [*(error.hint for error in self.also), ""]
        ends = [
            "" if error.hint == after else f"; {error.hint}" for error, after in zip(errors, following, strict=True)
        ]
        return "; ".join(text + end for text, end in zip(texts, ends, strict=True))

    def __reduce__(self) -> tuple[Any, ...]:
        # Exceptions are made anew from `args`, which lack what only has a name.
        return _made_anew, (type(self), self.__dict__)


def _made_anew(kind: type[InputError], fields: Mapping[str, Any]) -> InputError:
    error = kind(fields["key"], got="", allowed="", hint="")
    error.__dict__.update(fields)
    return error


def _one_line(value: str | float | Path) -> str:
    return " ".join(str(value).split())


def _shortened(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 60]} ... {text[-50:]}"
