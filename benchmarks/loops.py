"""Every horizontal algorithm that has a hand-written PyTorch loop, as a federation in this process, against that loop.

Both train on the same sites with equal cohorts, local steps and batches; the loops are in `by_hand`. A round of the
federation, with all that happens between two exchanges, must reach 0.75 of its loop's speed.

    python benchmarks/loops.py [--smoke] [--data-dir DIR] [--no-check] [--only fedx2]
"""

from __future__ import annotations

from statistics import median

from by_hand import LOOPS, Plan, mlp
from harness import PIXELS, alternate, arguments, check, config, data_file, table, tensors

from apps.registry import ALGORITHMS

HORIZONTAL = [name for name, row in ALGORITHMS.items() if not row.strategy.vertical]
TIMED = [name for name in HORIZONTAL if name in LOOPS]
LIMIT = 0.75
ROWS = 50
BATCH = 10


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--only", choices=HORIZONTAL, help="one algorithm")
    options = parser.parse_args()
    clients, cohort, rounds = (20, 4, 4) if options.smoke else (1000, 50, 30)
    rows, failures = [], []
    with data_file(options.data_dir, clients * ROWS) as path:
        sites = tensors(config(path), clients)
        for name in [options.only] if options.only else TIMED:
            if name not in LOOPS:
                raise SystemExit(f"{name} has no hand-written loop in benchmarks/by_hand.py")
            whole = ALGORITHMS[name].traits.needs_all_clients
            asked = clients if whole else cohort
            plan = Plan(cohort=asked, steps=5, batch=BATCH)
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
            measured = alternate(flat, clients, LOOPS[name](sites, plan, mlp(PIXELS)).round, clock=options.clock)
            updates = asked * plan.steps
            rows.append(
                [
                    name,
                    f"{updates / median(measured.rival):.0f}",
                    f"{updates / median(measured.whole):.0f}",
                    f"{measured.ratio:.2f}",
                ]
            )
            if measured.ratio < LIMIT:
                failures.append(f"{name}: {measured.ratio:.2f} of its loop's speed, at least {LIMIT} is wanted")
    print(f"{clients:,} clients, {cohort} a round, 5 steps of batch {BATCH}; updates a {options.clock} second")
    table(["algorithm", "by hand", "federation", f"ratio (>= {LIMIT})"], rows)
    check(failures, wanted=not options.no_check)


if __name__ == "__main__":
    main()
