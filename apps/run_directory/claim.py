"""A run's claim to its directory: only one process writes to it, and a run never replaces files of other origin."""

from __future__ import annotations

import errno
import fcntl
import os
import uuid
from pathlib import Path

from apps.run_config.settings import ConfigError
from apps.sites.state_store import is_token

TOKEN = "run-token"
_FILES = ("config.toml", "result.json", "failure.json", "columns.json", "weights.json")
_WRITTEN = (*_FILES, "checkpoints", "events", "client-state")
_BUSY = (errno.EAGAIN, errno.EACCES)


class DirectoryClaim:
    """A lock on the token file of a run directory. The system releases the lock when the process ends or crashes.

    Args:
        path: The run directory, which exists.

    Raises:
        ConfigError: Another process, or another run of this process, writes to the directory.
    """

    def __init__(self, path: Path) -> None:
        self._file = os.open(path / TOKEN, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in _BUSY:
                self.release()
                got, allowed = f"{path}, to which another run is writing now", "a directory to which no run is writing"
                hint = "choose another run-name (or --out), or wait until that run has ended"
                raise ConfigError("run-name", got=got, allowed=allowed, hint=hint) from None
            # the file system has no locks, so two runs that start at the same moment are not detected

    def write_token(self) -> None:
        """Write a random token, unless the file already contains a token."""
        if not is_token(os.pread(self._file, 64, 0).decode(errors="replace")):
            os.ftruncate(self._file, 0)
            os.pwrite(self._file, uuid.uuid4().hex.encode(), 0)
            os.fsync(self._file)

    def release(self) -> None:
        """Let other processes claim the directory."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def __del__(self) -> None:
        self.release()


def check_origin(path: Path) -> None:
    """Check that a new run would not replace files of another origin.

    Args:
        path: The directory for the run, which may be missing.

    Raises:
        ConfigError: The directory has files with a run's names, but not the token of a run.
    """
    if (path / TOKEN).exists():
        return
    models = [file.name for file in sorted(path.glob("model*.safetensors"))]
    if files := [name for name in _WRITTEN if (path / name).exists()] + models:
        got = f"{path}, which contains {', '.join(files)} but is not a run directory"
        allowed = "a new directory, or a directory without files of these names"
        raise ConfigError("run-name", got=got, allowed=allowed, hint="choose another run-name (or --out)")
