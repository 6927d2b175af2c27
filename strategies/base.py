"""What every strategy of ours is: a drop-in ``flwr.serverapp.strategy.Strategy`` whose messages carry a payload.

The base class does what does not depend on the algorithm: the handshake, seeded sampling by partition id, messages,
validation of every reply, replacement of clients that do not answer, byte counts, and the mean of the models.
A family overrides a few small methods: `prologue` (an exchange before round 1), `inquire` (one before a round's
messages go out), `down` (what goes out), `combine` (what the replies become) and the pair `snapshot` / `restore`
(its state as one record). It runs in our round loop and in Flower's own ``Strategy.start``.
"""

from __future__ import annotations

import math
import reprlib
import time
import zlib
from collections.abc import Iterable, Mapping, Sequence
from logging import INFO, WARNING
from typing import Any, ClassVar

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord
from flwr.common import log
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from payloads.held_out import SCORE_COUNTS, ScoreCounts
from payloads.record import FloatArray, Payload, PayloadError, not_finite
from payloads.settings import EXAMPLES, Settings, TrainingSettings, kebab, refuse_other, settings_of
from payloads.wire import (
    ARRAYS,
    METRICS,
    NUM_EXAMPLES,
    PAYLOAD,
    PHASE,
    ROUND,
    STATE_ROUND,
    STATE_SINCE,
    check_model,
    content,
    count_bytes,
    find,
    model_arrays,
    model_record,
    need,
    payload_record,
)
from problems.objectives.classification import CROSS_ENTROPY
from problems.randomness import Purpose, stream
from strategies.replies import (
    NO_ANSWER,
    Exchange,
    Reply,
    RoundReport,
    SiteStates,
    Weights,
    mean_model,
    shortened,
    way_out,
)
from strategies.roster import DivergedError, Roster, SetupError, StrategyError, call_the_roll, reason_of
from strategies.schema import Schema, agreed

# exchanges of every strategy in which sites evaluate a model
_EVALUATIONS: dict[str, type[Payload]] = {SCORE_COUNTS: ScoreCounts}


def _state(made: int) -> str:
    return f"that of round {made}" if made else "none"


