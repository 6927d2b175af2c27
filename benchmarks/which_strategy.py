"""Writes the tables and the figure of docs/benchmark.md, from the rows of `reproduce benchmark`.

    PYTHONPATH=. python benchmarks/which_strategy.py [RUNS_CSV ...]

Each RUNS_CSV is the runs.csv of a reproduction on this machine. Its rows are copied to docs/figures/benchmark/, into a
file for each task. Further columns are this machine, and intervals over test rows (see row_intervals.py). The tables
and the figure are then made from all files in this folder.
"""

from __future__ import annotations

import csv
import os
import platform
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from row_intervals import ROWS_HIGH, ROWS_LOW, add_intervals

from apps.run_directory.versions import versions
from simulations.experiments.experiment import Case, find_experiment
from simulations.experiments.lines import settings
from simulations.results.compare import csv_text
from simulations.results.paired import LEAST_SEEDS, Difference, adjust, difference

PAGE = Path(__file__).parents[1] / "docs" / "benchmark.md"
FOLDER = PAGE.parent / "figures" / "benchmark"
PICTURE = FOLDER.with_suffix(".svg")
BEGIN, END = "<!-- benchmarks/which_strategy.py writes from here -->\n", "<!-- to here -->\n"
BASE = "Local SGD"
PROFILE = "quick"
METRICS = {"auc": "AUC", "pauc_fpr30": "partial AUC", "average_precision": "average precision"}
AHEAD, NOISE, BEHIND = "ahead", "within the noise", "**behind**"
COLOURS = {AHEAD: "#8cc5e3", NOISE: "#ececec", BEHIND: "#f2a582"}
EXPERIMENT = find_experiment("benchmark")
STEPS = ("learning-rate", "sgdam.gamma-x", "scgdam.gamma-x", "fedsgda.primal-step")
METHODS = [run.name for run in EXPERIMENT.runs]
# the strategies of cross-entropy, and of pairs within each site: the references below the picture's line
REFERENCES = ("local-sgd", "local-sgdm", "local-sgdm-rl", "fedprox", "scaffold", "local-pair")


@dataclass(frozen=True)
class Task:
    """A case of the experiment with its runs, one row for each run."""

    case: Case
    rows: list[dict[str, str]]
    gaps: dict[str, Difference] = field(default_factory=dict)  # method -> the difference to `BASE`, once judged

    @property
    def name(self) -> str:
        return str(self.case.at["task"])

    @property
    def seeds(self) -> int:
        """Return the planned number of seeds."""
        return EXPERIMENT.seeds_of({"dataset": self.case.config["dataset"], **self.case.at}, PROFILE)

    @property
    def left_out(self) -> dict[str, str]:
        """Return the methods that the experiment leaves out of this task, with the reasons."""
        entries = {method: EXPERIMENT.find_left_out({"method": method, **self.case.at}) for method in METHODS}
        return {method: entry.reason for method, entry in entries.items() if entry is not None}

    @property
    def metrics(self) -> list[str]:
        """Return the metrics. The first metric chose the steps and decides the verdict."""
        decides = EXPERIMENT.tune.metric_of(self.case.at) if EXPERIMENT.tune else ""
        return sorted(METRICS, key=lambda metric: metric != decides)

    def ends(self, method: str) -> dict[int, float]:
        """Return by seed the last value of the deciding metric."""
        return {int(row["seed"]): float(row[self.metrics[0]]) for row in self.rows if row["method"] == method}

    def gap(self, method: str) -> Difference | None:
        """Return a method's difference from `BASE`. None: a seed of the method or of `BASE` has not finished."""
        ours, base = self.ends(method), self.ends(BASE)
        complete = ours.keys() == base.keys() and len(base) >= LEAST_SEEDS
        return difference(ours, base) if complete and method != BASE else None

    def median(self, method: str) -> float:
        """Return the median over seeds of a method's difference from `BASE`."""
        ours, base = self.ends(method), self.ends(BASE)
        return float(np.median([ours[seed] - base[seed] for seed in base]))

    def section(self) -> list[str]:
        """Return the task's description, and a row for each method, the best method first."""
        facts = {"clients": self.case.clients or EXPERIMENT.clients, **self.case.config}
        tuning = EXPERIMENT.tune.seeds_of(self.case.at) if EXPERIMENT.tune else 0
        seeds = max(len(self.ends(method)) for method in METHODS)
        rows = f"figures/{FOLDER.name}/{file_of(self.name)}"
        made = ", ".join(
            " and ".join(dict.fromkeys(words)) for words in zip(*map(_environment, self.rows), strict=True)
        )
        first, *others = (METRICS[metric] for metric in self.metrics)
        columns = ["method", "step", first, f"to {BASE}", "95 % interval", "over test rows", "median", "q", "verdict"]
        tried = [method for method in METHODS if self.ends(method)]
        ranked = sorted(tried, key=lambda method: -float(np.mean([*self.ends(method).values()])))
        return [
            f"### {self.name}\n",
            f"{', '.join(settings(facts))}; {tuning} tuning seeds, {seeds} seeds. [Rows]({rows}): {made}.\n",
            *_table([*columns, *others], [self._cells(method) for method in ranked]),
            *(f"\nLeft out: {reason}." for reason in self.left_out.values()),
        ]

    def _over_test_rows(self, method: str) -> str:
        """Return the mean over the seeds of the ends of the interval over test rows."""
        rows = [row for row in self.rows if row["method"] == method and row.get(ROWS_LOW)]
        ends = [f"{np.mean([float(row[key]) for row in rows]):+.4f}" for key in (ROWS_LOW, ROWS_HIGH) if rows]
        return " to ".join(ends) or "-"

    def _cells(self, method: str) -> list[str]:
        rows = [row for row in self.rows if row["method"] == method]
        first, *others = (_mean([float(row[metric]) for row in rows]) for metric in self.metrics)
        cells = ["", "", "", "", "", "" if method == BASE else f"{len(rows)} of {self.seeds} seeds finished"]
        if gap := self.gaps.get(method):
            interval = f"{gap.low:+.4f} to {gap.high:+.4f}"
            over_rows, median = self._over_test_rows(method), f"{self.median(method):+.4f}"
            cells = [f"{gap.mean:+.4f}", interval, over_rows, median, f"{gap.q:.2g}", verdict_of(gap)]
        return [method, _step(rows), first, *cells, *others]


