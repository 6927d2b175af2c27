"""A whole run on small unequal sites, with its messages and the data that a reference needs to repeat it."""

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Message
from numpy.typing import NDArray

from apps.client_app import app as client_app
from apps.config import Scalar, parse_run_config
from apps.server_app import app as server_app
from apps.sites import resources
from payloads.record import Payload
from payloads.wire import PAYLOAD
from problems.models.networks import network_names
from problems.randomness import Purpose, stream
from problems.sampling import EpochSampler
from tests.algorithms.helpers import flattened
from tests.battery.federation import Exchange, Run, Wiretap, flat_config, model_of, save_npz, serve
from tests.reference.minimax import Array, SaddleAUC, SyntheticPL

CLOSE: dict[str, float] = {"rtol": 1e-10, "atol": 1e-10}
EXACT: dict[str, float] = {"rtol": 1e-12, "atol": 1e-12}
SITES, ROUNDS, STEPS, ROWS = 4, 5, 3, 110
KEYS: dict[str, Scalar] = {
    "dtype": "float64",
    "model": "linear",
    "num-server-rounds": ROUNDS,
    "evaluate-every": 100,
    "local-steps": STEPS,
    "batch-size": 5,
    "learning-rate": 0.3,
    "seed": 3,
    "checkpoint-every": 0,
}
DROPS: dict[str, Scalar] = {"lr-decay": 0.5, "lr-decay-every": 2}  # within rounds
Tamper = Callable[[Exchange], Message]


def rows_of(labels: Sequence[int], path: Path) -> dict[str, Scalar]:
    """Save rows with three Gaussian features that depend on the label."""
    rng, positive = np.random.default_rng(5), np.asarray(labels)
    return save_npz(path, rng.normal(size=(len(positive), 3)) + 0.7 * positive[:, None], positive)


def lost(server_round: int, partition: int) -> Tamper:
    """Make one reply unreadable, although its client has trained."""

    def tamper(exchange: Exchange) -> Message:
        if (exchange.server_round, exchange.partition) == (server_round, partition):
            del exchange.reply.content["metrics"]
        return exchange.reply

    return tamper


class Watched:
    """A finished run with its messages.

    Args:
        folder: The folder that will contain the run's directory.
        flat: Run-config keys that override the class's keys.
        tamper: See `Wiretap`.
        grid: A wiretap that replaces the class's own; it gets the further options.
    """

    keys: Mapping[str, Scalar] = KEYS
    wiretap: type[Wiretap] = Wiretap

    def __init__(
        self,
        folder: Path,
        flat: dict[str, Scalar],
        clients: int = SITES,
        tamper: Tamper | None = None,
        grid: type[Wiretap] | None = None,
        **options: Any,
    ) -> None:
        path = folder / f"run-{len(list(folder.glob('run-*')))}"
        self.flat = flat_config(path, {**self.keys, **flat})
        self.config = parse_run_config(self.flat)
        self.training, self.clients = self.config.training, clients
        self.settings: Any = self.config.family
        self.run = Run(path)
        self.grid: Any = (grid or self.wiretap)(client_app, clients, self.flat, tamper=tamper, **options)
        serve(self.grid, server_app, self.flat)
        self.grid.close()
        self.data = resources.federated_data(self.config.data, clients)
        self.sizes = [len(self.data.client(i)) for i in range(clients)]

    @property
    def rounds(self) -> int:
        return self.training.num_server_rounds

    # messages

    def exchanges(self, server_round: int, phase: str = "") -> list[Exchange]:
        """Return the exchanges of a round: its main exchanges, or the exchanges of a phase."""
        return [e for e in self.grid.exchanges if (e.server_round, e.phase) == (server_round, phase)]

    def told(self, server_round: int, kind: type[Payload]) -> Any:
        """Return the payload that all clients of a round received, or None."""
        payloads = [e.message.content.config_records.get(PAYLOAD) for e in self.exchanges(server_round)]
        assert all(payload == payloads[0] for payload in payloads)
        return None if payloads[0] is None else kind.from_record(payloads[0])

    def returned(self, server_round: int, kind: type[Payload], phase: str = "") -> dict[int, Any]:
        """Return the payloads of a round's replies, by partition."""
        replies = {e.partition: e.reply.content.config_records for e in self.exchanges(server_round, phase)}
        return {i: kind.from_record(records[PAYLOAD]) for i, records in sorted(replies.items()) if PAYLOAD in records}

    @cached_property
    def models(self) -> list[Array]:
        """(d,) the model before round 1 and after each round."""
        first = {e.server_round: e.message for e in reversed(self.grid.exchanges) if e.server_round}
        return [*(model_of(first[r])[0].copy() for r in range(1, self.rounds + 1)), self.saved]

    @property
    def saved(self) -> Array:
        """(d,) the parameters of the model file, in the order of the flat vector."""
        names: Sequence[str] = ["x", "y"]
        if not resources.is_problem(self.config):
            model = resources.new_model(self.config, self.data.input_shape)
            short = network_names(model.module)
            names = [short[name] for name in model.parameter_names]
        return flattened({name: self.run.model[name] for name in names})

    # for the reference

    @property
    def shares(self) -> tuple[list[Array], list[NDArray[np.int_]]]:
        """Each site's features in float64, and its labels."""
        shares = [self.data.client(i) for i in range(self.clients)]
        return [share.features.astype(np.float64) for share in shares], [share.labels.astype(int) for share in shares]

    def saddle(self) -> Any:
        """Return the minimax problem of the run's loss."""
        features, labels = self.shares
        if self.training.loss == "synthetic-pl":
            return SyntheticPL(np.stack(features))
        prior = float(np.concatenate(labels).mean())
        return SaddleAUC(features, labels, prior, score=self.score)

    @property
    def score(self) -> str:
        """The score of the AUC problems."""
        return "tanh" if self.training.score == "auto" else self.training.score

    def participants(self, server_round: int) -> list[int]:
        count = max(1, round(self.training.fraction_train * self.clients))
        if count == self.clients:
            return list(range(count))
        rng = stream(self.training.seed, Purpose.SAMPLE_CLIENTS, server_round)
        return sorted(rng.choice(self.clients, count, replace=False).tolist())

    def answered(self, server_round: int) -> list[int]:
        dropped = {int(site) for site in self.run.lines[server_round]["dropped"]}
        return [i for i in self.participants(server_round) if i not in dropped]

    def batch(self, client: int, iteration: int, purpose: Purpose = Purpose.SAMPLES) -> Array:
        """Return the product's batch of an iteration, counted over the run."""
        training, everyone = self.training, np.arange(self.sizes[client])
        return EpochSampler(everyone, training.batch_size, training.seed, purpose, client).batch(iteration)

    def rate(self, iteration: int) -> float:
        """Return the learning rate of an iteration, written out."""
        training, total = self.training, self.rounds * self.training.local_steps
        drops = iteration // training.lr_decay_every if training.lr_decay_every else 0
        drops += sum(iteration >= float(part) * total for part in training.lr_decay_at.split(",") if part)
        return training.learning_rate * training.lr_decay**drops

    def rates(self, server_round: int) -> list[float]:
        steps = self.training.local_steps
        return [self.rate(iteration) for iteration in range((server_round - 1) * steps, server_round * steps)]
