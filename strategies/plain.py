"""Strategies for plain clients, which train the received model and know neither the handshake nor payloads.

    strategy = LocalSGD(training, clients="numpy")   # a ClientApp whose function returns a NumPyClient
    strategy = LocalSGD(training, clients="message")  # a ClientApp with functions @app.train() and @app.evaluate()
    result = strategy.start(grid, initial_arrays=ArrayRecord(module.state_dict()))

The author of the ServerApp chooses the kind of clients. A client cannot: if plain clients were detected, any client
could turn off the checks of the handshake.
"""

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from logging import INFO, WARNING
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord
from flwr.common import log
from flwr.serverapp import Grid

from payloads.handshake import SiteReport, encode_name
from payloads.plain import CLIENTS, FLORILEGIUM, NUMPY, PlainModel, PlainReply, kind_of, mean_metrics, plain_content
from payloads.record import PayloadError
from payloads.settings import Settings, TrainingSettings, kebab
from payloads.wire import ARRAYS, CONFIG, NUM_EXAMPLES, ROUND, check_model, model_arrays, need
from problems.errors import InputError
from problems.models.vectors import Weights
from strategies.base import PayloadStrategy
from strategies.rounds.errors import SetupError, StrategyError, reason_of, shorten
from strategies.rounds.exchange import Exchange
from strategies.rounds.handshake import Roster
from strategies.rounds.replies import Reply, SiteStates

# the settings that have an effect with plain clients, which choose all others themselves
SERVER_KEYS = {
    *("fraction_train", "client_sampling", "min_train_nodes", "replace_dropped", "round_timeout"),
    *("client_weights", "aggregation", "trim_fraction", "norm_bound", "seed", "handshake_timeout"),
    *("server_optimizer", "server_learning_rate", "server_momentum", "server_second_momentum", "server_tau"),
}
_LEFT_OUT = (
    "\tplain clients: no handshake, so no site names, no checks of the sites' data, no secure sums and no "
    "privacy.epsilon; clients choose their own steps, batches and loss; %s"
)
_SECONDS_BETWEEN = 0.2  # two looks for new nodes


@dataclass(eq=False)
class PlainExchange(Exchange):
    """An exchange with plain clients.

    Attributes:
        plain_replies: The good replies, by client.
    """

    plain_replies: dict[int, PlainReply] = field(default_factory=dict)
    reads_blocks = False

    def __post_init__(self) -> None:
        super().__post_init__()
        strategy = self.family
        assert isinstance(strategy, PlainStrategy)
        assert strategy.plain is not None
        self.clients, self.layout = strategy.clients, strategy.plain
        model = self.layout.record(model_arrays(need(self.content, ARRAYS, ArrayRecord)))
        self.content = plain_content(self.clients, model, need(self.content, CONFIG, ConfigRecord))

    def read(self, client: int, message: Message) -> Reply:
        if message.has_error():
            reason = reason_of(message.error)
            kind = kind_of(reason)
            raise PayloadError(f'{reason}; set clients="{kind}"' if kind not in ("", self.clients) else reason)
        plain = PlainReply.read(message.content)
        if len(plain.models) != 1:
            raise PayloadError(f"reply with {len(plain.models)} models, expected 1")
        model = self.layout.flatten(plain.models[0], by_position=self.clients == NUMPY)
        check_model(model, self.model)
        self.plain_replies[client] = plain
        return Reply(client, model, None, plain.num_examples)


