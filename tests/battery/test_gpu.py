"""A run on a CUDA device, stacked or not, equals the CPU run up to rounding, and no step waits for the device."""

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from apps.registry import ALGORITHMS
from clients.base import Site
from methods.fedx import FEDX1
from methods.method import Task
from methods.pairwise import FedXSettings, PairwiseRisk
from methods.predictions import FedXPool
from methods.private import Guard, Ledger, protect
from methods.samples import SampleObjective
from payloads.settings import Settings, TrainingSettings
from privacy.budget import Releases
from problems.models import FlatModel, build_model
from simulations.engines.stacked.networks import StackedNetwork
from simulations.engines.stacked.pairs import PairStacking
from tests.battery.federation import federate

pytestmark = pytest.mark.gpu
DEVICE = "cuda"


@pytest.mark.parametrize("stack", [1, 3])
@pytest.mark.parametrize("strategy", ALGORITHMS)
def test_a_run_on_the_gpu_is_the_run_on_the_cpu_but_for_rounding(strategy: str, stack: int, tmp_path: Path) -> None:
    config = {"strategy": strategy, "dtype": "float64", "num-server-rounds": 3}
    cpu, _ = federate(tmp_path / "cpu", {**config, "device": "cpu"}, clients=3)
    gpu, _ = federate(tmp_path / "gpu", {**config, "device": "cuda"}, clients=3, stack=stack)
    for here, there in zip(cpu.lines, gpu.lines, strict=True):
        assert there["loss"] == pytest.approx(here["loss"], rel=1e-6)


@pytest.mark.parametrize("stacked", [False, True])
def test_local_steps_do_not_synchronise(stacked: bool) -> None:
    rng = np.random.default_rng(0)
    labels = np.repeat([1, 0], [40, 160])
    site = Site.from_arrays(0, rng.normal(size=(200, 8)), labels, device=DEVICE)
    model = FlatModel(build_model("mlp", (8,), 0), device=DEVICE)
    training, settings = TrainingSettings(local_steps=4, loss="psm"), FedXSettings()
    task = Task(1, training, settings, site, PairwiseRisk(model, site, "psm", training, settings), "psm")
    scores, run, one = np.zeros(64, np.float32), np.array([64]), np.ones(1, np.float32)
    pool = FedXPool(
        totals=np.array([1, 40, 160]),
        positive_scores=scores,
        positive_lengths=run,
        positive_weights=one,
        partner_scores=scores,
        partner_lengths=run,
        partner_weights=one,
    )
    client, x = FEDX1.client, model.parameters
    carry, batches = client.start(x, pool, None, task), client.batches(task, pool)
    if stacked:  # the same client twice
        assert model.dense is not None
        stacking, tasks = PairStacking(), [task, task]
        task = stacking.join(task, [task.site] * 2, StackedNetwork(model.dense, x.expand(2, -1)))
        carry = stacking.stack([client.start(x.clone(), pool, None, each) for each in tasks], task)
        batches = stacking.batches(task, tasks, pool, client.batches)
    first = next(batches)  # now the pool is on the device
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _, batch in itertools.chain([first], batches):
            carry = client.step(carry, batch, 0.1, task)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert len(carry.history) == 4


@pytest.mark.parametrize("name", ["linear", "mlp", "tutorial-cnn"])
def test_clipped_gradients_of_samples_are_those_of_the_cpu(name: str) -> None:
    shape, found = (1, 18, 18), []
    features, labels = np.random.default_rng(0).normal(size=(20, *shape)), np.arange(20) % 2
    for device in ("cpu", DEVICE):
        site = Site.from_arrays(0, features, labels, dtype=torch.float64, device=device)
        model = FlatModel(build_model(name, shape, 0), dtype=torch.float64, device=device)
        plain = SampleObjective(model, site, "cross-entropy", TrainingSettings(), Settings())
        guard = Guard(0.3, 0.0, 10.0, Ledger(Releases(0.5, 1), left=1))
        f: Any = protect(plain, guard)
        found.append(f.gradient(model.parameters.clone(), site.samples(site.everyone)).cpu())
    torch.testing.assert_close(found[1], found[0], rtol=1e-9, atol=1e-12)
    assert float(found[0].norm()) > 0
