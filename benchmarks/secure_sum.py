"""The cost of secure sums: rounds with and without them, with 16 clients and 50,000 weights, in one process.

Runs with and without secure sums alternate. The benchmark compares the medians of the rounds' CPU time, and the bytes
of the last round.

    python benchmarks/secure_sum.py [--smoke] [--no-check] [--only scaffold]
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from statistics import median

from harness import CLOCKS, PIXELS, arguments, check, config, data_file, quiet, table

from apps.client_app import app as client_app
from apps.config import Scalar
from apps.server_app import app as server_app
from simulations.engines.in_process import run_in_process

CLIENTS, ROWS, STEPS = 16, 100, 32
STRATEGIES = ("local-sgd", "scaffold", "local-scgdam", "fedsgda-storm")
# at most so many times the plain round's time, and its bytes
TIME, BYTES = 1.7, 1.3


def measure(flat: dict[str, Scalar], clock: str) -> tuple[float, int]:
    """Return the seconds of a round, which include joining and evaluation, and the bytes of the last round."""
    with tempfile.TemporaryDirectory() as folder, quiet():
        begun = CLOCKS[clock]()
        run_in_process(server_app, client_app, CLIENTS, {**flat, "output-dir": folder, "run-name": "run"})
        seconds = CLOCKS[clock]() - begun
        last = json.loads((Path(folder) / "run" / "metrics.jsonl").read_text("utf-8").splitlines()[-1])
    return seconds / int(flat["num-server-rounds"]), last["bytes_up"] + last["bytes_down"]


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--only", choices=STRATEGIES, help="the only strategy to measure")
    options = parser.parse_args()
    rows, failures = [], []
    repeats, rounds = (1, 2) if options.smoke else (5, 20)
    with data_file("", CLIENTS * ROWS, PIXELS) as path:
        for name in [options.only] if options.only else STRATEGIES:
            keys = {"strategy": name, "model": "mlp", "num-server-rounds": rounds, "pictures": False}
            flat = config(path, local_steps=STEPS, batch_size=32, torch_threads=1) | keys | {"evaluate-every": rounds}
            found: dict[bool, list[tuple[float, int]]] = {False: [], True: []}
            for secure in [False, True] * repeats:
                found[secure].append(measure({**flat, "privacy.secure-sum": secure}, options.clock))
            plain, masked = (median(seconds for seconds, _ in found[secure]) for secure in (False, True))
            ratio, more = masked / plain, found[True][0][1] / found[False][0][1]
            rows.append([name, f"{1000 * plain:.0f}", f"{1000 * masked:.0f}", f"{ratio:.2f}", f"{more:.3f}"])
            if ratio > TIME or more > BYTES:
                failures.append(f"{name}: {ratio:.2f} times the time and {more:.3f} times the bytes")
    print(f"milliseconds ({options.clock}) a round of {CLIENTS} clients, {STEPS} steps, 50,890 weights")
    table(["strategy", "plain", "secure sum", "ratio", "bytes"], rows)
    check(failures, wanted=not options.no_check)


if __name__ == "__main__":
    main()
