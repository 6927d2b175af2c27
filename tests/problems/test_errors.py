"""Tests of errors of bad input: four fields, the printed line, and suggestions for misspelt names."""

import copy
import pickle
from pathlib import Path

import pytest

from apps.config import ConfigError
from apps.doctor.findings import WrongError
from problems.data import DataError
from problems.errors import NOTHING, InputError, did_you_mean
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
    said = "fraction-train: leave it out (got 0.5; allowed: 1.0, since strategy 'coda' needs every client)"
    assert str(error) == said
    assert str(ConfigError("data-dir", got=NOTHING, allowed="a folder", hint="set data-dir")).endswith(
        "(got nothing; allowed: a folder)"
    )
    assert str(DataError(Path("a.csv"), got="no row", allowed="rows", hint="add a row")).startswith("a.csv: add a row")


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
    assert str(other) == "site: tau: see docs/data.md (got 0; allowed: 1 or more)"
    assert str(DataError.of(error)) == str(error)


def test_several_are_told_in_one_line() -> None:
    one, two, three = an_error("a"), an_error("b", 2), an_error("c", 3, "see docs/data.md")
    assert str(ConfigError.join([one])) == str(one)
    both = ConfigError.join([one, two])
    assert str(both) == "a: leave it out (got 0; allowed: 1 or more); b (got 2; allowed: 1 or more)"
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


STRATEGIES = (
    "coda",
    "codasca",
    "fedda",
    "fast-fedda",
    "fedprox",
    "fedsgda-mb",
    "fedx1",
    "fedx2",
    "local-sgd",
    "scaffold",
)
KEYS = ("batch-size", "data-dir", "learning-rate", "num-server-rounds", "vfb2.epochs", "fedx.gamma", "privacy.epsilon")
CHOICES = ("iid", "natural", "dirichlet", "balanced", "secure", "min-rows", "cpu", "l1", "auc", "adam")


@pytest.mark.parametrize(
    ("word", "name"),
    [
        ("feda", "fedda"),
        ("fedprx", "fedprox"),
        ("FedProx", "fedprox"),
        ("scafflod", "scaffold"),
        ("local_sdg", "local-sgd"),
        ("fastfedda", "fast-fedda"),
        ("batchsize", "batch-size"),
        ("learnng-rates", "learning-rate"),
        ("num-rounds", "num-server-rounds"),
        ("fedx.gama", "fedx.gamma"),
        ("privcy.epslion", "privacy.epsilon"),
        ("dirichelet", "dirichlet"),
        ("iidd", "iid"),
        ("acu", "auc"),
    ],
)
def test_a_misspelt_name_is_suggested(word: str, name: str) -> None:
    assert did_you_mean(word, (*STRATEGIES, *KEYS, *CHOICES), "see it") == f"did you mean {name!r}? If not, see it"


@pytest.mark.parametrize(
    "word",
    # other methods, keys of other tables, other numbers, opposites, and words that are only similar
    [
        *("fedadam", "fedavg", "fedsgd", "fedsgda", "fedyogi", "fednova", "fedx", "fedx3", "sgd"),
        *("epochs", "gamma", "epsilon", "sgdam.gamma", "rounds", "local-epochs", "data-path", "test-size"),
        *("non-iid", "noniid", "niid", "unnatural", "unbalanced", "insecure", "max-rows", "gpu", "l2", ""),
    ],
)
def test_another_word_is_not_taken_for_a_misspelt_name(word: str) -> None:
    assert did_you_mean(word, (*STRATEGIES, *KEYS, *CHOICES), "see it") == "see it"


def test_the_suggestion_comes_before_the_names() -> None:
    names = ", ".join(STRATEGIES)
    error = ConfigError(
        "strategy", got="'feda'", allowed=names, hint=did_you_mean("feda", STRATEGIES, "see docs/fedx.md")
    )
    assert str(error).startswith("strategy: did you mean 'fedda'? If not, see docs/fedx.md (got 'feda'; allowed: coda")
