"""A run in this process that pauses after each evaluated round, until its caller continues or ends it (for sweeps)."""

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
    """A run in a separate thread, with the same results as ``florilegium run``.

    A process can have only one such run at a time, since Flower's run and node ids belong to the process.

    Args:
        clients: The number of clients.
        config: The flat run config.
        rounds: The run's last round.
        node_configs: The node config of each client. Empty: no node configs.
        stack: The maximum number of clients in one computation.

    Attributes:
        failure: The reason why an ended run has no result. Empty otherwise.
    """

    def __init__(
        self,
        clients: int,
        config: Mapping[str, Scalar],
        rounds: int,
        node_configs: Sequence[Mapping[str, Scalar]] = (),
        stack: Stack = 1,
    ) -> None:
        self.failure = ""
        self._clients, self._config, self._rounds = clients, config, rounds
        self._node_configs, self._stack = node_configs, stack
        self._lines: queue.Queue[dict[str, Any] | None] = queue.Queue()
        self._go_on = threading.Semaphore(0)
        self._end = ""
        self._thread = threading.Thread(target=self._run, name="run", daemon=True)

    def advance(self) -> dict[str, Any] | None:
        """Continue to the end of the next evaluated round.

        Returns:
            The round's line of metrics. None: the run has ended, since its last round does not pause.
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
        """End a paused run early. A run that has ended or has not begun does not change.

        Args:
            reason: The reason. In failure.json it follows "stopped early: ", by which `read_run` recognises such runs.
        """
        self.fail(f"{STOPPED_EARLY}: {reason}")

    def fail(self, reason: str) -> None:
        """End a paused run as failed, and return when its thread has ended.

        Args:
            reason: The reason in the run's failure.json and in `failure`.
        """
        if self._thread.is_alive():
            self._end = reason
            self._go_on.release()
            self._thread.join()

    def _run(self) -> None:
        ROUND_LISTENER.set(self._pause)  # for this thread only
        try:
            run_federation(self._clients, self._config, node_configs=self._node_configs, stack=self._stack)
        except RunFailedError as error:
            self.failure = str(error)
        except BaseException as error:
            self.failure = f"{type(error).__name__}: {error}"
        finally:
            self._lines.put(None)

    def _pause(self, line: dict[str, Any]) -> None:
        """Pass an evaluated round's line to `advance`, and wait for the caller's decision."""
        if not evaluation(line) or line["round"] >= self._rounds:
            return
        self._lines.put(line)
        self._go_on.acquire()
        if self._end:
            raise _EndedError(self._end)
