"""The command ``check``: the steps of a run before its first round, without training."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from apps.client_app import app as client_app
from apps.config import RunConfig, Scalar, parse_run_config
from apps.evaluation.labels import describe_labels
from apps.evaluation.starting import starting_point
from apps.run_directory.artifacts import RunDirectory
from apps.training import Training
from problems.errors import join_first
from simulations.arguments import add_directory
from simulations.engines.in_process import run_in_process
from simulations.results.output import log_off
from strategies.rounds.handshake import Roster


def check_run(clients: int, flat: Mapping[str, Scalar], nodes: Sequence[Mapping[str, Scalar]] = ()) -> list[str]:
    """Read the data, let all sites join, and make the model in this process, without training.

    Args:
        clients: The number of clients.
        flat: The run config.
        nodes: The clients' node configs. Empty: no node configs.

    Returns:
        Lines for the terminal: the run, its sites, and warnings.

    Raises:
        InputError: The run config or the data are wrong; a run would end with this error.
        StrategyError: A site cannot take part. The message names the site.
    """
    lines: list[str] = []
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        config = parse_run_config(context.run_config)
        training = Training(config, grid, RunDirectory.open(config))
        roster = training.strategy.join(grid)
        evaluator = training.measurement.evaluator(len(roster))
        starting_point(config, evaluator)
        lines.append(f"{config.run.strategy} on {config.data.dataset}: {len(roster)} sites; {evaluator.summary}")
        lines.extend(evaluator.notes)
        counts = roster.class_counts, roster.finding_counts
        lines.extend(describe_labels(config.data, evaluator.sample_format, *counts))
        lines.extend(_of_sites(config, roster))
        if config.warning:
            lines.append(config.warning)

    with tempfile.TemporaryDirectory() as folder, log_off(True):
        run_in_process(app, client_app, clients, add_directory(dict(flat), Path(folder) / "run"), node_configs=nodes)
    return lines


def _of_sites(config: RunConfig, roster: Roster) -> Iterator[str]:
    if not config.algorithm.strategy.counts_samples:
        return  # parties disclose their rows only to accepted parties
    for site, (negatives, positives) in enumerate(roster.class_counts.tolist()):
        if config.data.has_numbers:
            yield f"{roster.label(site)}: {negatives:,} rows"
            continue
        if roster.finding_counts is not None:
            pairs = zip(config.data.findings, roster.finding_counts[site].tolist(), strict=True)
            single = [name for name, counts in pairs if not all(counts)]
            lack = f"; without zeros or ones of {join_first(single, 8)}" if single else ""
            yield f"{roster.label(site)}: {negatives:,} rows{lack}"
            continue
        lacking = [name for name, count in (("positive", positives), ("negative", negatives)) if not count]
        missing = f"; no {lacking[0]} rows" if lacking else ""
        yield f"{roster.label(site)}: {negatives + positives:,} rows, {positives:,} positive{missing}"
