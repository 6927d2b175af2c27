"""A check of the default hyper-parameters: runs of each strategy whose clients have rows, on very different data sets.

    python benchmarks/defaults.py [--out FOLDER] [--data-dir DIR] [--only STRATEGY ...] [--steps] [--seeds S ...]
    [--rounds R] [--stack N] [--smoke]

Each run has 10 rounds (or --rounds) and uses the strategy's defaults. The data sets are all bundled data sets, the data
sets in or below --data-dir, and an unscaled table with 20 log-normal columns (3,000 rows, 20 % positive). A run is
healthy if no site is missing in any round and the run does not collapse: its last AUC is at least .6, and at most .05
below its best AUC.

Without --steps: models linear and mlp, 3 and 8 clients, seeds 0 to 2. All runs must be healthy. With --steps: 4
clients, seeds 0 and 1, with the default step size and with the strategy's own step sizes from .003 to 1. The mean AUC
of the default may be at most .02 below the mean AUC of the best step size.

--seeds replaces these seeds. --stack trains several clients in one computation, which is faster and changes results
only by rounding errors. FOLDER/runs.jsonl gets a line for each run, and runs with a line are not repeated. --smoke:
only the log-normal table, the model linear, 3 clients and one seed.
"""

from __future__ import annotations

import itertools
import json
import shutil
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
import pandas as pd
from harness import arguments, check, table

from apps.config import Scalar
from apps.registry import ALGORITHMS
from apps.server_app import RunFailedError
from problems.errors import InputError
from simulations.arguments import stack_of
from simulations.python.runs import run

HORIZONTAL = [name for name, row in ALGORITHMS.items() if row.strategy.shares_model]
BUNDLED, LOG_NORMAL = ["digits", "breast-cancer"], "log-normal"
FILES = ["uci-credit", "w8a", "heart-disease", "fashion-mnist"]
STEPS = [0.003, 0.01, 0.03, 0.1, 0.3, 1.0]
EVALUATIONS = 5
LOWEST, FALL, BEHIND = 0.6, 0.05, 0.02
WORST = 15
KEYS = ("dataset", "strategy", "model", "clients", "seed", "step")


def steps_of(strategy: str, step: float) -> dict[str, Scalar]:
    """Return the run-config keys that set a strategy's step size."""
    if strategy.startswith("fedsgda"):
        return {"fedsgda.primal-step": step, "fedsgda.dual-step": step}
    for name in ("sgdam", "scgdam"):
        if strategy == f"local-{name}":
            scale = 0.3  # eta; a step is gamma times eta
            return {f"{name}.eta": scale, f"{name}.gamma-x": step / scale, f"{name}.gamma-y": step / scale}
    return {"learning-rate": step}


def log_normal(path: Path) -> None:
    """Write a table whose columns have different units and heavy tails."""
    rng = np.random.default_rng(0)
    logs = rng.standard_normal((3000, 20))
    score = logs @ (rng.standard_normal(20) / 4) + 0.5 * rng.standard_normal(3000)
    columns = np.exp(1.5 * logs) * 10.0 ** rng.integers(-3, 6, 20)
    frame = pd.DataFrame(columns, columns=[f"x{number}" for number in range(20)])
    frame.assign(y=np.where(score > np.quantile(score, 0.8), "ill", "well")).to_csv(path, index=False)


def data_of(name: str, folder: Path, data_dir: str) -> dict[str, Scalar]:
    if name == LOG_NORMAL:
        table = folder / "log-normal.csv"
        if not table.exists():
            log_normal(table)
        return {"dataset": "csv", "data-dir": str(table), "label-column": "y", "positive-label": "ill"}
    return {"dataset": name, "data-dir": data_dir if name in FILES else ""}


def cells(options: Any, strategies: list[str]) -> Iterator[dict[str, Any]]:
    """Return the runs to compute, one dictionary for each run. ``step`` is None for the default step size."""
    sets = [*BUNDLED, LOG_NORMAL, *(FILES if options.data_dir else [])]
    models, clients, seeds = ["linear", "mlp"], [3, 8], [0, 1, 2]
    steps: list[float | None] = [None]
    if options.steps:
        clients, seeds, steps = [4], [0, 1], [None, *STEPS]
    seeds = options.seeds or seeds
    if options.smoke:
        sets, models, clients, seeds = [LOG_NORMAL], ["linear"], clients[:1], [0]
    for values in itertools.product(sets, strategies, models, clients, seeds, steps):
        yield dict(zip(KEYS, values, strict=True))


