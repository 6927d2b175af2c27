"""A check, while the tests run, that arrays have the shapes and the types of numbers that annotations state.

`.pytest.ini` gives `check` to jaxtyping, which applies it to our mathematical functions at import, except the functions
of ``vertical.problem.blocks``, which numba compiles.

The check of a call takes much longer than most of the functions. `jaxtyped` therefore replaces jaxtyping's decorator:
it checks each function once for each combination of shapes and types of numbers, and leaves functions without stated
shapes as they are.
"""

import contextlib
import dataclasses
import functools
import inspect
from collections.abc import Callable, Hashable
from types import CodeType, FunctionType
from typing import Any, TypeVar, get_args

import jaxtyping
from beartype import beartype

F = TypeVar("F", bound=Callable[..., Any])
_CHECKED = jaxtyping.jaxtyped


def _arrays(hint: Any) -> list[Any]:
    """Return the parts of an annotation that state the shape of an array."""
    if isinstance(hint, type) and issubclass(hint, jaxtyping.AbstractArray):
        return [hint]
    return [array for part in get_args(hint) for array in _arrays(part)]


def _resolve(hint: Any, function: Callable[..., Any]) -> Any:
    """Return an annotation that may be a text. None: it has a name that the module imports only for mypy."""
    with contextlib.suppress(NameError):
        return eval(hint, function.__globals__) if isinstance(hint, str) else hint
    return None


def check(function: F) -> F:
    """Let beartype check those arguments and results of a function whose annotations state a shape.

    mypy checks all other types, including types that no value shows, such as protocols and ``Self``.
    """
    function.__annotations__ = {name: hint for name, hint in function.__annotations__.items() if _arrays(hint)}
    checked: F = beartype(function)
    return checked


_ARRAY_TYPES: set[type] = set()


def describe(value: Any) -> Hashable:
    """Return the shapes and the types of numbers in a value, by which its checks can differ."""
    kind = type(value)
    if kind in _ARRAY_TYPES:
        return kind, value.dtype, value.shape
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        _ARRAY_TYPES.add(kind)
        return describe(value)
    if isinstance(value, tuple | list):
        return kind, *map(describe, value)
    if isinstance(value, dict):
        return kind, *map(describe, value.values())
    return kind


class _Shapes:
    """The checks of the functions that one ``def`` makes.

    Args:
        function: The first of them.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        hints = {name: _resolve(hint, function) for name, hint in inspect.get_annotations(function).items()}
        self.hints = {name: hint for name, hint in hints.items() if _arrays(hint)}
        parameters = inspect.signature(function).parameters.values()
        stated = [(index, part) for index, part in enumerate(parameters) if part.name in self.hints]
        self.positions = [index for index, _ in stated]
        # a length such as {count} depends on values, and *arrays are not described
        self.fixed = not any("{" in array.dim_str for hint in self.hints.values() for array in _arrays(hint))
        self.fixed &= all(part.kind is not part.VAR_POSITIONAL for _, part in stated)
        # the shapes of the arguments -> the shapes of the results
        self.seen: dict[Hashable, set[Hashable]] = {}

    def wrap(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function with checks of the calls whose shapes are new."""
        checked: Callable[..., Any] | None = None
        hints, positions, seen, returns = self.hints, self.positions, self.seen, "return" in self.hints

        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            nonlocal checked
            count = len(args)
            inputs = (count, *[describe(args[index]) for index in positions if index < count])
            if kwargs:
                inputs += tuple((name, describe(value)) for name, value in kwargs.items() if name in hints)
            try:
                results = seen.get(inputs)
            except TypeError:  # a symbolic length of torch.export has no hash
                return function(*args, **kwargs)
            if results is not None:
                result = function(*args, **kwargs)
                if not returns or describe(result) in results:
                    return result
                checked_result = _CHECKED(functools.wraps(function)(lambda *_, **__: result), typechecker=check)
                checked_result(*args, **kwargs)
            else:
                checked = checked or _CHECKED(function, typechecker=check)
                result = checked(*args, **kwargs)
            if self.fixed:
                seen.setdefault(inputs, set()).add(describe(result))
            return result

        return wrapper


# by the identity of the code, since the codes of two data classes can be equal
_SHAPES: dict[int, tuple[CodeType, _Shapes]] = {}


def jaxtyped(function: Any = None, *, typechecker: Any) -> Any:
    """Replace `jaxtyping.jaxtyped`: return a function, or a data class, whose calls with new shapes are checked."""
    if function is None:
        return functools.partial(jaxtyped, typechecker=typechecker)
    if isinstance(function, type):
        if dataclasses.is_dataclass(function) and isinstance(function.__dict__.get("__init__"), FunctionType):
            function.__init__ = jaxtyped(function.__init__, typechecker=typechecker)
        return function
    if isinstance(function, classmethod | staticmethod):
        return type(function)(jaxtyped(function.__func__, typechecker=typechecker))
    if isinstance(function, property):
        return property(jaxtyped(function.fget, typechecker=typechecker), function.fset, function.fdel)
    if not isinstance(function, FunctionType):
        return _CHECKED(function, typechecker=typechecker)
    code = function.__code__
    if id(code) not in _SHAPES:
        _SHAPES[id(code)] = code, _Shapes(function)
    shapes = _SHAPES[id(code)][1]
    return shapes.wrap(function) if shapes.hints else function


jaxtyping.jaxtyped = jaxtyped
