"""The progress of a round's local steps: a bar on the terminal of a run in this process, otherwise lines in the log.

Rounds that end within `BAR_AFTER` or `LINE_EVERY` seconds show nothing. The batches, and so the run, do not change.
"""

import sys
import threading
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from logging import INFO, getLogger
from typing import Any, TypeVar

import numpy as np
from flwr.common import log
from torch import Tensor

B = TypeVar("B")
# seconds of a round until its bar appears, and between two lines
BAR_AFTER, LINE_EVERY = 3.0, 30.0
_BAR_EVERY = 0.1
_bar_lock = threading.Lock()  # a terminal shows one bar at a time
_in_terminal = False


@contextmanager
def allow_bars() -> Iterator[None]:
    """Let the clients of this process show bars if stderr is a terminal, unless the log is turned off."""
    global _in_terminal
    before, _in_terminal = _in_terminal, sys.stderr.isatty() and getLogger("flwr").isEnabledFor(INFO)
    try:
        yield
    finally:
        _in_terminal = before


def follow(
    batches: Iterator[tuple[float, B]], client: int, server_round: int, steps: int
) -> Generator[tuple[float, B], None, None]:
    """Yield a round's step sizes and batches, and show how many are done. Close the generator to remove its bar.

    Args:
        batches: The step size and the batch of each local step.
        client: The client's partition id.
        server_round: The round.
        steps: The number of local steps K.
    """
    begun, rows, bar = time.perf_counter(), 0, None
    show, every = (_show_bar, _BAR_EVERY) if _in_terminal else (_show_line, LINE_EVERY)
    due = begun + (BAR_AFTER if _in_terminal else LINE_EVERY)
    try:
        for done, (eta, batch) in enumerate(batches, 1):
            yield eta, batch
            rows += count_rows(batch)
            if (now := time.perf_counter()) >= due:
                bar = show(bar, f"client {client}, round {server_round}", done, steps, rows / (now - begun))
                due = now + every
    finally:
        if bar is not None:
            bar.stop()
            _bar_lock.release()


def count_rows(batch: Any) -> int:
    """Return the number of a batch's rows, of all findings together.

    Args:
        batch: Rows or their numbers; or a tuple of such batches, in which a named tuple's first field has the rows.
    """
    if isinstance(batch, Tensor | np.ndarray):
        return len(batch)
    if isinstance(batch, tuple) and not hasattr(batch, "_fields") and any(isinstance(part, tuple) for part in batch):
        return sum(count_rows(part) for part in batch)
    return count_rows(batch[0]) if isinstance(batch, tuple) else 0


def _show_line(bar: None, title: str, done: int, steps: int, speed: float) -> None:
    log(INFO, "%s: step %d of %d, %.0f rows/s", title, done, steps, speed)


def _show_bar(bar: Any, title: str, done: int, steps: int, speed: float) -> Any:
    """Show or update the bar, and return it. None: another client of this process has a bar."""
    if bar is None:
        if not _bar_lock.acquire(blocking=False):
            return None
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        speeds = TextColumn("{task.fields[speed]:.0f} rows/s, left:")
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), speeds, TimeRemainingColumn())
        bar = Progress(*columns, console=Console(stderr=True), transient=True)
        bar.add_task(title, total=steps, speed=speed)
        bar.start()
    bar.update(bar.task_ids[0], completed=done, speed=speed)
    return bar
