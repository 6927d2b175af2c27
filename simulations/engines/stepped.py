"""An in-process run that waits after each evaluated round, to let the caller decide whether it continues."""

from __future__ import annotations

import queue
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from apps.config import Scalar
from apps.run_directory.history import ROUND_LISTENER
from apps.server_app import RunFailedError
from simulations.arguments import Stack
from simulations.engines.launch import run_federation
from simulations.results.records import STOPPED_EARLY, evaluation


class _EndedError(ValueError):
    """The error that ends a run before its last round. The message is the reason in its failure.json."""


class SteppedRun:
    """A run in a separate thread, computed as by ``florilegium run``.

    A process can have only one such run at a time, since the engine's task identity belongs to the process.

    Args:
        clients: The number of clients.
        config: The flat run config.
        rounds: The run's last round.
        node_configs: The node config of each client. Empty: no node configs.
        stack: The maximum number of clients that are computed as one.
    """

    def __init__(
        self,
        clients: int,
        config: Mapping[str, Scalar],
        rounds: int,
        node_configs: Sequence[Mapping[str, Scalar]] = (),
        stack: Stack = 1,
    ) -> None:
        self.failure = ""  # the reason why an ended run has no result
        self._clients, self._config, self._rounds = clients, config, rounds
        self._node_configs, self._stack = node_configs, stack
        self._lines: queue.Queue[dict[str, Any] | None] = queue.Queue()
        self._go_on = threading.Semaphore(0)
        self._end = ""
        self._thread = threading.Thread(target=self._run, name="run", daemon=True)

    def advance(self) -> dict[str, Any] | None:
        """Run to the end of the next evaluated round, and return its line; None once the run has ended.

        The last round's line is not returned: after that round the run ends.
        """
        if self._thread.ident is None:
            self._thread.start()
        else:
            self._go_on.release()
        line = self._lines.get()
        if line is None:
            self._thread.join()
        return line

    def stop(self, reason: str) -> None:
        """End a waiting run early. Runs that have ended or have not begun do not change.

        Args:
            reason: The reason. It follows "stopped early: " in failure.json, by which `read_run` recognises such runs.
        """
        self.fail(f"{STOPPED_EARLY}: {reason}")

    def fail(self, reason: str) -> None:
        """End a waiting run as failed, and return when its thread has ended.

        Args:
            reason: The reason in its failure.json and in `failure`.
        """
        if self._thread.is_alive():
            self._end = reason
            self._go_on.release()
            self._thread.join()

    def _run(self) -> None:
        ROUND_LISTENER.set(self._hear)  # for this thread only
        try:
            run_federation(self._clients, self._config, node_configs=self._node_configs, stack=self._stack)
        except RunFailedError as error:
            self.failure = str(error)
        except BaseException as error:
            self.failure = f"{type(error).__name__}: {error}"
        finally:
            self._lines.put(None)

    def _hear(self, line: dict[str, Any]) -> None:
        if not evaluation(line) or line["round"] >= self._rounds:
            return
        self._lines.put(line)
        self._go_on.acquire()
        if self._end:
            raise _EndedError(self._end)
