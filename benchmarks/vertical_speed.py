"""Speed of vertical training, with each party in a separate process and mutual TLS 1.3 between the parties.

    python benchmarks/vertical_speed.py [CASE ...] [--smoke] [--no-check] [--data-dir FOLDER]

The data are UCI credit (24,000 rows, 90 columns; in or below --data-dir) or, without --data-dir, synthetic data of the
same shape. The problem is (13) of the paper with weight 1e-4, by SVRG with batches of 32. q is the number of parties, m
the number of active parties (which have labels), and the window the number of updates that a party may be ahead.

| case           | measured quantity                                                                       | limit     |
|----------------|-----------------------------------------------------------------------------------------|-----------|
| `straggler-6`  | seconds to 1e-3, synchronous over asynchronous: q = 6, m = 2, window 3; 10 ms one way;  | >= 2.2    |
|                | an update occupies a party for 5 ms, the last party (a passive party) for 7 ms          |           |
| `straggler-8`  | the same with q = 8, m = 3, window 2                                                    | >= 1.6    |
| `no-delay`     | the same with q = 8, m = 3, window 4, without artificial delays                         | >= 1.5    |
| `parties`      | updates a second with q = 8, divided by updates a second with q = 2: an update occupies | >= 3.3    |
|                | a party for 40 ms / q, m = 2, window 4, SGD                                             |           |
| `cpu`          | CPU microseconds of an update, summed over 8 parties: m = 3, window 4, SGD              | < 350     |
| `seconds`      | seconds of training to 1e-3 with q = 8, m = 3, window 2, and the step for a delay of 4  | < 3       |
|                | updates, which is the average delay that the parties measure                            |           |
| `segment`      | seconds of a segment in addition to its training in Flower's simulation on Ray: q = 6,  | < 0.5     |
|                | m = 2, the median of ten                                                                |           |
| `intersection` | seconds in which 3 parties of 1,000,000 ids, all on this machine, find their 800,000    | < 150     |
|                | common ids                                                                              |           |

Both modes of a comparison have the same step, as in the paper: 0.9 times the bound for a delay of m * window updates
(printed). A synchronous run alone could use a larger step. Artificial computing time is slept, in m workers of each
party (the paper's k = m threads), in both modes. --smoke uses 1,500 rows, a third of f(0) - f* instead of 1e-3, and
20,000 ids.

"Seconds to 1e-3" means until f - f* <= 1e-3, with f* by Newton's method. The run consists of segments of one epoch,
each followed by an evaluation. The seconds are the segments' `seconds_training` (the maximum over the parties): from
the moment that all parties have joined to the last update. They include SVRG's full pass and the wait for the epoch's
last updates, but not joining (TLS, keys) and evaluations. In the segment that reaches 1e-3 the time is interpolated,
linear in log(f - f*).

The CPU time of an update is the user and system seconds of all parties' processes while they train, divided by the
number of updates, in the second of two segments, since the first segment loads the kernels.

The overhead of a segment is the seconds of a round of `--engine flower` minus its `training_seconds`: Flower's
messages, joining, the evaluation, the server's work and files. The run uses Flower's local SuperLink, and starts it if
it does not run.
"""

from __future__ import annotations

import asyncio
import json
import math
import resource
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
from joblib.externals.loky import get_reusable_executor
from numpy.typing import NDArray
from parties import run_parties

from problems.data import DataSpec
from problems.randomness import stream
from simulations.engines.addresses import local_addresses
from tests.reference.vertical import smoothness, train
from vertical.alignment import find_rows
from vertical.injection import Injection, make_injections
from vertical.problem.analysis import largest_step, minimum, value
from vertical.problem.data import load_vertical
from vertical.problem.objectives import Array, make_objective
from vertical.segment.plan import Holding, PartyState, SegmentOutcome, SegmentPlan
from vertical.transport.endpoint import Endpoint
from vertical.transport.identity import Identity

# The harness is imported where it is used: every party's process imports this file, and it needs PyTorch and Flower.

ROWS, COLUMNS, BATCH = 24_000, 90, 32
TARGET = 1e-3
LATENCY, COMPUTE, SLOWER = 0.010, 0.005, 1.4
SHARED_COMPUTE = 0.040
OBJECTIVE = make_objective("logistic")


