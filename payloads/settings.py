"""The settings that a run config sets, as typed, frozen pydantic models, for both the clients and the strategy.

Types are strict, since Flower does not check the types of overrides.
"""

import math
from collections.abc import Sequence
from functools import cache
from types import NoneType
from typing import Annotated, Any, Literal, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, field_validator
from pydantic.fields import FieldInfo

MEAN, TRIMMED_MEAN, MEDIAN, NORM_BOUND = AGGREGATIONS = ("mean", "trimmed-mean", "median", "norm-bound")
SCHEDULE = ("lr_decay", "lr_decay_every", "lr_decay_at", "lr_warmup", "lr_cosine")
"""The settings that change the step size in the course of a run."""


@cache
def kebab(name: str) -> str:
    """Return the run-config key of a Python name: ``local_steps`` -> ``local-steps``, ``lambda_`` -> ``lambda``.

    Example:
        >>> kebab("local_steps"), kebab("lambda_")
        ('local-steps', 'lambda')
    """
    return name.rstrip("_").replace("_", "-")


_KINDS: dict[Any, str] = {bool: "true or false", int: "an integer", float: "a number", str: "text"}
_SIGNS = {"ge": ">=", "gt": ">", "le": "<=", "lt": "<"}


def setting(meaning: str, default: Any = None, allowed: str | None = None, **bounds: Any) -> Any:
    """Return the field of a setting.

    Args:
        meaning: The setting's meaning, for the documentation.
        default: The default.
        allowed: The allowed values. Defaults to a description of type and bounds.
        bounds: The bounds, see `pydantic.Field`.
    """
    return Field(default, title=allowed, description=meaning, **bounds)


def describe_allowed(field: FieldInfo) -> str:
    """Return the allowed values of a setting, for errors and for the documentation.

    Args:
        field: The setting's field. A title replaces the description by type and bounds.
    """
    return field.title or _describe(field.annotation, field.metadata)


def _describe(kind: Any, bounds: Sequence[Any]) -> str:
    if get_origin(kind) is Literal:
        return ", ".join(get_args(kind))
    if get_origin(kind) is Annotated:
        return _describe(
            kind.__origin__, [bound for info in kind.__metadata__ for bound in getattr(info, "metadata", [info])]
        )
    if kind not in _KINDS:
        return ", or ".join(_describe(member, bounds) for member in get_args(kind) if member is not NoneType)
    limits = {sign: getattr(bound, name) for bound in bounds for name, sign in _SIGNS.items() if hasattr(bound, name)}
    if len(limits) == 2 and kind is int:
        return f"an integer from {limits['>=']} to {limits['<=']}"
    if len(limits) == 2:
        low, high = (f"{limits.get(sign, limits.get(sign + '=')):.7g}" for sign in "><")
        return f"a number in {'[' if '>=' in limits else '('}{low}, {high}{']' if '<=' in limits else ')'}"
    return " ".join([_KINDS[kind], *(f"{sign} {limit:.7g}" for sign, limit in limits.items())])


class Settings(BaseModel):
    """Base of all settings: frozen, strict types, unknown keys refused, kebab-case aliases.

    Example:
        >>> class MySettings(Settings):
        ...     step_size: float = 0.1
        >>> MySettings.model_validate({"step-size": 0.2})
        MySettings(step_size=0.2)
    """

    model_config = ConfigDict(
        frozen=True, strict=True, extra="forbid", alias_generator=kebab, populate_by_name=True, allow_inf_nan=False
    )

    @property
    def without_effect(self) -> tuple[str, ...]:
        """Names of the settings that have no effect, given the other settings."""
        return ()

    @property
    def fixes_rounds(self) -> bool:
        """Whether a run with these settings must keep the number of rounds that it began with."""
        return False

    def adapt_training(self, training: "TrainingSettings") -> "TrainingSettings":
        """Return the run's training settings, with the values that these settings require.

        Args:
            training: The settings in the run config.
        """
        return training


def refuse_other(owner: object, wanted: type | None, value: object) -> None:
    """Refuse settings or records that belong to another algorithm.

    Args:
        owner: The client or strategy that would use the value.
        wanted: The type that the owner accepts.
        value: The settings or the record.

    Raises:
        TypeError: ``value`` is neither None nor of the type ``wanted``. The text names both types.
    """
    if value is not None and type(value) is not wanted:
        name = "nothing" if wanted is None else wanted.__name__
        raise TypeError(f"{type(owner).__name__} takes {name}, got {type(value).__name__}")


UNIFORM, CYCLIC = "uniform", "cyclic"


