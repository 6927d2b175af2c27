"""Checks that the chosen strategy supports the run config's other keys, and the choice of the loss.

A strategy's `Algorithm`, its row in the registry, has traits (`methods.method.Traits`) that state what it supports.
"""

from collections.abc import Collection

from apps.registry import ALGORITHMS
from apps.run_config.algorithm import Algorithm
from apps.run_config.settings import ConfigError
from clients.base import MethodClient
from methods.fedx_settings import FedXSettings
from methods.method import SampleGradients
from payloads.settings import MEAN, NORM_BOUND, UNIFORM, PrivacySettings, Settings, TrainingSettings
from problems.data import DataSpec
from problems.data.spec import AUTO
from problems.errors import did_you_mean
from problems.minimax import AUC_MINIMAX, COMPOSITIONAL_AUC, ProblemError
from problems.minimax.problem import find_factory
from problems.objectives.classification import RATIO_LOSS, SAMPLE_LOSSES, SOFTMAX
from problems.objectives.hazard import TIME_LOSSES
from problems.objectives.number_losses import NUMBER_LOSSES
from problems.objectives.pairwise import ALL_PAIRWISE, PAIRWISE_LOSSES, make_objective


def list_hint(section: str) -> str:
    """Return the hint of an error: the command that lists the allowed names.

    Args:
        section: The list, such as "models" or "keys".
    """
    return f"see `florilegium list {section}`"


def check_needs(strategy: str, algorithm: Algorithm, training: TrainingSettings, model: str, scale: str) -> None:
    """Check that the strategy supports the values of the training keys, and of ``model`` and ``scale``.

    Raises:
        ConfigError: The strategy does not support the value of a key.
    """
    needs, since = algorithm.traits, f"since strategy {strategy!r}"
    total = training.num_server_rounds * training.local_steps
    if training.lr_warmup >= total and not {"lr_warmup", "local_steps"} & {*needs.unread}:
        allowed, hint = f"less than {total}, the local steps of the run", "lower lr-warmup, or raise num-server-rounds"
        raise ConfigError("lr-warmup", got=str(training.lr_warmup), allowed=allowed, hint=hint)
    if needs.needs_all_clients and training.fraction_train < 1:
        key, got = "fraction-train", str(training.fraction_train)
        value, reason = "1.0", f"{since} {needs.needs_all_clients}"
    elif needs.needs_all_clients and training.client_sampling != UNIFORM:
        key, got = "client-sampling", repr(training.client_sampling)
        value, reason = repr(UNIFORM), f"{since} {needs.needs_all_clients}"
    elif needs.needs_examples and not training.by_examples:
        key, got = "client-weights", repr(training.client_weights)
        value, reason = "'examples'", f"{since} {needs.needs_examples}"
    elif training.steps_by_rows and (needs.equal_steps or "local_steps" in needs.unread):
        key, got = "steps-by-rows", "true"
        value, reason = "false", f"{since} {needs.equal_steps or 'has no local steps'}"
    elif training.steps_by_rows and (training.lr_decay_every or training.lr_warmup):
        key, got = "steps-by-rows", f"true with {'lr-decay-every' if training.lr_decay_every else 'lr-warmup'}"
        value, reason = "false", "since this key counts local steps, whose number then differs between sites"
    elif not _trait(algorithm, "adjusts") and (training.clip_gradient or training.weight_decay):
        key = "clip-gradient" if training.clip_gradient else "weight-decay"
        got = str(training.clip_gradient or training.weight_decay)
        value, reason = "0", f"{since} does not support {key}; strategies that do: {_strategies_with('adjusts')}"
    elif not _trait(algorithm, "has_adam") and training.has_adam:
        key, got = "local-optimizer", repr(training.local_optimizer)
        value, reason = "'sgd'", f"{since} has its own steps; strategies with Adam: {_strategies_with('has_adam')}"
    elif training.dtype not in needs.number_types:
        key, got = "dtype", repr(training.dtype)
        value, reason = " or ".join(map(repr, needs.number_types)), f"{since} computes only in this number type"
    elif needs.models and model not in needs.models:
        key, got = "model", repr(model)
        value, reason = " or ".join(map(repr, needs.models)), f"{since} trains only these networks"
    elif needs.scales and scale not in (AUTO, *needs.scales):
        key, got = "scale", repr(scale)
        value, reason = " or ".join(map(repr, needs.scales)), f"{since} reports coefficients of the columns' own units"
    else:
        return
    raise ConfigError(key, got=got, allowed=f"{value}, {reason}", hint=f"set {key} to {value}, or remove {key}")


