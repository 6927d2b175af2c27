"""Runs that start from a model file."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from apps.config import ConfigError, Scalar, parse_run_config
from apps.server_app import RunFailedError
from apps.sites.resources import federated_data
from problems.models import build_model
from simulations.engines.checking import check_run
from simulations.references.centralized import train_centralized
from tests.battery.federation import Run, federate, flat_config
from tests.refusals import refuses

NORMED = "tests.apps.own_models:Normed"
# metrics that depend on the model only, not on the loss
METRICS = ("auc", "average_precision", "accuracy")
KEYS: dict[str, Scalar] = {"dataset": "breast-cancer", "num-server-rounds": 2}


def run(folder: Path, **keys: Any) -> Run:
    return federate(folder, {**KEYS, **{key.replace("_", "-"): value for key, value in keys.items()}}, 2)[0]


@pytest.mark.parametrize("model", ["mlp", NORMED])
@pytest.mark.parametrize(
    ("first", "second"),
    [("local-sgd", "local-sgd"), ("local-sgd", "coda"), ("coda", "fedx1"), ("local-scgdam", "local-scgdam")],
)
def test_round_0_of_the_second_run_is_the_end_of_the_first(tmp_path: Path, model: str, first: str, second: str) -> None:
    """The saddle's scalars start at zero if the file lacks them, and are left out if the loss has none."""
    one = run(tmp_path / "one", strategy=first, model=model)
    start = str(one.path / "model.safetensors")
    other = run(tmp_path / "other", strategy=second, model=model, init_from=start, num_server_rounds=1)
    assert {name: other.lines[0][name] for name in METRICS} == {name: one.lines[-1][name] for name in METRICS}
    assert other.lines[0]["auc"] != one.lines[0]["auc"]
    assert ("saddle.a" in other.model) == (second != "fedx1" and second != "local-sgd")


def test_a_file_has_the_module_s_own_names(tmp_path: Path) -> None:
    written = load_file(run(tmp_path / "run", strategy="local-sgd", model=NORMED).path / "model.safetensors")
    build_model(NORMED, (30,), 0).load_state_dict(written)  # strict: every name must exist


def test_a_minimax_problem_starts_at_its_variables(tmp_path: Path) -> None:
    keys: dict[str, Any] = {"strategy": "coda", "dataset": "synthetic-pl"}
    one = run(tmp_path / "one", **keys)
    start = str(one.path / "model.safetensors")
    other = run(tmp_path / "other", **keys, init_from=start, num_server_rounds=1)
    assert other.lines[0]["loss"] == one.lines[-1]["loss"] != one.lines[0]["loss"]


def test_the_centralized_reference_and_check_start_there_too(tmp_path: Path) -> None:
    one = run(tmp_path / "one", strategy="local-sgd")
    start = str(one.path / "model.safetensors")
    flat = flat_config(tmp_path / "two", {**KEYS, "strategy": "local-sgd", "init-from": start, "num-server-rounds": 1})
    config = parse_run_config(flat)
    history, _ = train_centralized(config, federated_data(config.data, 2))
    assert history[0]["auc"] == one.lines[-1]["auc"]
    with refuses(ConfigError, "init-from: got .*, which lacks"):
        check_run(2, {**KEYS, "strategy": "local-sgd", "init-from": start, "model": "mlp"})


def test_a_resumed_run_needs_the_key_and_not_the_file(tmp_path: Path) -> None:
    path = tmp_path / "start.safetensors"
    one = run(tmp_path / "one", strategy="local-sgd")
    path.write_bytes(one.model_bytes)
    keys: dict[str, Any] = {"strategy": "local-sgd", "init_from": str(path), "checkpoint_every": 1}
    run(tmp_path / "other", **keys, num_server_rounds=1)
    path.unlink()
    with refuses(RunFailedError, "resume: init-from: got '', allowed: '.*start.safetensors'"):
        run(tmp_path / "other", **{**keys, "init_from": ""}, resume=True)
    resumed = run(tmp_path / "other", **keys, resume=True)
    path.write_bytes(one.model_bytes)
    assert resumed.model_bytes == run(tmp_path / "whole", **keys).model_bytes


WEIGHTS = {"output.weight": torch.zeros(1, 30), "output.bias": torch.zeros(1)}


@pytest.mark.parametrize(
    ("named", "message"),
    [
        (
            {"output.weight": WEIGHTS["output.weight"]},
            "which lacks 'output.bias', allowed: the names and shapes of mod",
        ),
        ({**WEIGHTS, "more": torch.zeros(1)}, "which has 'more' in addition"),
        ({**WEIGHTS, "output.weight": torch.zeros(1, 3)}, r"which has 'output.weight' of \(1, 3\), not \(1, 30\)"),
        ({f"x{i}": torch.zeros(1) for i in range(9)}, "which lacks 'output.weight', 'output.bias'; has .* and 4 more"),
        ({**WEIGHTS, "output.bias": torch.tensor([np.inf])}, "whose 'output.bias' is not finite"),
    ],
)
def test_what_differs_is_named(tmp_path: Path, named: dict[str, torch.Tensor], message: str) -> None:
    path = tmp_path / "start.safetensors"
    save_file(named, path)
    with refuses(RunFailedError, f"init-from: got {path}, {message}"):
        run(tmp_path / "run", strategy="local-sgd", init_from=str(path))


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"init_from": "model.safetensors"}, "init-from: got 'model.safetensors', which is relative"),
        (
            {"init_from": "/nowhere/m.safetensors"},
            r"got /nowhere/m.safetensors \(.*, allowed: a complete safetensors",
        ),
        ({"init_from": __file__}, r"init-from: got .*test_init_from.py \(.*, allowed: a complete safetensors file"),
        ({"init_from": "/m", "strategy": "vfb2-sgd"}, "init-from: got '/m', allowed: '', since .* sends no model"),
    ],
)
def test_what_is_no_such_file_is_one_error(tmp_path: Path, keys: dict[str, Any], message: str) -> None:
    with refuses(RunFailedError, message):
        run(tmp_path / "run", **{"strategy": "local-sgd", **keys})
