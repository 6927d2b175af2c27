"""The computation of a sweep's trials with Ray Tune, which schedules trials and stops bad trials early.

A trial reports its metric to Tune after each evaluated round. Only this module imports Ray Tune. Tune's worker logs and
reporters are turned off.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

# Read by Ray Tune when it is imported or started.
os.environ.update(
    RAY_AIR_NEW_OUTPUT="0",
    RAY_CHDIR_TO_TRIAL_DIR="0",  # relative paths are relative to the command's folder
    TUNE_DISABLE_AUTO_CALLBACK_LOGGERS="1",
    TUNE_DISABLE_STRICT_METRIC_CHECKING="1",  # a failed trial reports no metric
    TUNE_PRINT_ALL_TRIAL_ERRORS="0",
    TUNE_DISABLE_SIGINT_HANDLER="1",  # Ctrl-C is a KeyboardInterrupt
)

from ray import tune
from ray.tune.schedulers import ASHAScheduler

from simulations.engines.planned import RunHook
from simulations.engines.ray_session import enter_folder, open_ray
from simulations.engines.stepped import SteppedRun
from simulations.results.records import STOPPED_EARLY, evaluation
from simulations.sweeps.plan import Trial
from simulations.sweeps.standings import Trials

_REDUCTION = 3  # ASHA continues a third of the trials at each rung
_OBJECT_STORE = 100 * 1024**2  # bytes of Ray's object store, which trials hardly use


class FederationTrial(tune.Trainable):
    """A trial in a worker process. Workers are reused, since starting a worker takes seconds."""

    def setup(self, config: dict[str, Any]) -> None:
        """Prepare the run. Tune calls this before the first step.

        Args:
            config: The entries from `run_trials`. ``number`` is the trial's index in ``trials``.
        """
        enter_folder(config["folder"])
        self.metric: str = config["metric"]
        self.trial: Trial = config["trials"][config["number"]]
        self.reported: dict[str, Any] = {}
        self.run = SteppedRun(config["clients"], self.trial.config, self.trial.rounds, config["nodes"], config["stack"])

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        """End this trial, if it has not ended, and prepare another trial in the same process.

        Returns:
            True, by which Tune does not start another process.
        """
        self.cleanup()
        self.setup(new_config)
        return True

    def step(self) -> dict[str, Any]:
        """Continue to the next evaluated round, or to the end of the run."""
        line = self.run.advance()
        if line is not None and self.metric not in line:
            metrics = ", ".join(evaluation(line))
            self.run.fail(f"the run has no metric {self.metric}, only {metrics}: set --metric to one of these")
        elif line is not None:
            self.reported = {"round": line["round"], self.metric: line[self.metric]}
            return dict(self.reported)
        if self.run.failure:
            return {"done": True, "ended": True}
        return {**self.reported, "round": self.trial.rounds, "done": True, "ended": True}

    def cleanup(self) -> None:
        """End the run if it is waiting."""
        self.run.stop(stop_reason(self.metric, self.reported, self.trial))


def stop_reason(metric: str, reported: dict[str, Any], trial: Trial) -> str:
    """Return the reason in the failure.json of a trial that the scheduler stopped.

    Args:
        reported: The last values that Tune received. Empty: no values, so the reason has metric nan and round 0.
    """
    value = reported.get(metric, float("nan"))
    return f"{metric} {value:.4g} after round {reported.get('round', 0)} of {trial.rounds}"


class _Follower(tune.Callback):
    """A callback that reports each ended trial to the sweep."""

    def __init__(self, metric: str, trials: Sequence[Trial], ended: RunHook[Trial]) -> None:
        self.metric, self.trials, self.ended = metric, trials, ended

    def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """Report a run that ended itself or was stopped by the scheduler."""
        ours, last = self.trials[trial.config["number"]], trial.last_result
        stopped = "" if last.get("ended") else f"{STOPPED_EARLY}: {stop_reason(self.metric, last, ours)}"
        self.ended(ours, stopped)

    def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """Report a worker process that died or could not start."""
        error = Path(trial.local_path or "") / "error.txt"
        lines = error.read_text("utf-8").split("\n") if error.is_file() else []
        words = [line.strip() for line in lines if line.strip()]
        self.ended(
            self.trials[trial.config["number"]], f"the trial's process ended: {words[-1] if words else 'killed?'}"
        )


def run_trials(trials: Trials, storage: Path, jobs: int, address: str, ended: RunHook[Trial]) -> None:
    """Run the waiting trials, ``jobs`` at a time with one CPU each, on a local Ray or a cluster.

    Args:
        trials: The sweep's trials.
        storage: A temporary folder for Tune's own files.
        jobs: The number of trials at a time.
        address: The address of a Ray cluster. Empty: a new local Ray.
        ended: A function that is called after each trial. Its second argument is the reason if the trial was stopped
            early or its process died, or "".

    Raises:
        ConfigError: No Ray answers at the address.
        KeyboardInterrupt: The user pressed Ctrl-C. The current trials are lost.
    """
    sweep, waiting = trials.sweep, trials.waiting
    scheduler = None
    if sweep.grace:
        scheduler = ASHAScheduler(
            time_attr="round",
            metric=sweep.metric,
            mode=sweep.mode,
            max_t=max(trial.rounds for trial in waiting),
            grace_period=sweep.grace,
            reduction_factor=_REDUCTION,
        )
    with open_ray(jobs, address, store=_OBJECT_STORE):
        try:
            tune.run(
                tune.with_resources(FederationTrial, {"cpu": 1}),
                config={
                    "folder": str(Path.cwd()),  # the folder of relative paths and of a user's own modules
                    "clients": sweep.clients,
                    "nodes": sweep.node_configs,
                    "stack": sweep.stack,
                    "metric": sweep.metric,
                    "trials": [replace(trial, config=trials.config(trial)) for trial in waiting],
                    "number": tune.grid_search(list(range(len(waiting)))),
                },
                scheduler=scheduler,
                max_concurrent_trials=jobs,
                reuse_actors=True,
                raise_on_failed_trial=False,
                callbacks=[_Follower(sweep.metric, waiting, ended)],
                storage_path=str(storage),
                name="tune",
                trial_dirname_creator=lambda trial: str(trial.config["number"]),
                verbose=0,
            )
        finally:
            shutil.rmtree(storage, ignore_errors=True)
