"""Settings that both halves of an algorithm must agree on, as typed, frozen models.

Types are strict: Flower does not check that an override has the type of the value it replaces.
"""

import math
from types import NoneType
from typing import Annotated, Any, Literal, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, field_validator
from pydantic.fields import FieldInfo

MEAN, TRIMMED_MEAN, MEDIAN, NORM_BOUND = AGGREGATIONS = ("mean", "trimmed-mean", "median", "norm-bound")


def kebab(name: str) -> str:
    """The run-config key of a Python name: ``local_steps`` -> ``local-steps``, ``lambda_`` -> ``lambda``."""
    return name.rstrip("_").replace("_", "-")


_KINDS: dict[Any, str] = {bool: "true or false", int: "an integer", float: "a number", str: "text"}


def describe_allowed(field: FieldInfo) -> str:
    """Return the allowed values of a setting, for errors and for the pages of settings.

    Args:
        field: The setting's field. A title replaces the description by type and bounds.
    """
    return field.title or _describe(field.annotation, field.metadata)


def _describe(kind: Any, bounds: list[Any]) -> str:
    if get_origin(kind) is Literal:
        return ", ".join(get_args(kind))
    if get_origin(kind) is Annotated:
        return _describe(kind.__origin__, [one for info in kind.__metadata__ for one in getattr(info, "metadata", ())])
    if kind not in _KINDS:
        return ", or ".join(_describe(one, bounds) for one in get_args(kind) if one is not NoneType)
    limits = {
        name: getattr(bound, name) for bound in bounds for name in ("ge", "gt", "le", "lt") if hasattr(bound, name)
    }
    low, high = limits.get("ge", limits.get("gt")), limits.get("le", limits.get("lt"))
    if high is not None and kind is int:
        return f"an integer from {low} to {high}"
    if high is not None:
        return f"a number in {'[' if 'ge' in limits else '('}{low:g}, {high:g}{']' if 'le' in limits else ')'}"
    return _KINDS[kind] if low is None else f"{_KINDS[kind]} {'>=' if 'ge' in limits else '>'} {low:g}"


class Settings(BaseModel):
    """Base of all settings: frozen, strict types, unknown keys refused, kebab-case aliases."""

    model_config = ConfigDict(
        frozen=True, strict=True, extra="forbid", alias_generator=kebab, populate_by_name=True, allow_inf_nan=False
    )

    @property
    def without_effect(self) -> tuple[str, ...]:
        """Names of these settings that have no effect, given the others."""
        return ()

    @property
    def fixes_rounds(self) -> bool:
        """Whether a run with these settings must keep the number of rounds that it began with."""
        return False

    def adapt_training(self, training: "TrainingSettings") -> "TrainingSettings":
        """Return the settings of the run's training, with those on which these settings leave no choice."""
        return training


def refuse_other(owner: object, wanted: type | None, given: object) -> None:
    """Refuse settings or records that belong to another algorithm.

    Raises:
        TypeError: ``given`` is neither None nor of the type ``wanted``; names both types.
    """
    if given is not None and type(given) is not wanted:
        name = "nothing" if wanted is None else wanted.__name__
        raise TypeError(f"{type(owner).__name__} takes {name}, got {type(given).__name__}")


class PrivacySettings(Settings):
    """The keys of the table ``privacy``: what a client keeps to itself."""

    secure_sum: bool = Field(
        False, description="true: the server learns sums over a round's clients, and nothing of one client; or false"
    )
    secure_range: float = Field(
        16.0, ge=1, le=2**20, description="largest absolute value in a secure sum, from 1 to 2^20"
    )
    secure_threshold: float = Field(
        2 / 3, ge=2 / 3, le=1, description="share of the clients that must stay to the end of a secure sum, in [2/3, 1]"
    )
    epsilon: float = Field(
        0.0, ge=0, description="differential privacy's epsilon of each training sample, a number >= 0 (0: no privacy)"
    )
    delta: float = Field(1e-5, gt=0, lt=1, description="differential privacy's delta of the samples, in (0, 1)")
    clip: float = Field(
        1.0, ge=1e-6, le=1e6, description="longest gradient of one sample, to which it is clipped, from 1e-6 to 1e6"
    )

    @property
    def fixes_rounds(self) -> bool:
        return self.epsilon > 0  # the noise is that for all rounds


