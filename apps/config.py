"""The run config, which the server and each client parse into typed models before a run.

Flower passes a flat dictionary of unchecked values, with ``fedx.gamma`` for the key ``gamma`` of the table ``fedx``.
`parse_run_config` reports unknown keys, wrong types, values out of range and impossible combinations as one error.
"""

import re
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError
from pydantic.fields import FieldInfo

from apps.capabilities import (
    check_budget,
    check_entries,
    check_needs,
    check_outcome,
    check_sums,
    choose_loss,
    list_hint,
    losses_of,
    refuse_choice,
    use_own_problem,
)
from apps.plugins import ROW_FORM, add_settings, find_row
from apps.registry import ALGORITHMS, ANALYSES
from apps.run_config.algorithm import PRIVACY, SYNTHETIC, Algorithm, RunConfig
from apps.run_config.settings import (
    LOCAL_NORMS,
    SHOWING_KEYS,
    ConfigError,
    DataSettings,
    EvaluationSettings,
    RunSettings,
    Scalar,
    SyntheticSettings,
    flatten,
)
from methods.adam import ADAM_STEP
from payloads.settings import CYCLIC, UNIFORM, PrivacySettings, Settings, TrainingSettings, describe_allowed, kebab
from problems.data import SPARSE_LOGISTIC, UNLABELLED, DataError, DataSpec, validate
from problems.data.partitions import keeps_sites
from problems.data.spec import OWN, TABLES, is_hub
from problems.errors import InputError, did_you_mean
from problems.importing import is_dotted
from problems.models import LIBRARY_FORMS, MODELS, largest_step
from strategies.rounds.slow_clients import has_function, parse_seconds

__all__ = [
    "SHOWING_KEYS",
    "ConfigError",
    "DataSettings",
    "EvaluationSettings",
    "RunConfig",
    "RunSettings",
    "Scalar",
    "SyntheticSettings",
    "allowed_values",
    "flatten",
    "known_fields",
    "known_keys",
    "list_hint",
    "parse_run_config",
]

_COMMON: tuple[type[Settings], ...] = (RunSettings, TrainingSettings, EvaluationSettings, DataSettings)
_TABLES: dict[str, type[Settings]] = {
    **{row.table: row.settings for row in ALGORITHMS.values() if row.table},
    SYNTHETIC: SyntheticSettings,
    PRIVACY: PrivacySettings,
}
# the names of keys in earlier releases -> their present names
_RENAMED = {"standardise": "scale"}
# the meaning of "auto" by default, and for particular data sets
_AUTO: dict[str, Scalar] = {
    "model": RunSettings.model_fields["model"].default,
    "dtype": TrainingSettings.model_fields["dtype"].default,
    "scale": DataSpec.scale,
}
# the settings of each server optimizer
_SERVER_KEYS = ("server_learning_rate", "server_momentum", "server_tau", "server_second_momentum")
_SERVER_STEPS = {"none": (), "momentum": _SERVER_KEYS[:2], "adagrad": _SERVER_KEYS[:3]}
_SERVER_STEPS |= dict.fromkeys(("adam", "yogi"), _SERVER_KEYS)
# the meaning of server-learning-rate = "auto" with an optimizer that divides by the second moment
_ADAPTIVE_STEP = 0.1
_AUTO_OF: dict[Scalar, dict[str, Scalar]] = {SPARSE_LOGISTIC: {"model": "linear-no-intercept", "dtype": "float64"}}


def known_fields(tables: Mapping[str, type[Settings]] = _TABLES) -> dict[str, FieldInfo]:
    """Return the field of each run-config key.

    Args:
        tables: The settings of each table. Defaults to the tables of the project's own strategies.
    """
    models = [*(("", model) for model in _COMMON), *((f"{table}.", model) for table, model in tables.items())]
    return {prefix + kebab(name): field for prefix, model in models for name, field in model.model_fields.items()}


def allowed_values(fields: Mapping[str, FieldInfo]) -> dict[str, str]:
    """Return the allowed values of each run-config key.

    Args:
        fields: The field of each key.
    """
    strategies = {"strategy": f"one of {', '.join([*ALGORITHMS, *ANALYSES])}, or '{ROW_FORM}'"}
    return {key: describe_allowed(field) for key, field in fields.items()} | strategies


