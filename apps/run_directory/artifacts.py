"""The run directory, to which the server writes one run's files. docs/run-directory.md explains each file."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from logging import INFO
from pathlib import Path
from typing import Any

import tomli_w
from flwr.common import log
from numpy.typing import NDArray

from apps.evaluation.metric_names import add_suffix
from apps.run_config.algorithm import RunConfig
from apps.run_config.settings import ConfigError
from apps.run_directory.checkpoints import Checkpoint, read_checkpoint, write_checkpoint
from apps.run_directory.claim import TOKEN, DirectoryClaim, check_origin
from apps.run_directory.events import TENSORBOARD, Events
from apps.run_directory.names import find_numbered, make_name, number_of
from apps.run_directory.resumption import check_lines, check_settings, not_resumable
from apps.run_directory.statistics import write_tables
from apps.run_directory.tracking import Tracker
from apps.sites.files import write_tensors
from apps.sites.state_store import is_token
from payloads.record import PayloadError
from problems.data import Preprocessing
from problems.errors import importable, install
from problems.files import DiskFullError, flush, make_folder, room_for, write_atomic
from problems.tallies import Tally

KEPT_CHECKPOINTS = 3
OUTCOMES = ("failure.json", "result.json")
MATPLOTLIB = "matplotlib"  # draws the pictures; in the extra "reports"


class RunDirectory:
    """The directory of one run. `open` chooses the path, and never overwrites the results of another run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._events = Events(path / "events")
        self._tracker: Tracker | None = None
        self._claim: DirectoryClaim | None = None

    @classmethod
    def open(cls, config: RunConfig, engine: str = "") -> RunDirectory:
        """Return the directory of a new run, or of the run to resume.

        Without ``run-name`` the name follows from strategy, data set and seed. A new run appends the next free number,
        as in ``fedx2-digits-seed0-2``. A resumed run uses the directory with the highest number.

        Args:
            config: The run config.
            engine: The name of the engine that carries the run's messages, for MLflow.

        Raises:
            MissingExtraError: The run config sets ``tracking-uri``, but MLflow is not installed.
            ConfigError: The named directory already contains a run or other files, another process writes to the
                directory, the run to resume does not exist, or its settings differ.
        """
        base = Path(config.run.output_dir).expanduser().resolve()
        run_name = config.run.run_name
        name = run_name or make_name(f"{config.run.strategy}-{config.data.dataset}-seed{config.training.seed}")
        taken = [path for path in find_numbered(base, name) if (path / "metrics.jsonl").exists()]
        if config.run.resume:
            directory = cls(taken[-1] if taken and not run_name else base / name)
            directory._take_over(config)
        elif run_name and base / name in taken:
            raise _taken(base / name)
        else:
            directory = cls._begin(base, name, number_of(taken[-1], name) + 1 if taken else 1, named=bool(run_name))
        if config.run.tracking_uri:
            directory._tracker = Tracker(config, directory.path, engine, directory.lines)
        if directory._claim is not None:
            directory._claim.write_token()
        write_atomic(directory.path / "config.toml", tomli_w.dumps(config.resolve()).encode())
        for outcome in OUTCOMES:  # of the run before it was resumed
            (directory.path / outcome).unlink(missing_ok=True)
        return directory

    @classmethod
    def _begin(cls, base: Path, name: str, number: int, *, named: bool) -> RunDirectory:
        """Create, claim and return the directory of a new run.

        Args:
            base: The parent folder.
            name: The name of the directory, to which numbers above 1 are appended.
            number: The first number to try. If another process uses the directory, the next number is tried.
            named: Whether the user chose the name. Then only one directory is tried.
        """
        while True:
            directory = cls(base / (name if number == 1 else f"{name}-{number}"))
            check_origin(directory.path)
            try:
                make_folder(directory.path)
                directory._claim = DirectoryClaim(directory.path)
                if not (directory.path / "metrics.jsonl").exists():
                    return directory
                directory.close()
                if named:
                    raise _taken(directory.path)
            except OSError as error:
                got = f"{directory.path}, which cannot be created ({error.strerror})"
                hint = "set output-dir (or --out) to a folder in which you can create files"
                raise ConfigError("output-dir", got=got, allowed="a writable folder", hint=hint) from None
            except ConfigError:
                if named:
                    raise
            number += 1  # another process has begun a run in this directory

    def _take_over(self, config: RunConfig) -> None:
        """Claim the directory of a run to resume. Check all files that the run reads before any file is written."""
        try:
            if (self.path / TOKEN).is_file():
                self._claim = DirectoryClaim(self.path)
            check_settings(self.path, config)
            if not (self.path / TOKEN).exists() or not is_token(self.token):
                raise not_resumable(self.path / TOKEN, "a missing or damaged file", "a file with 32 hexadecimal digits")
            covered = self.newest_checkpoint().server_round
            check_lines(self.path / "metrics.jsonl", self.lines(), covered)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Release the claim, so other processes can use the directory."""
        if self._claim is not None:
            self._claim.release()

    # One line per round.

    def append(self, line: Mapping[str, Any], *, event: bool = True) -> None:
        """Add a round's line to metrics.jsonl, to the TensorBoard events and to MLflow, as far as the run uses these.

        Args:
            line: The round's line.
            event: Whether to write a TensorBoard event now, and to send the line to MLflow now and not with the next
                line.

        Raises:
            DiskFullError: The disk is full.
        """
        path = self.path / "metrics.jsonl"
        with room_for(path), path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        if event:
            self._events.write(line)
        if self._tracker is not None:
            self._tracker.write(line, send=event)

    def lines(self) -> list[dict[str, Any]]:
        """Return the lines of all rounds so far. An incomplete last line, as after a crash, is left out.

        Raises:
            ConfigError: A complete line is not a round's line.
        """
        path = self.path / "metrics.jsonl"
        complete = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
        lines = []
        for number, text in enumerate(complete, start=1):
            try:
                line = json.loads(text)
            except ValueError:
                line = None
            if not (isinstance(line, dict) and type(line.get("round")) is int):
                got, hint = repr(text[:40].decode(errors="replace")), "remove this line, or begin a new run"
                raise not_resumable(f"{path}: line {number}", got, "a JSON object with an integer 'round'", hint)
            lines.append(line)
        return lines

    def cut_after(self, server_round: int) -> None:
        """Remove the lines of rounds after a checkpoint, since a resumed run repeats these rounds.

        Args:
            server_round: The checkpoint's round.

        Raises:
            ConfigError: A line is not a round's line.
        """
        covered = [json.dumps(line) + "\n" for line in self.lines() if line["round"] <= server_round]
        write_atomic(self.path / "metrics.jsonl", "".join(covered).encode())

    # Checkpoints.

    @property
    def token(self) -> str:
        """The random token that identifies the run. A resumed run keeps its token."""
        return (self.path / TOKEN).read_text("utf-8", errors="replace")

    @property
    def client_state(self) -> Path:
        """The folder in which clients on this disk store their memory."""
        return self.path / "client-state"

    def save_checkpoint(self, checkpoint: Checkpoint) -> None:
        """Write a checkpoint, and remove old checkpoints except the newest `KEPT_CHECKPOINTS`."""
        folder = self.path / "checkpoints"
        make_folder(folder)
        # a run resumed from the checkpoint needs the lines of its rounds, so these are flushed to the disk first
        flush(self.path / "metrics.jsonl")
        write_checkpoint(folder / f"round-{checkpoint.server_round:06d}.safetensors", self.token, checkpoint)
        for old in self.checkpoints()[:-KEPT_CHECKPOINTS]:
            old.unlink()

    def checkpoints(self) -> list[Path]:
        """Return the files of the checkpoints, oldest first."""
        return sorted((self.path / "checkpoints").glob("round-*.safetensors"))

    def newest_checkpoint(self) -> Checkpoint:
        """Return the newest checkpoint.

        Raises:
            ConfigError: The run has no checkpoint, or the newest file is truncated, damaged, of another version or run,
                or not a checkpoint.
        """
        files = self.checkpoints()
        if not files:
            hint = "begin a new run with checkpoint-every above 0"
            raise not_resumable(self.path / "checkpoints", "no checkpoint", "at least one checkpoint", hint)
        try:
            return read_checkpoint(files[-1], self.token)
        except PayloadError as error:
            got, allowed = f"an unusable checkpoint, {error}", "a complete checkpoint of this run"
            hint = f"remove {files[-1]} to resume from the checkpoint before it, or begin a new run"
            raise ConfigError("resume", got=got, allowed=allowed, hint=hint) from None

    # The end.

    @property
    def ended(self) -> bool:
        """Whether the directory contains result.json, or failure.json with the reason for a missing result."""
        return any((self.path / outcome).exists() for outcome in OUTCOMES)

    def save_columns(self, columns: Preprocessing) -> None:
        """Write columns.json: the encoding of raw rows as the model's features."""
        self._write_json("columns.json", columns.to_json())

    def save_weights(self, description: Mapping[str, Any]) -> None:
        """Write weights.json: which entries of a file of published weights the model started from."""
        self._write_json("weights.json", description)

    def save_model(self, arrays: Mapping[str, NDArray[Any]], view: str = "") -> None:
        """Write a model as a safetensors file that the plain PyTorch module can load.

        Args:
            arrays: The arrays, by the names of the module's parameters.
            view: The suffix in the file's name, as in model_inner.safetensors or model_best.safetensors. "":
                model.safetensors, the final model.
        """
        write_tensors(self.path / f"{add_suffix('model', view)}.safetensors", dict(arrays), {"format": "pt"})

    def finish(
        self, result: Mapping[str, Any], view: str = "", *, pictures: bool = True, tally: Tally | None = None
    ) -> None:
        """Draw the pictures, write the tables, and write result.json last: it exists only if the run completed.

        Args:
            result: The content of result.json.
            view: The view whose curves are drawn. "": the model itself.
            pictures: Whether to draw pictures. Without matplotlib none are drawn.
            tally: The counted scores of the figures in the result, if it has figures.
        """
        self._events.close()
        wanted = [MATPLOTLIB, TENSORBOARD] if pictures else [TENSORBOARD]
        missing = [package for package in wanted if not importable(package)]
        if pictures and MATPLOTLIB not in missing:
            from apps.run_directory.drawings import draw_run  # matplotlib takes a second to import

            draw_run(self.path, self.lines(), result, view, tally)
        if missing:
            log(INFO, "left out the files that need %s: %s", " and ".join(missing), install("reports"))
        write_tables(self.path, result)
        (self.path / "failure.json").unlink(missing_ok=True)  # a run that was stopped may still complete
        self._write_json("result.json", result)
        if self._tracker is not None:
            self._tracker.finish()
        self.close()

    def fail(self, reason: str) -> None:
        """Write failure.json, unless the run already has a result or a failure, or the disk is full.

        Args:
            reason: The reason why the run has no result.
        """
        if not self.ended:  # after `flwr stop` the rounds continue for a moment, and fail a second time
            with contextlib.suppress(DiskFullError):
                self._write_json("failure.json", {"reason": reason})
        with contextlib.suppress(OSError):
            self._events.close()
        if self._tracker is not None:
            self._tracker.fail(reason)
        self.close()

    def _write_json(self, name: str, value: Any) -> None:
        write_atomic(self.path / name, (json.dumps(value, indent=2) + "\n").encode())


def _taken(path: Path) -> ConfigError:
    got, allowed = f"{path}, which already contains a run", "a directory without a run"
    hint = "choose another run-name (or --out), or set resume=true to continue that run"
    return ConfigError("run-name", got=got, allowed=allowed, hint=hint)
