"""What the settings of every family refuse: the message names the key, the value and what is allowed."""

import pytest

from apps.config import ConfigError, Scalar, parse_run_config

OWN = "tests.algorithms.minimax_problems:"
POSITIVE, NOT_NEGATIVE, SWITCH = ("number > 0",), ("number >= 0",), ("true", "false")
# a strategy, a key, its value, and what the message says besides
ONE_KEY: list[tuple[str, str, Scalar, tuple[str, ...]]] = [
    ("coda", "fraction-train", 0.5, ("allowed: 1.0", "'coda'")),
    ("coda", "coda.proximal", -0.1, NOT_NEGATIVE),
    ("coda", "coda.stage-rounds", 1.0, ("integer >= 0",)),
    ("coda", "coda.stage-growth", 0.5, ("number >= 1",)),
    ("coda", "coda.stage-decay", 0.1, ("number >= 1",)),
    ("coda", "coda.restart-dual", 1, SWITCH),
    ("coda", "coda.scaled-dual", "no", SWITCH),
    ("coda", "coda.reference-noise", -1.0, NOT_NEGATIVE),
    ("codasca", "loss", "psm", ("auc-minimax",)),
    ("fedprox", "fedprox.proximal-mu", -0.1, NOT_NEGATIVE),
    ("fedprox", "fedprox.proximal-mu", "0.1", NOT_NEGATIVE),
    ("fedprox", "loss", "auc-minimax", ("'fedprox', allowed: auto, cross-entropy",)),
    ("scaffold", "server-learning-rate", 0.0, POSITIVE),
    ("scaffold", "loss", "ratio-loss", ("'scaffold', allowed: auto, cross-entropy",)),
    ("local-sgdm", "sgdm.momentum", 0.0, ("(0, 1]",)),
    ("local-sgdm", "sgdm.momentum", 1.1, ("(0, 1]",)),
    ("local-sgdm", "sgdm.ratio-alpha", -0.1, NOT_NEGATIVE),
    ("local-sgdm", "sgdm.ratio-beta", "1", NOT_NEGATIVE),
    ("local-sgdm", "loss", "ratio-loss", ("'local-sgdm', allowed: auto, cross-entropy", "local-sgdm-rl")),
    ("local-sgdm", "loss", "ratio", ("ratio-loss", "did you mean")),
    ("local-sgdm-rl", "loss", "cross-entropy", ("auto, ratio-loss",)),
    ("local-sgdam", "sgdam.eta", 0.0, POSITIVE),
    ("local-sgdam", "sgdam.gamma-x", -1.0, POSITIVE),
    ("local-sgdam", "sgdam.gamma-y", 0, POSITIVE),
    ("local-sgdam", "sgdam.beta-x", 0.0, POSITIVE),
    ("local-sgdam", "loss", "compositional-auc", ("goes with strategy local-scgdam",)),
    *((name, "sgdam.beta-x", 5.0, ("allowed: ", "eta * beta-x <= 1")) for name in ("local-sgdam", "fedx2")),
    ("local-sgdam", "sgdam.beta-y", 5.0, ("allowed: ", "eta * beta-y <= 1")),
    ("local-scgdam", "scgdam.eta", 0.0, POSITIVE),
    ("local-scgdam", "scgdam.gamma-x", -1.0, POSITIVE),
    ("local-scgdam", "scgdam.gamma-y", 0, POSITIVE),
    ("local-scgdam", "scgdam.alpha", 0.0, POSITIVE),
    ("local-scgdam", "scgdam.rho", -0.01, NOT_NEGATIVE),
    ("local-scgdam", "scgdam.hessian", "approximate", ("exact", "identity")),
    ("local-scgdam", "scgdam.headline", "h", ("outer", "inner")),
    ("local-scgdam", "scgdam.independent-batches", 1, SWITCH),
    *((name, "scgdam.beta-x", 5.0, ("allowed: ", "eta * beta-x <= 1")) for name in ("local-scgdam", "fedx2")),
    ("local-scgdam", "scgdam.beta-y", 5.0, ("allowed: ", "eta * beta-y <= 1")),
    ("local-scgdam", "scgdam.alpha", 5.0, ("allowed: ", "eta * alpha <= 1")),
    ("local-scgdam", "loss", "psm", ("strategy 'local-scgdam', allowed: auto, compositional-auc;",)),
    ("local-scgdam", "loss", OWN + "Robust", ("'local-scgdam' cannot solve", "fedsgda-mb", "coda")),
    ("fedsgda-spider", "fedsgda.period", 0, ("allowed: ", "an integer >= 1")),
    ("fedsgda-spider", "fedsgda.large-batch", 0, ("allowed: ", "an integer >= 1", "auto")),
    ("fedsgda-spider", "fedsgda.large-batch", "some", ("allowed: ", "auto")),
    ("fedsgda-spider", "fedsgda.rho", 1.0, ("allowed: ", "in [0, 1)", "auto")),
    ("fedsgda-spider", "fedsgda.rho", -0.1, ("allowed: ", "in [0, 1)")),
    ("fedsgda-spider", "fedsgda.primal-step", 0.0, ("allowed: ", "> 0")),
    ("fedsgda-spider", "fedsgda.dual-step", -1.0, ("allowed: ", "> 0")),
    ("fedsgda-spider", "fedsgda.alpha-constant", 0.0, ("allowed: ", "> 0")),
    ("fedsgda-spider", "loss", "synthetic-pl", ("allowed: auto",)),
    ("fedsgda-spider", "loss", OWN + "Missing", ("which cannot be imported", "no attribute 'Missing'")),
    ("fedsgda-spider", "loss", ":Robust", ("which cannot be imported", "allowed: 'package.module:factory'")),
]
SEVERAL: list[tuple[dict[str, Scalar], tuple[str, ...]]] = [
    ({"fedprox.mu": 0.1}, ("fedprox.mu", "unknown")),
    ({"sgdam.eta": 0.5}, ("sgdam.beta-x: got 3.3, allowed: ", "sgdam.beta-y: got 3.3, allowed: ")),
    ({"sgdam.eta": 0.5, "sgdam.beta-x": 2.0}, ("sgdam.beta-y: got 3.3",)),
    ({"scgdam.eta": 0.32}, ("scgdam.beta-x: got 3.3, allowed: ", "scgdam.beta-y: got 3.3, allowed: ")),
    *(
        ({"strategy": "fedsgda-spider", "dataset": "synthetic-pl", key: value}, ("'synthetic-pl'", *parts))
        for key, value, *parts in [
            ("loss", OWN + "Robust", "loss: got ", "Robust", "is a problem of its own"),
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
    message = str(refused.value)
    assert [part for part in parts if part not in message] == []
    # no key is blamed that the row does not name
    assert message.count(": got ") == sum(": got " in part for part in parts) or "unknown" in parts
    assert "local-scgdam" not in message.partition("strategies that can")[2]


@pytest.mark.parametrize(
    ("family", "keys"), [("sgdam", ("beta-x", "beta-y")), ("scgdam", ("beta-x", "beta-y", "alpha"))]
)
@pytest.mark.parametrize("eta", [0.3, 1.0, 0.1, 1e-3])
def test_weights_of_one_are_allowed(family: str, keys: tuple[str, ...], eta: float) -> None:
    values: dict[str, Scalar] = {f"{family}.{key}": 1 / eta for key in keys}
    parse_run_config({"strategy": f"local-{family}", f"{family}.eta": eta, **values})
