"""Base of all strategies: a Flower ``Strategy`` whose messages carry a typed record, the payload, with the model.

`PayloadStrategy` adapts the parts of a round in `strategies.rounds` to Flower's interface. An algorithm overrides the
methods of `Family`. A client is identified by its partition id.
"""

import sys
from collections.abc import Iterable, Mapping, Sequence
from logging import INFO
from types import FrameType
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.common import log
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from payloads.held_out import EVALUATIONS, REPLIES, ErrorDigits
from payloads.record import Payload, specs_of
from payloads.settings import Settings, TrainingSettings
from payloads.wire import NUM_EXAMPLES, PHASE, ROUND, STATE_SINCE, content, model_arrays, model_record
from problems.models.vectors import with_end
from problems.objectives.number_losses import NUMBER_LOSSES
from strategies.rounds.errors import SetupError, raise_setup
from strategies.rounds.exchange import Exchange
from strategies.rounds.family import Family
from strategies.rounds.guards import ExchangeGuard, Steps, surround
from strategies.rounds.handshake import NoHandshakeError, Roster, collect_reports
from strategies.rounds.replies import Reply, RoundReport, SiteStates
from strategies.rounds.robust import RobustMeans
from strategies.rounds.schema import Schema, agree
from strategies.rounds.secure_sum import SecureSums
from strategies.rounds.slow_clients import drop_late


