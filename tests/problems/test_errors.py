"""What an error of bad input is: four fields, and a text of one line that all of them make."""

import copy
import pickle
from pathlib import Path

import pytest

from apps.config import ConfigError
from apps.doctor.findings import WrongError
from problems.data import DataError
from problems.errors import NOTHING, InputError
from problems.minimax import ProblemError
from problems.models import ModelError
from strategies.rounds.errors import SetupError

FIELDS = ("key", "got", "allowed", "hint")


def an_error(key: str = "tau", got: float | str = 0, hint: str = "leave it out") -> ConfigError:
    return ConfigError(key, got=got, allowed="1 or more", hint=hint)


def test_the_text_is_made_of_the_fields() -> None:
    error = ConfigError(
        "fraction-train", got=0.5, allowed="1.0, since strategy 'coda' needs every client", hint="leave it out"
    )
    said = "fraction-train: got 0.5, allowed: 1.0, since strategy 'coda' needs every client; leave it out"
    assert str(error) == said
    assert str(ConfigError("data-dir", got=NOTHING, allowed="a folder", hint="set it")).startswith(
        "data-dir: got nothing, allowed: a folder"
    )
    assert str(DataError(Path("a.csv"), got="no row", allowed="one", hint="bring some")).startswith("a.csv: got no row")


def test_it_is_one_line_whatever_it_got() -> None:
    error = ConfigError("a\nkey", got="two\nlines\t" + 1000 * "x", allowed="a\r\nb", hint="look\n at it")
    assert str(error).splitlines() == [str(error)]
    assert error.key == "a key"
    assert error.got.startswith("two lines xxx")
    assert error.got.endswith("xxx")
    assert len(error.got) <= 240
    assert len(str(error)) < 500


def test_a_place_before_its_key_keeps_all_else() -> None:
    error = an_error()
    placed = error.at("partition 3")
    assert type(placed) is ConfigError
    assert str(placed) == f"partition 3: {error}"
    assert [getattr(placed, name) for name in FIELDS] == ["partition 3: tau", "0", "1 or more", "leave it out"]
    assert error.key == "tau"
    other = DataError.of(error, "site", hint="see docs/data.md")
    assert type(other) is DataError
    assert str(other) == "site: tau: got 0, allowed: 1 or more; see docs/data.md"
    assert str(DataError.of(error)) == str(error)


def test_several_are_told_in_one_line() -> None:
    one, two, three = an_error("a"), an_error("b", 2), an_error("c", 3, "see docs/data.md")
    assert str(ConfigError.join([one])) == str(one)
    both = ConfigError.join([one, two])
    assert str(both) == "a: got 0, allowed: 1 or more; b: got 2, allowed: 1 or more; leave it out"
    every = ConfigError.join([one, two, three])
    assert str(every) == f"{both}; {three}"
    assert every.at("x").also == (two, three)
    assert [getattr(every, name) for name in FIELDS] == [getattr(one, name) for name in FIELDS]


@pytest.mark.parametrize("kind", [ConfigError, DataError, ModelError, ProblemError, SetupError, WrongError])
def test_it_crosses_processes_with_its_fields(kind: type[InputError]) -> None:
    error = kind.join([kind("key", got="1", allowed="2", hint="h"), an_error()])
    for again in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert type(again) is kind
        assert str(again) == str(error)
        assert [getattr(again, name) for name in FIELDS] == ["key", "1", "2", "h"]
        assert str(again.also[0]) == str(an_error())
