"""Runs of tests in a copy of the tree.

To save time, each run is a fork of a server process that has already imported the large libraries.
"""

import contextlib
import multiprocessing
import os
import re
import signal
import sys
import tempfile
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import NamedTuple

CAUGHT, ESCAPED, HUNG = "caught", "escaped", "hung"
SECONDS = 300.0
# pytest's exit codes
_ALL_PASSED, _SOME_FAILED = 0, 1
# the libraries that most tests import; importing them takes longer than most tests
_LIBRARIES = [
    "torch",
    "flwr.clientapp.mod",
    "flwr.serverapp.strategy",
    "matplotlib.backends.backend_agg",
    "matplotlib.figure",
    "numba",
    "pandas",
    "safetensors.numpy",
    "scipy.optimize",
    "sklearn.datasets",
    "sklearn.linear_model",
    "sklearn.metrics",
    "tensorboard.summary.writer.event_file_writer",
]

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(_LIBRARIES)


class Verdict(NamedTuple):
    """The outcome of a break. ``by`` is the test that failed, or pytest's output if the tests could not start."""

    result: str
    by: str = ""


def run_tests(tree: Path, tests: str) -> Verdict:
    """Run the tests in a tree that contains a mistake.

    Returns:
        `CAUGHT`, `ESCAPED` or `HUNG`. Any other result: the tests could not run, so the list of breaks has an error.
    """
    with tempfile.NamedTemporaryFile("r", encoding="utf-8", errors="replace") as output:
        child = _context.Process(target=_run, args=(str(tree), tests, output.name))
        child.start()
        child.join(SECONDS)
        hung = child.is_alive()
        _end(child)
        words = output.read()
    if hung:
        return Verdict(HUNG)
    failed = re.search(r"^(?:FAILED|ERROR) tests/\S*?([^/]+?)(?: - .*)?$", words, re.MULTILINE)
    # an exception outside of pytest also ends the child with the exit code of failed tests
    began = failed if child.exitcode == _SOME_FAILED else child.exitcode == _ALL_PASSED
    if not began or "ERROR collecting" in words:
        return Verdict(f"pytest ended with {child.exitcode}", words[-2000:])
    return Verdict(CAUGHT, failed[1]) if failed else Verdict(ESCAPED)


def _end(child: ForkServerProcess) -> None:
    """End the tests and their child processes."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid or 0, signal.SIGKILL)
    child.join()


def _run(tree: str, tests: str, output_file: str) -> None:
    os.setsid()
    output = os.open(output_file, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(output, stream)
    os.chdir(tree)
    # import nothing from the tree of this file
    here = str(Path(__file__).parents[2])
    sys.path[:] = [tree, *(path for path in sys.path if path not in ("", here))]
    packages = {path.name for path in Path(tree).iterdir() if (path / "__init__.py").exists()}
    packages.add("jaxtyping")  # a pytest plugin, which warns if its packages are already imported
    for name in [name for name in sys.modules if name.partition(".")[0] in packages]:
        del sys.modules[name]
    os.environ.update(PYTHONPATH=tree, PYTHONDONTWRITEBYTECODE="1")
    sys.dont_write_bytecode = True
    import pytest

    sys.exit(int(pytest.main(["-x", "-q", "-n", "0", "-p", "no:cacheprovider", tests])))