@dataclass
class Problem:
    """The data with their optimum and smoothness constant, and the target."""

    features: Array
    labels: Array
    smoke: bool

    def __post_init__(self) -> None:
        self.optimum = minimum(self.features, self.labels, OBJECTIVE)[1]
        self.smoothness = smoothness(self.features, OBJECTIVE)
        self.target = (math.log(2) - self.optimum) / 3 if self.smoke else TARGET

    def holdings(self, parties: int, active: int) -> list[Holding]:
        """Return the parties' data: nearly equal numbers of random columns, and labels at the active parties."""
        order = stream(0, "columns").permutation(self.features.shape[1])
        parts = np.array_split(order, parties)
        return [
            Holding(np.ascontiguousarray(self.features[:, columns]), labels=self.labels if party < active else None)
            for party, columns in enumerate(parts)
        ]

    def plan(self, parties: int, active: int, window: int, *, delay: int | None = None) -> SegmentPlan:
        """Return a plan of one SVRG epoch with an evaluation, and the step for `delay` updates (None: m * window)."""
        return SegmentPlan(
            serial=1,
            segment=0,
            algorithm="svrg",
            problem=OBJECTIVE.name,
            weight=OBJECTIVE.weight,
            step=0.9 * largest_step(self.smoothness, active * window if delay is None else delay),
            batch_size=BATCH,
            seed=0,
            first_epoch=0,
            epochs=1,
            parties=parties,
            active=tuple(range(active)),
            window=window,
            skew=4 * window,
            masking="pairwise",
            synchronous=False,
            update_passive=True,
            evaluate=True,
            label_epsilon=0.0,
            rows=len(self.labels),
            test_rows=0,
            allow_bare=parties == 2,
        )


class Result(NamedTuple):
    """The number that a case measured, and lines with details."""

    measured: float
    lines: list[str]


class Reached(NamedTuple):
    """The course of a run until it reached the target."""

    seconds: float
    epochs: float
    updates: float
    staleness: float

    @property
    def pace(self) -> float:
        """Return the updates a second."""
        return self.updates / self.seconds


def synthetic(rows: int) -> tuple[Array, Array]:
    """Return features (rows, 90) in [0, 1] (14 uniform columns, 76 indicators of nine categories) and labels."""
    rng = stream(0, "benchmark")
    parts = [rng.random((rows, 14))]
    parts += [np.eye(size)[rng.integers(size, size=rows)] for size in [8] * 8 + [12]]
    features = np.hstack(parts)
    z = (features - features.mean(axis=0)) @ rng.normal(size=features.shape[1])
    return features, np.where(rng.random(rows) < 1 / (1 + np.exp(-2 * z)), 1.0, -1.0)


def load_problem(data_dir: str, smoke: bool) -> Problem:
    """Return UCI credit if there is a folder, otherwise synthetic data."""
    if data_dir:
        data = load_vertical(DataSpec("uci-credit", data_dir=data_dir), 1)
        features, labels = np.asarray(data.train_features), data.train_labels
    else:
        features, labels = synthetic(ROWS)
    if smoke:
        features, labels = features[:1500], labels[:1500]
    print(f"data: {'uci-credit' if data_dir else 'synthetic'}, {features.shape[0]:,} x {features.shape[1]}")
    return Problem(features, labels, smoke)


def seconds_to_target(problem: Problem, plan: SegmentPlan, injections: Sequence[Injection] | None = None) -> Reached:
    """Train in segments of one epoch until the target is reached. The module's docstring defines the seconds."""
    holdings = problem.holdings(plan.parties, len(plan.active))
    states = [PartyState() for _ in holdings]
    expected = epochs_by_the_centralised_run(problem, plan)
    reached, gap, done = Reached(0.0, 0.0, 0.0, 0.0), math.log(2) - problem.optimum, 0
    while done < 5 * expected + 20 and gap < 10.0:
        plans = [replace(plan, serial=k + 1, segment=k, first_epoch=k) for k in range(done, done + expected)]
        segments = run_in_processes(holdings, plans, states, injections)
        for outcomes in segments:
            before, gap = gap, outcomes[0].metrics["objective"] - problem.optimum
            crossed = gap <= problem.target
            part = math.log(before / problem.target) / math.log(before / gap) if crossed else 1.0
            reached = Reached(
                reached.seconds + part * largest(outcomes, "seconds_training"),
                reached.epochs + part,
                reached.updates + part * outcomes[0].counters["updates"],
                max(reached.staleness, largest(outcomes, "mean_staleness")),
            )
            if crossed:
                return reached
        done, expected = done + len(plans), 2
        states = [outcome.state for outcome in segments[-1]]
    raise SystemExit(f"{done} epochs at step {plan.step:.3g} end {gap:.3g} above the optimum")


