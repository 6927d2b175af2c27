"""The expansion of an experiment into its runs: each method, in each combination of the axes' cases, with each seed."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from apps.config import ConfigError, Scalar, flatten, parse_run_config
from apps.evaluation.metric_names import TRAINING_SECONDS
from problems.data.spec import NEEDS_FILES
from problems.errors import NOTHING
from simulations import PAGE
from simulations.engines.launch import NONFEDERATED, check_reference
from simulations.experiments.experiment import Claim, Experiment, PaperValue, Profile
from simulations.experiments.lines import DATASET, METHOD, Line, PlannedRun, run_folder, settings
from simulations.experiments.tuned_values import Tuned, fits
from simulations.results.output import format_cell, format_count
from simulations.results.records import RunRecord, check_metric


@dataclass(frozen=True)
class Expansion:
    """An experiment in a profile, with all its runs.

    Attributes:
        experiment: The content of the experiment's file.
        profile: The name of the profile.
        data_dir: The absolute folder of the data sets' files, or "".
        lines: The methods in their settings.
        left_out: The lines that the file leaves out, with the reasons.
        paper: The paper's numbers, by index in ``lines`` and metric.
        claims: For each claim of the paper the pairs of indices in ``lines`` to compare, the better line first.
        tuned: The run-config values chosen on a validation split. None: the file's values.
        only: The coordinates that all runs have, since ``--only`` excluded other runs. None: all runs.
    """

    experiment: Experiment
    profile: str
    data_dir: str
    lines: list[Line]
    left_out: list[tuple[Line, str]]
    paper: dict[tuple[int, str], PaperValue]
    claims: list[list[tuple[int, int]]]
    tuned: Tuned | None = None
    only: Mapping[str, Scalar] | None = None

    @property
    def runs(self) -> list[PlannedRun]:
        """All runs: every line with the first seed, then every line with the next seed."""
        pairs = [(seed, line) for seed in range(self.seeds) for line in self.lines if seed < line.seeds]
        return [PlannedRun(run_folder(line, seed), line, seed) for seed, line in pairs]

    @property
    def seeds(self) -> int:
        """The largest number of seeds of a line."""
        return max(line.seeds for line in self.lines)

    @property
    def seeds_text(self) -> str:
        """The numbers of seeds of the lines, for people."""
        fewest = min(line.seeds for line in self.lines)
        return f"{fewest} to " * (fewest < self.seeds) + format_count(self.seeds, "seed")

    def find_ended(self, line: Line, records: Mapping[str, RunRecord]) -> dict[int, RunRecord]:
        """Return the line's finished runs, by seed.

        Args:
            line: An element of `lines`.
            records: The finished runs of all lines, by the names of their run directories.
        """
        names = {seed: run_folder(line, seed) for seed in range(line.seeds)}
        return {seed: records[name] for seed, name in names.items() if name in records}


def expand(
    experiment: Experiment,
    profile: str,
    seeds: int | None = None,
    data_dir: Path | None = None,
    tuned: Tuned | None = None,
    only: Mapping[str, Scalar] | None = None,
) -> Expansion:
    """Return all runs of an experiment in a profile, and check their configs.

    Args:
        experiment: The experiment.
        profile: The name of its profile.
        seeds: The number of seeds of each line. None: the profile's number, or else the experiment's.
        data_dir: The absolute folder with the data sets' files. A run's own ``data-dir`` is relative to this folder.
        tuned: Run-config values that replace the file's values. None: the file's values.
        only: The coordinates of the runs to keep. None: all runs.

    Raises:
        ConfigError: A config is not valid, data are missing, two runs would be the same, or ``only`` excludes all runs.
    """
    chosen = experiment.profile(profile)
    here = f"experiment {experiment.name!r}"
    every = list(_expand_unchecked(experiment, profile, data_dir, tuned))
    _check_only(f"{here}: profiles.{profile}.only", chosen.only, every)
    selected = _select(chosen, every)
    if not selected:
        got = "coordinates that match no run"
        allowed = "coordinates of at least one run"
        raise ConfigError(f"{here}: profiles.{profile}.only", got=got, allowed=allowed, hint="remove a coordinate")
    _check_tuned(here, tuned, experiment, profile, selected)
    if only:
        _check_only("--only", {key: [value] for key, value in only.items()}, selected)
        selected = [line for line in selected if fits(only, line.at)]
        if not selected:
            got = f"{', '.join(settings(only))}, which no run combines"
            allowed = "coordinates of at least one run"
            raise ConfigError("--only", got=got, allowed=allowed, hint="remove a coordinate from --only")
    reasons = [(line, entry.reason) for line in selected if (entry := experiment.find_left_out(line.at))]
    selected = [line for line in selected if not experiment.find_left_out(line.at)]
    if not selected:
        got = f"runs that are left out ({reasons[0][1]})"
        raise ConfigError(
            "--only" if only else f"{here}: left-out",
            got=got,
            allowed="coordinates of at least one run that is not left out",
            hint="change a coordinate",
        )
    _check_files(here, selected)
    lines = [
        replace(_check(experiment, line, here), seeds=seeds or experiment.seeds_of(line.at, profile))
        for line in selected
    ]
    _check_distinct(here, lines, experiment.x == ["clients"])
    everywhere = [{**line.at, DATASET: line.origin} for line in every]
    for key, coordinates in _coordinates(experiment).items():
        for number, at in enumerate(coordinates):
            _check_some_run_has(at, everywhere, f"{here}: {key}[{number}].at")
    everywhere = [at for at in everywhere if not experiment.find_left_out(at)]
    paper = _paper(experiment, lines, everywhere, here)
    claims = _claims(experiment, lines, everywhere, here)
    return Expansion(experiment, profile, str(data_dir or ""), lines, reasons, paper, claims, tuned, only)


def _coordinates(experiment: Experiment) -> dict[str, list[dict[str, Scalar]]]:
    """Return by key the coordinates of its entries, which some run must have."""
    by_key = {
        "seeds-at": [entry.at for entry in experiment.seeds_at],
        "left-out": [entry.at for entry in experiment.left_out],
    }
    if experiment.tune is not None:
        by_key["tune.seeds-at"] = [entry.at for entry in experiment.tune.seeds_at]
        by_key["tune.metric-at"] = [entry.at for entry in experiment.tune.metric_at]
    return by_key


def _expand_unchecked(
    experiment: Experiment, name: str, data_dir: Path | None = None, tuned: Tuned | None = None
) -> Iterator[Line]:
    """Yield a line for each method in each combination of cases. Their configs are not checked."""
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


def _select(profile: Profile, lines: Iterable[Line]) -> list[Line]:
    """Return the lines that match the profile's ``only``. A line without a coordinate matches all its values."""
    return [line for line in lines if all(line.at.get(key) in (None, *only) for key, only in profile.only.items())]