class PayloadStrategy(Strategy):
    """Base of all strategies.

    Args:
        training: the common settings (fractions, seed, timeouts, local steps).
        settings: the family's own settings.
    """

    # why every client takes part in every round, where it must: "... so that fraction-train must be 1.0"
    needs_all_clients: ClassVar[str] = ""
    # a client that gave no good reply is asked again, ``max-retries`` times, and the run ends without it
    retries_failed: ClassVar[bool] = False
    # clients talk to each other within an exchange: all run at once, and where one failed all are asked again
    concurrent: ClassVar[bool] = False
    # the clients' states add up to something: where one is lost, all clients begin theirs afresh
    joint_states: ClassVar[bool] = False
    # why the key client-weights has to be "examples", where it has: "strategy x ..."
    needs_examples: ClassVar[str] = ""
    # that sites count by their samples is in their gradients, so that means over them are plain
    weighted_gradients: ClassVar[bool] = False
    # clients hold columns of the same samples: no model travels, and the metrics are those the clients measured
    vertical: ClassVar[bool] = False
    fewest_clients: ClassVar[int] = 1
    number_types: ClassVar[tuple[str, ...]] = ("float32", "float64")
    # the family's own keys of step sizes
    own_steps: ClassVar[tuple[str, ...]] = ()
    # the common settings that change nothing in a run of this strategy
    unread: ClassVar[tuple[str, ...]] = ("server_learning_rate", "score")
    settings_type: ClassVar[type[Settings]] = Settings
    settings: Any
    default_loss: ClassVar[str] = CROSS_ENTROPY
    down_type: ClassVar[type[Payload] | None] = None
    up_type: ClassVar[type[Payload] | None] = None
    state_type: ClassVar[type[Payload] | None] = None
    # exchanges of the strategy's own: phase -> the type of the replies' payload
    phases: ClassVar[dict[str, type[Payload]]] = {}

    def __init__(self, training: TrainingSettings | None = None, settings: Settings | None = None) -> None:
        self.training = training or TrainingSettings()
        self.settings = settings_of(self, self.settings_type, settings)
        self.loss = self.default_loss if self.training.loss == "auto" else self.training.loss
        # what the server keeps from round to round, a ``state_type``; None before there is any
        self.state: Any = None
        # fixed by the handshake
        self.roster: Roster | None = None
        self.schema: Schema | None = None  # of sites that read files of their own
        # of the round under way
        self.report = RoundReport()
        self._model: list[FloatArray] = []
        self._exchange: Exchange | None = None
        self._grid: Grid | None = None
        self._prepared = False
        # of each site that keeps a state, the newest round of a good reply; and since when states count
        self._kept: dict[int, int] = {}
        self._states_since = 0
        # set by whoever runs the rounds: scalars for every message's config, paths on a shared disk
        self.extra_config: dict[str, int | str] = {}
        self.local: dict[str, str] = {}
        # names and shapes of the parts of the flat model, for strategies that tell weights from biases
        self.layout: tuple[tuple[str, tuple[int, ...]], ...] = ()
        # metrics of the newest model, where the clients measured them
        self.measured: dict[str, float] = {}
        # which of `views` the log and the curves show; "" is the model itself
        self.headline = ""

    # What a family overrides.

    def prologue(self, arrays: ArrayRecord, grid: Grid) -> None:
        """Exchange whatever the algorithm needs before its first round."""

    def inquire(self, server_round: int, arrays: ArrayRecord) -> ArrayRecord:
        """Exchange whatever the algorithm needs before a round's messages go out, see `ask`; the model to send."""
        return arrays

    def down(self, server_round: int) -> Payload | None:
        """The payload for the round's clients, the same for all."""
        return None

    def combine(self, server_round: int, replies: list[Reply]) -> tuple[list[FloatArray], dict[str, float]]:
        """The new model and the metrics of the round, from the valid replies in order of partition id."""
        return mean_model(replies, self.weights(replies)), {}

    def limits(self, place: int) -> Mapping[str, int]:
        """How long the dimensions of a client's payload may be, by letter, all but ``d``: from the run config and what
        the client told in the handshake. What does not fit is refused before it is looked at."""
        return {}

    def check_payload(self, payload: Any) -> None:
        """Raise `PayloadError` for a payload that is well-formed but impossible."""

    def output(self, server_round: int, arrays: list[FloatArray]) -> list[FloatArray]:
        """The model that the arrays of a round stand for: what is evaluated and saved. Round 0 made the initial one."""
        return arrays

    def views(self) -> dict[str, list[FloatArray]]:
        """Further models of the same shape to evaluate and to save, by the suffix of their metrics."""
        return {}

    def snapshot(self) -> Payload | None:
        """The strategy's state as one record, or None before there is any."""
        state: Payload | None = self.state
        return state if state is not None and state.arrays() else None

    def restore(self, state: Payload) -> None:
        """Continue from a `snapshot`.

        Raises:
            TypeError: it is another algorithm's.
        """
        refuse_other(self, self.state_type, state)
        self.state = state

    def site_states(self) -> SiteStates | None:
        """What is known of the clients' states, or None before any keeps one; a part of the checkpoint."""
        assert self.roster is not None
        if not self._kept and not self._states_since:
            return None
        kept = [self._kept.get(place, 0) for place in range(len(self.roster))]
        return SiteStates(kept=np.array(kept), since=np.array([self._states_since]))

    def restore_site_states(self, states: SiteStates) -> None:
        """Continue from `site_states`.

        Raises:
            PayloadError: they are those of another number of sites.
        """
        assert self.roster is not None
        states.check({"n": len(self.roster)})
        self._kept = {place: made for place, made in enumerate(states.kept.tolist()) if made}
        self._states_since = int(states.since[0])

    @property
    def by_examples(self) -> bool:
        """Whether a client counts by its samples: the objective is the mean over the samples of all sites."""
        return self.training.client_weights == EXAMPLES

    def weights(self, replies: Sequence[Reply]) -> Weights | None:
        """(k,) what each reply counts in a mean over clients, 1 in the mean; None for a plain mean.

        It is by the samples that sites told of in the handshake. Over a part of the sites it is the weighted mean of
        those, as FedAvg's.
        """
        if self.weighted_gradients or not self.by_examples:
            return None
        assert self.roster is not None
        weights: Weights = self.roster.sample_weights[[reply.place for reply in replies]]
        weights /= weights.mean()
        return weights

    # Flower's interface.

    def join(self, grid: Grid) -> Roster:
        """The handshake, once."""
        if self.roster is None:
            roster = call_the_roll(grid, self.training.handshake_timeout, counted=not self.vertical)
            self.schema = agreed(roster.reports)
            self.roster = roster
            self.meet(roster)
        return self.roster

    def prepare(self, arrays: ArrayRecord, grid: Grid) -> Roster:
        """Handshake and prologue, once; `configure_train` does it where nobody has."""
        roster = self.join(grid)
        self._grid = grid
        if not self._prepared:
            self.report = RoundReport(bytes_up=roster.bytes_up, bytes_down=roster.bytes_down)
            self._model = model_arrays(arrays)
            if self.snapshot() is None:
                self.prologue(arrays, grid)
            self._prepared = True
        return roster

    def meet(self, roster: Roster) -> None:
        """Look at the sites before anything is sent; raise `StrategyError` where they do not fit."""

    def check_samples(self, roster: Roster) -> None:
        """`check_batch` for ``batch-size``."""
        held = roster.class_counts.sum(axis=1).tolist()
        self.check_batch(roster, "batch-size", self.training.batch_size, "samples", held)

    def check_classes(self, roster: Roster, what: str) -> None:
        """Refuse sites that hold one class only, all together; ``what`` needs both."""
        negatives, positives = (int(count) for count in roster.class_counts.sum(axis=0))
        if not negatives or not positives:
            raise SetupError(
                "labels",
                got=f"{positives} positives and {negatives} negatives at all sites together",
                allowed=f"both classes, since {what} needs both",
                hint="set positive-label, or bring more rows",
            )

    def check_batch(self, roster: Roster, key: str, batch_size: int, kind: str, held: Sequence[int]) -> None:
        """Name the sites that cannot fill a batch: theirs is all they have. Refuse a batch larger than all sites.

        Args:
            key: the run-config key of the batch size.
            kind: what a batch is made of, e.g. "positives".
            held: how many of them each site holds, in the roster's order.
        """
        if batch_size > sum(held):
            raise SetupError(
                key,
                got=batch_size,
                allowed=f"at most {sum(held)}, since all {len(held)} sites together hold {sum(held)} {kind}",
                hint=f"lower {key}",
            )
        small = [(report.partition_id, count) for report, count in zip(roster.reports, held, strict=True)]
        named = [f"{partition} ({count})" for partition, count in small if count < batch_size]
        if named:
            log(
                WARNING,
                "%s = %d: %d of %d sites hold fewer %s and take all they have: partition %s",
                key,
                batch_size,
                len(named),
                len(held),
                kind,
                ", ".join(named[:8]) + (", ..." if len(named) > 8 else ""),
            )

    # ``more``: what a later Flower may tell them besides; nothing here needs it.

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid, **more: Any
    ) -> Iterable[Message]:
        """Sample the round's clients and make their messages."""
        roster = self.prepare(arrays, grid)
        self.report = RoundReport()
        self._model = model_arrays(arrays)
        arrays = self.inquire(server_round, arrays)
        self._model = model_arrays(arrays)
        training = self.training
        places = roster.sample(training.fraction_train, training.fewest_asked, training.seed, server_round)
        return self.messages(server_round, places, arrays, self.down(server_round), config)

    def messages(
        self,
        server_round: int,
        places: Sequence[int],
        arrays: ArrayRecord,
        payload: Payload | None,
        config: Mapping[str, Any] | None = None,
        phase: str = "",
    ) -> list[Message]:
        """Open an exchange: one train message a client; the records are made once and shared.

        Args:
            config: scalars for the messages' config.
            phase: the exchange's name, where it is not the round's own; clients read it as ``phase``. Its replies
                carry a payload and no model.
        """
        scalars = {**(config or {}), **self.extra_config, ROUND: server_round, **({PHASE: phase} if phase else {})}
        if self._states_since:
            scalars[STATE_SINCE] = self._states_since
        records = content(
            arrays=arrays,
            config=ConfigRecord(scalars),
            payload=payload_record(payload),
            local=ConfigRecord(dict(self.local)) if self.local else None,
            scaling=payload_record(None if self.schema is None else self.schema.scaling),
        )
        up = {**_EVALUATIONS, **self.phases}[phase] if phase else self.up_type
        self._exchange = Exchange(len(places), records, {}, phase, up)
        return self._write(self._exchange, places)

    def _write(self, exchange: Exchange, places: Sequence[int]) -> list[Message]:
        """Messages of an open exchange to some more clients."""
        assert self.roster is not None
        node_ids = self.roster.node_ids
        kind = MessageType.EVALUATE if exchange.phase in _EVALUATIONS else MessageType.TRAIN
        written = {place: Message(exchange.content, dst_node_id=node_ids[place], message_type=kind) for place in places}
        exchange.sent |= written
        if not exchange.phase:
            self.report.asked = [self.roster.reports[place].partition_id for place in exchange.sent]
        self.report.bytes_down += len(written) * count_bytes(exchange.content)
        return list(written.values())

    def ask(
        self,
        server_round: int,
        places: Sequence[int],
        arrays: ArrayRecord,
        payload: Payload | None,
        phase: str,
    ) -> list[Reply]:
        """A whole exchange beside a round's own, whose replies carry a payload and no model: one of the strategy's
        ``phases``, or one in which sites evaluate.

        Raises:
            StrategyError: fewer than ``min-train-nodes`` good replies.
        """
        return self.receive(server_round, self._send(self.messages(server_round, places, arrays, payload, phase=phase)))

    def deliver(self, grid: Grid, messages: list[Message]) -> list[Message]:
        """Send messages and wait for their replies, those that come within ``round-timeout``."""
        return list(grid.send_and_receive(messages, timeout=self.training.round_timeout))

    def _send(self, messages: list[Message]) -> list[Message]:
        assert self._grid is not None
        begun = time.perf_counter()
        replies = self.deliver(self._grid, messages)
        self.report.exchange_seconds += time.perf_counter() - begun
        return replies

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message], **more: Any
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Validate the replies, drop and name the bad ones, and combine the rest.

        Raises:
            DivergedError: the model or the state that good replies made is not finite.
            StrategyError: there are too few good replies.
        """
        valid = self.receive(server_round, replies)
        with np.errstate(over="ignore", invalid="ignore"):  # what they leave is looked at next
            arrays, metrics = self.combine(server_round, valid)
        self._check_finite(server_round, arrays)
        return model_record(arrays), MetricRecord({NUM_EXAMPLES: sum(r.num_examples for r in valid), **metrics})

    def _check_finite(self, server_round: int, arrays: Sequence[FloatArray]) -> None:
        state = self.snapshot()
        named = {"model": np.concatenate(arrays), **({} if state is None else state.arrays())}
        for name, value in named.items():
            if value.dtype.kind == "f" and (bad := not_finite(value)):
                raise DivergedError(
                    f"round {server_round}",
                    got=f"{bad} of {value.size} values of the server's {name} that are not finite",
                    allowed="finite ones, since every reply was",
                    hint=f"the run has diverged: lower {self.steps()}",
                )

    def receive(self, server_round: int, replies: Iterable[Message]) -> list[Reply]:
        """The valid replies to the open exchange, in order of partition id.

        With ``replace-dropped`` another client is asked in the place of each that gave no valid reply, until all
        are replaced or nobody is left to ask. A strategy that `retries_failed` asks the same clients again.

        Raises:
            StrategyError: fewer than ``min-train-nodes`` are left, or one is missing that has been asked often enough.
        """
        assert self.roster is not None
        assert self._exchange is not None
        exchange = self._exchange
        found: dict[int, Reply] = {}
        reasons: dict[int, str] = {}
        self._sort(server_round, exchange, replies, found, reasons)
        asked_again = 0
        while self._grid is not None and len(found) < exchange.wanted:
            places = self._next(server_round, exchange, len(found), reasons, asked_again)
            if not places:
                break
            self._sort(server_round, exchange, self._send(self._write(exchange, places)), found, reasons)
            asked_again += 1
        self._account(server_round, exchange, found, reasons)
        return [found[place] for place in sorted(found)]

    def _next(
        self, server_round: int, exchange: Exchange, found: int, reasons: dict[int, str], asked_again: int
    ) -> list[int]:
        """Whom to ask next: those whose replies are missing, or others in their place, or nobody."""
        assert self.roster is not None
        training = self.training
        if self.retries_failed:
            if asked_again == training.max_retries:
                return []
            named = "; ".join(f"partition {self.roster.reports[at].partition_id}: {reasons[at]}" for at in reasons)
            log(WARNING, "round %d: retry %d of %d: %s", server_round, asked_again + 1, training.max_retries, named)
            missing = sorted(reasons)
            reasons.clear()
            self._wait()
            return missing
        others = [place for place in range(len(self.roster)) if place not in exchange.sent]
        if not others or not training.replace_dropped:
            return []
        keys = (server_round, len(exchange.sent), zlib.crc32(exchange.phase.encode()))
        count = min(exchange.wanted - found, len(others))
        chosen = stream(training.seed, Purpose.REPLACEMENTS, *keys).choice(others, count, replace=False)
        return sorted(chosen.tolist())

    def _wait(self) -> None:
        """Let ``retry-wait`` go by, for a site that needs time to come back."""
        time.sleep(self.training.retry_wait)
        self.report.exchange_seconds += self.training.retry_wait

    def _sort(
        self,
        server_round: int,
        exchange: Exchange,
        replies: Iterable[Message],
        found: dict[int, Reply],
        reasons: dict[int, str],
    ) -> None:
        """Put each reply among the good ones or the reasons why there is none."""
        places = {message.metadata.message_id: place for place, message in exchange.sent.items()}
        for message in replies:
            place = places.get(message.metadata.reply_to_message_id)
            if place is None:
                log(WARNING, "round %d: a reply to no message of this round was ignored", server_round)
                continue
            if place in found:
                log(WARNING, "round %d: a second reply to one message was ignored", server_round)
                continue
            if message.has_content():
                self.report.bytes_up += count_bytes(message.content)
            try:
                found[place] = self._read(server_round, place, message, exchange)
                reasons.pop(place, None)
            except PayloadError as error:
                reasons[place] = shortened(str(error))
        for place in exchange.sent:
            if place not in found:
                reasons.setdefault(place, NO_ANSWER)

    def _account(self, server_round: int, exchange: Exchange, found: dict[int, Reply], reasons: dict[int, str]) -> None:
        """Report who answered and who was dropped; end the run where too few are left."""
        assert self.roster is not None
        partition = {place: self.roster.reports[place].partition_id for place in (*found, *reasons)}
        where = f"{exchange.phase} phase: " if exchange.phase else ""
        dropped = {partition[place]: where + reasons[place] for place in sorted(reasons)}
        for site, reason in dropped.items():
            log(WARNING, "round %d: dropped the reply of partition %d: %s", server_round, site, reason)
            before = self.report.dropped.get(site)
            self.report.dropped[site] = reason if before is None else f"{before}; {reason}"
        if not exchange.phase:
            self.report.answered = sorted(partition[place] for place in found)
        if self.retries_failed and dropped:
            site, reason = next(iter(dropped.items()))
            raise StrategyError(
                f"round {server_round}: partition {site} gave no good reply, max-retries is "
                f"{self.training.max_retries}: {reason}; {type(self).__name__} {self.needs_all_clients}"
                f"{self._advice(dropped)}"
            )
        fewest, given = self.training.fewest_replies(exchange.wanted), self.training.min_train_nodes
        if len(found) < fewest:
            told = f"{given}{'' if fewest == given else f', here {fewest}'}"
            first = next(iter(dropped.items()), (None, "nobody was asked"))
            raise StrategyError(
                f"round {server_round}: {len(found)} good replies of {len(exchange.sent)}, min-train-nodes is "
                f"{told}; partition {first[0]}: {first[1]}{self._advice(dropped)}"
            )
        if not exchange.phase:
            self._remember(server_round, found)

    @classmethod
    def steps(cls) -> str:
        """The keys to lower where values are not finite, in words."""
        common = [name for name in ("learning_rate", "server_learning_rate") if name not in cls.unread]
        return " or ".join([*map(kebab, common), *cls.own_steps])

    def _advice(self, dropped: Mapping[int, str]) -> str:
        return next((f"; {way_out(reason, self.steps())}" for reason in dropped.values() if "not finite" in reason), "")

    def _remember(self, server_round: int, found: Mapping[int, Reply]) -> None:
        """Note which good replies come from clients that keep a state, and tell of those that have lost it.

        A client's newest state is made in the round of its newest good reply or, where later replies were dropped,
        after it. An older one, or none, says that what came in between is lost.
        """
        assert self.roster is not None
        told = {place: found[place].state_round for place in sorted(found)}
        made = {place: number for place, number in told.items() if number is not None}
        lost = [place for place, number in made.items() if number < self._kept.get(place, 0)]
        named = [
            f"partition {self.roster.reports[at].partition_id} has {_state(made[at])}, kept {_state(self._kept[at])}"
            for at in lost
        ]
        self._kept |= dict.fromkeys(made, server_round)
        if not lost:
            return
        self.report.state_lost = [self.roster.reports[place].partition_id for place in lost]
        log(
            WARNING,
            "round %d: client state lost: %s",
            server_round,
            "; ".join(named[:8]) + ("; ..." if len(named) > 8 else ""),
        )
        if self.joint_states:
            self._kept, self._states_since = {}, server_round + 1
            log(
                WARNING,
                "round %d: %s adds the clients' states up: all begin afresh in round %d",
                server_round,
                type(self).__name__,
                server_round + 1,
            )

    def _read(self, server_round: int, place: int, message: Message, exchange: Exchange) -> Reply:
        assert self.roster is not None
        if message.has_error():
            raise PayloadError(reason_of(message.error))
        records = message.content
        metrics = find(records, METRICS, MetricRecord)
        if metrics is None or NUM_EXAMPLES not in metrics or ROUND not in metrics:
            raise PayloadError(f"reply without the metrics {NUM_EXAMPLES!r} and {ROUND!r}")
        if metrics[ROUND] != server_round:
            raise PayloadError(f"reply of round {reprlib.repr(metrics[ROUND])}, expected {server_round}")
        allowed = {METRICS} | ({ARRAYS} if not exchange.phase else set()) | ({PAYLOAD} if exchange.up else set())
        if unknown := records.keys() - allowed:
            raise PayloadError(f"unknown record {min(unknown)!r}, allowed: {', '.join(sorted(allowed))}")
        model: list[FloatArray] = []
        if not exchange.phase:
            model = model_arrays(need(records, ARRAYS, ArrayRecord))
            check_model(model, self._model)
        payload = None
        if exchange.up is not None:
            sizes = {"d": len(self._model[0])}
            payload = exchange.up.from_record(need(records, PAYLOAD, ConfigRecord), sizes, self.limits(place))
            if isinstance(payload, ScoreCounts):
                payload.check_rows(self.roster.held_out_counts[place])
            else:
                self.check_payload(payload)
        examples = metrics[NUM_EXAMPLES]
        if isinstance(examples, list) or not math.isfinite(examples) or examples < 0:
            raise PayloadError(f"{NUM_EXAMPLES!r} is {reprlib.repr(examples)}, expected a number >= 0")
        state_round = metrics.get(STATE_ROUND)
        if state_round is not None and not (isinstance(state_round, int) and 0 <= state_round <= server_round):
            got = reprlib.repr(state_round)
            raise PayloadError(f"{STATE_ROUND!r} is {got}, expected a round from 0 to {server_round}")
        return Reply(place, model, payload, int(examples), state_round)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid, **more: Any
    ) -> Iterable[Message]:
        """Evaluation is the server's, on its test set: no site is asked."""
        return []

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message], **more: Any) -> MetricRecord | None:
        """Nothing was asked, so there is nothing to aggregate."""
        return None

    def summary(self) -> None:
        """Log the settings."""
        log(INFO, "\t%s: %s %s", type(self).__name__, self.training, self.settings or "")
