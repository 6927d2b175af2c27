"""A parser of ``--run-config`` and ``--node-config``: the flat values of ``key=value`` pairs or of a TOML file.

An option's text is TOML, except that several pairs may share a line. `parse_pairs` reads the whole text or raises an
error. Flower's own parser silently skips text that it does not recognise, such as a pair with spaces around its ``=``.
"""

import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, get_args

import tomli_w

from apps.run_config.settings import ConfigError, Scalar
from payloads.flower_internals import parse_config_args
from problems.toml_files import read_toml, reason_of

_PAIRS = """key=value pairs such as 'seed=1 strategy="fedx2"', strings in double quotes"""
_PAGE = "see docs/configuration.md"
_BACKSLASHES = "put text with backslashes in single quotes, such as data-dir='C:\\data'"
_QUOTES = f"put single quotes around the whole argument, since the shell removes double quotes; {_PAGE}"
_GAP = r"[^\S\r\n]*"
_BASIC, _LITERAL = r'"(?:[^"\\\n]|\\.)*"', r"'[^'\n]*'"
_PART = rf"(?:[A-Za-z0-9_-]+|{_BASIC}|{_LITERAL})"
_KEY = rf"{_PART}(?:{_GAP}\.{_GAP}{_PART})*"
_BLANK_OR_COMMENT = re.compile(r"(?P<blank>\s+)|(?P<comment>#[^\n]*)")
_HEADER = re.compile(rf"\[\[?{_GAP}{_KEY}{_GAP}\]\]?(?={_GAP}(?:#|\r?\n|$))")
_ASSIGNMENT = re.compile(rf"(?P<key>{_KEY}){_GAP}={_GAP}")
_QUOTED = re.compile(rf'"""(?:[^\\]|\\.)*?"""|\'\'\'.*?\'\'\'|{_BASIC}|{_LITERAL}', re.DOTALL)
_BARE = re.compile(r"[^\s#]+")
_UP_TO_PAIR = re.compile(rf"[^\n]*?(?=\s{_KEY}{_GAP}=|\n|$)")
_HIDDEN_PAIR = re.compile(r"[\w\"'-]\s*=\s*\S")
_KINDS: dict[type, str] = {list: "an array", dict: "a table"}


def parse_pairs(option: str, text: str) -> dict[str, Scalar]:
    """Return the flat values of an option's ``key=value`` pairs or TOML file.

    Args:
        option: The option's name, for errors.
        text: Pairs of a key and a TOML value, separated by spaces or line breaks; or the path of a TOML file.

    Raises:
        ConfigError: A part of the text is not a pair; a value is not a number, true, false or a string; or a key occurs
            twice. The error names the option and the part of the text.
    """
    text = text.removeprefix("\ufeff")
    return _parse_file(option, text.strip()) if _is_file(text.strip()) else _parse_text(option, text)


def parse_for_command(option: str, text: str, command: str) -> dict[str, Scalar]:
    """Return the values of a text, after a check that a command of Flower reads the same values from the text.

    Args:
        option: The option's name, for errors.
        text: Pairs, or the path of a TOML file.
        command: The command of Flower.

    Raises:
        ConfigError: As for `parse_pairs`; or the command would read other values.
    """
    import click

    values = parse_pairs(option, text)
    try:
        flower_values: dict[str, Scalar] = parse_config_args(text) if text else {}
    except (click.ClickException, OSError, ValueError) as error:
        got = f"{text!r}, which {command} refuses ({getattr(error, 'message', '') or error})"
        hint = "save it as UTF-8 without a byte order mark" if _is_file(text.strip()) else _rewrite(values)
        raise ConfigError(option, got=got, allowed=f"text that {command} reads", hint=hint) from None
    keys = dict.fromkeys([*values, *flower_values])
    if wrong := [key for key in keys if repr(values.get(key)) != repr(flower_values.get(key))]:
        got = f"{text!r}, from which {command} does not read {', '.join(wrong)}"
        allowed = f"key=value pairs without spaces around '=', or a .toml file: {command} skips other text"
        raise ConfigError(option, got=got, allowed=allowed, hint=_rewrite(values))
    return values


def format_value(value: Scalar) -> str:
    """Return a value as TOML, in quotes that Flower's parser also understands."""
    if isinstance(value, str) and '"' in value and "'" not in value and value.isprintable():
        return f"'{value}'"
    return tomli_w.dumps({"v": value}).removeprefix("v = ").strip()


def _rewrite(values: Mapping[str, Scalar]) -> str:
    return f"write {' '.join(f'{key}={format_value(value)}' for key, value in values.items())}"


