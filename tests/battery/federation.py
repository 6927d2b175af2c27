"""Small federations for tests: run them, record their messages, tamper with their replies."""

import json
import logging
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from flwr.app import Context, Message, MessageType, RecordDict
from flwr.serverapp import ServerApp
from safetensors.numpy import load_file

from apps.client_app import app as client_app
from apps.config import Scalar
from apps.registry import ALGORITHMS
from apps.server_app import app as server_app
from payloads.broadcast import Broadcast
from payloads.record import Payload
from payloads.wire import ARRAYS, CONFIG, PAYLOAD, PHASE, ROUND, model_arrays
from problems.objectives.classification import SOFTMAX
from problems.objectives.hazard import TIME_LOSSES
from problems.objectives.number_losses import NUMBER_LOSSES
from simulations.arguments import Stack
from simulations.engines.grid import FIRST_NODE_ID, RUN_ID, SERVER_NODE_ID, task_identity
from simulations.engines.in_process import InProcessGrid
from simulations.engines.stacked.messages import make_stacker

# The common keys: every algorithm also runs with the defaults of its own table. The last keys make a run repeatable
# even if it depends on the order of messages between clients.
SMALL: dict[str, Scalar] = {
    "num-server-rounds": 3,
    "local-steps": 2,
    "batch-size": 8,
    "learning-rate": 0.01,
    "model": "linear",
    "checkpoint-every": 0,
    "pictures": False,
    "vfb2.synchronous": True,
    "vfb2.assemble": True,
}
# the keys with which parties take a twelfth of the steps, each of which has messages
FEW_STEPS: dict[str, dict[str, Scalar]] = {
    name: {"batch-size": 100} for name, row in ALGORITHMS.items() if row.strategy.clients_meet
}
TIMING = ("seconds", "server_seconds", "training_seconds")
SAMPLING = [name for name, row in ALGORITHMS.items() if not row.traits.needs_all_clients]
PAIRS = [(name, loss) for name, row in ALGORITHMS.items() for loss in row.losses if loss not in NUMBER_LOSSES]
# clients of these algorithms have rows, perhaps of one class, and exchange a model
OF_ROWS = [name for name, row in ALGORITHMS.items() if row.strategy.shares_model]
# clients of these algorithms can train alone
ALONE = [name for name, row in ALGORITHMS.items() if row.strategy.shares_model]


@dataclass(frozen=True)
class Exchange:
    """A message to train or to evaluate, and its reply, as sent."""

    partition: int
    message: Message
    reply: Message

    @property
    def server_round(self) -> int:
        return int(self.message.content.config_records[CONFIG][ROUND])

    @property
    def phase(self) -> str:
        """The name of the exchange in its round; "" for the round's main exchange."""
        return str(self.message.content.config_records[CONFIG].get(PHASE, ""))


class Wiretap(InProcessGrid):
    """An in-process grid that records every exchange except the handshake, and may replace replies.

    It reads every message, so clients never train as blocks.

    Args:
        tamper: Maps an exchange to the reply that the server gets.
    """

    def __init__(self, *args: Any, tamper: Callable[[Exchange], Message] | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.tamper = tamper
        self.exchanges: list[Exchange] = []
        self._asked: dict[str, Message] = {}

    def answer_cohort(self, cohort: Broadcast) -> None:
        return None

    def push_messages(self, messages: Any) -> list[str]:
        messages = list(messages)
        ids = list(super().push_messages(messages))
        self._asked |= dict(zip(ids, messages, strict=True))
        return ids

    def pull_messages(self, message_ids: Any) -> list[Message]:
        return [self._heard(reply) for reply in super().pull_messages(message_ids)]

    def _heard(self, reply: Message) -> Message:
        message = self._asked[reply.metadata.reply_to_message_id]
        if message.metadata.message_type not in (MessageType.TRAIN, MessageType.EVALUATE):
            return reply
        exchange = Exchange(message.metadata.dst_node_id - FIRST_NODE_ID, message, reply)
        self.exchanges.append(exchange)
        return reply if self.tamper is None else self.tamper(exchange)


@dataclass(frozen=True)
class Run:
    """A finished run's directory, loaded."""

    path: Path

    @cached_property
    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.path / "metrics.jsonl").read_text("utf-8").splitlines()]

    @property
    def untimed(self) -> list[str]:
        """The lines of metrics.jsonl without timing, as text."""
        return [json.dumps({k: v for k, v in line.items() if k not in TIMING}) for line in self.lines]

    @property
    def result(self) -> dict[str, Any]:
        result: dict[str, Any] = json.loads((self.path / "result.json").read_text("utf-8"))
        return result

    @property
    def model(self) -> dict[str, np.ndarray]:
        return dict(load_file(self.path / "model.safetensors"))

    @property
    def model_bytes(self) -> bytes:
        return (self.path / "model.safetensors").read_bytes()

    def numbers(self) -> list[float]:
        """Return every number of every line."""
        return [value for line in self.lines for value in line.values() if isinstance(value, int | float)]


