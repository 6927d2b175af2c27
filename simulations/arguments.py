"""What the command line is given: run-config overrides, and the values a sweep varies."""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from apps.config import ConfigError, Scalar, parse_pairs
from problems.errors import NOTHING
from simulations import PAGE


def overrides_of(texts: Sequence[str] | None) -> dict[str, Scalar]:
    """The flat run config of some ``key=value`` strings or TOML files, later ones first.

    Raises:
        ConfigError: a text is neither, or names a key that the command line sets itself.
    """
    flat: dict[str, Scalar] = {}
    for text in texts or []:
        flat |= parse_pairs("--config", text)
    for key in ("output-dir", "run-name"):
        if key in flat:
            raise ConfigError(
                key, got=f"{flat[key]!r} by --config", allowed="by --out alone", hint="leave it out of --config"
            )
    return flat


def node_configs_of(texts: Sequence[str] | None) -> list[dict[str, Scalar]]:
    """The node configs of some ``key=value`` strings or TOML files, one a site.

    Raises:
        ConfigError: a text is neither, or says which partition a site is, which its place says.
    """
    configs = [parse_pairs("--node-config", text) for text in texts or []]
    for key in ("partition-id", "num-partitions"):
        if any(key in config for config in configs):
            raise ConfigError(
                "--node-config",
                got=key,
                allowed="any other, since it follows from the order and the number of these options",
                hint="leave it out",
            )
    return configs


def placed(flat: dict[str, Scalar], directory: Path) -> dict[str, Scalar]:
    """The flat run config of a run whose directory is ``directory``."""
    target = directory.expanduser().resolve()
    return {**flat, "output-dir": str(target.parent), "run-name": target.name}


@dataclass(frozen=True)
class Distribution:
    """A distribution of one key's values, as ``name(arguments)``."""

    text: str
    sample: Callable[[np.random.Generator], Scalar]


def _uniform(low: float, high: float) -> Callable[[np.random.Generator], Scalar]:
    return lambda rng: _rounded(rng.uniform(low, high), low, high)


def _loguniform(low: float, high: float) -> Callable[[np.random.Generator], Scalar]:
    return lambda rng: _rounded(math.exp(rng.uniform(math.log(low), math.log(high))), low, high)


def _randint(low: int, high: int) -> Callable[[np.random.Generator], Scalar]:
    return lambda rng: int(rng.integers(low, high, endpoint=True))


def _rounded(value: float, low: float, high: float) -> float:
    """Six significant digits, so that names and files can be read; never out of range."""
    return min(max(float(f"{value:.6g}"), low), high)


# name -> (maker, how it is called)
RANGES: dict[str, tuple[Callable[..., Callable[[np.random.Generator], Scalar]], str]] = {
    "uniform": (_uniform, "uniform(low,high)"),
    "loguniform": (_loguniform, "loguniform(low,high)"),
    "randint": (_randint, "randint(low,high)"),
}
KINDS = [*(usage for _, usage in RANGES.values()), "choice(a,b,...)"]


def parse_grid(texts: Sequence[str] | None) -> dict[str, list[Scalar]]:
    """``key=value,value,...`` of each --grid; values are written as in TOML.

    Raises:
        ConfigError: naming the text and what is wrong with it.
    """
    grid: dict[str, list[Scalar]] = {}
    for text in texts or []:
        option = f"--grid {text!r}"
        key, values = _split(text, option, "key=value,value,...")
        grid[_once(key, grid, option)] = _distinct(_values(values, option), option)
    return grid


def parse_random(texts: Sequence[str] | None) -> dict[str, Distribution]:
    """``key=distribution(arguments)`` of each --random.

    Raises:
        ConfigError: naming the text and what is wrong with it.
    """
    found: dict[str, Distribution] = {}
    for text in texts or []:
        option = f"--random {text!r}"
        key, right = _split(text, option, "key=distribution(arguments)")
        call = re.fullmatch(r"\s*([\w-]+)\s*\((.*)\)\s*", right)
        if call is None:
            raise ConfigError(
                option,
                got=right.strip() or NOTHING,
                allowed=f"key=distribution(arguments), with one of {', '.join(KINDS)}",
                hint=PAGE,
            )
        found[_once(key, found, option)] = Distribution(
            right.strip(), _sampler(call[1], _values(call[2], option), option)
        )
    return found


def _sampler(name: str, arguments: list[Scalar], option: str) -> Callable[[np.random.Generator], Scalar]:
    if name == "choice":
        choices = _distinct(arguments, option)
        return lambda rng: choices[int(rng.integers(len(choices)))]
    if name not in RANGES:
        raise ConfigError(option, got=f"unknown distribution {name!r}", allowed=", ".join(KINDS), hint=PAGE)
    make, usage = RANGES[name]
    whole = name == "randint"
    numbers = [a for a in arguments if isinstance(a, int if whole else int | float) and not isinstance(a, bool)]
    if len(arguments) != 2 or len(numbers) != 2 or not all(map(math.isfinite, numbers)):
        raise ConfigError(
            option,
            got=f"{len(arguments)} values",
            allowed=f"{usage} with two finite {'integers' if whole else 'numbers'}",
            hint=PAGE,
        )
    low, high = numbers
    if low >= high:
        raise ConfigError(option, got=f"an empty range from {low} to {high}", allowed="low less than high", hint=PAGE)
    if name == "loguniform" and low <= 0:
        raise ConfigError(
            option, got=f"the range from {low} to {high}, which has no logarithm", allowed="low above 0", hint=PAGE
        )
    return make(low, high)


def _split(text: str, option: str, form: str) -> tuple[str, str]:
    key, equals, right = text.partition("=")
    if not equals or not key.strip():
        raise ConfigError(option, got=repr(text), allowed=form, hint=PAGE)
    return key.strip(), right


def _values(text: str, option: str) -> list[Scalar]:
    try:
        values: list[Any] = tomllib.loads(f"values = [{text}]")["values"] if "\n" not in text else [None]
    except tomllib.TOMLDecodeError:
        values = [None]
    if not all(isinstance(value, bool | int | float | str) for value in values):
        raise ConfigError(
            option,
            got=repr(text),
            allowed="numbers, true, false or strings in double quotes, separated by commas",
            hint=PAGE,
        )
    if not values:
        raise ConfigError(option, got="no value", allowed="one at least", hint=PAGE)
    return values


def _distinct(values: list[Scalar], option: str) -> list[Scalar]:
    twice = [value for number, value in enumerate(values) if value in values[:number]]
    if twice:
        raise ConfigError(option, got=f"{twice[0]!r}, which is there twice", allowed="once", hint="leave one out")
    return values


def _once(key: str, before: dict[str, Any], option: str) -> str:
    if key in before:
        raise ConfigError(
            option, got=f"{key}, which is already varied", allowed="once", hint="give all its values in one option"
        )
    return key
