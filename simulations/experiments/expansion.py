"""The expansion of an experiment into its runs: every method in every case of its axes, with every seed."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from apps.config import ConfigError, Scalar, flatten, parse_run_config
from problems.data.spec import NEEDS_FILES
from problems.errors import NOTHING
from simulations import PAGE
from simulations.engines.launch import NONFEDERATED, check_reference
from simulations.experiments.experiment import Claim, Experiment, PaperValue, Profile
from simulations.experiments.lines import DATASET, METHOD, Line, PlannedRun, run_folder, settings
from simulations.experiments.tuned_values import Tuned, fits
from simulations.results.output import format_cell
from simulations.results.records import TRAINING_SECONDS, RunRecord, check_metric


@dataclass(frozen=True)
class Expansion:
    """An experiment in a profile."""

    experiment: Experiment
    profile: str
    seeds: int
    data_dir: str
    lines: list[Line]
    paper: dict[tuple[int, str], PaperValue]  # the paper's number by place in ``lines`` and metric
    claims: list[list[tuple[int, int]]]  # pairs of places in ``lines`` for each claim, the better line first
    tuned: Tuned | None = None  # run-config values chosen on a validation split, if any
    only: Mapping[str, Scalar] | None = None  # coordinates of all its runs, if other runs were excluded

    @property
    def runs(self) -> list[PlannedRun]:
        """All runs: every line with the first seed, then every line with the next seed."""
        return [PlannedRun(run_folder(line, seed), line, seed) for seed in range(self.seeds) for line in self.lines]

    def find_ended(self, line: Line, records: Mapping[str, RunRecord]) -> dict[int, RunRecord]:
        """Return the line's finished runs, by seed.

        Args:
            line: An element of `lines`.
            records: The finished runs of all lines, by the names of their run directories.
        """
        names = {seed: run_folder(line, seed) for seed in range(self.seeds)}
        return {seed: records[name] for seed, name in names.items() if name in records}


def expand(
    experiment: Experiment,
    profile: str,
    seeds: int | None = None,
    data_dir: Path | None = None,
    tuned: Tuned | None = None,
    only: Mapping[str, Scalar] | None = None,
) -> Expansion:
    """Find all runs of an experiment and check all their configs.

    Args:
        experiment: The experiment.
        profile: The name of its profile.
        seeds: The number of seeds. None: the profile's number, or else the experiment's.
        data_dir: The absolute folder with the data sets' files. A run's own ``data-dir`` is a folder below it.
        tuned: Run-config values that replace the file's values.
        only: The coordinates of the runs to keep. None: all runs.

    Raises:
        ConfigError: A config is not valid, data are missing, two runs would be the same, or no run is left.
    """
    chosen = experiment.profile(profile)
    here = f"experiment {experiment.name!r}"
    every = list(_expand_unchecked(experiment, profile, data_dir, tuned))
    _check_only(f"{here}: profiles.{profile}.only", chosen.only, every)
    kept = _kept(chosen, every)
    if not kept:
        got = "keys that match no run"
        allowed = "at least one run"
        raise ConfigError(f"{here}: profiles.{profile}.only", got=got, allowed=allowed, hint="remove a key")
    _check_tuned(here, tuned, experiment, profile, kept)
    if only:
        _check_only("--only", {key: [value] for key, value in only.items()}, kept)
        kept = [line for line in kept if fits(only, line.at)]
        if not kept:
            got, allowed = ", ".join(settings(only)), "coordinates that a run has together"
            raise ConfigError("--only", got=got, allowed=allowed, hint="remove a coordinate")
    _check_files(here, kept)
    lines = [_check(experiment, line, here) for line in kept]
    _check_distinct(here, lines, experiment.x == ["clients"])
    everywhere = [{**line.at, DATASET: line.origin} for line in every]
    for key in ("seeds_at", "metric_at"):
        for number, one in enumerate(getattr(experiment.tune, key, [])):
            _check_some_run_has(one.at, everywhere, f"{here}: tune.{key.replace('_', '-')}[{number}].at")
    paper = _paper(experiment, lines, everywhere, here)
    claims = _claims(experiment, lines, everywhere, here)
    used = seeds or chosen.seeds or experiment.seeds
    return Expansion(experiment, profile, used, str(data_dir or ""), lines, paper, claims, tuned, only)


def _expand_unchecked(
    experiment: Experiment, name: str, data_dir: Path | None = None, tuned: Tuned | None = None
) -> Iterator[Line]:
    """Return every method in every combination of cases."""
    profile = experiment.profile(name)
    for run in experiment.runs:
        own = {key: part.config for key, part in run.profiles.items()}.get(name, {})  # type: ignore[call-overload]
        for cases in itertools.product(*{**experiment.axes, **run.axes}.values()):
            config = {**flatten(experiment.config), **run.config}
            at: dict[str, Scalar] = {METHOD: run.name}
            clients, injected = run.clients or experiment.clients, experiment.injected
            for case in cases:
                config |= case.config
                at |= case.at
                clients = case.clients or clients
                injected = {**injected, **case.injected}
            origin = str(at.get(DATASET, config.get(DATASET, "digits")))
            config |= {**profile.config, **own}
            at.setdefault(DATASET, config.get(DATASET, "digits"))
            if tuned is not None:
                config |= tuned.values_of(at)
            if data_dir is not None:
                config["data-dir"] = str(data_dir / str(config.get("data-dir", "")))
            clients = 1 if run.engine == NONFEDERATED else profile.clients or clients
            yield Line(run, at, clients, config, origin, {**injected, **profile.injected})


def _kept(profile: Profile, lines: Iterable[Line]) -> list[Line]:
    """Return the lines that the profile's ``only`` keeps. Coordinates that a line lacks do not exclude it."""
    return [line for line in lines if all(line.at.get(key) in (None, *only) for key, only in profile.only.items())]


