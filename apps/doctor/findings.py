"""The outcomes of the doctor's checks: one line each."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from problems.errors import InputError


class WrongError(InputError):
    """A failed check."""


class Finding(NamedTuple):
    """The outcome of one check.

    Attributes:
        name: The name of the check.
        good: Whether the check has passed.
        text: The facts that the check has found, or the error.
    """

    name: str
    good: bool
    text: str

    def __str__(self) -> str:
        return f"{'ok   ' if self.good else 'wrong'}  {self.name}: {self.text}"


def find(name: str, check: Callable[[], str]) -> Finding:
    """Run a check and return its outcome.

    Args:
        name: The name of the check.
        check: Function that returns a text if the check passes. If the check fails, it raises WrongError, ValueError
            or OSError. Other exceptions pass through.
    """
    try:
        return Finding(name, True, check())
    except (WrongError, ValueError, OSError) as error:
        return Finding(name, False, " ".join(str(error).split()))
