"""Chooses run-config values from a grid on a validation split: `reproduce --tune`."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from apps.config import ConfigError, Scalar, parse_run_config
from apps.evaluation.metric_names import better
from apps.server_app import RunFailedError
from apps.sites.files import write_atomic
from simulations import PAGE
from simulations.expansion import Expansion, Line, PlannedRun, run_folder, settings
from simulations.experiment import Tuning
from simulations.records import OF_TRAINING, check_metric
from simulations.reproduce import Runs
from simulations.standings import rank
from simulations.tuned import Choice, Point, Tuned, fits


@dataclass(frozen=True)
class _Search:
    """A line whose values are chosen, for all runs with the coordinates ``at``; each point has its seeds' runs."""

    line: Line
    at: dict[str, Scalar]
    grid: dict[str, list[Scalar]]
    points: list[tuple[dict[str, Scalar], list[PlannedRun]]]


class Choosing(Runs):
    """The runs of a grid, in ``tune/`` of a reproduction's directory.

    Args:
        expansion: the experiment, with the values of its file.
        out: the directory.

    Raises:
        ConfigError: the experiment has nothing to choose, or its [tune] is wrong.
    """

    def __init__(self, expansion: Expansion, out: Path) -> None:
        experiment = expansion.experiment
        self._here = f"experiment {experiment.name!r}: tune"
        if experiment.tune is None:
            raise ConfigError(
                "--tune",
                got=f"experiment {experiment.name!r}, which has no [tune]",
                allowed="one with run-config keys and their values there",
                hint=PAGE,
            )
        self.tune = experiment.tune.in_profile(expansion.profile)
        self.metric = self.tune.metric or experiment.metrics[0]
        self.mode = self.tune.mode or ("min" if better(self.metric) is min else "max")
        _check(self._here, self.tune, self.metric, expansion.lines)
        self.searches = _searches(self._here, self.tune, expansion.lines)
        runs = [run for search in self.searches for _, several in search.points for run in several]
        super().__init__(expansion, out, runs, "tune")
        if len(self.runs) < len(runs):
            raise ConfigError(
                self._here,
                got="two points that would have one run directory",
                allowed="points that differ",
                hint="leave one out",
            )
        self.metrics = list(dict.fromkeys([self.metric, *experiment.metrics]))

    def run(self, jobs: int, say: Callable[[str], None]) -> Tuned:
        """Make the runs that are waiting, choose, and write ``tuned.toml``.

        Args:
            jobs: runs at a time.
            say: takes a line a run that has ended.

        Raises:
            ReproductionInterruptedError: Ctrl-C; what has finished is kept, and nothing is chosen.
            RunFailedError: no point of a line's grid has finished.
        """
        self.make(jobs, say, lambda: None)
        tuned = Tuned(
            experiment=self.expansion.experiment.name,
            profile=self.expansion.profile,  # type: ignore[arg-type]
            metric=self.metric,
            mode=self.mode,
            seeds=self.tune.seeds,
            validation_fraction=self.tune.validation_fraction,
            chosen=[self._chosen(search) for search in self.searches],
        )
        write_atomic(self.out / "tuned.toml", tuned.toml().encode())
        return tuned

    def _chosen(self, search: _Search) -> Choice:
        points = [self._point(values, runs) for values, runs in search.points]
        best = min(points, key=lambda one: rank(one.finished, one.missing or 0, one.mean, self.mode))
        if not best.finished:
            raise RunFailedError(
                f"--tune: no value for {search.line.title} works: {points[0].reason}; give other values"
            )
        return Choice(at=search.at, values=best.values, grid=search.grid, points=points)

    def _point(self, values: dict[str, Scalar], runs: Sequence[PlannedRun]) -> Point:
        records = [self.records[run.name] for run in runs if run.name in self.records]
        counted = [
            (end, bool(record.dropped))
            for record in records
            for end in list(record.curve(self.metric).values())[-1:]
            if math.isfinite(end)
        ]
        ends = [end for end, _ in counted]
        failed = [self.failed[run.name] for run in runs if run.name in self.failed]
        reason = failed[0] if failed else "" if len(ends) == len(runs) else f"{self.metric} is not finite"
        return Point(
            values=values,
            finished=len(ends),
            mean=statistics.fmean(ends) if ends else None,
            std=statistics.stdev(ends) if len(ends) > 1 else None,
            reason=" ".join(reason.split()),
            missing=sum(missing for _, missing in counted) or None,
        )


def _check(here: str, tune: Tuning, metric: str, lines: Sequence[Line]) -> None:
    check_metric(metric, lines[0].config, f"{here}.metric")
    if not tune.validation_fraction and metric not in OF_TRAINING:
        raise ConfigError(
            f"{here}.validation-fraction",
            got=0,
            allowed=(
                f"a number above 0, since {metric!r} is measured on the test rows, which no choice may see; or a "
                f"metric of the training problem: {', '.join(OF_TRAINING)}"
            ),
            hint=PAGE,
        )
    methods = list(dict.fromkeys(line.method for line in lines))
    for method in tune.methods:
        if method not in methods:
            raise ConfigError(f"{here}.methods", got=repr(method), allowed=", ".join(methods), hint=PAGE)


def _searches(here: str, tune: Tuning, lines: Sequence[Line]) -> list[_Search]:
    tried = [line for line in lines if tune.grid_of(line.method)]
    if not tried:
        raise ConfigError(
            here, got="no grid", allowed="one at least", hint="give tune.grid, or one of a method under tune.methods"
        )
    found = [
        _search(here, tune, line) for line in tried if fits({k: v for k, v in tune.at.items() if k in line.at}, line.at)
    ]
    for line in tried:
        if not any(fits(search.at, line.at) for search in found):
            told = ", ".join(settings(tune.at))
            raise ConfigError(
                f"{here}.at",
                got=f"{told}, with which nothing is chosen for {line.title}",
                allowed="coordinates that choose for each run",
                hint="leave coordinates out of it",
            )
    return found


def _search(here: str, tune: Tuning, line: Line) -> _Search:
    grid = tune.grid_of(line.method)
    points = []
    for values in itertools.product(*grid.values()):
        point = dict(zip(grid, values, strict=True))
        points.append((point, [_trial(here, tune, line, point, seed) for seed in range(tune.seeds)]))
    at = {key: value for key, value in line.at.items() if key not in tune.at}
    return _Search(line, at, grid, points)


def _trial(here: str, tune: Tuning, line: Line, point: dict[str, Scalar], seed: int) -> PlannedRun:
    changes = {**point, "validation-fraction": tune.validation_fraction}
    try:
        rounds = parse_run_config({**line.config, **changes}).training.num_server_rounds
    except ConfigError as error:
        raise ConfigError.of(
            error, f"{here}, {line.title}, {', '.join(settings(point))}", hint=f"{error.hint}; {PAGE}"
        ) from None
    changes["evaluate-every"] = rounds  # only the last round counts
    name = run_folder(line, seed, *(f"{key} {value!r}" for key, value in point.items()))
    return PlannedRun(name, line, seed, changes, ", ".join(settings(point)))
