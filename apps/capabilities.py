"""Checks that a strategy supports the run config, and the choice of its loss."""

from apps.registry import ALGORITHMS
from apps.run_config.algorithm import Algorithm
from apps.run_config.settings import ConfigError
from clients.base import MethodClient
from methods.method import SampleGradients
from payloads.settings import MEAN, NORM_BOUND, PrivacySettings, Settings, TrainingSettings
from problems.errors import did_you_mean
from problems.minimax import AUC_MINIMAX, COMPOSITIONAL_AUC, ProblemError
from problems.minimax.problem import find_factory
from problems.objectives.classification import RATIO_LOSS, SAMPLE_LOSSES
from problems.objectives.pairwise import PAIRWISE_LOSSES, make_objective


def list_hint(section: str) -> str:
    """Return a hint for an error: the command that explains a list of names."""
    return f"see `florilegium list {section}`"


def check_needs(strategy: str, algorithm: Algorithm, training: TrainingSettings) -> None:
    """Check the keys of training against the traits of the strategy.

    Raises:
        ConfigError: A key asks for something that the strategy does not support. Names the key.
    """
    needs, since = algorithm.traits, f"since strategy {strategy!r}"
    if needs.needs_all_clients and training.fraction_train < 1:
        key, got, allowed = "fraction-train", str(training.fraction_train), f"1.0, {since} {needs.needs_all_clients}"
    elif needs.needs_examples and not training.by_examples:
        key, got = "client-weights", repr(training.client_weights)
        allowed = f"'examples', {since} {needs.needs_examples}"
    elif not _trait(algorithm, "adjusts") and (training.clip_gradient or training.weight_decay):
        key = "clip-gradient" if training.clip_gradient else "weight-decay"
        got = str(training.clip_gradient or training.weight_decay)
        allowed = f"0, {since} has no place for it in its theory; or with {_those_with('adjusts')}"
    elif not _trait(algorithm, "has_adam") and training.local_optimizer == "adam":
        key, got = "local-optimizer", "'adam'"
        allowed = f"'sgd', {since} has steps of its own; or with {_those_with('has_adam')}"
    elif training.dtype not in needs.number_types:
        key, got, allowed = "dtype", repr(training.dtype), f"{' or '.join(needs.number_types)}, {since} computes in it"
    else:
        return
    raise ConfigError(key, got=got, allowed=allowed, hint="leave it out")


def check_sums(strategy: str, algorithm: Algorithm, training: TrainingSettings, family: Settings) -> None:
    """Check that the server needs no values of single clients, not for a robust mean either.

    Raises:
        ConfigError: The strategy or the aggregation needs them.
    """
    if needed := algorithm.strategy.own_values(family):
        got = f"true, with strategy {strategy!r}"
        allowed = f"false, since its server needs each client's own {needed}"
        raise ConfigError("privacy.secure-sum", got=got, allowed=allowed, hint=algorithm.traits.sums_instead)
    if training.aggregation == MEAN or (training.norm_bound and training.aggregation == NORM_BOUND):
        return
    got = f"{training.aggregation!r} with privacy.secure-sum=true"
    allowed = "'mean', or 'norm-bound' with a norm-bound above 0, since the server sees sums alone"
    raise ConfigError("aggregation", got=got, allowed=allowed, hint="set aggregation, or privacy.secure-sum to false")


def check_budget(strategy: str, algorithm: Algorithm, loss: str, privacy: PrivacySettings, family: Settings) -> None:
    """Check that sites send only noisy sums of single samples' gradients if ``privacy.epsilon`` is set.

    Raises:
        ConfigError: The strategy or its loss sends more.
    """
    if not privacy.epsilon:
        return
    taken = taken_of(algorithm)
    if taken is None:
        allowed = f"0, since its clients send more of samples than sums over them; or with {', '.join(_private())}"
        given, hint = f"strategy {strategy!r}", "set strategy to an allowed strategy, or privacy.epsilon to 0"
        if algorithm.table == "fedx":
            hint += "; fedx.pool-epsilon is a budget for the scores"
    elif loss not in (*SAMPLE_LOSSES, RATIO_LOSS, AUC_MINIMAX):
        given, allowed = f"loss {loss!r}", "0, since its gradients are no sums over samples that can be clipped"
        hint = "leave out loss, or set privacy.epsilon to 0"
    elif uncovered := algorithm.strategy.ups_of(family).keys() - {"", *taken.phases}:
        given, allowed = f"the phase {', '.join(uncovered)}", "0, since sites send more of samples in it than gradients"
        hint = algorithm.traits.sums_instead
    else:
        return
    raise ConfigError("privacy.epsilon", got=f"{privacy.epsilon:g} with {given}", allowed=allowed, hint=hint)


