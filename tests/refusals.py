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


def printed(fields: str) -> str:
    """Return an expression for the printed text of an error from an expression for its fields."""
    found, allowed, rest = fields.partition(", allowed")
    rest, _, hint = rest.partition("; ")
    ahead = f"(?=.*{printed(hint)})" if hint else ""
    return ahead + found.replace(": got ", r": .*\(got ") + allowed.replace(",", ";") + rest


def states(text: str, fields: str) -> bool:
    """Return whether a text has an error with such fields, or the fields themselves."""
    return fields in text or re.search(printed(re.escape(fields).replace(r"\ ", " ")), text) is not None


@contextmanager
def refuses(kind: type[E] | tuple[type[E], ...], fields: str) -> Iterator[pytest.ExceptionInfo[E]]:
    """Expect an exception whose fields match an expression; the exception may have them as its text."""
    with pytest.raises(kind) as caught:
        yield caught
    found = spell(caught.value)
    assert re.search(fields, found) or re.search(printed(fields), found), f"{fields!r} does not match {found!r}"
