"""Two Ray workers against one process: the seconds of a round, and the memory of runs with many clients.

Runs on Ray and runs in this process alternate, five times each. The figure of a run is the median of its rounds. The
single process has one thread, like each worker. Memory is measured in a separate run: the proportional set size of this
process and of all its descendants, which include Ray's own processes.

    python benchmarks/cluster.py [--smoke] [--no-check] [--only table3-cnn] [--workers 2]
"""

from __future__ import annotations

import os
import re
import tempfile
import threading
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from harness import alone, arguments, check, config, data_file, quiet, seconds_a_round, table

from apps.config import Scalar
from simulations.arguments import Cluster, Stack
from simulations.engines.launch import run_federation

REPEATS = 5
SAMPLE_SECONDS = 0.2
SHAPES = {"table3-cnn": (1, 28, 28), "resnet20": (3, 32, 32), "mlp": (784,), "linear": (50,)}


@dataclass(frozen=True)
class Case:
    """A workload and its limits: either a speed relative to one process, or seconds of a round and GiB in total."""

    name: str
    model: str
    clients: int
    cohort: int
    rows: int
    steps: int
    batch: int
    stack: Stack
    rounds: int
    speed: float = 0.0
    seconds: float = 0.0
    gib: float = 0.0


CASES = [
    Case("table3-cnn", "table3-cnn", 16, 16, 64, 4, 32, 1, 14, speed=1.7),
    Case("resnet20", "resnet20", 16, 16, 64, 2, 32, 1, 5, speed=1.7),
    Case("mlp", "mlp", 1000, 50, 50, 5, 10, 50, 30),
    Case("mlp, 400 steps", "mlp", 1000, 50, 50, 400, 10, 50, 6, speed=1.3),
    Case("linear, 100,000 clients", "linear", 100_000, 1000, 20, 5, 10, 1000, 8, seconds=0.6, gib=2.5),
]
SMOKE = [
    Case("table3-cnn", "table3-cnn", 2, 2, 16, 1, 8, 1, 3),
    Case("linear, 100,000 clients", "linear", 200, 20, 20, 5, 10, 20, 3),
]


def measure(case: Case, path: str, cluster: Cluster | None) -> float:
    """Return the seconds of a round."""
    flat: dict[str, Scalar] = config(
        path,
        strategy="local-sgd",
        model=case.model,
        num_server_rounds=case.rounds,
        fraction_train=case.cohort / case.clients,
        local_steps=case.steps,
        batch_size=case.batch,
        torch_threads=1,
        pictures=False,
    )
    with quiet(), tempfile.TemporaryDirectory() as folder:
        run_federation(
            case.clients, {**flat, "output-dir": folder, "run-name": "run"}, stack=case.stack, cluster=cluster
        )
        return seconds_a_round(Path(folder) / "run")


def peak_memory(case: Case, path: str, cluster: Cluster) -> float:
    """Return the peak GiB of a run, over this process and its descendants.

    This process must have computed nothing before.
    """
    ended, peaks = threading.Event(), [0.0]

    def watch() -> None:
        while not ended.wait(SAMPLE_SECONDS):
            peaks.append(sum(map(proportional_bytes, family())) / 2**30)

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        measure(case, path, cluster)
    finally:
        ended.set()
        watcher.join()
    return max(peaks)


def family() -> list[int]:
    """Return the ids of this process and of its descendants."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):  # it has ended
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                children.setdefault(parent, []).append(int(entry.name))
    found = [os.getpid()]
    for process in found:
        found += children.get(process, [])
    return found


def proportional_bytes(process: int) -> int:
    with suppress(OSError):
        rollup = Path(f"/proc/{process}/smaps_rollup").read_text()
        if match := re.search(r"^Pss:\s+(\d+) kB", rollup, re.MULTILINE):
            return int(match[1]) * 1024
    return 0


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--only", choices=[case.name for case in CASES], help="the only workload to measure")
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    cases = [case for case in (SMOKE if options.smoke else CASES) if options.only in (None, case.name)]
    rows, failures, cluster = [], [], Cluster(workers=options.workers)
    for case in cases:
        with data_file("", case.clients * case.rows, *SHAPES[case.model]) as path:
            single: list[float] = []
            spread: list[float] = []
            for _ in range(1 if options.smoke else REPEATS):
                single.append(measure(case, path, None))
                spread.append(measure(case, path, cluster))
            # in a separate run, since measuring memory takes time
            gib = alone(peak_memory, case, path, cluster) if case.gib or options.smoke else 0.0
        speed, seconds = median(a / s for a, s in zip(single, spread, strict=True)), median(spread)
        rows.append([case.name, f"{median(single):.3f}", f"{seconds:.3f}", f"{speed:.2f}", f"{gib:.2f}" if gib else ""])
        for got, limit, enough, what in (
            (speed, case.speed, speed >= case.speed, "times one process, at least"),
            (seconds, case.seconds, seconds <= case.seconds, "s a round, at most"),
            (gib, case.gib, gib <= case.gib, "GiB, at most"),
        ):
            if limit and not enough:
                failures.append(f"{case.name}: {got:.2f} {what} {limit} is wanted")
    print(f"{options.workers} workers, local-sgd, wall time")
    table(["workload", "one process: s a round", "workers", "speed", "GiB in all"], rows)
    check(failures, wanted=not options.no_check)


if __name__ == "__main__":
    main()
