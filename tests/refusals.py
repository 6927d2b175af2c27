"""Matching of error messages by their fields.

Tests write the fields as ``key: got X, allowed: Y; hint``, or as a part of this text. The product prints these fields
in another order: ``key: hint (got X; allowed: Y)``.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

import pytest

from problems.errors import InputError

E = TypeVar("E", bound=BaseException)


def spell(error: BaseException) -> str:
    """Return the fields of an `InputError` and of the errors joined to it, or the text of another exception."""
    if not isinstance(error, InputError):
        return str(error)
    return "; ".join(
        f"{part.key}: got {part.got}, allowed: {part.allowed}; {part.hint}" for part in (error, *error.also)
    )


def matches(text: str, fields: str) -> bool:
    """Return whether a printed error contains all parts of a regular expression for fields."""
    parts = re.split(r",? ?\.\*|; ?|, (?=allowed)|(?<=: )(?=got )", fields)
    prefixes = {"got ": r"\(", "allowed": "; "}  # the printed characters before a field, by the field's first word
    return all(
        re.search(next((prefix for word, prefix in prefixes.items() if part.startswith(word)), "") + part, text)
        for part in parts
    )


def states(text: str, fields: str) -> bool:
    """Return whether a text contains an error with these fields, or the fields as written."""
    return fields in text or matches(text, re.escape(fields).replace(r"\ ", " "))


@contextmanager
def refuses(kind: type[E] | tuple[type[E], ...], fields: str) -> Iterator[pytest.ExceptionInfo[E]]:
    """Expect an exception whose fields, or whose text, match a regular expression.

    Args:
        kind: The class of the exception, or several classes.
        fields: The regular expression for the fields.
    """
    with pytest.raises(kind) as caught:
        yield caught
    spelt = spell(caught.value)
    assert re.search(fields, spelt) or matches(spelt, fields), f"{fields!r} does not match {spelt!r}"
