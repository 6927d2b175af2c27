"""The server's optimizers: steps against a reference from the messages of runs, resume, and refusals."""

from pathlib import Path

import numpy as np
import pytest

from apps.config import ConfigError, Scalar, parse_run_config
from apps.registry import ALGORITHMS
from tests.battery.federation import Wiretap, federate, model_of
from tests.refusals import refuses

AVERAGING = [name for name, row in ALGORITHMS.items() if row.traits.averages]
KEYS: dict[str, Scalar] = {"dtype": "float64", "num-server-rounds": 4, "server-tau": 0.01}
# with this step some changes are above the second moment, and others below
KEYS |= {"server-momentum": 0.8, "server-second-momentum": 0.95, "learning-rate": 0.3}


def follow(grid: Wiretap, optimizer: str, eta: float) -> None:
    """Compare the model of each round but the first with the reference's step from the round before, by entry."""
    asked = [one for one in grid.exchanges if not one.phase and one.server_round and model_of(one.reply)]
    rounds = sorted({one.server_round for one in asked})
    sent = [next(model_of(one.message)[0] for one in asked if one.server_round == number) for number in rounds]
    assert len(sent) == 4
    m, v = [0.0] * len(sent[0]), [0.01**2] * len(sent[0])
    for number, x, after in zip(rounds[:-1], sent[:-1], sent[1:], strict=True):
        mean = np.mean([model_of(one.reply)[0] for one in asked if one.server_round == number], axis=0)
        for entry in range(len(x)):
            change = mean[entry] - x[entry]
            if optimizer == "momentum":
                m[entry] = 0.8 * m[entry] + change
                expected = x[entry] + eta * m[entry]
            else:
                m[entry] = 0.8 * m[entry] + 0.2 * change
                if optimizer == "adagrad":
                    v[entry] += change**2
                elif optimizer == "adam":
                    v[entry] = 0.95 * v[entry] + 0.05 * change**2
                else:
                    v[entry] -= 0.05 * change**2 * np.sign(v[entry] - change**2)
                expected = x[entry] + eta * m[entry] / (np.sqrt(v[entry]) + 0.01)
            assert after[entry] == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(
    ("strategy", "optimizer", "keys"),
    [
        *((name, "adam", {}) for name in AVERAGING if not ALGORITHMS[name].traits.weighted_gradients),
        *(("local-sgd", name, {"server-learning-rate": 0.3}) for name in ("momentum", "adagrad", "yogi")),
    ],
)
def test_steps_follow_the_reference(strategy: str, optimizer: str, keys: dict[str, Scalar], tmp_path: Path) -> None:
    config = {**KEYS, "strategy": strategy, "server-optimizer": optimizer, "client-weights": "equal", **keys}
    _, grid = federate(tmp_path / "run", config)
    follow(grid, optimizer, float(keys.get("server-learning-rate", 0.1)))


@pytest.mark.parametrize("strategy", AVERAGING)
def test_a_resumed_run_keeps_the_moments(strategy: str, tmp_path: Path) -> None:
    config = {**KEYS, "strategy": strategy, "server-optimizer": "yogi"}
    whole, _ = federate(tmp_path / "whole", config)
    federate(tmp_path / "parts", {**config, "num-server-rounds": 2, "checkpoint-every": 1})
    parts, _ = federate(tmp_path / "parts", {**config, "checkpoint-every": 1, "resume": True})
    assert parts.model_bytes == whole.model_bytes


def test_other_strategies_and_local_norms_refuse_an_optimizer() -> None:
    allowed = "allowed: 'none', since these strategies have a mean of whole models: fedprox, fedx1"
    with refuses(ConfigError, f"server-optimizer: got 'adam' with strategy 'scaffold', {allowed}"):
        parse_run_config({"strategy": "scaffold", "server-optimizer": "adam"})
    with refuses(ConfigError, "server-optimizer: got 'adam' with batch-norm 'local'"):
        parse_run_config({"strategy": "local-sgd", "server-optimizer": "adam", "batch-norm": "local"})


@pytest.mark.parametrize(
    ("optimizer", "without"),
    [
        ("none", {"server-learning-rate", "server-momentum", "server-tau", "server-second-momentum"}),
        ("momentum", {"server-tau", "server-second-momentum"}),
        ("adagrad", {"server-second-momentum"}),
        ("adam", set()),
    ],
)
def test_keys_that_an_optimizer_does_not_read_are_named(optimizer: str, without: set[str]) -> None:
    keys = {"server-learning-rate": 0.3, "server-momentum": 0.5, "server-tau": 0.1, "server-second-momentum": 0.5}
    reported = parse_run_config({"strategy": "local-sgd", "server-optimizer": optimizer, **keys}).without_effect
    assert {text.partition("=")[0] for text in reported} == without
