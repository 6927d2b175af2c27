"""The runs that an experiment stands for: every method in every case of its axes, with every seed."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from apps.config import ConfigError, Scalar, flattened, parse_run_config
from problems.data.spec import NEEDS_FILES
from problems.errors import NOTHING
from simulations import PAGE
from simulations.engines.launch import NONFEDERATED
from simulations.experiments.experiment import Claim, Experiment, PaperValue, Profile, Run
from simulations.experiments.tuned_values import Tuned, fits
from simulations.references.nonfederated import check_vertical
from simulations.results.output import shown
from simulations.results.records import TRAINING_SECONDS, check_metric

_COORDINATES = "coordinates of the runs, which are their method, dataset and axes"
_DATASET, _METHOD = "dataset", "method"  # coordinates that every run has


@dataclass(frozen=True, eq=False)
class Line:
    """One method in one case: a row of the table and a curve of the figure. ``config`` has neither seed nor place."""

    method: str
    at: dict[str, Scalar]  # coordinates, method and data set among them
    # what is run
    engine: str
    clients: int
    config: dict[str, Scalar]
    # how it is shown
    communications: int  # of a round
    dataset: str
    setting: str  # the other coordinates
    panel: str
    curve: str

    @property
    def title(self) -> str:
        """What tells it from the others, for people."""
        return "  ".join(filter(None, [self.method, self.dataset, self.setting]))


@dataclass(frozen=True)
class PlannedRun:
    """One line with one seed; ``name`` is its run directory's, ``changes`` what it has otherwise than its line,
    ``note`` what people are told of that."""

    name: str
    line: Line
    seed: int
    changes: Mapping[str, Scalar] = field(default_factory=dict)
    note: str = ""

    @property
    def config(self) -> dict[str, Scalar]:
        """Its flat run config, but for its place."""
        return {**self.line.config, **self.changes, "seed": self.seed}

    @property
    def title(self) -> str:
        """What it is, for people."""
        return "  ".join(filter(None, [self.line.title, self.note, f"seed {self.seed}"]))


@dataclass(frozen=True)
class Expansion:
    """An experiment in one profile."""

    experiment: Experiment
    profile: str
    seeds: int
    data_dir: str
    lines: list[Line]
    paper: dict[tuple[int, str], PaperValue]  # (place in lines, metric) -> the paper's number
    claims: list[
        list[tuple[int, int]]
    ]  # of each claim: places in lines of what is better and of what it is better than
    tuned: Tuned | None = None  # where run-config values were chosen on a validation split

    @property
    def runs(self) -> list[PlannedRun]:
        """All runs: every line with one seed, then with the next."""
        return [PlannedRun(run_folder(line, seed), line, seed) for seed in range(self.seeds) for line in self.lines]


@dataclass(frozen=True)
class _Cell:
    """A method in a combination of cases, nothing checked. ``origin`` is its data set before profiles change it."""

    run: Run
    at: dict[str, Scalar]
    clients: int
    config: dict[str, Scalar]
    origin: str


def expand(
    experiment: Experiment,
    profile: str,
    seeds: int | None = None,
    data_dir: Path | None = None,
    tuned: Tuned | None = None,
) -> Expansion:
    """Every run of an experiment, every config checked.

    Args:
        experiment: what is to be reproduced.
        profile: one of its profiles.
        seeds: how many; None: as many as the profile says.
        data_dir: the folder with the data sets' files, absolute; below it are those that a run names itself.
        tuned: run-config values to take in the place of the file's.

    Raises:
        ConfigError: a config is not valid, data are missing, or two runs would be the same.
    """
    chosen = experiment.profile(profile)
    here = f"experiment {experiment.name!r}"
    every = list(_cells(experiment, profile, data_dir, tuned))
    _check_only(f"{here}: profiles.{profile}.only", chosen.only, every)
    cells = _kept(chosen, every)
    if not cells:
        raise ConfigError(
            f"{here}: profiles.{profile}.only",
            got="keys that leave no run",
            allowed="one run at least",
            hint="drop one of its keys",
        )
    _check_files(here, cells)
    lines = [_line(experiment, cell, here) for cell in cells]
    _check_tuned(here, tuned, experiment, profile, lines)
    _check_distinct(here, lines, experiment.x == ["clients"])
    paper = _paper(experiment, lines, [cell.origin for cell in cells], every, here)
    claims = _claims(experiment, lines, every, here)
    used = seeds or chosen.seeds or experiment.seeds
    return Expansion(experiment, profile, used, str(data_dir or ""), lines, paper, claims, tuned)


def _cells(experiment: Experiment, name: str, data_dir: Path | None, tuned: Tuned | None = None) -> Iterator[_Cell]:
    profile = experiment.profile(name)
    for run in experiment.runs:
        own = {key: part.config for key, part in run.profiles.items()}.get(name, {})  # type: ignore[call-overload]
        for cases in itertools.product(*{**experiment.axes, **run.axes}.values()):
            config = {**flattened(experiment.config), **run.config}
            at: dict[str, Scalar] = {_METHOD: run.name}
            clients = run.clients or experiment.clients
            for case in cases:
                config |= case.config
                at |= case.at
                clients = case.clients or clients
            origin = str(at.get(_DATASET, config.get(_DATASET, "digits")))
            config |= {**profile.config, **own}
            at.setdefault(_DATASET, config.get(_DATASET, "digits"))
            if tuned is not None:
                config |= tuned.values_of(at)
            if data_dir is not None:
                config["data-dir"] = str(data_dir / str(config.get("data-dir", "")))
            clients = 1 if run.engine == NONFEDERATED else profile.clients or clients
            yield _Cell(run, at, clients, config, origin)


def _kept(profile: Profile, cells: Iterable[_Cell]) -> list[_Cell]:
    """Those that ``only`` leaves; a cell without a coordinate is not judged by it."""
    return [cell for cell in cells if all(cell.at.get(key) in (None, *only) for key, only in profile.only.items())]


def data_sets(experiment: Experiment) -> list[str]:
    """The data sets of all profiles, as the run config names them; nothing is checked."""
    kept = [_kept(profile, _cells(experiment, name, None)) for name, profile in experiment.profiles.items()]
    return list(dict.fromkeys(str(cell.config.get(_DATASET, "digits")) for cells in kept for cell in cells))


def _line(experiment: Experiment, cell: _Cell, here: str) -> Line:
    """The line, its config checked."""
    dataset = str(cell.at[_DATASET])
    setting = ", ".join(f"{key} = {shown(value)}" for key, value in cell.at.items() if key not in (_METHOD, _DATASET))
    try:
        parsed = parse_run_config(cell.config)
        if cell.run.engine == NONFEDERATED:
            check_vertical(parsed)
    except ConfigError as error:
        where = "  ".join(filter(None, [cell.run.name, dataset, setting]))
        raise error.at(f"{here}, {where}") from None
    resolved = flattened(parsed.resolved())
    for metric in experiment.metrics:
        if metric != TRAINING_SECONDS:
            check_metric(metric, resolved, f"{here}: metrics")
    words = {**resolved, "clients": cell.clients, **cell.at, "setting": setting}
    panel = _filled(experiment.panel, words, f"{here}: panel")
    curve = _filled(experiment.curve, words, f"{here}: curve")
    run = cell.run
    shown_as = (run.communications, dataset, setting, panel, curve)
    return Line(run.name, cell.at, run.engine, cell.clients, cell.config, *shown_as)


def _filled(template: str, words: Mapping[str, Scalar], where: str) -> str:
    """The template with each ``{word}`` replaced."""

    def value(match: re.Match[str]) -> str:
        if match[1] not in words:
            raise ConfigError(
                where, got=match[0], allowed="setting, a coordinate or a run-config key in braces", hint=PAGE
            )
        return shown(words[match[1]])

    return re.sub(r"\{([^{}]*)\}", value, template).strip()


def settings(values: Mapping[str, Scalar]) -> list[str]:
    """``key = value`` of each, for people."""
    return [f"{key} = {shown(value)}" for key, value in values.items()]


def run_folder(line: Line, seed: int, *more: str) -> str:
    """``fedsgda-mb_synthetic-pl_s-5-k-5_seed-0``; a number below 0 is ``minus-5``, as a dash only parts words."""
    parts = [line.method, line.dataset, line.setting, *more, f"seed {seed}"]
    parts = [re.sub(r"(?<![A-Za-z0-9.])-(?=\.?\d)", "minus ", part) for part in parts]
    return "_".join(re.sub(r"[^a-z0-9.]+", "-", part.lower()).strip("-.") for part in parts if part)


def _check_tuned(here: str, tuned: Tuned | None, experiment: Experiment, profile: str, lines: Sequence[Line]) -> None:
    if tuned is None:
        return
    got, wanted = (tuned.experiment, tuned.profile), (experiment.name, profile)
    if got != wanted:
        raise ConfigError(
            "tuned.toml",
            got=f"experiment {got[0]!r}, profile {got[1]!r}",
            allowed=f"{wanted[0]!r}, {wanted[1]!r}",
            hint="give --tune, which writes it anew",
        )
    for choice in tuned.chosen:
        if not any(fits(choice.at, line.at) for line in lines):
            raise ConfigError(
                f"{here}: tuned.toml",
                got=f"values for {', '.join(settings(choice.at))}, which no run has",
                allowed="coordinates of the runs",
                hint="give --tune, which writes it anew",
            )


def _check_only(where: str, only: Mapping[str, Sequence[Scalar]], cells: Sequence[_Cell]) -> None:
    for key, values in only.items():
        there = list(dict.fromkeys(cell.at[key] for cell in cells if key in cell.at))
        for value in values:
            if value not in there:
                allowed = ", ".join(map(repr, there)) or "nothing: there is no such coordinate"
                raise ConfigError(f"{where}.{key}", got=repr(value), allowed=allowed, hint=PAGE)


def _check_files(here: str, cells: Sequence[_Cell]) -> None:
    missing = []
    for cell in cells:
        folder = str(cell.config.get("data-dir", ""))
        if not Path(folder).is_absolute() and (folder or cell.config.get(_DATASET) in NEEDS_FILES):
            missing.append(str(cell.at[_DATASET]))
    if missing:
        names = ", ".join(dict.fromkeys(missing))
        raise ConfigError(
            "--data-dir",
            got=f"{NOTHING}, but {here} reads files of {names}",
            allowed="their folder",
            hint="give it; docs/data.md names the files",
        )


def _check_distinct(here: str, lines: Sequence[Line], joined: bool) -> None:
    """``joined``: lines with different numbers of clients are points of one curve."""
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
                allowed="one run a curve",
                hint="tell them apart by panel or curve",
            )
        before = seen.setdefault(run_folder(line, 0), line)
        if before is not line:
            raise ConfigError(
                here,
                got=f"{before.title!r} and {line.title!r}, which would have one run directory, {run_folder(line, 0)}",
                allowed="one for each",
                hint="tell them apart by name or coordinates",
            )


def _paper(
    experiment: Experiment, lines: Sequence[Line], origins: Sequence[str], cells: Sequence[_Cell], here: str
) -> dict[tuple[int, str], PaperValue]:
    """The paper's numbers, each at its row. One that this profile leaves out, or measures on other data, has none."""
    found: dict[tuple[int, str], PaperValue] = {}
    for number, value in enumerate(experiment.paper_values):
        wanted = {_METHOD: value.method, **value.at}.items()
        where = f"{here}: paper-values[{number}]"
        if not any(wanted <= {**cell.at, _DATASET: cell.origin}.items() for cell in cells):
            raise ConfigError(
                where,
                got=f"{', '.join(f'{key} = {shown(v)}' for key, v in wanted)}, which no run has",
                allowed=_COORDINATES,
                hint=PAGE,
            )
        metric = value.metric or experiment.metrics[0]
        if metric not in experiment.metrics:
            raise ConfigError(f"{where}.metric", got=repr(metric), allowed=", ".join(experiment.metrics), hint=PAGE)
        for place, (line, origin) in enumerate(zip(lines, origins, strict=True)):
            if wanted <= line.at.items() and (_DATASET in value.at or line.dataset == origin):
                if (place, metric) in found:
                    raise ConfigError(
                        where,
                        got=f"a second value of the paper for {line.title!r}",
                        allowed="one",
                        hint="add coordinates to its at",
                    )
                found[place, metric] = value
    return found


