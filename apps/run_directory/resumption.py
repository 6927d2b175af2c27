"""Checks of a run directory before a run is resumed in it: its settings and its lines of rounds."""

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from apps.run_config.algorithm import RunConfig
from apps.run_config.settings import SHOWING_KEYS, ConfigError, flatten

# numbers in every line of metrics.jsonl that a resumed run adds up
_COUNTED = ("bytes_up", "bytes_down")
# keys that may differ between a run and its continuation
_FREE_KEYS = {
    *SHOWING_KEYS,
    "resume",
    "run-name",
    "num-server-rounds",
    "patience",
    "site-metrics",
    "site-metrics-every",
    "checkpoint-every",
    "max-retries",
    "retry-wait",
    "round-timeout",
    "handshake-timeout",
    "data-dir",
    "device",
}


def not_resumable(key: str | Path, got: str, allowed: str, hint: str = "begin a new run") -> ConfigError:
    """Return the error for something that a resumed run needs and cannot use."""
    return ConfigError(f"resume: {key}", got=got, allowed=allowed, hint=hint)


def check_settings(directory: Path, config: RunConfig) -> None:
    """Compare the run config with the one in a run directory.

    Args:
        directory: The run directory.
        config: The run config of the continuation. Keys that the file lacks count as their defaults.

    Raises:
        ConfigError: There is no run, its config.toml cannot be read, or a key differs. Names the first such key.
    """
    path = directory / "config.toml"
    if not path.exists():
        got, hint = f"true, but there is no run in {directory}", "set run-name (or --out), or leave resume out"
        raise ConfigError("resume", got=got, allowed="true where there is one", hint=hint)
    try:
        before = flatten(tomllib.loads(path.read_text("utf-8")))
    except ValueError as error:
        raise not_resumable(path, f"a file that cannot be read ({error})", "TOML") from None
    now = flatten(config.resolve())
    fixed = any(part.fixes_rounds for part in (config.training, config.privacy, config.family))
    free = _FREE_KEYS - ({"num-server-rounds"} if fixed else set())
    before = {key: value for key, value in config.defaults().items() if key in now} | before
    changed = sorted(k for k in before.keys() | now.keys() if k not in free and before.get(k) != now.get(k))
    if changed:
        key = changed[0]
        was = f"{before[key]!r}, with which" if key in before else "no such key, without which"
        instead = f"set {key} to {before[key]!r}" if key in before else f"leave {key} out"
        allowed = f"{was} the run in {directory} was started"
        raise not_resumable(key, repr(now.get(key)), allowed, f"{instead}, or begin a new run")


def check_lines(path: Path, lines: Sequence[Mapping[str, Any]], covered: int) -> None:
    """Check that metrics.jsonl has a complete line for each round up to the newest checkpoint.

    Args:
        path: The file, for the error.
        lines: Its lines.
        covered: The newest checkpoint's round.

    Raises:
        ConfigError: A line is missing, occurs twice, or lacks its bytes.
    """
    needed = [line for line in lines if line["round"] <= covered]
    counted = all(type(line.get(key)) is int for line in needed for key in _COUNTED)
    if not counted or [line["round"] for line in needed] != list(range(covered + 1)):
        allowed = f"one of each round from 0 to the newest checkpoint's, {covered}, with {' and '.join(_COUNTED)}"
        raise not_resumable(path, f"{len(needed)} lines of rounds up to {covered}", allowed)
