"""The option ``--tune`` of ``reproduce``: a grid search for run-config values, on validation rows."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from apps.config import ConfigError, Scalar, parse_run_config
from apps.evaluation.metric_names import better
from apps.server_app import RunFailedError
from problems.files import write_atomic
from simulations import PAGE
from simulations.arguments import Stack
from simulations.experiments.expansion import Expansion
from simulations.experiments.lines import Line, PlannedRun, run_folder, settings
from simulations.experiments.reproduce import ExperimentRuns
from simulations.experiments.tuned_values import TriedPoint, Tuned, TunedChoice, fits, read_tuned
from simulations.experiments.tuning import keys_of
from simulations.results.ranking import over_seeds, rank
from simulations.results.records import OF_TRAINING, check_metric

# the first seed of the grid search; the reported runs count from seed 0, so no run of the search shares their seeds
FIRST_SEED = 1000


@dataclass(frozen=True)
class _Search:
    """A grid search with the runs of one `Line`.

    Attributes:
        line: The line.
        at: The coordinates of all lines to which the chosen values apply.
        grid: The candidate values by run-config key.
        points: The combinations of candidate values, each with its runs, one for each seed.
    """

    line: Line
    at: dict[str, Scalar]
    grid: dict[str, list[Scalar]]
    points: list[tuple[dict[str, Scalar], list[PlannedRun]]]


class Choosing(ExperimentRuns):
    """The runs of all grid searches of an experiment, in ``tune/`` of the reproduction's directory.

    Args:
        expansion: The experiment.
        out: The reproduction's directory.
        stack: The maximum number of clients in one computation.

    Raises:
        ConfigError: The experiment has no values to choose, or its table [tune] is wrong.
    """

    def __init__(self, expansion: Expansion, out: Path, stack: Stack = 1) -> None:
        experiment = expansion.experiment
        self._here = f"experiment {experiment.name!r}: tune"
        if experiment.tune is None:
            got = f"experiment {experiment.name!r}, which has no [tune]"
            allowed = "an experiment whose [tune] lists run-config keys and the values to try"
            raise ConfigError("--tune", got=got, allowed=allowed, hint=PAGE)
        self.tune = experiment.tune.in_profile(expansion.profile)
        self.metric = self.tune.metric or experiment.metrics[0]
        self.mode = self._mode_of(self.metric)
        self.expansion = expansion
        self._check()
        self.searches = self._search_all()
        runs = [run for search in self.searches for _, several in search.points for run in several]
        super().__init__(expansion, out, runs, "tune", self.metric, stack)
        if len(self.runs) < len(runs):
            got = "two combinations of values with the same run directory"
            allowed = "a different directory for each combination"
            raise ConfigError(self._here, got=got, allowed=allowed, hint="remove one of two similar values")

    def metric_of(self, run: PlannedRun) -> str:
        """Return the metric that decides the search of a run."""
        return self._metric_of(run.line)

    def run(self, jobs: int, show: Callable[[str], None]) -> Tuned:
        """Compute the waiting runs, choose the best values of each search, and write ``tuned.toml``.

        With ``--only``, earlier choices for excluded runs stay in the file.

        Args:
            jobs: The number of runs at a time.
            show: A function that shows a progress line after each run.

        Raises:
            RunFailedError: All runs of a search failed.
        """
        self.run_all(jobs, show)
        chosen = [self._choose(search) for search in self.searches]
        path = self.out / "tuned.toml"
        before = read_tuned(path).chosen if self.expansion.only and path.is_file() else []
        tuned = Tuned(
            experiment=self.expansion.experiment.name,
            profile=self.expansion.profile,  # type: ignore[arg-type]
            metric=self.metric,
            mode=self.mode,
            seeds=self.tune.seeds,
            validation_fraction=self.tune.validation_fraction,
            chosen=[*(old for old in before if old.at not in [new.at for new in chosen]), *chosen],
        )
        write_atomic(path, tuned.toml().encode())
        return tuned

    def _choose(self, search: _Search) -> TunedChoice:
        metric = self._metric_of(search.line)
        points = [self._point(values, runs, metric) for values, runs in search.points]
        best = min(
            points, key=lambda point: rank(point.finished, point.missing or 0, point.mean, self._mode_of(metric))
        )
        if not best.finished:
            reason = f"no value for {search.line.title} works: {points[0].reason}"
            raise RunFailedError(f"--tune: {reason}; change the values in the table tune of the experiment's file")
        seeds = len(search.points[0][1])
        return TunedChoice(
            at=search.at,
            values=best.values,
            metric=None if metric == self.metric else metric,
            seeds=None if seeds == self.tune.seeds else seeds,
            grid=search.grid,
            points=points,
        )

    def _metric_of(self, line: Line) -> str:
        return self.tune.metric_of(line.at) or self.metric

    def _mode_of(self, metric: str) -> Literal["max", "min"]:
        own = self.tune.mode if metric == self.metric else ""
        return own or ("min" if better(metric) is min else "max")

    def _point(self, values: dict[str, Scalar], runs: Sequence[PlannedRun], metric: str) -> TriedPoint:
        ended, lost = self.finished, self.failed
        records = [ended[run.name] for run in runs if run.name in ended]
        finished, mean, std, missing = over_seeds((run.last(metric), bool(run.dropped)) for run in records)
        failed = [lost[run.name] for run in runs if run.name in lost]
        reason = failed[0] if failed else "" if finished == len(runs) else f"{metric} is not finite"
        reason = " ".join(reason.split())
        return TriedPoint(values=values, finished=finished, mean=mean, std=std, reason=reason, missing=missing or None)

    def _check(self) -> None:
        config = self.expansion.lines[0].config
        own = {f"metric-at[{number}].metric": entry.metric for number, entry in enumerate(self.tune.metric_at)}
        for key, metric in {"metric": self.metric, **own}.items():
            check_metric(metric, config, f"{self._here}.{key}")
            if not self.tune.validation_fraction and metric not in OF_TRAINING:
                allowed = (
                    f"a number above 0, since {metric!r} would be measured on test rows; 0 only with a metric of the "
                    f"training problem: {', '.join(OF_TRAINING)}"
                )
                hint = f"raise validation-fraction, {PAGE}"
                raise ConfigError(f"{self._here}.validation-fraction", got=0, allowed=allowed, hint=hint)
        methods = [run.name for run in self.expansion.experiment.runs]
        for method in self.tune.methods:
            if method not in methods:
                raise ConfigError(f"{self._here}.methods", got=repr(method), allowed=", ".join(methods), hint=PAGE)

    def _search_all(self) -> list[_Search]:
        tried = [line for line in self.expansion.lines if self.tune.grid_of(line.method)]
        if not tried:
            hint = "add tune.grid, or a grid for a method under tune.methods"
            raise ConfigError(self._here, got="no grid", allowed="at least one grid", hint=hint)
        # Only lines that match tune.at are searched. A choice applies to lines that agree in all other coordinates.
        at = self.tune.at
        searches = [
            self._search(line) for line in tried if fits({k: v for k, v in at.items() if k in line.at}, line.at)
        ]
        for line in tried:
            if not any(fits(search.at, line.at) for search in searches):
                got = f"{', '.join(settings(at))}, with which no search chooses values for {line.title}"
                allowed = "coordinates that leave a search for each run with a grid"
                raise ConfigError(f"{self._here}.at", got=got, allowed=allowed, hint="remove a coordinate from tune.at")
        return searches

    def _search(self, line: Line) -> _Search:
        grid, points = self.tune.grid_of(line.method), []
        for values in itertools.product(*grid.values()):
            point = {key: value for keys, value in zip(grid, values, strict=True) for key in keys_of(keys)}
            seeds = range(FIRST_SEED, FIRST_SEED + self.tune.seeds_of(line.at))
            points.append((point, [self._trial(line, point, seed) for seed in seeds]))
        return _Search(line, {key: value for key, value in line.at.items() if key not in self.tune.at}, grid, points)

    def _trial(self, line: Line, point: dict[str, Scalar], seed: int) -> PlannedRun:
        changes = {**point, "validation-fraction": self.tune.validation_fraction}
        text = ", ".join(settings(point))
        try:
            rounds = parse_run_config({**line.config, **changes}).training.num_server_rounds
        except ConfigError as error:
            where = f"{self._here}, {line.title}, {text}"
            raise ConfigError.of(error, where, hint=f"{error.hint}; {PAGE}") from None
        if not line.config.get("select-by"):
            changes["evaluate-every"] = rounds  # without a selected round, only the last round's metric decides
        name = run_folder(line, seed, *(f"{key} {value!r}" for key, value in point.items()))
        return PlannedRun(name, line, seed, changes, text)