class Listener(InProcessGrid):
    """A grid that records every reply, including the handshake."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.heard: list[Message] = []

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        replies = list(super().pull_messages(message_ids))
        self.heard += replies
        return replies


def flat_config(path: Path, config: Mapping[str, Scalar]) -> dict[str, Scalar]:
    """Return `SMALL` with some keys changed, writing to ``path``."""
    return {**SMALL, **config, "output-dir": str(path.parent), "run-name": path.name}


def serve(grid: InProcessGrid, app: ServerApp, run_config: Mapping[str, Scalar]) -> None:
    """Run a ServerApp on a grid."""
    with task_identity():
        app(grid, Context(RUN_ID, SERVER_NODE_ID, {}, RecordDict(), dict(run_config)))


def federate(
    path: Path,
    config: Mapping[str, Scalar],
    clients: int = 3,
    tamper: Callable[[Exchange], Message] | None = None,
    threads: int = 1,
    nodes: Sequence[Mapping[str, Scalar]] = (),
    stack: Stack = 1,
) -> tuple[Run, Wiretap]:
    """Run a small federation in this process. Its nodes may have node configs."""
    flat = flat_config(path, config)
    together = make_stacker(stack, flat)
    grid = Wiretap(client_app, len(nodes) or clients, flat, nodes, threads, together, tamper=tamper)
    serve(grid, server_app, flat)
    grid.close()
    return Run(path), grid


def log_to_stderr(monkeypatch: pytest.MonkeyPatch) -> None:
    """Send Flower's log to the current stderr, as outside of pytest."""
    for handler in logging.getLogger("flwr").handlers:
        monkeypatch.setattr(handler, "stream", sys.stderr)


def payloads_of(strategy: str, exchange: Exchange) -> tuple[Payload | None, Payload | None]:
    """Return the decoded payloads of a message and its reply."""
    kind = ALGORITHMS[strategy].strategy
    up = kind.phases[exchange.phase] if exchange.phase else kind.up_type
    return _decoded(kind.down_type, exchange.message), _decoded(up, exchange.reply)


def _decoded(kind: type[Payload] | None, message: Message) -> Payload | None:
    if kind is None or PAYLOAD not in message.content.config_records:
        return None
    return kind.from_record(message.content.config_records[PAYLOAD])


def model_of(message: Message) -> list[np.ndarray]:
    """Return the model in a message, or no arrays."""
    records = message.content.array_records
    return list(model_arrays(records[ARRAYS])) if ARRAYS in records else []


def network_of(strategy: str) -> str:
    """Return a network that the strategy can train, if possible with a hidden layer."""
    return (ALGORITHMS[strategy].traits.models or ("mlp",))[0]


def save_npz(path: Path, features: Any, labels: Any) -> dict[str, Scalar]:
    """Save training rows in their order and a fixed two-class test set; return the keys that read them."""
    features = np.asarray(features, dtype=np.float32)
    rng = np.random.default_rng(7)
    test_labels = np.arange(40) % 2
    test = rng.normal(size=(40, *features.shape[1:])) + test_labels.reshape(-1, *[1] * (features.ndim - 1))
    np.savez(path, X=features, y=np.asarray(labels), X_test=test.astype(np.float32), y_test=test_labels)
    return {"dataset": "npz", "data-dir": str(path), "partition": "consecutive"}


def save_times(path: Path, features: Any, labels: Any) -> dict[str, Scalar]:
    """Save the rows of `save_npz` as tables with times to an event; return the keys that read them."""
    keys = save_npz(path, features, labels)
    path.with_suffix("").mkdir()
    with np.load(path) as saved:
        for name, x, y in (("train", saved["X"], saved["y"]), ("test", saved["X_test"], saved["y_test"])):
            frame = pd.DataFrame(x, columns=[f"x{index}" for index in range(x.shape[1])])
            months = 1 + np.arange(len(y)) % 5
            frame.assign(dead=y, months=months).to_csv(path.with_suffix("") / f"{name}.csv", index=False)
    times: dict[str, Scalar] = {"label-column": "dead", "time-column": "months", "time-borders": "1:5"}
    return {**keys, **times, "dataset": "csv", "data-dir": str(path.with_suffix("")), "positive-label": "1"}


def save_classes(path: Path, features: Any, labels: Any) -> dict[str, Scalar]:
    """Save the rows of `save_npz`; return the keys that read both labels as classes."""
    return {**save_npz(path, features, labels), "label-columns": "0, 1"}


# the keys of a run on the tables of `patients`
PATIENTS: dict[str, Scalar] = {
    "dataset": "csv",
    "partition": "own",
    "label-column": "ill",
    "positive-label": "yes",
    "feature-columns": "age,sex[f|m],weight",
}


def patients(rows: int, seed: int, shift: float = 0.0) -> pd.DataFrame:
    """Return a site's table: names, which no one may learn, two numeric columns, a text column and a label."""
    rng = np.random.default_rng(seed)
    ill = rng.permutation(np.arange(rows) % 3 == 0)
    return pd.DataFrame(
        {
            "name": [f"patient {seed}-{number}" for number in range(rows)],
            "age": rng.normal(50 + 8 * ill, 15),
            "sex": rng.choice(["f", "m"], rows),
            "weight": rng.normal(70 + 9 * ill + shift, 9),
            "ill": np.where(ill, "yes", "no"),
        }
    )


def saver(loss: str) -> Callable[[Path, Any, Any], dict[str, Scalar]]:
    """Return `save_times` for a loss of times to an event, `save_classes` for the softmax, else `save_npz`."""
    return save_times if loss in TIME_LOSSES else save_classes if loss == SOFTMAX else save_npz


def sites_of(labels_of_sites: list[list[int]], path: Path, loss: str = "") -> dict[str, Scalar]:
    """Return a data set whose client i has exactly the labels of entry i. All entries have the same length."""
    labels = np.concatenate(labels_of_sites)
    rng = np.random.default_rng(5)
    return saver(loss)(path, rng.normal(size=(len(labels), 4)) + labels[:, None], labels)
