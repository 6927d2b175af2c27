"""Settings of VFB2. `vertical.records` explains the paper and its symbols."""

from typing import Annotated, Literal

from pydantic import Field

from payloads.settings import Settings, TrainingSettings, setting

ScoreFor = Literal["label-holders", "all"]
ProblemName = Literal["logistic", "nonconvex-logistic", "ridge", "robust", "softmax"]


class VFB2Settings(Settings):
    """The parties' problem and their exchanges (table ``vfb2``)."""

    problem: ProblemName = setting(
        "The loss and its regulariser. ridge and robust are regressions. softmax needs vfb2.embedding.", "logistic"
    )
    weight: Annotated[float, Field(ge=0)] | Literal["auto"] = setting(
        "The regulariser's factor. auto: 1e-4, for robust 0.", "auto"
    )
    penalty: Literal["none", "l1", "group-lasso"] = setting(
        "A nonsmooth [penalty](vertical-models.md#few-columns-l1-and-group-lasso) of linear models.", "none"
    )
    penalty_weight: float = setting("The penalty's factor.", 1e-4, ge=0)
    groups: Literal["columns", "party"] = setting(
        "The groups of group-lasso: all features of a column, or all features of a party.", "columns"
    )
    intercept: bool | Literal["auto"] = setting(
        "Whether parties with labels get a column of ones. auto: if they read their own files.", "auto"
    )
    active_parties: Annotated[int, Field(ge=1)] | Literal["auto"] = setting(
        "The number of parties whose labels are used. auto: 1 or 2.", "auto"
    )
    epochs: int = setting("The epochs of a round.", 1, ge=1)
    window: int = setting("The number of updates that an active party may have under way at once.", 4, ge=1)
    skew: Annotated[int, Field(ge=1)] | Literal["auto"] = setting(
        "The number of updates that an active party may be ahead of the slowest. auto: 4 * window.", "auto"
    )
    synchronous: bool = setting(
        "Whether the active parties update in rounds, so results do not depend on timing.", False
    )
    embedding: int = setting(
        "The number of outputs of each party's [network](vertical-models.md#networks). 0: linear models.", 0, ge=0
    )
    model: str = setting(
        "The network of each party without its own `model`.", "linear", "linear, mlp, or package.module:factory"
    )
    update_passive: bool = setting("Whether the blocks of parties without labels are updated.", True)
    masking: Literal["pairwise", "two-trees"] = setting(
        "The masks that hide a party's partial sums. two-trees: Algorithm 1 of the paper.", "pairwise"
    )
    label_epsilon: float = setting("The epsilon of the labels' differential privacy. 0: no privacy.", 0.0, ge=0)
    alignment: Literal["digest", "intersection"] = setting(
        "The rows of the run. digest: all parties must have the same. intersection: the common rows.", "digest"
    )
    id_column: str = setting("The column of a party's own file that names its rows.", "id", "a name", min_length=1)
    threads: int = setting("The number of a party's threads that apply updates.", 1, ge=1)
    allow_two_parties: bool = setting(
        "Whether two parties may train, though each learns the other's partial sums.", False
    )
    assemble: bool = setting(
        "Whether the server gets all blocks, at checkpoints and at the end, if every party shares its block.", False
    )
    transport: Literal["auto", "unix", "tcp"] = setting(
        "The connections between parties. auto: Unix sockets if all parties are on one host.", "auto"
    )
    join_timeout: float = setting(
        "The seconds that the parties wait for each other at the start of a round.", 10.0, gt=0
    )
    silence_timeout: float = setting("The seconds of silence after which a party counts as failed.", 5.0, gt=0)
    check_step: Literal["warn", "refuse", "off"] = setting(
        "The reaction to a learning rate that is too large for the delay of updates.", "warn"
    )
    score_run: str = setting(
        "The finished run whose model [scores rows](vertical-scoring.md).",
        "",
        "a run token, a run directory, or empty",
    )
    score_for: ScoreFor = setting("The parties that learn the scores.", "label-holders")
    keep_shared: bool = setting(
        "Whether the weights of `shared-sgd` [stay shared](vertical-scoring.md#weights-that-stay-shared).", False
    )

    @property
    def without_effect(self) -> tuple[str, ...]:
        unread = [] if self.score_run else ["score_for"]
        unread += [] if self.penalty == "group-lasso" else ["groups"]
        unread += [] if self.penalty != "none" else ["penalty_weight"]
        return (*unread, "check_step" if self.embedding else "model")

    def adapt_training(self, training: TrainingSettings) -> TrainingSettings:
        """Return the settings with a single round and no checkpoint for a run that scores rows."""
        if not self.score_run:
            return training
        return training.model_copy(update={"num_server_rounds": 1, "checkpoint_every": 0})

    @property
    def deals(self) -> bool:
        """Whether `shared-sgd` needs a dealer's numbers: in training, and to score rows with shared weights."""
        return not self.score_run or self.keep_shared

    @property
    def factor(self) -> float | None:
        """The regulariser's factor. None: the problem's default."""
        return None if isinstance(self.weight, str) else self.weight

    @property
    def skew_bound(self) -> int:
        """The number of updates that an active party may be ahead of the slowest active party."""
        return 4 * self.window if isinstance(self.skew, str) else self.skew

    @property
    def max_active(self) -> int:
        """The maximum number of active parties: ``active_parties``, or the largest number that "auto" can mean."""
        if isinstance(self.active_parties, int):
            return self.active_parties
        return 1 if self.headed else 2

    @property
    def min_active(self) -> int:
        """The minimum number of active parties: ``active_parties``, or 1 for "auto"."""
        return self.active_parties if isinstance(self.active_parties, int) else 1

    @property
    def headed(self) -> bool:
        """Whether the model has a head: a last layer, trained by one active party, that turns sums into predictions."""
        return self.embedding > 1 and self.problem != "softmax"

    def delay_bound(self, active: int) -> int:
        """Return the maximum delay: the updates that are applied while an update's partial sums are on their way.

        In a synchronous round, the last of the m updates is applied after m - 1 updates. In asynchronous runs each of
        the m active parties may have ``window`` updates under way. Single updates may be even later if an active party
        lags behind.

        Args:
            active: The number m of active parties.
        """
        return active - 1 if self.synchronous else active * self.window

    def step(self, training: TrainingSettings, segment: int) -> float:
        """Return the learning rate of a segment.

        Args:
            training: The common settings. An epoch counts as a local step for drops of the learning rate.
            segment: The segment's number, from 1. Segment 0, which has no epochs, has the learning rate of segment 1.
        """
        counted = training.model_copy(update={"local_steps": self.epochs})
        return counted.learning_rate_at(max(segment - 1, 0) * self.epochs)
