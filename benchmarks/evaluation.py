"""The cost of an evaluation with many test rows: seconds, memory, and the error of the approximate risk.

The benchmark computes all metrics of a linear model on synthetic rows (10 % positive) for each pairwise loss. The
limits for a million rows are 3 s, and 400 MB in addition to the rows. For so many pairs the evaluator sorts scores into
cells and computes the risk from the cells. On 30,000 other scores the risk may differ from the exact risk by a relative
1e-6.

    python benchmarks/evaluation.py [--smoke] [--no-check] [--clock wall]
"""

from __future__ import annotations

import resource

import numpy as np
import torch
from harness import CLOCKS, arguments, check, table

from apps.config import parse_run_config
from apps.evaluation.models import ModelEvaluator
from apps.sites import resources
from methods.pairwise import FedXSettings
from problems.data import Samples
from problems.objectives.pairwise import PAIRWISE_LOSSES, PairwiseObjective, make_objective

SECONDS, MEGABYTES, ERROR = 3.0, 400.0, 1e-6
FEATURES = 10


def samples(rows: int) -> Samples:
    rng = np.random.default_rng(0)
    labels = (np.arange(rows) % 10 == 0).astype(np.int8)
    return Samples(rng.standard_normal((rows, FEATURES), dtype=np.float32) + labels[:, None], labels)


def error(objective: PairwiseObjective, rows: int) -> float:
    """Return the relative error of the risk from cells, for normal scores with class means a deviation apart."""
    positive = torch.arange(rows) % 10 == 0
    scores = torch.from_numpy(np.random.default_rng(1).normal(size=rows)) + positive
    partners, labels = (scores, positive.double()) if objective.partners == "all" else (scores[~positive], None)
    exact, approximate = (
        objective.risk(scores[positive], partners, labels, direct=max_direct) for max_direct in (rows**2, 0)
    )
    return abs(approximate / exact - 1)


def peak() -> int:
    """Return the peak memory in bytes (ru_maxrss is in KiB on Linux)."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def main() -> None:
    options = arguments(__doc__ or "").parse_args()
    torch.set_num_threads(1)
    now, (rows, compared) = CLOCKS[options.clock], (10**5, 10**4) if options.smoke else (10**6, 30_000)
    print(f"data: synthetic, {rows:,} test rows of {FEATURES} features")
    test, lines, failures = samples(rows), [], []
    configs = [
        parse_run_config({"strategy": "local-pair", "loss": loss, "model": "linear", "device": "cpu"})
        for loss in PAIRWISE_LOSSES
    ]
    seconds, held = [], 0
    for config in configs:
        evaluator = ModelEvaluator(config, resources.new_model(config, (FEATURES,)), test)
        held, before = held or peak(), now()
        evaluator(evaluator.start())
        seconds.append(now() - before)
    megabytes = (peak() - held) / 1e6
    if megabytes > MEGABYTES:
        failures.append(f"{megabytes:.0f} MB, the limit is {MEGABYTES:.0f} MB")
    for config, took in zip(configs, seconds, strict=True):
        loss, family = config.training.loss, config.family
        assert isinstance(family, FedXSettings)
        off = error(make_objective(loss, **family.objective_options), compared)
        lines.append([loss, f"{took:.2f}", f"{off:.1e}"])
        if took > SECONDS:
            failures.append(f"{loss}: {took:.2f} s, the limit is {SECONDS} s")
        if off > ERROR:
            failures.append(f"{loss}: off by {off:.1e}, the limit is {ERROR}")
    print(f"{megabytes:.0f} MB beyond the rows")
    table(["loss", "seconds", "off by"], lines)
    check(failures, wanted=not options.no_check)


if __name__ == "__main__":
    main()
