"""Writes the table of controls in docs/benchmark.md, from the rows of `reproduce benchmarks/control_pools.toml`.

    PYTHONPATH=. python benchmarks/control_tables.py [RUNS_CSV ...]

Each RUNS_CSV is the runs.csv of a reproduction on this machine. Its rows are copied to docs/figures/control-pools.csv.
FedX1 (unbounded scores) and FedX2 (the sigmoid of scores) are the benchmark's, in docs/figures/benchmark/: the same
tasks, grid and seeds.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path

from which_strategy import END, FOLDER, METRICS, find_machine, read, replace_part

from apps.run_directory.versions import versions
from simulations.experiments.experiment import find_experiment
from simulations.results.compare import csv_text
from simulations.results.paired import LEAST_SEEDS, Difference, adjust, difference

EXPERIMENT = find_experiment(str(Path(__file__).with_name("control_pools.toml")))
ROWS = FOLDER.with_name("control-pools.csv")
BEGIN = "<!-- benchmarks/control_tables.py writes from here -->\n"
KEPT = ("method", "task", "seed", "learning-rate", "clients", *METRICS, *versions(), "machine")
# each control, and the method to which it is compared
PAIRS = {
    "FedX1, uniform": "FedX1",
    "FedX1, permuted": "FedX1",
    "FedX1, sigmoid, uniform": "FedX1, sigmoid",
    "FedX1, sigmoid, permuted": "FedX1, sigmoid",
    "FedX2, uniform": "FedX2",
    "FedX2, permuted": "FedX2",
    "FedX1, sigmoid": "FedX1",
}
Ends = Mapping[tuple[str, str], Mapping[int, float]]  # the last deciding metric by task and method, then by seed


def take(path: Path, file: Path) -> None:
    """Copy a reproduction's rows into a file. Rows of other methods and tasks stay."""
    machine = find_machine()
    fresh = [{**{key: row[key] for key in KEPT if key in row}, "machine": machine} for row in read(path)]
    made = {(row["task"], row["method"]) for row in fresh}
    kept = [row for row in read(file) if (row["task"], row["method"]) not in made] if file.exists() else []
    tasks, methods = list_tasks(), [run.name for run in EXPERIMENT.runs]
    rows = sorted([*kept, *fresh], key=lambda row: (tasks.index(row["task"]), methods.index(row["method"])))
    file.write_text(csv_text(rows), "utf-8")


def list_tasks() -> list[str]:
    return [str(case.at["task"]) for case in EXPERIMENT.axes["task"]]


def read_ends(files: Iterable[Path]) -> Ends:
    """Read the values of the metric by which each task's steps are chosen."""
    assert EXPERIMENT.tune is not None
    ends: dict[tuple[str, str], dict[int, float]] = defaultdict(dict)
    for row in (row for file in files for row in read(file)):
        metric = EXPERIMENT.tune.metric_of({"task": row["task"]})
        ends[row["task"], row["method"]][int(row["seed"])] = float(row[metric])
    return ends


def compare(ends: Ends) -> dict[tuple[str, str], Difference]:
    """Return by task and control the difference to its method, adjusted for all differences of the table."""
    gaps = {}
    for task in list_tasks():
        for control, method in PAIRS.items():
            ours, theirs = ends.get((task, control), {}), ends.get((task, method), {})
            common = {seed: theirs[seed] for seed in ours if seed in theirs}
            if len(common) == len(ours) >= LEAST_SEEDS:
                gaps[task, control] = difference(ours, common)
    return {key: gap for key, gap in zip(gaps, adjust([*gaps.values()]), strict=True) if gap is not None}


def write(gaps: Mapping[tuple[str, str], Difference]) -> str:
    """Return the table: a column for each measured control, and a row for each task and for the numbers of verdicts."""
    controls = [control for control in PAIRS if any(own == control for _, own in gaps)]
    table = [["task", *(f"{control} - {PAIRS[control]}" for control in controls)], ["---"] * (len(controls) + 1)]
    table += [[task, *(_cell(gaps.get((task, control))) for control in controls)] for task in list_tasks()]
    for text, sign in (("ahead", 1), ("within the noise", 0), ("behind", -1)):
        signs = {control: [gap.sign for (_, own), gap in gaps.items() if own == control] for control in controls}
        table.append([f"tasks {text}", *(str(signs[control].count(sign)) for control in controls)])
    return "".join(f"| {' | '.join(row)} |\n" for row in table)


def _cell(gap: Difference | None) -> str:
    if gap is None:
        return "-"
    return f"{gap.mean:+.4f}" if not gap.sign else f"**{gap.mean:+.4f}**"


def main() -> None:
    for path in sys.argv[1:]:
        take(Path(path), ROWS)
    replace_part(BEGIN, write(compare(read_ends([ROWS, *FOLDER.iterdir()]))) + END)


if __name__ == "__main__":
    main()
