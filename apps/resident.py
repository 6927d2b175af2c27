"""The resident: a process that stays at a site between the messages of a run, so PyTorch and data are loaded once.

Flower starts a ClientApp in a new process for each message (here the asking process). At a run's first message the
asking process starts the resident. Each asking process forwards its message to the resident over a Unix socket in a
private folder, and returns the resident's answer to Flower (`apps.sites.staying`). The resident ends with the
SuperNode, a minute after the run, or after the idle time that the site's owner sets.

    python -m apps.resident SOCKET SECONDS SUPERNODE
"""

import contextlib
import gc
import os
import pickle
import sys
import threading
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection, Listener
from pathlib import Path
from typing import Any

from flwr.app import Context, Message

from payloads.flower_internals import identity

# seconds between two checks that the SuperNode and the asking process still run
_CHECK_EVERY = 0.5
# The idle time in seconds after the last round. In earlier rounds the idle time is at least as long, since a process
# that ends too early costs only the next start.
_AFTER_RUN = 60.0
# the idle time as a multiple of the longest time between two messages so far, or of the longest work
_TIMES = 2.0


def main(path: str, seconds: float, supernode: int) -> None:
    """Serve messages one at a time in a new process, until it is idle for too long or the SuperNode ends.

    Args:
        path: The path of the socket.
        seconds: The longest idle time, see `longest_wait`.
        supernode: The process id of the SuperNode.
    """
    with Listener(path, family="AF_UNIX") as listener:
        if os.fork():
            os._exit(0)  # the starting process continues, and can connect
        watch = _Watch(Path(path), seconds, supernode)
        from apps.client_app import app as client_app

        gc.freeze()  # imported objects stay, so garbage collections need not visit them
        while True:
            with listener.accept() as connection, watch.at_work(), contextlib.suppress(EOFError, OSError):
                connection.send(None)  # a promise that this process does not end before it has answered
                message, context, who = connection.recv()
                watch.ending = is_last(message, context)
                with watch.asked_by(connection), identity(*who):
                    try:
                        reply: Any = client_app(message, context)
                    except Exception as error:
                        reply = _portable(error)
                connection.send((reply, context.state))


def is_last(message: Message, context: Context) -> bool:
    """Return whether a message belongs to the last round of its run."""
    from payloads.wire import CONFIG, ROUND  # not needed for the start, which must be quick

    if not message.has_content() or CONFIG not in message.content.config_records:
        return False
    number, rounds = message.content.config_records[CONFIG].get(ROUND), context.run_config.get("num-server-rounds")
    return isinstance(number, int) and isinstance(rounds, int) and number >= rounds


def longest_wait(seconds: float, longest: float, ending: bool) -> float:
    """Return the seconds for which the process waits for the next message.

    No message reports the end of a run, which may end early. A process whose messages arrive every few seconds
    therefore ends a minute after the last one.

    Args:
        seconds: The longest idle time that the site's owner allows.
        longest: The longest time so far between two messages, or of the work for a message.
        ending: Whether the last message belongs to the last round.
    """
    return min(seconds, _AFTER_RUN if ending else max(_AFTER_RUN, _TIMES * longest))


def _portable(error: Exception) -> Exception:
    """Return an error that can be sent to another process."""
    try:
        if str(pickle.loads(pickle.dumps(error))) == str(error):
            return error
    except Exception:  # unpickling calls the exception's constructor, which may need other arguments
        pass
    return RuntimeError(f"{type(error).__name__}: {error}")


class _Watch:
    """A thread that ends this process if it is idle for too long, or the asking process or the SuperNode has ended."""

    def __init__(self, path: Path, seconds: float, supernode: int) -> None:
        self._path, self._seconds, self._supernode = path, seconds, supernode
        self._asking: Connection | None = None
        self._free: float | None = time.monotonic()  # start of the idle time; None: at work
        self._longest = 0.0
        self.ending = False
        self._lock = threading.Lock()
        threading.Thread(target=self._look, daemon=True).start()

    @contextlib.contextmanager
    def at_work(self) -> Iterator[None]:
        start = time.monotonic()
        with self._lock:
            self._longest = max(self._longest, start - (self._free or start))
            self._free = None
        try:
            yield
        finally:
            with self._lock:
                self._free = time.monotonic()
                self._longest = max(self._longest, self._free - start)

    @contextlib.contextmanager
    def asked_by(self, asking: Connection) -> Iterator[None]:
        with self._lock:
            self._asking = asking
        try:
            yield
        finally:
            with self._lock:  # the caller now closes the connection, so it must not be polled any more
                self._asking = None

    def _look(self) -> None:
        while True:
            time.sleep(_CHECK_EVERY)
            with self._lock:
                if self._is_over():
                    self._path.unlink(missing_ok=True)
                    os._exit(0)

    def _is_over(self) -> bool:
        if not _runs(self._supernode):
            return True
        if self._free is None:
            # the asking process sends nothing more, so the connection is readable only after that process has ended
            return (asking := self._asking) is not None and asking.poll()
        limit = longest_wait(self._seconds, self._longest, self.ending)
        return time.monotonic() - self._free > limit or not self._path.exists()


def _runs(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # the process exists, but belongs to another user
        pass
    return True


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]), int(sys.argv[3]))
