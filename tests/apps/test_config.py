"""The run config: its defaults, its allowed values, and its errors."""

import math
import re
import tomllib
from pathlib import Path
from typing import Any, Literal, get_args

import pytest
import tomli_w
from hypothesis import given, settings
from hypothesis import strategies as st

from apps.config import (
    ConfigError,
    DataSettings,
    EvaluationSettings,
    RunConfig,
    RunSettings,
    Scalar,
    SyntheticSettings,
    allowed_values,
    flatten,
    known_fields,
    known_keys,
    parse_run_config,
)
from apps.registry import ALGORITHMS
from payloads.settings import PrivacySettings, Settings, TrainingSettings, kebab
from problems.data import DATASETS, GIVEN, OWN, PARTITIONS, DataSpec
from problems.data.spec import TIMED
from problems.models import MODELS
from problems.penalties import PENALTIES, Box, make_penalty
from tests.refusals import refuses, spell, states
from vertical.problem.objectives import PROBLEMS

PYPROJECT = Path(__file__).parents[2] / "pyproject.toml"


def fields() -> dict[str, Any]:
    """Return every run-config key with its pydantic field."""
    common = (RunSettings, TrainingSettings, EvaluationSettings, DataSettings)
    models: list[tuple[str, type[Settings]]] = [("", model) for model in common]
    models += [("synthetic.", SyntheticSettings), ("privacy.", PrivacySettings)]
    models += sorted({(f"{row.table}.", row.settings) for row in ALGORITHMS.values() if row.table}, key=str)
    return {p + kebab(name): field for p, model in models for name, field in model.model_fields.items()}


FIELDS = fields()
IN_PYPROJECT = flatten(tomllib.loads(PYPROJECT.read_text("utf-8"))["tool"]["flwr"]["app"]["config"])


# Defaults.


def test_pyproject_names_every_key_and_no_other() -> None:
    assert set(IN_PYPROJECT) == set(known_keys()) == set(FIELDS)


@pytest.mark.parametrize("key", sorted(FIELDS))
def test_the_default_in_pyproject_is_the_models(key: str) -> None:
    default = (
        "auto" if key in ("model", "dtype", "learning-rate", "server-learning-rate", "scale") else FIELDS[key].default
    )
    assert IN_PYPROJECT[key] == default
    assert type(IN_PYPROJECT[key]) is type(default)
    assert known_keys()[key]


def test_an_empty_config_is_pyprojects() -> None:
    assert parse_run_config({}) == parse_run_config(IN_PYPROJECT)
    assert parse_run_config({}).data == DataSpec()


@pytest.mark.parametrize("written", [{}, {"model": "auto", "dtype": "auto"}])
@pytest.mark.parametrize("dataset", [*DATASETS, None])
def test_auto_is_the_data_sets_own_model_and_number_type(dataset: str | None, written: dict[str, Scalar]) -> None:
    strategy = "local-sgd" if dataset in TIMED else "fedsgda-mb"
    values = {**written, "strategy": strategy, "data-dir": "somewhere"} | ({"dataset": dataset} if dataset else {})
    config = parse_run_config(values)
    got = (config.run.model, config.training.dtype)
    assert got == (("linear-no-intercept", "float64") if dataset == "synthetic-sparse-logistic" else ("mlp", "float32"))


def test_the_synthetic_table_belongs_to_its_data_set() -> None:
    given = {"synthetic.alpha": 0, "synthetic.beta": 2.5, "synthetic.samples": 7}
    config = parse_run_config({"dataset": "synthetic-sparse-logistic", "strategy": "local-sgd", "seed": 3, **given})
    own = DataSpec("synthetic-sparse-logistic", synthetic_alpha=0, synthetic_beta=2.5, synthetic_samples=7, seed=3)
    assert config.data == own
    written = config.resolve()
    assert written["synthetic"] == {"alpha": 0.0, "beta": 2.5, "samples": 7}
    assert parse_run_config(flatten(tomllib.loads(tomli_w.dumps(written)))) == config
    # other data sets do not read this table, as other strategies do not read the table fedx
    config = parse_run_config(given)
    assert config == parse_run_config({})
    assert not [key for key in flatten(config.resolve()) if "synthetic" in key]


# Allowed values.