def check_sums(strategy: str, algorithm: Algorithm, training: TrainingSettings, family: Settings) -> None:
    """Check that the server needs only sums over clients, as ``privacy.secure-sum`` requires.

    Raises:
        ConfigError: The strategy, or a robust ``aggregation``, needs single clients' values.
    """
    if needed := algorithm.strategy.own_values(family):
        got = f"true, with strategy {strategy!r}"
        allowed = f"false, since the strategy's server needs each client's own {needed}"
        raise ConfigError("privacy.secure-sum", got=got, allowed=allowed, hint=algorithm.traits.sums_instead)
    if training.aggregation == MEAN or (training.norm_bound and training.aggregation == NORM_BOUND):
        return
    got = f"{training.aggregation!r} with privacy.secure-sum=true"
    allowed = "'mean', or 'norm-bound' with a norm-bound above 0, since the server sees only sums"
    raise ConfigError(
        "aggregation", got=got, allowed=allowed, hint="set aggregation to 'mean', or privacy.secure-sum to false"
    )


def check_budget(
    strategy: str, algorithm: Algorithm, loss: str, privacy: PrivacySettings, family: Settings, spec: DataSpec
) -> None:
    """Check that sites send only noisy sums of single samples' gradients if ``privacy.epsilon`` is set.

    Raises:
        ConfigError: With this strategy or this loss, sites send more; or rows have several labels.
    """
    if not privacy.epsilon or not algorithm.strategy.trains:  # a description has noise on its counts
        return
    taken = taken_of(algorithm)
    if spec.findings:
        cause, allowed = "label-columns", "0 with several labels for each row"
        hint = "set privacy.epsilon to 0, or train one label, of label-column"
    elif taken is None:
        private = ", ".join(name for name, row in ALGORITHMS.items() if taken_of(row))
        allowed = f"0, since its clients send more than sums over samples; strategies with a budget: {private}"
        cause, hint = f"strategy {strategy!r}", "set privacy.epsilon to 0, or strategy to a strategy with a budget"
        if algorithm.table == "fedx":
            hint += "; fedx.pool-epsilon is a budget for the scores"
    elif loss not in (*SAMPLE_LOSSES, RATIO_LOSS, AUC_MINIMAX):
        cause = f"loss {loss!r}"
        allowed = "0, since this loss is not a sum over samples, so single samples' gradients cannot be clipped"
        hint = "remove loss, or set privacy.epsilon to 0"
    elif uncovered := algorithm.strategy.ups_of(family, loss).keys() - {"", *taken.phases}:
        cause = f"the exchange {', '.join(uncovered)}"
        allowed = "0, since in this exchange sites send more than noisy gradients"
        hint = algorithm.traits.sums_instead
    else:
        return
    raise ConfigError("privacy.epsilon", got=f"{privacy.epsilon:g} with {cause}", allowed=allowed, hint=hint)


def taken_of(algorithm: Algorithm) -> SampleGradients | None:
    """Return the kinds of single samples' gradients that an algorithm computes.

    None if the algorithm computes no such gradients, and so does not support ``privacy.epsilon``.
    """
    return algorithm.client.method.taken if issubclass(algorithm.client, MethodClient) else None


def _trait(algorithm: Algorithm, name: str) -> bool:
    """Return one of the booleans of an algorithm's `Method`."""
    return issubclass(algorithm.client, MethodClient) and getattr(algorithm.client.method, name)


def _strategies_with(trait: str) -> str:
    return ", ".join(name for name, row in ALGORITHMS.items() if _trait(row, trait))


def _strategies_for(loss: str) -> list[str]:
    return [name for name, row in ALGORITHMS.items() if loss in row.losses]