def data_sets(experiment: Experiment) -> list[str]:
    """Return the data sets of all profiles, by their names in the run config. Configs are not checked.

    Returns:
        The different data sets, in the order of the profiles and of the runs in the file.
    """
    kept = [_kept(profile, _expand_unchecked(experiment, name)) for name, profile in experiment.profiles.items()]
    return list(dict.fromkeys(str(line.config.get(DATASET, "digits")) for lines in kept for line in lines))


def _check(experiment: Experiment, line: Line, here: str) -> Line:
    """Check a line's config, and return the line with its panel and its curve."""
    try:
        parsed = parse_run_config(line.config)
        check_reference(line.run.engine, parsed)
    except ConfigError as error:
        raise error.at(f"{here}, {line.title}") from None
    resolved = flatten(parsed.resolve())
    for metric in experiment.metrics:
        if metric != TRAINING_SECONDS:
            check_metric(metric, resolved, f"{here}: metrics")
    words = {**resolved, "clients": line.clients, **line.at, "setting": line.setting}
    panel = _fill(experiment.panel, words, f"{here}: panel")
    return replace(line, panel=panel, curve=_fill(experiment.curve, words, f"{here}: curve"))


def _fill(template: str, words: Mapping[str, Scalar], where: str) -> str:
    """Return the template with each ``{word}`` replaced."""

    def value(match: re.Match[str]) -> str:
        if match[1] not in words:
            raise ConfigError(
                where, got=match[0], allowed="setting, a coordinate or a run-config key in braces", hint=PAGE
            )
        return format_cell(words[match[1]])

    return re.sub(r"\{([^{}]*)\}", value, template).strip()


def _check_tuned(here: str, tuned: Tuned | None, experiment: Experiment, profile: str, lines: Sequence[Line]) -> None:
    if tuned is None:
        return
    got, wanted = (tuned.experiment, tuned.profile), (experiment.name, profile)
    if got != wanted:
        raise ConfigError(
            "tuned.toml",
            got=f"experiment {got[0]!r}, profile {got[1]!r}",
            allowed=f"{wanted[0]!r}, {wanted[1]!r}",
            hint="write the file again with --tune",
        )
    for choice in tuned.chosen:
        if not any(fits(choice.at, line.at) for line in lines):
            raise ConfigError(
                f"{here}: tuned.toml",
                got=f"values for {', '.join(settings(choice.at))}, which no run has",
                allowed="coordinates of the runs",
                hint="write the file again with --tune",
            )


def _check_only(where: str, only: Mapping[str, Sequence[Scalar]], lines: Sequence[Line]) -> None:
    for key, values in only.items():
        there = list(dict.fromkeys(line.at[key] for line in lines if key in line.at))
        for value in values:
            if value not in there:
                allowed = ", ".join(map(repr, there)) or "no value, since there is no such coordinate"
                raise ConfigError(f"{where}.{key}", got=repr(value), allowed=allowed, hint=PAGE)


