"""The adapter between the server half of a `Method` and Flower."""

from typing import Any, ClassVar

from flwr.app import ArrayRecord
from flwr.serverapp import Grid

from methods.method import Method, Plan, Replies
from payloads.record import FloatArray, Payload
from payloads.wire import model_arrays
from problems.models.vectors import mean
from strategies.base import PayloadStrategy
from strategies.rounds.handshake import Roster
from strategies.rounds.replies import Reply


class MethodStrategy(PayloadStrategy):
    """A strategy that does what a `Method` says. Subclasses name their `method`."""

    method: ClassVar[Method]

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if method := cls.__dict__.get("method"):
            records = method.records
            cls.down_type, cls.up_type, cls.state_type = records.down, records.up, records.state
            cls.settings_type, cls.default_loss = method.settings, method.loss
            cls.phases = {name: phase.up for name, phase in method.phases.items()}

    def meet(self, roster: Roster) -> None:
        held = roster.class_counts.sum(axis=1).tolist()
        self.check_batch("batch-size", self.training.batch_size, "samples", held)

    def plan(self, server_round: int) -> Plan[Any]:
        """Say what the method may know in a round.

        Args:
            server_round: 0 for all that precedes the first.
        """
        return Plan(server_round, self.training, self.settings, self.loss, self.roster.class_counts, self.layout)

    def replies(self, replies: list[Reply]) -> Replies[Any]:
        """Show a method the good replies of a round, or of a phase, in which they carry no model."""
        places = [reply.place for reply in replies]
        weights = self.weights(replies)
        return Replies(
            places,
            [reply.model[0] for reply in replies if reply.model],
            [reply.payload for reply in replies],
            weights,
            None if weights is None else self.roster.sample_weights[places],
            len(self.roster),
            bool(self.report.state_lost),
        )

    def prologue(self, arrays: ArrayRecord, grid: Grid) -> None:
        self.state = self.method.server.init(model_arrays(arrays)[0], self.plan(0))

    def down(self, server_round: int) -> Payload | None:
        payload: Payload | None = self.method.server.tell(self.model[0], self.state, self.plan(server_round))
        return payload

    def combine(self, server_round: int, replies: list[Reply]) -> tuple[list[FloatArray], dict[str, float]]:
        read = self.replies(replies)
        point, self.state = self.method.server.update(self.model[0], self.state, read, self.plan(server_round))
        _, *buffers = zip(*(reply.model for reply in replies), strict=True)  # batch-norm statistics, site by site
        return [point, *(mean(values, read.weights) for values in buffers)], {}

    def output(self, server_round: int, arrays: list[FloatArray]) -> list[FloatArray]:
        return [self.method.server.output(arrays[0], self.plan(server_round)), *arrays[1:]]


def strategy_of(
    method: Method, name: str, base: type[MethodStrategy] = MethodStrategy, **traits: Any
) -> type[MethodStrategy]:
    """The strategy class of a method.

    Args:
        name: of the class, e.g. FedAvgM.
        traits: class variables that say what the strategy needs; see `strategies.rounds.family.Family`.
    """
    about = {"__doc__": f"The server half of {name}.", "__module__": __name__}
    return type(name, (base,), {"method": method, **traits, **about})
