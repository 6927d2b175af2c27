"""The server half of a method: a round as a generator, with the facts that it gets (`Plan`) and the clients' `Replies`.

The generator yields each exchange with the clients, and receives the replies to it:

    def run_round(x, state, plan):
        answers = yield Ask(PHASE, clients, down)     # clients answer with a record and take no step
        replies = yield Train(down)                   # the main exchange: clients return a point and a record
        return replies.mean_point(), state            # the next model, and the state to keep

A round with one exchange needs no generator: `ServerHalf.tell` makes its message, `ServerHalf.update` the
next model. Checkpoints are made between rounds, so only the state is saved.
"""

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Generic, Self, TypeVar

import numpy as np
from jaxtyping import Float, Float64, Int64

from payloads.record import FloatArray, Payload
from payloads.settings import CYCLIC, UNIFORM, Settings, TrainingSettings
from problems.data.preprocessing import Preprocessing
from problems.errors import InputError
from problems.importing import import_named, is_dotted
from problems.models.vectors import exact_mean, mean
from problems.randomness import Purpose, stream

S = TypeVar("S", bound=Settings)  # the family's settings
U = TypeVar("U", bound=Payload)  # the clients' records
T = TypeVar("T")


def count_share(training: TrainingSettings, num_sites: int) -> int:
    """Compute the number of clients of a round from ``fraction-train`` and ``min-train-nodes``.

    Example:
        >>> count_share(TrainingSettings.model_validate({"fraction-train": 0.5}), num_sites=10)
        5
    """
    return max(training.fewest_asked, round(training.fraction_train * num_sites))


def draw_clients(
    training: TrainingSettings, num_sites: int, server_round: int, purpose: Purpose, count: int | None = None
) -> list[int]:
    """Draw the clients of a round without replacement.

    Args:
        training: The settings. ``client-sampling`` applies to the clients that train (`Purpose.SAMPLE_CLIENTS`).
        num_sites: The number of sites.
        server_round: The round.
        purpose: The purpose of the draw. Two independent draws in a round need two purposes.
        count: The number of clients. None: as many as train in a round.

    Returns:
        The partition ids of the clients, sorted.

    Raises:
        InputError: There are fewer sites than clients to draw, or a user's function cannot be called.
    """
    count = count_share(training, num_sites) if count is None else max(training.fewest_asked, count)
    if count > num_sites:
        got, allowed = (
            f"{count} for round {server_round}",
            f"at most {num_sites}, since {num_sites} sites are connected",
        )
        hint = "lower min-train-nodes, or connect more sites"
        raise InputError("min-train-nodes", got=got, allowed=allowed, hint=hint)
    sampling = training.client_sampling if purpose is Purpose.SAMPLE_CLIENTS else UNIFORM
    if count == num_sites and sampling in (UNIFORM, CYCLIC):
        return list(range(count))
    if sampling == CYCLIC:
        order = stream(training.seed, purpose).permutation(num_sites)
        first = (server_round - 1) * count
        return sorted(order[np.arange(first, first + count) % num_sites].tolist())
    rng = stream(training.seed, purpose, server_round)
    if sampling != UNIFORM:
        return _call_sampler(sampling, server_round, count, num_sites, rng)
    return sorted(int(client) for client in rng.choice(num_sites, count, replace=False))


def _call_sampler(path: str, server_round: int, count: int, num_sites: int, rng: np.random.Generator) -> list[int]:
    """Return the clients that a user's function chooses.

    Args:
        path: The function's path, ``package.module:name``. Its arguments are the round, the number of clients of a
            round, the number of sites, and a random generator. It returns partition ids.
        server_round: The round.
        count: The number of clients of a round.
        num_sites: The number of sites.
        rng: The generator.

    Raises:
        InputError: The function cannot be imported, or its result is not a list of different partition ids.
    """

    def refuse(got: str) -> InputError:
        allowed = f"{UNIFORM}, {CYCLIC}, or a function that returns different clients from 0 to {num_sites - 1}"
        return InputError("client-sampling", got=got, allowed=allowed, hint="see docs/configuration.md")

    if not is_dotted(path):
        raise refuse(repr(path))
    chosen = np.asarray(import_named(path, refuse)(server_round, count, num_sites, rng))
    if chosen.ndim != 1 or not len(chosen) or not np.issubdtype(chosen.dtype, np.integer):
        raise refuse(f"{path!r}, which returns {chosen.dtype} numbers of shape {chosen.shape} in round {server_round}")
    if len(np.unique(chosen)) < len(chosen) or chosen.min() < 0 or chosen.max() >= num_sites:
        raise refuse(f"{path!r}, which returns {chosen.tolist()} in round {server_round}")
    return sorted(chosen.tolist())