class PayloadStrategy(Family, Strategy):
    """Base of all strategies: a `Family` that Flower can run.

    Attributes:
        schema: The common schema of the sites' own files. None before the handshake, or if sites read no files.
        prepared: Whether the handshake and the prologue are done.
        exchange: The newest exchange: messages to some clients, and their replies.
        pending: The generator that runs the newest exchange inside its guards.
        guards: The guards around each exchange (see `strategies.rounds.guards`), the outermost first.
    """

    exchange_type: type[Exchange] = Exchange

    def __init__(self, training: TrainingSettings | None = None, settings: Settings | None = None) -> None:
        super().__init__(training, settings)
        self.schema: Schema | None = None
        self.prepared = False
        self.exchange: Exchange | None = None
        self.pending: Steps | None = None
        self.guards: tuple[ExchangeGuard, ...] = (SecureSums(), RobustMeans())

    # Before round 1.

    def join(self, grid: Grid) -> Roster:
        """Do the handshake, unless it is done.

        Raises:
            StrategyError: Sites are missing, or their data do not fit each other or the strategy.
        """
        if not self.roster:
            timeout, counted = self.training.handshake_timeout, self.counts_samples
            try:
                roster = collect_reports(grid, timeout, counted=counted, local=self.local)
            except NoHandshakeError as error:
                hint, allowed = self.needs_clients(), "clients that answer the handshake"
                if self.traits.plain_clients:
                    hint = f'create {type(self).__name__} with clients="{error.kind}"'
                    allowed += f', or clients="{error.kind}" for plain clients'
                raise SetupError("handshake", got=str(error), allowed=allowed, hint=hint) from None
            self.schema, self.states = agree(roster.reports, labelled=self.trains), SiteStates.unknown(len(roster))
            self.roster = roster
            self.meet(roster)
        return self.roster

    def prepare(self, arrays: ArrayRecord, grid: Grid) -> Roster:
        """Run all exchanges before round 1: the handshake and, unless a state was restored, the prologue.

        Repeated calls only return the roster.

        Args:
            arrays: The initial model of the first round.
        """
        roster = self.join(grid)
        self.grid = grid
        if not self.prepared:
            for guard in self.guards:
                guard.check(self, roster.share(self.training))
            self.report = RoundReport(bytes_up=roster.bytes_up)
            self.model = model_arrays(arrays)
            if self.snapshot() is None:
                self.prologue(arrays, grid)
            self.prepared = True
        return roster

    # Exchanges.

    def messages(
        self,
        server_round: int,
        clients: Sequence[int],
        arrays: ArrayRecord,
        payload: Payload | None,
        config: Mapping[str, Any] | None = None,
        phase: str = "",
    ) -> Sequence[Message]:
        """Open an exchange and return one message per client. All messages share the same records.

        A guard may leave out clients.

        Args:
            clients: The partition ids of the clients.
            arrays: The model to send.
            payload: The payload to send. None: no payload.
            config: Scalars for the messages' config.
            phase: The name of the exchange. "": the round's main exchange.

        Raises:
            SetupError: A number of the payload that must be finite is not.
        """
        if payload is not None:
            specs = specs_of(type(payload))
            self.refuse_infinite(server_round, {k: v for k, v in payload.arrays().items() if specs[k].finite})
        held_out = dict.fromkeys(EVALUATIONS, ErrorDigits) if self.loss in NUMBER_LOSSES else REPLIES
        up = {**self.phases, **held_out}[phase] if phase else self.up_type
        scalars = {**(config or {}), **self.extra_config, **self.own_config, ROUND: server_round}
        if phase:
            scalars[PHASE] = phase
        if since := int(self.states.since[0]):
            scalars[STATE_SINCE] = since
        scaling = None if self.schema is None else self.schema.scaling
        records = content(
            arrays=arrays,
            config=ConfigRecord(scalars),
            payload=None if payload is None else payload.to_record(),
            local=ConfigRecord(dict(self.local)) if self.local else None,
            scaling=None if scaling is None else scaling.to_record(),
        )
        self.exchange = self.exchange_type(self, server_round, phase, up, records, wanted=len(clients))
        self.pending = surround(self.exchange, clients, self.guards)
        return next(self.pending)

    def receive(self, server_round: int, replies: Iterable[Message]) -> list[Reply]:
        """Validate the replies to the open exchange.

        Returns:
            The good replies, in order of partition id.

        Raises:
            StrategyError: See `Exchange.receive`.
        """
        assert self.pending is not None
        try:
            self.pending.send(replies)
        except StopIteration as end:
            valid: list[Reply] = end.value
            return valid
        raise AssertionError("a guard has sent further messages")

    def ask(
        self,
        server_round: int,
        clients: Sequence[int],
        arrays: ArrayRecord,
        payload: Payload | None,
        phase: str,
        config: Mapping[str, Any] | None = None,
    ) -> list[Reply]:
        """Run an additional exchange from start to end: one of ``phases``, or an evaluation.

        Args:
            clients: The partition ids of the clients.
            arrays: The model to send.
            payload: The payload to send. None: no payload.
            phase: The name of the exchange.
            config: Scalars for the messages' config.

        Raises:
            StrategyError: Fewer than ``min-train-nodes`` replies are good.
        """
        messages = self.messages(server_round, clients, arrays, payload, config, phase)
        assert self.exchange is not None
        return self.receive(server_round, self.exchange.send(messages))

    def deliver(self, grid: Grid, messages: Sequence[Message]) -> Sequence[Message]:
        """See `Family.deliver`. With ``reply-seconds`` late replies to a round's main exchange are dropped."""
        replies = super().deliver(grid, messages)
        if not self.training.reply_seconds or self.exchange is None or self.exchange.phase:
            return replies
        partitions = {node: client for client, node in enumerate(self.roster.node_ids)}
        asked = {node: partitions[node] for node in (message.metadata.dst_node_id for message in messages)}
        with raise_setup():
            replies, seconds = drop_late(self.training, asked, self.exchange.server_round, replies)
        extras = self.report.extras
        extras["simulated_seconds"] = round(extras.get("simulated_seconds", 0.0) + seconds, 3)
        return replies

    # Flower's interface. ``more`` accepts arguments that a later Flower may add, and ignores them.

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid, **more: Any
    ) -> Iterable[Message]:
        """Sample the round's clients and return their messages.

        Args:
            config: Scalars for every message, in addition to the strategy's.
            grid: The grid for the handshake, the prologue and the exchanges of `inquire`.

        Raises:
            StrategyError: An earlier exchange failed, or there are too few clients.
        """
        roster = self.prepare(arrays, grid)
        self.report = RoundReport()
        self.model = model_arrays(arrays)
        arrays = self.inquire(server_round, arrays)
        self.model = model_arrays(arrays)
        clients = roster.sample(self.training, server_round)
        return self.messages(server_round, clients, arrays, self.down(server_round), config)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message], **more: Any
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Validate the replies, drop and report bad replies, and combine the good replies.

        Raises:
            StrategyError: Too few replies are good, or the new model or state is not finite although all replies are.
        """
        valid = self.receive(server_round, replies)
        with np.errstate(over="ignore", invalid="ignore"):  # `check_finite` follows
            (point, *buffers), metrics = self.combine(server_round, valid)
        # a mean of equal numbers may differ from them in the last bit
        arrays = [point, *(with_end(part, self.model[1], self.num_frozen) for part in buffers)]
        self.check_finite(server_round, arrays)
        return model_record(arrays), MetricRecord({NUM_EXAMPLES: sum(r.num_examples for r in valid), **metrics})

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid, **more: Any
    ) -> Iterable[Message]:
        """Return no messages: the run evaluates without this Flower hook."""
        return []

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message], **more: Any) -> MetricRecord | None:
        """Return None, since `configure_evaluate` sends no messages."""
        return None

    def summary(self) -> None:
        """Log the settings.

        Raises:
            SetupError: A wrapper of Flower calls this method, and the strategy does not support changed models.
        """
        secure = "a secure sum's replies are masked terms, not models" if self.privacy.secure_sum else ""
        if (wrapper := _find_wrapper(self)) and (objection := self.traits.objection or secure):
            got, allowed = f"{type(self).__name__} inside {wrapper}", f"its own start(), since {objection}"
            hint = "remove the wrapper, or wrap LocalSGD, FedProx or FastFedDA; docs/flower-mods.md lists all"
            raise SetupError("wrapper", got=got, allowed=allowed, hint=hint)
        log(INFO, "\t%s: %s %s", type(self).__name__, self.shown_settings(), self.settings or "")

    def shown_settings(self) -> object:
        """Return the common settings that have an effect, for the log."""
        return self.training


def _find_wrapper(strategy: Strategy) -> str:
    """Return the class of Flower's wrapper whose ``summary`` calls the ``summary`` of a strategy; "" if none does.

    Flower gives a strategy no other sign of a wrapper.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_name == "summary":
        owner = type(frame.f_locals.get("self"))
        if owner.__module__.startswith("flwr.") and owner is not type(strategy):
            return owner.__name__
        frame = frame.f_back
    return ""