def use_own_problem(training: TrainingSettings, strategy: str, algorithm: Algorithm, dataset: str) -> TrainingSettings:
    """Set the loss to the name of the data set, which is a complete minimax problem with its allowed loss.

    Raises:
        ConfigError: The strategy cannot solve the problem, or the run config names another loss.
    """
    if AUC_MINIMAX not in algorithm.losses:
        solvers = " or ".join(_strategies_for(AUC_MINIMAX))
        raise ConfigError(
            "dataset",
            got=f"{dataset!r}, a minimax problem, which strategy {strategy!r} cannot solve",
            allowed=f"dataset {dataset!r} with strategy {solvers}, or another dataset",
            hint=f"set strategy to {solvers}, or choose another dataset",
        )
    if training.loss not in ("auto", dataset):
        allowed = f"'auto', since dataset {dataset!r} is a complete problem with its allowed loss"
        raise ConfigError("loss", got=repr(training.loss), allowed=allowed, hint="set loss to 'auto', or remove loss")
    return training.model_copy(update={"loss": dataset})


def check_outcome(strategy: str, algorithm: Algorithm, training: TrainingSettings, spec: DataSpec) -> None:
    """Check that the strategy and the loss fit the type of the labels, and that the strategy uses offsets.

    Args:
        strategy: The strategy's name.
        algorithm: The strategy's row.
        training: The training settings, whose loss may be "auto".
        spec: The data.

    Raises:
        ConfigError: The labels are numbers and the loss is for classes, or the reverse; or the strategy has no offsets.
    """
    loss = training.loss
    own = losses_of(spec) if algorithm.strategy.trains else ()  # a description has no loss
    if spec.has_times:
        key, kind, of_kind, remove = "time-column", repr(spec.time_column), "times", "remove time-column"
        if not spec.time_column:
            key, kind, remove = "dataset", repr(spec.dataset), "choose another dataset"
    else:
        key, kind, of_kind, remove = "label-type", repr(spec.label_type), "numbers", "remove label-type"
    if own and not set(own) & {*algorithm.losses}:
        able = ", ".join(name for name, row in ALGORITHMS.items() if set(own) & {*row.losses})
        plain = "'class'" if spec.has_numbers else "''" if spec.time_column else "a data set without times"
        allowed = f"{plain}, since this strategy minimises no loss of {of_kind}; strategies for {of_kind}: {able}"
        hint = f"{remove}, or set strategy to a strategy for {of_kind}"
        raise ConfigError(key, got=f"{kind} with strategy {strategy!r}", allowed=allowed, hint=hint)
    fits = loss in own if own else loss not in (*NUMBER_LOSSES, *TIME_LOSSES)
    if loss != "auto" and not fits and (own or loss in algorithm.losses):
        allowed_losses = own or [name for name in algorithm.losses if name not in (*NUMBER_LOSSES, *TIME_LOSSES)]
        listed = " or ".join(repr(name) for name in allowed_losses if name in algorithm.losses)
        hint = f"remove loss, or {remove}" if own else "set label-type to 'number'"
        hint = "set time-column" if not own and loss in TIME_LOSSES else hint
        raise ConfigError("loss", got=f"{loss!r} with {key} {kind}", allowed=f"{listed} with {key} {kind}", hint=hint)
    if loss == SOFTMAX and not spec.findings:
        allowed, hint = "another loss with a single binary label", "set label-columns to the classes, or remove loss"
        raise ConfigError("loss", got=f"{SOFTMAX!r} without label-columns", allowed=allowed, hint=hint)
    if spec.findings and not training.by_examples:
        allowed = "'examples' with label-columns, since a finding's rows count equally at all sites"
        raise ConfigError("client-weights", got="'equal'", allowed=allowed, hint="remove client-weights")
    if spec.findings and not algorithm.traits.findings:
        able = ", ".join(name for name, row in ALGORITHMS.items() if row.traits.findings)
        allowed = f"'', since this strategy trains a single label; strategies for several labels: {able}"
        hint = "remove label-columns, or set strategy to a strategy for several labels"
        got = f"{spec.label_columns!r} with strategy {strategy!r}"
        raise ConfigError("label-columns", got=got, allowed=allowed, hint=hint)
    if spec.offset_column and not algorithm.traits.offsets:
        able = ", ".join(name for name, row in ALGORITHMS.items() if row.traits.offsets)
        allowed = f"'', since this strategy adds no offset to scores; strategies with offsets: {able}"
        got, hint = (
            f"{spec.offset_column!r} with strategy {strategy!r}",
            "remove offset-column, or set another strategy",
        )
        raise ConfigError("offset-column", got=got, allowed=allowed, hint=hint)


