"""Speed of ``--stack``: a round of many clients in one batched computation, relative to the same clients one by one.

Every second round of a run is stacked, and its time is compared with the previous round's. Medians are taken. A round
is everything from one train exchange to the next: messages, clients, aggregation and records.

    python benchmarks/stacked.py [--smoke] [--no-check] [--only fedx1] [--device cuda --clock wall]
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Any

from flwr.app import Context, Message
from harness import PIXELS, alternate, arguments, check, config, data_file, table

from apps.config import Scalar
from apps.registry import ALGORITHMS
from simulations.engines.stacked.messages import Stacker

# algorithms of any network
HORIZONTAL = [name for name, row in ALGORITHMS.items() if row.strategy.shares_model and not row.traits.models]
# at least so many times the speed of one client after another
LIMITS = {
    "linear": dict.fromkeys(("local-sgd", "scaffold", "composite"), 20.0) | dict.fromkeys(("fedx1", "fedx2"), 8.0),
    "mlp": {"local-scgdam": 2.0},
}
ROWS, STEPS, BATCH = 60, 32, 20


class Switch(Stacker):
    """A stacker that stacks the clients of every second round."""

    on = False

    def flip(self) -> None:
        self.on = not self.on

    def __call__(self, messages: Sequence[Message], contexts: Sequence[Context | None]) -> Any:
        return super().__call__(messages, contexts) if self.on else [None] * len(messages)


def measure(flat: dict[str, Scalar], clients: int, clock: str) -> tuple[float, float]:
    """Return the median seconds of a round, without and with stacks."""
    switch = Switch(clients)
    whole = alternate(flat, clients, switch.flip, clock=clock, together=switch).whole
    return median(whole[1::2]), median(whole[::2])


def main() -> None:
    parser = arguments(__doc__ or "", gpu=True)
    parser.add_argument("--only", choices=HORIZONTAL, help="the only algorithm to measure")
    options = parser.parse_args()
    rows, failures = [], []
    steps, rounds = (4, 6) if options.smoke else (STEPS, 14)
    for model, features, clients in (("linear", 60, 500), ("mlp", PIXELS, 50)):
        clients = clients // 10 if options.smoke else clients
        with data_file("", clients * ROWS, features) as path:
            for name in [options.only] if options.only else HORIZONTAL:
                keys: dict[str, Scalar] = {"strategy": name, "model": model, "num-server-rounds": rounds}
                flat = config(path, local_steps=steps, batch_size=BATCH, torch_threads=1, device=options.device) | keys
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