def taken_of(algorithm: Algorithm) -> SampleGradients | None:
    """Return the kinds of gradients that an algorithm takes of single samples; None: ``privacy.epsilon`` is refused."""
    return algorithm.client.method.taken if issubclass(algorithm.client, MethodClient) else None


def _trait(algorithm: Algorithm, name: str) -> bool:
    """Return one of the booleans of an algorithm's `Method`."""
    return issubclass(algorithm.client, MethodClient) and getattr(algorithm.client.method, name)


def _those_with(trait: str) -> str:
    return ", ".join(name for name, row in ALGORITHMS.items() if _trait(row, trait))


def _private() -> list[str]:
    return [name for name, row in ALGORITHMS.items() if taken_of(row)]


def _strategies_for(loss: str) -> list[str]:
    return [name for name, row in ALGORITHMS.items() if loss in row.losses]


def use_own_problem(training: TrainingSettings, strategy: str, algorithm: Algorithm, dataset: str) -> TrainingSettings:
    """Set the loss to the name of a data set that is itself a problem.

    Raises:
        ConfigError: The strategy cannot solve it, or the run config names another loss.
    """
    if AUC_MINIMAX not in algorithm.losses:
        raise ConfigError(
            "dataset",
            got=f"{dataset!r}, a minimax problem, which strategy {strategy!r} cannot solve",
            allowed=f"that with strategy {' or '.join(_strategies_for(AUC_MINIMAX))}",
            hint="set strategy to an allowed strategy, or dataset to another",
        )
    if training.loss not in ("auto", dataset):
        allowed = f"auto, since dataset {dataset!r} is a problem of its own"
        raise ConfigError("loss", got=repr(training.loss), allowed=allowed, hint="leave it out")
    return training.model_copy(update={"loss": dataset})


def choose_loss(training: TrainingSettings, strategy: str, algorithm: Algorithm, family: Settings) -> TrainingSettings:
    """Set the loss to the strategy's default if it is "auto"; a user's own minimax problem stays as it is.

    Raises:
        ConfigError: The loss is unknown, does not fit the strategy, or rejects the strategy's options.
    """
    loss = algorithm.traits.loss if training.loss == "auto" else training.loss
    if ":" in loss and AUC_MINIMAX in algorithm.losses:
        try:
            find_factory(loss)
        except ProblemError as error:
            raise ConfigError.of(error) from None
        return training
    own = ", ".join(("auto", *algorithm.losses))
    if ":" in loss:
        got = f"{loss!r}, a minimax problem of your own, which strategy {strategy!r} cannot solve"
        way_out = f"set strategy to one that can: {', '.join(_strategies_for(AUC_MINIMAX))}"
        raise ConfigError("loss", got=got, allowed=own, hint=way_out)
    known = [*PAIRWISE_LOSSES, *SAMPLE_LOSSES, RATIO_LOSS, AUC_MINIMAX, COMPOSITIONAL_AUC]
    everything = list(
        dict.fromkeys([*known, *(name for row in (*ALGORITHMS.values(), algorithm) for name in row.losses)])
    )
    if loss not in everything:
        raise refuse_choice("loss", loss, ["auto", *everything], "see docs/configuration.md")
    if loss not in algorithm.losses:
        way_out = f"leave it out: {loss!r} goes with strategy {' or '.join(_strategies_for(loss))}"
        raise ConfigError("loss", got=f"{loss!r} with strategy {strategy!r}", allowed=own, hint=way_out)
    if loss in PAIRWISE_LOSSES:
        try:
            make_objective(loss, **getattr(family, "objective_options", {}))
        except ValueError as error:
            raise ConfigError(
                "loss", got=f"{loss!r}, but {error}", allowed="options that fit it", hint=list_hint("keys")
            ) from None
    return training.model_copy(update={"loss": loss})


def refuse_choice(key: str, got: str, allowed: list[str], hint: str) -> ConfigError:
    """Return the error for a value that is not among the allowed names."""
    return ConfigError(key, got=repr(got), allowed=", ".join(allowed), hint=did_you_mean(got, allowed, hint))