def bounds_of(key: str) -> dict[str, Any]:
    """Return the field's bounds: ge, gt, le and lt."""
    names = ("ge", "gt", "le", "lt")
    return {name: getattr(one, name) for one in FIELDS[key].metadata for name in names if hasattr(one, name)}


def valid(key: str) -> st.SearchStrategy[Any]:
    """Return values that a key allows, from its field's type and bounds."""
    special = {
        "strategy": st.sampled_from(sorted(ALGORITHMS)),
        "dataset": st.sampled_from(["digits", "breast-cancer"]),
        "partition": st.sampled_from(sorted({*PARTITIONS} - {OWN, GIVEN})),
        "partition-rows": st.just(""),  # for this partition only
        "strategy-settings": st.just(""),  # for strategies of other packages only
        "tracking-uri": st.sampled_from(["", "file:///srv/a", "https://a.b:80/c"]),
        **dict.fromkeys(("clip-gradient", "weight-decay"), st.just(0.0)),  # not available for every strategy
        "steps-by-rows": st.just(False),  # not available for every strategy
        "local-optimizer": st.just("sgd"),  # not available for every strategy
        "server-optimizer": st.just("none"),  # not available for every strategy
        "client-weights": st.just("examples"),  # the other value is not available for every strategy
        "select-by": st.just(""),  # needs validation rows, as the next key does
        "patience": st.just(0),
        "threshold-at": st.just(""),  # needs validation rows; like the next key, not available for every strategy
        "calibration": st.just("none"),
        "site-metrics": st.just(False),
        **dict.fromkeys(("site-metrics-every", "importance", "fine-tune-steps"), st.just(0)),  # need the key above
        "vfb2.score-run": st.just(""),  # allows one round only
        "privacy.secure-sum": st.just(False),  # not available for every strategy
        "privacy.epsilon": st.just(0.0),  # not available for every strategy
        "fedx.bins": st.integers(2, 2**16),
        "model": st.sampled_from([*sorted(MODELS), "package.module:factory"]),
        "loss": st.just("auto"),
        # these keys limit each other: composite needs all clients; eta * beta and eta * alpha are at most 1
        "fraction-train": st.sampled_from([1.0]),
        "sgdam.eta": st.floats(0.1, 0.3),
        "sgdam.beta-x": st.floats(0.1, 3.3),
        "sgdam.beta-y": st.floats(0.1, 3.3),
        "scgdam.eta": st.floats(0.1, 0.3),
        "scgdam.levels": st.integers(1, 10),
        **{f"scgdam.{key}": st.floats(0.1, 3.3) for key in ("beta-x", "beta-y", "alpha")},
        "fedsgda.rho": st.one_of(st.just("auto"), st.floats(0, 1, exclude_max=True)),
        "fedsgda.large-batch": st.one_of(st.just("auto"), st.integers(1, 10**6)),
        # this and the next two lines are for tables only
        **dict.fromkeys(
            (
                "label-column",
                "offset-column",
                "time-column",
                "entry-column",
                "time-borders",
                "feature-columns",
                "site-column",
                "test-sites",
                "group-column",
                "drop-columns",
                "subgroups",
                "missing-values",
                "borders",
                "image-column",
                "image-size",
            ),
            st.just(""),
        ),
        **dict.fromkeys(("separator", "decimal", "encoding"), st.just("auto")),
        **dict.fromkeys(("init-from", "weights"), st.just("")),
        "label-type": st.just("class"),
        "horizon": st.just(0.0),
        "missing": st.just("error"),
        "scale": st.just("auto"),
        "bins": st.just(10),
        **dict.fromkeys(("pixel-bits", "image-cache"), st.just(0)),
        "read-workers": st.just(2),
        "lr-decay-at": st.sampled_from(["", "0.5", "0.5,0.75", " 0.1 , 0.9 ,"]),
        # a box needs a bound; the interval between these two bounds is never empty
        "composite.penalty": st.sampled_from(sorted(set(PENALTIES) - {"box"})),
        "composite.lower": st.one_of(st.just("none"), st.floats(-1e6, 0)),
        "composite.upper": st.one_of(st.just("none"), st.floats(0, 1e6)),
        "composite.strong-convexity": st.one_of(st.just("auto"), st.floats(0, 1e6)),
        "augment": st.just("none"),
        "metrics": st.just(""),  # functions, and not available for every data set
        "reply-seconds": st.just(""),  # not available for every strategy
        "client-sampling": st.just("uniform"),  # not available for every strategy
        "precision": st.just("full"),  # not available for every strategy
        "accumulate": st.just(1),  # nor this
        "batch-norm": st.sampled_from(["averaged", "frozen"]),  # local needs partition=own
        "lr-warmup": st.just(0),  # shorter than any run
        "label-columns": st.just(""),  # excludes other keys
        "label-separator": st.just(""),
        "uncertain": st.just("ignore"),
        "vfb2.intercept": st.sampled_from(["auto", True, False]),
        "vfb2.embedding": st.just(0),  # a network needs vfb2-sgd and other keys, and softmax needs a network
        "vfb2.problem": st.sampled_from(PROBLEMS),
        "vfb2.penalty": st.sampled_from(["none", "l1", "group-lasso"]),
        "vfb2.groups": st.sampled_from(["columns", "party"]),
        "vfb2.model": st.sampled_from(["linear", "mlp", "package.module:factory"]),
        "vfb2.weight": st.one_of(st.just("auto"), st.floats(0, 1e6)),
        "min-train-nodes": st.one_of(st.integers(1, 10**6), st.floats(0, 1, exclude_min=True)),
        "vfb2.skew": st.one_of(st.just("auto"), st.integers(1, 10**6)),
        "vfb2.active-parties": st.one_of(st.just("auto"), st.integers(1, 10**6)),
        "composite.anchor-weight": st.one_of(st.just("auto"), st.floats(0, 1e6, exclude_min=True)),
    }
    if key in special:
        return special[key]
    field, bounds = FIELDS[key], bounds_of(key)
    if field.annotation is bool:
        return st.booleans()
    if field.annotation is int:
        return st.integers(bounds.get("ge", 0), 10**6)
    if field.annotation is float:
        low, high = bounds.get("ge", bounds.get("gt", -1e6)), bounds.get("le", bounds.get("lt", 1e6))
        return st.floats(low, high, exclude_min="gt" in bounds, exclude_max="lt" in bounds)
    if field.annotation is str:
        return st.text(st.characters(codec="utf-8", exclude_categories=["Cs", "Cc"]), min_size=1, max_size=8)
    return st.sampled_from(get_args(field.annotation))


