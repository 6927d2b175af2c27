"""Checks of a run directory before its run is resumed: the settings in config.toml, and the lines of metrics.jsonl.

A resumed run must have the settings of its start, except the keys in `_FREE_KEYS`.
"""

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from apps.run_config.algorithm import RunConfig
from apps.run_config.settings import SHOWING_KEYS, ConfigError, flatten

# numbers in every line of metrics.jsonl, of which a resumed run computes the sums
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
    "importance",
    "fine-tune-steps",
    "subgroups",
    "checkpoint-every",
    "max-retries",
    "retry-wait",
    "round-timeout",
    "handshake-timeout",
    "data-dir",
    "image-cache",
    "read-workers",
    "device",
}


def not_resumable(key: str | Path, got: str, allowed: str, hint: str = "begin a new run") -> ConfigError:
    """Return the error for a file or key with which the run cannot be resumed.

    Args:
        key: The file or the key.
        got: Its value or state.
        allowed: The allowed value or state.
        hint: The instruction for the user.
    """
    return ConfigError(f"resume: {key}", got=got, allowed=allowed, hint=hint)


def check_settings(directory: Path, config: RunConfig) -> None:
    """Check that the run config of a resumed run equals the run's config.toml, except free keys.

    Args:
        directory: The run directory.
        config: The run config of the resumed run. A key that config.toml lacks has its default there.

    Raises:
        ConfigError: The directory has no run, its config.toml cannot be read, or a key differs. The error names the
            first such key.
    """
    path = directory / "config.toml"
    if not path.exists():
        got, hint = f"true, but {directory} has no run", "set run-name (or --out) to an existing run, or remove resume"
        raise ConfigError("resume", got=got, allowed="true with an existing run", hint=hint)
    try:
        before = flatten(tomllib.loads(path.read_text("utf-8")))
    except ValueError as error:
        raise not_resumable(path, f"a file that cannot be read ({error})", "a TOML file") from None
    now = flatten(config.resolve())
    fixed = any(part.fixes_rounds for part in (config.training, config.privacy, config.family))
    free = _FREE_KEYS - ({"num-server-rounds"} if fixed else set())
    before = {key: value for key, value in config.defaults().items() if key in now} | before
    changed = sorted(k for k in before.keys() | now.keys() if k not in free and before.get(k) != now.get(k))
    if changed:
        key = changed[0]
        value, hint = "no such key, as", f"remove {key}"
        if key in before:
            value, hint = f"{before[key]!r}, as", f"set {key} to {before[key]!r}"
        allowed = f"{value} at the start of the run in {directory}"
        raise not_resumable(key, repr(now.get(key)), allowed, f"{hint}, or begin a new run")


def check_lines(path: Path, lines: Sequence[Mapping[str, Any]], covered: int) -> None:
    """Check that metrics.jsonl has a complete line for each round up to the newest checkpoint.

    Args:
        path: The file, for the error.
        lines: The lines of the file.
        covered: The round of the newest checkpoint.

    Raises:
        ConfigError: A line is missing, occurs twice, or lacks the numbers of bytes.
    """
    needed = [line for line in lines if line["round"] <= covered]
    counted = all(type(line.get(key)) is int for line in needed for key in _COUNTED)
    if not counted or [line["round"] for line in needed] != list(range(covered + 1)):
        allowed = f"one line for each round from 0 to {covered} (the newest checkpoint), with {' and '.join(_COUNTED)}"
        raise not_resumable(path, f"{len(needed)} lines of rounds up to {covered}", allowed)
