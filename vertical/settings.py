"""Settings of VFB2: the parties' problem and their exchanges; `vertical.records` gives the paper and its symbols."""

from typing import Annotated, Literal, get_args

from pydantic import Field

from payloads.settings import Settings, TrainingSettings

ScoreFor = Literal["label-holders", "all"]
ProblemName = Literal["logistic", "nonconvex-logistic", "ridge", "robust", "softmax"]


class VFB2Settings(Settings):
    """What the parties minimise together, and how they talk to each other (table ``vfb2``)."""

    problem: ProblemName = Field("logistic", description=f"one of {', '.join(get_args(ProblemName))}")
    weight: Annotated[float, Field(ge=0)] | Literal["auto"] = Field(
        "auto", description="the regulariser's factor, a number >= 0, or auto: 1e-4, for robust 0"
    )
    penalty: Literal["none", "l1", "group-lasso"] = Field(
        "none", description="a nonsmooth penalty beside the regulariser: none, l1 or group-lasso"
    )
    penalty_weight: float = Field(1e-4, ge=0, description="the penalty's factor, a number >= 0")
    groups: Literal["columns", "party"] = Field(
        "columns", description="group-lasso's groups: columns (what one column of a party's file became) or party"
    )
    intercept: bool | Literal["auto"] = Field(
        "auto", description="true: parties with labels have a column of ones; false; or auto: those with own files have"
    )
    active_parties: Annotated[int, Field(ge=1)] | Literal["auto"] = Field(
        "auto", description="parties whose labels are used, an integer >= 1, or auto: 1 or 2, as many as have labels"
    )
    epochs: int = Field(1, ge=1, description="epochs of a round, an integer >= 1")
    window: int = Field(4, ge=1, description="updates an active party may have under way, an integer >= 1")
    skew: Annotated[int, Field(ge=1)] | Literal["auto"] = Field(
        "auto", description="updates an active party may be ahead of the slowest, an integer >= 1, or auto: 4 * window"
    )
    synchronous: bool = Field(False, description="true: rounds of one update an active party, in step; or false")
    embedding: int = Field(
        0, ge=0, description="numbers that each party's network makes of a row, an integer >= 0; 0: linear models"
    )
    model: str = Field("linear", description="the parties' networks: linear, mlp or package.module:factory")
    update_passive: bool = Field(True, description="false: blocks of parties without labels stay at 0; or true")
    masking: Literal["pairwise", "two-trees"] = Field(
        "pairwise", description="what hides partial sums: pairwise, or two-trees (Algorithm 1)"
    )
    label_epsilon: float = Field(
        0.0, ge=0, description="epsilon of the labels' differential privacy, a number > 0, or 0: off"
    )
    alignment: Literal["digest", "intersection"] = Field(
        "digest", description="digest: rows must be the same everywhere; intersection: take those that all hold"
    )
    id_column: str = Field("id", min_length=1, description="the column of a party's own file that names its rows")
    threads: int = Field(1, ge=1, description="threads of a party that apply updates, an integer >= 1")
    allow_two_parties: bool = Field(
        False, description="true: two parties may train, though each learns the other's partial sums; or false"
    )
    assemble: bool = Field(False, description="true: the server gets the blocks of the last round; or false")
    transport: Literal["auto", "unix", "tcp"] = Field(
        "auto", description="unix, tcp, or auto: Unix sockets where all parties share a host"
    )
    join_timeout: float = Field(10.0, gt=0, description="seconds the parties wait for each other, a number > 0")
    silence_timeout: float = Field(5.0, gt=0, description="seconds after which a silent party has failed, a number > 0")
    check_step: Literal["warn", "refuse", "off"] = Field(
        "warn", description="what is done about a learning-rate too large for the delay: warn, refuse or off"
    )
    score_run: str = Field(
        "",
        description="the token, or on one machine the directory, of a finished run whose model scores rows; '': train",
    )
    score_for: ScoreFor = Field(
        "label-holders", description=f"who learns the scores: {' or '.join(get_args(ScoreFor))}"
    )

    @property
    def without_effect(self) -> tuple[str, ...]:
        unread = [] if self.score_run else ["score_for"]
        unread += [] if self.penalty == "group-lasso" else ["groups"]
        unread += [] if self.penalty != "none" else ["penalty_weight"]
        return (*unread, "check_step" if self.embedding else "model")

    def adapt_training(self, training: TrainingSettings) -> TrainingSettings:
        """Leave one round, without a checkpoint, to a run that scores."""
        if not self.score_run:
            return training
        return training.model_copy(update={"num_server_rounds": 1, "checkpoint_every": 0})

    @property
    def factor(self) -> float | None:
        """The regulariser's factor; None: the problem's own."""
        return None if isinstance(self.weight, str) else self.weight

    @property
    def skew_bound(self) -> int:
        """Updates an active party may be ahead of the slowest."""
        return 4 * self.window if isinstance(self.skew, str) else self.skew

    @property
    def max_active(self) -> int:
        """The most active parties of the run: ``active_parties``, or the largest number that "auto" stands for."""
        if isinstance(self.active_parties, int):
            return self.active_parties
        return 1 if self.headed else 2

    @property
    def min_active(self) -> int:
        """The fewest active parties of the run: ``active_parties``, or 1 for "auto"."""
        return self.active_parties if isinstance(self.active_parties, int) else 1

    @property
    def headed(self) -> bool:
        """Whether the prediction has a head, which one active party trains."""
        return self.embedding > 1 and self.problem != "softmax"

    def delay_bound(self, active: int) -> int:
        """Return how many updates may be applied between the reading of an update's partial sums and its own step.

        Of the m updates of a synchronous round the last is applied after m - 1 others. Asynchronously each of the m
        active parties may have a window under way; single updates may be later still if one dominator lags behind.

        Args:
            active: The number m of active parties.
        """
        return active - 1 if self.synchronous else active * self.window

    def step(self, training: TrainingSettings, segment: int) -> float:
        """Return gamma of a segment.

        Args:
            training: The common settings. Their drops of the learning rate count an epoch as a local step.
            segment: The segment's number, from 1. Segment 0, which only aligns, has the gamma of segment 1.
        """
        counted = training.model_copy(update={"local_steps": self.epochs})
        return counted.learning_rate_at(max(segment - 1, 0) * self.epochs)