def verdict_of(gap: Difference) -> str:
    """Return the verdict on a difference."""
    return gap.verdict(AHEAD, NOISE, BEHIND)


def _environment(row: Mapping[str, str]) -> tuple[str, str]:
    return ", ".join(f"{name} {row[name]}" for name in versions() if name in row), row["machine"]


def _step(rows: Sequence[Mapping[str, str]]) -> str:
    """Return the chosen step as text: eta gamma for methods with eta = 0.3."""
    chosen = ((key, row[key]) for row in rows for key in STEPS if row.get(key))
    return next((f"{float(value) * (0.3 if 'gamma' in key else 1):.2g}" for key, value in chosen), "-")


def _mean(values: Sequence[float]) -> str:
    return f"{np.mean(values):.4f} +- {np.std(values, ddof=1):.4f}" if len(values) > 1 else "-"


def file_of(task: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", task.lower()).strip("-") + ".csv"


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return [f"| {' | '.join(cells)} |" for cells in (columns, ["---"] * len(columns), *rows)]


def read(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def read_tasks(folder: Path) -> list[Task]:
    """Return the tasks that have a file, in the order of the experiment."""
    paths = {folder / file_of(str(case.at["task"])): case for case in EXPERIMENT.axes["task"]}
    tasks = [Task(case, read(path)) for path, case in paths.items() if path.is_file()]
    cells = [(task, method) for task in tasks for method in METHODS]
    for (task, method), gap in zip(cells, adjust([task.gap(method) for task, method in cells]), strict=True):
        if gap is not None:
            task.gaps[method] = gap
    return tasks


def find_machine() -> str:
    """Return the number of this machine's cores, and its processor."""
    cpu = re.search("model name\t: (.+)", Path("/proc/cpuinfo").read_text()) if sys.platform == "linux" else None
    return f"{os.cpu_count()} cores of {cpu[1] if cpu else platform.processor()}"


def take(path: Path, folder: Path) -> None:
    """Copy a reproduction's rows into the folder, a file for each task.

    Rows of methods that were not run again stay.
    """
    machine = find_machine()
    rows = add_intervals([{**row, "machine": machine} for row in read(path)], path.parent / "runs", EXPERIMENT, BASE)
    for task in dict.fromkeys(row["task"] for row in rows):
        fresh, file = [row for row in rows if row["task"] == task], folder / file_of(task)
        others = set(METHODS) - {row["method"] for row in fresh}
        kept = [row for row in read(file) if row["method"] in others] if file.exists() else []
        file.write_text(csv_text(sorted([*kept, *fresh], key=lambda row: METHODS.index(row["method"]))), "utf-8")


def write(tasks: Sequence[Task]) -> str:
    """Replace the text between two markers of the page."""
    rows = []
    for method in METHODS:
        judged = {task.name: task for task in tasks if method in task.gaps}
        counts = [str(sum(verdict_of(task.gaps[method]) == one for task in judged.values())) for one in COLOURS]
        medians = {name: task.median(method) for name, task in judged.items()}
        extremes = [end(medians, key=medians.__getitem__, default="") for end in (max, min)]
        gap_cells = [f"{medians[name]:+.4f} ({name})" if medians else "-" for name in extremes]
        rows += [[method, *counts, *gap_cells]] if method != BASE else []
    columns = ["method", "ahead", "within the noise", "behind", "best median", "worst median"]
    parts = [*_table(columns, rows), f"\n![{_caption(tasks)}](figures/{PICTURE.name})\n"]
    return "\n".join([*parts, *("\n".join(task.section()) + "\n" for task in tasks)])


def _caption(tasks: Sequence[Task]) -> str:
    verdicts = [verdict_of(gap) for task in tasks for gap in task.gaps.values()]
    counts = ", ".join(f"{verdicts.count(one)} {one.strip('*')}" for one in COLOURS)
    return f"The difference to {BASE} of each method in each task: {counts}"


def shorten(gap: Difference) -> str:
    """Return a mean difference for the picture, such as +.012."""
    return f"{gap.mean:+.3f}".replace("0.", ".")


def order(tasks: Sequence[Task]) -> tuple[list[Task], list[str], list[str]]:
    """Return the tasks from left to right, and the methods above and below the picture's line.

    Tasks come first in which many methods above the line are ahead, and then few are behind.
    """
    references = {run.name for run in EXPERIMENT.runs if run.config["strategy"] in REFERENCES}
    above, below = ([name for name in METHODS if (name in references) is side] for side in (False, True))

    def count(task: Task, verdict: str) -> int:
        return sum(verdict_of(gap) == verdict for method, gap in task.gaps.items() if method in above)

    ranked = sorted(tasks, key=lambda task: (-count(task, AHEAD), count(task, BEHIND)))
    return ranked, above, [name for name in below if name != BASE]


def draw(tasks: Sequence[Task], path: Path) -> None:
    """Draw a field for each method and task in the colour of its verdict, with references below a line.

    Significant differences are written in the field.
    """
    from matplotlib import rc_context
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch, Rectangle

    tasks, above, below = order(tasks)
    methods = [*above, *below]
    figure = Figure(figsize=(2.6 + 0.58 * len(tasks), 2.5 + 0.3 * len(methods)), layout="constrained")
    axes = figure.subplots()
    for x, task in enumerate(tasks):
        for y, method in enumerate(methods):
            gap = task.gaps.get(method)
            if gap is None or verdict_of(gap) != NOISE:
                colour, text = (COLOURS[verdict_of(gap)], shorten(gap)) if gap else ("white", "-")
                axes.add_patch(Rectangle((x - 0.5, y - 0.5), 1, 1, color=colour))
                axes.text(x, y, text, ha="center", va="center", fontsize=10)
    axes.axhline(len(above) - 0.5, color="black", linewidth=1.5)
    for middle, text in ((len(above) / 2, "for rankings"), (len(above) + len(below) / 2, "references")):
        axes.text(len(tasks) - 0.4, middle - 0.5, text, ha="left", va="center", rotation=270, fontsize=10)
    axes.set_facecolor(COLOURS[NOISE])
    decide = [METRICS[task.metrics[0]] for task in tasks]
    title = f"{' or '.join(dict.fromkeys(decide))} minus that of {BASE}"
    axes.set(xlim=(-0.5, len(tasks) - 0.5), ylim=(len(methods) - 0.5, -0.5), title=title)
    names = [task.name + f" ({metric})" * (metric != "AUC") for task, metric in zip(tasks, decide, strict=True)]
    axes.set_xticks(range(len(tasks)), names, rotation=45, ha="right", rotation_mode="anchor")
    axes.set_yticks(range(len(methods)), methods)
    patches = [Patch(color=colour, label=verdict.strip("*")) for verdict, colour in COLOURS.items()]
    figure.legend(handles=patches, loc="outside lower center", ncols=3, frameon=False)
    with rc_context({"svg.hashsalt": "benchmark", "svg.fonttype": "none", "font.sans-serif": ["DejaVu Sans"]}):
        figure.savefig(path, metadata={"Date": None})


def main() -> None:
    for path in sys.argv[1:]:
        take(Path(path), FOLDER)
    tasks = read_tasks(FOLDER)
    draw(tasks, PICTURE)
    replace_part(BEGIN, write(tasks) + END)


def replace_part(begin: str, text: str) -> None:
    """Replace the page's text from a marker to the next `END` by a text that ends with `END`."""
    before, _, rest = PAGE.read_text("utf-8").partition(begin)
    PAGE.write_text(before + begin + text + rest.partition(END)[2], "utf-8")


if __name__ == "__main__":
    main()
