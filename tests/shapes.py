"""A check, while the tests run, that arrays have the shapes and the types of numbers that annotations state.

`.pytest.ini` gives `check` to jaxtyping, which applies it to our mathematical functions at import, except the functions
of ``vertical.problem.blocks``, which numba compiles.
"""

from collections.abc import Callable
from typing import Any, TypeVar, get_args

import jaxtyping
from beartype import beartype

F = TypeVar("F", bound=Callable[..., Any])


def states_shape(hint: Any) -> bool:
    """Return whether an annotation, or a part of it, states the shape of an array."""
    if isinstance(hint, type) and issubclass(hint, jaxtyping.AbstractArray):
        return True
    return any(states_shape(part) for part in get_args(hint))


def check(function: F) -> F:
    """Let beartype check those arguments and results of a function whose annotations state a shape.

    mypy checks all other types, including types that no value shows, such as protocols and ``Self``.
    """
    function.__annotations__ = {name: hint for name, hint in function.__annotations__.items() if states_shape(hint)}
    checked: F = beartype(function)
    return checked
