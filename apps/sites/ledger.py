"""A site's disclosure ledger: a file in its ``state-dir`` that counts the site's answers over all runs.

The counts belong to the content of the site's data file, and the owner limits them by ``most-handshakes`` and
``most-evaluations``. The ledger also stores the records of a run that must survive a restart of the SuperNode.
"""

import contextlib
import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from flwr.app import ConfigRecord, Context

from apps.run_config.settings import ConfigError, Scalar
from apps.sites.rows import DATA_PATH
from apps.sites.state_store import STATE_DIR, state_dir
from payloads.flower_internals import values_of
from payloads.wire import find
from problems.errors import NOTHING
from problems.files import lock_file, write_atomic

NAME = "answers.json"
HANDSHAKES, EVALUATIONS = "handshakes", "evaluations"
LIMITS = {HANDSHAKES: "most-handshakes", EVALUATIONS: "most-evaluations"}
_FILES, _RUNS = "files", "runs"
# a tolerance: in floating point, three times 0.1 is more than 0.3
_ROUNDING = 1e-9
# the key, in a record of a context, of the run and the node to which the record belongs
_RUN = "run"


@contextlib.contextmanager
def open_ledger(folder: Path) -> Iterator[dict[str, Any]]:
    """Yield a site's ledger under a lock, and write it back unless the enclosed work fails.

    Args:
        folder: The site's ``state-dir``. It is created if it is missing.

    Raises:
        ConfigError: The file is damaged.
    """
    path = folder / NAME
    with lock_file(path.with_suffix(".lock")):
        try:
            ledger: dict[str, Any] = json.loads(path.read_text("utf-8")) if path.exists() else {_FILES: {}, _RUNS: {}}
            if not all(isinstance(ledger[part], dict) for part in (_FILES, _RUNS)):
                raise TypeError("its parts are not mappings")
        except (ValueError, LookupError, TypeError) as error:
            hint = "restore a copy: without the ledger the site counts its answers from 0 again"
            raise ConfigError(STATE_DIR, got=f"{path}: {error}", allowed="an undamaged ledger", hint=hint) from None
        yield ledger
        write_atomic(path, json.dumps(ledger).encode(), private=True)


def check_limits(node: Mapping[str, Scalar]) -> None:
    """Check that a node config with a limit of `LIMITS` has a ``state-dir``, in which the site counts.

    Raises:
        ConfigError: The ``state-dir`` is missing, or its path is relative.
    """
    for key in LIMITS.values():
        if node.get(key, 0):
            check_folder(node, key)


def check_folder(node: Mapping[str, Scalar], key: str) -> None:
    """Check that a node config has a ``state-dir`` with an absolute path.

    Args:
        node: The node config.
        key: The key of the node config that needs it.

    Raises:
        ConfigError: The ``state-dir`` is missing, or its path is relative.
    """
    folder = state_dir(node)
    if folder is None or not folder.is_absolute():
        got = f"no {STATE_DIR}" if folder is None else f"{STATE_DIR}={str(folder)!r}, which is relative"
        allowed = f"{key} together with the absolute path of a {STATE_DIR}, in which the site counts"
        raise ConfigError(
            key, got=got, allowed=allowed, hint=f"set {STATE_DIR} to an absolute path in the site's settings"
        )


def count_answer(node: Mapping[str, Scalar], kind: str) -> None:
    """Count an answer that a site is about to send, if its owner limits the answers about the site's file.

    Args:
        node: The node config.
        kind: The kind of answer, a key of `LIMITS`.

    Raises:
        ConfigError: The owner's limit is reached; or as for `check_limits` and `open_ledger`.
    """
    check_limits(node)
    limit, folder = int(node.get(LIMITS[kind], 0)), state_dir(node)
    if not limit or folder is None:
        return
    with open_ledger(folder) as ledger:
        counts = ledger[_FILES].setdefault(_digest(node), {})
        if counts.get(kind, 0) >= limit:
            got = f"a request for more {kind} than this site's settings allow"
            allowed = f"{limit} {kind} for a file over all runs"
            raise ConfigError(LIMITS[kind], got=got, allowed=allowed, hint="ask the owner of the data")
        counts[kind] = counts.get(kind, 0) + 1