def fitting(values: dict[str, Scalar]) -> dict[str, Scalar]:
    """Remove the values that a data set refuses, or that a strategy refuses whose clients have columns."""
    if values.get("partition") == "natural":
        values = {**values, "dataset": "heart-disease", "data-dir": "data"}
    row = ALGORITHMS[str(values.get("strategy", "fedx2"))]
    if row.traits.models:
        values = {key: value for key, value in values.items() if key not in ("dtype", "model", "frozen", "batch-norm")}
    if row.strategy.shares_model:
        return values
    refused = {"partition", "partition-sites", "client-shift", "dtype", "frozen", "batch-norm", "vfb2.keep-shared"}
    if values.get("vfb2.problem") in ("ridge", "robust"):
        refused.add("vfb2.label-epsilon")
    if values.get("strategy") == "shared-sgd":
        refused |= {
            f"vfb2.{key}" for key in ("problem", "penalty", "label-epsilon", "update-passive", "active-parties")
        }
    return {key: value for key, value in values.items() if key not in refused}


@settings(max_examples=150, deadline=None)
@given(st.fixed_dictionaries({}, optional={key: valid(key) for key in sorted(FIELDS)}).map(fitting))
def test_a_valid_config_survives_config_toml(given_values: dict[str, Scalar]) -> None:
    config = parse_run_config(given_values)
    written = flatten(tomllib.loads(tomli_w.dumps(config.resolve())))
    assert parse_run_config(written) == config
    own = {key for key in given_values if "." not in key or key.split(".")[0] == config.algorithm.table}
    assert {key: written[key] for key in own - {"loss"}} == {key: given_values[key] for key in own - {"loss"}}


odd = st.sampled_from([10**400, -(2**64), "nan", ""])
scalars = st.one_of(st.booleans(), st.integers(), st.floats(), st.text(max_size=12), odd)
printable = st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Zl", "Zp"]), max_size=12)
keys = st.one_of(st.sampled_from(sorted(FIELDS)), printable, st.sampled_from(["fedx", "fedx.", ".gamma"]))


