"""Stacked cohorts: a round of many clients trained as one, against the same clients one after another.

Every second round of a run is stacked (``--stack``), and its time is compared with that of the round before it; medians
are taken. A round is everything from one train exchange to the next: messages, clients, aggregation and records.

    python benchmarks/stacked.py [--smoke] [--no-check] [--only fedx1]
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from statistics import median
from typing import Any

import torch
from flwr.app import Context, Message
from flwr.serverapp import Grid, ServerApp
from harness import CLOCKS, PIXELS, TRAIN_MESSAGE, arguments, check, config, data_file, quiet, table

from apps.client_app import app as client_app
from apps.config import Scalar
from apps.registry import ALGORITHMS
from apps.server_app import app as server_app
from payloads.wire import CONFIG, PHASE
from simulations.engines.in_process import run_in_process
from simulations.engines.stacked.messages import Stacker

HORIZONTAL = [name for name, row in ALGORITHMS.items() if not row.strategy.vertical]
# at least so many times the speed of one client after another
LIMITS = {
    "linear": dict.fromkeys(("local-sgd", "scaffold", "composite"), 20.0) | dict.fromkeys(("fedx1", "fedx2"), 8.0)
}
LIMITS["mlp"] = {"local-scgdam": 2.0}
ROWS, STEPS, BATCH = 60, 32, 20


def measure(flat: dict[str, Scalar], clients: int, clock: str) -> tuple[float, float]:
    """The median seconds of a round, alone and stacked."""
    torch.set_num_threads(1)
    now, stacker = CLOCKS[clock], Stacker(clients)
    seconds: dict[bool, list[float]] = {False: [], True: []}
    timed = ServerApp()

    @timed.main()
    def main(grid: Grid, context: Context) -> None:
        send, state = grid.send_and_receive, {"since": 0.0, "stacked": False, "rounds": 0}

        def alternating(messages: Any, *, timeout: float | None = None) -> Sequence[Message]:
            messages = list(messages)
            own = messages and messages[0].metadata.message_type == TRAIN_MESSAGE
            if own and PHASE not in messages[0].content.config_records[CONFIG]:
                if state["rounds"] > 2:  # the first of each kind draws up caches
                    seconds[bool(state["stacked"])].append(now() - state["since"])
                state["rounds"] += 1
                state["stacked"] = not state["stacked"]
                grid._together = stacker if state["stacked"] else None  # type: ignore[attr-defined]
                state["since"] = now()
            return list(send(messages, timeout=timeout))

        grid.send_and_receive = alternating  # type: ignore[method-assign]
        server_app(grid, context)

    with quiet(), tempfile.TemporaryDirectory() as folder:
        run_in_process(timed, client_app, clients, {**flat, "output-dir": folder, "run-name": "run"})
    return median(seconds[False]), median(seconds[True])


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--only", choices=HORIZONTAL, help="one algorithm")
    options = parser.parse_args()
    rows, failures = [], []
    steps, rounds = (4, 6) if options.smoke else (STEPS, 14)
    for model, features, clients in (("linear", 60, 500), ("mlp", PIXELS, 50)):
        clients = clients // 10 if options.smoke else clients
        with data_file("", clients * ROWS, features) as path:
            for name in [options.only] if options.only else HORIZONTAL:
                keys: dict[str, Scalar] = {"strategy": name, "model": model, "num-server-rounds": rounds}
                flat = config(path, local_steps=steps, batch_size=BATCH, torch_threads=1) | keys
                alone, stacked = measure(flat, clients, options.clock)
                ratio, limit = alone / stacked, LIMITS[model].get(name, 1.0)
                times = f"{1000 * alone:.0f}", f"{1000 * stacked:.0f}"
                rows.append([f"{name}, {model}", f"{clients}", *times, f"{ratio:.1f}", f"{limit:.0f}"])
                if ratio < limit:
                    failures.append(f"{name}, {model}: {ratio:.1f}, at least {limit:.0f} is wanted")
    print(f"milliseconds ({options.clock}) a round of {steps} steps")
    table(["algorithm, model", "clients", "alone", "stacked", "ratio", "limit"], rows)
    check(failures, wanted=not options.no_check)


if __name__ == "__main__":
    main()
