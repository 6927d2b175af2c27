"""The NumPy reference of the minimax algorithms against finite differences, closed forms and special cases."""

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from . import minimax
from .minimax import Array, Estimator, Index, Problem, Rows, SaddleAUC, SyntheticPL


def make_pl() -> SyntheticPL:
    rng = np.random.default_rng(2)
    centres = rng.normal(0.0, np.sqrt(0.5), (3, 1, 3, 4))
    return SyntheticPL(centres + rng.normal(0.0, np.sqrt(0.1), (3, 6, 3, 4)), nu=0.7, mu=1.3)


def make_auc(score: str = "logit") -> SaddleAUC:
    """Clients of one size with different shares of positives, one without any."""
    rng = np.random.default_rng(4)
    labels = [(np.arange(8) < positives).astype(int) for positives in (3, 0, 5)]
    features = [rng.normal(0.0, 1.0, (8, 3)) + 0.8 * y[:, None] for y in labels]
    return SaddleAUC(features, labels, 8 / 24, score=score)


def point(problem: Problem, seed: int = 0) -> Array:
    return np.random.default_rng(seed).normal(0.0, 0.8, problem.primal_dim + problem.dual_dim)


def random_rows(steps: int, seed: int = 11) -> Rows:
    table = np.random.default_rng(seed).integers(5, size=(8, steps, 2))
    return lambda i, k: table[i, k]


def full_gradient(problem: Problem, z: Array) -> Array:
    return minimax.mean_gradient(problem, range(problem.num_clients))(z)


def ascend_y(problem: Problem, step_primal: float, step_dual: float) -> Array:
    """Written out here on purpose: minus in x, plus in y."""
    return np.array([-step_primal] * problem.primal_dim + [step_dual] * problem.dual_dim)


def numerical_gradient(function: Callable[[Array], float], w: Array, h: float = 1e-5) -> Array:
    return np.array([(function(w + h * e) - function(w - h * e)) / (2.0 * h) for e in np.eye(len(w))])


# Problems.


@pytest.mark.parametrize("problem", [make_pl(), make_auc(), make_auc(score="sigmoid")])
@pytest.mark.parametrize("rows", [None, [0, 4, 4]])
def test_gradients_against_finite_differences(problem: Problem, rows: Index | None) -> None:
    for i in range(problem.num_clients):
        z = point(problem, seed=i)
        expected = numerical_gradient(lambda v, i=i: problem.value(i, v, rows), z)
        np.testing.assert_allclose(problem.gradient(i, z, rows), expected, rtol=1e-6, atol=1e-8)


def test_the_gradient_of_phi_is_that_of_the_maximum_over_y() -> None:
    problem = make_pl()
    x = point(problem)[:4]
    z = np.concatenate([x, problem.maximiser(x)])
    np.testing.assert_allclose(full_gradient(problem, z)[4:], 0.0, atol=1e-12)
    np.testing.assert_allclose(problem.grad_phi(x), numerical_gradient(problem.phi, x), rtol=1e-6)


@pytest.mark.parametrize("score", ["logit", "sigmoid", "tanh"])
def test_at_the_saddle_the_loss_is_the_pairwise_square_loss(score: str) -> None:
    problem = make_auc(score)
    z, tau = point(problem), 8 / 24
    s, labels = np.concatenate([problem.scores(z, X) for X in problem.features]), np.concatenate(problem.labels)
    z[-3:] = minimax.best_saddle(s, labels)
    np.testing.assert_allclose(full_gradient(problem, z)[-3:], 0.0, atol=1e-13)
    value = np.mean([problem.value(i, z) for i in range(3)])
    pairs = np.mean((1.0 - s[labels == 1][:, None] + s[labels == 0]) ** 2)
    assert value / (tau * (1.0 - tau)) + 1.0 == pytest.approx(pairs, rel=1e-12)


# FedSGDA.


def estimates(estimator: Estimator, problem: Problem, sampled: Sequence[Sequence[int]]) -> list[Array]:
    """Along random points, with given clients S'_t."""
    path = [point(problem, t) for t in range(len(sampled))]
    return [
        estimator.update(t, z, path[max(t - 1, 0)], minimax.mean_gradient(problem, clients))
        for t, (z, clients) in enumerate(zip(path, sampled, strict=True))
    ]


SAMPLED = [[0, 1], [2], [0, 2], [1], [2], [1, 2]]
ESTIMATORS: list[Callable[[], Estimator]] = [
    minimax.MiniBatch,
    lambda: minimax.Storm(lambda t: minimax.storm_alpha(0.7, 0.2, t)),
    lambda: minimax.Spider(3),
    lambda: minimax.Svrg(3),
]


def test_estimators_coincide() -> None:
    problem = make_pl()
    plain = estimates(minimax.MiniBatch(), problem, SAMPLED)
    for estimator in (minimax.Storm(lambda t: 1.0), minimax.Spider(1), minimax.Svrg(1)):
        np.testing.assert_array_equal(estimates(estimator, problem, SAMPLED), plain)
    spider = estimates(minimax.Spider(100), problem, SAMPLED)
    np.testing.assert_allclose(estimates(minimax.Storm(lambda t: 0.0), problem, SAMPLED), spider, rtol=1e-10)
    svrg = estimates(minimax.Svrg(100), problem, SAMPLED)
    np.testing.assert_allclose(svrg[:2], spider[:2], rtol=1e-10)
    assert np.abs(svrg[2] - spider[2]).max() > 1e-3
    assert minimax.storm_alpha(10.0, 0.2, 3) == 1.0
    assert minimax.storm_alpha(10.0, 0.2, 999) == pytest.approx(10.0 / 1000.0**0.4)


@pytest.mark.parametrize("make", ESTIMATORS)
def test_all_clients_and_one_local_step_is_descent_ascent(make: Callable[[], Estimator]) -> None:
    problem, estimator = make_pl(), make()
    z = previous = expected = point(problem)
    for t in range(7):
        estimate = estimator.update(t, z, previous, minimax.mean_gradient(problem, [0, 1, 2]))
        np.testing.assert_allclose(estimate, full_gradient(problem, z), atol=1e-10)
        steps = minimax.decayed(0.1, 0.2, t), minimax.decayed(0.3, 0.2, t)
        previous, z = z, minimax.fedsgda_round(problem, z, estimate, [t % 3], random_rows(1), 1, *steps)
        rate = (t + 1) ** -0.2
        expected = expected + ascend_y(problem, 0.1 * rate, 0.3 * rate) * full_gradient(problem, expected)
        np.testing.assert_allclose(z, expected, rtol=1e-11)
