"""Speed of each horizontal algorithm in the in-process engine, relative to a plain loop of local SGD.

The plain loop (`bare_loop.BareLoop`) trains on the same sites, with the same number of clients, local steps and batch
size. Rounds of the engine and of the loop alternate. A round is everything between two train exchanges. The ratios of
algorithms differ, since their steps differ: a pairwise step scores two batches, and a step of FedSGDA takes two
gradients. Compare a ratio only with the same algorithm's ratio before a change. There is no limit.

    python benchmarks/algorithms.py [--smoke] [--data-dir DIR] [--only fedx2]
"""

from __future__ import annotations

from statistics import median

from bare_loop import BareLoop, Plan, mlp
from harness import PIXELS, alternate, arguments, config, data_file, table, tensors

from apps.registry import ALGORITHMS

# algorithms of any network
HORIZONTAL = [name for name, row in ALGORITHMS.items() if row.strategy.shares_model and not row.traits.models]
ROWS = 50
BATCH = 10


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--only", choices=HORIZONTAL, help="the only algorithm to measure")
    options = parser.parse_args()
    clients, cohort, rounds = (20, 4, 4) if options.smoke else (1000, 50, 30)
    rows = []
    with data_file(options.data_dir, clients * ROWS) as path:
        sites = tensors(config(path), clients)
        for name in [options.only] if options.only else HORIZONTAL:
            whole = ALGORITHMS[name].traits.needs_all_clients
            active = clients if whole else cohort
            plan = Plan(cohort=active, steps=5, batch=BATCH)
            flat = config(
                path,
                strategy=name,
                model="mlp",
                num_server_rounds=rounds,
                fraction_train=1.0 if whole else cohort / clients,
                local_steps=plan.steps,
                batch_size=BATCH,
                fedx__positive_batch_size=BATCH,
                fedx__negative_batch_size=BATCH,
            )
            measured = alternate(flat, clients, BareLoop(sites, plan, mlp(PIXELS)).round, clock=options.clock)
            updates = active * plan.steps
            rows.append(
                [
                    name,
                    f"{updates / median(measured.rival):.0f}",
                    f"{updates / median(measured.whole):.0f}",
                    f"{measured.ratio:.2f}",
                ]
            )
    print(f"{clients:,} clients, {cohort} a round, 5 steps of batch {BATCH}; updates a {options.clock} second")
    table(["algorithm", "bare loop", "federation", "ratio"], rows)


if __name__ == "__main__":
    main()
