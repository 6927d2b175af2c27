"""What the doctor finds: one line for each check."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from problems.errors import InputError


class WrongError(InputError):
    """A check that failed."""


class Finding(NamedTuple):
    """The outcome of one check."""

    name: str
    good: bool
    text: str

    def __str__(self) -> str:
        return f"{'ok   ' if self.good else 'wrong'}  {self.name}: {self.text}"


def find(name: str, check: Callable[[], str]) -> Finding:
    """Run a check and record its outcome.

    Args:
        check: returns what it saw, or raises WrongError, ValueError or OSError with what is wrong; others pass through.
    """
    try:
        return Finding(name, True, check())
    except (WrongError, ValueError, OSError) as error:
        return Finding(name, False, " ".join(str(error).split()))
