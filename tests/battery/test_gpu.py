"""The same run on a CUDA device: the same up to rounding, and no step waits for the device."""

from pathlib import Path

import numpy as np
import pytest
import torch

from apps.registry import ALGORITHMS
from clients.base import Site
from clients.fedx import FedX1Client
from payloads.fedx import FedXPool, FedXSettings
from payloads.settings import TrainingSettings
from problems.models import FlatModel, build_model
from tests.battery.federation import federate

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("strategy", ALGORITHMS)
def test_a_run_on_the_gpu_is_the_run_on_the_cpu_but_for_rounding(strategy: str, tmp_path: Path) -> None:
    config = {"strategy": strategy, "dtype": "float64", "num-server-rounds": 3}
    cpu, _ = federate(tmp_path / "cpu", {**config, "device": "cpu"}, clients=3)
    gpu, _ = federate(tmp_path / "gpu", {**config, "device": "cuda"}, clients=3)
    for here, there in zip(cpu.lines, gpu.lines, strict=True):
        assert there["loss"] == pytest.approx(here["loss"], rel=1e-6)


def test_local_steps_do_not_synchronise() -> None:
    rng = np.random.default_rng(0)
    labels = np.repeat([1, 0], [40, 160])
    site = Site.from_arrays(0, rng.normal(size=(200, 8)), labels, device="cuda")
    model = FlatModel(build_model("mlp", (8,), 0), device="cuda")
    client = FedX1Client(site, model, TrainingSettings(local_steps=4, loss="psm"), FedXSettings())
    scores, run = np.zeros(64, np.float32), np.array([64])
    one = np.ones(1, np.float32)
    client.inbox = FedXPool(
        totals=np.array([1, 40, 160]),
        positive_scores=scores,
        positive_lengths=run,
        positive_weights=one,
        partner_scores=scores,
        partner_lengths=run,
        partner_weights=one,
    )
    client.begin(model.arrays(), {"server-round": 1})
    torch.cuda.set_sync_debug_mode("error")
    try:
        positives, partners = np.arange(16), np.arange(40, 56)
        scores_of_rows, a, b = client.forward(positives, partners)
        client.step(client.gradient(scores_of_rows, -torch.ones_like(a), torch.ones_like(b)), 0.01)
    finally:
        torch.cuda.set_sync_debug_mode("default")
