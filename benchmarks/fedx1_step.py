"""The cost of a local step of FedX1, relative to a hand-written PyTorch step on the same batches.

Both steps gather the same rows, score two batches, compute one backward pass, draw the same number of other sites'
scores, and apply SGD. Our step is timed as a part of a whole ``fit``, which includes decoding of the scores, samplers,
the history and the reply.

    python benchmarks/fedx1_step.py [--smoke]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import numpy as np
import torch

from clients.base import Site
from clients.scoring import FedX1Client
from methods.pairwise import FedXSettings
from methods.predictions import FedXPool
from payloads.settings import TrainingSettings
from problems.models import FlatModel, build_model

LIMIT = 1.3


def data(positives: int, negatives: int, shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    labels = np.array([1] * positives + [0] * negatives)
    noise = rng.normal(size=(len(labels), *shape))
    return (noise + labels.reshape(-1, *[1] * len(shape))).astype(np.float32), labels


def ours(model_name: str, shape: tuple[int, ...], batch: int, steps: int) -> Callable[[], None]:
    features, labels = data(4 * batch, 16 * batch, shape)
    site = Site.from_arrays(0, features, labels)
    model = FlatModel(build_model(model_name, shape, 0))
    settings = FedXSettings(positive_batch_size=batch, negative_batch_size=batch)
    client = FedX1Client(site, model, TrainingSettings(local_steps=steps, loss="psm", learning_rate=0.01), settings)
    scores = np.random.default_rng(1).normal(size=8 * steps * batch).astype(np.float32)
    runs = np.full(8, steps * batch)
    client.inbox = FedXPool(
        totals=np.array([8, 8 * 4 * batch, 8 * 16 * batch]),
        positive_scores=scores,
        positive_lengths=runs,
        positive_weights=np.ones(8, np.float32),
        partner_scores=scores,
        partner_lengths=runs,
        partner_weights=np.ones(8, np.float32),
    )
    start = model.arrays()
    return lambda: client.fit(start, {"server-round": 1}) and None


def by_hand(model_name: str, shape: tuple[int, ...], batch: int, steps: int) -> Callable[[], None]:
    features, labels = data(4 * batch, 16 * batch, shape)
    x1, x2 = torch.tensor(features[labels == 1]), torch.tensor(features[labels == 0])
    model = build_model(model_name, shape, 0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    pool = torch.randn(8 * steps * batch)

    def run() -> None:
        order1, order2, lazy = torch.randperm(len(x1)), torch.randperm(len(x2)), torch.randperm(len(pool))
        for step in range(steps):
            i, j = step % 4 * batch, step % 16 * batch
            lazy_scores = pool[lazy[step * batch : (step + 1) * batch]]
            a, b = model(x1[order1[i : i + batch]]), model(x2[order2[j : j + batch]])
            loss = torch.sigmoid(lazy_scores[None, :] - a[:, None]).mean()
            loss = loss + torch.sigmoid(b[None, :] - lazy_scores[:, None]).mean()
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()

    return run


def ratio(model_name: str, shape: tuple[int, ...], batch: int, steps: int, repeats: int) -> float:
    """Return the ratio of the shortest times of two alternating functions. Other processes only make times longer."""
    first, second = ours(model_name, shape, batch, steps), by_hand(model_name, shape, batch, steps)
    first(), second()
    mine, theirs = [], []
    for _ in range(repeats):
        begun = time.perf_counter()
        first()
        middle = time.perf_counter()
        second()
        mine.append(middle - begun)
        theirs.append(time.perf_counter() - middle)
    found = min(mine) / min(theirs)
    each = min(mine) / steps * 1e6
    print(f"{model_name:>10} batch {batch:3d}  {each:7.0f} us a step  ratio {found:.2f} (limit {LIMIT})")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--smoke", action="store_true", help="a short run of a few seconds")
    smoke = parser.parse_args().smoke
    torch.set_num_threads(1)
    steps, repeats = (32, 9) if smoke else (32, 41)
    worst = max(
        ratio("mlp", (64,), 32, steps, repeats),
        ratio("table3-cnn", (1, 28, 28), 32, 4 if smoke else 8, 11 if smoke else 21),
    )
    if worst > LIMIT:
        raise SystemExit(f"a FedX1 local step costs {worst:.2f} hand-written steps, the limit is {LIMIT}")


if __name__ == "__main__":
    main()
