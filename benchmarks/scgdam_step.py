"""The cost of a local step of LocalSCGDAM, relative to a hand-written PyTorch SGD step on batches of the same size.

The hand-written step computes one forward pass, one backward pass and an update. Our step computes two passes of each
kind, at w and at h, and updates the moving averages of h, u and v. For the exact Hessian it also computes a second
backward pass through the first backward pass. Counted in matrix products, our step is therefore 2 hand-written steps
for "identity", and 4 for "exact". Our step is timed as a part of a whole ``fit``, which includes loading, samplers and
the reply.

    python benchmarks/scgdam_step.py [--smoke]
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Literal

import numpy as np
import torch
from torch.nn import functional

from clients.base import Site
from clients.scoring import LocalSCGDAMClient
from methods.scgdam import SCGDAMDown, SCGDAMSettings
from payloads.settings import TrainingSettings
from problems.minimax import CompositionalOracle
from problems.models import FlatModel, build_model
from problems.models.networks import SaddleNetwork

LIMITS: dict[Literal["exact", "identity"], float] = {"exact": 4.0, "identity": 2.2}
MODEL, SHAPE, ROWS = "table3-cnn", (1, 28, 28), 640


def data() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    labels = (np.arange(ROWS) % 10 == 0).astype(np.int64)
    return (rng.normal(size=(ROWS, *SHAPE)) + labels[:, None, None, None]).astype(np.float32), labels


def network() -> FlatModel:
    return FlatModel(SaddleNetwork(build_model(MODEL, SHAPE, 0)))


def ours(hessian: Literal["exact", "identity"], batch: int, steps: int) -> Callable[[], None]:
    features, labels = data()
    site = Site.from_arrays(0, features, labels)
    oracle = CompositionalOracle(network(), network(), site.features, site.labels)
    training = TrainingSettings(local_steps=steps, batch_size=batch, learning_rate=0.1)
    settings = SCGDAMSettings(hessian=hessian, gamma_x=0.03, gamma_y=0.03)
    population = np.array([site.class_counts[1] / len(site), len(site)])
    client = LocalSCGDAMClient(site, oracle, training, settings)
    start = oracle.arrays()
    client.inbox = SCGDAMDown(population=population)
    client.fit(start, {"server-round": 1})
    sent = client.outbox
    client.inbox = SCGDAMDown(
        population=population, inner=sent.inner, momentum=sent.momentum, inner_buffers=sent.inner_buffers
    )
    return lambda: client.fit(start, {"server-round": 2}) and None


def by_hand(batch: int, steps: int) -> Callable[[], None]:
    features, labels = data()
    x, y = torch.tensor(features), torch.tensor(labels, dtype=torch.float32)
    model = build_model(MODEL, SHAPE, 0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def run() -> None:
        order = torch.randperm(len(x))
        for step in range(steps):
            rows = order[step * batch : (step + 1) * batch]
            loss = functional.binary_cross_entropy_with_logits(model(x[rows]), y[rows])
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()

    return run


def ratio(hessian: Literal["exact", "identity"], batch: int, steps: int, repeats: int) -> float:
    """Return the median ratio of the CPU seconds of two alternating functions."""
    first, second = ours(hessian, batch, steps), by_hand(batch, steps)
    first(), second()
    ratios, mine = [], []
    for _ in range(repeats):
        begun = time.process_time()
        first()
        middle = time.process_time()
        second()
        mine.append(middle - begun)
        ratios.append(mine[-1] / (time.process_time() - middle))
    median, milliseconds = statistics.median(ratios), statistics.median(mine) / steps * 1e3
    print(f"{hessian:>8}  batch {batch}  {milliseconds:6.1f} ms a step  ratio {median:.2f} (limit {LIMITS[hessian]})")
    return median


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--smoke", action="store_true", help="a short run of a few seconds")
    smoke = parser.parse_args().smoke
    torch.set_num_threads(1)
    failures = []
    for hessian, limit in LIMITS.items():
        measured = ratio(hessian, 32, 8 if smoke else 16, 5 if smoke else 15)
        if measured > limit:
            failures.append(f"a LocalSCGDAM step ({hessian}) costs {measured:.2f} SGD steps, the limit is {limit}")
    if failures:
        raise SystemExit("; ".join(failures))


if __name__ == "__main__":
    main()
