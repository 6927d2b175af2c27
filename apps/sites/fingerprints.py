"""A site's fingerprint of its file: keyed hashes, which a resumed run compares. The key never leaves the site."""

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from apps.run_config.algorithm import RunConfig
from apps.sites.rows import own_rows, reads_own
from apps.sites.state_store import base_folder
from payloads.handshake import SiteReport
from problems.data.fingerprints import digest_rows
from problems.files import lock_file

KEY_FILE, KEY_BYTES = "fingerprint-key", 32


def add_fingerprint(
    report: SiteReport, config: RunConfig, node: Mapping[str, Any], local: Mapping[str, Any]
) -> SiteReport:
    """Return a site's report with keyed hashes of its rows, if the site has its own file and a folder for the key.

    Args:
        report: The report.
        config: The run config. A run without checkpoints gets the report without hashes.
        node: The node config.
        local: The paths in the message.
    """
    base = base_folder(node, local)
    keeps = config.training.checkpoint_every and config.algorithm.strategy.trains
    if base is None or not reads_own(config) or not keeps:
        return report
    rows = own_rows(config, node, report.partition_id)
    parts = [rows.train_rows, rows.evaluated_rows, *([] if rows.validation_rows is None else [rows.test_rows])]
    key = _read_key(base / KEY_FILE)
    mark = digest_rows(rows.features, rows.labels, [], key)  # of no rows, so it depends only on the key
    labels = rows.labels if rows.findings is None else rows.findings.values
    content = digest_rows(rows.features, labels, parts, key, rows.offsets)
    return replace(report, fingerprint=np.frombuffer(bytes.fromhex(mark + content), dtype=np.uint8))


def _read_key(path: Path) -> bytes:
    """Return the key in a file that only its owner can read. If the key is missing, draw a random key and store it."""
    with lock_file(path) as file:
        key = file.read()
        if len(key) != KEY_BYTES:
            key = os.urandom(KEY_BYTES)
            file.seek(0)
            file.truncate()
            file.write(key)
            file.flush()
            os.fsync(file.fileno())
    return key
