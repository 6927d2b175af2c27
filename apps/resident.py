"""A process that stays at a site from message to message of a run, with PyTorch, data and models loaded once.

Flower starts a ClientApp in a new process for each message. That process starts this one at the first message of a run,
passes it every message over a Unix socket in a private folder, and gives Flower its answers (`apps.sites.staying`). It
ends when it has had nothing to do for as long as the site's owner says, or with the SuperNode.

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

from payloads.flower_internals import identity

# seconds between two looks at whether the SuperNode, or who has asked, is still there
_LOOK = 0.5


def main(path: str, seconds: float, supernode: int) -> None:
    """Listen, and answer messages in a process of its own, one after another, until that is no longer needed."""
    with Listener(path, family="AF_UNIX") as listener:
        if os.fork():
            os._exit(0)  # whoever started this goes on, and can connect
        watch = _Watch(Path(path), seconds, supernode)
        from apps.client_app import app as client_app

        gc.freeze()  # what was imported stays, so that no collection need walk over it
        while True:
            with listener.accept() as connection, watch.at_work(), contextlib.suppress(EOFError, OSError):
                connection.send(None)  # it will not end before it has answered
                message, context, who = connection.recv()
                with watch.asked_by(connection), identity(*who):
                    try:
                        reply: Any = client_app(message, context)
                    except Exception as error:
                        reply = _portable(error)
                connection.send((reply, context.state))


def _portable(error: Exception) -> Exception:
    """An error that can be sent to another process."""
    try:
        if str(pickle.loads(pickle.dumps(error))) == str(error):
            return error
    except Exception:  # whatever an exception's own constructor needs
        pass
    return RuntimeError(f"{type(error).__name__}: {error}")


class _Watch:
    """Ends this process when nobody needs it: nobody asks any more, who asked has gone, or the SuperNode has."""

    def __init__(self, path: Path, seconds: float, supernode: int) -> None:
        self._path, self._seconds, self._supernode = path, seconds, supernode
        self._asking: Connection | None = None
        self._free: float | None = time.monotonic()  # since when, unless it is at work
        self._lock = threading.Lock()
        threading.Thread(target=self._look, daemon=True).start()

    @contextlib.contextmanager
    def at_work(self) -> Iterator[None]:
        with self._lock:
            self._free = None
        try:
            yield
        finally:
            with self._lock:
                self._free = time.monotonic()

    @contextlib.contextmanager
    def asked_by(self, asking: Connection) -> Iterator[None]:
        with self._lock:
            self._asking = asking
        try:
            yield
        finally:
            with self._lock:  # it is closed next, and must not be looked at any more
                self._asking = None

    def _look(self) -> None:
        while True:
            time.sleep(_LOOK)
            with self._lock:
                if self._is_over():
                    self._path.unlink(missing_ok=True)
                    os._exit(0)

    def _is_over(self) -> bool:
        if not _runs(self._supernode):
            return True
        if self._free is None:
            # who asks sends nothing more: there is something to read only when its process has ended
            return (asking := self._asking) is not None and asking.poll()
        return time.monotonic() - self._free > self._seconds or not self._path.exists()


def _runs(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # another user's
        pass
    return True


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]), int(sys.argv[3]))
