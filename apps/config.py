"""The run config, parsed once on each side into typed models.

Flower hands over a flat dictionary whose values it has not checked: a string may have replaced a number, and a
table's key is spelled ``fedx.gamma``. Here every unknown key, wrong type, value out of range and impossible
combination becomes one error that names the key, what it got and what is allowed.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import Field, ValidationError

from apps.registry import ALGORITHMS, Algorithm
from payloads.composite import CompositeSettings
from payloads.flower_internals import parse_config_args
from payloads.settings import EXAMPLES, Settings, TrainingSettings, kebab
from payloads.vfb2 import VERTICAL, VFB2Settings
from problems.data import DATASETS, PARTITIONS, SPARSE_LOGISTIC, UNLABELLED, DataError, DataSpec, validate
from problems.data.spec import DRAWN
from problems.errors import InputError
from problems.minimax import AUC_MINIMAX, COMPOSITIONAL_AUC, ProblemError
from problems.minimax.problem import find_factory
from problems.models import MODELS
from problems.objectives.classification import RATIO_LOSS, SAMPLE_LOSSES
from problems.objectives.pairwise import PAIRWISE_LOSSES, make_objective
from problems.penalties import make_penalty
from problems.vertical.objectives import make_objective as make_vertical_objective

Scalar = bool | int | float | str

# Keys of where and how a run is shown: two runs that differ in these alone compute the same.
SHOWING_KEYS = ("output-dir", "pictures")


class ConfigError(InputError, ValueError):
    """A run config, or a command line, that cannot be run."""


class RunSettings(Settings):
    """Keys that say where a run's parts come from and where its results go."""

    strategy: str = Field("fedx2", description=f"one of {', '.join(ALGORITHMS)}")
    model: str = Field(
        "mlp", description=f"auto: the data set's own, one of {', '.join(MODELS)}, or 'package.module:factory'"
    )
    output_dir: str = Field("results", min_length=1, description="the folder that holds the runs' directories")
    run_name: str = Field("", description="the run directory's name, or empty: strategy-dataset-seed")
    resume: bool = Field(False, description="true: continue the run of that name from its newest checkpoint; or false")
    pictures: bool = Field(True, description="true: draw curves.png beside the metrics; or false")


class DataSettings(Settings):
    """Keys of the data set, its partition and its transformations; `problems.data.DataSpec` holds what they mean."""

    dataset: str = Field("digits", description=f"one of {', '.join(DATASETS)}")
    data_dir: str = Field("", description="the folder or file of a data set that is not bundled")
    partition: str = Field("iid", description=f"one of {', '.join(PARTITIONS)}")
    partition_alpha: float = Field(0.5, gt=0, description="Dirichlet concentration, a number > 0")
    partition_classes: int = Field(2, ge=1, description="classes a client holds, an integer >= 1 (pathological, shard)")
    partition_sites: int = Field(
        0,
        ge=0,
        description="sites that rows are spread over, of which the clients are the first; 0: as many as clients",
    )
    partition_rows: str = Field(
        "", description="what each client holds, rows:share of positives with commas, or empty (given)"
    )
    positive_label: str = Field("", description="a label, labels with commas, first-half, or empty: the data set's own")
    label_column: str = Field("", description="label column of a tabular file, or empty: 'label'")
    feature_columns: str = Field(
        "",
        description="columns of a table, with commas; name[value|value] for text; of svmlight: how many; or empty: all",
    )
    standardise: bool = Field(
        True, description="true: a table's numbers get mean 0 and variance 1 over all clients' training rows; or false"
    )
    imbalance: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="share of positives left in the training set, in (0, 1), or 0: as they are",
    )
    label_noise: float = Field(0.0, ge=0, lt=0.5, description="share of each class's labels flipped, in [0, 0.5)")
    client_shift: float = Field(0.0, description="step from client to client of the mean of added Gaussian noise")
    client_shift_std: float = Field(
        0.2, ge=0, description="its standard deviation, a number >= 0 (no effect while client-shift is 0)"
    )
    test_fraction: float = Field(
        0.2, gt=0, lt=1, description="share held out for testing where a set has no test split, in (0, 1)"
    )
    validation_fraction: float = Field(
        0.0, ge=0, lt=1, description="share of the training rows to evaluate on instead of the test rows, or 0: none"
    )


