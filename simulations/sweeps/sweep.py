"""Running and resuming of a sweep, which writes sweep.toml, sweep.csv (after each trial) and best.toml."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import tomli_w

from apps.config import ConfigError
from problems.errors import require
from problems.files import write_atomic
from simulations.engines.planned import RunHook
from simulations.results.records import RunsInterruptedError
from simulations.results.target import make_out
from simulations.sweeps.plan import Sweep, Trial
from simulations.sweeps.standings import Outcome, Trials


def open_sweep(sweep: Sweep, out: Path, *, resume: bool = False) -> Trials:
    """Begin a sweep, or continue an interrupted sweep and keep its ended trials.

    This writes sweep.toml and sweep.csv, and removes best.toml.

    Args:
        sweep: The sweep.
        out: The sweep's directory.
        resume: Whether to continue the sweep in the directory.

    Returns:
        The sweep's trials, with the results of the ended trials.

    Raises:
        ConfigError: A trial's config is wrong, the directory cannot be used or contains nothing to resume, or a trial
            in it has another config.
    """
    trials = Trials(sweep, sweep.trials(), out / "trials", out / "sweep.csv")
    if resume and not (out / "sweep.toml").exists():
        hint = "remove --resume, or set --out to the directory of a sweep"
        got, allowed = f"--out {out}, which contains no sweep", "an --out that contains a sweep"
        raise ConfigError("--resume", got=got, allowed=allowed, hint=hint)
    if not resume and out.exists() and (not out.is_dir() or any(out.iterdir())):
        hint = "set --out to another directory, or add --resume to continue a sweep"
        raise ConfigError("--out", got=f"{out}, which is not empty", allowed="a new directory", hint=hint)
    make_out(out)
    trials.take()
    write_atomic(out / "sweep.toml", tomli_w.dumps(sweep.content()).encode())
    (out / "best.toml").unlink(missing_ok=True)
    trials.write()
    return trials


def run_sweep(
    sweep: Sweep,
    out: Path,
    *,
    resume: bool = False,
    jobs: int = 1,
    address: str = "",
    show: Callable[[str], None] = lambda line: None,
) -> Outcome:
    """Run a sweep's remaining trials, and then the best configuration again.

    The best configuration runs again only if it was chosen on held-out training rows. Its runs then train on all
    training rows, and are measured on the test rows.

    Args:
        sweep: The sweep.
        out: The sweep's directory.
        resume: Whether to continue the sweep in the directory.
        jobs: The number of trials at a time.
        address: A Ray cluster's address. Empty: a new local Ray.
        show: A function that shows a progress line after each trial.

    Raises:
        ConfigError: A trial's config or the directory is wrong. No trial has started.
        MissingExtraError: Ray is not installed.
        RunsInterruptedError: The user pressed Ctrl-C.
    """
    require("sweep", "sweep", "ray", "tensorboardX")
    out = out.expanduser().resolve()
    trials = open_sweep(sweep, out, resume=resume)
    _run(trials, jobs, address, show)
    outcome = Outcome(trials)
    outcome.write()
    if not outcome.fraction:
        return outcome
    finals = Trials(replace(sweep, grace=0), sweep.finals(outcome.chosen), out / "best", out / "best.csv")
    for path in finals.folder.glob("*"):
        if path.name not in finals.runs:
            shutil.rmtree(path)
    finals.take()
    finals.write()
    _run(finals, jobs, address, show)
    outcome = Outcome(trials, finals)
    outcome.write()
    return outcome


def _run(trials: Trials, jobs: int, address: str, show: Callable[[str], None]) -> None:
    """Compute the waiting trials.

    Raises:
        RunsInterruptedError: The user pressed Ctrl-C.
    """

    def start(ended: RunHook[Trial]) -> None:
        from simulations.sweeps.tuning import run_trials  # imported here, since Ray takes a second to load

        run_trials(trials, trials.table.parent / ".tune", jobs, address, ended)

    try:
        trials.make(start, show, " with --resume")
    except RunsInterruptedError:
        trials.write()
        raise
