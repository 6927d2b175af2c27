"""All of an option's text arrives as values, or the text is refused."""

import contextlib
import re
import tomllib
from pathlib import Path

import click
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from apps.config import ConfigError, Scalar
from apps.run_config.pairs import format_value, parse_for_command, parse_pairs
from apps.run_config.settings import flatten
from payloads.flower_internals import parse_config_args
from tests.refusals import refuses, spell

GAPS = st.sampled_from(["", "", " ", "\t", "  \t", "\u00a0"])
TEXTS = st.text(st.sampled_from("ab=#[]{}.,' \"\\\t"), max_size=6)
VALUES = st.one_of(st.booleans(), st.integers(-(2**40), 2**40), st.floats(allow_nan=False), TEXTS)
KEYS = st.sampled_from(["seed", "privacy.epsilon", "privacy.secure-sum", "a", "b_2", "c.d.e", "--f", "7"])
ENDS = st.sampled_from([" ", "\t", "\n", "\r\n", " # a note\n", "\n\n# 'a', [b]\n", "\n# seed = 3\n"])
PAIRS = st.dictionaries(KEYS, VALUES, min_size=1)


@settings(deadline=None, max_examples=300)
@given(st.data(), PAIRS)
def test_every_pair_arrives(data: st.DataObject, pairs: dict[str, Scalar]) -> None:
    text = data.draw(st.sampled_from(["", "\ufeff", "\n", " "]))
    for key, value in pairs.items():
        text += f"{key}{data.draw(GAPS)}={data.draw(GAPS)}{format_value(value)}{data.draw(ENDS)}"
    assert {key: repr(value) for key, value in parse_pairs("-c", text).items()} == dict(
        zip(pairs, map(repr, pairs.values()), strict=True)
    )


@settings(deadline=None, max_examples=300)
@given(
    st.data(), PAIRS, st.sampled_from(["word", "=", "x=", "=2", "x=y", "'", '"', "[", "]", "x=[1]", ",", "x==1", "\\"])
)
def test_a_text_with_anything_else_is_refused(data: st.DataObject, pairs: dict[str, Scalar], junk: str) -> None:
    parts = [f"{key} = {format_value(value)}" for key, value in pairs.items()]
    parts.insert(data.draw(st.integers(0, len(parts))), junk)
    with refuses(ConfigError, "^-c: got"):
        parse_pairs("-c", data.draw(st.sampled_from([" ", "\n", " # note\n"])).join(parts))


@settings(deadline=None, max_examples=1000)
@given(st.text(st.sampled_from("ab1=#[]{}.' \"\t\n"), max_size=24))
def test_values_are_those_of_toml_and_of_flower(text: str) -> None:
    try:
        found = parse_pairs("-c", text)
    except ConfigError:
        found = None
    with contextlib.suppress(tomllib.TOMLDecodeError):
        assert found is None or found == flatten(tomllib.loads(text))
    try:
        flower = parse_config_args(text)
    except (click.ClickException, ValueError):
        return
    if "#" not in text and not re.sub(r"(\S+?)=('[^']*'|\"[^\"]*\"|\S+)", "", text).strip():
        assert repr(found) == repr(flower)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("privacy.epsilon=1.0 # privacy.secure-sum=true", "with the comment '# privacy.secure-sum=true'"),
        ("drop-columns=['a', 'b']", "drop-columns=['a', 'b'], an array, allowed: a number, true, false or a string"),
        ("seed=2026-01-01", "a date or time"),
        ('"a.b"=1 a.b=2', "a.b twice"),
        ("[privacy] epsilon=1", "of which '[privacy]' is not a pair"),
        ("strategy=fedx1", "put single quotes around the whole argument"),
        ('data-dir="C:\\data"', "put text with backslashes in single quotes"),
        ("seed=1 privacy={}", "the table privacy without a key"),
        ("~nobody-here/a.toml", "Could not determine home directory"),
        (f"a={'b' * 5000}.toml", "is not a pair"),
        ("nowhere.toml", "'nowhere.toml': No such file"),
    ],
)
def test_a_refusal_names_the_text(text: str, said: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        parse_pairs("-c", text)
    assert said in spell(refusal.value)


def test_files_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_bytes(b"\xef\xbb\xbfseed = 3\r\n[privacy]\r\nepsilon = 1.0 # a note\r\n")
    assert parse_pairs("-c", str(path)) == {"seed": 3, "privacy.epsilon": 1.0}
    with refuses(ConfigError, "which flwr run refuses .*; save it as UTF-8 without a byte order mark"):
        parse_for_command("--run-config", str(path), "flwr run")
    path.write_text("seed = 3", "utf-16")
    with refuses(ConfigError, "UTF-16, but TOML is UTF-8"):
        parse_pairs("-c", str(path))


@pytest.mark.parametrize(
    "text", ["privacy.epsilon = 1.0", "privacy.secure-sum = true", "secure-sum\t=true", "a=1 b =2"]
)
def test_a_text_that_flower_would_skip_is_refused_for_its_commands(text: str) -> None:
    values = parse_pairs("-c", text)
    with refuses(ConfigError, "does not read") as refusal:
        parse_for_command("--node-config", text, "flower-supernode")
    assert parse_for_command("--node-config", refusal.value.hint.removeprefix("write "), "flower-supernode") == values
