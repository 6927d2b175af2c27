"""Entry points of ``--baselines``: the check before a run, and the training of the references after a run."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from apps.config import ConfigError, RunConfig, Scalar, parse_run_config
from apps.evaluation.metric_names import format_metrics
from apps.run_config.settings import LOCAL_NORMS
from apps.run_directory.curves import rows_in_words
from payloads.site_names import label_site
from problems.data import UNLABELLED
from simulations.baselines.comparison import FEDERATED, POOLED, Baselines, Result
from simulations.baselines.measuring import concordance_interval
from simulations.baselines.personal import add_alone
from simulations.baselines.rows import Rows, gather
from simulations.baselines.trainer import Trainer
from simulations.results.records import read_run


def check_baselines(config: RunConfig) -> None:
    """Check that a run can be compared with references.

    Args:
        config: The run's config.

    Raises:
        ConfigError: The strategy trains no model, each site has some columns of all rows (vertical learning), the data
            set has no test rows, or the run has numbers as labels, offsets, or local batch norms.
    """
    data = config.data
    kinds = {"label-type": data.has_numbers, "offset-column": data.offset_column}
    kinds |= {"batch-norm 'local'": config.run.batch_norm == LOCAL_NORMS}
    if key := next((key for key, value in kinds.items() if value), ""):
        got, hint = f"a run with {key}", "remove --baselines"
        allowed = "a run whose labels are classes, without offsets and local batch norms"
        raise ConfigError("--baselines", got=got, allowed=allowed, hint=hint)
    if config.algorithm.sites.hold_columns:
        got = f"strategy {config.run.strategy!r}, whose parties have different columns"
        hint = "remove --baselines; `florilegium centralized` trains the reference of this strategy"
        raise ConfigError("--baselines", got=got, allowed="a strategy whose sites have complete rows", hint=hint)
    if not config.algorithm.strategy.trains:
        got = f"strategy {config.run.strategy!r}, which trains no model"
        raise ConfigError("--baselines", got=got, allowed="a strategy that trains", hint="remove --baselines")
    if config.data.dataset in UNLABELLED:
        got = f"dataset {config.data.dataset!r}, which has no test rows"
        raise ConfigError("--baselines", got=got, allowed="a data set with test rows", hint="remove --baselines")


def train_baselines(
    out: Path,
    clients: int,
    flat: Mapping[str, Scalar],
    nodes: Sequence[Mapping[str, Scalar]] = (),
    show: Callable[[str], None] = lambda line: None,
) -> Baselines:
    """Train the references of a finished run in ``baselines/`` of the run directory, and write the comparison.

    Args:
        out: The run directory.
        clients: The number of the run's sites.
        flat: The run's flat config.
        nodes: The sites' node configs. Empty: no site has a node config.
        show: A function that shows a progress line after each reference.

    Raises:
        ConfigError, DataError: The sites' rows cannot be read.
    """
    config, run = parse_run_config(flat), read_run(out)
    tested = "test_metrics" in run.result
    gathered = gather(config, clients, flat, nodes, tested=tested)
    shutil.rmtree(out / "baselines", ignore_errors=True)  # from an earlier part of a resumed run
    trainer = Trainer.of(config, run, gathered, out / "baselines")
    federated = trainer.describe(FEDERATED, gathered.pooled, run, trainer.per_round * run.facts["rounds"])
    penalty = federated.penalty if trainer.is_cox else config.training.weight_decay
    federated = replace(federated, penalty=penalty, trained="the run")

    def train(name: str, folder: str, rows: Rows, site: int | None) -> Result:
        result = trainer.train(name, folder, rows, site)
        show(f"{name}: {result.reason or format_metrics(result.metrics)}")
        return result

    pooled = train(POOLED, "pooled", gathered.pooled, None)
    alone = [
        train(f"{label_site(site, run.site_names)} alone", f"site-{site}", rows, site)
        for site, rows in enumerate(gathered.alone)
    ]
    where = "the test rows" if tested else rows_in_words(run.config)
    measured = run.result.get("all", {}).get(trainer.metric)
    interval = (measured[1], measured[2]) if measured else None
    if config.data.has_times and trainer.scores is not None:
        interval = concordance_interval(gathered.pooled.test, trainer.scores)
    baselines = Baselines(trainer.metric, where, federated, pooled, alone, trainer.notes(), interval)
    models = add_alone(run, out / "baselines", gathered.pooled.test)
    baselines = replace(baselines, personal=models)
    baselines.save(out, picture=config.run.pictures)
    return baselines
