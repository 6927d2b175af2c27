"""Peak memory of federations with 100 and with 5,000 clients without state, of which equally many train in each round.

The memory may grow only by the data and a little bookkeeping. Each federation runs in a separate process, and another
process only reads its data. A client may cost twice its rows while they are read (afterwards its site shares the data
set's memory), and at most 8 KiB of bookkeeping.

A second part measures the seconds of a round and the peak memory with 500 clients a round out of 10,000 and of 100,000,
and with 10,000 out of 100,000, one by one and stacked.

    python benchmarks/memory.py [--smoke] [--no-check]
"""

from __future__ import annotations

import resource
import tempfile
from pathlib import Path

from harness import alone, arguments, check, config, data_file, quiet, seconds_a_round, table, tensors

from apps.client_app import app as client_app
from apps.config import Scalar
from apps.server_app import app as server_app
from simulations.engines.in_process import run_in_process
from simulations.engines.stacked.messages import make_stacker

BOOKKEEPING = 8 * 1024
COPIES = 2
ROWS, FEATURES = 20, 50
COHORT, ROUNDS = 10, 5
# of large federations: (clients, clients a round) -> the most seconds and GiB of a stacked run
SAMPLED_ROUNDS = 8
LARGE = {(10_000, 500): (0.15, 1.0), (100_000, 500): (0.3, 2.5), (100_000, 10_000): (1.0, 2.5)}


def flat_config(path: str, clients: int) -> dict[str, Scalar]:
    return config(
        path,
        strategy="local-sgd",
        model="linear",
        num_server_rounds=ROUNDS,
        fraction_train=COHORT / clients,
        local_steps=2,
        batch_size=10,
    )


def read(path: str, clients: int) -> int:
    """Return the peak bytes of reading the data and making all clients' tensors."""
    held = tensors(flat_config(path, clients), clients)
    assert len(held) == clients
    return peak()


def federate(path: str, clients: int) -> int:
    """Return the peak bytes of a whole federation."""
    run(flat_config(path, clients), clients)
    return peak()


def sample(path: str, clients: int, cohort: int, stack: int) -> tuple[float, float]:
    """Return the seconds of a round with a sample of many clients, and the peak GiB of the whole run."""
    more: dict[str, Scalar] = {
        "fraction-train": cohort / clients,
        "num-server-rounds": SAMPLED_ROUNDS,
        "local-steps": 5,
        "torch-threads": 1,
    }
    return run({**flat_config(path, clients), **more}, clients, stack), peak() / 2**30


def run(flat: dict[str, Scalar], clients: int, stack: int = 1) -> float:
    """Run a federation, and return the seconds of a round."""
    with quiet(), tempfile.TemporaryDirectory() as folder:
        places: dict[str, Scalar] = {"output-dir": folder, "run-name": "run"}
        together = make_stacker(stack, flat)
        run_in_process(server_app, client_app, clients, {**flat, **places}, together=together)
        return seconds_a_round(Path(folder) / "run")


def measure_large(smoke: bool) -> list[str]:
    """Print the seconds and memory of large federations, and return the exceeded limits."""
    rows, failures = [], []
    for (clients, cohort), limits in LARGE.items():
        clients, cohort = (clients // 50, cohort // 50) if smoke else (clients, cohort)
        with data_file("", clients * ROWS, FEATURES) as path:
            for stack in (1, cohort):
                seconds, gib = alone(sample, path, clients, cohort, stack)
                rows.append([f"{clients:,}", f"{cohort:,}", f"{stack}", f"{seconds:.3f}", f"{gib:.2f}"])
        failures += [
            f"{cohort:,} of {clients:,} clients, stacked: {got:.2f} {unit}, at most {limit} is wanted"
            for got, limit, unit in zip((seconds, gib), limits, ("s a round", "GiB"), strict=True)
            if got > limit
        ]
    print("a linear model, 5 steps")
    table(["clients", "a round", "stacked", "seconds a round", "peak GiB"], rows)
    return failures


def peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024  # Linux counts KiB


def main() -> None:
    options = arguments(__doc__ or "").parse_args()
    few, many = (100, 600) if options.smoke else (100, 5000)
    data = COPIES * ROWS * (FEATURES + 1) * 4
    peaks: dict[str, list[int]] = {"data alone": [], "federation": []}
    for clients in (few, many):
        with data_file("", clients * ROWS, FEATURES) as path:
            for name, job in (("data alone", read), ("federation", federate)):
                peaks[name].append(alone(job, path, clients))
    each = {name: (after - before) / (many - few) for name, (before, after) in peaks.items()}
    print(f"{COHORT} clients a round, {ROWS} rows of {FEATURES} float32 features a client; peak MiB")
    table(
        ["", f"{few:,} clients", f"{many:,} clients", "bytes an extra client"],
        [[name, *(f"{value / 2**20:.1f}" for value in values), f"{each[name]:,.0f}"] for name, values in peaks.items()],
    )
    beyond = each["federation"] - data
    print(f"beyond its rows, held {COPIES} times ({data:,} bytes): {beyond:,.0f} bytes (limit {BOOKKEEPING:,})")
    failures = [] if beyond <= BOOKKEEPING else [f"{beyond:,.0f} bytes a client, the limit is {BOOKKEEPING:,}"]
    check(failures + measure_large(options.smoke), wanted=not options.no_check)


if __name__ == "__main__":
    main()