class SyntheticSettings(Settings):
    """Table ``synthetic``: what `SPARSE_LOGISTIC` is drawn with, ``synthetic_*`` of `problems.data.DataSpec`."""

    alpha: float = Field(10.0, ge=0, description="variance over clients of their label vectors' mean, a number >= 0")
    beta: float = Field(10.0, ge=0, description="variance over clients of their samples' mean, a number >= 0")
    samples: int = Field(2000, ge=1, description="training samples of a client, an integer >= 1")


@dataclass(frozen=True)
class RunConfig:
    """A whole run config, valid as a whole: ``model``, ``dtype`` and ``loss`` are never "auto" here."""

    run: RunSettings
    training: TrainingSettings
    data: DataSpec
    family: Settings
    # key=value of what was given and changes nothing
    without_effect: tuple[str, ...] = field(default=(), compare=False)

    @property
    def algorithm(self) -> Algorithm:
        return ALGORITHMS[self.run.strategy]

    @property
    def warning(self) -> str:
        """What of it has no effect, in words; empty: nothing."""
        told = ", ".join(self.without_effect)
        return f"no effect with strategy {self.run.strategy!r}: {told}" if told else ""

    def resolved(self) -> dict[str, Any]:
        """Nested, with every default filled in: what ``config.toml`` holds."""
        data = {kebab(name): getattr(self.data, name) for name in DataSettings.model_fields}
        flat = {**self.run.model_dump(by_alias=True), **self.training.model_dump(by_alias=True), **data}
        if self.algorithm.table:
            flat[self.algorithm.table] = self.family.model_dump(by_alias=True)
        if self.data.dataset == SPARSE_LOGISTIC:
            flat[_SYNTHETIC] = {
                kebab(name): getattr(self.data, f"synthetic_{name}") for name in SyntheticSettings.model_fields
            }
        return flat


_COMMON: tuple[type[Settings], ...] = (RunSettings, TrainingSettings, DataSettings)
_SYNTHETIC = "synthetic"
_TABLES: dict[str, type[Settings]] = {
    **{row.table: row.settings for row in ALGORITHMS.values() if row.table},
    _SYNTHETIC: SyntheticSettings,
}
# what others call a strategy
_ALSO = dict.fromkeys(("fedavg", "fed-avg", "federated-averaging"), "local-sgd")
# What "auto" means, and what else it means for a data set.
_AUTO: dict[str, Scalar] = {
    "model": RunSettings.model_fields["model"].default,
    "dtype": TrainingSettings.model_fields["dtype"].default,
}
_AUTO_OF: dict[Scalar, dict[str, Scalar]] = {SPARSE_LOGISTIC: {"model": "linear-no-intercept", "dtype": "float64"}}
# What `partition` means where columns are spread instead of rows.
COLUMN_PARTITIONS = {"iid": "random", "consecutive": "consecutive"}


# key and value, which may have spaces in quotes
_PAIR = r"""([\w.-]+)\s*=\s*("[^"]*"|'[^']*'|\S+)"""
# how pairs are written
_PAIRS = """key=value pairs such as 'seed=1 strategy="fedx2"', strings in double quotes"""


def listed(section: str) -> str:
    """Where a list that an error cannot explain is explained."""
    return f"`python -m simulations list {section}` explains them"


def known_keys() -> dict[str, str]:
    """Every run-config key with what it allows."""
    keys: dict[str, str] = {}
    for prefix, model in [*(("", model) for model in _COMMON), *((f"{t}.", m) for t, m in _TABLES.items())]:
        keys |= {prefix + kebab(name): field.description or "" for name, field in model.model_fields.items()}
    return keys


