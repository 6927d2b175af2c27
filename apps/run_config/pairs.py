"""Run-config values from a command line or a TOML file, as the flat dictionary that Flower hands over."""

import re

from apps.run_config.settings import ConfigError, Scalar
from payloads.flower_internals import parse_config_args

# a key and a value, which may have spaces if it is in quotes
_PAIR = r"""([\w.-]+)\s*=\s*("[^"]*"|'[^']*'|\S+)"""
# how pairs are written
_PAIRS = """key=value pairs such as 'seed=1 strategy="fedx2"', strings in double quotes"""


def parse_pairs(option: str, text: str) -> dict[str, Scalar]:
    """The flat values of an option's ``key=value`` pairs or TOML file, read as Flower reads them.

    Raises:
        ConfigError: the text is neither; names the option.
    """
    import click

    page = "see docs/configuration.md"
    try:
        values: dict[str, Scalar] = parse_config_args(text)
    except click.ClickException:
        found = [key for key, _ in re.findall(_PAIR, text)]
        twice = [key for place, key in enumerate(found) if key in found[:place]]
        if twice:
            got = f"{text!r}: {twice[0]} is there twice"
            raise ConfigError(option, got=got, allowed="once", hint="leave one out") from None
        raise ConfigError(option, got=_culprit(text), allowed=_PAIRS, hint=page) from None
    except (OSError, ValueError) as error:
        reason = (error.strerror or str(error)) if isinstance(error, OSError) else str(error)
        allowed = f"a .toml file that can be read, or {_PAIRS}"
        raise ConfigError(option, got=f"{text!r}: {reason}", allowed=allowed, hint=page) from None
    # Flower's parser skips text that is not a pair
    if not text.endswith(".toml") and re.sub(_PAIR, "", text).strip():
        raise ConfigError(option, got=_culprit(text), allowed=f"{_PAIRS}, or a .toml file", hint=page)
    return values


def _culprit(text: str) -> str:
    """An option's text and, if it can be found, the part of it that is not a pair."""
    import click

    left = re.sub(_PAIR, "", text).strip()
    if left:
        return f"{text!r}, of which {left!r} is no pair"
    for pair in re.finditer(_PAIR, text):
        try:
            parse_config_args(pair.group())
        except click.ClickException:
            return f"{text!r}, of which {pair.group()!r} is no pair"
    return repr(text)
