"""Tests of minimax problems: gradients four ways, AUC's saddle, the server's metrics, and the synthetic data."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from apps.config import RunConfig, parse_run_config
from apps.evaluation.models import ModelEvaluator, ProblemEvaluator
from apps.sites import resources
from problems.data import DataSpec, FederatedData, Samples, load
from problems.data.formats.bundled import synthetic_pl
from problems.minimax import (
    AUCOracle,
    FunctionOracle,
    MinimaxProblem,
    SyntheticPL,
    SyntheticPLOracle,
    auc,
    build_problem,
)
from problems.minimax.auc import best_saddle, saddle_value
from problems.minimax.oracle import peek
from problems.models import FlatModel, build_model
from problems.models.networks import SaddleNetwork
from problems.objectives.scores import SCORES
from problems.randomness import stream
from tests.battery.federation import save_npz
from tests.reference import minimax
from tests.reference.minimax import Array

EXACT: dict[str, float] = {"rtol": 1e-12, "atol": 1e-12}
CPU = torch.device("cpu")
ROWS = [None, np.array([0, 4, 4]), np.array([5])]
USER = "tests.algorithms.minimax_problems:"

each_rows = pytest.mark.parametrize("rows", ROWS, ids=["all", "three", "one"])


# The synthetic problem.


class ByAutograd(MinimaxProblem):
    """A copy of a problem's value whose gradients come from torch."""

    def __init__(self, problem: MinimaxProblem) -> None:
        self.problem = problem
        self.primal_dim, self.dual_dim = problem.primal_dim, problem.dual_dim
        self.num_samples = problem.num_samples

    def value(self, x: Tensor, y: Tensor, rows: Tensor | None) -> Tensor:
        return self.problem.value(x, y, rows)


def make_pl(nu: float = 0.7, mu: float = 1.3) -> tuple[SyntheticPL, minimax.SyntheticPL]:
    """Return one client of 7 samples in 4 + 4 dimensions, and its reference."""
    data = np.random.default_rng(2).normal(size=(7, 3, 4))
    return SyntheticPL(torch.from_numpy(data), nu=nu, mu=mu), minimax.SyntheticPL(data[None], nu=nu, mu=mu)


def oracles(problem: SyntheticPL) -> dict[str, FunctionOracle]:
    function = {"torch": problem, "autograd": ByAutograd(problem)}
    found = {name: FunctionOracle(p, dtype=torch.float64, device=CPU) for name, p in function.items()}
    return {**found, "numpy": SyntheticPLOracle(problem)}


@each_rows
@pytest.mark.parametrize(("nu", "mu"), [(1.0, 1.0), (0.7, 1.3)])
def test_four_gradients_of_the_synthetic_problem_agree(nu: float, mu: float, rows: Array | None) -> None:
    problem, reference = make_pl(nu, mu)
    chosen = None if rows is None else torch.from_numpy(rows)
    for seed in range(3):
        here, there = np.random.default_rng(seed).normal(size=(2, 8))
        value = problem.value(*torch.from_numpy(here).split(4), chosen)
        assert float(value) == pytest.approx(reference.value(0, here, rows), rel=1e-12)
        for oracle in oracles(problem).values():
            oracle.load([here])
            found = oracle.gradient(oracle.parameters, rows)
            np.testing.assert_allclose(found, reference.gradient(0, here, rows), **EXACT)
            other = oracle.gradient(torch.from_numpy(there), rows)
            np.testing.assert_allclose(other, reference.gradient(0, there, rows), **EXACT)
            np.testing.assert_array_equal(oracle.parameters, here)


def test_gradients_of_many_batches_are_those_one_by_one() -> None:
    problem, reference = make_pl()
    rng = np.random.default_rng(3)
    batches, z = list(rng.integers(7, size=(5, 3))), rng.normal(size=8)
    point, expected = torch.from_numpy(z), [reference.gradient(0, z, rows) for rows in batches]
    for name, oracle in oracles(problem).items():
        together, one_by_one = oracle.batch_gradients(point, batches), [peek(oracle, point, rows) for rows in batches]
        np.testing.assert_allclose(torch.stack(one_by_one), expected, **EXACT)
        assert (together is None) == (name == "autograd")  # the problem has no closed form for many batches
        if together is not None:
            np.testing.assert_allclose(torch.stack(list(together)), expected, **EXACT)
        assert oracle.batch_gradients(point, []) is None
    together = problem.batch_gradients(*point.split(4), torch.from_numpy(np.stack(batches)))
    np.testing.assert_allclose(torch.cat(together, dim=1), expected, **EXACT)