def epochs_by_the_centralised_run(problem: Problem, plan: SegmentPlan) -> int:
    """Return the number of epochs that the same updates take without delay, with which the parties start."""
    at_zero = value(problem.features, problem.labels, OBJECTIVE, np.zeros(problem.features.shape[1]))
    gaps = [at_zero - problem.optimum]

    def measure(epoch: int, weights: Array) -> None:
        gaps.append(value(problem.features, problem.labels, OBJECTIVE, weights) - problem.optimum)

    train(
        problem.features,
        problem.labels,
        OBJECTIVE,
        plan.algorithm,
        step=plan.step,
        epochs=40,
        batch_size=plan.batch_size,
        seed=plan.seed,
        active=len(plan.active),
        each_epoch=measure,
    )
    return next((epoch for epoch, gap in enumerate(gaps) if gap <= problem.target), 40)


def run_in_processes(
    holdings: list[Holding],
    plans: list[SegmentPlan],
    states: list[PartyState] | None = None,
    injections: Sequence[Injection] | None = None,
) -> list[list[SegmentOutcome]]:
    """Call `run_parties` over TCP.

    Artificial computing has as many workers in each party as there are active parties.
    """
    threads = len(plans[0].active) if injections else 1
    return run_parties(holdings, plans, transport="tcp", states=states, injections=injections, threads=threads)


def largest(outcomes: list[SegmentOutcome], counter: str) -> float:
    """Return the maximum of a counter over the parties."""
    return max(outcome.counters[counter] for outcome in outcomes)


def compare(parties: int, active: int, window: int, latency: float, compute: float) -> Callable[[Problem], Result]:
    """Measure a case that compares both modes."""

    def run(problem: Problem) -> Result:
        plan = problem.plan(parties, active, window)
        injections = make_injections(parties, compute, latency, SLOWER) if latency or compute else None
        kinds = {"synchronous": replace(plan, synchronous=True), "asynchronous": plan}
        found = {kind: seconds_to_target(problem, one, injections) for kind, one in kinds.items()}
        lines = [
            f"{kind}: {one.seconds:.2f} s, {one.epochs:.2f} epochs, {one.pace:.0f} updates/s, "
            f"others' updates in between {one.staleness:.1f}"
            for kind, one in found.items()
        ]
        lines.append(f"step {plan.step:.3f}, f - f* <= {problem.target:g}")
        return Result(found["synchronous"].seconds / found["asynchronous"].seconds, lines)

    return run


def more_parties(problem: Problem) -> Result:
    """Return the updates a second of many parties, relative to two parties."""
    pace = {}
    for parties in (2, 8):
        plan = replace(problem.plan(parties, 2, 4), algorithm="sgd", evaluate=False)
        (outcomes,) = run_in_processes(
            problem.holdings(parties, 2), [plan], injections=make_injections(parties, SHARED_COMPUTE / parties)
        )
        pace[parties] = outcomes[0].counters["updates"] / largest(outcomes, "seconds_training")
    return Result(pace[8] / pace[2], [f"q = {parties}: {one:.1f} updates/s" for parties, one in pace.items()])


def cpu(problem: Problem) -> Result:
    """Return the CPU microseconds of an update."""
    plan = replace(problem.plan(8, 3, 4), algorithm="sgd", evaluate=False)
    epochs = 3 if problem.smoke else 12
    plans = [plan, replace(plan, epochs=epochs, serial=2, segment=1, first_epoch=1, start=False)]
    _, outcomes = run_in_processes(problem.holdings(8, 3), plans)
    updates = outcomes[0].counters["updates"]
    spent = sum(outcome.counters["cpu_training"] for outcome in outcomes) / updates
    pace = updates / largest(outcomes, "seconds_training")
    return Result(1e6 * spent, [f"{updates:.0f} updates, {pace:.0f} a second"])


def seconds(problem: Problem) -> Result:
    """Return the seconds of training to the target."""
    plan = problem.plan(8, 3, 2, delay=4)
    found = seconds_to_target(problem, plan)
    details = (
        f"step {plan.step:.3f}, {found.epochs:.2f} epochs, {found.pace:.0f} updates/s, others' updates in between "
        f"{found.staleness:.1f}, f - f* <= {problem.target:g}"
    )
    return Result(found.seconds, [details])


