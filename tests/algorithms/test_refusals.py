"""Errors in the settings of every family: the message names the key, the value and the allowed values."""

import pytest

from apps.config import ConfigError, Scalar, allowed_values, known_fields, parse_run_config
from tests.refusals import spell

OWN = "tests.algorithms.minimax_problems:"
# a strategy, a key, its value, and further parts of the message
ONE_KEY: list[tuple[str, str, Scalar, tuple[str, ...]]] = [
    ("composite", "fraction-train", 0.5, ("allowed: 1.0", "'composite'")),
    ("codasca", "loss", "psm", ("auc-minimax",)),
    ("fedprox", "loss", "auc-minimax", ("'fedprox', allowed: auto, cross-entropy",)),
    ("scaffold", "loss", "ratio-loss", ("'scaffold', allowed: auto, cross-entropy",)),
    ("local-sgdm", "loss", "ratio-loss", ("'local-sgdm', allowed: auto, cross-entropy", "local-sgdm-rl")),
    ("local-sgdm", "loss", "ratio-los", ("did you mean 'ratio-loss'",)),
    ("local-sgdm-rl", "loss", "cross-entropy", ("auto, ratio-loss",)),
    ("local-sgdam", "loss", "compositional-auc", ("set strategy to local-scgdam",)),
    *((name, "sgdam.beta-x", 5.0, ("allowed: ", "eta * beta-x <= 1")) for name in ("local-sgdam", "fedx2")),
    ("local-sgdam", "sgdam.beta-y", 5.0, ("allowed: ", "eta * beta-y <= 1")),
    *((name, "scgdam.beta-x", 5.0, ("allowed: ", "eta * beta-x <= 1")) for name in ("local-scgdam", "fedx2")),
    ("local-scgdam", "scgdam.beta-y", 5.0, ("allowed: ", "eta * beta-y <= 1")),
    ("local-scgdam", "scgdam.alpha", 5.0, ("allowed: ", "eta * alpha <= 1")),
    ("local-scgdam", "loss", "psm", ("strategy 'local-scgdam', allowed: auto, compositional-auc;",)),
    ("local-scgdam", "loss", OWN + "Robust", ("'local-scgdam' cannot solve", "fedsgda-mb", "coda")),
    ("fedsgda-spider", "loss", "synthetic-pl", ("allowed: auto",)),
    ("fedsgda-spider", "loss", OWN + "Missing", ("has no attribute 'Missing'", "allowed: 'package.module:factory'")),
    ("fedsgda-spider", "loss", ":Robust", ("cannot import ''", "allowed: 'package.module:factory'")),
]
SEVERAL: list[tuple[dict[str, Scalar], tuple[str, ...]]] = [
    ({"fedprox.mu": 0.1}, ("fedprox.mu", "unknown")),
    ({"sgdam.eta": 0.5}, ("sgdam.beta-x: got 3.3, allowed: ", "sgdam.beta-y: got 3.3, allowed: ")),
    ({"sgdam.eta": 0.5, "sgdam.beta-x": 2.0}, ("sgdam.beta-y: got 3.3",)),
    ({"scgdam.eta": 0.32}, ("scgdam.beta-x: got 3.3, allowed: ", "scgdam.beta-y: got 3.3, allowed: ")),
    *(
        ({"strategy": "fedsgda-spider", "dataset": "synthetic-pl", key: value}, ("'synthetic-pl'", *parts))
        for key, value, *parts in [
            ("loss", OWN + "Robust", "loss: got ", "Robust", "is a complete problem"),
            ("partition", "dirichlet", "has no labels", "partition: got 'dirichlet', allowed: "),
            ("imbalance", 0.1, "has no labels", "imbalance: got 0.1, allowed: 0.0"),
            ("label-noise", 0.1, "has no labels", "label-noise: got 0.1, allowed: 0.0"),
            ("client-shift", 0.1, "has no labels", "client-shift: got 0.1, allowed: 0.0"),
            ("positive-label", "1", "has no labels", "positive-label: got '1', allowed: ''"),
        ]
    ),
]
ROWS = [
    *(({"strategy": name, key: value}, (f"{key}: got {value!r}", *parts)) for name, key, value, parts in ONE_KEY),
    *SEVERAL,
]


@pytest.mark.parametrize(("values", "parts"), ROWS, ids=lambda one: str(one) if isinstance(one, dict) else "")
def test_a_refusal_names_key_value_and_what_is_allowed(values: dict[str, Scalar], parts: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError) as refused:
        parse_run_config(values)
    message = spell(refused.value)
    assert [part for part in parts if part not in message] == []
    # the message blames only the expected keys
    assert message.count(": got ") == sum(": got " in part for part in parts) or "unknown" in parts
    assert "local-scgdam" not in message.partition("strategies that can")[2]


# descriptions of a key's allowed values, and values outside of them
BOUNDS: dict[str, tuple[Scalar, ...]] = {
    "a number > 0": (0.0, -1.0),
    "a number >= 0": (-0.1,),
    "a number >= 1": (0.9,),
    "an integer >= 0": (-1,),
    "an integer >= 1": (0,),
    "a number in (0, 1]": (0.0, 1.1),
    "in [0, 1]": (-0.1, 1.1),
    "in [0, 1)": (-0.1, 1.0),
}
# its values may also be shares
DESCRIBED = {key: text for key, text in allowed_values(known_fields()).items() if key != "min-train-nodes"}


@pytest.mark.parametrize(
    ("key", "value"),
    [(key, one) for key, text in DESCRIBED.items() for told in BOUNDS if told in text for one in BOUNDS[told]],
)
def test_a_value_beyond_what_a_key_says_of_itself_is_refused(key: str, value: Scalar) -> None:
    with pytest.raises(ConfigError) as refused:
        parse_run_config({key: value})
    assert (repr(value), DESCRIBED[key]) in [(one.got, one.allowed) for one in (*refused.value.also, refused.value)]


@pytest.mark.parametrize(
    ("family", "keys"), [("sgdam", ("beta-x", "beta-y")), ("scgdam", ("beta-x", "beta-y", "alpha"))]
)
@pytest.mark.parametrize("eta", [0.3, 1.0, 0.1, 1e-3])
def test_weights_of_one_are_allowed(family: str, keys: tuple[str, ...], eta: float) -> None:
    values: dict[str, Scalar] = {f"{family}.{key}": 1 / eta for key in keys}
    parse_run_config({"strategy": f"local-{family}", f"{family}.eta": eta, **values})
