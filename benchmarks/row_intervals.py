"""Intervals over test rows for the rows of `reproduce benchmark`.

An interval over seeds tells whether another training of the same sites would give the same difference. An interval over
test rows tells whether other test rows would.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Float64
from safetensors.torch import load_file

from apps.config import parse_run_config
from apps.evaluation.models import ModelEvaluator
from apps.sites import resources
from problems.data import Samples
from problems.data.federated import load
from problems.delong import paired_difference
from simulations.experiments.expansion import expand
from simulations.experiments.experiment import Experiment
from simulations.experiments.lines import run_folder
from simulations.results.records import read_run

ROWS_LOW, ROWS_HIGH = "auc_rows_low", "auc_rows_high"  # the added columns


def score(folder: Path, test: Samples) -> Float64[np.ndarray, n]:
    """Return the n scores of test rows by the last model of a run.

    Args:
        folder: The run directory.
        test: The run's test rows.
    """
    config = parse_run_config(read_run(folder).config)
    evaluator = ModelEvaluator(config, resources.new_model(config, test.shape), test)
    scores = evaluator.scores(evaluator.start_from(load_file(folder / "model.safetensors")))[1]
    return scores.cpu().numpy().astype(np.float64)


def read_test_rows(folder: Path, clients: int) -> Samples:
    """Return the test rows of a run.

    Args:
        folder: The run directory.
        clients: The run's number of clients.
    """
    return load(parse_run_config(read_run(folder).config).data, clients).test


def add_intervals(
    rows: Sequence[Mapping[str, str]], runs: Path, experiment: Experiment, base: str
) -> list[dict[str, str]]:
    """Add the ends of DeLong's 95 % interval of each row's AUC minus the AUC of `base` with the same task and seed.

    The ends stay empty without the run directories of both, and for `base` itself.

    Args:
        rows: The rows of runs.csv.
        runs: The folder of the run directories.
        experiment: The experiment of the runs. Its axis is ``task``.
        base: The method to compare with.
    """
    lines = expand(experiment, "quick", data_dir=Path("/")).lines
    names = {(line.method, line.at["task"]): line for line in lines}
    shared: dict[tuple[str, str], tuple[Samples, Float64[np.ndarray, n]]] = {}
    added = []
    for row in rows:
        ours, theirs = (
            runs / run_folder(names[method, row["task"]], int(row["seed"])) for method in (row["method"], base)
        )
        ends = ["", ""]
        if row["method"] != base and ours.is_dir() and theirs.is_dir():
            key = (row["task"], row["seed"])
            if key not in shared:
                test = read_test_rows(theirs, int(row["clients"]))
                shared[key] = test, score(theirs, test)
            test, reference = shared[key]
            gap = paired_difference(test.labels, score(ours, test), reference)
            ends = [str(gap.low), str(gap.high)]
        added.append({**row, ROWS_LOW: ends[0], ROWS_HIGH: ends[1]})
    return added
