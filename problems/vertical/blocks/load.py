"""Which kernels blocks compute with: numba's where it is installed, or NumPy's."""

from __future__ import annotations

from problems.extras import importable
from problems.vertical.blocks.kernels import NumpyKernels
from problems.vertical.blocks.lazy import DenseKernels, Kernels

KERNELS = ("auto", "numba", "numpy")


def load_kernels(name: str) -> Kernels:
    """Return the kernels called "numba" or "numpy"; "auto" is numba where it is installed.

    Raises:
        ValueError: another name.
        ImportError: numba is asked for by name and not installed.
    """
    if not _wants_numba(name):
        return NumpyKernels()
    from problems.vertical.blocks.compiled import CompiledKernels

    return CompiledKernels()


def load_dense_kernels(name: str) -> DenseKernels | None:
    """Return the kernels called "numba"; None for "numpy", which dense blocks have themselves.

    Raises:
        ValueError: as `load_kernels`.
        ImportError: as `load_kernels`.
    """
    if not _wants_numba(name):
        return None
    from problems.vertical.blocks import compiled_dense

    return compiled_dense


def _wants_numba(name: str) -> bool:
    if name not in KERNELS:
        raise ValueError(f"kernels {name!r} are not known; one of: {', '.join(KERNELS)}")
    installed = importable("numba")
    if name == "numba" and not installed:
        raise ImportError("kernels 'numba' need the package numba: install it, or choose 'numpy'")
    return installed and name != "numpy"
