"""Tests of compositional AUC: one oracle step against the reference, autograd through g and finite differences."""

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

from problems.minimax import CompositionalOracle
from problems.minimax.auc import saddle_value
from problems.minimax.compositional import _LeanBatchNorm
from problems.models import FlatModel, build_model
from problems.models.networks import SaddleNetwork
from problems.objectives.scores import SCORES
from tests.algorithms.minimax_problems import compose
from tests.reference.minimax import Array
from tests.reference.scgdam import CompositionalAUC

EXACT: dict[str, float] = {"rtol": 1e-12, "atol": 1e-12}
RHO, PRIOR = 0.3, 0.35
XI, ZETA = np.array([0, 4, 9, 11]), np.array([2, 3, 4, 7, 8])


def data(*shape: int, count: int = 12) -> tuple[Tensor, Tensor]:
    rng = np.random.default_rng(3)
    labels = np.arange(count) % 3 == 0
    features = rng.normal(size=(count, *shape)) + labels.reshape(-1, *[1] * len(shape))
    return torch.from_numpy(features), torch.from_numpy(labels.astype(np.float64))


def tanh_network() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1), nn.Flatten(0))


def normed_network() -> nn.Module:
    return nn.Sequential(
        *(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, 4), nn.BatchNorm1d(4, affine=False), nn.Tanh()),
        *(nn.Linear(4, 1), nn.Flatten(0)),
    )


def first_normed_network() -> nn.Module:
    return nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1), nn.Flatten(0))


NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "linear": (lambda: build_model("linear", (3,), 0), (3,)),
    "tanh": (tanh_network, (3,)),
    "normed": (normed_network, (3,)),
    "first-normed": (first_normed_network, (3,)),
    "table3-cnn": (lambda: build_model("table3-cnn", (1, 8, 8), 0), (1, 8, 8)),
}
each_network = pytest.mark.parametrize("name", NETWORKS)
each_score = pytest.mark.parametrize("score", list(SCORES))


def make(name: str, score: str = "logit", seed: int = 1) -> CompositionalOracle:
    """Return an oracle at a random (x, y), with another random h."""
    build, shape = NETWORKS[name]
    with torch.random.fork_rng():
        torch.manual_seed(0)
        first, second = (FlatModel(SaddleNetwork(build()), dtype=torch.float64) for _ in range(2))
    oracle = CompositionalOracle(first, second, *data(*shape), score=SCORES[score]).weigh(PRIOR)
    rng = np.random.default_rng(seed)
    for model in (first, second):
        model.parameters.add_(torch.from_numpy(rng.normal(0, 0.3 if model.dim < 100 else 0.02, model.dim)))
    return oracle


def reference(name: str, score: str, hessian: str) -> CompositionalAUC:
    features, labels = data(*NETWORKS[name][1])
    return CompositionalAUC(
        [features.numpy()], [labels.numpy().astype(int)], PRIOR, RHO, score, hessian, name, hidden=4
    )


# One step.


@pytest.mark.parametrize("name", ["linear", "tanh"])
@pytest.mark.parametrize("hessian", ["exact", "identity"])
@pytest.mark.parametrize("outer", [None, ZETA], ids=["shared", "independent"])
@each_score
def test_a_step_is_the_reference_s(name: str, hessian: str, outer: Array | None, score: str) -> None:
    oracle, problem = make(name, score), reference(name, score, hessian)
    z, h = oracle.arrays()[0], oracle.inner.arrays()[0][:-1]
    x, y = z[:-1], z[-1:]
    found = compose(oracle, XI, 0.7, RHO, exact=hessian == "exact", outer_rows=outer)
    new_h = 0.3 * h + 0.7 * problem.inner(0, x, XI)
    rows_f = XI if outer is None else outer
    np.testing.assert_allclose(oracle.inner.arrays()[0][:-1], new_h, **EXACT)
    np.testing.assert_allclose(found[:-1], problem.compositional_gradient(0, x, new_h, y, XI, rows_f), **EXACT)
    np.testing.assert_allclose(found[-1:], problem.outer_gradient(0, new_h, y, rows_f)[1], **EXACT)
    np.testing.assert_array_equal(oracle.arrays()[0], z)  # a step of h moves neither x nor y


