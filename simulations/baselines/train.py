"""Did the federation help? The run beside each of its sites alone, and beside all rows in one place.

A site alone is the run's own strategy with one client that holds this site's rows: the same loss, model, initial
weights and number of local steps, and batches of the same size, or of all rows where there are fewer. All rows in one
place are the same with one client that holds the rows of all sites. All are evaluated on the rows that the run's
metrics are of: its test or validation rows, or the test rows if it has chosen anything, which the others do not. They
have the features as the run has scaled them, and neither secure sums nor noise for privacy, for which a site alone has
no use.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Context, RecordDict
from numpy.typing import NDArray

from apps.client_app import report_of, site_of
from apps.config import ConfigError, DataSettings, EvaluationSettings, RunConfig, Scalar, flatten, parse_run_config
from apps.evaluation.metric_names import better, format_metrics
from apps.run_directory.artifacts import MATPLOTLIB
from apps.run_directory.curves import RANKING, rows_in_words
from apps.server_app import EXPECTED, RunFailedError
from apps.sites import resources
from apps.sites.files import write_atomic
from apps.sites.rows import reads_own, server_samples
from clients.base import Site
from payloads.settings import kebab
from problems.data import UNLABELLED
from problems.data.mapped import concatenate
from problems.data.samples import as_float32
from problems.errors import importable
from simulations.arguments import add_directory
from simulations.engines.launch import run_federation
from simulations.results.compare import UNCOMPARED
from simulations.results.figure import draw
from simulations.results.output import Table, format_metric, log_off, number_cell, value_cell
from simulations.results.records import RunRecord, read_run
from strategies.rounds.schema import agree

FEDERATED, POOLED, ALONE = "federated", "all rows in one place", "a site alone"
LOADER = f"{__name__}:rows_of"
Pair = tuple[NDArray[Any], NDArray[Any]]

# the rows of the run under way, by the folder of its baseline
_rows: dict[str, tuple[NDArray[Any], ...]] = {}


def rows_of(data_dir: str) -> tuple[NDArray[Any], ...]:
    """Return the rows that a baseline is trained and tested on; its run config names this function as its data set."""
    return _rows[data_dir]


@dataclass(frozen=True)
class Result:
    """A row of the table.

    Attributes:
        rows, positives: it was trained on.
        metrics: in the last evaluated round; empty if it could not be trained.
        reason: why it could not, or "".
        curve: the headline metric by round.
    """

    name: str
    rows: int
    positives: int
    metrics: dict[str, float]
    reason: str = ""
    curve: dict[int, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Baselines:
    """The federated run, all rows in one place, and the sites alone.

    Attributes:
        metric: by which they are compared.
        where: the rows that it was measured on.
    """

    metric: str
    where: str
    federated: Result
    pooled: Result
    alone: list[Result]

    @property
    def results(self) -> list[Result]:
        """All rows, the federated run first."""
        return [self.federated, self.pooled, *self.alone]

    def text(self) -> str:
        """The table and what it says, for a terminal."""
        shared = [one.metrics for one in self.results if one.metrics]
        names = [name for name in shared[0] if all(name in metrics for metrics in shared)]
        names = [name for name in names if not name.startswith(UNCOMPARED)]
        cells = [
            [
                value_cell(one.name),
                *(number_cell(str(count), count) for count in (one.rows, one.positives)),
                *(number_cell(format_metric(one.metrics.get(name)), one.metrics.get(name)) for name in names),
            ]
            for one in self.results
        ]
        table = Table(f"evaluated on {self.where}", ["trained", "rows", "positives", *names], cells).text()
        failed = [f"{one.name}: {one.reason}" for one in self.results if one.reason]
        return "\n".join([table, *failed, self.verdict()])

    def verdict(self) -> str:
        """One line: how the run compares with the sites alone, and with all rows in one place."""
        best, found = better(self.metric), [one.metrics[self.metric] for one in self.alone if one.metrics]
        mine, pooled = (one.metrics.get(self.metric) for one in (self.federated, self.pooled))
        assert mine is not None
        ahead = sum(mine != value and best(mine, value) == mine for value in found)
        parts = [f"{self.metric}: federated {format_metric(mine)}"]
        if found:
            least, mean, most = (format_metric(float(value)) for value in (min(found), np.mean(found), max(found)))
            parts.append(f"ahead of {ahead} of {len(found)} sites alone ({least} to {most}, mean {mean})")
        if lost := len(self.alone) - len(found):
            parts.append(f"{lost} that cannot be trained alone")
        return "; ".join([*parts, f"{POOLED} {format_metric(pooled)}"])

    def save(self, folder: Path, *, picture: bool) -> None:
        """Write baselines.json and, if it is wanted and Matplotlib is installed, baselines.png."""
        found = {"metric": self.metric, "verdict": self.verdict(), "results": [asdict(one) for one in self.results]}
        write_atomic(folder / "baselines.json", (json.dumps(found, indent=2) + "\n").encode())
        if not picture or not importable(MATPLOTLIB):
            return
        groups = {FEDERATED: [self.federated], POOLED: [self.pooled], ALONE: self.alone}
        curves = {name: [one.curve for one in some if one.curve] for name, some in groups.items()}
        title = f"{RANKING.get(self.metric, self.metric)} on {self.where}"
        draw({title: {name: some for name, some in curves.items() if some}}, folder / "baselines.png")


def check_baselines(config: RunConfig) -> None:
    """Check that a run can have baselines.

    Raises:
        ConfigError: its sites hold columns, or it has no test rows.
    """
    if config.algorithm.strategy.vertical:
        got, hint = f"strategy {config.run.strategy!r}", "take `python -m simulations nonfederated` as its reference"
        raise ConfigError("--baselines", got=got, allowed="sites that hold rows, which one could train on", hint=hint)
    if config.data.dataset in UNLABELLED:
        got = f"dataset {config.data.dataset!r}"
        raise ConfigError("--baselines", got=got, allowed="test rows, which this has not", hint="leave it out")


def train_baselines(
    out: Path,
    clients: int,
    flat: Mapping[str, Scalar],
    nodes: Sequence[Mapping[str, Scalar]] = (),
    say: Callable[[str], None] = lambda line: None,
) -> Baselines:
    """Train the baselines of a finished run, below its directory, and write their comparison into it.

    Args:
        out: the run directory.
        clients: of the run.
        flat: its run config.
        nodes: its node configs; empty: none.
        say: called with a line once one is trained.

    Raises:
        ConfigError, DataError: the sites' rows cannot be read.
    """
    config, run = parse_run_config(flat), read_run(out)
    tested = "test_metrics" in run.result
    sites, test = _gather(config, clients, flat, nodes, tested=tested)
    metric = next(iter(run.metrics))
    curve = {run.selected or run.facts["rounds"]: run.metrics[metric]} if tested else run.curve(metric)
    total = _count(sites)
    federated = Result(FEDERATED, *total, run.metrics, curve=curve)

    def train(name: str, folder: str, some: Sequence[Site]) -> Result:
        record, reason = _train(config, out / "baselines" / folder, some, test)
        metrics, curve = ({}, {}) if record is None else (record.metrics, record.curve(metric))
        say(f"{name}: {reason or format_metrics(metrics)}")
        return Result(name, *_count(some), metrics, reason, curve)

    pooled = train(POOLED, "pooled", sites)
    alone = [train(f"site {place} alone", f"site-{place}", [site]) for place, site in enumerate(sites)]
    where = "the test rows" if tested else rows_in_words(run.config)
    found = Baselines(metric, where, federated, pooled, alone)
    found.save(out, picture=config.run.pictures)
    return found


def _gather(
    config: RunConfig, clients: int, flat: Mapping[str, Scalar], nodes: Sequence[Mapping[str, Scalar]], *, tested: bool
) -> tuple[list[Site], Pair]:
    """What each site trains on, as its ClientApp has it, and what is evaluated on: the test rows, if ``tested``."""
    contexts = [
        Context(
            run_id=0,
            node_id=place,
            node_config={"partition-id": place, "num-partitions": clients, **(nodes[place] if nodes else {})},
            state=RecordDict(),
            run_config=dict(flat),
        )
        for place in range(clients)
    ]
    schema = agree([report_of(context, config) for context in contexts]) if reads_own(config) else None
    scaling = None if schema is None else schema.scaling
    rows = [site for context in contexts if isinstance(site := site_of(context, config, scaling), Site)]
    if schema is None:
        data = resources.federated_data(config.data, clients)
        test = data.test if tested else data.evaluated
    elif config.data.data_dir:
        test = server_samples(config, schema)
    else:
        held = [site.test if tested else site.held_out for site in rows]
        return rows, _join([site for site in held if site])
    return rows, (as_float32(test.features), test.labels)


def _join(sites: Sequence[Site]) -> Pair:
    """The features and labels of some sites, one after another."""
    features, labels = zip(*((site.features.cpu().numpy(), site.labels.cpu().numpy()) for site in sites), strict=True)
    return concatenate(features, np.float32), np.concatenate(labels).astype(np.int8)


def _count(sites: Sequence[Site]) -> tuple[int, int]:
    """The rows of some sites, and the positives among them."""
    negatives, positives = np.sum([site.class_counts for site in sites], axis=0).tolist()
    return negatives + positives, positives


def _train(config: RunConfig, folder: Path, sites: Sequence[Site], test: Pair) -> tuple[RunRecord | None, str]:
    """The run of one client that holds the rows of some sites; or None, and why there is none."""
    rows, positives = _count(sites)
    if positives in (0, rows):
        return None, f"one class only, {positives:,} positives and {rows - positives:,} negatives"
    place = str(folder.resolve())
    _rows[place] = *_join(sites), *test
    try:
        with log_off(True):
            run_federation(1, add_directory(_config(config, place, rows, positives), folder))
    except (*EXPECTED, RunFailedError) as error:
        return None, str(error)
    finally:
        del _rows[place]
    return read_run(folder), ""


def _config(config: RunConfig, place: str, rows: int, positives: int) -> dict[str, Scalar]:
    """The flat run config of a baseline."""
    flat = {key: value for key, value in flatten(config.resolve()).items() if not key.startswith("synthetic.")}
    flat |= {kebab(name): known.default for name, known in DataSettings.model_fields.items()}
    flat |= {kebab(name): known.default for name, known in EvaluationSettings.model_fields.items()}
    flat |= {"dataset": LOADER, "data-dir": place, "resume": (Path(place) / "metrics.jsonl").exists()}
    flat |= {"pictures": False, "tracking-uri": "", "fraction-train": 1.0, "min-train-nodes": 0.5}
    flat |= {"privacy.secure-sum": False, "privacy.epsilon": 0.0}
    noise = ("fedx.pool-epsilon", "fedx.prediction-noise")
    flat |= {key: 0.0 for key in noise if key in flat}
    largest = {
        "batch-size": rows,
        "fedx.positive-batch-size": positives,
        "fedx.negative-batch-size": rows - positives,
    }
    return flat | {key: min(flat[key], max(most, 1)) for key, most in largest.items() if key in flat}
