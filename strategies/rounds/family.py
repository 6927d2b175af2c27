"""What a strategy declares about its algorithm, and its hooks; an exchange knows nothing else of its strategy."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from logging import WARNING
from typing import Any, ClassVar

import numpy as np
from flwr.app import ArrayRecord, Message
from flwr.common import log
from flwr.serverapp import Grid

from payloads.record import FloatArray, Payload, not_finite
from payloads.secure_sum import own_values
from payloads.settings import PrivacySettings, Settings, TrainingSettings, kebab, refuse_other
from problems.models.vectors import Weights
from problems.objectives.classification import CROSS_ENTROPY
from strategies.rounds.errors import SetupError, check_both_classes
from strategies.rounds.handshake import Roster
from strategies.rounds.replies import Reply, RoundReport, SiteStates


class Family:
    """Settings, state and hooks of a strategy.

    Attributes:
        loss: the name of the loss; never "auto".
        state: what the server keeps from round to round, a ``state_type``; None before there is any.
        roster: the sites; none before the handshake.
        report: of the round under way.
        model: the arrays that the round's clients got.
        extra_config: scalars for every message's config, set by whoever runs the rounds.
        local: paths on a disk that server and clients share, set by the same.
        layout: names and shapes of the parts of the flat model, for strategies that tell weights from biases.
        measured: metrics of the newest model, if the clients measured them.
        headline: which of `views` the log and the curves show; "" is the model itself.
    """

    # the reason, if every client must take part in every round; it follows the words "strategy x"
    needs_all_clients = ""
    # a client that gave no good reply is asked again, up to ``max-retries`` times; then the run ends
    retries_failed = False
    # the sum of the clients' memories matters: if one is lost, all clients discard theirs
    joint_states = False
    # the reason, if ``client-weights`` must be "examples"; it follows the words "strategy x"
    needs_examples = ""
    # gradients already carry their site's weight by samples, so means over sites are plain
    weighted_gradients = False
    # the server has a model, which travels; else each client keeps a part, and the clients measure the metrics
    shares_model = True
    # the clients talk to each other within an exchange, so all of them run at once
    clients_meet = False
    # the clients report their numbers of samples in the handshake
    counts_samples = True
    number_types: ClassVar[tuple[str, ...]] = ("float32", "float64")
    # what `learning-rate = "auto"` means
    default_step: ClassVar[float] = 0.3
    # the strategy's own keys of step sizes
    own_steps: ClassVar[tuple[str, ...]] = ()
    # the common settings that change nothing in a run of this strategy
    unread: ClassVar[tuple[str, ...]] = ("server_learning_rate", "score")
    settings_type: ClassVar[type[Settings]] = Settings
    settings: Any
    default_loss = CROSS_ENTROPY
    down_type: ClassVar[type[Payload] | None] = None
    up_type: ClassVar[type[Payload] | None] = None
    state_type: ClassVar[type[Payload] | None] = None
    # how to make do without each client's own values; it ends an error
    sums_instead: ClassVar[str] = "take another strategy"
    # further exchanges of the strategy: phase -> the type of the replies' payload
    phases: ClassVar[dict[str, type[Payload]]] = {}

    @classmethod
    def phases_of(cls, settings: Settings) -> dict[str, type[Payload]]:
        """Return those of `phases` that a run with these settings has."""
        return cls.phases

    @classmethod
    def own_values(cls, settings: Settings) -> str:
        """Name a value that the server needs of each client, so that a sum over clients does not do.

        Returns:
            The record and the field, or "" where there is none.
        """
        records = (cls.up_type, *cls.phases_of(settings).values())
        return next((f"{record.__name__}.{name}" for record in records if record for name in own_values(record)), "")

    def __init__(self, training: TrainingSettings | None = None, settings: Settings | None = None) -> None:
        self.training = training or TrainingSettings()
        self.privacy = PrivacySettings()
        refuse_other(self, self.settings_type, settings)
        self.settings = settings or self.settings_type()
        self.loss = self.default_loss if self.training.loss == "auto" else self.training.loss
        self.state: Any = None
        self.roster = Roster((), ())
        self.states = SiteStates.unknown(0)
        self.grid: Grid | None = None
        self.report = RoundReport()
        self.model: list[FloatArray] = []
        self.extra_config: dict[str, int | str] = {}
        self.local: dict[str, str] = {}
        self.layout: tuple[tuple[str, tuple[int, ...]], ...] = ()
        self.measured: dict[str, float] = {}
        self.headline = ""

    # Before round 1.

    def meet(self, roster: Roster) -> None:
        """Check the sites before anything is sent.

        Raises:
            StrategyError: they do not fit.
        """

    def prologue(self, arrays: ArrayRecord, grid: Grid) -> None:
        """Exchange whatever the algorithm needs before its first round.

        Args:
            arrays: the initial model.
        """

    # Rounds.

    def inquire(self, server_round: int, arrays: ArrayRecord) -> ArrayRecord:
        """Exchange, by `PayloadStrategy.ask`, whatever is needed before the round's own.

        Returns:
            The model to send to the round's clients.
        """
        return arrays

    def down(self, server_round: int) -> Payload | None:
        """Make the payload for the round's clients, the same for all.

        Returns:
            A ``down_type``; None if nothing travels beside the model.
        """
        return None

    def deliver(self, grid: Grid, messages: list[Message]) -> list[Message]:
        """Send messages and wait for the replies, at most ``round-timeout`` seconds.

        Returns:
            Those that have come, errors among them, in any order.
        """
        return list(grid.send_and_receive(messages, timeout=self.training.round_timeout))

    def limits(self, place: int) -> Mapping[str, int]:
        """Bound a client's payload: a longer one is refused unread.

        Args:
            place: the client's in the roster.

        Returns:
            The greatest length of each dimension but ``d``, by its letter.
        """
        return {}

    def check_payload(self, payload: Any) -> None:
        """Check a payload that is well-formed.

        Raises:
            PayloadError: it is impossible; the reply is dropped, with this text as the reason.
        """

    @abstractmethod
    def combine(self, server_round: int, replies: list[Reply]) -> tuple[list[FloatArray], dict[str, float]]:
        """Make the new model.

        Args:
            replies: the round's valid ones, in order of partition id.

        Returns:
            The model's flat arrays, and the metrics of the round.
        """

    # Results.

    def output(self, server_round: int, arrays: list[FloatArray]) -> list[FloatArray]:
        """Return the model that is evaluated and saved for the arrays of a round.

        Args:
            server_round: 0 for the initial model.
            arrays: what `combine` returned in that round.
        """
        return arrays

    def views(self) -> dict[str, list[FloatArray]]:
        """Further models of the same shape to evaluate and to save, by the suffix of their metrics."""
        return {}

    def snapshot(self) -> Payload | None:
        """The strategy's state as one record, or None before there is any."""
        state: Payload | None = self.state
        return state if state and state.arrays() else None

    def restore(self, state: Payload) -> None:
        """Continue from a `snapshot`.

        Raises:
            TypeError: it is another algorithm's.
        """
        refuse_other(self, self.state_type, state)
        self.state = state

    # For the hooks to call.

    def weights(self, replies: Sequence[Reply]) -> Weights | None:
        """Weigh replies in proportion to the samples that their sites reported in the handshake.

        Returns:
            (k,) weights for a mean over clients, 1 on average; None for a plain mean.
        """
        if self.weighted_gradients or not self.training.by_examples:
            return None
        weights: Weights = self.roster.sample_weights[[reply.place for reply in replies]]
        weights /= weights.mean()
        return weights

    def check_classes(self, roster: Roster, what: str) -> None:
        """Refuse sites that all together hold one class only.

        Args:
            what: names what needs both.

        Raises:
            SetupError: there are no positives or no negatives.
        """
        negatives, positives = roster.class_counts.sum(axis=0).tolist()
        check_both_classes("labels", negatives, positives, f"{what} needs both", " at all sites together")

    def check_batch(self, key: str, batch_size: int, kind: str, held: Sequence[int]) -> None:
        """Warn of sites that cannot fill a batch and take all they have; refuse a batch that all together cannot fill.

        Args:
            key: the run-config key of the batch size.
            kind: what a batch is made of, e.g. "positives".
            held: how many of them each site holds, in the roster's order.
        """
        total = sum(held)
        if batch_size > total:
            allowed = f"at most {total}, since all {len(held)} sites together hold {total} {kind}"
            raise SetupError(key, got=batch_size, allowed=allowed, hint=f"lower {key}")
        named = [f"{partition} ({count})" for partition, count in enumerate(held) if count < batch_size]
        if named:
            which = ", ".join(named[:8]) + (", ..." if len(named) > 8 else "")
            text = "%s = %d: %d of %d sites hold fewer %s and take all they have: partition %s"
            log(WARNING, text, key, batch_size, len(named), len(held), kind, which)

    def check_finite(self, server_round: int, arrays: Sequence[FloatArray]) -> None:
        """Check what a round left the server.

        Args:
            arrays: the new model; the state is that of `snapshot`.

        Raises:
            SetupError: model or state is not finite.
        """
        state = self.snapshot()
        for name, value in {"model": np.concatenate(arrays), **(state.arrays() if state else {})}.items():
            if value.dtype.kind == "f" and (bad := not_finite(value)):
                raise SetupError(
                    f"round {server_round}",
                    got=f"{bad} of {value.size} values of the server's {name} that are not finite",
                    allowed="finite ones, since every reply was",
                    hint=f"the run has diverged: lower {self.steps()}",
                )

    @classmethod
    def steps(cls) -> str:
        """The keys to lower if values are not finite, in words."""
        common = [name for name in ("learning_rate", "server_learning_rate") if name not in cls.unread]
        return " or ".join([*map(kebab, common), *cls.own_steps])