class PrivacySettings(Settings):
    """The keys of the table ``privacy``: secure sums and differential privacy."""

    secure_sum: bool = setting(
        "Whether the server learns only sums over a round's clients, and nothing of a single client.", False
    )
    secure_range: float = setting(
        "The largest absolute value in a secure sum. Clients [clip](secure-sums.md#precision) larger values.",
        16.0,
        ge=1,
        le=2**20,
    )
    secure_threshold: float = setting(
        "The share of a client's neighbours that must stay to the end of a secure sum.", 2 / 3, ge=2 / 3, le=1
    )
    epsilon: float = setting(
        "The [epsilon](sample-privacy.md) of each training sample over the whole run. 0: no privacy.", 0.0, ge=0
    )
    delta: float = setting("Differential privacy's delta of each training sample.", 1e-5, gt=0, lt=1)
    clip: float = setting(
        "The maximum length of a sample's gradient. Longer gradients are clipped to it.", 1.0, ge=1e-6, le=1e6
    )

    @property
    def fixes_rounds(self) -> bool:
        return self.epsilon > 0  # the noise depends on the number of rounds


class TrainingSettings(Settings):
    """The common keys that every algorithm's client and strategy read. The descriptions list the allowed values.

    Example:
        >>> TrainingSettings.model_validate({"local-steps": 8}).num_server_rounds
        25
    """

    num_server_rounds: int = setting("The number of rounds.", 25, ge=1)
    local_steps: int = setting("The local steps K of a client in a round.", 32, ge=1)
    steps_by_rows: bool = setting(
        "Whether sites with fewer rows take [fewer steps](baselines.md#steps-by-rows). The largest site takes K.", False
    )
    batch_size: int = setting(
        "The samples of a local step, except in the pairwise strategies. 0: all samples of the site.", 32, ge=0
    )
    learning_rate: float = setting(
        "The [step size](experiments.md#the-defaults) of a local step. auto: the strategy's default.",
        0.1,
        "a number > 0, or auto",
        gt=0,
    )
    clip_gradient: float = setting(
        "The maximum length of a local step's gradient. Longer gradients are shortened to it. 0: no limit.", 0.0, ge=0
    )
    local_optimizer: Literal["sgd", "adam", "adamw"] = setting(
        "The optimizer of the local steps. [adam and adamw](configuration.md#local-training) restart in each round.",
        "sgd",
    )
    weight_decay: float = setting(
        "The factor of the weights that a local step adds to the clipped gradient, or adamw to its step.", 0.0, ge=0
    )
    lr_decay: float = setting("The factor of each drop of the learning rate.", 1.0, gt=0, le=1)
    lr_decay_every: int = setting(
        "The local steps from one drop of the learning rate to the next. 0: no drops.", 0, ge=0
    )
    lr_decay_at: str = setting(
        "Further drops, at these fractions of the run.", "", "numbers in (0, 1) separated by commas, or empty"
    )
    lr_warmup: int = setting(
        "The local steps in which the learning rate rises from near 0 to its full value. 0: no rise.", 0, ge=0
    )
    lr_cosine: bool = setting(
        "Whether the learning rate falls along a cosine, from the end of lr-warmup to 0 at the end of the run.", False
    )
    fraction_train: float = setting("The fraction of the clients that a round samples.", 1.0, gt=0, le=1)
    client_sampling: str = setting(
        "The choice of a round's clients.",
        UNIFORM,
        f"{UNIFORM}, {CYCLIC}, or package.module:function",
    )
    min_train_nodes: int | float = setting(
        "The minimum number of valid replies of a round, or their share. With fewer replies the run stops.",
        0.5,
        "an integer >= 1, or a share in (0, 1] with a decimal point",
    )
    replace_dropped: bool = setting(
        "Whether a round asks another client in place of a client without a valid reply.", False
    )
    max_retries: int = setting("The times that a strategy that needs all clients asks a failed client again.", 3, ge=0)
    retry_wait: float = setting(
        "The seconds before a client is asked again. A killed SuperNode needs a minute.", 0.0, ge=0
    )
    server_learning_rate: float = setting(
        "The server's step towards the clients' mean (codasca, scaffold, composite, ... and server-optimizer).",
        1.0,
        "a number > 0, or auto",
        gt=0,
    )
    server_optimizer: Literal["none", "momentum", "adagrad", "adam", "yogi"] = setting(
        "The server's [step](configuration.md#server-optimizers) for strategies whose next model is a mean.", "none"
    )
    server_momentum: float = setting("The server optimizer's decay of the first moment.", 0.9, ge=0, lt=1)
    server_second_momentum: float = setting(
        "The decay of the second moment of the server's adam and yogi.", 0.99, ge=0, lt=1
    )
    server_tau: float = setting(
        "The least scale of a step of the server's adagrad, adam and yogi: larger values adapt less.", 1e-3, gt=0
    )
    client_weights: Literal["equal", "examples"] = setting(
        "The [weight](baselines.md#what-sites-count) of a client in a mean: its samples, or 1.", "examples"
    )
    aggregation: Literal["mean", "trimmed-mean", "median", "norm-bound"] = setting(
        "The mean over a round's clients. All except mean are [robust](robust.md) against bad clients.", "mean"
    )
    trim_fraction: float = setting(
        "The share of the clients that a trimmed mean leaves out on each side.", 0.2, ge=0, lt=0.5
    )
    norm_bound: float = setting(
        "The maximum length of a client's step with norm-bound. 0: the median length of the round's steps.", 0.0, ge=0
    )
    seed: int = setting("The seed of all randomness.", 0, ge=0)
    device: Literal["auto", "cpu", "cuda"] = setting("The device. auto: CUDA if the site has it, else the CPU.", "auto")
    dtype: Literal["float32", "float64"] = setting(
        "The number type. auto: as the data set and the strategy need.", "float32", "auto, float32, float64"
    )
    torch_threads: int = setting(
        "The threads of PyTorch and NumPy in a process, or with --stack the stacks at once.", 1, ge=1
    )
    loss: str = setting(
        "The loss. auto: the strategy's first loss.", "auto", "auto, a loss of the strategy, or package.module:factory"
    )
    score: Literal["auto", "logit", "sigmoid", "tanh"] = setting(
        "The score that losses of pairs compare. auto: the loss's default.", "auto"
    )
    evaluate_every: int = setting(
        "The rounds from one evaluation to the next. Round 0 and the last round always have one.", 1, ge=1
    )
    checkpoint_every: int = setting(
        "The rounds from one checkpoint to the next. The last round always has one. 0: no checkpoints.", 10, ge=0
    )
    round_timeout: float = setting(
        "The seconds to wait for a round's replies. Later replies are dropped.", 3600.0, gt=0
    )
    reply_seconds: str = setting(
        "The [simulated seconds](simulations.md#slow-clients) from a message to a client's reply. Empty: none.",
        "",
        "median, median:spread, package.module:function, or empty",
    )
    handshake_timeout: float = setting("The seconds to wait for all sites to join.", 300.0, gt=0)

    @property
    def fixes_rounds(self) -> bool:
        return self.lr_decay_at != "" or self.lr_cosine

    @property
    def has_adam(self) -> bool:
        """Whether local steps are Adam's or AdamW's."""
        return self.local_optimizer != "sgd"

    @property
    def has_constant_steps(self) -> bool:
        """Whether all local steps of the run have the same step size."""
        return self.lr_decay == 1 and not self.lr_warmup and not self.lr_cosine

    @property
    def by_examples(self) -> bool:
        """Whether clients are weighted by their samples: the objective is then the mean over all sites' samples."""
        return self.client_weights == "examples"

    @field_validator("min_train_nodes")
    @classmethod
    def _count_or_share(cls, value: int | float) -> int | float:
        if not (value >= 1 if isinstance(value, int) else 0 < value <= 1):
            raise ValueError("neither a count nor a share")
        return value

    @property
    def fewest_asked(self) -> int:
        """The fewest clients that a round asks: ``min-train-nodes`` if it is a count, else 1."""
        return self.min_train_nodes if isinstance(self.min_train_nodes, int) else 1

    def fewest_replies(self, num_asked: int) -> int:
        """Return the number of valid replies that a round needs. A share is rounded up.

        Args:
            num_asked: The number of clients that the round asks.
        """
        if isinstance(self.min_train_nodes, int):
            return self.min_train_nodes
        # 0.1 of 30 is a bit more than 3 in floating point
        return math.ceil(round(self.min_train_nodes * num_asked, 9))

    @field_validator("lr_decay_at")
    @classmethod
    def _fractions(cls, text: str) -> str:
        try:
            fractions = _numbers(text)
        except ValueError:
            raise ValueError("not a comma-separated list of numbers") from None
        if not all(0 < fraction < 1 for fraction in fractions):
            raise ValueError("every fraction must lie in (0, 1)")
        return text

    def count_steps(self, rows: int, most_rows: int) -> int:
        """Return the local steps of a site in a round with ``steps-by-rows``, in proportion to its rows, rounded up.

        Args:
            rows: The site's rows.
            most_rows: The rows of the largest site.

        Example:
            >>> TrainingSettings(local_steps=32).count_steps(rows=30, most_rows=100)
            10
        """
        return min(self.local_steps, -(-self.local_steps * rows // most_rows))

    def learning_rate_at(self, iteration: int) -> float:
        """Return the step size of a local step.

        Args:
            iteration: The step's number ``(round - 1) * local_steps + step``, counted from 0 over the run.
        """
        if self.has_constant_steps:
            return self.learning_rate
        drops = iteration // self.lr_decay_every if self.lr_decay_every else 0
        total = self.num_server_rounds * self.local_steps
        # 0.28 of 800 is a bit more than 224 in floating point
        drops += sum(iteration >= round(fraction * total, 9) for fraction in _numbers(self.lr_decay_at))
        rate, risen = self.learning_rate * self.lr_decay**drops, iteration - self.lr_warmup
        if risen < 0:
            return rate * (iteration + 1) / self.lr_warmup
        return rate * (1 + math.cos(math.pi * risen / (total - self.lr_warmup))) / 2 if self.lr_cosine else rate


def _numbers(text: str) -> list[float]:
    return [float(part) for part in text.split(",") if part.strip()]
