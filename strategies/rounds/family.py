"""What a strategy declares about its algorithm, and its hooks; an exchange knows nothing else of its strategy."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, Message
from flwr.serverapp import Grid

from methods.method import Traits
from payloads.record import FloatArray, Payload, not_finite
from payloads.secure_sum import own_values
from payloads.settings import PrivacySettings, Settings, TrainingSettings, kebab, refuse_other
from problems.models.vectors import Weights
from strategies.rounds.errors import SetupError
from strategies.rounds.handshake import Roster
from strategies.rounds.replies import Reply, RoundReport, SiteStates


class Family:
    """Settings, state and hooks of a strategy.

    Attributes:
        loss: The name of the loss; never "auto".
        state: What the server keeps from round to round, a ``state_type``; None before there is any.
        roster: The sites; none before the handshake.
        report: Of the round under way.
        model: The arrays that the round's clients got.
        extra_config: Scalars for every message's config, set by whoever runs the rounds.
        local: Paths on a disk that server and clients share, set by the same.
        layout: Names and shapes of the parts of the flat model, for strategies that tell weights from biases.
        measured: Metrics of the newest model, if the clients measured them.
        headline: Which of `views` the log and the curves show; "" is the model itself.
    """

    # the server has a model, which travels; else each client keeps a part, and the clients measure the metrics
    shares_model = True
    # the clients talk to each other within an exchange, so all of them run at once
    clients_meet = False
    # the clients report their numbers of samples in the handshake
    counts_samples = True
    traits: Traits = Traits()
    settings_type: type[Settings] = Settings
    settings: Any
    down_type: type[Payload] | None = None
    up_type: type[Payload] | None = None
    state_type: type[Payload] | None = None
    # further exchanges of the strategy: phase -> the type of the replies' payload
    phases: Mapping[str, type[Payload]] = MappingProxyType({})

    @classmethod
    def ups_of(cls, settings: Settings) -> dict[str, type[Payload] | None]:
        """List the exchanges of a run.

        Args:
            settings: The run's settings of the family.

        Returns:
            The type of the replies' payload by phase; "" is a round's own exchange.
        """
        return {"": cls.up_type, **cls.phases}

    @classmethod
    def own_values(cls, settings: Settings) -> str:
        """Name a value that the server needs of each client, which a sum over clients cannot replace.

        Returns:
            The record and the field, or "" if there is none.
        """
        records = cls.ups_of(settings).values()
        return next((f"{record.__name__}.{name}" for record in records if record for name in own_values(record)), "")

    def __init__(self, training: TrainingSettings | None = None, settings: Settings | None = None) -> None:
        self.training = training or TrainingSettings()
        self.privacy = PrivacySettings()
        refuse_other(self, self.settings_type, settings)
        self.settings = settings or self.settings_type()
        self.loss = self.traits.loss if self.training.loss == "auto" else self.training.loss
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
            StrategyError: They do not fit.
        """

    def prologue(self, arrays: ArrayRecord, grid: Grid) -> None:
        """Exchange whatever the algorithm needs before its first round.

        Args:
            arrays: The initial model.
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
            place: The client's in the roster.

        Returns:
            The greatest length of each dimension but ``d``, by its letter.
        """
        return {}

    def check_payload(self, payload: Any) -> None:
        """Check a payload that is well-formed.

        Raises:
            PayloadError: It is impossible; the reply is dropped, with this text as the reason.
        """

    @abstractmethod
    def combine(self, server_round: int, replies: list[Reply]) -> tuple[list[FloatArray], dict[str, float]]:
        """Make the new model.

        Args:
            replies: The round's valid ones, in order of partition id.

        Returns:
            The model's flat arrays, and the metrics of the round.
        """

    # Results.

    def output(self, server_round: int, arrays: list[FloatArray]) -> list[FloatArray]:
        """Return the model that is evaluated and saved for the arrays of a round.

        Args:
            server_round: 0 for the initial model.
            arrays: What `combine` returned in that round.
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
            TypeError: It is another algorithm's.
        """
        refuse_other(self, self.state_type, state)
        self.state = state

    # For the hooks to call.

    def weights(self, replies: Sequence[Reply]) -> Weights | None:
        """Weigh replies in proportion to the samples that their sites reported in the handshake.

        Returns:
            (k,) weights for a mean over clients, 1 on average; None for a plain mean.
        """
        if self.traits.weighted_gradients or not self.training.by_examples:
            return None
        weights: Weights = self.roster.sample_weights[[reply.place for reply in replies]]
        weights /= weights.mean()
        return weights

    def check_finite(self, server_round: int, arrays: Sequence[FloatArray]) -> None:
        """Check what a round left the server.

        Args:
            arrays: The new model; the state is that of `snapshot`.

        Raises:
            SetupError: Model or state is not finite.
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
        common = [name for name in ("learning_rate", "server_learning_rate") if name not in cls.traits.unread]
        return " or ".join([*map(kebab, common), *cls.traits.own_steps])
