"""Matching of errors by their fields, which tests write as ``key: got X, allowed: Y; hint``, in any printed form."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

import pytest

from problems.errors import InputError

E = TypeVar("E", bound=BaseException)


def spell(error: BaseException) -> str:
    """Return the fields of an error and its further errors; the text of an exception that is not an `InputError`."""
    if not isinstance(error, InputError):
        return str(error)
    return "; ".join(f"{one.key}: got {one.got}, allowed: {one.allowed}; {one.hint}" for one in (error, *error.also))


def matches(text: str, fields: str) -> bool:
    """Whether a printed error matches an expression for fields, which are printed in another order."""
    parts = re.split(r",? ?\.\*|; ?|, (?=allowed)|(?<=: )(?=got )", fields)
    places = {"got ": r"\(", "allowed": "; "}  # before the value and before the allowed values
    return all(
        re.search(next((mark for begin, mark in places.items() if part.startswith(begin)), "") + part, text)
        for part in parts
    )


def states(text: str, fields: str) -> bool:
    """Return whether a text has an error with such fields, or the fields themselves."""
    return fields in text or matches(text, re.escape(fields).replace(r"\ ", " "))


@contextmanager
def refuses(kind: type[E] | tuple[type[E], ...], fields: str) -> Iterator[pytest.ExceptionInfo[E]]:
    """Expect an exception whose fields match an expression; the exception may have them as its text."""
    with pytest.raises(kind) as caught:
        yield caught
    found = spell(caught.value)
    assert re.search(fields, found) or matches(found, fields), f"{fields!r} does not match {found!r}"