def _check_files(here: str, lines: Sequence[Line]) -> None:
    missing = []
    for line in lines:
        folder = str(line.config.get("data-dir", ""))
        if not Path(folder).is_absolute() and (folder or line.config.get(DATASET) in NEEDS_FILES):
            missing.append(line.dataset)
    if missing:
        names = ", ".join(dict.fromkeys(missing))
        got = f"{NOTHING}, but {here} reads files of {names}"
        hint = "set --data-dir to their folder, see docs/data-sets.md"
        raise ConfigError("--data-dir", got=got, allowed="the folder of these files", hint=hint)


def _check_distinct(here: str, lines: Sequence[Line], joined: bool) -> None:
    """Check that lines have different curves and run directories.

    Args:
        here: The name of the experiment in errors.
        lines: The lines.
        joined: Whether lines with different numbers of clients are points of one curve.
    """
    seen: dict[str, Line] = {}
    curves: dict[tuple[str, str, int], Line] = {}
    for line in lines:
        before = curves.setdefault((line.panel, line.curve, line.clients if joined else 0), line)
        if before is not line:
            raise ConfigError(
                here,
                got=(
                    f"{before.title!r} and {line.title!r}, which would both be curve {line.curve!r} of panel "
                    f"{line.panel!r}"
                ),
                allowed="one run for each curve",
                hint="distinguish them by panel or curve",
            )
        before = seen.setdefault(run_folder(line, 0), line)
        if before is not line:
            got = f"{before.title!r} and {line.title!r}, which would have one run directory, {run_folder(line, 0)}"
            hint = "distinguish them by name or coordinates"
            raise ConfigError(here, got=got, allowed="a different directory for each run", hint=hint)


def _paper(
    experiment: Experiment, lines: Sequence[Line], everywhere: Sequence[Mapping[str, Scalar]], here: str
) -> dict[tuple[int, str], PaperValue]:
    """Return the paper's numbers by (place in ``lines``, metric), for rows of this profile on the file's data set."""
    found: dict[tuple[int, str], PaperValue] = {}
    for number, value in enumerate(experiment.paper_values):
        wanted = {METHOD: value.method, **value.at}
        where = f"{here}: paper-values[{number}]"
        _check_some_run_has(wanted, everywhere, where)
        metric = _metric(experiment, value.metric, where)
        for place, line in enumerate(lines):
            if fits(wanted, line.at) and (DATASET in value.at or line.dataset == line.origin):
                if (place, metric) in found:
                    got = f"a second value of the paper for {line.title!r}"
                    raise ConfigError(where, got=got, allowed="one value", hint="add coordinates to its at")
                found[place, metric] = value
    return found


def _claims(
    experiment: Experiment, lines: Sequence[Line], everywhere: Sequence[Mapping[str, Scalar]], here: str
) -> list[list[tuple[int, int]]]:
    """Return the pairs of lines that each claim compares; empty if this profile lacks them."""
    for number, claim in enumerate(experiment.claims):
        where = f"{here}: claims[{number}]"
        _metric(experiment, claim.metric, where)
        for side in (claim.better, claim.than):
            _check_some_run_has({**side, **claim.at}, everywhere, where)
        if not _pairs(claim, everywhere):
            got = f"no two runs that differ only in {', '.join(claim.better)}"
            allowed = "at least one pair of runs"
            raise ConfigError(
                where, got=got, allowed=allowed, hint=f"add the other coordinates to better and than, {PAGE}"
            )
    return [_pairs(claim, [line.at for line in lines]) for claim in experiment.claims]


def _check_some_run_has(wanted: Mapping[str, Scalar], everywhere: Sequence[Mapping[str, Scalar]], where: str) -> None:
    if not any(fits(wanted, at) for at in everywhere):
        got = f"{', '.join(settings(wanted))}, which no run has"
        allowed = "coordinates of the runs, which are their method, dataset and axes"
        raise ConfigError(where, got=got, allowed=allowed, hint=PAGE)


def _metric(experiment: Experiment, name: str, where: str) -> str:
    """Check and return a metric's name. An empty name stands for the experiment's first metric."""
    if name and name not in experiment.metrics:
        raise ConfigError(f"{where}.metric", got=repr(name), allowed=", ".join(experiment.metrics), hint=PAGE)
    return name or experiment.metrics[0]


def _pairs(claim: Claim, ats: Sequence[Mapping[str, Scalar]]) -> list[tuple[int, int]]:
    """Return pairs of places in ``ats`` with the coordinates ``better`` and ``than`` and otherwise equal ones."""
    found = []
    for place, at in enumerate(ats):
        if fits({**claim.better, **claim.at}, at):
            partner = {**at, **claim.than}
            found += [(place, other) for other, there in enumerate(ats) if there == partner]
    return found