def known_keys() -> dict[str, str]:
    """Return the meaning and the allowed values of each run-config key, without links."""
    fields = known_fields()
    meanings = {key: re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", str(field.description)) for key, field in fields.items()}
    return {key: f"{meanings[key]} Allowed: {allowed}" for key, allowed in allowed_values(fields).items()}


def parse_run_config(flat: Mapping[str, Scalar]) -> RunConfig:
    """Parse Flower's flat run config.

    Args:
        flat: The values by run-config key. Missing keys have their defaults.

    Raises:
        ConfigError: A key or value is wrong. The text names each key with its value and the allowed values.

    Example:
        >>> config = parse_run_config({"strategy": "fedx2", "local-steps": 8})
        >>> config.training.local_steps, config.training.num_server_rounds
        (8, 25)
    """
    strategy = flat.get("strategy", RunSettings.model_fields["strategy"].default)
    algorithm, faults = _row_of(strategy)
    known = dict(_TABLES)
    if algorithm is not None:
        known |= {algorithm.table: algorithm.settings} if algorithm.table else {}
        flat = add_settings(flat, strategy, algorithm)
    keys = known_fields(known)
    # an unknown strategy may have any table
    unchecked = {key for key in flat if algorithm is None and key.partition(".")[0] not in known and "." in key}
    problems = [*faults, *(_unknown_key(key, keys) for key in flat if key not in keys and key not in unchecked)]
    chosen = _without_auto(flat, algorithm)
    flat = {**flat, **chosen}
    parts = {model: _parse(model, "", flat, keys, problems) for model in _COMMON}
    tables = {name: _parse(model, f"{name}.", flat, keys, problems) for name, model in known.items()}
    if problems or algorithm is None:
        raise ConfigError.join(problems)
    run: RunSettings = parts[RunSettings]
    training: TrainingSettings = parts[TrainingSettings]
    data = parts[DataSettings]
    drawn = tables[SYNTHETIC] if data.dataset == SPARSE_LOGISTIC else SyntheticSettings()
    spec = DataSpec(
        **data.model_dump(),
        **{f"synthetic_{name}": value for name, value in drawn.model_dump().items()},
        seed=training.seed,
        precise=algorithm.traits.precise,
    )
    family = tables[algorithm.table] if algorithm.table else Settings()
    if run.model not in MODELS and ":" not in run.model:
        raise refuse_choice(
            "model", run.model, ["auto", *MODELS, *LIBRARY_FORMS, "package.module:factory"], list_hint("models")
        )
    _check_network_keys(run, algorithm, training.loss, spec)
    _check_slowness(run.strategy, training, algorithm)
    samplings = [UNIFORM, CYCLIC, "package.module:function"]
    if training.client_sampling not in samplings and not is_dotted(training.client_sampling):
        raise refuse_choice("client-sampling", training.client_sampling, samplings, "see docs/configuration.md")
    try:
        validate(spec, from_site=algorithm.sites.hold_columns and not spec.data_dir)
    except DataError as error:
        raise ConfigError.of(error) from None
    check_needs(run.strategy, algorithm, training, run.model, spec.scale)
    check_outcome(run.strategy, algorithm, training, spec)
    check_entries(family, spec)
    algorithm.evaluation.check(run.strategy, spec, family)
    if spec.dataset in UNLABELLED:
        training = use_own_problem(training, run.strategy, algorithm, spec.dataset)
    else:
        training = choose_loss(training, run.strategy, algorithm, family, losses_of(spec))
    evaluation: EvaluationSettings = parts[EvaluationSettings]
    scored = spec.dataset not in UNLABELLED and ":" not in training.loss
    evaluation.check(run.strategy, training, spec, shares_model=algorithm.strategy.shares_model, scored=scored)
    check_budget(run.strategy, algorithm, training.loss, tables[PRIVACY], family, spec)
    training = family.adapt_training(training)
    if training.server_optimizer != "none":
        _check_server_optimizer(run, training, algorithm)
    if evaluation.fine_tune_steps:
        _check_fine_tuning(evaluation, tables[PRIVACY], spec)
    if run.batch_norm == LOCAL_NORMS:
        _check_local_norms(run, training, algorithm, spec, evaluation)
    privacy = tables[PRIVACY] if algorithm.strategy.shares_model else PrivacySettings()
    if privacy.secure_sum:
        check_sums(run.strategy, algorithm, training, family)
    without_effect = _without_effect(flat, algorithm, family, training, data.dataset)
    note = ""
    if chosen.get("learning-rate") == largest_step(run.model) and "learning_rate" not in algorithm.traits.unread:
        note = f"learning-rate: auto is {training.learning_rate:g}, since model {run.model!r} is a deep network"
    return RunConfig(run, training, spec, family, algorithm, privacy, evaluation, without_effect, note)


def _check_network_keys(run: RunSettings, algorithm: Algorithm, loss: str, spec: DataSpec) -> None:
    """Check that the run has a network to which the keys of its start and of its frozen parts apply."""
    keys: dict[str, Scalar] = {
        "init-from": run.init_from,
        "weights": run.weights,
        "frozen": run.frozen,
        "batch-norm": run.batch_norm,
    }
    keys |= {"precision": run.precision, "augment": run.augment, "accumulate": run.accumulate}
    for key, value in keys.items():
        default = RunSettings.model_fields[key.replace("-", "_")].default
        reason = ""
        if not algorithm.strategy.trains:
            reason = "no model is trained"
        elif not algorithm.strategy.shares_model:
            reason = "the server sends no model: each party starts its own part"
        elif key in ("frozen", "batch-norm", "precision", "augment", "accumulate") and algorithm.traits.models:
            reason = "all coefficients are computed"
        elif key != "init-from" and (spec.dataset in UNLABELLED or ":" in loss):
            reason = "and this minimax problem the run has no network"
        if value != default and reason:
            allowed = f"{default!r}, since with strategy {run.strategy!r} {reason}"
            raise ConfigError(key, got=repr(value), allowed=allowed, hint=f"remove {key}")
    if run.weights and run.init_from:
        allowed = "'', since init-from sets all weights"
        raise ConfigError("weights", got=repr(run.weights), allowed=allowed, hint="remove weights, or init-from")


def _check_slowness(strategy: str, training: TrainingSettings, algorithm: Algorithm) -> None:
    seconds = training.reply_seconds
    if seconds and not algorithm.strategy.shares_model:
        got, allowed = f"{seconds!r} with strategy {strategy!r}", "'', since the parties of this strategy meet"
        raise ConfigError("reply-seconds", got=got, allowed=allowed, hint="remove reply-seconds")
    if seconds and not has_function(seconds):
        try:
            parse_seconds(seconds)
        except InputError as error:
            raise ConfigError.of(error) from None


def _check_server_optimizer(run: RunSettings, training: TrainingSettings, algorithm: Algorithm) -> None:
    """Check that the next model is a mean, which the server's steps replace."""
    able = [name for name, row in ALGORITHMS.items() if row.traits.averages]
    if not algorithm.traits.averages or run.batch_norm == LOCAL_NORMS:
        reason = f"batch-norm {LOCAL_NORMS!r}" if algorithm.traits.averages else f"strategy {run.strategy!r}"
        got = f"{training.server_optimizer!r} with {reason}"
        allowed = f"'none', since these strategies have a mean of whole models: {', '.join(able)}"
        raise ConfigError("server-optimizer", got=got, allowed=allowed, hint="remove server-optimizer")


def _check_fine_tuning(evaluation: EvaluationSettings, privacy: PrivacySettings, spec: DataSpec) -> None:
    """Check that each site has rows that measure its fine-tuned model, and may reveal the result."""
    for got, reason, hint in (
        (
            "" if keeps_sites(spec) or (spec.partition == OWN and not spec.data_dir) else "rows of no single site",
            "each model is measured on its site's rows",
            "set partition to natural or own, and data-dir to '' with own",
        ),
        (
            "privacy.secure-sum" if privacy.secure_sum else "",
            "a secure sum has no figures of single sites",
            "set privacy.secure-sum to false",
        ),
        (
            "privacy.epsilon" if privacy.epsilon else "",
            "the budget covers only training in the run",
            "set privacy.epsilon to 0",
        ),
    ):
        if got:
            got, allowed = f"{evaluation.fine_tune_steps} with {got}", f"0, since {reason}"
            raise ConfigError("fine-tune-steps", got=got, allowed=allowed, hint=f"{hint}, or remove fine-tune-steps")


def _check_local_norms(
    run: RunSettings, training: TrainingSettings, algorithm: Algorithm, spec: DataSpec, evaluation: EvaluationSettings
) -> None:
    """Check that only sites need the batch norms that each site keeps."""
    able = [name for name, row in ALGORITHMS.items() if row.traits.keeps_norms]
    for got, reason, hint in (
        (
            "" if algorithm.traits.keeps_norms else f"strategy {run.strategy!r}",
            f"these strategies can leave entries of the model at the sites: {', '.join(able)}",
            "set another strategy",
        ),
        (
            "" if spec.partition == OWN else f"partition {spec.partition!r}",
            "with partition 'own' the sites evaluate the model, and the server has no batch norms for it",
            "set partition to 'own'",
        ),
        (
            "steps-by-rows" if training.steps_by_rows else "",
            "a site's change of the model is stretched, and its batch norms would be stretched too",
            "remove steps-by-rows",
        ),
        (
            f"select-by {evaluation.select_by!r}" if evaluation.select_by else "",
            "a site keeps the batch norms of the last round only",
            "remove select-by",
        ),
    ):
        if got:
            got, allowed = f"{LOCAL_NORMS!r} with {got}", f"'averaged' or 'frozen', since {reason}"
            raise ConfigError("batch-norm", got=got, allowed=allowed, hint=f"{hint}, or remove batch-norm")


def _without_effect(
    flat: Mapping[str, Scalar], algorithm: Algorithm, family: Settings, training: TrainingSettings, dataset: str
) -> tuple[str, ...]:
    """Return the keys, as ``key=value``, that differ from their defaults but have no effect in this run.

    Flower passes every key of pyproject.toml, so a key at its default may be one that the user has not set.
    """
    used = _SERVER_STEPS[training.server_optimizer]
    names = [name for name in (*algorithm.traits.unread, *_SERVER_KEYS[1:]) if name not in used]
    unread: dict[str, Any] = {kebab(name): TrainingSettings.model_fields[name].default for name in names}
    read = {
        algorithm.table,
        SYNTHETIC if dataset == SPARSE_LOGISTIC else "",
        PRIVACY if algorithm.strategy.shares_model else "",
    }
    fields = type(family).model_fields
    unread |= {f"{algorithm.table}.{kebab(name)}": fields[name].default for name in family.without_effect}
    for table, model in _TABLES.items():
        if table not in read:
            unread |= {f"{table}.{kebab(name)}": field.default for name, field in model.model_fields.items()}
    return tuple(f"{key}={flat[key]!r}" for key in unread if key in flat and flat[key] != unread[key])


def _row_of(strategy: Scalar) -> tuple[Algorithm | None, list[ConfigError]]:
    """Return the strategy's row; or None and the error. A name that is not a text is left to `_parse`."""
    if not isinstance(strategy, str):
        return None, []
    try:
        return find_row(strategy), []
    except ConfigError as error:
        return None, [error]


def _without_auto(flat: Mapping[str, Scalar], row: Algorithm | None) -> dict[str, Scalar]:
    """Return the meaning of "auto" for each of model, dtype, scale and the learning rates that is "auto" or missing."""
    values = {**_AUTO, **_AUTO_OF.get(flat.get("dataset", ""), {})}
    steps = _SERVER_STEPS.get(str(flat.get("server-optimizer")), ())
    values["server-learning-rate"] = _ADAPTIVE_STEP if "server_tau" in steps else 1.0
    if row is None:
        values["learning-rate"] = ADAM_STEP  # any number, so "auto" is not a fault if the strategy is unknown
    else:
        dataset = str(flat.get("dataset", ""))
        if dataset in TABLES or is_hub(dataset):
            scales = ("range",) if row.sites.hold_columns else row.traits.scales
            values["scale"] = scales[0] if scales else values["scale"]
        if values["dtype"] not in row.traits.number_types:
            values["dtype"] = row.traits.number_types[0]
        if row.traits.models and values["model"] not in row.traits.models:
            values["model"] = row.traits.models[0]
        step = ADAM_STEP if flat.get("local-optimizer", "sgd") != "sgd" else row.traits.default_step
        values["learning-rate"] = min(step, largest_step(str(flat.get("model", "auto"))))
    return {key: value for key, value in values.items() if flat.get(key, "auto") == "auto"}


def _parse(
    model: type[Settings],
    prefix: str,
    flat: Mapping[str, Scalar],
    keys: Mapping[str, FieldInfo],
    problems: list[ConfigError],
) -> Any:
    names = {prefix + kebab(name): kebab(name) for name in model.model_fields}
    listed = not prefix or prefix.removesuffix(".") in _TABLES
    try:
        return model.model_validate({names[key]: value for key, value in flat.items() if key in names})
    except ValidationError as error:
        # By key, since a key that allows a number or a word has two errors. ``loc`` is the key, or its Python name if
        # the key was not set.
        wrong = {prefix + kebab(str(detail["loc"][0])): detail["input"] for detail in error.errors()}
        allowed = allowed_values({key: keys[key] for key in wrong})
        problems += [
            ConfigError(key, got=repr(got), allowed=allowed[key], hint=_hint(key, got, keys[key], listed=listed))
            for key, got in wrong.items()
        ]
        return None


def _hint(key: str, got: Any, field: FieldInfo, *, listed: bool) -> str:
    if field.annotation is str and isinstance(got, int | float):
        return f'put the value in quotes: {key}="{str(got).lower()}"'
    return list_hint("keys") if listed else f"change {key}"


def _unknown_key(key: str, keys: Mapping[str, FieldInfo]) -> ConfigError:
    return ConfigError(
        key if key.isprintable() else repr(key),
        got="an unknown run-config key",
        allowed=f"the {len(keys)} keys in docs/configuration.md",
        hint=did_you_mean(_RENAMED.get(key, key), keys, list_hint("keys")),
    )
