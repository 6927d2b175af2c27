"""A strategy restored from its snapshot sends and combines what the original would."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from flwr.app import ConfigRecord

from apps.client_app import app as client_app
from apps.config import RunConfig, Scalar, parse_run_config
from apps.sites.files import read_tensors, write_tensors
from apps.sites.resources import federated_data, new_model
from payloads.record import Payload
from payloads.wire import model_arrays, model_record
from simulations.engines.in_process import InProcessGrid
from strategies.base import PayloadStrategy
from strategies.fedx import FedX1
from tests.battery.federation import sites_of

CLIENTS = 4
KEYS: dict[str, Scalar] = {
    "local-steps": 2,
    "learning-rate": 0.01,
    "model": "linear",
    "fedx.positive-batch-size": 3,
    "fedx.negative-batch-size": 4,
}


class Federation:
    """A strategy and its clients, driven round by round."""

    def __init__(self, flat: dict[str, Scalar]) -> None:
        self.config: RunConfig = parse_run_config(flat)
        self.grid = InProcessGrid(client_app, CLIENTS, flat)
        self.strategy = self.fresh()
        shape = federated_data(self.config.data, CLIENTS).input_shape
        self.model = model_record(new_model(self.config, shape).arrays())

    def fresh(self) -> PayloadStrategy:
        return self.config.algorithm.strategy(self.config.training, self.config.family)

    def round(self, server_round: int) -> tuple[Any, list[Any]]:
        """Messages out, replies in; returns the new model and the replies."""
        messages = list(self.strategy.configure_train(server_round, self.model, ConfigRecord(), self.grid))
        replies = list(self.grid.send_and_receive(messages))
        arrays, _ = self.strategy.aggregate_train(server_round, replies)
        assert arrays is not None
        self.model = arrays
        return messages, replies

    def restored(self, path: Path) -> PayloadStrategy:
        """Another strategy of the same settings, restored through a file."""
        state, kind = self.strategy.snapshot(), self.strategy.state_type
        assert state is not None
        assert kind is not None
        write_tensors(path, state.arrays(), {})
        arrays, _ = read_tensors(path)
        strategy = self.fresh()
        strategy.join(self.grid)
        strategy.model = model_arrays(self.model)
        strategy.restore(kind(**arrays).check())
        return strategy


def same(left: Payload | None, right: Payload | None) -> bool:
    assert left is not None
    assert right is not None
    a, b = left.arrays(), right.arrays()
    return a.keys() == b.keys() and all(
        (a[n].dtype, a[n].shape, a[n].tobytes()) == (b[n].dtype, b[n].shape, b[n].tobytes()) for n in a
    )


@pytest.mark.parametrize(
    ("strategy", "loss", "tau", "fraction", "dtype"),
    [
        ("fedx1", "psm", 1, 1.0, "float32"),
        ("fedx1", "psm", 3, 0.5, "float64"),
        ("fedx2", "kl-opauc", 3, 0.5, "float32"),
        ("fedx2", "auprc", 3, 1.0, "float64"),
        ("fedx2", "auprc", 1, 0.5, "float32"),
        ("local-pair", "kl-opauc", 1, 0.5, "float64"),
    ],
)
def test_a_restored_strategy_goes_on_as_the_original(
    strategy: str, loss: str, tau: int, fraction: float, dtype: str, tmp_path: Path
) -> None:
    sites = sites_of([[0] * 6, [0, 1] * 3, [0, 0, 1] * 2, [1] * 6], tmp_path / "data.npz")  # two with one class only
    more = {"strategy": strategy, "loss": loss, "fedx.tau": tau, "fraction-train": fraction, "dtype": dtype}
    one = Federation({**KEYS, **sites, **more})
    for server_round in range(1, 6):
        one.round(server_round)
        other = one.restored(tmp_path / "state.safetensors")
        assert same(one.strategy.down(server_round + 1), other.down(server_round + 1))
        assert same(one.strategy.snapshot(), other.snapshot())
    # and it combines the next round as the original does
    messages = list(other.configure_train(6, one.model, ConfigRecord(), one.grid))
    replies = other.receive(6, one.grid.send_and_receive(messages))
    (ours, _), (theirs, _) = other.combine(6, replies), one.strategy.combine(6, replies)
    assert [array.tobytes() for array in ours] == [array.tobytes() for array in theirs]
    assert same(one.strategy.snapshot(), other.snapshot())


def test_a_pairwise_risk_needs_both_classes_somewhere() -> None:
    strategy = FedX1(parse_run_config({"strategy": "fedx1"}).training)
    roster: Any = SimpleNamespace(class_counts=np.array([[3, 0], [4, 0]]))
    with pytest.raises(RuntimeError, match="labels: got 0 positives and 7 negatives at all sites together"):
        strategy.meet(roster)


def test_the_pool_keeps_the_last_tau_rounds(tmp_path: Path) -> None:
    one = Federation({**KEYS, "strategy": "fedx2", "fedx.tau": 3, "fraction-train": 0.5})
    assert one.strategy.snapshot() is None
    kept = []
    for server_round in range(1, 5):
        one.round(server_round)
        assert isinstance(one.strategy, FedX1)
        kept.append(np.unique(one.strategy.state.runs[:, 0]).tolist())
    assert kept == [[0, 1], [0, 1, 2], [1, 2, 3], [2, 3, 4]]
    other = one.restored(tmp_path / "state.safetensors")
    other.prepare(one.model, one.grid)  # a restored strategy asks for no scores again
    assert isinstance(other, FedX1)
    assert np.unique(other.state.runs[:, 0]).tolist() == [2, 3, 4]