# Users' own problems.


def user_data() -> tuple[Tensor, Tensor]:
    rng = np.random.default_rng(6)
    return torch.from_numpy(rng.normal(size=(9, 4))), torch.from_numpy((rng.random(9) < 0.5).astype(np.float64))


def test_a_problem_needs_no_more_than_a_value() -> None:
    oracle = FunctionOracle(build_problem(USER + "LeastSquares", *user_data()), dtype=torch.float64, device=CPU)
    assert (oracle.primal_dim, oracle.num_samples, len(oracle.parameters)) == (4, 9, 4)
    assert (len(oracle.buffers), oracle.stochastic, oracle.metrics()) == (0, False, {})
    np.testing.assert_array_equal(oracle.parameters, np.zeros(4))
    features, labels = (tensor.numpy() for tensor in user_data())
    rows, x = np.array([1, 8, 3]), np.arange(4.0)
    oracle.load([x])
    expected = features[rows].T @ (features[rows] @ x - labels[rows]) / 3
    with torch.no_grad():  # the caller may disable gradients
        np.testing.assert_allclose(oracle.gradient(oracle.parameters, rows), expected, **EXACT)
    assert oracle.value() == pytest.approx(np.mean((features @ x - labels) ** 2) / 2, rel=1e-12)


# AUC.

SAMPLES = 23
PRIOR = 0.3


def auc_data() -> tuple[Tensor, Tensor]:
    rng = np.random.default_rng(7)
    return torch.from_numpy(rng.normal(size=(SAMPLES, 3))), torch.from_numpy((np.arange(SAMPLES) % 3 == 0) * 1.0)


def tanh_network() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1), nn.Flatten(0))


def make_auc(network: nn.Module, score: str = "logit") -> AUCOracle:
    """Return an oracle at a point without zeros."""
    torch.manual_seed(3)
    model = FlatModel(SaddleNetwork(network), dtype=torch.float64)
    oracle = AUCOracle(model, *auc_data(), score=SCORES[score]).weigh(PRIOR)
    oracle.parameters.normal_()
    return oracle


def by_autograd(oracle: AUCOracle, value: Callable[[Tensor, Tensor], Tensor], rows: Array | None) -> Tensor:
    """Return the gradient at the oracle's point of ``value`` (scores, labels); the scalars are tensors with a graph."""
    chosen = slice(None) if rows is None else torch.from_numpy(rows)
    scores = oracle.scores(oracle.model.scores(oracle.features[chosen]))
    found = torch.autograd.grad(value(scores, oracle.labels[chosen]), list(oracle.model.module.parameters()))
    return torch.cat([gradient.flatten() for gradient in found])


@each_rows
@pytest.mark.parametrize("score", list(SCORES))
def test_auc_s_gradient_is_autograd_s(score: str, rows: Array | None) -> None:
    oracle = make_auc(tanh_network(), score)
    saddle = oracle.model.module.saddle

    def value(scores: Tensor, labels: Tensor) -> Tensor:
        return saddle_value(scores, labels, torch.stack([saddle.a, saddle.b, saddle.dual]), PRIOR)

    found = oracle.gradient(oracle.parameters, rows)
    np.testing.assert_allclose(found, by_autograd(oracle, value, rows), **EXACT)