@settings(max_examples=300, deadline=None)
@given(st.dictionaries(keys, scalars, max_size=4))
def test_any_flat_dict_is_a_config_or_a_config_error(values: dict[str, Scalar]) -> None:
    try:
        answer: RunConfig | ConfigError = parse_run_config(values)
    except ConfigError as error:
        answer = error
    assert isinstance(answer, RunConfig) or (str(answer) and "\n" not in str(answer))


@pytest.mark.parametrize(
    ("keys", "step", "noted"),
    [
        ({"strategy": "local-sgd", "model": "mlp"}, 0.3, False),
        ({"strategy": "local-sgd", "model": "resnet20"}, 0.03, True),
        ({"strategy": "coda", "model": "timm:resnet18"}, 0.03, True),
        ({"strategy": "local-sgd", "model": "densenet121", "local-optimizer": "adam"}, 0.01, False),
        ({"strategy": "local-sgd", "model": "densenet121", "learning-rate": 0.03}, 0.03, False),
        ({"strategy": "local-sgd", "model": "package.module:resnet"}, 0.3, False),
        ({"strategy": "local-scgdam", "model": "resnet20"}, 0.03, False),  # it has its own steps
    ],
)
def test_deep_networks_have_a_smaller_default_step(keys: dict[str, Scalar], step: float, noted: bool) -> None:
    config = parse_run_config(keys)
    assert (config.training.learning_rate, "deep network" in config.note) == (step, noted)


@pytest.mark.parametrize("strategy", ALGORITHMS)
def test_auto_is_the_strategys_own_loss(strategy: str) -> None:
    config = parse_run_config({"strategy": strategy})
    assert config.training.loss == ALGORITHMS[strategy].traits.loss
    assert config.training.loss in ALGORITHMS[strategy].losses


# Refused values: the message names the key, the value and the allowed values.


def wrong(key: str) -> list[Scalar]:
    """Return values of another type than the key's, and values beyond its bounds."""
    kind, bounds = FIELDS[key].annotation, bounds_of(key)
    beyond = [bounds[name] for name in ("gt", "lt") if name in bounds]
    beyond += [bounds[name] + step for name, step in (("ge", -1), ("le", 1)) if name in bounds]
    values: dict[Any, list[Scalar]] = {
        bool: ["true", 1],
        bool | Literal["auto"]: ["true", 1],
        int: ["8", True, 8.5, 8.0, *beyond],
        float: ["0.1", True, math.nan, math.inf, *map(float, beyond)],
        str: [3, 0.5, True],
    }
    refused = values.get(kind, [True, "no such word"])
    return [value for value in refused if value is not True] if key == "importance" else refused  # true means 5


@pytest.mark.parametrize("key", sorted(set(FIELDS) - {"composite.parameters"}))
def test_a_value_of_another_type_or_beyond_a_bound_is_refused(key: str) -> None:
    allowed = allowed_values(known_fields())[key]
    for value in wrong(key):
        with pytest.raises(ConfigError) as refused:
            parse_run_config({key: value})
        assert [part for part in (key, repr(value), allowed) if part not in spell(refused.value)] == []


