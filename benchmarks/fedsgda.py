"""Speed of FedSGDA on the synthetic nonconvex-PL problem: the in-process engine against a plain NumPy loop.

There are 500 clients, S = 5 clients in a phase, and K = 5 local steps with batches of 5, in float32. The loop computes
the paper's frameworks without messages, records or metrics. Rounds of both alternate in one run. The median of the
engine's rounds may be at most 2.0 times the loop's median.

    python benchmarks/fedsgda.py [--smoke] [--no-check]
"""

from __future__ import annotations

from statistics import median
from typing import Any

import numpy as np
from harness import alternate, arguments, check, table
from numpy.typing import NDArray

from apps.config import Scalar
from problems.data.formats.bundled import PL_SAMPLES, synthetic_pl

Vector = NDArray[np.float32]
COHORT, STEPS, BATCH = 5, 5, 5
STEP = 1e-3
LIMIT = 2.0


class PlainLoop:
    """Frameworks 1 to 3 as in the paper, one client after another, with the estimators minibatch and storm."""

    def __init__(self, clients: int, storm: bool) -> None:
        data = synthetic_pl(0, clients).reshape(clients, PL_SAMPLES, 3, -1)
        self.a, self.b, self.c = (np.ascontiguousarray(data[:, :, k]) for k in range(3))  # (clients, n, p)
        self.x = self.y = np.zeros(data.shape[3], dtype=np.float32)
        self.previous, self.estimate = (self.x, self.y), (self.x, self.y)
        self.storm, self.t = storm, 0
        self.rng = np.random.default_rng(0)

    def gradient(self, client: int, x: Vector, y: Vector, rows: Any = slice(None)) -> tuple[Vector, Vector]:
        """Return the (p,) and (p,) gradients, as means over a client's samples."""
        a, b, c = self.a[client][rows], self.b[client][rows], self.c[client][rows]
        bumps = np.mean((x - a) * np.exp(-((x - a) ** 2) / 2), axis=0)
        primal = bumps + np.mean(b * np.sum(b * (y - c), axis=1, keepdims=True), axis=0)
        dual = np.mean(b * np.sum(b * (x - a), axis=1, keepdims=True), axis=0) - np.mean(y - c, axis=0)
        return primal, dual

    def clients(self) -> NDArray[np.int64]:
        """Draw the clients of a phase."""
        return self.rng.choice(len(self.a), COHORT, replace=False)

    def mean_gradient(self, clients: NDArray[np.int64], x: Vector, y: Vector) -> tuple[Vector, Vector]:
        """Return the mean gradient over some clients."""
        found = [self.gradient(client, x, y) for client in clients]
        return np.mean([primal for primal, _ in found], axis=0), np.mean([dual for _, dual in found], axis=0)

    def collect(self) -> tuple[Vector, Vector]:
        """Compute the gradient phase."""
        clients = self.clients()
        u, v = self.mean_gradient(clients, self.x, self.y)
        if not self.storm or self.t == 0:
            return u, v
        weight = np.float32(1 - min(1.0, (self.t + 1) ** (-2 / 3)))
        u_before, v_before = self.mean_gradient(clients, *self.previous)
        return weight * (self.estimate[0] - u_before) + u, weight * (self.estimate[1] - v_before) + v

    def round(self) -> None:
        """Compute a round of both phases."""
        u, v = self.estimate = self.collect()
        step = np.float32(STEP / (self.t + 1) ** (1 / 3 if self.storm else 0))
        points = []
        for client in self.clients():
            order = self.rng.permutation(PL_SAMPLES)
            x, y = self.x, self.y
            for k in range(STEPS):
                rows = order[k * BATCH : (k + 1) * BATCH]
                here, there = self.gradient(client, x, y, rows), self.gradient(client, self.x, self.y, rows)
                x, y = x - step * (here[0] - there[0] + u), y + step * (here[1] - there[1] + v)
            points.append((x, y))
        self.previous = (self.x, self.y)
        self.x, self.y = np.mean([x for x, _ in points], axis=0), np.mean([y for _, y in points], axis=0)
        self.t += 1


def main() -> None:
    options = arguments(__doc__ or "").parse_args()
    clients, rounds = (50, 60) if options.smoke else (500, 1000)
    rows, failures = [], []
    print(f"data: synthetic-pl, {clients} clients")
    for estimator in ("mb", "storm"):
        flat: dict[str, Scalar] = {
            "strategy": f"fedsgda-{estimator}",
            "dataset": "synthetic-pl",
            "num-server-rounds": rounds,
            "local-steps": STEPS,
            "batch-size": BATCH,
            "fraction-train": COHORT / clients,
            "fedsgda.primal-step": STEP,
            "fedsgda.dual-step": STEP,
            "evaluate-every": 10**6,
            "checkpoint-every": 0,
            "device": "cpu",
        }
        measured = alternate(flat, clients, PlainLoop(clients, estimator == "storm").round, clock=options.clock)
        ours, loop = median(measured.whole), median(measured.rival)
        rows.append([estimator, f"{1000 * loop:.2f}", f"{1000 * ours:.2f}", f"{ours / loop:.2f}", f"{LIMIT:.2f}"])
        if ours > LIMIT * loop:
            failures.append(f"{estimator}: {ours / loop:.2f} times the loop's time, the limit is {LIMIT}")
    print(f"S = {COHORT}, K = {STEPS}: ms a round")
    table(["estimator", "loop", "engine", "ratio", "limit"], rows)
    check(failures, wanted=not options.no_check)


if __name__ == "__main__":
    main()
