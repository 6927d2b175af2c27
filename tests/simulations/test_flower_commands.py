"""Tests of the simulation's resources that ``flwr run`` gets."""

import pytest
import torch

from simulations.engines.flower import federation_config, gpu_share


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({}, "num-supernodes=8 client-resources-num-cpus=1"),
        ({"client_gpus": 0.25}, "num-supernodes=8 client-resources-num-cpus=1 client-resources-num-gpus=0.25"),
        ({"together": True}, "num-supernodes=8 client-resources-num-cpus=1 init-args-num-cpus=16"),
    ],
)
def test_resources_of_a_client(options: dict[str, float], told: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 16)
    assert federation_config(8, **options) == told  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("device", "gpus", "cpus", "share"),
    [
        ("auto", 0, 16, 0.0),
        ("cpu", 1, 16, 0.0),
        ("auto", 1, 16, 0.0625),
        ("cuda", 1, 12, 0.0833),
        ("auto", 2, 4, 0.5),
        ("auto", 8, 4, 1.0),
    ],
)
def test_clients_share_gpus(device: str, gpus: int, cpus: int, share: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    monkeypatch.setattr("os.cpu_count", lambda: cpus)
    assert gpu_share(device) == share
    assert share * cpus <= max(gpus, 1)
