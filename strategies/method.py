"""The adapter between the server half of a `Method` and Flower.

A method's server half is a generator for each round: it yields the exchanges that it needs, exactly one of which is the
training exchange (`Train`), and returns the new model and state.
"""

import sys
from collections.abc import Generator, Iterable, Mapping
from dataclasses import replace
from logging import INFO
from typing import Any, TypeVar

import numpy as np
from flwr.app import ArrayRecord, Message, MetricRecord
from flwr.common import log
from flwr.serverapp import Grid

from methods.checks import Checks
from methods.method import Exchanges, Method, Plan, Replies, Train
from methods.private import releases_of
from methods.server_steps import with_server_steps
from payloads.plain import FLORILEGIUM
from payloads.record import FloatArray, Payload
from payloads.settings import Settings, TrainingSettings
from payloads.wire import MEAN_STEPS, MOST_ROWS, model_arrays, model_record
from privacy.budget import epsilon_of_batches, noise_of_batches
from problems.errors import InputError
from problems.models.vectors import mean
from strategies.plain import PlainStrategy
from strategies.rounds.errors import SetupError, raise_setup
from strategies.rounds.handshake import Roster
from strategies.rounds.replies import Reply

T = TypeVar("T")
# yields each training exchange, receives its replies, and returns a result
Trains = Generator[Train, Replies[Any], T]