@dataclass(frozen=True)
class Plan(Generic[S]):
    """The facts about a round that the server's functions get, in addition to the model and the server's state.

    Attributes:
        server_round: The round's number, counted from 1.
        training: The settings common to all algorithms.
        settings: The settings of the algorithm's family.
        loss: The name of the loss.
        class_counts: The negatives and positives of every site, in the order of the partition ids.
        layout: The names and shapes of the flat model's parts; () if unknown.
        site_names: The names of the sites that have one, by partition id as text.
        columns: The encoding of raw rows as the model's features. None: the rows are not a table, or it is unknown.
        num_times: The number of grid times. 0: the labels are not events at a time.
        finding_counts: The numbers of known zeros and ones of each finding at every site. None: each row has one label.
    """

    server_round: int
    training: TrainingSettings
    settings: S
    loss: str
    class_counts: Int64[np.ndarray, "N 2"]
    layout: tuple[tuple[str, tuple[int, ...]], ...] = ()
    site_names: Mapping[str, str] = field(default_factory=dict)
    columns: Preprocessing | None = None
    num_times: int = 0
    finding_counts: Int64[np.ndarray, "N l 2"] | None = None

    @property
    def num_sites(self) -> int:
        """N."""
        return len(self.class_counts)

    @property
    def everyone(self) -> range:
        """The indices of all sites."""
        return range(self.num_sites)

    def sample(self, purpose: Purpose = Purpose.SAMPLE_CLIENTS, count: int | None = None) -> list[int]:
        """Draw clients for the round, and return their sorted indices.

        Args:
            purpose: The purpose of the draw. The default draws the clients that train in the round.
            count: The number of clients. None: as many as train in a round.
        """
        return draw_clients(self.training, self.num_sites, self.server_round, purpose, count)


@dataclass(frozen=True)
class Replies(Generic[U]):
    """The good replies of a round or of a phase, in the order of the partition ids.

    Attributes:
        clients: The partition ids of the c clients that replied, out of N sites.
        points: The point of each client.
        ups: The record of each client.
        weights: Weights for a mean over these c replies, 1 on average; None: equal weights.
        shares: Weights for a mean over all N sites, 1 on average over all N; None: equal weights.
        num_sites: N, the number of all sites.
        states_lost: Whether a client lost its memory. Methods whose clients' corrections must add up then reset all.
    """

    clients: Sequence[int]
    points: Sequence[Float[np.ndarray, "d"]]
    ups: Sequence[U]
    weights: Float64[np.ndarray, "c"] | None
    shares: Float64[np.ndarray, "c"] | None
    num_sites: int
    states_lost: bool = False

    def mean_point(self) -> Float[np.ndarray, "d"]:
        """Return the mean of the points, rounded once."""
        return mean(self.points, self.weights)

    def mean(self, field: str) -> FloatArray:
        """Return the mean of a field of the records, rounded once.

        Args:
            field: The field's name. Every record must have a value in this field.
        """
        return mean([getattr(up, field) for up in self.ups], self.weights)

    def having(self, field: str) -> Self:
        """Select the replies whose record has a value in an optional field. Their weights are rescaled to mean 1."""
        chosen = [index for index, up in enumerate(self.ups) if getattr(up, field) is not None]
        weights = self.weights
        return replace(
            self,
            clients=[self.clients[index] for index in chosen],
            points=[self.points[index] for index in chosen] if self.points else [],
            ups=[self.ups[index] for index in chosen],
            weights=None if weights is None or not chosen else weights[chosen] / weights[chosen].mean(),
            shares=None if self.shares is None else self.shares[chosen],
        )

    def move(self, start: Float[np.ndarray, "d"], plan: Plan[Any]) -> Float[np.ndarray, "d"]:
        """Return start + server-learning-rate (mean of the points - start), computed in float64 and then rounded.

        Args:
            start: The point from which the server steps; the result has its number type.
            plan: The round's plan; provides the server's learning rate, eta_g.
        """
        begun, rate = start.astype(np.float64), plan.training.server_learning_rate
        moved: FloatArray = (begun + rate * (exact_mean(self.points, self.weights) - begun)).astype(start.dtype)
        return moved