def play(cell: dict[str, Any], folder: Path, options: Any) -> dict[str, Any]:
    """Compute a run.

    Return its dictionary with the last and the best AUC, and the number of rounds with a missing site.
    """
    config: dict[str, Scalar] = {
        **data_of(cell["dataset"], folder, options.data_dir),
        "strategy": cell["strategy"],
        "model": cell["model"],
        "seed": cell["seed"],
        "num-server-rounds": options.rounds,
        "evaluate-every": options.rounds // EVALUATIONS,
        "checkpoint-every": 0,
        "pictures": False,
        **({} if cell["step"] is None else steps_of(cell["strategy"], cell["step"])),
    }
    out = folder / "run"
    shutil.rmtree(out, ignore_errors=True)
    try:
        record = run(config, out, cell["clients"], stack=options.stack, quiet=True)
    except (RunFailedError, InputError) as error:
        return {**cell, "auc": 0.0, "best": 0.0, "missing": options.rounds, "why": str(error).splitlines()[0][:200]}
    aucs = list(record.curve("auc").values())[1:]
    missing = sum(line.get("clients_answered", 0) < line.get("clients_asked", 0) for line in record.lines)
    return {**cell, "auc": aucs[-1], "best": max(aucs), "missing": missing, "why": ""}


def ill(found: dict[str, Any]) -> str:
    """Return the faults of a run; empty if it is healthy."""
    if found["why"]:
        return str(found["why"])
    if found["missing"]:
        return f"sites missing in {found['missing']} rounds"
    fallen = found["auc"] < max(LOWEST, found["best"] - FALL)
    return f"AUC {found['auc']:.3f}, at best {found['best']:.3f}" if fallen else ""


def named(cell: dict[str, Any], *keys: str) -> str:
    return " ".join(str(cell[key]) for key in keys)


def behind(results: list[dict[str, Any]]) -> list[tuple[float, str, str]]:
    """Return the gaps in mean AUC from the default to the best step size, the largest gap first.

    Returns:
        For each case the gap, the case, and the best step size.
    """
    aucs: dict[str, dict[float | None, list[float]]] = defaultdict(lambda: defaultdict(list))
    for one in results:
        aucs[named(one, "dataset", "strategy", "model")][one["step"]].append(one["auc"])
    found = []
    for cell, by_step in aucs.items():
        best = max((step for step in by_step if step is not None), key=lambda step: mean(by_step[step]))
        found.append((mean(by_step[best]) - mean(by_step[None]), cell, f"{mean(by_step[best]):.3f} at {best:g}"))
    return sorted(found, reverse=True)


def played(options: Any, folder: Path) -> list[dict[str, Any]]:
    """Return the results of all runs. Runs without a line in runs.jsonl are computed first."""
    folder.mkdir(parents=True, exist_ok=True)
    books = folder / "runs.jsonl"
    known = [json.loads(line) for line in books.read_text("utf-8").splitlines()] if books.exists() else []
    done = {named(each, *KEYS): each for each in known}
    results = []
    for cell in cells(options, options.only):
        found = done.get(named(cell, *KEYS))
        if found is None:
            found = play(cell, folder, options)
            with books.open("a", encoding="utf-8") as file:
                file.write(json.dumps(found) + "\n")
        results.append(found)
    return results


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--out", type=Path, help="folder of runs.jsonl; runs in this file are not repeated")
    parser.add_argument("--only", nargs="+", choices=HORIZONTAL, default=HORIZONTAL, help="strategies to run")
    parser.add_argument("--steps", action="store_true", help="compare the default step size with the best")
    parser.add_argument("--seeds", nargs="+", type=int, help="seeds to run")
    parser.add_argument("--rounds", type=int, default=10, help="rounds of each run, at least 5")
    parser.add_argument("--stack", type=stack_of, default=1, help="clients in one computation: auto or a number")
    options = parser.parse_args()
    print(f"data: synthetic, {', '.join(BUNDLED + FILES if options.data_dir else BUNDLED)}")
    with tempfile.TemporaryDirectory() as scratch:
        results = played(options, options.out or Path(scratch))
    if options.steps:
        worst = behind(results)
        rows = [[cell, f"{gap:.3f}", best] for gap, cell, best in worst[:WORST]]
        table(["cell", "default behind", "best step"], rows)
        failures = [f"{cell}: {gap:.3f} behind {best}" for gap, cell, best in worst if gap > BEHIND]
    else:
        rows = []
        for strategy in options.only:
            own = [found for found in results if found["strategy"] == strategy]
            rows.append([strategy, str(len(own)), str(sum(bool(ill(found)) for found in own))])
        table(["strategy", "runs", "ill"], rows)
        failures = [f"{named(found, *KEYS[:5])}: {ill(found)}" for found in results if ill(found)]
    print(f"{len(results)} runs")
    check(failures, wanted=not options.no_check)


if __name__ == "__main__":
    main()
