"""Reading of an experiment's TOML files, with one error that lists all wrong keys."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_args

from pydantic import Field, ValidationError

from apps.config import ConfigError
from payloads.settings import Settings
from problems.errors import NOTHING, did_you_mean
from problems.toml_files import read_toml, reason_of
from simulations.arguments import ProfileName as ProfileName

SET_BY_COMMAND = ("output-dir", "run-name", "resume", "seed")

Count = Annotated[int, Field(ge=1)]
Sentences = list[Annotated[str, Field(min_length=1)]]
S = TypeVar("S", bound=Settings)


def read_settings(model: type[S], path: Path, allowed: str, hint: str, key_hint: str, **defaults: Any) -> S:
    """Read a TOML file into a settings class.

    Args:
        model: The settings class.
        path: The file.
        allowed: The allowed content in the error about an unreadable file.
        hint: The hint in the error about an unreadable file.
        key_hint: The hint in errors about single keys.
        defaults: The defaults of optional keys.

    Raises:
        ConfigError: The file cannot be read, or keys are missing, unknown or wrong. The message names file and keys.
    """
    try:
        content = read_toml(path)
    except (OSError, ValueError) as error:
        got = f"a file that cannot be read ({reason_of(error)})"
        raise ConfigError(path, got=got, allowed=allowed, hint=hint) from None
    try:
        return model.model_validate({**defaults, **content})
    except ValidationError as error:
        raise ConfigError.join([problem.at(str(path)) for problem in _problems(error, model, key_hint)]) from None


def _problems(error: ValidationError, model: type[Settings], key_hint: str) -> Iterator[ConfigError]:
    for detail in error.errors(include_url=False):
        key = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in detail["loc"]).lstrip(".")
        if detail["type"] == "missing":
            yield ConfigError(key, got=NOTHING, allowed="a value", hint=key_hint)
        elif detail["type"] == "extra_forbidden":
            known = _list_known(model, *detail["loc"])
            hint = did_you_mean(str(detail["loc"][-1]), known, key_hint)
            yield ConfigError(key, got="an unknown key", allowed=", ".join(known), hint=hint)
        elif isinstance(cause := detail.get("ctx", {}).get("error"), ConfigError):
            yield cause.at(key) if key else cause
        else:
            allowed = detail["msg"][:1].lower() + detail["msg"][1:]
            yield ConfigError(key, got=repr(detail["input"]), allowed=allowed, hint=key_hint)


def _list_known(model: type[Settings], *location: int | str) -> list[str]:
    """Return the allowed keys of the table at ``location``, whose last part is an unknown key."""
    for part in location[:-1]:
        inner = [_model_in(field.annotation) for field in model.model_fields.values() if field.alias == part]
        model = next(filter(None, inner), model)
    return [str(field.alias) for field in model.model_fields.values()]


def _model_in(annotation: Any) -> type[Settings] | None:
    """Return the settings class in a field's type, for example in ``list[Run]``. None: there is none."""
    if isinstance(annotation, type) and issubclass(annotation, Settings):
        return annotation
    return next(filter(None, map(_model_in, get_args(annotation))), None)


def check_free(key: str, value: Any) -> None:
    """Check that an experiment's file may set a run-config key.

    Raises:
        ConfigError: The command determines this key.
    """
    if key in SET_BY_COMMAND:
        raise ConfigError(key, got=repr(value), allowed="no value, since the command sets it", hint=f"remove {key}")