def flattened(nested: Mapping[str, Any], prefix: str = "") -> dict[str, Scalar]:
    """``{"fedx": {"gamma": 0.5}}`` -> ``{"fedx.gamma": 0.5}``: a TOML file's tables as Flower hands them over."""
    flat: dict[str, Scalar] = {}
    for key, value in nested.items():
        flat |= flattened(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {prefix + key: value}
    return flat


def parse_pairs(option: str, text: str) -> dict[str, Scalar]:
    """The flat values of an option's ``key=value`` pairs or TOML file, read as Flower reads them.

    Raises:
        ConfigError: the text is neither; names the option.
    """
    import click

    try:
        values: dict[str, Scalar] = parse_config_args(text)
    except click.ClickException:
        found = [key for key, _ in re.findall(_PAIR, text)]
        twice = [key for place, key in enumerate(found) if key in found[:place]]
        if twice:
            raise ConfigError(
                option, got=f"{text!r}: {twice[0]} is there twice", allowed="once", hint="leave one out"
            ) from None
        raise ConfigError(option, got=_culprit(text), allowed=_PAIRS, hint="see docs/configuration.md") from None
    except (OSError, ValueError) as error:
        reason = (error.strerror or str(error)) if isinstance(error, OSError) else str(error)
        raise ConfigError(
            option,
            got=f"{text!r}: {reason}",
            allowed=f"a .toml file that can be read, or {_PAIRS}",
            hint="see docs/configuration.md",
        ) from None
    # Flower's parser passes over what is no pair
    if not text.endswith(".toml") and re.sub(_PAIR, "", text).strip():
        raise ConfigError(
            option, got=_culprit(text), allowed=f"{_PAIRS}, or a .toml file", hint="see docs/configuration.md"
        )
    return values


def _culprit(text: str) -> str:
    """Which part of an option's text cannot be read, where one stands out."""
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


def parse_run_config(flat: Mapping[str, Scalar]) -> RunConfig:
    """Parse Flower's flat run config.

    Args:
        flat: run-config key -> value; keys that are absent take their defaults.

    Raises:
        ConfigError: naming every key at fault, what it got and what is allowed.
    """
    keys = known_keys()
    problems = [_unknown(key, keys) for key in flat if key not in keys]
    flat = {**flat, **_without_auto(flat)}
    parts = {model: _parse(model, "", flat, keys, problems) for model in _COMMON}
    tables = {name: _parse(model, f"{name}.", flat, keys, problems) for name, model in _TABLES.items()}
    if problems:
        raise ConfigError.joined(problems)
    run, training, data = (parts[model] for model in _COMMON)
    assert isinstance(run, RunSettings)
    assert isinstance(training, TrainingSettings)
    if run.strategy not in ALGORITHMS:
        known_as = _ALSO.get(run.strategy.lower())
        way_out = f"its name here is {known_as!r}" if known_as else listed("strategies")
        raise _choice("strategy", known_as or run.strategy, list(ALGORITHMS), way_out, got=run.strategy)
    algorithm = ALGORITHMS[run.strategy]
    drawn = tables[_SYNTHETIC] if data.dataset == SPARSE_LOGISTIC else SyntheticSettings()
    spec = DataSpec(
        **data.model_dump(),
        **{f"synthetic_{name}": value for name, value in drawn.model_dump().items()},
        seed=training.seed,
    )
    family = tables[algorithm.table] if algorithm.table else Settings()
    if run.model not in MODELS and ":" not in run.model:
        allowed = ["auto", *MODELS, "package.module:factory"]
        raise _choice("model", run.model, allowed, listed("models"))
    try:
        # where parties have files of their own, the server needs none
        validate(spec, from_site=algorithm.strategy.vertical and not spec.data_dir)
    except DataError as error:
        raise ConfigError.of(error) from None
    _check_participation(run.strategy, algorithm, training)
    if training.dtype not in algorithm.strategy.number_types:
        raise ConfigError(
            "dtype",
            got=repr(training.dtype),
            allowed=f"{' or '.join(algorithm.strategy.number_types)}, since strategy {run.strategy!r} computes in it",
            hint="leave it out",
        )
    if algorithm.strategy.vertical:
        _check_vertical(run.strategy, spec, family)
    if spec.dataset in UNLABELLED:
        training = _with_own_problem(training, run.strategy, algorithm, spec.dataset)
    else:
        training = _with_loss(training, run.strategy, algorithm, family)
    return RunConfig(run, training, spec, family, _without_effect(flat, algorithm, data.dataset))


def _without_effect(flat: Mapping[str, Scalar], algorithm: Algorithm, dataset: str) -> tuple[str, ...]:
    """What differs from its default though the strategy does not read it; Flower hands over every key, given or not."""
    unread: dict[str, Any] = {
        kebab(name): TrainingSettings.model_fields[name].default for name in algorithm.strategy.unread
    }
    read = {algorithm.table, _SYNTHETIC if dataset == SPARSE_LOGISTIC else ""}
    for table, model in _TABLES.items():
        if table not in read:
            unread |= {f"{table}.{kebab(name)}": field.default for name, field in model.model_fields.items()}
    return tuple(f"{key}={flat[key]!r}" for key in unread if key in flat and flat[key] != unread[key])


def _without_auto(flat: Mapping[str, Scalar]) -> dict[str, Scalar]:
    """The model and the number type, absent or "auto", that the data set stands for."""
    own = {**_AUTO, **_AUTO_OF.get(flat.get("dataset", ""), {})}
    row = ALGORITHMS.get(str(flat.get("strategy", "")))
    if row is not None and own["dtype"] not in row.strategy.number_types:
        own["dtype"] = row.strategy.number_types[0]
    return {key: value for key, value in own.items() if flat.get(key, "auto") == "auto"}


def _check_participation(strategy: str, algorithm: Algorithm, training: TrainingSettings) -> None:
    if algorithm.strategy.needs_all_clients and training.fraction_train < 1:
        raise ConfigError(
            "fraction-train",
            got=training.fraction_train,
            allowed=f"1.0, since strategy {strategy!r} {algorithm.strategy.needs_all_clients}",
            hint="leave it out",
        )
    if algorithm.strategy.needs_examples and training.client_weights != EXAMPLES:
        raise ConfigError(
            "client-weights",
            got=repr(training.client_weights),
            allowed=f"{EXAMPLES!r}, since strategy {strategy!r} {algorithm.strategy.needs_examples}",
            hint="leave it out",
        )


def _check_vertical(strategy: str, spec: DataSpec, vfb2: Settings) -> None:
    """Refuse what has no meaning where all clients hold the same rows."""
    assert isinstance(vfb2, VFB2Settings)
    clients_columns = f"since the clients of strategy {strategy!r} hold columns of the same rows"
    if spec.dataset in DRAWN:
        raise ConfigError(
            "dataset",
            got=f"{spec.dataset!r}, whose clients draw rows of their own",
            allowed=f"any but {', '.join(DRAWN)}, {clients_columns}",
            hint="see docs/vertical.md",
        )
    if spec.partition not in COLUMN_PARTITIONS:
        raise ConfigError(
            "partition",
            got=repr(spec.partition),
            allowed=f"{' or '.join(COLUMN_PARTITIONS)}, {clients_columns}",
            hint="leave it out, see docs/vertical.md",
        )
    for key, got, allowed in (
        ("feature-columns", spec.feature_columns, ""),
        ("standardise", spec.standardise, True),
        ("client-shift", spec.client_shift, 0.0),
        ("partition-sites", spec.partition_sites, 0),
    ):
        if got != allowed:
            raise ConfigError(
                key, got=repr(got), allowed=f"{allowed!r}, {clients_columns}", hint="leave it out, see docs/vertical.md"
            )
    if vfb2.label_epsilon and not make_vertical_objective(vfb2.problem).classification:
        raise ConfigError(
            "vfb2.label-epsilon",
            got=vfb2.label_epsilon,
            allowed=f"0, since problem {vfb2.problem!r} has no classes",
            hint="leave it out, or set vfb2.problem",
        )


def _with_own_problem(
    training: TrainingSettings, strategy: str, algorithm: Algorithm, dataset: str
) -> TrainingSettings:
    """The loss of a data set that is a problem of its own: its name."""
    if AUC_MINIMAX not in algorithm.losses:
        fitting = [name for name, row in ALGORITHMS.items() if AUC_MINIMAX in row.losses]
        raise ConfigError(
            "dataset",
            got=f"{dataset!r}, a minimax problem, which strategy {strategy!r} cannot solve",
            allowed=f"that with strategy {' or '.join(fitting)}",
            hint="set strategy to one of them, or dataset to another",
        )
    if training.loss not in ("auto", dataset):
        raise ConfigError(
            "loss",
            got=repr(training.loss),
            allowed=f"auto, since dataset {dataset!r} is a problem of its own",
            hint="leave it out",
        )
    return training.model_copy(update={"loss": dataset})


def _with_loss(training: TrainingSettings, strategy: str, algorithm: Algorithm, family: Settings) -> TrainingSettings:
    loss = algorithm.client.default_loss if training.loss == "auto" else training.loss
    if ":" in loss and AUC_MINIMAX in algorithm.losses:
        try:
            find_factory(loss)
        except ProblemError as error:
            raise ConfigError.of(error) from None
        return training
    everything = [*PAIRWISE_LOSSES, *SAMPLE_LOSSES, RATIO_LOSS, AUC_MINIMAX, COMPOSITIONAL_AUC, VERTICAL]
    if ":" in loss:
        fitting = [name for name, row in ALGORITHMS.items() if AUC_MINIMAX in row.losses]
        raise ConfigError(
            "loss",
            got=f"{loss!r}, a minimax problem of your own, which strategy {strategy!r} cannot solve",
            allowed=", ".join(("auto", *algorithm.losses)),
            hint=f"set strategy to one that can: {', '.join(fitting)}",
        )
    if loss not in everything:
        raise _choice("loss", loss, ["auto", *everything], "see docs/configuration.md")
    if loss not in algorithm.losses:
        fitting = [name for name, row in ALGORITHMS.items() if loss in row.losses]
        raise ConfigError(
            "loss",
            got=f"{loss!r} with strategy {strategy!r}",
            allowed=", ".join(("auto", *algorithm.losses)),
            hint=f"leave it out: {loss!r} goes with strategy {' or '.join(fitting)}",
        )
    if loss in PAIRWISE_LOSSES:
        try:
            make_objective(loss, **getattr(family, "objective_options", {}))
        except ValueError as error:
            raise ConfigError(
                "loss", got=f"{loss!r}, but {error}", allowed="options that fit it", hint=listed("keys")
            ) from None
    if isinstance(family, CompositeSettings):
        try:
            make_penalty(family.penalty, [("x", (1, 1))], **{**family.penalty_options, "parameters": "all"})
        except ValueError as error:
            raise ConfigError(
                "composite.penalty",
                got=f"{family.penalty!r}, but {error}",
                allowed="options that fit it",
                hint="see docs/composite.md",
            ) from None
    return training.model_copy(update={"loss": loss})


def _parse(
    model: type[Settings], prefix: str, flat: Mapping[str, Scalar], keys: dict[str, str], problems: list[ConfigError]
) -> Any:
    names = {prefix + kebab(name): kebab(name) for name in model.model_fields}
    try:
        return model.model_validate({names[key]: value for key, value in flat.items() if key in names})
    except ValidationError as error:
        # a key that may be a number or a word has one detail for each; a default goes by its Python name
        found = {prefix + kebab(str(detail["loc"][0])): detail["input"] for detail in error.errors()}
        problems += [
            ConfigError(key, got=repr(got), allowed=keys[key], hint=listed("keys")) for key, got in found.items()
        ]
        return None


def _unknown(key: str, keys: Mapping[str, str]) -> ConfigError:
    close = difflib.get_close_matches(key, keys, n=1)
    return ConfigError(
        key if key.isprintable() else repr(key),
        got="an unknown run-config key",
        allowed=f"the {len(keys)} of docs/configuration.md" + _meant(close),
        hint=listed("keys"),
    )


def _choice(key: str, meant: str, allowed: list[str], way_out: str, got: str = "") -> ConfigError:
    close = difflib.get_close_matches(meant, allowed, n=1)
    return ConfigError(key, got=repr(got or meant), allowed=", ".join(allowed) + _meant(close), hint=way_out)


def _meant(close: list[str]) -> str:
    return f" (did you mean {close[0]!r}?)" if close else ""