def test_a_gradient_over_many_samples_leaves_none_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Batch norm rejects a batch of one; without it, the split of the sum makes no difference."""
    whole = make_auc(tanh_network())
    expected = whole.gradient(whole.parameters, None).clone()
    for most in range(2, SAMPLES):
        monkeypatch.setattr(auc, "_CHUNK", most)
        np.testing.assert_allclose(whole.gradient(whole.parameters, None), expected, **EXACT)
    monkeypatch.setattr(auc, "_CHUNK", SAMPLES - 1)
    normed = make_auc(nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1), nn.Flatten(0)))
    assert normed.gradient(normed.parameters, None).isfinite().all()


@each_rows
@pytest.mark.parametrize("score", list(SCORES))
def test_auc_s_gradient_and_value_are_the_reference_s(score: str, rows: Array | None) -> None:
    oracle = make_auc(build_model("linear", (3,), 0), score)
    features, labels = (tensor.numpy() for tensor in auc_data())
    reference = minimax.SaddleAUC([features], [labels.astype(int)], PRIOR, score)
    z = oracle.arrays()[0]
    found = oracle.gradient(oracle.parameters, rows)
    np.testing.assert_allclose(found, reference.gradient(0, z, rows), **EXACT)
    assert oracle.value() == pytest.approx(reference.value(0, z), rel=1e-12)
    assert oracle.primal_dim == reference.primal_dim


@each_rows
def test_another_point_leaves_no_trace(rows: Array | None) -> None:
    rows = np.array([2, 6]) if rows is not None and len(rows) == 1 else rows  # batch norm needs two rows
    oracle = make_auc(build_model(USER + "normed", (3,), 0))
    point, buffers = oracle.arrays()
    oracle.gradient(oracle.parameters, rows)
    moved = oracle.arrays()[1]
    assert np.abs(moved - buffers).max() > 1e-3
    there = torch.from_numpy(point) + 0.1
    found = peek(oracle, there, rows)
    kept = found.clone()
    np.testing.assert_array_equal(oracle.arrays()[0], point)
    np.testing.assert_array_equal(oracle.arrays()[1], moved)
    assert oracle.batch_gradients(there, [np.arange(2)]) is None
    np.testing.assert_array_equal(peek(oracle, there, rows), kept)
    assert float((oracle.gradient(oracle.parameters, rows) - found).abs().max()) > 1e-3
    np.testing.assert_array_equal(found, kept)  # the result has its own memory
    oracle.load([there.numpy(), buffers])
    np.testing.assert_array_equal(oracle.gradient(oracle.parameters, rows), found)


@pytest.mark.parametrize(
    ("network", "buffers", "stochastic"),
    [("normed", True, False), ("dropped", False, True), ("normed_and_dropped", True, True)],
)
def test_an_oracle_says_what_its_network_does(network: str, buffers: bool, stochastic: bool) -> None:
    oracle = make_auc(build_model(USER + network, (3,), 0))
    assert (len(oracle.buffers) > 0, oracle.stochastic) == (buffers, stochastic)


def test_the_best_saddle_is_one() -> None:
    rng = np.random.default_rng(9)
    scores, labels = torch.from_numpy(rng.normal(size=30)), torch.from_numpy((np.arange(30) < 11) * 1.0)
    best = best_saddle(scores, labels)
    np.testing.assert_allclose(best, minimax.best_saddle(scores.numpy(), labels.numpy().astype(int)), **EXACT)
    point = best.clone().requires_grad_()
    (slope,) = torch.autograd.grad(saddle_value(scores, labels, point, 11 / 30), point)
    np.testing.assert_allclose(slope, 0, atol=1e-14)


# The server's metrics.


def run_config(**keys: Any) -> RunConfig:
    flat = {"strategy": "fedsgda-mb", "dtype": "float64", **{k.replace("_", "-"): v for k, v in keys.items()}}
    return parse_run_config(flat)


@pytest.mark.parametrize("score", list(SCORES))
def test_the_loss_of_auc_is_the_mean_pairwise_square_loss(score: str) -> None:
    rng = np.random.default_rng(10)
    labels = (np.arange(33) % 5 == 0).astype(np.int8)
    test = Samples(rng.normal(size=(33, 3)).astype(np.float32), labels)
    config = run_config(model="linear", score=score)
    evaluator = ModelEvaluator(config, resources.new_model(config, (3,)), test)
    z = rng.normal(size=7)
    scores = test.features.astype(np.float64) @ z[:3] + z[3]
    scores = minimax.bounded(score, scores)
    pairs = [(1 - (s - t)) ** 2 for s in scores[labels == 1] for t in scores[labels == 0]]
    assert evaluator([z])["loss"] == pytest.approx(np.mean(pairs), rel=1e-12)


def test_the_synthetic_problem_is_measured_on_all_sites_together() -> None:
    config = run_config(dataset="synthetic-pl", seed=4)
    data = load(config.data, 3)
    evaluator = config.algorithm.evaluation.of_data(config, data)
    assert isinstance(evaluator, ProblemEvaluator)
    np.testing.assert_array_equal(evaluator.start(), [np.zeros(200)])
    reference = minimax.SyntheticPL(data.train.features.reshape(3, 100, 3, 100).astype(np.float64))
    z = np.random.default_rng(0).normal(size=200)
    # Phi(x) = max_y f(x, y), whose gradient is the gradient of f in x at the maximiser y
    best = np.concatenate([z[:100], reference.maximiser(z[:100])])
    slope = np.mean([reference.gradient(i, best) for i in range(3)], axis=0)
    np.testing.assert_allclose(slope[100:], 0, atol=1e-12)
    assert evaluator([z]) == {
        "grad_phi_sq": pytest.approx(np.sum(slope[:100] ** 2), rel=1e-10),
        "loss": pytest.approx(np.mean([reference.value(i, z) for i in range(3)]), rel=1e-10),
    }
    named = evaluator.name_arrays([z])
    np.testing.assert_array_equal(named["x"], z[:100])
    np.testing.assert_array_equal(named["y"], z[100:])


def test_a_problem_of_the_user_s_own_is_measured_on_the_test_set(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    config = run_config(**save_npz(tmp_path / "data.npz", rng.normal(size=(30, 4)), [0, 1] * 15), loss=USER + "Robust")
    data = load(config.data, 2)
    evaluator = config.algorithm.evaluation.of_data(config, data)
    np.testing.assert_allclose(evaluator.start()[0], [0.2, 0.3, 0.4, 0.5, 0.3, 0.2, 0.1, 0.0], rtol=0, atol=1e-15)
    z = rng.normal(size=8)
    moved = data.test.features.astype(np.float64) + z[4:]
    expected = np.mean((moved @ z[:4] - data.test.labels) ** 2) / 2 - 2 * z[4:] @ z[4:]
    assert evaluator([z]) == {"loss": pytest.approx(expected, rel=1e-12)}


def test_metrics_that_are_not_finite_end_the_run() -> None:
    config = run_config(dataset="synthetic-pl")
    evaluator = config.algorithm.evaluation(config, 1)
    with pytest.raises(ValueError, match="the metrics are not finite .*: the run has diverged; lower the step sizes"):
        evaluator([np.full(200, 1e200)])


# The synthetic data.


def test_a_client_s_synthetic_data_is_the_seed_s_and_its_own() -> None:
    data = synthetic_pl(3, 5)
    assert (data.shape, data.dtype) == ((500, 3, 100), np.float32)
    np.testing.assert_array_equal(synthetic_pl(3, 2), data[:200])
    assert (synthetic_pl(4, 1) != data[:100]).mean() > 0.99
    # client 2: w ~ N(0, 0.5 I), then its samples ~ N(w, 0.1 I), all from its own stream
    rng = stream(3, "synthetic-pl", 2)
    mean = np.sqrt(0.5) * rng.standard_normal((3, 100))
    expected = mean + np.sqrt(0.1) * rng.standard_normal((100, 3, 100))
    np.testing.assert_allclose(data[200:300], expected, rtol=0, atol=1e-6)


def test_the_synthetic_sites_are_the_data_client_by_client() -> None:
    data = load(DataSpec(dataset="synthetic-pl", seed=2), 3)
    assert isinstance(data, FederatedData)
    assert (data.num_clients, data.input_shape, len(data.train), len(data.test)) == (3, (3, 100), 300, 0)
    whole = synthetic_pl(2, 3)
    for client in range(3):
        samples = data.client(client)
        np.testing.assert_array_equal(samples.features, whole[100 * client : 100 * (client + 1)])
        assert not samples.labels.any()
