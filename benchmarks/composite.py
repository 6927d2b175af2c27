"""Speed of composite federated learning on sparse logistic regression, relative to a plain NumPy loop.

The data are Synthetic(10, 10), with 30 clients of 2,000 samples, 5 local steps of full gradients, and float64. The loop
computes Algorithm 1 without messages, records or metrics. Rounds of both alternate in one run. The median of the
engine's rounds may be at most 2.5 times the loop's median.

    python benchmarks/composite.py [--smoke] [--no-check]
"""

from __future__ import annotations

from statistics import median

import numpy as np
from harness import alternate, arguments, check, table
from numpy.typing import NDArray

from apps.config import Scalar, parse_run_config
from problems.data import load

Vector = NDArray[np.float64]
STEPS, STEP = 5, 1.0
WEIGHT, RIDGE = 1e-4, 0.01
LIMIT = 2.5


def shrink(x: Vector, threshold: float) -> Vector:
    """Return the proximal map of the l1 norm."""
    return np.sign(x) * np.maximum(np.abs(x) - threshold, 0.0)


class PlainLoop:
    """Algorithm 1 as in the paper, one client after another."""

    def __init__(self, flat: dict[str, Scalar], clients: int) -> None:
        data = load(parse_run_config(flat).data, clients)
        samples = [data.client(i) for i in range(clients)]
        self.sites = [(np.asarray(s.features, np.float64), 2.0 * s.labels - 1.0) for s in samples]
        self.x = np.zeros(self.sites[0][0].shape[1])
        self.corrections = [np.zeros_like(self.x) for _ in self.sites]

    def gradient(self, client: int, x: Vector) -> Vector:
        """Return the (d,) gradient of one client's objective f_i."""
        features, signs = self.sites[client]
        slopes = -signs / (1 + np.exp(signs * (features @ x)))
        gradient: Vector = slopes @ features / len(signs) + RIDGE * x
        return gradient

    def round(self) -> None:
        """Compute a round of all clients."""
        start = shrink(self.x, STEP * STEPS * WEIGHT)
        sent, means = [], []
        for client, correction in enumerate(self.corrections):
            pre, z, total = start, start, np.zeros_like(start)
            for t in range(STEPS):
                gradient = self.gradient(client, z)
                total = total + gradient
                pre = pre - STEP * (gradient + correction)
                z = shrink(pre, (t + 1) * STEP * WEIGHT)
            sent.append(pre)
            means.append(total / STEPS)
        self.x = start + (np.mean(sent, axis=0) - start)
        self.corrections = [(start - self.x) / (STEP * STEPS) - mean for mean in means]


def main() -> None:
    options = arguments(__doc__ or "").parse_args()
    clients, rounds, samples = (6, 20, 200) if options.smoke else (30, 600, 2000)
    flat: dict[str, Scalar] = {
        "strategy": "composite",
        "dataset": "synthetic-sparse-logistic",
        "synthetic.samples": samples,
        "num-server-rounds": rounds,
        "local-steps": STEPS,
        "batch-size": 0,
        "learning-rate": STEP,
        "composite.weight": WEIGHT,
        "composite.ridge": RIDGE,
        "evaluate-every": 10**6,
        "checkpoint-every": 0,
        "device": "cpu",
    }
    measured = alternate(flat, clients, PlainLoop(flat, clients).round, clock=options.clock)
    ours, loop = median(measured.whole), median(measured.rival)
    print(f"{clients} clients of {samples:,} samples, {STEPS} full gradients a round: ms a round")
    table(
        ["loop", "engine", "ratio", "limit"],
        [[f"{1000 * loop:.2f}", f"{1000 * ours:.2f}", f"{ours / loop:.2f}", f"{LIMIT:.2f}"]],
    )
    slow = f"{ours / loop:.2f} times the loop's time, the limit is {LIMIT}"
    check([slow] if ours > LIMIT * loop else [], wanted=not options.no_check)


if __name__ == "__main__":
    main()