def _is_file(text: str) -> bool:
    return text.lower().endswith(".toml") and ("=" not in text or os.path.exists(text))  # noqa: PTH110, False for a name that is too long


def _parse_file(option: str, text: str) -> dict[str, Scalar]:
    try:
        content = read_toml(Path(text))
    except (OSError, ValueError) as error:
        allowed = f"a .toml file that can be read, or {_PAIRS}"
        raise ConfigError(option, got=f"{text!r}: {reason_of(error)}", allowed=allowed, hint=_PAGE) from None
    return _flatten(option, content)


def _parse_text(option: str, text: str) -> dict[str, Scalar]:
    lines = list(_split(option, text))
    try:
        content = tomllib.loads("\n".join(lines))
    except tomllib.TOMLDecodeError as error:
        keys = [match["key"] for line in lines if (match := _ASSIGNMENT.match(line))]
        twice = [key for index, key in enumerate(keys) if key in keys[:index]]
        got = f"{text!r}: {f'{twice[0]} occurs twice' if twice else error}"
        allowed = "each key once, and no key that is also the table of another key"
        hint = f"remove one {twice[0]}" if twice else "remove the key that the message names"
        raise ConfigError(option, got=got, allowed=allowed, hint=hint) from None
    for name in _empty_tables(content):
        raise ConfigError(option, got=f"the table {name} without a key", allowed=_PAIRS, hint="remove the table")
    return _flatten(option, content)


def _empty_tables(content: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    for key, value in content.items():
        if isinstance(value, Mapping):
            yield from _empty_tables(value, f"{prefix}{key}.") if value else [prefix + key]


def _split(option: str, text: str) -> Iterator[str]:
    """Yield a text as lines of TOML. Each line is the header of a table, or a pair."""
    start, line_begins = 0, True
    while start < len(text):
        if match := _BLANK_OR_COMMENT.match(text, start):
            hidden = match["comment"] and not (line_begins and "\n" in text) and _HIDDEN_PAIR.search(match["comment"])
            if hidden:
                got = f"{text!r}, with the comment {match['comment'].strip()!r}"
                raise ConfigError(option, got=got, allowed="comments without pairs", hint="remove the comment")
            line_begins |= "\n" in match.group()
        elif line_begins and (match := _HEADER.match(text, start)):
            yield match.group()
            line_begins = False
        elif (pair := _ASSIGNMENT.match(text, start)) and (end := _end_of_value(text, pair.end())):
            yield f"{pair['key']} = {text[pair.end() : end]}"
            start, line_begins = end, False
            continue
        else:
            hint = _BACKSLASHES if "\\" in text[start:] else _QUOTES if pair else _PAGE
            raise ConfigError(option, got=_describe_fault(text, start), allowed=f"{_PAIRS}, or a .toml file", hint=hint)
        start = match.end()


def _end_of_value(text: str, start: int) -> int:
    """Return the end of the value that begins at ``start``; 0 if no TOML value begins there."""
    if match := _QUOTED.match(text, start):
        return match.end() if _is_value(match.group()) else 0
    if text[start : start + 1] in ("[", "{"):
        closing = "]" if text[start] == "[" else "}"
        ends = (match.end() for match in re.compile(re.escape(closing)).finditer(text, start))
        end = next((end for end in ends if _is_value(text[start:end])), 0)
        return end if not text[end : end + 1].strip().strip("#") else 0
    match = _BARE.match(text, start)
    return match.end() if match and _is_value(match.group()) else 0


def _is_value(text: str) -> bool:
    try:
        return tomllib.loads(f"v = {text}").keys() == {"v"}
    except tomllib.TOMLDecodeError:
        return False


def _describe_fault(text: str, start: int) -> str:
    """Describe a text with an error: quote the text, and its first part that is not a pair."""
    pair = _ASSIGNMENT.match(text, start)
    wrong = _BARE.match(text, pair.end()) if pair else _UP_TO_PAIR.match(text, start)
    end = wrong.end() if wrong else len(text)
    return f"{text!r}, of which {text[start:end].strip()!r} is not a pair"


def _flatten(option: str, content: Mapping[str, Any]) -> dict[str, Scalar]:
    flat: dict[str, Scalar] = {}
    for key, value in _leaves(content):
        if not isinstance(value, get_args(Scalar)):
            got = f"{key}={value!r}, {_KINDS.get(type(value), 'a date or time')}"
            hint = "write a list as one string with commas, if the key takes a list"
            raise ConfigError(option, got=got, allowed="a number, true, false or a string", hint=hint)
        if key in flat:
            raise ConfigError(option, got=f"{key} twice", allowed="each key once", hint=f"remove one {key}")
        flat[key] = value
    return flat


def _leaves(content: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in content.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value
