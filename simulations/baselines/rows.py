"""The rows of the references of ``--baselines``: training rows from the run's sites, and common rows to evaluate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from flwr.app import Context, RecordDict

from apps.config import RunConfig, Scalar
from apps.evaluation.networks import format_of
from apps.guards.work import report_of, site_of
from apps.sites import resources
from apps.sites.rows import reads_own
from apps.sites.server_rows import server_samples
from apps.sites.site_config import at_site
from clients.base import Site
from problems.data import FederatedData, Preprocessing, SampleFormat, Samples
from problems.data.disturb import validation_split
from problems.data.findings import Findings, find_strata
from problems.data.image_rows import concatenate
from problems.data.samples import as_float32
from problems.data.times import Periods
from problems.image_tensor import rows_of
from problems.least_cell import is_small
from problems.randomness import seed_sequence
from problems.survival.paired import derive_rows
from strategies.rounds.schema import agree

# The share of the training rows that is held out to choose between candidates if the run has no validation rows.
HELD_OUT = 0.2


@dataclass(frozen=True)
class Rows:
    """The rows of one reference.

    Attributes:
        train: The training rows.
        test: The rows that the run's metrics are measured on.
        validation: The validation rows of the same sites, which select a round. None: the sites have no such rows.
    """

    train: Samples
    test: Samples
    validation: Samples | None = None

    @property
    def counts(self) -> tuple[int, int]:
        """The numbers of negatives and of positives among the training rows; with findings the largest numbers."""
        if self.train.findings is not None:
            zeros, ones = self.train.findings.counts.max(axis=0).tolist()
            return zeros, ones
        return len(self.train.negatives), len(self.train.positives)

    @property
    def positives(self) -> int:
        """The number of positives among the training rows; with findings of ones."""
        findings = self.train.findings
        return len(self.train.positives) if findings is None else int(findings.counts[:, 1].sum())

    def hold_out(self, seed: int, site: int) -> Rows | None:
        """Return rows with a fifth of the training rows moved to the validation rows.

        Args:
            seed: The run's seed.
            site: The site's number, which selects the random draw.

        Returns:
            The rows. None if a class would be absent from the training or the validation rows. With times: if one of
            them would have no event, or no comparable rows.
        """
        strata = find_strata(self.train.labels, self.train.findings)
        indices = validation_split(strata, np.arange(len(self.train)), HELD_OUT, seed, site)
        parts = [_take(self.train, part) for part in indices]
        if not all(has_outcomes(part) for part in parts):
            return None
        return Rows(parts[0], self.test, parts[1])


@dataclass(frozen=True)
class Gathered:
    """The rows of all references, and their preprocessing.

    Attributes:
        pooled: The rows of all sites.
        alone: Each site's rows.
        columns: The preprocessing of a table's columns. None: the data set is not a table.
        sample_format: The form of the samples in their files. None: the samples have no labels.
    """

    pooled: Rows
    alone: list[Rows]
    columns: Preprocessing | None
    sample_format: SampleFormat | None

    def data(self, rows: Rows, config: RunConfig) -> FederatedData:
        """Return the data of a reference, which is computed as a run with one client.

        Args:
            rows: The reference's rows.
            config: The reference's config.
        """
        sizes = [len(rows.train)]
        return FederatedData(
            rows.train, rows.test, sizes, config.data, self.columns, rows.validation, self.sample_format
        )


def gather(
    config: RunConfig, clients: int, flat: Mapping[str, Scalar], nodes: Sequence[Mapping[str, Scalar]], *, tested: bool
) -> Gathered:
    """Read each site's training rows as its ClientApp reads them, and the rows that evaluate all references.

    Args:
        config: The run's config.
        clients: The number of sites.
        flat: The run's flat config.
        nodes: The sites' node configs. Empty: no site has a node config.
        tested: Whether the run has validation rows, and measures its final metrics on test rows.

    Raises:
        ConfigError, DataError: The sites' rows cannot be read.
    """
    contexts = [
        Context(
            run_id=0,
            node_id=partition,
            node_config={"partition-id": partition, "num-partitions": clients, **(nodes[partition] if nodes else {})},
            state=RecordDict(),
            run_config=dict(flat),
        )
        for partition in range(clients)
    ]
    contexts = list(map(at_site, contexts))
    schema = agree([report_of(context, config) for context in contexts]) if reads_own(config) else None
    scaling = None if schema is None else schema.scaling
    sites = [site for context in contexts if isinstance(site := site_of(context, config, scaling), Site)]
    validation: list[Samples | None] = [None] * clients
    if schema is None:
        data = resources.federated_data(config.data, clients)
        test, columns, sample_format = (data.test if tested else data.evaluated), data.columns, data.sample_format
        places = test.sites
        everyone = data.validation if tested else None
        if everyone is not None and everyone.sites is not None:
            validation = [_take(everyone, everyone.sites == partition) for partition in range(clients)]
    else:
        columns, sample_format = schema.preprocessing, format_of(config, schema)
        if config.data.data_dir:
            test, places = server_samples(config, schema), None
        else:
            parts = [_open_rows(site.test if tested else site.held_out, site.least_cell) for site in sites]
            test = _concatenate([part for part in parts if part is not None])
            places = np.repeat(np.arange(len(parts)), [0 if part is None else len(part) for part in parts])
        if tested:
            validation = [_open_rows(site.held_out, site.least_cell) for site in sites]
        shares = [rows for rows in validation if rows is not None]
        everyone = _concatenate(shares) if shares else None
    test = Samples(as_float32(test.features), test.labels, places, periods=test.periods, findings=test.findings)
    pooled = Rows(_join(sites), test, everyone)
    alone = [
        Rows(_join([site]), test, own if own is not None and has_outcomes(own) else None)
        for site, own in zip(sites, validation, strict=True)
    ]
    return Gathered(pooled, alone, columns, sample_format)


def has_outcomes(rows: Samples) -> bool:
    """Return whether both classes occur among some rows; with times, whether some rows determine a concordance.

    Args:
        rows: The rows. With findings, both values of each must occur.
    """
    if rows.findings is not None:
        return bool(rows.findings.counts.all())
    if rows.periods is None:
        return bool(len(rows.positives) and len(rows.negatives))
    value, _ = derive_rows(rows.periods.exits, rows.labels, np.zeros(len(rows)), rows.periods.entries)
    return bool(np.isfinite(value))


def fold_seed(seed: int, site: int) -> int:
    """Return the seed that assigns a reference's rows to cross-validation folds.

    Args:
        seed: The run's seed.
        site: The site's number. The pooled reference uses the number of sites.
    """
    return int(seed_sequence(seed, "folds of a reference", site).generate_state(1)[0])


def _open_rows(held: Site | None, least_cell: int) -> Samples | None:
    """Return a site's held-out rows.

    None: the site has none, or a class has fewer rows than ``least_cell``, the minimum count that the site discloses.
    """
    rows = None if held is None else _join([held])
    return None if rows is None or is_small((len(rows.negatives), len(rows.positives)), least_cell) else rows


def _take(rows: Samples, chosen: np.ndarray) -> Samples:
    periods = None if rows.periods is None else rows.periods[chosen]
    return Samples(rows.features[chosen], rows.labels[chosen], periods=periods, findings=_count(rows.findings, chosen))


def _count(findings: Findings | None, rows: Any = slice(None)) -> Findings | None:
    """Return the findings of rows, with these rows' shares and priors."""
    return None if findings is None else Findings.of(findings.values[rows], findings.names)


def _join(sites: Sequence[Site]) -> Samples:
    """Return the rows of some sites, one site after another."""
    features, labels = zip(*((rows_of(site.features), site.labels.cpu().numpy()) for site in sites), strict=True)
    periods = Periods.join([site.periods for site in sites])
    findings = _count(Findings.join([site.findings for site in sites]))
    labels = np.concatenate(labels).astype(np.int8)
    return Samples(concatenate(features, np.float32), labels, periods=periods, findings=findings)


def _concatenate(parts: Sequence[Samples]) -> Samples:
    features = concatenate([part.features for part in parts])
    periods = Periods.join([part.periods for part in parts])
    findings = _count(Findings.join([part.findings for part in parts]))
    return Samples(features, np.concatenate([part.labels for part in parts]), periods=periods, findings=findings)