def _claims(
    experiment: Experiment, lines: Sequence[Line], cells: Sequence[_Cell], here: str
) -> list[list[tuple[int, int]]]:
    """What each claim compares. One that this profile leaves out has nothing."""
    everywhere = [{**cell.at, _DATASET: cell.origin} for cell in cells]
    for number, claim in enumerate(experiment.claims):
        where = f"{here}: claims[{number}]"
        if claim.metric and claim.metric not in experiment.metrics:
            raise ConfigError(
                f"{where}.metric", got=repr(claim.metric), allowed=", ".join(experiment.metrics), hint=PAGE
            )
        for side in (claim.better, claim.than):
            wanted = {**side, **claim.at}
            if not any(wanted.items() <= at.items() for at in everywhere):
                told = ", ".join(f"{k} = {shown(v)}" for k, v in wanted.items())
                raise ConfigError(where, got=f"{told}, which no run has", allowed=_COORDINATES, hint=PAGE)
        if not _pairs(claim, everywhere):
            raise ConfigError(
                where,
                got=f"no two runs that differ in {', '.join(claim.better)} alone",
                allowed="a pair at least",
                hint=f"add the rest to better and than, {PAGE}",
            )
    return [_pairs(claim, [line.at for line in lines]) for claim in experiment.claims]


def _pairs(claim: Claim, ats: Sequence[Mapping[str, Scalar]]) -> list[tuple[int, int]]:
    """The places of coordinates that are those of ``better`` and of ``than``, and agree in everything else."""
    found = []
    for place, at in enumerate(ats):
        if {**claim.better, **claim.at}.items() <= at.items():
            partner = {**at, **claim.than}
            found += [(place, other) for other, there in enumerate(ats) if there == partner]
    return found