def segment(problem: Problem) -> Result:
    """Return the seconds of a segment in addition to its training."""
    from simulations.engines.flower import run_with_flower

    with tempfile.TemporaryDirectory() as folder:
        data, cut = Path(folder) / "rows.npz", len(problem.labels) // 5 * 4
        x, y = problem.features, (problem.labels > 0).astype(np.int64)
        np.savez(data, X=x[:cut], y=y[:cut], X_test=x[cut:], y_test=y[cut:])
        flat = {
            "strategy": "vfb2-svrg",
            "dataset": "npz",
            "data-dir": str(data),
            "num-server-rounds": 3 if problem.smoke else 10,
            "learning-rate": 0.1,
            "checkpoint-every": 0,
            "output-dir": folder,
            "run-name": "run",
        }
        run_with_flower(6, flat, together=True, quiet=True)
        lines = (Path(folder) / "run" / "metrics.jsonl").read_text("utf-8").splitlines()
    rounds = [json.loads(line) for line in lines[1:]]
    beside = [line["seconds"] - line["training_seconds"] for line in rounds]
    details = f"{min(beside):.2f} to {max(beside):.2f} s, and training {rounds[-1]['training_seconds']:.2f} s"
    return Result(statistics.median(beside), [details])


def intersection(problem: Problem) -> Result:
    """Return the seconds until all parties know the common rows."""
    ids = 20_000 if problem.smoke else 1_000_000
    # each party lacks a tenth of the first's, in another place
    lists = [[f"customer {row:08}" for row in range(party * ids // 10, party * ids // 10 + ids)] for party in range(3)]
    identities, addresses = [Identity.create(f"party {party}") for party in range(3)], local_addresses(3)
    ends = [Endpoint(addresses, own, [one.certificate for one in identities]) for own in identities]

    async def search() -> list[tuple[NDArray[np.int64], int]]:
        talks = [find_rows(me, 0, lists[me], ends[me], 1, b"benchmark") for me in range(3)]
        return await asyncio.gather(*talks)

    spent, began = cpu_seconds(), time.perf_counter()
    found = asyncio.run(search())
    took = time.perf_counter() - began
    get_reusable_executor().shutdown()  # only processes that have ended are counted
    spent = cpu_seconds() - spent
    sent = sum(each for _, each in found)
    details = f"{ids:,} ids, {len(found[0][0]):,} common, {sent / 1e6:.1f} MB sent, {spent:.1f} s of CPU"
    return Result(took, [f"{details}, {1e6 * spent / ids:.0f} us an id"])


def cpu_seconds() -> float:
    """Return user and system seconds of this process and of its ended children."""
    every = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in every)


# case -> (its function, the limit, whether more is better)
CASES: dict[str, tuple[Callable[[Problem], Result], float, bool]] = {
    "straggler-6": (compare(6, 2, 3, LATENCY, COMPUTE), 2.2, True),
    "straggler-8": (compare(8, 3, 2, LATENCY, COMPUTE), 1.6, True),
    "no-delay": (compare(8, 3, 4, 0.0, 0.0), 1.5, True),
    "parties": (more_parties, 3.3, True),
    "cpu": (cpu, 350.0, False),
    "seconds": (seconds, 3.0, False),
    "segment": (segment, 0.5, False),
    "intersection": (intersection, 150.0, False),
}


def main() -> None:
    from harness import arguments, check, table

    parser = arguments(__doc__ or "")
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"cases among {', '.join(CASES)}; default: all")
    options = parser.parse_args()
    unknown = sorted(set(options.cases) - set(CASES))
    if unknown:
        parser.error(f"{', '.join(unknown)}: a case is one of {', '.join(CASES)}")
    problem = load_problem(options.data_dir, options.smoke)
    rows, failures = [], []
    for name in options.cases or CASES:
        run, limit, more = CASES[name]
        measured, lines = run(problem)
        for line in lines:
            print(f"{name}: {line}", flush=True)
        rows.append([name, f"{measured:.2f}", f"{'>=' if more else '<'} {limit:g}"])
        if measured < limit if more else measured >= limit:
            failures.append(f"{name}: {measured:.2f}, the limit is {limit:g}")
    table(["case", "measured", "limit"], rows)
    check(failures, wanted=not options.no_check)


if __name__ == "__main__":
    main()
