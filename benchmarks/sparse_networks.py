"""AUC of sparse networks on pneumonia-mnist, 8 sites: l1 penalties, and static masks with as many weights.

Each method trains an mlp for 60 rounds. A penalty's weight sets the number of nonzero parameters. A mask keeps as many
weights as FedCanon's model of the same seed, and all biases:

- random: drawn before the first round, and local SGD on the kept weights.
- magnitude: the largest weights after 30 rounds of local SGD, then 30 rounds of local SGD on them.

Steps are chosen from `STEPS` on validation rows with another seed.

    python benchmarks/sparse_networks.py --data-dir data/pneumonia-mnist [--seeds 5]
"""

from __future__ import annotations

import argparse
import statistics
from copy import deepcopy
from dataclasses import replace
from functools import cache
from typing import Any

import torch
from harness import table
from torch import nn

import florilegium
from apps.registry import adapt
from methods import local_sgd
from methods.local_sgd import LOCAL_SGD
from problems.models import build_model
from simulations.results.paired import difference

SHAPE, ROUNDS, STEPS, WEIGHTS = (1, 28, 28), 60, (0.01, 0.03, 0.1), (3e-3, 1e-3)
TUNING_SEED = 10
PENALTIES = "fedcanon", "composite", "fedda"
METHODS = "fedcanon", "magnitude", "random", "composite", "fedda"


def step(carry: Any, batch: Any, eta: float, task: Any) -> Any:
    """Take an SGD step that keeps zeros; no other parameter becomes exactly zero."""
    gradient = task.f.gradient(carry.x, batch)
    carry.x.sub_(gradient.mul_(carry.x != 0), alpha=eta)
    return carry


MASKED = adapt(
    replace(LOCAL_SGD, client=replace(LOCAL_SGD.client, start=local_sgd.start, step=step)), "MaskedSGD", "masked"
)


def run_sites(
    options: Any, seed: int, rate: float, rounds: int = ROUNDS, model: nn.Module | None = None, **keys: Any
) -> Any:
    """Run a federation. With the tuning seed, its AUC is on validation rows."""
    config = {"dataset": "pneumonia-mnist", "data-dir": options.data_dir, "partition": "dirichlet", "model": "mlp"}
    config |= {"seed": seed, "learning-rate": rate, "num-server-rounds": rounds, "evaluate-every": rounds}
    config |= {"validation-fraction": 0.2 * (seed == TUNING_SEED), "checkpoint-every": 0, "pictures": False}
    return florilegium.run({**config, **keys}, clients=8, stack=8, quiet=True, model=model)


def prune(model: nn.Module, kept: int, seed: int | None = None) -> nn.Module:
    """Keep the largest weights, or with a seed random weights, and all biases."""
    pruned = deepcopy(model).cpu()
    matrices = [part for part in pruned.parameters() if part.ndim > 1]
    kept -= sum(part.numel() for part in pruned.parameters() if part.ndim == 1)
    flat = torch.cat([part.detach().abs().flatten() for part in matrices])
    if seed is not None:
        flat = torch.rand(len(flat), generator=torch.Generator().manual_seed(seed))
    chosen = torch.zeros(len(flat)).index_fill_(0, flat.topk(kept).indices, 1.0)
    with torch.no_grad():
        for part, mask in zip(matrices, torch.split(chosen, [part.numel() for part in matrices]), strict=True):
            part.mul_(mask.view_as(part))
    return pruned


def count(model: nn.Module) -> int:
    """Return the number of nonzero parameters."""
    return sum(int(torch.count_nonzero(part)) for part in model.parameters())


class Comparison:
    """The AUC of each method by seed, and its number of nonzero parameters.

    Args:
        options: The command line.
    """

    def __init__(self, options: Any) -> None:
        self.options = options
        self.rates: dict[tuple[str, float], float] = {}
        self.train = cache(self._train)
        self.begin = cache(self._begin)

    def _begin(self, seed: int) -> nn.Module:
        """Train all weights by local SGD for half of the rounds."""
        rate = self.rates["local-sgd", 0.0]
        model: nn.Module = run_sites(self.options, seed, rate, ROUNDS // 2, strategy="local-sgd").model
        return model

    def _train(self, method: str, weight: float, seed: int, rate: float) -> tuple[float, int]:
        """Train by a method, and return the AUC and the number of nonzero parameters."""
        if method == "local-sgd":
            run = run_sites(self.options, seed, rate, strategy="local-sgd")
        elif method in PENALTIES:
            keys: dict[str, Any] = {"strategy": method, "composite.weight": weight, "composite.ridge": 0.0}
            run = run_sites(self.options, seed, rate, **keys)
        else:
            _, kept = self.best("fedcanon", weight, seed)
            drawn = method == "random"
            model = build_model("mlp", SHAPE, seed) if drawn else self.begin(seed)
            pruned = prune(model, kept, seed if drawn else None)
            rounds = ROUNDS if drawn else ROUNDS // 2
            run = run_sites(self.options, seed, rate, rounds, pruned, strategy="sparse_networks:MASKED")
        return run.metrics["auc"], count(run.model)

    def best(self, method: str, weight: float, seed: int) -> tuple[float, int]:
        """Train with the chosen step."""
        key = method, weight
        if key not in self.rates:
            found = {rate: self.train(method, weight, TUNING_SEED, rate)[0] for rate in STEPS}
            self.rates[key] = max(found, key=lambda rate: found[rate])
        return self.train(method, weight, seed, self.rates[key])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data-dir", default="data", help="folder of pneumoniamnist.npz")
    parser.add_argument("--seeds", type=int, default=5)
    options = parser.parse_args()
    comparison, rows = Comparison(options), []
    cases = [("local-sgd", 0.0)] + [(method, weight) for weight in WEIGHTS for method in METHODS]
    ours: dict[int, float] = {}
    for method, weight in cases:
        found = [comparison.best(method, weight, seed) for seed in range(options.seeds)]
        values = dict(enumerate(auc for auc, _ in found))
        if method == "fedcanon":
            ours = values
        gap = difference(ours, values) if ours and method != "fedcanon" else None
        row = [method, f"{weight:g}", f"{comparison.rates[method, weight]:g}"]
        row += [f"{statistics.mean(kept for _, kept in found):,.0f}", f"{statistics.mean(values.values()):.4f}"]
        row += [f"{statistics.stdev(values.values()):.4f}", *(gap.format_cells() if gap else ("", "", ""))]
        rows.append(row)
        print(*row, flush=True)
    headings = ["method", "weight", "step", "nonzeros", "AUC", "deviation", "fedcanon minus it", "95 % interval", "p"]
    table(headings, rows)


if __name__ == "__main__":
    main()
