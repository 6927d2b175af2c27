"""Runs in separate worker processes, several at a time, for reproductions.

If a process dies, only its own run fails. Ctrl-C ends all processes. A worker keeps the data set that it has read, and
then computes further runs on the same data. Runs on other data start a new worker, so memory does not grow.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from typing import Any

import torch

from apps.config import Scalar
from apps.run_directory.history import ROUND_LISTENER
from apps.server_app import EXPECTED, RunFailedError
from simulations.arguments import Stack
from simulations.engines.launch import launch
from simulations.results.output import log_off
from simulations.results.records import evaluation
from vertical.injection import inject, make_injections

_ENDING_SECONDS = 5.0
_SPAWN = get_context("spawn")  # a fork would copy PyTorch's threads


@dataclass(frozen=True)
class WorkerTask:
    """A run for a worker.

    Attributes:
        name: The run's name.
        engine, clients, config, stack: The arguments of `launch`.
        metrics: The metrics that the run must measure.
        data: A description of the run's data. A worker computes only runs with equal descriptions.
        injected: Artificial delays of the parties of a vertical run, see `vertical.injection.make_injections`.
    """

    name: str
    engine: str
    clients: int
    config: Mapping[str, Scalar]
    metrics: tuple[str, ...] = ()
    data: str = ""
    stack: Stack = 1
    injected: Mapping[str, float] = field(default_factory=dict)


# A function that is called when a task has ended. Arguments: the task, and the reason why it has no result, or "".
TaskHook = Callable[[WorkerTask, str], None]


def run_all(tasks: Sequence[WorkerTask], jobs: int, ended: TaskHook) -> None:
    """Run tasks in worker processes.

    Args:
        tasks: The tasks.
        jobs: The number of tasks at a time.
        ended: A function that is called after each task.

    Raises:
        KeyboardInterrupt: The user pressed Ctrl-C. The current runs are lost, and their processes are killed.
    """
    waiting = list(tasks)
    workers: list[_Worker] = []
    try:
        while waiting or workers:
            while waiting and len(workers) < jobs:
                workers.append(_Worker(waiting.pop(0)))
            for connection in wait([worker.connection for worker in workers]):
                worker = next(worker for worker in workers if worker.connection is connection)
                ended(worker.task, worker.outcome())
                same = next((task for task in waiting if task.data == worker.task.data), None)
                if worker.alive and same is not None:
                    waiting.remove(same)
                    worker.give(same)
                else:
                    workers.remove(worker)
                    worker.end()
    finally:
        with _ignore_interrupts():  # a second Ctrl-C must not leave processes behind
            for worker in workers:
                worker.kill()


class _Worker:
    """A process and its task."""

    def __init__(self, task: WorkerTask) -> None:
        self.connection, theirs = _SPAWN.Pipe()
        self.process = _SPAWN.Process(target=_serve, args=(theirs,), name="run", daemon=True)
        with _ignore_interrupts():  # the new process inherits this setting, so only the parent reacts to Ctrl-C
            self.process.start()
        theirs.close()
        self.alive = True
        self.give(task)

    def give(self, task: WorkerTask) -> None:
        self.task = task
        try:
            self.connection.send(task)
        except OSError:  # the process died between two tasks, which `outcome` reports
            self.alive = False

    def outcome(self) -> str:
        """Return the reason why the task's run has no result, or an empty text."""
        try:
            reason: str = self.connection.recv()
        except (EOFError, OSError):
            self.alive = False
            self.process.join()
            return f"the run's process ended: {_ending(self.process.exitcode)}"
        return reason

    def end(self) -> None:
        """Close the connection, which ends the process. Kill the process if it does not end."""
        self.connection.close()
        self.process.join(_ENDING_SECONDS)
        self.kill()

    def kill(self) -> None:
        self.process.kill()
        self.process.join()


def _ending(code: int | None) -> str:
    if code is None or code >= 0:
        return f"exit code {code}"
    hint = " (out of memory?)" if -code == signal.SIGKILL else ""
    return f"killed by {signal.Signals(-code).name}{hint}"


@contextmanager
def _ignore_interrupts() -> Iterator[None]:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _serve(connection: Connection) -> None:
    """Run tasks in a worker process until the connection is closed."""
    while True:
        try:
            task = connection.recv()
        except EOFError:
            return
        connection.send(_reason(task))


def _reason(task: WorkerTask) -> str:
    """Run a task, and return the reason why it has no result, or an empty text."""
    torch.set_num_threads(1)  # for references, since a federation sets its own number of threads
    listener = ROUND_LISTENER.set(lambda line: _check_metrics(task.metrics, line))
    try:
        with log_off(True), inject(make_injections(task.clients, **task.injected)):
            launch(task.engine, task.clients, task.config, task.stack)
    except (RunFailedError, *EXPECTED) as error:
        return str(error) or type(error).__name__
    except BaseException as error:
        return f"{type(error).__name__}: {error}"
    finally:
        ROUND_LISTENER.reset(listener)
    return ""


def _check_metrics(wanted: Sequence[str], line: Mapping[str, Any]) -> None:
    """Raise ValueError if an evaluated round lacks a metric. The run then ends at once, not after its last round."""
    measured = evaluation(line)
    missing = [name for name in wanted if name not in line]
    if measured and missing:
        raise ValueError(
            f"the run has no metric {', '.join(missing)}, only {', '.join(measured)}: set the experiment's key metrics "
            "to available metrics"
        )