def pledge_epsilon(context: Context, epsilon: float, max_total: float) -> None:
    """Add a run's epsilon to the sum over all runs on a site's file. Each run counts once.

    Args:
        context: The node's context. Its node config has a ``state-dir``.
        epsilon: The run's epsilon.
        max_total: The largest sum that the owner allows.

    Raises:
        ConfigError: The sum is too large; or as for `open_ledger`.
    """
    folder = state_dir(context.node_config)
    assert folder is not None
    with open_ledger(folder) as ledger:
        spent = ledger[_FILES].setdefault(_digest(context.node_config), {}).setdefault("epsilons", {})
        before = sum(value for run, value in spent.items() if run != str(context.run_id))
        if before + epsilon > max_total * (1 + _ROUNDING):
            got = f"a run with privacy.epsilon={epsilon:g} after runs with {before:g} in all"
            allowed = f"a sum of at most {max_total:g} over all runs on one file, which this site's settings demand"
            raise ConfigError("largest-total-epsilon", got=got, allowed=allowed, hint="lower privacy.epsilon")
        spent[str(context.run_id)] = max(epsilon, spent.get(str(context.run_id), 0.0))


def _digest(node: Mapping[str, Scalar]) -> str:
    """Return a hash of the content of a node's file, or of all files of its folder."""
    path = Path(str(node.get(DATA_PATH, NOTHING))).expanduser()
    files = sorted(entry for entry in path.rglob("*") if entry.is_file()) if path.is_dir() else [path]
    whole = hashlib.sha256()
    try:
        for file in files:
            if file.is_file():
                with file.open("rb") as content:
                    whole.update(hashlib.file_digest(content, "sha256").digest())
    except OSError as error:  # the error's own text names the file, and a file may be named after a patient
        got, allowed = f"files that cannot be read ({error.strerror})", "files that can be read"
        raise ConfigError(DATA_PATH, got=got, allowed=allowed, hint="change the permissions of the files") from None
    return whole.hexdigest()


@contextlib.contextmanager
def open_record(context: Context, partition: int, name: str) -> Iterator[dict[str, Any]]:
    """Yield a record of the run, {} at first, and store it for the next message unless the enclosed work fails.

    With a ``state-dir``, the record is stored in the ledger. The ledger is locked while it is open, so two simultaneous
    messages see each other's changes. Without a ``state-dir``, the record is in the node's context, of which each
    message has a copy.

    Args:
        context: The node's context.
        partition: The node's partition id. Several runs and nodes may share a folder.
        name: The name of the record. Its values are numbers and texts.

    Raises:
        ConfigError: As for `open_ledger`.
    """
    run, folder = f"{context.run_id}/{partition}", state_dir(context.node_config)
    if folder is not None:
        with open_ledger(folder) as ledger:
            yield ledger[_RUNS].setdefault(run, {}).setdefault(name, {})
        return
    # Flower passes a run's context on to the next run of a series, so the record may belong to another run
    saved = dict(find(context.state, name, ConfigRecord) or {})
    record = saved if saved.pop(_RUN, "") == run else {}
    yield record
    values_of(context.state)[name] = ConfigRecord({**record, _RUN: run})


@contextlib.contextmanager
def one_at_a_time(context: Context, partition: int) -> Iterator[None]:
    """Lock a node's work, so its other messages, in any process, wait. Without a ``state-dir`` there is no lock."""
    folder = state_dir(context.node_config)
    with contextlib.nullcontext() if folder is None else lock_file(folder / f"client-{partition}.lock"):
        yield
