"""The cost of a message in addition to its arithmetic: records, payload, grid, client, and the server's reading.

The benchmark times local SGD with one step of one sample in the in-process engine, and subtracts the time of the same
step in a plain loop (`bare_loop.BareLoop`). Rounds of both alternate in one run, and medians are compared. There are
two sizes: about 50,000 float32 parameters with 50 messages a round (limit 0.25 ms a message), and 100 parameters with 5
of 500 clients a round (limit 0.2 ms). The limits apply to the whole round, including its line in metrics.jsonl, divided
by the number of messages. The benchmark also prints the part inside the grid.

    python benchmarks/message.py [--smoke] [--no-check]
"""

from __future__ import annotations

from collections.abc import Callable
from statistics import median

from bare_loop import BareLoop, Plan, linear, mlp
from harness import PIXELS, alternate, arguments, check, config, data_file, table, tensors
from torch import nn

ROWS = 20
CASES: list[tuple[str, Callable[[int], nn.Module], int, int, int, float]] = [
    # model, the same by hand, features, clients, messages a round, limit in ms
    ("mlp", mlp, PIXELS, 200, 50, 0.25),
    ("linear", linear, 99, 500, 5, 0.2),
]


def main() -> None:
    options = arguments(__doc__ or "").parse_args()
    rows, failures = [], []
    for name, build, features, clients, messages, limit in CASES:
        rounds = 8 if options.smoke else 60 if messages >= 50 else 400
        clients = max(clients // 5, messages) if options.smoke else clients
        plan = Plan(cohort=messages, steps=1, batch=1)
        with data_file("", clients * ROWS, features) as path:
            flat = config(
                path,
                strategy="local-sgd",
                model=name,
                num_server_rounds=rounds,
                fraction_train=messages / clients,
                local_steps=1,
                batch_size=1,
            )
            loop = BareLoop(tensors(flat, clients), plan, build(features))
            measured = alternate(flat, clients, loop.round, clock=options.clock)
        whole, grid = (1000 * measured.extra(messages, part) for part in ("whole", "grid"))
        parameters = sum(weight.numel() for weight in loop.weights)
        rows.append(
            [
                name,
                f"{parameters:,}",
                f"{messages} of {clients}",
                f"{1000 * median(measured.rival) / messages:.3f}",
                f"{grid:.3f}",
                f"{whole:.3f}",
                f"{limit:.3f}",
            ]
        )
        if whole > limit:
            failures.append(f"{name}: {whole:.3f} ms a message, the limit is {limit} ms")
    print("ms a message")
    table(["model", "parameters", "messages", "loop", "grid - loop", "round - loop", "limit"], rows)
    check(failures, wanted=not options.no_check)


if __name__ == "__main__":
    main()