def data_sets(experiment: Experiment) -> list[str]:
    """Return the names of an experiment's data sets in all profiles. Configs are not checked.

    Returns:
        The different names, in the order of the profiles and of the runs in the file.
    """
    by_profile = [
        _select(profile, _expand_unchecked(experiment, name)) for name, profile in experiment.profiles.items()
    ]
    return list(dict.fromkeys(str(line.config.get(DATASET, "digits")) for lines in by_profile for line in lines))


def _check(experiment: Experiment, line: Line, here: str) -> Line:
    """Check a line's config, and return the line with the texts of its panel and its curve in the figure."""
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
    """Return a template with each ``{word}`` replaced by its value."""

    def value(match: re.Match[str]) -> str:
        if match[1] not in words:
            allowed = "'setting', a coordinate or a run-config key in braces"
            raise ConfigError(where, got=match[0], allowed=allowed, hint=f"replace {match[0]}, {PAGE}")
        return format_cell(words[match[1]])

    return re.sub(r"\{([^{}]*)\}", value, template).strip()


def _check_tuned(here: str, tuned: Tuned | None, experiment: Experiment, profile: str, lines: Sequence[Line]) -> None:
    if tuned is None:
        return
    got, wanted = (tuned.experiment, tuned.profile), (experiment.name, profile)
    if got != wanted:
        raise ConfigError(
            "tuned.toml",
            got=f"values for experiment {got[0]!r}, profile {got[1]!r}",
            allowed=f"values for experiment {wanted[0]!r}, profile {wanted[1]!r}",
            hint="remove the file, or write it again with --tune"
            + (f", or set --profile to {got[1]!r}" if got[0] == wanted[0] else ""),
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
        hint = "set --data-dir to the folder of these files, see docs/data-sets.md"
        raise ConfigError("--data-dir", got=got, allowed="the folder of the data sets' files", hint=hint)


def _check_distinct(here: str, lines: Sequence[Line], joined: bool) -> None:
    """Check that lines have different curves and run directories.

    Args:
        here: The experiment's name in errors.
        lines: The lines.
        joined: Whether the figure's x axis is the number of clients, so lines with different numbers share a curve.
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
                allowed="a different curve for each run",
                hint="add coordinates to the keys panel or curve",
            )
        before = seen.setdefault(run_folder(line, 0), line)
        if before is not line:
            got = f"{before.title!r} and {line.title!r}, which would have one run directory, {run_folder(line, 0)}"
            hint = "give the runs different names or coordinates"
            raise ConfigError(here, got=got, allowed="a different directory for each run", hint=hint)


def _paper(
    experiment: Experiment, lines: Sequence[Line], everywhere: Sequence[Mapping[str, Scalar]], here: str
) -> dict[tuple[int, str], PaperValue]:
    """Return the paper's numbers by (index in ``lines``, metric).

    If a profile replaces the data set, numbers that do not name their data set are left out.
    """
    values: dict[tuple[int, str], PaperValue] = {}
    for number, value in enumerate(experiment.paper_values):
        wanted = {METHOD: value.method, **value.at}
        where = f"{here}: paper-values[{number}]"
        _check_some_run_has(wanted, everywhere, where)
        metric = _metric(experiment, value.metric, where)
        for index, line in enumerate(lines):
            if fits(wanted, line.at) and (DATASET in value.at or line.dataset == line.origin):
                if (index, metric) in values:
                    got = f"a second value of {metric!r} for {line.title!r}"
                    hint = "add coordinates to this value's key 'at', or remove one of the values"
                    raise ConfigError(where, got=got, allowed="a single value for each run and metric", hint=hint)
                values[index, metric] = value
    return values


def _claims(
    experiment: Experiment, lines: Sequence[Line], everywhere: Sequence[Mapping[str, Scalar]], here: str
) -> list[list[tuple[int, int]]]:
    """Return for each claim the pairs of lines to compare. No pairs: this profile lacks their runs."""
    for number, claim in enumerate(experiment.claims):
        where = f"{here}: claims[{number}]"
        _metric(experiment, claim.metric, where)
        for side in (claim.better, claim.than):
            _check_some_run_has({**side, **claim.at}, everywhere, where)
        if not _pairs(claim, everywhere):
            got = f"no two runs that differ only in {', '.join(claim.better)}"
            allowed = "at least one pair of runs"
            hint = f"add the runs' other differing coordinates to better and than, {PAGE}"
            raise ConfigError(where, got=got, allowed=allowed, hint=hint)
    return [_pairs(claim, [line.at for line in lines]) for claim in experiment.claims]


def _check_some_run_has(wanted: Mapping[str, Scalar], everywhere: Sequence[Mapping[str, Scalar]], where: str) -> None:
    if not any(fits(wanted, at) for at in everywhere):
        got = f"{', '.join(settings(wanted))}, which no run has"
        allowed = "coordinates of the runs: method, dataset, and the keys of their axes"
        raise ConfigError(where, got=got, allowed=allowed, hint=f"change these coordinates, {PAGE}")


def _metric(experiment: Experiment, name: str, where: str) -> str:
    """Check and return a metric's name. An empty name stands for the experiment's first metric."""
    if name and name not in experiment.metrics:
        raise ConfigError(f"{where}.metric", got=repr(name), allowed=", ".join(experiment.metrics), hint=PAGE)
    return name or experiment.metrics[0]


def _pairs(claim: Claim, ats: Sequence[Mapping[str, Scalar]]) -> list[tuple[int, int]]:
    """Return the pairs of runs that a claim compares, which agree in all coordinates except the claim's.

    Args:
        claim: The claim.
        ats: The runs' coordinates.

    Returns:
        Pairs of indices in ``ats``: a run with the coordinates ``better``, and its partner with ``than``.
    """
    pairs = []
    for index, at in enumerate(ats):
        if fits({**claim.better, **claim.at}, at):
            partner = {**at, **claim.than}
            pairs += [(index, candidate) for candidate, coordinates in enumerate(ats) if coordinates == partner]
    return pairs