REFUSED: list[tuple[dict[str, Scalar], list[str]]] = [
    ({"partition": "iidd"}, ["partition", "'iidd'", ", ".join(PARTITIONS), "did you mean 'iid'?"]),
    ({"model": "mlpp"}, ["model", "'mlpp'", ", ".join(["auto", *MODELS]), "package.module:factory", "'mlp'?"]),
    ({"loss": "auroc"}, ["loss", "'auroc'", "kl-opauc", "cross-entropy"]),
    ({"strategy": "local-sgd", "loss": "psm"}, ["loss", "'psm'", "cross-entropy", "local-sgd", "fedx1"]),
    (
        {"strategy": "composite", "loss": "psm"},
        ["'psm'", "'composite', allowed: auto, cross-entropy, squared-error, squared;"],
    ),
    ({"positive-label": 1}, ['put the value in quotes: positive-label="1"']),
    ({"learning_rate": 0.1}, ["learning_rate", "unknown", "did you mean 'learning-rate'?"]),
    ({"fedx.gama": 0.1}, ["fedx.gama", "unknown", "did you mean 'fedx.gamma'?"]),
    ({"xyzzy": 1}, ["xyzzy", "unknown", "docs/configuration.md"]),
    ({"dataset": "synthetic-sparse-logistic", "partition": "linear"}, ["partition: got 'linear'", "'natural'"]),
    ({"client-weights": "equal"}, ["client-weights: got 'equal', allowed: 'examples', since", "pairs of all sites"]),
    ({"strategy": "vfb2-sgd", "client-weights": "equal"}, ["client-weights: got 'equal'", "columns of the same rows"]),
    ({"partition-rows": "9:0.5"}, ["partition-rows: got '9:0.5'", "unless partition is 'given'"]),
    *(
        ({"partition": "given", "partition-rows": text}, [f"partition-rows: got {text!r}", "positives in [0, 1]"])
        for text in ("", "9", "9:x", "0:0.5", "9:0.5,", "9:1.5", "9:-1", "9:nan", "9:inf")
    ),
    ({"lr-decay-at": "half"}, ["lr-decay-at", "'half'", "(0, 1)"]),
    ({"lr-decay-at": "0.5,1.5"}, ["lr-decay-at", "'0.5,1.5'", "(0, 1)"]),
    ({"strategy": "vfb2-sgd", "partition-sites": 9}, ["partition-sites: got 9, allowed: 0", "columns"]),
    (
        {"partition": "own", "dataset": "csv", "data-dir": "a.csv", "validation-fraction": 0.2},
        ["validation-fraction: got 0.2", "the server evaluates on its own file"],
    ),
    ({"select-by": "auc"}, ["select-by: got 'auc' without validation rows", "on test rows; set validation-fraction"]),
    (
        {"patience": 3, "validation-fraction": 0.2},
        ["patience: got 3, allowed: 0, since without select-by", "set select-by"],
    ),
    (
        {"strategy": "vfb2-sgd", "select-by": "auc", "validation-fraction": 0.2},
        ["select-by: got 'auc' with strategy 'vfb2-sgd', allowed: '', since the parties keep"],
    ),
    ({"loss": "p-norm-push", "fedx.surrogate": "psm"}, ["surrogate", "'psm'", "squared-hinge, logistic"]),
    ({"composite.parameters": ""}, ["composite.parameters", "''", "auto, all, or names"]),
    ({"composite.upper": float("inf")}, ["composite.upper", "inf", "or none"]),
    ({"strategy": "composite", "composite.penalty": "box"}, ["composite.penalty: got 'box'", "must be finite"]),
    (
        {"strategy": "fedda", "composite.penalty": "box", "composite.lower": 1.0, "composite.upper": 0.5},
        ["lower must be <= upper", "[1.0, 0.5]", "empty set"],
    ),
]


@pytest.mark.parametrize(("values", "parts"), REFUSED, ids=lambda value: str(value) if isinstance(value, dict) else "")
def test_a_refusal_names_key_value_and_what_is_allowed(values: dict[str, Scalar], parts: list[str]) -> None:
    with pytest.raises(ConfigError) as refused:
        parse_run_config(values)
    message = spell(refused.value)
    assert [part for part in parts if not states(message, part)] == []
    assert "\n" not in message


@pytest.mark.parametrize("bounds", [{"lower": 0.5}, {"upper": -0.5}, {"lower": 2, "upper": 2.0}])
def test_a_box_has_one_bound_or_two(bounds: dict[str, Scalar]) -> None:
    values = {f"composite.{key}": value for key, value in bounds.items()}
    config = parse_run_config({"strategy": "composite", "composite.penalty": "box", **values})
    box = make_penalty(config.family, [("x", (1, 1))])
    assert box == Box(bounds.get("lower", -math.inf), bounds.get("upper", math.inf))


def test_all_wrong_keys_are_named_at_once() -> None:
    with refuses(ConfigError, r"typo: got an unknown.*local-steps: got 0.*fedx\.tau: got 0"):
        parse_run_config({"local-steps": 0, "typo": 1, "fedx.tau": 0})


def test_a_table_of_another_strategy_is_checked_too() -> None:
    with refuses(ConfigError, re.escape("fedx.gamma: got 7.0")):
        parse_run_config({"strategy": "local-sgd", "fedx.gamma": 7.0})


def test_an_unknown_strategy_is_the_only_fault_of_its_own_keys() -> None:
    with pytest.raises(ConfigError) as error:
        parse_run_config({"strategy": "fedy9", "learning-rate": "auto", "fedy9.rate": 1.0, "seed": -1})
    assert [error.value.key, *(each.key for each in error.value.also)] == ["strategy", "seed"]
