"""Every algorithm leaves frozen entries of the model as they were, bit for bit."""

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from apps.config import ConfigError, Scalar, parse_run_config
from apps.registry import ALGORITHMS
from apps.server_app import RunFailedError
from clients.base import MethodClient
from problems.models import build_model
from tests.battery.federation import OF_ROWS, federate, save_npz
from tests.refusals import refuses

NORMED = "tests.apps.own_models:Normed"
FROZEN = {f"network.{name}" for name in ("0.weight", "0.bias", "1.weight", "1.bias", "1.running_mean", "1.running_var")}
SECURE: dict[str, Scalar] = {"privacy.secure-sum": True, "privacy.secure-range": 1.0}


@pytest.mark.parametrize(
    ("strategy", "more"),
    [
        *((strategy, {}) for strategy in OF_ROWS if not ALGORITHMS[strategy].traits.models),
        *(("local-scgdam", SECURE), ("scaffold", SECURE), ("fedsgda-storm", SECURE)),
    ],
)
def test_frozen_entries_keep_their_bits(strategy: str, more: dict[str, Scalar], tmp_path: Path) -> None:
    """Sites of unequal sizes, whose weights round; decay if the strategy supports it; every model of a run."""
    client, keys = ALGORITHMS[strategy].client, {"dataset": "breast-cancer", "dtype": "float64", **more}
    keys |= {"strategy": strategy, "model": NORMED, "learning-rate": 0.1, "partition": "linear"}
    if issubclass(client, MethodClient) and client.method.adjusts:
        keys["weight-decay"] = 0.1
    run, _ = federate(tmp_path / "run", {**keys, "frozen": "network.0, network.1"}, clients=5)
    start = {name: value.numpy() for name, value in build_model(NORMED, (30,), seed=0).double().state_dict().items()}
    for file in run.path.glob("model*.safetensors"):
        model = load_file(file)
        same = {name for name in FROZEN if np.array_equal(model[name], start[name].astype(model[name].dtype))}
        assert same == FROZEN
        assert not np.array_equal(model["network.3.weight"], start["network.3.weight"])


@pytest.mark.parametrize("strategy", ["local-sgd", "coda"])
def test_frozen_norms_allow_privacy_of_samples(strategy: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    keys = save_npz(tmp_path / "data.npz", rng.normal(size=(60, 1, 8, 8)), [0, 1] * 30)
    keys |= {"model": "table3-cnn", "privacy.epsilon": 5.0}
    run, _ = federate(tmp_path / "run", {**keys, "strategy": strategy, "batch-norm": "frozen"})
    start = build_model("table3-cnn", (1, 8, 8), seed=0).state_dict()
    same = {name for name, value in start.items() if np.array_equal(run.model[name], value)}
    parts = ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")
    assert same == {f"block{block}.1.{part}" for block in (1, 2) for part in parts}
    with refuses(RunFailedError, "batch-norm to frozen"):
        federate(tmp_path / "other", {**keys, "strategy": strategy})


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"strategy": "newton"}, "frozen: got 'x', allowed: '', since with strategy 'newton' all coefficients"),
        ({"strategy": "vfb2-sgd"}, "frozen: got 'x', allowed: '', since with strategy 'vfb2-sgd' the server sends no"),
        ({"strategy": "coda", "dataset": "synthetic-pl"}, "frozen: got 'x', allowed: '', .* the run has no network"),
    ],
)
def test_runs_without_a_network_refuse_the_key(keys: dict[str, Scalar], message: str) -> None:
    with refuses(ConfigError, message):
        parse_run_config({**keys, "frozen": "x"})