@dataclass(frozen=True)
class Ask:
    """An exchange in which clients answer with a record and take no step.

    Attributes:
        phase: The name of a `Phase` of the method.
        clients: The partition ids of the clients that the server asks.
        down: The record sent with the model, the same for all clients. None: only the model is sent.
    """

    phase: str
    clients: Sequence[int]
    down: Payload | None = None


@dataclass(frozen=True)
class Train:
    """A round's main exchange, in which the round's clients train.

    Attributes:
        down: The record sent with the model, the same for all clients. None: only the model is sent.
        x: The model that is sent. None: the result of the previous round.
    """

    down: Payload | None = None
    x: Float[np.ndarray, "d"] | None = None


# yields exchanges, receives the replies to each, and ends with a result
Exchanges = Generator[Ask | Train, Replies[Any], T]


def average(
    x: Float[np.ndarray, "d"], state: Any, replies: Replies[Any], plan: Plan[Any]
) -> tuple[Float[np.ndarray, "d"], Any]:
    """Average the points and keep the state; a `ServerHalf.update`.

    Returns:
        The mean of the points, and the unchanged state.
    """
    return replies.mean_point(), state


def average_records(
    x: Float[np.ndarray, "d"], state: Any, replies: Replies[U], plan: Plan[Any]
) -> tuple[Float[np.ndarray, "d"], U]:
    """Average the points and the records; a `ServerHalf.update` for methods whose state is the mean of the records.

    Args:
        x: The model before the round; without effect.
        state: The state before the round; without effect.
        replies: The replies, whose records all have the same fields.
        plan: The round's plan; without effect.

    Returns:
        The mean of the points, and a record with the mean of each field, which becomes the state.
    """
    first = replies.ups[0]
    return replies.mean_point(), replace(first, **{name: replies.mean(name) for name in first.arrays()})


@dataclass(frozen=True)
class ServerHalf:
    """The computations of the server. By default it averages the points, keeps no state and sends only the model.

    Attributes:
        init: (x, plan) -> state.
        tell: (x, state, plan) -> down, the record that is sent to the clients with x.
        update: (x, state, replies, plan) -> x, state.
        output: (x, plan) -> the model to evaluate and save, made from a round's x.
        views: (state) -> further models of the same shape to evaluate and to save, by the suffix of their metrics.
        headline: (settings) -> the name of the view that the log and the curves show. "": the model itself.
        report: (state, plan) -> further entries of a round's log line, by name.
        ended: (state) -> the reason why the run ends before its last round; "" if it goes on.
        results: (state, plan) -> further entries of result.json, by name.
        prologue: (x, plan) -> the exchanges before round 1, which return the state. None: no exchanges; `init` makes
            the state.
        round: (x, state, plan) -> a round's exchanges, exactly one of them a `Train`, which return x, state. None: the
            round has one `Train`, and `update` makes the next model.
    """

    init: Callable[[Float[np.ndarray, "d"], Any], Any] = lambda x, plan: None
    tell: Callable[[Float[np.ndarray, "d"], Any, Any], Any] = lambda x, state, plan: None
    update: Callable[[Float[np.ndarray, "d"], Any, Any, Any], tuple[Float[np.ndarray, "d"], Any]] = average
    output: Callable[[Float[np.ndarray, "d"], Any], Float[np.ndarray, "d"]] = lambda x, plan: x
    views: Callable[[Any], dict[str, list[FloatArray]]] = lambda state: {}
    headline: Callable[[Any], str] = lambda settings: ""
    report: Callable[[Any, Any], dict[str, float]] = lambda state, plan: {}
    ended: Callable[[Any], str] = lambda state: ""
    results: Callable[[Any, Any], dict[str, Any]] = lambda state, plan: {}
    prologue: Callable[[Float[np.ndarray, "d"], Any], Exchanges[Any]] | None = None
    round: Callable[[Float[np.ndarray, "d"], Any, Any], Exchanges[tuple[Float[np.ndarray, "d"], Any]]] | None = None

    def begin(self, x: Float[np.ndarray, "d"], plan: Plan[Any]) -> Exchanges[Any]:
        """Do everything before round 1, and return the state."""
        return self.init(x, plan) if self.prologue is None else (yield from self.prologue(x, plan))

    def run(
        self, x: Float[np.ndarray, "d"], state: Any, plan: Plan[Any]
    ) -> Exchanges[tuple[Float[np.ndarray, "d"], Any]]:
        """Do a round, and return the next model and state."""
        if self.round is not None:
            return (yield from self.round(x, state, plan))
        replies = yield Train(self.tell(x, state, plan))
        return self.update(x, state, replies, plan)
