"""Numba's compiler, as the kernels of blocks use it.

Code kept on disk is made anew only where its own file changes, so whatever a kernel uses stands in the kernel's file.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba

Function = TypeVar("Function", bound=Callable[..., object])


def jit(signature: Any = None, *, fastmath: Any = False) -> Callable[[Function], Function]:
    """Compile a function that lets the interpreter's lock go, once, and keep its code on disk where there is a folder.

    Args:
        signature: the one type to compile for, at once; without it, what each first call brings.
        fastmath: as `numba.njit` has it.
    """

    def compiled(function: Function) -> Function:
        try:
            made = numba.njit(signature, nogil=True, cache=True, fastmath=fastmath)(function)
        except RuntimeError:  # no folder that numba may keep its code in
            made = numba.njit(signature, nogil=True, fastmath=fastmath)(function)
        return cast(Function, made)

    return compiled
