"""What ``python -m simulations new-algorithm`` is told of an algorithm, checked word by word."""

from __future__ import annotations

import keyword
import math
import re
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass

from apps.config import ConfigError, Scalar
from payloads.record import Payload
from payloads.settings import Settings
from problems.objectives.classification import CROSS_ENTROPY, SAMPLE_LOSSES

# characters of a name, so that no line of a stub grows too long
LONGEST = 32
_KEBAB = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
_SNAKE = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")
_CLASS = re.compile(r"[A-Z][A-Za-z0-9]*")
# type of a default -> its Python name, and what is allowed, in words
_TYPES = {
    bool: ("bool", "true or false"),
    int: ("int", "an integer"),
    float: ("float", "a number"),
    str: ("str", "a text"),
}


@dataclass(frozen=True)
class Setting:
    """A key of the algorithm's own table, and its default."""

    key: str
    default: Scalar

    @property
    def field(self) -> str:
        """Its Python name; `payloads.settings.kebab` leads back."""
        name = self.key.replace("-", "_")
        return f"{name}_" if keyword.iskeyword(name) else name

    @property
    def type(self) -> str:
        return _TYPES[type(self.default)][0]

    @property
    def allowed(self) -> str:
        return _TYPES[type(self.default)][1]

    @property
    def toml(self) -> str:
        """The default as pyproject.toml has it."""
        return str(self.default).lower() if isinstance(self.default, bool) else self.python

    @property
    def python(self) -> str:
        """The default as the settings model has it."""
        return f'"{self.default}"' if isinstance(self.default, str) else repr(self.default)


@dataclass(frozen=True)
class Record:
    """A record of arrays as long as the model: its class, what it is for, and its fields."""

    name: str
    role: str
    fields: tuple[str, ...]


@dataclass(frozen=True)
class NewAlgorithm:
    """What the command line says of an algorithm, checked.

    Attributes:
        name: its run-config name.
        family: the name of its modules.
        prefix: what its classes' names begin with.
        losses: those it minimises, the first by default.
        settings: the keys of its table, or none.
        down, up, state, memory: fields of what the clients get, what they send, what the server keeps and what a client
            keeps, each (d,).
    """

    name: str
    family: str
    prefix: str
    losses: tuple[str, ...]
    settings: tuple[Setting, ...]
    down: tuple[str, ...]
    up: tuple[str, ...]
    state: tuple[str, ...]
    memory: tuple[str, ...]

    @property
    def table(self) -> str:
        """Its run-config table, or "" where it has no settings."""
        return self.family.replace("_", "-") if self.settings else ""

    @property
    def records(self) -> list[Record]:
        roles = {
            "Down": ("Down: what the server sends beside the model.", self.down),
            "Up": ("Up: what a client sends beside the model.", self.up),
            "State": ("What the server keeps from round to round.", self.state),
            "Memory": ("What a client keeps from round to round.", self.memory),
        }
        return [Record(self.prefix + suffix, *told) for suffix, told in roles.items() if told[1]]

    @property
    def sends(self) -> str:
        return ", ".join(dict.fromkeys((*self.down, *self.up))).replace("_", " ") or "nothing"


def parse_setting(text: str) -> Setting:
    """``momentum=0.9``: a key and its default, in TOML.

    Raises:
        ConfigError: it is not that, or the key cannot be a field of a settings model.
    """
    key, equals, value = text.partition("=")
    key = key.strip()
    if not equals or not _KEBAB.fullmatch(key) or len(key) > LONGEST:
        raise ConfigError(
            "--setting",
            got=repr(text),
            allowed=f"key=default with a kebab-case key of at most {LONGEST} characters",
            hint="give one such as momentum=0.9",
        )
    try:
        (default,) = tomllib.loads(f"value = {value}").values()
    except ValueError:  # no TOML, or more than one value
        default = None
    ordinary = not isinstance(default, str) or re.fullmatch(r"[ -~]{0,60}", default)
    if type(default) not in _TYPES or (isinstance(default, float) and not math.isfinite(default)):
        raise ConfigError(
            f"--setting {key}",
            got=repr(value),
            allowed="a number, true, false, or a text in double quotes of its own",
            hint=f"give one, e.g. '{key}=\"auto\"'",
        )
    if not ordinary or any(mark in str(default) for mark in "|`\\'\""):
        raise ConfigError(
            f"--setting {key}",
            got=repr(value),
            allowed="up to 60 plain characters without quotes, | or `",
            hint="choose such a text",
        )
    setting = Setting(key, default)
    if hasattr(Settings, setting.field) or setting.field.startswith("model_"):
        raise ConfigError(
            "--setting",
            got=f"{key}, but every settings model has something of that name",
            allowed="any other",
            hint="choose one",
        )
    return setting


