"""The check that a resumed run has the same data as at its start.

Each checkpoint contains fingerprints (hashes and counts) of the data.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from logging import WARNING
from typing import Any

from flwr.common import log

from apps.run_config.algorithm import RunConfig
from apps.run_config.settings import ConfigError
from apps.sites.resources import federated_data
from apps.sites.rows import reads_own
from payloads.handshake import SiteReport
from problems.data import DataError, FederatedData
from problems.data.fingerprints import DIGEST_BYTES, Fingerprint, digest_rows

DATA, KEYS = "data", "keys"
# A record contains fingerprints by the name of a site or "data". Sites' fingerprints are keyed hashes. Under `KEYS` the
# record has a mark (a hash) of each site's key, since fingerprints with different keys cannot be compared.
Record = dict[str, Any]


def record(config: RunConfig, reports: Sequence[SiteReport]) -> Record:
    """Return the fingerprints of a run's data, or of the sites' reports if they read their own files."""
    return record_sites(reports) if reads_own(config) else record_data(federated_data(config.data, len(reports)))


def record_data(data: FederatedData) -> Record:
    """Return the fingerprint of a data set that the server has, with its parts in the clients' order."""
    held_out = [data.test, *([] if data.validation is None else [data.validation])]
    parts = [*map(data.client, range(data.num_clients)), *held_out]
    labels = [part.labels if part.findings is None else part.findings.values for part in parts]
    pairs = zip(parts, labels, strict=True)
    digests = [digest_rows(part.features, own, [range(len(part))], offsets=part.offsets) for part, own in pairs]
    content = _hash(digests)
    names = () if data.columns is None else data.columns.names
    totals = [data.train, *held_out]
    classes = [count for part in totals for count in (len(part.negatives), len(part.positives))]
    columns = _hash([str(data.input_shape), *names])
    return {DATA: Fingerprint(columns, tuple(map(len, totals)), tuple(classes), content).to_json()}


def record_sites(reports: Sequence[SiteReport]) -> Record:
    """Return the fingerprints of sites that read their own files, from their reports."""
    record: Record = {KEYS: {}}
    for report in reports:
        name = f"partition {report.partition_id}"
        shape = [] if report.shape is None else report.shape.tolist()
        columns = _hash([str(shape), *([] if report.columns is None else [report.columns.tobytes().hex()])])
        counted = [report.class_counts, report.held_out_counts, report.test_counts]
        classes = [counts.tolist() for counts in counted if counts is not None]
        findings = [report.finding_counts, report.held_out_findings, report.test_findings]
        values = chain.from_iterable(counts.ravel().tolist() for counts in findings if counts is not None)
        fingerprint = Fingerprint(columns, tuple(map(sum, classes)), (*chain(*classes), *values))
        if report.fingerprint is not None:
            whole = report.fingerprint.tobytes()
            mark, content = whole[:DIGEST_BYTES].hex(), whole[DIGEST_BYTES:].hex()
            record[KEYS][name] = mark
            fingerprint = replace(fingerprint, content=content)
        record[name] = fingerprint.to_json()
    return record


def compare_data(before: Record | None, now: Record, config: RunConfig) -> None:
    """Refuse to resume a run with other data, and warn about data that cannot be compared.

    Args:
        before: The record in the checkpoint. None in a checkpoint of an older release.
        now: The record of the resumed run.
        config: The run config.

    Raises:
        ConfigError: The data differ. The error names the site or the file, and the difference.
    """
    if before is None:
        log(WARNING, "resume: the checkpoint has no fingerprint of the data, so the data are not compared")
        return
    sites_now, sites_before = (set(record) - {KEYS} for record in (now, before))
    if sites_now != sites_before:
        got, allowed = f"data of {_join(sites_now)}", f"data of {_join(sites_before)}, as at the start of the run"
        raise ConfigError("resume", got=got, allowed=allowed, hint="start the same sites, or begin a new run")
    keys, old_keys = ({**record.get(KEYS, {})} for record in (now, before))
    unknown = []
    for name in sorted(sites_now):
        try:
            old, new = Fingerprint.from_json(before[name]), Fingerprint.from_json(now[name])
        except DataError as error:
            raise ConfigError.of(error, "resume") from None
        if name != DATA and (name not in keys or keys[name] != old_keys.get(name)):
            unknown.append(name)
            new = replace(new, content="")
        if difference := old.find_difference(new):
            source = f"dataset {config.data.dataset!r}" if name == DATA else name
            where = f" in {config.data.data_dir}" if name == DATA and config.data.data_dir else ""
            raise ConfigError(
                f"resume: {source}",
                got=f"{difference}{where} than the run in its checkpoint",
                allowed="the data at the start of the run",
                hint="restore the data, or begin a new run",
            )
    if unknown:
        text = "resume: values and order of rows are not compared at %s, since a state-dir of the first run is missing"
        log(WARNING, text, ", ".join(unknown))


def _hash(parts: Sequence[str]) -> str:
    return hashlib.blake2b("\n".join(parts).encode(), digest_size=DIGEST_BYTES).hexdigest()


def _join(names: set[str]) -> str:
    return ", ".join(sorted(names)) or "no site"
