"""Kernels: functions that numba compiles."""

from collections.abc import Callable
from typing import Any, TypeVar, cast

Function = TypeVar("Function", bound=Callable[..., object])


def jit(signature: Any = None, *, fastmath: Any = False) -> Callable[[Function], Function]:
    """Compile a function to run without the interpreter's lock, and cache its code on disk if a folder can be written.

    Cached code is compiled again only when its own file changes, so everything that a kernel uses is in its file.

    Args:
        signature: The types to compile for, at once. None compiles whenever a call has new types.
        fastmath: See `numba.njit`.
    """

    import numba

    def compile_kernel(function: Function) -> Function:
        try:
            made = numba.njit(signature, nogil=True, cache=True, fastmath=fastmath)(function)
        except RuntimeError:  # no folder in which numba may store its code
            made = numba.njit(signature, nogil=True, fastmath=fastmath)(function)
        return cast(Function, made)

    return compile_kernel
