"""`jit`, which compiles a function with numba, with a cache on disk."""

from collections.abc import Callable
from typing import Any, TypeVar, cast

Function = TypeVar("Function", bound=Callable[..., object])


def jit(signature: Any = None, *, fastmath: Any = False) -> Callable[[Function], Function]:
    """Compile a function with numba to run without the interpreter's lock. Cache the code on disk if possible.

    numba compiles cached code again only if the function's own file changes. Put all functions that it calls into the
    same file.

    Args:
        signature: The types to compile for, immediately. None: the function is compiled when a call has new types.
        fastmath: See `numba.njit`.
    """

    import numba

    def compile_kernel(function: Function) -> Function:
        try:
            compiled = numba.njit(signature, nogil=True, cache=True, fastmath=fastmath)(function)
        except RuntimeError:  # no folder in which numba may store its code
            compiled = numba.njit(signature, nogil=True, fastmath=fastmath)(function)
        return cast(Function, compiled)

    return compile_kernel
