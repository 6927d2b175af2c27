"""`Family`, the base of all strategies: an algorithm's declarations and the hooks that it overrides.

An exchange uses only this interface of its strategy. "Family" since algorithms that share settings share a subclass.
"""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, Message
from flwr.serverapp import Grid

from methods.method import Traits
from payloads.broadcast import BlockReplies
from payloads.record import FloatArray, Payload, not_finite
from payloads.secure_sum import own_values
from payloads.settings import PrivacySettings, Settings, TrainingSettings, kebab, refuse_other
from problems.data.preprocessing import Preprocessing
from problems.models.vectors import Weights
from strategies.rounds.errors import SetupError
from strategies.rounds.handshake import Roster
from strategies.rounds.replies import Reply, RoundReport, SiteStates


class Family:
    """Settings, state and hooks of a strategy.

    Attributes:
        training, privacy, settings: The common keys, the keys of the table ``privacy``, and the algorithm's own keys.
        loss: The name of the loss, never "auto".
        state: The server's state between rounds, a ``state_type``. None before the first state.
        roster: The sites. Empty before the handshake.
        states: The round of each client's memory.
        grid: Flower's grid, which delivers messages. None before the handshake.
        report: The report of the current round.
        model: The arrays sent to the round's clients.
        extra_config: Scalars for every message's config, set by the caller that runs the rounds.
        own_config: Scalars for every message's config, set by the strategy itself after the handshake.
        local: Paths on a disk that server and clients share, set by the caller that runs the rounds.
        layout: Names and shapes of the parts of the flat model, for strategies that distinguish weights and biases.
        num_frozen: The number of frozen entries at the end of the model's buffers.
        columns: The encoding of raw rows as the model's features. None: the rows are not a table, or it is unknown.
        measured: The newest model's metrics, if the clients measured them.
        sets: The number of sets of rows that the open exchange counts. 0: the exchange counts no sets.
        headline: The name in `views` of the model that the log and the curves show. "": the result of `output`.
    """

    # whether the server sends a model; if not, each client keeps a part of the model, and the clients measure metrics
    shares_model = True
    # whether the run has rounds; if not, all exchanges precede round 1
    trains = True
    # whether clients exchange data with each other during an exchange; all of them must then run at the same time
    clients_meet = False
    # whether the clients report their numbers of samples in the handshake
    counts_samples = True
    # whether `check_payload` checks anything
    checks_payloads = True
    traits: Traits = Traits()
    settings_type: type[Settings] = Settings
    settings: Any
    down_type: type[Payload] | None = None
    up_type: type[Payload] | None = None
    state_type: type[Payload] | None = None
    # the type of the replies' payload in each additional exchange, by phase
    phases: Mapping[str, type[Payload]] = MappingProxyType({})

    @classmethod
    def ups_of(cls, settings: Settings, loss: str = "") -> dict[str, type[Payload] | None]:
        """List the exchanges of a run.

        Args:
            settings: The run's settings of the family.
            loss: The run's loss.

        Returns:
            The type of the replies' payload by phase. "" is a round's main exchange.
        """
        return {"": cls.up_type, **cls.phases}

    # the name of the matching client class; "": the strategy's name with "Client" at the end
    matching_client = ""

    @classmethod
    def needs_clients(cls) -> str:
        """Return a hint that names the clients that the strategy needs, for errors about other clients."""
        name = cls.matching_client or f"{cls.__name__}Client"
        return (
            f"{cls.__name__} needs {name} at every site: run Florilegium's ClientApp (apps.client_app, or with mods "
            f"apps.mods.make_client_app), or use {name} in yours as docs/own-serverapp.md shows"
        )

    @classmethod
    def own_values(cls, settings: Settings) -> str:
        """Name a value that the server needs from each client. Such a value makes secure sums impossible.

        Returns:
            The names of the record and of its field, such as "Reply.scores"; "" if sums over clients suffice.
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
        self.own_config: dict[str, int | float] = {}
        self.local: dict[str, str] = {}
        self.layout: tuple[tuple[str, tuple[int, ...]], ...] = ()
        self.num_frozen = 0
        self.columns: Preprocessing | None = None
        self.measured: dict[str, float] = {}
        self.sets = 0
        self.headline = ""

    # Before round 1.

    def meet(self, roster: Roster) -> None:
        """Check the sites after the handshake, before anything else is sent.

        Raises:
            StrategyError: The sites do not fit the strategy.
        """

    def prologue(self, arrays: ArrayRecord, grid: Grid) -> None:
        """Run the exchanges before the first round.

        Args:
            arrays: The initial model.
        """

    # Rounds.

    def inquire(self, server_round: int, arrays: ArrayRecord) -> ArrayRecord:
        """Run the exchanges that precede a round's main exchange, with `PayloadStrategy.ask`.

        Returns:
            The model to send to the round's clients.
        """
        return arrays

    def down(self, server_round: int) -> Payload | None:
        """Return the payload for all clients of the round.

        Returns:
            A ``down_type``; None if only the model is sent.
        """
        return None

    def deliver(self, grid: Grid, messages: Sequence[Message]) -> Sequence[Message]:
        """Send messages and wait for the replies, at most ``round-timeout`` seconds.

        Returns:
            The replies that arrived, including errors, in any order.
        """
        replies = grid.send_and_receive(messages, timeout=self.training.round_timeout)
        return replies if isinstance(replies, BlockReplies) else list(replies)

    def limits(self, client: int) -> Mapping[str, int]:
        """Bound the size of a client's payload. Larger payloads are refused unread.

        Args:
            client: The client's partition id.

        Returns:
            The maximum length of each dimension, by the letter with which `payloads.record.array` declares it, except
            the model's length ``d``.
        """
        return {}

    def check_payload(self, payload: Any) -> None:
        """Check the values of a well-formed payload.

        Raises:
            PayloadError: The values are impossible. The reply is dropped, and the error's text is the reason.
        """

    @abstractmethod
    def combine(self, server_round: int, replies: list[Reply]) -> tuple[list[FloatArray], dict[str, float]]:
        """Combine the replies into the new model.

        Args:
            replies: The round's valid replies, in order of partition id.

        Returns:
            The model's flat arrays, and the metrics of the round.
        """

    # Results.

    def output(self, server_round: int, arrays: list[FloatArray]) -> list[FloatArray]:
        """Return the model to evaluate and save after a round.

        Args:
            server_round: The round. 0: the initial model.
            arrays: The result of `combine` in that round.
        """
        return arrays

    def views(self) -> dict[str, list[FloatArray]]:
        """Return further models of the same shape to evaluate and save, by the suffix of their metrics' names."""
        return {}

    def ended(self) -> str:
        """Return the reason why the run ends before its last round; "" if it goes on."""
        return ""

    def results(self, server_round: int) -> dict[str, Any]:
        """Return further entries of result.json, by name, after the last round."""
        return {}

    def snapshot(self) -> Payload | None:
        """Return the strategy's state as one record; None before the first state."""
        state: Payload | None = self.state
        return state if state and state.arrays() else None

    def restore(self, state: Payload) -> None:
        """Continue from a `snapshot`.

        Raises:
            TypeError: The state belongs to another algorithm.
        """
        refuse_other(self, self.state_type, state)
        self.state = state

    # Functions that hooks call.

    def weights(self, replies: Sequence[Reply]) -> Weights | None:
        """Return weights in proportion to the samples that the sites reported in the handshake.

        Returns:
            (k,) weights for a mean over clients, 1 on average; None for a plain mean.
        """
        if self.traits.weighted_gradients or not self.training.by_examples:
            return None
        weights: Weights = self.roster.sample_weights[[reply.client for reply in replies]]
        weights /= weights.mean()
        return weights

    def check_finite(self, server_round: int, arrays: Sequence[FloatArray]) -> None:
        """Check that the server's model and state are finite after a round.

        Args:
            arrays: The new model.

        Raises:
            SetupError: The model or the state is not finite.
        """
        state = self.snapshot()
        self.refuse_infinite(server_round, {"model": np.concatenate(arrays), **(state.arrays() if state else {})})

    def refuse_infinite(self, server_round: int, values: Mapping[str, Any]) -> None:
        """Check that arrays of the server are finite.

        Args:
            values: The arrays, by name.

        Raises:
            SetupError: A number is not finite.
        """
        for name, value in values.items():
            if value.dtype.kind == "f" and (bad := not_finite(value)):
                raise SetupError(
                    f"round {server_round}",
                    got=f"{bad} of {value.size} values of the server's {name} that are not finite",
                    allowed="finite values, since every reply was finite",
                    hint=f"the run has diverged: lower {self.steps()}",
                )

    @classmethod
    def steps(cls) -> str:
        """Return the run-config keys to lower if values are not finite, joined by "or"."""
        common = [name for name in ("learning_rate", "server_learning_rate") if name not in cls.traits.unread]
        return " or ".join([*map(kebab, common), *cls.traits.own_steps])