class MethodStrategy(PlainStrategy):
    """A strategy that runs the server half of a `Method`. Subclasses set `method`."""

    method: Method
    # the round that has begun (None between rounds), its remaining exchanges, and its training exchange
    opened: int | None = None
    exchanges: Trains[Any]
    train: Train

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if method := cls.__dict__.get("method"):
            declare(cls, method)

    def __init__(
        self,
        training: TrainingSettings | None = None,
        settings: Settings | None = None,
        *,
        clients: str = FLORILEGIUM,
    ) -> None:
        super().__init__(training, settings, clients=clients)
        method = self.method.of(self.settings, self.loss)
        stepping = self.training.server_optimizer != "none"
        declare(self, with_server_steps(method, self.training) if stepping else method)
        self.headline = self.method.server.headline(self.settings)
        # the newest round's model; None before the first round of this process
        self.newest: FloatArray | None = None
        with raise_setup():
            self.method.checks.run(self.plan(0))

    @classmethod
    def ups_of(cls, settings: Settings, loss: str = "") -> dict[str, type[Payload] | None]:
        method = cls.method.of(settings, loss)
        return {"": method.records.up, **{name: phase.up for name, phase in method.phases.items()}}

    def meet(self, roster: Roster) -> None:
        rows = roster.class_counts.sum(axis=1)
        largest = int(rows.max())
        with raise_setup():
            plan = replace(self.plan(0), class_counts=roster.class_counts, finding_counts=roster.finding_counts)
            self.method.checks.sites(plan)
        if self.privacy.epsilon and self.privacy.delta * largest > 1:
            got, allowed = f"{self.privacy.delta:g}", f"at most 1 / {largest}, one over the rows of the largest site"
            raise SetupError("privacy.delta", got=got, allowed=allowed, hint="lower privacy.delta")
        if self.training.steps_by_rows:
            steps = [self.training.count_steps(int(count), largest) for count in rows]
            weights = rows if self.training.by_examples and not self.traits.weighted_gradients else None
            mean_steps = float(np.average(steps, weights=weights))
            log(
                INFO,
                "steps-by-rows: sites take %d to %d local steps, %.1f on average",
                min(steps),
                max(steps),
                mean_steps,
            )
            self.own_config = {MOST_ROWS: largest, MEAN_STEPS: mean_steps}

    def plan(self, server_round: int) -> Plan[Any]:
        """Return the information that the method gets about a round.

        Args:
            server_round: The round. 0: before round 1.
        """
        counts, names = self.roster.class_counts, self.roster.site_names
        borders = () if self.columns is None else self.columns.time_borders
        return Plan(
            server_round,
            self.training,
            self.settings,
            self.loss,
            counts,
            self.layout,
            names,
            self.columns,
            num_times=len(borders) + 1 if borders else 0,
            finding_counts=self.roster.finding_counts,
        )

    def replies(self, replies: list[Reply]) -> Replies[Any]:
        """Convert the good replies of a round or a phase to the method's form. Replies of a phase carry no model."""
        clients = [reply.client for reply in replies]
        weights = self.weights(replies)
        return Replies(
            clients,
            [reply.model[0] for reply in replies if reply.model],
            [reply.payload for reply in replies],
            weights,
            None if weights is None or self.is_plain else self.roster.sample_weights[clients],
            len(self.roster),
            bool(self.report.state_lost),
        )

    def carry_out(self, server_round: int, arrays: ArrayRecord, exchanges: Exchanges[T]) -> Trains[T]:
        """Run the exchanges of a method's generator.

        Args:
            arrays: The model to send.

        Yields:
            The training exchanges, which the caller runs.

        Returns:
            The generator's result.
        """
        replies: Any = None
        while True:
            try:
                exchange = exchanges.send(replies)
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]
            except InputError as error:
                raise SetupError.of(error) from None
            if isinstance(exchange, Train):
                replies = yield exchange
            else:
                replies = self.replies(self.ask(server_round, exchange.clients, arrays, exchange.down, exchange.phase))

    def prologue(self, arrays: ArrayRecord, grid: Grid) -> None:
        begun = self.method.server.begin(model_arrays(arrays)[0], self.plan(0))
        self.state = finish(self.carry_out(0, arrays, begun))

    def inquire(self, server_round: int, arrays: ArrayRecord) -> ArrayRecord:
        """Begin a round, and run its exchanges up to the training exchange.

        Raises:
            SetupError: The method needs the exact model of the newest round, and got a different model.
        """
        point, *buffers = model_arrays(arrays)
        objection = self.method.objection
        if objection and self.newest is not None and not np.array_equal(self.newest, point, equal_nan=True):
            raise SetupError(
                f"round {server_round}: the model",
                got="a model that differs from the last round's result, as if a wrapper had added noise",
                allowed=f"the last round's result, since {objection}",
                hint="remove the wrapper, or set another strategy",
            )
        self.begin_round(server_round, arrays)
        self.opened = server_round
        return arrays if self.train.x is None else model_record([self.train.x, *buffers])

    def begin_round(self, server_round: int, arrays: ArrayRecord) -> None:
        """Start the method's generator, and run its exchanges up to the training exchange."""
        exchanges = self.method.server.run(model_arrays(arrays)[0], self.state, self.plan(server_round))
        self.exchanges = self.carry_out(server_round, arrays, exchanges)
        with np.errstate(over="ignore", invalid="ignore"):  # the state may exceed the model's number type
            self.train = next(self.exchanges)

    def down(self, server_round: int) -> Payload | None:
        if self.opened != server_round:
            self.begin_round(server_round, model_record(self.model))
        return self.train.down

    def limits(self, client: int) -> Mapping[str, int]:
        return self.method.checks.limits(client, self.model, self.plan(0))

    @property
    def checks_payloads(self) -> bool:  # type: ignore[override]
        own = type(self).check_payload is not MethodStrategy.check_payload
        return own or self.method.checks.record is not Checks.record

    def check_payload(self, payload: Any) -> None:
        self.method.checks.record(payload, self.model, self.plan(0))

    def combine(self, server_round: int, replies: list[Reply]) -> tuple[list[FloatArray], dict[str, float]]:
        self.down(server_round)  # begins the round if `inquire` did not run
        converted = self.replies(replies)
        point, self.state = finish(self.exchanges, converted)
        self.opened, self.newest = None, point
        self.report.extras.update(self.method.server.report(self.state, self.plan(server_round)))
        _, *buffers = zip(*(reply.model for reply in replies), strict=True)  # batch-norm statistics, site by site
        return [point, *(mean(values, converted.weights) for values in buffers)], {}

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message], **more: Any
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Combine the replies, and report the privacy budget that has been spent."""
        combined = super().aggregate_train(server_round, replies, **more)
        if self.privacy.epsilon:
            self.report.extras["epsilon"] = self.account(server_round)
        return combined

    def account(self, rounds: int) -> float:
        """Return the epsilon that a sample of the smallest site has spent, if the site took part in every round.

        Args:
            rounds: The number of finished rounds.
        """
        taken, privacy, samples = self.method.taken, self.privacy, int(self.roster.class_counts.sum(axis=1).min())
        assert taken is not None
        whole_run, so_far = (
            releases_of(taken, self.training, samples, number) for number in (self.training.num_server_rounds, rounds)
        )
        noise = noise_of_batches(privacy.epsilon, privacy.delta, whole_run)
        return epsilon_of_batches(noise, privacy.delta, so_far)

    def output(self, server_round: int, arrays: list[FloatArray]) -> list[FloatArray]:
        return [self.method.server.output(arrays[0], self.plan(server_round)), *arrays[1:]]

    def ended(self) -> str:
        return self.method.server.ended(self.state)

    def results(self, server_round: int) -> dict[str, Any]:
        return self.method.server.results(self.state, self.plan(server_round))

    def views(self) -> dict[str, list[FloatArray]]:
        return self.method.server.views(self.state)


def declare(target: Any, method: Method) -> None:
    """Copy a method's declarations to the attributes of a strategy or of its class."""
    records = method.records
    target.method = target.traits = method
    target.down_type, target.up_type, target.state_type = records.down, records.up, records.state
    target.settings_type = method.settings
    target.phases = {name: phase.up for name, phase in method.phases.items()}


def finish(exchanges: Trains[T], replies: Replies[Any] | None = None) -> T:
    """Run a method's exchanges to their end.

    Args:
        replies: The replies to the last `Train`. None before round 1, when there is no `Train`.

    Raises:
        RuntimeError: The method yields another `Train`.
    """
    try:
        exchanges.send(replies)  # type: ignore[arg-type]
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]
    raise RuntimeError("a method must train once in a round, and not before round 1")


def strategy_of(method: Method, name: str, base: type[MethodStrategy] = MethodStrategy) -> type[MethodStrategy]:
    """Return a new strategy class for a method.

    Args:
        method: The method.
        name: The name of the class, e.g. FedAvgM.
        base: The base class.
    """
    module = sys._getframe(1).f_globals["__name__"]  # the caller's, where pickle looks for the class
    return type(name, (base,), {"method": method, "__doc__": f"The server half of {name}.", "__module__": module})
