"""Speed of ``--stack``: a round of many clients in one batched computation, relative to the same clients one by one.

Every second round of a run is stacked, and its time is compared with the previous round's. Medians are taken. A round
is everything from one train exchange to the next: messages, clients, aggregation and records.

With JAX (the extra ``bench``) a second table compares stacked rounds with hand-written JAX, which gets the rows of its
batches and sends nothing (`jax_round`). Both alternate in one run, on one thread.

    python benchmarks/stacked.py [--smoke] [--no-check] [--only fedx1] [--device cuda --clock wall]
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from statistics import median
from typing import Any

import numpy as np
from flwr.app import Context, Message
from harness import PIXELS, alternate, arguments, check, config, data_file, table, tensors

from apps.config import Scalar, parse_run_config
from apps.registry import ALGORITHMS
from apps.sites import resources
from payloads.broadcast import Broadcast
from simulations.engines.stacked.messages import Stacker

# algorithms of any network
HORIZONTAL = [name for name, row in ALGORITHMS.items() if row.strategy.shares_model and not row.traits.models]
# at least so many times the speed of one client after another
LIMITS = {
    "linear": dict.fromkeys(("local-sgd", "scaffold", "composite"), 20.0) | dict.fromkeys(("fedx1", "fedx2"), 8.0),
    "mlp": {"local-scgdam": 2.0},
}
# at most so many times the time of JAX
JAX_LIMITS = {"linear": {"local-sgd": 1.3, "scaffold": 1.6, "composite": 1.6}, "mlp": {"local-sgd": 1.0}}
ROWS, STEPS, BATCH = 60, 32, 20


class Switch(Stacker):
    """A stacker that stacks the clients of every second round."""

    on = False

    def flip(self) -> None:
        self.on = not self.on

    def __call__(self, messages: Sequence[Message], contexts: Sequence[Context | None]) -> Any:
        return super().__call__(messages, contexts) if self.on else [None] * len(messages)

    def answer_cohort(self, cohort: Broadcast, contexts: Mapping[int, Context]) -> Any:
        return super().answer_cohort(cohort, contexts) if self.on else []


def measure(flat: dict[str, Scalar], clients: int, clock: str) -> tuple[float, float]:
    """Return the median seconds of a round, without and with stacks."""
    switch = Switch(clients)
    whole = alternate(flat, clients, switch.flip, clock=clock, together=switch).whole
    return median(whole[1::2]), median(whole[::2])


def race(flat: dict[str, Scalar], clients: int, features: int, clock: str) -> tuple[float, float, float]:
    """Return the median seconds of a stacked round and of a JAX round, and the median of their ratios."""
    from jax_round import JaxRounds

    sites = [(x.numpy().astype(np.float32), y.numpy()) for x, y in tensors(flat, clients)]
    begin = resources.new_model(parse_run_config(flat), (features,)).parameters.numpy().copy()
    rounds = alternate(flat, clients, JaxRounds(flat, sites, begin).round, clock=clock, together=Stacker(clients))
    return median(rounds.whole), median(rounds.rival), 1 / rounds.ratio


def main() -> None:
    parser = arguments(__doc__ or "", gpu=True)
    parser.add_argument("--only", choices=HORIZONTAL, help="the only algorithm to measure")
    options = parser.parse_args()
    os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1")
    rows, races, failures = [], [], []
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
                if name in JAX_LIMITS[model] and find_spec("jax") and options.device == "cpu":
                    own, rival, ratio = race(flat, clients, features, options.clock)
                    limit = JAX_LIMITS[model][name]
                    figures = f"{1000 * own:.0f}", f"{1000 * rival:.0f}", f"{ratio:.2f}", f"{limit}"
                    races.append([f"{name}, {model}, JAX", f"{clients}", *figures])
                    if ratio > limit:
                        failures.append(f"{name}, {model}: {ratio:.2f} times JAX, at most {limit} is wanted")
    print(f"milliseconds ({options.clock}) a round of {steps} steps")
    table(["algorithm, model", "clients", "alone", "stacked", "ratio", "limit"], rows)
    if races:
        table(["algorithm, model", "clients", "stacked", "JAX", "times JAX", "limit"], races)
    check(failures, wanted=not options.no_check)


if __name__ == "__main__":
    main()
