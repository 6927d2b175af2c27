"""The copy of a run's settings, metrics and files in MLflow: on a tracking server, or in a folder."""

import json
import os
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from logging import INFO, WARNING
from pathlib import Path
from typing import Any

from flwr.common import log

from apps.run_config.algorithm import RunConfig
from apps.run_config.settings import flatten
from apps.run_directory.events import numbers_of
from apps.run_directory.versions import versions
from problems.errors import require
from problems.files import write_atomic

RECORD = "tracking.json"
PAUSE = 60.0  # seconds from a failure to the next attempt
# Short limits, since MLflow's own limits are minutes, and a server that does not answer must not delay the training.
# Telemetry is off. Folders are allowed, since tracking-uri may name a folder. Variables that the user has set stay.
_ENVIRONMENT = {
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_ALLOW_FILE_STORE": "true",
}
_LINES, _PARAMETERS = 40, 100  # a request takes a thousand numbers, and a hundred parameters
_ARTIFACTS = (
    "config.toml",
    "metrics.jsonl",
    "columns.json",
    "weights.json",
    "model*.safetensors",
    "*.png",
    "result.json",
)


class Tracker:
    """A run in MLflow. A failure of MLflow does not end the run: it is logged, and unsent data are sent after a pause.

    A resumed run continues its run in MLflow, and adds only the missing rounds.

    Args:
        config: The run config, with the server and the experiment.
        folder: The run directory.
        engine: The name of the engine that carries the messages, for a tag.
        lines: Returns the lines of metrics.jsonl so far.

    Raises:
        MissingExtraError: MLflow is not installed.
    """

    def __init__(
        self, config: RunConfig, folder: Path, engine: str, lines: Callable[[], Sequence[Mapping[str, Any]]]
    ) -> None:
        require("tracking-uri", "tracking", "mlflow")
        self._destination = {"uri": config.run.tracking_uri, "experiment": config.run.tracking_experiment}
        self._config, self._folder, self._engine, self._lines = config, folder, engine, lines
        self._client: Any = None
        self._run = ""
        self._waiting: list[Mapping[str, Any]] = []
        self._parameters: list[Any] = []
        self._again, self._failing = 0.0, False

    def write(self, line: Mapping[str, Any], *, send: bool = True) -> None:
        """Add a round's numbers.

        Args:
            line: The line, after it was written to metrics.jsonl.
            send: Whether to send it now, instead of together with the next line.
        """
        self._waiting.append(line)
        if send:
            self._attempt(self._send)

    def finish(self) -> None:
        """Send the remaining numbers and the run's files, and end the run in MLflow."""
        self._again = 0.0
        self._attempt(lambda: self._end("FINISHED", [path for name in _ARTIFACTS for path in self._folder.glob(name)]))

    def fail(self, reason: str) -> None:
        """Mark the run as failed, if it has begun in MLflow.

        Args:
            reason: The reason why the run has no result.
        """
        if self._run:
            self._again = 0.0
            self._attempt(lambda: self._end("FAILED", (), reason))

    def _attempt(self, call: Callable[[], None]) -> None:
        """Call a function, unless an attempt failed less than `PAUSE` ago. Log only the first of successive errors."""
        if time.monotonic() < self._again:
            return
        try:
            call()
        except Exception as error:  # errors of MLflow, of its libraries, or of the disk
            self._again = time.monotonic() + PAUSE
            if not self._failing:
                text = "nothing is tracked at %s for now (%s); the run goes on"
                log(WARNING, text, self._destination["uri"], " ".join(str(error).split())[:300])
            self._failing = True
        else:
            if self._failing:
                log(INFO, "tracked at %s again", self._destination["uri"])
            self._again, self._failing = 0.0, False

    def _send(self) -> None:
        from mlflow.entities import Metric

        client = self._open()
        while self._parameters:
            client.log_batch(self._run, params=self._parameters[:_PARAMETERS])
            del self._parameters[:_PARAMETERS]
        now = int(time.time() * 1000)
        while self._waiting:
            batch = self._waiting[:_LINES]
            metrics = [
                Metric(_plain(name), value, now, line["round"])
                for line in batch
                for name, value in numbers_of(line).items()
            ]
            client.log_batch(self._run, metrics=metrics)
            del self._waiting[: len(batch)]

    def _open(self) -> Any:
        """Return MLflow's client, after the run was created in MLflow or found there."""
        for name, value in _ENVIRONMENT.items():
            os.environ.setdefault(name, value)
        from mlflow import MlflowClient  # imported here, since the import takes a second or two

        if self._client is None:
            self._client = MlflowClient(tracking_uri=self._destination["uri"])
        if not self._run:
            sent = self._find_again() if (self._folder / RECORD).exists() else None
            if sent is None:
                self._begin()
            self._waiting = [line for line in self._lines() if line["round"] not in (sent or ())]
        return self._client

    def _find_again(self) -> set[int] | None:
        """Return the rounds that MLflow already has. None if it lacks the run, or the tracking keys changed."""
        from mlflow.exceptions import MlflowException

        record = json.loads((self._folder / RECORD).read_text("utf-8"))
        run = record.pop("run")
        if record != self._destination:
            return None
        try:
            self._client.update_run(run, status="RUNNING")
        except MlflowException as error:
            if error.error_code == "RESOURCE_DOES_NOT_EXIST":
                return None
            raise
        steps = {metric.step for metric in self._client.get_metric_history(run, "bytes_up")}
        self._run = run
        return steps

    def _begin(self) -> None:
        from mlflow.entities import Param

        client, run = self._client, self._config.run
        known = client.get_experiment_by_name(run.tracking_experiment)
        experiment = known.experiment_id if known else client.create_experiment(run.tracking_experiment)
        about = {"strategy": run.strategy, "dataset": self._config.data.dataset, "engine": self._engine}
        tags = about | {f"version.{name}": number for name, number in versions().items()}
        begun = client.create_run(experiment, run_name=self._folder.name, tags=tags)
        self._run = begun.info.run_id
        settings = flatten(self._config.resolve())
        self._parameters = [Param(_plain(key), str(value)) for key, value in settings.items()]
        text = json.dumps({**self._destination, "run": self._run}, indent=2) + "\n"
        write_atomic(self._folder / RECORD, text.encode())

    def _end(self, status: str, files: Iterable[Path], reason: str = "") -> None:
        self._send()
        for path in files:
            self._client.log_artifact(self._run, str(path))
        if reason:
            self._client.set_tag(self._run, "failure", reason[:5000])
        self._client.set_terminated(self._run, status)


def _plain(name: str) -> str:
    """Return a name with only the characters that MLflow allows."""
    return re.sub(r"[^\w\-. /]", "_", name)
