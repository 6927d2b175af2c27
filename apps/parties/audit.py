"""A party's audit log: one JSON line for each request and its answer, in a file that only the owner can read.

The lines contain no value, label or id of a row. They contain counts, the digests that were sent, names and
certificates of peers, and numbers of bytes. docs/vertical-files.md lists them.
"""

import contextlib
import json
import os
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from flwr.app import ConfigRecord, Context, Message

from apps.parties.table import UsedColumns
from apps.run_config.settings import ConfigError
from apps.sites.rows import DATA_PATH
from apps.sites.settings import SiteConfig
from apps.sites.state_store import STATE_DIR, state_dir
from payloads.wire import CONFIG, RUN_TOKEN, find
from problems.errors import InputError
from problems.files import OWNER_ONLY, make_folder
from vertical.policy import PolicyError
from vertical.settings import VFB2Settings

AUDIT_LOG = "audit-log"
_NAME = "audit.jsonl"


def log_path(node: Mapping[str, Any]) -> Path | None:
    """Return the path of a node's log: ``audit-log``, or a file in ``state-dir``. None if both keys are missing.

    Raises:
        ConfigError: A setting of the site has a wrong value.
    """
    folder = state_dir(node)
    return SiteConfig.of(node).vertical.audit_log or (None if folder is None else folder / _NAME)


def describe_columns(vfb2: VFB2Settings, read: UsedColumns) -> dict[str, Any]:
    """Return the entries of a line about the columns of the party's file that a run uses.

    Args:
        vfb2: The run's settings.
        read: The names of the columns.
    """
    names = {"columns": list(read.features), "label-column": read.label, "id-column": vfb2.id_column}
    return {"problem": vfb2.problem, **names}


@contextlib.contextmanager
def audit(event: str, context: Context, message: Message) -> Iterator[dict[str, Any]]:
    """Append a line about the enclosed work to the node's log, if the node keeps a log.

    For a refusal by the policy, the line contains the key, the value and the allowed values. For other failures it
    contains only the exception's type and key, since the message may name a row.

    Args:
        event: The name of the request.
        context: The node's context.
        message: The message.

    Yields:
        The entries of the line, which the enclosed work fills.

    Raises:
        ConfigError: The log cannot be written. The error names the party and the key.
    """
    path, facts = log_path(context.node_config), dict[str, Any]()
    try:
        yield facts
    except PolicyError as error:
        entry = {"asked": event, "key": error.key, "got": error.got, "allowed": error.allowed}
        _append(path, "refused", context, message, {**entry, **facts})
        raise
    except Exception as error:
        cause = error.__cause__ or error
        entry = {"key": cause.key} if isinstance(cause, InputError) else {}
        _append(path, "failed", context, message, {"asked": event, "error": type(cause).__name__, **entry, **facts})
        raise
    _append(path, event, context, message, facts)


def _append(path: Path | None, event: str, context: Context, message: Message, facts: dict[str, Any]) -> None:
    if path is None:
        return
    config, node = find(message.content, CONFIG, ConfigRecord), context.node_config
    flips = facts.get("flips")
    if flips and flips["drawn"] and "epsilon-spent" not in flips:
        flips["data"] = str(node.get(DATA_PATH, ""))
        flips["epsilon-spent"] = _sum_epsilons(path, flips["data"]) + facts["label-epsilon"]
    line = {
        "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
        "event": event,
        "party": node.get("partition-id"),
        "run": context.run_id,
        "token": "" if config is None else config.get(RUN_TOKEN, ""),
        "server": message.metadata.src_node_id,
        **facts,
    }
    try:
        make_folder(path.parent, private=True)
        opened = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, OWNER_ONLY)
        try:
            os.write(opened, (json.dumps(line) + "\n").encode())
        finally:
            os.close(opened)
    except OSError as error:
        key = f"party {node.get('partition-id')}: {AUDIT_LOG if AUDIT_LOG in node else STATE_DIR}"
        got, hint = (
            f"{str(path)!r}: {os.strerror(error.errno or 0)}",
            "set audit-log to another path, or free disk space",
        )
        raise ConfigError(key, got=got, allowed="a writable file", hint=hint) from error


def _sum_epsilons(path: Path, data: str) -> float:
    """Return the sum of the epsilons of all runs in the log that drew new label flips for a data file."""
    if not path.exists():
        return 0.0
    total = 0.0
    for text in path.read_text("utf-8").splitlines():
        with contextlib.suppress(ValueError):  # an incomplete line, written when the disk was full
            line = json.loads(text)
            flips = line.get("flips", {})
            total += line["label-epsilon"] if flips.get("drawn") and flips.get("data") == data else 0.0
    return total