def _fields(option: str, names: Sequence[str]) -> tuple[str, ...]:
    for name in names:
        if not _SNAKE.fullmatch(name) or keyword.iskeyword(name) or hasattr(Payload, name) or len(name) > LONGEST:
            raise ConfigError(
                f"--{option}",
                got=repr(name),
                allowed=(
                    f"the Python name of a field, such as momentum, at most {LONGEST} characters long, and none that "
                    "every payload has"
                ),
                hint="choose another",
            )
    if len(set(names)) < len(names):
        raise ConfigError(f"--{option}", got=", ".join(names), allowed="each field once", hint="leave one out")
    return tuple(names)


def describe(
    name: str,
    *,
    family: str = "",
    prefix: str = "",
    losses: Sequence[str] = (),
    settings: Sequence[str] = (),
    down: Sequence[str] = (),
    up: Sequence[str] = (),
    state: Sequence[str] = (),
    memory: Sequence[str] = (),
) -> NewAlgorithm:
    """The algorithm that the command line's words describe.

    Raises:
        ConfigError: a word that cannot be used; says which, and what is allowed.
    """
    if not _KEBAB.fullmatch(name) or len(name) > LONGEST:
        raise ConfigError(
            "NAME",
            got=repr(name),
            allowed=(
                "kebab-case, which is lower-case letters, digits and single hyphens, a letter first, at most "
                f"{LONGEST} characters"
            ),
            hint="choose one such as fed-avgm",
        )
    module = family or name.replace("-", "_")
    if not _SNAKE.fullmatch(module) or keyword.iskeyword(module) or len(module) > LONGEST:
        raise ConfigError(
            "--family" if family else "NAME",
            got=repr(family or name),
            allowed=f"the name of a Python module in lower case, at most {LONGEST} characters",
            hint="choose one with --family, such as fed_avgm",
        )
    prefix = prefix or "".join(part.capitalize() for part in name.split("-"))
    if not _CLASS.fullmatch(prefix) or len(prefix) > LONGEST or keyword.iskeyword(prefix):
        raise ConfigError(
            "--class-name",
            got=repr(prefix),
            allowed=f"the Python name of a class, at most {LONGEST} characters",
            hint="choose one such as FedAvgM",
        )
    if unknown := [loss for loss in losses if loss not in SAMPLE_LOSSES]:
        raise ConfigError(
            "--loss",
            got=repr(unknown[0]),
            allowed=", ".join(SAMPLE_LOSSES),
            hint=(
                "for a loss that is no mean over samples take the modules of an algorithm that has it as a pattern, "
                "such as pairwise, minimax or sgdm (ratio-loss)"
            ),
        )
    keys = tuple(parse_setting(text) for text in settings)
    if len({setting.key for setting in keys}) < len(keys):
        raise ConfigError(
            "--setting", got=", ".join(setting.key for setting in keys), allowed="each key once", hint="leave one out"
        )
    fields = {"down": down, "up": up, "state": state, "memory": memory}
    checked = {option: _fields(option, names) for option, names in fields.items()}
    chosen = tuple(dict.fromkeys(losses)) or (CROSS_ENTROPY,)
    return NewAlgorithm(name, module, prefix, chosen, keys, **checked)
