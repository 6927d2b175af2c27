"""Runs that start from published weights."""

import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from apps.config import ConfigError, Scalar, parse_run_config
from apps.server_app import RunFailedError
from apps.sites.resources import federated_data
from problems.models import build_model
from problems.models.published import find_weights, fit_weights
from simulations.references.centralized import train_centralized
from tests.battery.federation import Run, federate, flat_config, save_npz
from tests.refusals import refuses

NORMED = "tests.apps.own_models:Normed"


def run(folder: Path, **keys: Any) -> Run:
    flat: dict[str, Scalar] = {"dataset": "breast-cancer", "num-server-rounds": 1, "strategy": "coda", "model": NORMED}
    return federate(folder, flat | {key.replace("_", "-"): value for key, value in keys.items()}, 2)[0]


def publish(path: Path, classes: int = 10) -> dict[str, torch.Tensor]:
    """Write the weights of a network with another head, as a training script does."""
    weights = {name: value + 1 for name, value in build_model(NORMED, (30,), seed=5).state_dict().items()}
    weights |= {"network.3.weight": torch.rand(classes, 4), "network.3.bias": torch.rand(classes)}
    state = {f"module.{name}": value for name, value in weights.items()}
    torch.save({"epoch": 3, "state_dict": state, "optimizer": {"lr": 0.1}}, path)
    return weights


def test_what_fits_is_used_and_listed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    weights = publish(tmp_path / "w.pth")
    with caplog.at_level(logging.INFO, logger="flwr"):
        first = run(tmp_path / "a", weights=str(tmp_path / "w.pth"), frozen="network.0, network.1")
    frozen = [f"network.{name}" for name in ("0.weight", "0.bias", "1.weight", "1.bias", "1.running_var")]
    assert all(np.array_equal(first.model[name], weights[name]) for name in frozen)
    assert "weights: 6 of 8 entries (140 of 145 numbers) are from" in caplog.text
    assert "weights: 2 entries start at random: network.3.weight, network.3.bias" in caplog.text
    assert "weights: 2 entries of the file do not fit: module.network.3.weight (10, 4), module.network.3" in caplog.text
    assert "frozen entries stay at random" not in caplog.text
    entries = json.loads((first.path / "weights.json").read_text("utf-8"))
    heads = ["network.3.weight", "network.3.bias"]
    assert (len(entries["fitted"]), entries["random"], entries["summed"]) == (6, heads, [])
    assert entries["unused"] == [f"module.{name}" for name in heads]
    with caplog.at_level(logging.WARNING, logger="flwr"):
        other = run(tmp_path / "b", weights=str(tmp_path / "w.pth"), frozen="network.3")
    assert "weights: 2 frozen entries stay at random: network.3.weight, network.3.bias" in caplog.text
    assert {name: other.lines[0][name] for name in ("auc", "loss")} == {k: first.lines[0][k] for k in ("auc", "loss")}


def test_a_resumed_run_keeps_the_list(tmp_path: Path) -> None:
    publish(tmp_path / "w.pth")
    keys = {"weights": str(tmp_path / "w.pth"), "checkpoint_every": 1}
    first = run(tmp_path / "a", **keys)
    listed = (first.path / "weights.json").read_text("utf-8")
    (tmp_path / "w.pth").unlink()
    assert len(run(tmp_path / "a", **keys, num_server_rounds=2, resume=True).lines) == 3
    assert (first.path / "weights.json").read_text("utf-8") == listed


def test_entries_of_other_libraries() -> None:
    """An older torchvision's DenseNet of three colours, wrapped, for MONAI's DenseNet of grey images."""
    colour, grey = (build_model("densenet121", (channels, 32, 32), seed=channels).eval() for channels in (3, 1))
    old = {
        "backbone.module." + name.replace("layers.norm", "norm.").replace("layers.conv", "conv."): value
        for name, value in colour.state_dict().items()
    }
    assert "backbone.module.features.denseblock1.denselayer1.norm.1.weight" in old
    shapes = {name: tuple(value.shape) for name, value in grey.state_dict().items() if value.is_floating_point()}
    fit = fit_weights(find_weights({"model": {"state_dict": old, "epoch": 1}}), shapes)
    assert (fit.random, fit.unused, fit.summed) == ([], {}, ["features.conv0.weight"])
    grey.load_state_dict(fit.tensors, strict=False)
    images = torch.rand(2, 1, 32, 32, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        torch.testing.assert_close(grey(images), colour(images.repeat(1, 3, 1, 1)), rtol=0, atol=1e-6)


class Code:
    def __reduce__(self) -> tuple[Any, ...]:
        return print, ("code of the file",)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (
            "w.pth",
            {"x": torch.zeros(1)},
            r"weights: got .*w.pth, whose 1 weights do not fit \(x\), allowed: weights of",
        ),
        ("w.pth", {"network.0.bias": torch.full((4,), torch.nan)}, "whose 'network.0.bias' is not finite"),
        ("w.pt", [1, 2], "weights: got .*whose 0 weights do not fit"),
        ("w.pt", {"network.0.bias": Code()}, "weights: got .*w.pt .*, allowed: .* with tensors and plain values only"),
        ("w.ckpt", {}, "weights: got .*w.ckpt, allowed: a .safetensors, .pth or .pt file"),
    ],
)
def test_other_files_are_one_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, content: Any, message: str
) -> None:
    torch.save(content, tmp_path / name)
    with refuses(RunFailedError, message):
        run(tmp_path / "run", weights=str(tmp_path / name))
    assert "code of the file" not in capsys.readouterr().out.splitlines()


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"weights": "/w.pth", "init-from": "/m"}, "weights: got '/w.pth', allowed: '', since init-from sets all"),
        ({"weights": "/w.pth", "strategy": "vfb2-sgd"}, "weights: got '/w.pth', allowed: '', since .* sends no model"),
    ],
)
def test_other_keys_are_one_error(keys: dict[str, Scalar], message: str) -> None:
    with refuses(ConfigError, message):
        parse_run_config(keys)


def test_the_centralized_reference_starts_there_too(tmp_path: Path) -> None:
    save_file(
        {name: value + 1 for name, value in build_model("mlp", (5,), 3).state_dict().items()},
        tmp_path / "w.safetensors",
    )
    rng = np.random.default_rng(0)
    keys = {**save_npz(tmp_path / "data.npz", rng.normal(size=(40, 5)), [0, 1] * 20), "model": "mlp"}
    keys |= {"weights": str(tmp_path / "w.safetensors"), "strategy": "local-sgd", "num-server-rounds": 1}
    one, _ = federate(tmp_path / "one", keys, 2)
    config = parse_run_config(flat_config(tmp_path / "two", keys))
    history, _ = train_centralized(config, federated_data(config.data, 2))
    assert history[0]["auc"] == one.lines[0]["auc"]
