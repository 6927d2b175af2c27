"""The same run on a CUDA device: the same up to rounding, and no step waits for the device."""

from pathlib import Path

import numpy as np
import pytest
import torch

from apps.registry import ALGORITHMS
from clients.base import Site
from methods.fedx import FEDX1, FedXPool
from methods.method import Task
from methods.pairwise import FedXSettings, PairwiseRisk
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
    training, settings = TrainingSettings(local_steps=4, loss="psm"), FedXSettings()
    risk = PairwiseRisk(model, site, "psm", training, settings)
    task = Task(1, training, settings, site, risk, "psm")
    scores, run = np.zeros(64, np.float32), np.array([64])
    one = np.ones(1, np.float32)
    pool = FedXPool(
        totals=np.array([1, 40, 160]),
        positive_scores=scores,
        positive_lengths=run,
        positive_weights=one,
        partner_scores=scores,
        partner_lengths=run,
        partner_weights=one,
    )
    carry = FEDX1.client.start(model.parameters, pool, None, task)
    batches = FEDX1.client.batches(task, pool)
    eta, batch = next(batches)  # now the pool is on the device
    torch.cuda.set_sync_debug_mode("error")
    try:
        carry = FEDX1.client.step(carry, batch, eta, task)
        for eta, batch in batches:
            carry = FEDX1.client.step(carry, batch, eta, task)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert len(carry.history) == 4