# (I - rho H) grad f(g(x)) is the gradient of f(g(x)).


def by_autograd(oracle: CompositionalOracle, rows: Array, levels: int = 1) -> Tensor:
    """Return the gradient of f(g(... g(.; rows)), .; rows) at (x, y), (d,), by automatic differentiation through g."""
    model, (features, labels) = oracle.model, (oracle.features[rows], oracle.labels[rows])
    names, shapes = model.parameter_names[:-3], model.parameter_shapes[:-3]
    point = model.parameters.clone().requires_grad_()

    def logits(w: Tensor) -> Any:
        parts = w.split([int(np.prod(shape)) for shape in shapes])
        named = {f"{n}": part.view(shape) for n, part, shape in zip(names, parts, shapes, strict=True)}
        frozen = {n: b.clone() for n, b in model.module.named_buffers()}  # the model's statistics stay as they are
        model.module.train()
        return functional_call(model.module, {**named, **frozen}, (features,))

    w, saddle = point[:-3], point[-3:]
    for _ in range(levels):
        loss = nn.functional.binary_cross_entropy_with_logits(logits(w), labels)
        (descent,) = torch.autograd.grad(loss, w, create_graph=True)
        w = w - RHO * descent
    scores = oracle.score.value(logits(w))
    (gradient,) = torch.autograd.grad(saddle_value(scores, labels, saddle, PRIOR), point)
    return gradient


@each_network
@each_score
def test_it_is_autograd_through_g(name: str, score: str) -> None:
    oracle = make(name, score)
    expected = by_autograd(oracle, XI)
    found = compose(oracle, XI, 1.0, RHO).clone()
    scale = float(expected.abs().max())
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12 * scale)
    identity = compose(oracle, XI, 1.0, RHO, exact=False)
    assert float((identity - expected).abs().max()) > 1e-3 * scale
    np.testing.assert_allclose(identity[-3:], expected[-3:], rtol=1e-12, atol=1e-12 * scale)


@each_network
def test_three_levels_are_autograd_through_g_three_times(name: str) -> None:
    oracle = make(name)
    expected = by_autograd(oracle, XI, levels=3)
    found = compose(oracle, XI, 1.0, RHO, levels=3)
    np.testing.assert_allclose(found, expected, rtol=1e-11, atol=1e-11 * float(expected.abs().max()))


# Batch norm.


def double_backward(network: nn.Module, features: Tensor, lean: bool) -> list[Tensor]:
    """Return output, statistics and gradients, and the derivatives of a product with these in weights and features."""
    network = network.double().train()
    features = features.clone().requires_grad_()
    with _LeanBatchNorm() if lean else nullcontext():
        output = network(features)
    inputs = [features, *network.parameters()]
    errors = torch.tanh(output) + 0.1
    gradients = torch.autograd.grad(output, inputs, errors, create_graph=True)
    generator = torch.Generator().manual_seed(5)
    directions = [torch.randn(g.shape, generator=generator, dtype=g.dtype) for g in gradients]
    products = torch.autograd.grad(gradients, inputs, directions)
    found = [output, *network.buffers(), *gradients, *products]
    return [tensor.detach().clone().double() for tensor in found]


NORMS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "1d-sequence": (lambda: nn.BatchNorm1d(4), (5, 4, 6)),
    "2d": (lambda: nn.BatchNorm2d(3, eps=0.1, momentum=0.3), (4, 3, 5, 2)),
    "3d": (lambda: nn.BatchNorm3d(2), (3, 2, 2, 3, 2)),
    "without-affine": (lambda: nn.BatchNorm1d(4, affine=False), (7, 4)),
    "without-statistics": (lambda: nn.BatchNorm1d(4, track_running_stats=False), (7, 4)),
}