class TrainingSettings(Settings):
    """The common keys that every algorithm's client and strategy read. Descriptions say what is allowed."""

    num_server_rounds: int = Field(25, ge=1, description="number of rounds, an integer >= 1")
    local_steps: int = Field(32, ge=1, description="local steps K of a client in a round, an integer >= 1")
    batch_size: int = Field(
        32, ge=0, description="samples a local step takes, an integer >= 0 (0: all); pairwise strategies have their own"
    )
    learning_rate: float = Field(
        0.1, gt=0, description="step size of a local step, a number > 0, or in a run config auto: the strategy's own"
    )
    clip_gradient: float = Field(
        0.0,
        ge=0,
        description="longest gradient of a local step, longer ones are clipped to it; a number >= 0 (0: none)",
    )
    local_optimizer: Literal["sgd", "adam"] = Field(
        "sgd", description="what a local step does with its gradient: sgd or adam"
    )
    weight_decay: float = Field(
        0.0, ge=0, description="factor of the weights that a local step adds to the gradient, a number >= 0"
    )
    lr_decay: float = Field(1.0, gt=0, le=1, description="factor of each learning-rate drop, in (0, 1]")
    lr_decay_every: int = Field(
        0, ge=0, description="drop the learning rate every so many local steps, an integer >= 0 (0: never)"
    )
    lr_decay_at: str = Field(
        "", description="drop it at these fractions of the run, comma-separated numbers in (0, 1), e.g. '0.5,0.75'"
    )
    fraction_train: float = Field(1.0, gt=0, le=1, description="fraction of the clients sampled a round, in (0, 1]")
    min_train_nodes: int | float = Field(
        0.5,
        description=(
            "fewest good replies a round needs, or the run stops: an integer >= 1, or a share in (0, 1] of the clients "
            "asked, such as 0.5"
        ),
    )
    replace_dropped: bool = Field(
        False,
        description="true: ask another client in the place of one that gave no good reply; false: average the others",
    )
    max_retries: int = Field(
        3, ge=0, description="times a client without a good reply is asked again, an integer >= 0 (composite)"
    )
    retry_wait: float = Field(
        0.0, ge=0, description="seconds to wait before a client is asked again, a number >= 0: a restart takes a minute"
    )
    server_learning_rate: float = Field(
        1.0, gt=0, description="server's step to the clients' mean, a number > 0 (codasca, scaffold, composite, ...)"
    )
    client_weights: Literal["equal", "examples"] = Field(
        "examples",
        description="what clients count by in a mean over them: examples (their samples) or equal (all the same)",
    )
    aggregation: Literal["mean", "trimmed-mean", "median", "norm-bound"] = Field(
        "mean", description=f"the mean over a round's clients, one of {', '.join(AGGREGATIONS)}"
    )
    trim_fraction: float = Field(
        0.2,
        ge=0,
        lt=0.5,
        description="share of the clients that a trimmed mean leaves out on each side, in [0, 0.5) (trimmed-mean)",
    )
    norm_bound: float = Field(
        0.0,
        ge=0,
        description="longest step of a client, a number >= 0 (0: the median of the round's steps) (norm-bound)",
    )
    seed: int = Field(0, ge=0, description="seed of all randomness, an integer >= 0")
    device: Literal["auto", "cpu", "cuda"] = Field("auto", description="auto, cpu or cuda")
    dtype: Literal["float32", "float64"] = Field(
        "float32", description="number type of the model and the payloads: float32, float64, or in a run config auto"
    )
    torch_threads: int = Field(1, ge=1, description="threads of PyTorch and NumPy's BLAS in a process, an integer >= 1")
    loss: str = Field("auto", description="name of a loss, or auto: the strategy's own")
    score: Literal["auto", "logit", "sigmoid", "tanh"] = Field(
        "auto", description="what pairwise losses compare: auto, logit (raw output), sigmoid or tanh"
    )
    evaluate_every: int = Field(1, ge=1, description="evaluate every so many rounds, an integer >= 1")
    checkpoint_every: int = Field(10, ge=0, description="checkpoint every so many rounds, an integer >= 0 (0: never)")
    round_timeout: float = Field(3600.0, gt=0, description="seconds to wait for a round's replies, a number > 0")
    handshake_timeout: float = Field(300.0, gt=0, description="seconds to wait for the sites to join, a number > 0")

    @property
    def fixes_rounds(self) -> bool:
        return self.lr_decay_at != ""

    @property
    def by_examples(self) -> bool:
        """Whether a client counts by its samples: the objective is then the mean over the samples of all sites."""
        return self.client_weights == "examples"

    @field_validator("min_train_nodes")
    @classmethod
    def _count_or_share(cls, value: int | float) -> int | float:
        if not (value >= 1 if isinstance(value, int) else 0 < value <= 1):
            raise ValueError("neither a count nor a share")
        return value

    @property
    def fewest_asked(self) -> int:
        """The fewest clients that a round asks: as many as must answer where that is a count, else 1."""
        return self.min_train_nodes if isinstance(self.min_train_nodes, int) else 1

    def fewest_replies(self, asked: int) -> int:
        """Return how many good replies a round needs; a share is rounded up.

        Args:
            asked: how many clients the round asks.
        """
        if isinstance(self.min_train_nodes, int):
            return self.min_train_nodes
        # 0.1 of 30 is a bit more than 3 in floating point
        return math.ceil(round(self.min_train_nodes * asked, 9))

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

    def learning_rate_at(self, iteration: int) -> float:
        """Return the step size of a local step.

        Args:
            iteration: ``(round - 1) * local_steps + step``, counted from 0 over the run.
        """
        if self.lr_decay == 1:
            return self.learning_rate
        drops = iteration // self.lr_decay_every if self.lr_decay_every else 0
        total = self.num_server_rounds * self.local_steps
        # 0.28 of 800 is a bit more than 224 in floating point
        drops += sum(iteration >= round(fraction * total, 9) for fraction in _numbers(self.lr_decay_at))
        return self.learning_rate * self.lr_decay**drops


def _numbers(text: str) -> list[float]:
    return [float(part) for part in text.split(",") if part.strip()]