class PlainStrategy(PayloadStrategy):
    """A strategy that also trains with plain clients, if its method supports them (`Traits.plain_clients`).

    Args:
        clients: The kind of all clients: florilegium, message or numpy.

    Attributes:
        clients: The kind of all clients.
        plain: The layout of the model of plain clients. None before the first round.
    """

    def __init__(
        self,
        training: TrainingSettings | None = None,
        settings: Settings | None = None,
        *,
        clients: str = FLORILEGIUM,
    ) -> None:
        super().__init__(training, settings)
        if clients not in CLIENTS:
            hint = "choose message or numpy for plain clients"
            raise InputError("clients", got=repr(clients), allowed=", ".join(CLIENTS), hint=hint)
        self.clients, self._evaluated = clients, True
        self.plain: PlainModel | None = None
        if clients == FLORILEGIUM:
            return
        if not self.traits.plain_clients:
            raise InputError("clients", got=repr(clients), allowed=FLORILEGIUM, hint=self.needs_clients())
        self.exchange_type = PlainExchange

    @property
    def is_plain(self) -> bool:
        """Whether the clients are plain."""
        return self.clients != FLORILEGIUM

    def join(self, grid: Grid) -> Roster:
        """Do the handshake or, with plain clients, list the connected nodes in each round.

        Raises:
            SetupError: Too few nodes are connected, or the run needs a handshake.
        """
        if not self.is_plain:
            return super().join(grid)
        if self.privacy.secure_sum or self.privacy.epsilon:
            got = f"privacy.{'secure-sum' if self.privacy.secure_sum else 'epsilon'} with plain clients"
            hint = f"remove it, or create the strategy with {FLORILEGIUM} clients"
            raise SetupError("privacy", got=got, allowed="no privacy setting that the clients must obey", hint=hint)
        nodes = self._wait_for_nodes(grid)
        if nodes != self.roster.node_ids:
            reports = [
                SiteReport(identity=np.array([index, len(nodes)]), name=encode_name(f"node {node}"))
                for index, node in enumerate(nodes)
            ]
            self.roster, self.states = Roster(nodes, tuple(reports)), SiteStates.unknown(len(nodes))
        return self.roster

    def _wait_for_nodes(self, grid: Grid) -> tuple[int, ...]:
        timeout, fewest = self.training.handshake_timeout, self.training.fewest_asked
        deadline = time.monotonic() + timeout
        while len(nodes := tuple(sorted(grid.get_node_ids()))) < fewest:
            if time.monotonic() > deadline:
                got, allowed = f"{len(nodes)} connected nodes within {timeout:g} s", f"at least {fewest}"
                hint = "start further nodes, lower min-train-nodes, or raise handshake-timeout"
                raise SetupError("nodes", got=got, allowed=allowed, hint=hint)
            time.sleep(_SECONDS_BETWEEN)
        return nodes

    def weights(self, replies: Sequence[Reply]) -> Weights | None:
        """Return weights in proportion to samples: in the handshake or, with plain clients, in the replies.

        Raises:
            StrategyError: All plain clients report 0 samples.
        """
        if not self.is_plain or not self.training.by_examples:
            return super().weights(replies)
        counts: Weights = np.array([reply.num_examples for reply in replies], dtype=np.float64)
        if not counts.any():
            raise StrategyError("every client that answered has 0 examples: set client-weights to equal")
        counts /= counts.mean()
        return counts

    # Flower's interface.

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid, **more: Any
    ) -> Iterable[Message]:
        if self.is_plain:
            arrays = self._flatten(arrays)
        return super().configure_train(server_round, arrays, config, grid, **more)

    def _flatten(self, arrays: ArrayRecord) -> ArrayRecord:
        try:
            self.plain = self.plain or PlainModel.of(arrays)
            return self.plain.flat_record(arrays)
        except PayloadError as error:
            hint = "pass the model's arrays, as in ArrayRecord(module.state_dict())"
            raise SetupError("initial_arrays", got=str(error), allowed="arrays of numbers", hint=hint) from None

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message], **more: Any
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Combine the replies. With plain clients, the result's model has the names of the initial model."""
        arrays, metrics = super().aggregate_train(server_round, replies, **more)
        if arrays is None or metrics is None or not isinstance(self.exchange, PlainExchange):
            return arrays, metrics
        assert self.plain is not None
        good = self.exchange.good_replies
        means = self._mean_metrics([self.exchange.plain_replies[client] for client in sorted(good)])
        return self.plain.record(model_arrays(arrays)), MetricRecord({**means, **metrics})

    def _mean_metrics(self, replies: Sequence[PlainReply]) -> dict[str, float]:
        by_examples = self.training.by_examples
        return mean_metrics(replies, [reply.num_examples if by_examples else 1 for reply in replies])

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid, **more: Any
    ) -> Iterable[Message]:
        """Let plain clients evaluate the model on their own rows, until a round in which none of them can."""
        if not self.is_plain or not self._evaluated:
            return []
        scalars = ConfigRecord({**config, ROUND: server_round})
        content = plain_content(self.clients, arrays, scalars, evaluates=True)
        kind = MessageType.EVALUATE
        return [Message(content, dst_node_id=node, message_type=kind) for node in self.roster.node_ids]

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message], **more: Any) -> MetricRecord | None:
        """Return the means of the metrics of plain clients, weighted like their models."""
        good: list[PlainReply] = []
        reason = ""
        for message in replies:
            try:
                if message.has_error():
                    raise PayloadError(reason_of(message.error))
                good.append(PlainReply.read(message.content))
            except PayloadError as error:
                reason = shorten(str(error))
        if reason:
            log(WARNING, "round %d: a client did not evaluate the model: %s", server_round, reason)
            self._evaluated = bool(good)
        if not good:
            return None
        return MetricRecord({**self._mean_metrics(good), NUM_EXAMPLES: sum(reply.num_examples for reply in good)})

    def shown_settings(self) -> object:
        if not self.is_plain:
            return self.training
        return " ".join(f"{name}={value!r}" for name, value in self.training if name in SERVER_KEYS)

    def summary(self) -> None:
        """Log the settings and, with plain clients, everything that they leave out."""
        super().summary()
        if not self.is_plain:
            return
        weight = "the num-examples of its reply" if self.training.by_examples else "1"
        log(INFO, _LEFT_OUT, f"a client's weight is {weight}")
        unread = sorted(map(kebab, self.training.model_fields_set - SERVER_KEYS))
        if unread:
            log(WARNING, "no effect with plain clients: %s", ", ".join(unread))