@pytest.mark.parametrize("name", NORMS)
def test_the_lean_batch_norm_is_pytorch_s_to_the_second_derivative(name: str) -> None:
    build, shape = NORMS[name]
    features = torch.randn(shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    results = []
    for lean in (True, False):
        norm = build()
        for place, parameter in enumerate(norm.parameters()):
            parameter.data += torch.linspace(-0.8, 0.5, len(parameter)) + place
        results.append(double_backward(norm, features, lean))
    for ours, theirs in zip(*results, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-10, atol=1e-11)


@pytest.mark.parametrize("exact", [True, False])
def test_the_passes_at_w_and_at_h_have_statistics_of_their_own(exact: bool) -> None:
    oracle = make("normed")
    twins = [make("normed") for _ in range(2)]
    compose(oracle, XI, 0.6, RHO, exact=exact, outer_rows=ZETA)
    at_w = twins[0].model
    at_w.scores(twins[0].features[XI])
    np.testing.assert_allclose(oracle.arrays()[1], at_w.buffers, **EXACT)
    at_h = twins[1].inner
    at_h.parameters.copy_(oracle.inner.parameters)
    at_h.scores(twins[1].features[ZETA])
    np.testing.assert_allclose(oracle.inner_buffers(), at_h.buffers, **EXACT)
    assert np.abs(oracle.arrays()[1] - oracle.inner_buffers()).max() > 1e-3


# Unused parameters.


class Partial(nn.Module):
    """A network with one frozen and one unused layer."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.unused, self.last = nn.Linear(3, 4), nn.Linear(2, 2), nn.Linear(4, 1)
        self.first.bias.requires_grad_(False)

    def forward(self, features: Tensor) -> Tensor:
        scores: Tensor = self.last(torch.tanh(self.first(features))).squeeze(1)
        return scores


@pytest.mark.parametrize("exact", [True, False])
def test_frozen_parameters_stay_and_unused_parameters_only_average(exact: bool) -> None:
    models = [FlatModel(SaddleNetwork(Partial()), dtype=torch.float64) for _ in range(2)]
    oracle = CompositionalOracle(*models, *data(3)).weigh(PRIOR)
    w, h = (dict(model.module.named_parameters()) for model in models)
    before = {name: value.clone() for name, value in h.items()}
    gradient = compose(oracle, XI, 0.25, RHO, exact=exact)
    assert torch.equal(h["network.first.bias"], before["network.first.bias"])
    still = {"network.unused.weight", "network.unused.bias"}
    for name in models[1].parameter_names:
        averaged = torch.allclose(h[name], 0.75 * before[name] + 0.25 * w[name], rtol=0, atol=1e-14)
        assert averaged is (name in still) or name.startswith("saddle."), name
    by_name = dict(zip(models[1].parameter_names, gradient.split([12, 4, 2, 4, 1, 1, 1, 1]), strict=True))
    assert {name for name, part in by_name.items() if not part.any()} == still


# Special cases.


def test_dropout_at_w_is_one_draw_for_descent_and_hessian() -> None:
    """With one mask for both, the product is the derivative of that descent; with two masks it would not be."""
    build = lambda: nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Dropout(0.5), nn.Linear(8, 1), nn.Flatten(0))  # noqa: E731
    torch.manual_seed(4)
    models = [FlatModel(SaddleNetwork(build()), dtype=torch.float64) for _ in range(2)]
    oracle = CompositionalOracle(*models, *data(3)).weigh(PRIOR)
    point = oracle.parameters.clone()
    assert oracle.stochastic

    def composed(z: Tensor) -> tuple[Tensor, Tensor]:
        """Return g(x) and grad g^T q with the masks of seed 7."""
        oracle.parameters.copy_(z)
        torch.manual_seed(7)
        gradient = compose(oracle, XI, 1.0, RHO).clone()
        return oracle.inner.parameters.clone(), gradient

    _, gradient = composed(point)
    torch.manual_seed(7)
    oracle.parameters.copy_(point)
    q = compose(oracle, XI, 1.0, RHO, exact=False).clone()  # the same masks at w and at h
    direction = torch.from_numpy(np.random.default_rng(0).normal(size=len(point)))
    direction[-1] = 0.0
    ahead, behind = (composed(point + sign * 1e-5 * direction)[0] for sign in (1, -1))
    derivative = (ahead - behind) / 2e-5  # the derivative of g along the direction
    assert float(gradient[:-1] @ direction[:-1]) == pytest.approx(float(q[:-1] @ derivative[:-1]), rel=1e-6)
    assert float(q[:-1] @ direction[:-1]) != pytest.approx(float(q[:-1] @ derivative[:-1]), rel=1e-3)
