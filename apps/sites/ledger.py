"""What a site has told: one file of its ``state-dir``, which outlives runs and SuperNodes.

It counts what leaves the site over the life of its file, by the owner's limits ``most-handshakes`` and
``most-evaluations``, and keeps of each run what must not be forgotten while the run lasts.
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
# three times 0.1 are a bit more than 0.3 in floating point
_ROUNDING = 1e-9
# of a record in a context: whose it is
_RUN = "run"


@contextlib.contextmanager
def open_ledger(folder: Path) -> Iterator[dict[str, Any]]:
    """Yield a site's ledger, which is written back unless the enclosed work fails; a lock keeps others out.

    Args:
        folder: the site's ``state-dir``; it is made if it is missing.

    Raises:
        ConfigError: the file is damaged.
    """
    path = folder / NAME
    with lock_file(path.with_suffix(".lock")):
        try:
            ledger: dict[str, Any] = json.loads(path.read_text("utf-8")) if path.exists() else {_FILES: {}, _RUNS: {}}
            if not all(isinstance(ledger[part], dict) for part in (_FILES, _RUNS)):
                raise TypeError("its parts are no mappings")
        except (ValueError, LookupError, TypeError) as error:
            hint = "bring back a copy: without it the site counts anew what it has told"
            raise ConfigError(STATE_DIR, got=f"{path}: {error}", allowed="a whole ledger", hint=hint) from None
        yield ledger
        write_atomic(path, json.dumps(ledger).encode(), private=True)


def check_limits(node: Mapping[str, Scalar]) -> None:
    """Check the keys of `LIMITS` in a node config.

    Raises:
        ConfigError: There is no ``state-dir`` to count in.
    """
    for key in LIMITS.values():
        if node.get(key, 0):
            check_folder(node, key)


def check_folder(node: Mapping[str, Scalar], key: str) -> None:
    """Check that a node config has a ``state-dir`` that is the same folder wherever the SuperNode was started.

    Args:
        key: of the node config, which needs it.

    Raises:
        ConfigError: it has not.
    """
    folder = state_dir(node)
    if folder is None or not folder.is_absolute():
        got = f"no {STATE_DIR}" if folder is None else f"{STATE_DIR}={str(folder)!r}, which is relative"
        allowed = f"that with the whole path of a {STATE_DIR}, where the site counts"
        raise ConfigError(key, got=got, allowed=allowed, hint="change the site's settings")


def count_answer(node: Mapping[str, Scalar], what: str) -> None:
    """Count an answer that a site is about to give, if its owner limits how many there may be of its file.

    Args:
        what: one of `LIMITS`.

    Raises:
        ConfigError: the owner allows no more; or as for `check_limits` and `open_ledger`.
    """
    check_limits(node)
    most, folder = int(node.get(LIMITS[what], 0)), state_dir(node)
    if not most or folder is None:
        return
    with open_ledger(folder) as ledger:
        told = ledger[_FILES].setdefault(_digest(node), {})
        if told.get(what, 0) >= most:
            got = f"a request for more {what} than this site's settings allow"
            allowed = f"{most} of one file over all runs"
            raise ConfigError(LIMITS[what], got=got, allowed=allowed, hint="ask the owner of the data")
        told[what] = told.get(what, 0) + 1


def pledge_epsilon(context: Context, epsilon: float, most: float) -> None:
    """Add a run's epsilon to those of the earlier runs on a site's file, once for each run.

    Args:
        context: the node's, which has a ``state-dir``.
        epsilon: of the run.
        most: the largest sum.

    Raises:
        ConfigError: the sum is larger; or as for `open_ledger`.
    """
    folder = state_dir(context.node_config)
    assert folder is not None
    with open_ledger(folder) as ledger:
        spent = ledger[_FILES].setdefault(_digest(context.node_config), {}).setdefault("epsilons", {})
        before = sum(value for run, value in spent.items() if run != str(context.run_id))
        if before + epsilon > most * (1 + _ROUNDING):
            got = f"a run with privacy.epsilon={epsilon:g} after runs with {before:g} in all"
            allowed = f"{most:g} for all runs on one file, which this site's settings demand"
            raise ConfigError("largest-total-epsilon", got=got, allowed=allowed, hint="lower privacy.epsilon")
        spent[str(context.run_id)] = max(epsilon, spent.get(str(context.run_id), 0.0))


def _digest(node: Mapping[str, Scalar]) -> str:
    """A hash of the content of a node's file, or of all files of its folder."""
    path = Path(str(node.get(DATA_PATH, NOTHING))).expanduser()
    files = sorted(one for one in path.rglob("*") if one.is_file()) if path.is_dir() else [path]
    whole = hashlib.sha256()
    try:
        for file in files:
            if file.is_file():
                with file.open("rb") as content:
                    whole.update(hashlib.file_digest(content, "sha256").digest())
    except OSError as error:  # whose own text names the file, and a file of a folder may be named after a patient
        got, allowed = f"files that cannot be read ({error.strerror})", "files that can be read"
        raise ConfigError(DATA_PATH, got=got, allowed=allowed, hint="change their permissions") from None
    return whole.hexdigest()


@contextlib.contextmanager
def open_record(context: Context, place: int, name: str) -> Iterator[dict[str, Any]]:
    """Yield what a node must know in its run's next messages, {} at first; it is kept unless the enclosed work fails.

    With a ``state-dir`` it stands in the ledger, which is locked meanwhile, so that of two messages that arrive at once
    one sees what the other has kept. Without, it stands in the node's context, of which each message has a copy.

    Args:
        place: the node's partition id; runs and nodes may share a folder.
        name: of the record, whose values are numbers and texts.

    Raises:
        ConfigError: as for `open_ledger`.
    """
    run, folder = f"{context.run_id}/{place}", state_dir(context.node_config)
    if folder is not None:
        with open_ledger(folder) as ledger:
            yield ledger[_RUNS].setdefault(run, {}).setdefault(name, {})
        return
    # Flower hands the context of one run on to the next one of a series.
    kept = dict(find(context.state, name, ConfigRecord) or {})
    record = kept if kept.pop(_RUN, "") == run else {}
    yield record
    values_of(context.state)[name] = ConfigRecord({**record, _RUN: run})


@contextlib.contextmanager
def one_at_a_time(context: Context, place: int) -> Iterator[None]:
    """Hold a node's other messages back while the enclosed work lasts, in whatever process; without a ``state-dir``, do
    nothing."""
    folder = state_dir(context.node_config)
    with contextlib.nullcontext() if folder is None else lock_file(folder / f"client-{place}.lock"):
        yield