def check_entries(family: Settings, spec: DataSpec) -> None:
    """Check that rows do not enter late if sites count scores by time.

    Raises:
        ConfigError: ``entry-column`` is set, and ``fedx.pool`` is "histogram".
    """
    if spec.entry_column and isinstance(family, FedXSettings) and family.pool == "histogram":
        allowed = "'' with fedx.pool='histogram', since the sites' counts have no entries"
        hint = "set fedx.pool to 'predictions', or remove entry-column"
        raise ConfigError("entry-column", got=repr(spec.entry_column), allowed=allowed, hint=hint)


def losses_of(spec: DataSpec) -> tuple[str, ...]:
    """Return the losses for labels that are numbers, or for times; () for classes, which all other losses fit."""
    return NUMBER_LOSSES if spec.has_numbers else TIME_LOSSES if spec.has_times else ()


def choose_loss(
    training: TrainingSettings, strategy: str, algorithm: Algorithm, family: Settings, own: Collection[str] = ()
) -> TrainingSettings:
    """Set the loss to the strategy's default if it is "auto"; a user's own minimax problem stays.

    Args:
        training: The training settings.
        strategy: The strategy's name.
        algorithm: The strategy's row.
        family: The settings of the strategy's table.
        own: The result of `losses_of`. "auto" is the strategy's first loss among them, if there are any.

    Raises:
        ConfigError: The loss is unknown, does not fit the strategy, or rejects the strategy's options.
    """
    default = next((name for name in algorithm.losses if name in own), algorithm.traits.loss)
    loss = default if training.loss == "auto" else training.loss
    if ":" in loss and AUC_MINIMAX in algorithm.losses:
        try:
            find_factory(loss)
        except ProblemError as error:
            raise ConfigError.of(error) from None
        return training
    allowed = ", ".join(("auto", *algorithm.losses))
    if ":" in loss:
        got = f"{loss!r}, a user's minimax problem, which strategy {strategy!r} cannot solve"
        hint = f"set strategy to {' or '.join(_strategies_for(AUC_MINIMAX))}"
        raise ConfigError("loss", got=got, allowed=allowed, hint=hint)
    known = [*PAIRWISE_LOSSES, *SAMPLE_LOSSES, RATIO_LOSS, AUC_MINIMAX, COMPOSITIONAL_AUC]
    known += [name for row in (*ALGORITHMS.values(), algorithm) for name in row.losses]
    if loss not in known:
        raise refuse_choice("loss", loss, list(dict.fromkeys(["auto", *known])), "see docs/configuration.md")
    if loss not in algorithm.losses:
        hint = f"remove loss, or set strategy to {' or '.join(_strategies_for(loss))}, which can minimise {loss!r}"
        raise ConfigError("loss", got=f"{loss!r} with strategy {strategy!r}", allowed=allowed, hint=hint)
    if loss in ALL_PAIRWISE:
        try:
            make_objective(loss, **getattr(family, "objective_options", {}))
        except ValueError as error:
            raise ConfigError(
                "loss", got=f"{loss!r}, but {error}", allowed="options that fit this loss", hint=list_hint("keys")
            ) from None
    return training.model_copy(update={"loss": loss})


def refuse_choice(key: str, got: str, allowed: list[str], hint: str) -> ConfigError:
    """Return the error for a value that is not among the allowed names. It suggests the nearest name, else ``hint``."""
    return ConfigError(key, got=repr(got), allowed=", ".join(allowed), hint=did_you_mean(got, allowed, hint))
