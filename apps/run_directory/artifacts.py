"""The run directory: config.toml, metrics.jsonl, result.json, model files, checkpoints, events, pictures."""

from __future__ import annotations

import contextlib
import json
import re
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
from apps.run_directory.resumption import check_lines, check_settings, not_resumable
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
MATPLOTLIB = "matplotlib"  # makes the pictures; in the extra "reports"


class RunDirectory:
    """One run's directory. Opening it decides where the run goes and never overwrites another's results."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._events = Events(path / "events")
        self._tracker: Tracker | None = None
        self._claim: DirectoryClaim | None = None

    @classmethod
    def open(cls, config: RunConfig, engine: str = "") -> RunDirectory:
        """The directory of a new run, or of the one to resume.

        Without run-name a new run takes name, or name-N with N one above the highest taken; resuming takes the highest.

        Args:
            engine: what carries the run's messages, for whoever keeps track of runs.

        Raises:
            MissingExtraError: the run is to be tracked, and MLflow is not installed.
            ConfigError: the named directory already holds a run or files of another origin, another process writes to
                it, or there is none to resume, or its settings differ.
        """
        base = Path(config.run.output_dir).expanduser().resolve()
        given = config.run.run_name
        name = given or _folder_name(f"{config.run.strategy}-{config.data.dataset}-seed{config.training.seed}")
        taken = [path for path in _find_numbered(base, name) if (path / "metrics.jsonl").exists()]
        if config.run.resume:
            directory = cls(taken[-1] if taken and not given else base / name)
            directory._take_over(config)
        elif given and base / name in taken:
            raise _taken(base / name)
        else:
            directory = cls._begin(base, name, _number(taken[-1], name) + 1 if taken else 1, named=bool(given))
        if config.run.tracking_uri:
            directory._tracker = Tracker(config, directory.path, engine, directory.lines)
        if directory._claim is not None:
            directory._claim.write_token()
        write_atomic(directory.path / "config.toml", tomli_w.dumps(config.resolve()).encode())
        for outcome in OUTCOMES:  # left by the run that is resumed; this one has no outcome yet
            (directory.path / outcome).unlink(missing_ok=True)
        return directory

    @classmethod
    def _begin(cls, base: Path, name: str, number: int, *, named: bool) -> RunDirectory:
        """The directory of a new run, claimed; without a given name the first that is free, from a number on."""
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
                allowed = "a folder that can be written to"
                raise ConfigError("output-dir", got=got, allowed=allowed, hint="choose one") from None
            except ConfigError:
                if named:
                    raise
            number += 1  # another process has begun a run in this one

    def _take_over(self, config: RunConfig) -> None:
        """Claim the directory of a run to resume; check all that it reads before anything is written."""
        try:
            if (self.path / TOKEN).is_file():
                self._claim = DirectoryClaim(self.path)
            check_settings(self.path, config)
            if not (self.path / TOKEN).exists() or not is_token(self.token):
                raise not_resumable(self.path / TOKEN, "a file that is missing or damaged", "32 hexadecimal digits")
            covered = self.newest_checkpoint().server_round
            check_lines(self.path / "metrics.jsonl", self.lines(), covered)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Let other processes use the directory."""
        if self._claim is not None:
            self._claim.release()

    # One line per round.

    def append(self, line: Mapping[str, Any], *, event: bool = True) -> None:
        """Add a round's line to metrics.jsonl and, as an event, its numbers to the TensorBoard events; track it.

        Raises:
            DiskFullError: there is no room.
        """
        path = self.path / "metrics.jsonl"
        with room_for(path), path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        if event:
            self._events.write(line)
        if self._tracker is not None:
            self._tracker.write(line, send=event)

    def lines(self) -> list[dict[str, Any]]:
        """The lines of all rounds so far, without a last line that was cut off while it was written.

        Raises:
            ConfigError: any other line is not that of a round.
        """
        path = self.path / "metrics.jsonl"
        whole = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
        found = []
        for number, text in enumerate(whole, start=1):
            try:
                line = json.loads(text)
            except ValueError:
                line = None
            if not (isinstance(line, dict) and type(line.get("round")) is int):
                got, way_out = repr(text[:40].decode(errors="replace")), "remove the line, or begin a new run"
                raise not_resumable(f"{path}: line {number}", got, "a JSON object with its round", way_out)
            found.append(line)
        return found

    def cut_after(self, server_round: int) -> None:
        """Drop the lines after a checkpoint's round; a resumed run makes those rounds again.

        Raises:
            ConfigError: a line is not that of a round.
        """
        kept = [json.dumps(line) + "\n" for line in self.lines() if line["round"] <= server_round]
        write_atomic(self.path / "metrics.jsonl", "".join(kept).encode())

    # Checkpoints.

    @property
    def token(self) -> str:
        """Identifies this run among all others; a resumed run keeps it."""
        return (self.path / TOKEN).read_text("utf-8", errors="replace")

    @property
    def client_state(self) -> Path:
        """Where clients that share this disk keep their memory."""
        return self.path / "client-state"

    def save_checkpoint(self, checkpoint: Checkpoint) -> None:
        """Write a checkpoint and remove all but the last `KEPT_CHECKPOINTS`."""
        folder = self.path / "checkpoints"
        make_folder(folder)
        # resuming from a checkpoint needs these lines, so they are flushed first
        flush(self.path / "metrics.jsonl")
        write_checkpoint(folder / f"round-{checkpoint.server_round:06d}.safetensors", self.token, checkpoint)
        for old in self.checkpoints()[:-KEPT_CHECKPOINTS]:
            old.unlink()

    def checkpoints(self) -> list[Path]:
        """The files of the checkpoints, oldest first."""
        return sorted((self.path / "checkpoints").glob("round-*.safetensors"))

    def newest_checkpoint(self) -> Checkpoint:
        """The newest checkpoint.

        Raises:
            ConfigError: there is none, or it is truncated, damaged, of another version or run, or no checkpoint at all.
        """
        found = self.checkpoints()
        if not found:
            way_out = "begin a new run, with checkpoint-every > 0"
            raise not_resumable(self.path / "checkpoints", "no checkpoint", "one at least", way_out)
        try:
            return read_checkpoint(found[-1], self.token)
        except PayloadError as error:
            way_out = "remove it to resume from the one before, if there is one"
            got = f"an unusable checkpoint, {error}"
            raise ConfigError("resume", got=got, allowed="a whole one of this run", hint=way_out) from None

    # The end.

    @property
    def ended(self) -> bool:
        """Whether the run has left its result, or the reason why it has none."""
        return any((self.path / outcome).exists() for outcome in OUTCOMES)

    def save_columns(self, columns: Preprocessing) -> None:
        """Write how the model's features are made of raw rows."""
        self._write_json("columns.json", columns.to_json())

    def save_model(self, named: Mapping[str, NDArray[Any]], view: str = "") -> None:
        """Write the final model, or another view, for loading into the plain PyTorch module.

        Args:
            named: the arrays, by the names of the module's parameters.
            view: "" for model.safetensors; another one is part of the file's name, as in model_inner.safetensors and,
                of the selected models, model_best.safetensors and model_best_inner.safetensors.
        """
        write_tensors(self.path / f"{add_suffix('model', view)}.safetensors", dict(named), {"format": "pt"})

    def finish(
        self, result: Mapping[str, Any], view: str = "", *, pictures: bool = True, tally: Tally | None = None
    ) -> None:
        """Draw the pictures and write result.json last: its presence means that the run completed.

        Args:
            view: whose curves to draw; "" is the model itself.
            pictures: whether to draw; without matplotlib the pictures are left out.
            tally: the scores that the result's figures are of, if it has any.
        """
        self._events.close()
        wanted = [MATPLOTLIB, TENSORBOARD] if pictures else [TENSORBOARD]
        missing = [package for package in wanted if not importable(package)]
        if pictures and MATPLOTLIB not in missing:
            from apps.run_directory.drawings import draw_run  # matplotlib takes a second to import

            draw_run(self.path, self.lines(), result, view, tally)
        if missing:
            log(INFO, "left out what %s would have made: %s", " and ".join(missing), install("reports"))
        (self.path / "failure.json").unlink(missing_ok=True)  # a run that was stopped may still complete
        self._write_json("result.json", result)
        if self._tracker is not None:
            self._tracker.finish()
        self.close()

    def fail(self, reason: str) -> None:
        """Write why a run ended without a result, unless it has an outcome already or the disk is full."""
        if not self.ended:  # after `flwr stop` rounds continue for a moment and fail again, on something closed
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
    way_out = "choose another run-name (or --out), or continue it with resume=true"
    got = f"{path}, which already holds a run"
    return ConfigError("run-name", got=got, allowed="a name of no run", hint=way_out)


def _folder_name(text: str) -> str:
    """A text as a folder's name: the names of parts of a user's own have colons, and paths slashes."""
    return re.sub(r"[^\w.-]+", "-", text)


def _find_numbered(base: Path, name: str) -> list[Path]:
    numbered = [p for p in base.glob(f"{name}-*") if p.name.removeprefix(f"{name}-").isdigit()]
    return [base / name, *sorted(numbered, key=lambda path: _number(path, name))]


def _number(path: Path, name: str) -> int:
    return int(path.name.removeprefix(name).removeprefix("-") or 1)
