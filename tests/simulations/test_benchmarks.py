"""Tests that every benchmark's --smoke succeeds and prints its table; limits need a machine without other work.

The bare loop also trains: it ends at the AUC of the federation that it is timed against.
"""

import importlib
import re
from pathlib import Path

import numpy as np
import pytest
import torch

from apps.config import parse_run_config
from apps.registry import ALGORITHMS
from apps.sites import resources
from problems.data import load
from problems.metrics import binary_metrics
from problems.models.networks import network_names
from tests.battery.federation import federate
from tests.programs import PROJECT, ran

NUMBER = r"-?[\d,]+(?:\.\d+)?"
HORIZONTAL = [name for name, row in ALGORITHMS.items() if row.strategy.shares_model]
OF_ANY_NETWORK = [name for name in HORIZONTAL if not ALGORITHMS[name].traits.models]
# script -> the first cells of its table's rows, and the minimum count of numbers after each
TABLES: dict[str, tuple[list[str], int]] = {
    "fedavg.py": (["bare loop", "in-process engine", "stacked"], 3),
    "algorithms.py": (OF_ANY_NETWORK, 3),
    "stacked.py": ([f"{name}, {model}" for name in OF_ANY_NETWORK for model in ("linear", "mlp")], 4),
    "message.py": (["mlp", "linear"], 5),
    "resident.py": (["imports", "answer", "ours"], 3),
    "fedsgda.py": (["mb", "storm"], 4),
    "defaults.py": (HORIZONTAL, 2),
    "evaluation.py": (["psm", "kl-opauc", "auprc"], 2),
    "lazy_images.py": (["memory", "files, 0 threads", "files, 2 threads"], 4),
    "memory.py": (["data alone", "federation"], 3),
    "cluster.py": (["table3-cnn", "linear, 100,000 clients"], 4),
}


LONG = ("lazy_images.py", "memory.py", "cluster.py")  # 30 seconds to two minutes each
SHORT = [pytest.param(script, marks=pytest.mark.gate) for script in TABLES if script not in LONG]


@pytest.mark.slow
@pytest.mark.parametrize("script", [*SHORT, *LONG])
def test_a_smoke_run_prints_its_table(script: str) -> None:
    lines = ran(PROJECT / "benchmarks" / script, "--smoke", "--no-check").splitlines()
    assert lines[0].startswith("data: synthetic")
    names, count = TABLES[script]
    for name in names:
        (row,) = [line for line in lines if line.startswith(f"{name} ")]
        numbers = [float(number.replace(",", "")) for number in re.findall(NUMBER, row[len(name) :])]
        assert len(numbers) >= count
        assert max(numbers) > 0


@pytest.mark.slow
def test_the_bare_loop_learns_as_a_federation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(PROJECT / "benchmarks"))
    bare_loop, harness = importlib.import_module("bare_loop"), importlib.import_module("harness")
    clients, rounds = 20, 30
    plan = bare_loop.Plan(cohort=5, steps=5, batch=10, learning_rate=0.05)
    data = {"dataset": "digits", "positive_label": "first-half", "strategy": "local-sgd", "model": "mlp"}
    sizes = {"num_server_rounds": rounds, "fraction_train": plan.cohort / clients, "local_steps": plan.steps}
    flat = harness.config("", **data, **sizes, batch_size=plan.batch, learning_rate=plan.learning_rate)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        loop = bare_loop.BareLoop(harness.tensors(flat, clients), plan, bare_loop.mlp(64))
    for _ in range(rounds):
        loop.round()
    loop.load()
    test = load(parse_run_config(flat).data, clients).test
    with torch.no_grad():
        scores = loop.model(torch.tensor(test.features)).numpy()
    run, _ = federate(tmp_path / "run", flat, clients)
    auc = binary_metrics(test.labels, scores)["auc"]
    assert auc > 0.85
    assert auc == pytest.approx(run.result["metrics"]["auc"], abs=0.02)


@pytest.mark.faults
def test_a_smoke_run_of_the_soak_prints_its_table() -> None:
    """Sites are killed and come back, and no round is lost."""
    lines = ran(PROJECT / "benchmarks" / "soak.py", "--smoke", "--no-check", seconds=900).splitlines()
    (row,) = [line for line in lines if line.startswith("6 rounds ")]
    kills, restarts, dropped, seconds, first, most, last = map(float, row.split()[2:])
    assert kills == restarts >= 1
    assert 1 <= dropped <= 6
    assert seconds > 0
    assert most >= max(first, last) > 100


@pytest.mark.slow
@pytest.mark.flower
@pytest.mark.usefixtures("flower_engine")
def test_each_kind_of_case_of_the_vertical_benchmark_prints_its_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(PROJECT / "benchmarks"))
    cases = ["straggler-6", "parties", "cpu", "seconds", "segment"]  # the other rows are the first with other numbers
    assert set(cases) < set(importlib.import_module("vertical_speed").CASES)
    script = PROJECT / "benchmarks" / "vertical_speed.py"
    lines = ran(script, *cases, "--smoke", "--no-check", seconds=600).splitlines()
    assert lines[0] == "data: synthetic, 1,500 x 90"
    for name in cases:
        (row,) = [line for line in lines if line.startswith(f"{name}  ")]
        assert float(row.split()[1]) > 0
    assert len([line for line in lines if ": step " in line or " updates/s" in line]) >= 5


@pytest.mark.parametrize(
    ("strategy", "model"),
    [("local-sgd", "linear"), ("scaffold", "linear"), ("composite", "linear"), ("local-sgd", "mlp")],
)
def test_the_jax_rounds_train_the_same_model(
    strategy: str, model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(PROJECT / "benchmarks"))
    jax_round, harness = importlib.import_module("jax_round"), importlib.import_module("harness")
    with harness.data_file("", 6 * 30, 12) as path:
        keys = {"strategy": strategy, "model": model, "num_server_rounds": 4, "local_steps": 5, "batch_size": 8}
        flat = harness.config(path, **keys, composite__weight=0.01) | {"learning-rate": 0.1, "partition": "iid"}
        sites = [(x.numpy().astype(np.float32), y.numpy()) for x, y in harness.tensors(flat, 6)]
        network = resources.new_model(parse_run_config(flat), (12,))
        begin, short = network.parameters.numpy().copy(), network_names(network.module)
        rounds = jax_round.JaxRounds(flat, sites, begin)
        run, _ = federate(tmp_path / "run", flat, clients=6)
    for _ in range(4):
        rounds.round()
    found = np.concatenate([np.ravel(run.model[short[name]]) for name in network.parameter_names])
    assert np.abs(found - begin).max() > 0.05
    np.testing.assert_allclose(rounds.model(), found, rtol=0, atol=1e-5)
