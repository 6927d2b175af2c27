"""The parsing of ``--grid`` and ``--random``, the values that a sweep varies: lists and distributions."""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from apps.config import ConfigError, Scalar
from problems.errors import NOTHING
from simulations import PAGE


@dataclass(frozen=True)
class Distribution:
    """A distribution of a key's values, such as ``uniform(0,1)``, with the function that draws a value."""

    text: str
    sample: Callable[[np.random.Generator], Scalar]


def _uniform(rng: np.random.Generator, low: float, high: float) -> float:
    return _round(rng.uniform(low, high), low, high)


def _loguniform(rng: np.random.Generator, low: float, high: float) -> float:
    return _round(math.exp(rng.uniform(math.log(low), math.log(high))), low, high)


def _randint(rng: np.random.Generator, low: int, high: int) -> int:
    return int(rng.integers(low, high, endpoint=True))


def _round(value: float, low: float, high: float) -> float:
    """Round to six significant digits, for readable names, and stay in the range."""
    return min(max(float(f"{value:.6g}"), low), high)


RANGES: dict[str, Callable[..., Scalar]] = {"uniform": _uniform, "loguniform": _loguniform, "randint": _randint}
KINDS = ", ".join([*(f"{name}(low,high)" for name in RANGES), "choice(a,b,...)"])


def parse_grid(texts: Sequence[str] | None) -> dict[str, list[Scalar]]:
    """Return the values by key of each --grid, ``key=value,value,...``. The syntax of values is TOML's.

    Raises:
        ConfigError: A text has another form, or repeats a key or a value.
    """
    grid: dict[str, list[Scalar]] = {}
    for text in texts or []:
        option = f"--grid {text!r}"
        key, values = _split(text, option, "key=value,value,...", grid)
        grid[key] = _distinct(_values(values, option), option)
    return grid


def parse_random(texts: Sequence[str] | None) -> dict[str, Distribution]:
    """Return the distribution by key of each --random, ``key=distribution(arguments)``.

    Raises:
        ConfigError: A text has another form, repeats a key, or has wrong arguments.
    """
    distributions: dict[str, Distribution] = {}
    for text in texts or []:
        option, form = f"--random {text!r}", "key=distribution(arguments)"
        key, right = _split(text, option, form, distributions)
        call = re.fullmatch(r"([\w-]+)\s*\((.*)\)", right)
        if call is None:
            raise ConfigError(option, got=right or NOTHING, allowed=f"{form}, with one of {KINDS}", hint=PAGE)
        distributions[key] = Distribution(right, _sampler(call[1], _values(call[2], option), option))
    return distributions


def _sampler(name: str, arguments: list[Scalar], option: str) -> Callable[[np.random.Generator], Scalar]:
    if name == "choice":
        choices = _distinct(arguments, option)
        return lambda rng: choices[int(rng.integers(len(choices)))]
    if name not in RANGES:
        raise ConfigError(option, got=f"unknown distribution {name!r}", allowed=KINDS, hint=PAGE)
    kind = int if name == "randint" else int | float
    numbers = [
        number
        for number in arguments
        if isinstance(number, kind) and not isinstance(number, bool) and math.isfinite(number)
    ]
    bound = 0.0 if name == "loguniform" else -math.inf
    if len(arguments) != 2 or len(numbers) != 2 or not bound < numbers[0] < numbers[1]:
        type_name = "integers" if name == "randint" else "finite numbers"
        rule = f"{name}(low,high) with two {type_name}, low less than high" + " and above 0" * (name == "loguniform")
        raise ConfigError(option, got=", ".join(map(repr, arguments)), allowed=rule, hint=PAGE)
    low, high = numbers
    return lambda rng: RANGES[name](rng, low, high)


def _split(text: str, option: str, form: str, before: Container[str]) -> tuple[str, str]:
    """Split ``key=text``, and check that no earlier option varies the key."""
    key, equals, right = (part.strip() for part in text.partition("="))
    if not equals or not key:
        raise ConfigError(option, got=repr(text), allowed=form, hint=PAGE)
    if key in before:
        got, hint = f"{key}, which is already varied", f"list all values of {key} in one option"
        raise ConfigError(option, got=got, allowed="each key once", hint=hint)
    return key, right


def _values(text: str, option: str) -> list[Scalar]:
    try:
        values: list[Any] = tomllib.loads(f"values = [{text}]")["values"] if "\n" not in text else [None]
        tomllib.loads(f"values = [{text}\n]")  # fails if the text closes the bracket itself and comments out the end
    except tomllib.TOMLDecodeError:
        values = [None]
    if not all(isinstance(value, Scalar) for value in values):
        allowed = "numbers, true, false or strings in double quotes, separated by commas"
        quoted = ",".join(f'"{word.strip()}"' for word in text.split(","))
        hint = f"write words as {quoted}" if text.replace(",", "").replace("-", "").isalnum() else PAGE
        raise ConfigError(option, got=repr(text), allowed=allowed, hint=hint)
    if not values:
        raise ConfigError(option, got="no value", allowed="at least one value", hint=PAGE)
    return values


def _distinct(values: list[Scalar], option: str) -> list[Scalar]:
    twice = [value for number, value in enumerate(values) if value in values[:number]]
    if twice:
        raise ConfigError(option, got=f"{twice[0]!r} twice", allowed="each value once", hint="remove the repetition")
    return values
