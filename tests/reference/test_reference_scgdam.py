"""The NumPy reference of LocalSCGDAM and its baselines against finite differences, closed forms and special cases."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from . import minimax, scgdam
from .minimax import Array, Index, Rows, SaddleAUC
from .scgdam import CompositionalAUC, Scgdam

NETS = pytest.mark.parametrize("net", ["linear", "tanh"])
SIGMOID = pytest.mark.parametrize("sigmoid", [False, True])
BATCHES = pytest.mark.parametrize("rows", [None, [0, 4, 4], [5]])


def make(
    net: str = "tanh",
    rho: float = 0.4,
    sigmoid: bool = False,
    hessian: str = "exact",
    positives: Sequence[int] = (3, 1, 5),
    sizes: Sequence[int] = (8, 8, 8),
) -> CompositionalAUC:
    """Clients with different shares of positives and different features."""
    rng = np.random.default_rng(4)
    labels = [(np.arange(n) < m).astype(int) for n, m in zip(sizes, positives, strict=True)]
    features = [rng.normal(0.3 * i, 1.0, (len(y), 3)) + 0.8 * y[:, None] for i, y in enumerate(labels)]
    prior = float(np.concatenate(labels).mean())
    return CompositionalAUC(features, labels, prior, rho, sigmoid, hessian, net, hidden=2)


def identical(problem: CompositionalAUC, copies: int) -> CompositionalAUC:
    """`copies` clients that all hold the data of client 0."""
    options = problem.prior, problem.rho, problem.sigmoid, problem.hessian, problem.net, problem.hidden
    return CompositionalAUC(problem.features[:1] * copies, problem.labels[:1] * copies, *options)


def merged(problem: CompositionalAUC) -> CompositionalAUC:
    """One client that holds everybody's data."""
    options = problem.prior, problem.rho, problem.sigmoid, problem.hessian, problem.net, problem.hidden
    return CompositionalAUC([np.concatenate(problem.features)], [np.concatenate(problem.labels)], *options)


def vector(size: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).normal(0.0, 0.8, size)


def start_of(problem: CompositionalAUC, seed: int = 0) -> tuple[Array, Array, None, None, None]:
    z = vector(problem.primal_dim + 1, seed)
    return z[:-1], z[-1:], None, None, None


def weights_of(problem: CompositionalAUC, seed: int = 0) -> Array:
    return vector(problem.num_weights, seed)


def whole(i: int, j: int) -> None:
    return None


def random_rows(steps: int, batch: int = 3, seed: int = 11) -> Rows:
    """The batches of every client differ."""
    table = np.random.default_rng(seed).integers(8, size=(8, steps, batch))
    return lambda i, j: table[i, j]


def shared_rows(steps: int, seed: int = 11) -> Rows:
    """The batches of every client are the same."""
    rows = random_rows(steps, seed=seed)
    return lambda i, j: rows(0, j)


def numerical_gradient(function: Callable[[Array], float], w: Array, h: float = 1e-5) -> Array:
    return np.array([(function(w + h * e) - function(w - h * e)) / (2.0 * h) for e in np.eye(len(w))])


def complex_step(function: Callable[[Any], Any], w: Array) -> Array:
    """(len(w), ...): derivatives of an analytic function without cancellation."""
    return np.array([np.imag(function(w + 1e-30j * e)) / 1e-30 for e in np.eye(len(w))])


def assert_relative(got: Array, expected: Array, tolerance: float = 1e-6) -> None:
    assert np.linalg.norm(got - expected) <= tolerance * np.linalg.norm(expected)


def assert_states(got: tuple[Any, ...], expected: tuple[Any, ...], rtol: float = 1e-12) -> None:
    assert len(got) == len(expected)
    for mine, other in zip(got, expected, strict=True):
        assert np.shape(mine) == np.shape(other)
        np.testing.assert_allclose(mine, other, rtol=rtol, atol=1e-14)


# eta, gamma_x, gamma_y, beta_x, beta_y, alpha
OPTIONS = 0.25, 0.3, 0.5, 1.4, 2.2, 1.8


# Written out a second time, for complex numbers too.


def raw_scores(problem: CompositionalAUC, w: Any, X: Array) -> Any:
    if problem.net == "linear":
        return X @ w[:3] + w[3]
    W, b, o, c = w[:6], w[6:8], w[8:10], w[10]
    return np.array([o[0] * np.tanh(W[:3] @ a + b[0]) + o[1] * np.tanh(W[3:] @ a + b[1]) + c for a in X])


def saddle(problem: CompositionalAUC, i: int, h: Any, y: Any, rows: Index | None) -> Any:
    """(1), the mean over the batch."""
    chosen = np.arange(len(problem.labels[i])) if rows is None else np.asarray(rows)
    s, positive = raw_scores(problem, h, problem.features[i][chosen]), problem.labels[i][chosen] == 1
    s = 1.0 / (1.0 + np.exp(-s)) if problem.sigmoid else s
    p, w1, w2, w3 = problem.prior, h[-2], h[-1], y[0]
    losses = (1 - p) * (s - w1) ** 2 * positive - p * (1 - p) * w3**2 + p * (s - w2) ** 2 * ~positive
    losses = losses + 2.0 * (1.0 + w3) * (p * s * ~positive - (1 - p) * s * positive)
    return np.mean(losses)


# Problem.


@SIGMOID
def test_sizes_and_names(sigmoid: bool) -> None:
    linear, tanh = make("linear", sigmoid=sigmoid), make("tanh", sigmoid=sigmoid)
    assert (linear.num_weights, linear.primal_dim, linear.dual_dim, linear.num_clients) == (4, 6, 1, 3)
    assert (tanh.num_weights, tanh.primal_dim, tanh.dual_dim, tanh.num_clients) == (11, 13, 1, 3)
    with pytest.raises(ValueError, match="relu"):
        make("relu")
    with pytest.raises(ValueError, match="exakt"):
        make(hessian="exakt")


@NETS
@SIGMOID
@BATCHES
def test_outer_function_is_the_saddle_function(net: str, sigmoid: bool, rows: Index | None) -> None:
    problem = make(net, sigmoid=sigmoid)
    for i in range(3):
        x, y, *_ = start_of(problem, i)
        assert problem.outer(i, x, y, rows) == pytest.approx(saddle(problem, i, x, y, rows), rel=1e-12)
        assert problem.value(i, np.concatenate([x, y]), rows) == problem.outer(i, x, y, rows)
        grad_h, grad_y = problem.outer_gradient(i, x, y, rows)
        assert grad_h.shape == x.shape
        assert grad_y.shape == (1,)
        assert_relative(grad_h, complex_step(lambda h, i=i, y=y: saddle(problem, i, h, y, rows), x), 1e-13)
        assert_relative(grad_y, complex_step(lambda y, i=i, x=x: saddle(problem, i, x, y, rows), y), 1e-13)
        assert_relative(grad_h, numerical_gradient(lambda h, i=i, y=y: problem.outer(i, h, y, rows), x))
        assert_relative(grad_y, numerical_gradient(lambda y, i=i, x=x: problem.outer(i, x, y, rows), y))


@SIGMOID
@BATCHES
def test_the_linear_net_is_the_linear_saddle_problem(sigmoid: bool, rows: Index | None) -> None:
    problem = make("linear", sigmoid=sigmoid)
    plain = SaddleAUC(problem.features, problem.labels, problem.prior, sigmoid)
    assert (plain.primal_dim, plain.dual_dim) == (problem.primal_dim, problem.dual_dim)
    for i in range(3):
        z = vector(7, i)
        assert problem.value(i, z, rows) == pytest.approx(plain.value(i, z, rows), rel=1e-13)
        np.testing.assert_allclose(problem.gradient(i, z, rows), plain.gradient(i, z, rows), rtol=1e-12, atol=1e-14)


@NETS
@BATCHES
def test_cross_entropy_is_its_definition(net: str, rows: Index | None) -> None:
    for sigmoid in (False, True):
        problem = make(net, sigmoid=sigmoid)
        w = weights_of(problem)
        X, labels = problem.samples(1, rows)
        r = 1.0 / (1.0 + np.exp(-raw_scores(problem, w, X)))
        expected = -np.mean([np.log(p) if label == 1 else np.log(1.0 - p) for p, label in zip(r, labels, strict=True)])
        assert problem.cross_entropy(1, w, rows) == pytest.approx(expected, rel=1e-12)


def test_cross_entropy_of_large_scores_is_finite() -> None:
    problem = make("linear")
    w = 1e4 * np.ones(4)
    assert np.isfinite(problem.cross_entropy(0, w))
    assert np.isfinite(problem.ce_gradient(0, w)).all()
    assert np.isfinite(problem.ce_hessian_vector(0, w, w)).all()


@NETS
@BATCHES
def test_cross_entropy_gradient_and_hessian_vector_product(net: str, rows: Index | None) -> None:
    problem = make(net)
    for i in range(3):
        w, q = weights_of(problem, i), weights_of(problem, i + 10)
        gradient = problem.ce_gradient(i, w, rows)
        assert_relative(gradient, numerical_gradient(lambda v, i=i: problem.cross_entropy(i, v, rows), w))
        product = problem.ce_hessian_vector(i, w, q, rows)
        hessian = complex_step(lambda v, i=i: problem.ce_gradient(i, v, rows), w)
        np.testing.assert_allclose(hessian, hessian.T, atol=1e-15)
        assert_relative(product, hessian @ q, 1e-13)
        along = [problem.ce_gradient(i, w + s * 1e-5 * q, rows) for s in (1.0, -1.0)]
        assert_relative(product, (along[0] - along[1]) / 2e-5)


@NETS
def test_inner_function_is_a_gradient_step_on_the_weights_alone(net: str) -> None:
    problem, rows = make(net, rho=0.4), [0, 2, 7]
    x = start_of(problem)[0]
    w = x[:-2]
    step = numerical_gradient(lambda v: problem.cross_entropy(1, v, rows), w)
    inner = problem.inner(1, x, rows)
    np.testing.assert_allclose(inner[:-2], w - 0.4 * step, atol=1e-9)
    np.testing.assert_array_equal(inner[-2:], x[-2:])
    np.testing.assert_array_equal(make(net, rho=0.0).inner(1, x, rows), x)
    assert np.linalg.norm(inner - x) > 0.01


@NETS
@SIGMOID
@pytest.mark.parametrize("rows_f", [None, [0, 2, 7], [1, 6]])
def test_compositional_gradient_is_the_gradient_through_the_inner_step(
    net: str, sigmoid: bool, rows_f: Index | None
) -> None:
    problem, rows_g = make(net, sigmoid=sigmoid), [0, 2, 7]
    x, y, *_ = start_of(problem)
    h = problem.inner(2, x, rows_g)
    got = problem.compositional_gradient(2, x, h, y, rows_g, rows_f)
    through = complex_step(lambda v: saddle(problem, 2, problem.inner(2, v, rows_g), y, rows_f), x)
    assert_relative(got, through, 1e-12)
    through = numerical_gradient(lambda v: problem.outer(2, problem.inner(2, v, rows_g), y, rows_f), x)
    assert_relative(got, through)


@NETS
def test_compositional_gradient_takes_the_hessian_at_x_and_the_outer_gradient_at_h(net: str) -> None:
    exact, identity = make(net), make(net, hessian="identity")
    x, y, *_ = start_of(exact)
    h = vector(len(x), 7)
    q = exact.outer_gradient(1, h, y, [1, 4])[0]
    matrix = np.eye(len(x))
    matrix[:-2, :-2] -= 0.4 * complex_step(lambda w: exact.ce_gradient(1, w, [0, 5]), x[:-2])
    got = exact.compositional_gradient(1, x, h, y, [0, 5], [1, 4])
    np.testing.assert_allclose(got, matrix.T @ q, rtol=1e-12, atol=1e-14)
    shortcut = identity.compositional_gradient(1, x, h, y, [0, 5], [1, 4])
    np.testing.assert_array_equal(shortcut, q)
    assert np.linalg.norm(got - shortcut) > 0.01
    np.testing.assert_array_equal(got[-2:], shortcut[-2:])
    np.testing.assert_array_equal(make(net, rho=0.0).compositional_gradient(1, x, h, y, [0, 5], [1, 4]), q)


@NETS
@SIGMOID
def test_at_the_saddle_the_loss_is_the_pairwise_square_loss(net: str, sigmoid: bool) -> None:
    problem = make(net, sigmoid=sigmoid)
    z = np.concatenate(start_of(problem)[:2])
    scores = np.concatenate([problem.scores(z, X) for X in problem.features])
    labels, p = np.concatenate(problem.labels), problem.prior
    w1, w2 = scores[labels == 1].mean(), scores[labels == 0].mean()
    z[-3:] = w1, w2, w2 - w1
    np.testing.assert_array_equal(z[-3:], minimax.best_saddle(scores, labels))
    gradient = np.mean([problem.gradient(i, z) for i in range(3)], axis=0)
    np.testing.assert_allclose(gradient[-3:], 0.0, atol=1e-13)
    value = np.mean([problem.value(i, z) for i in range(3)])
    pairs = np.mean([(1.0 - s + t) ** 2 for s in scores[labels == 1] for t in scores[labels == 0]])
    assert value / (p * (1.0 - p)) + 1.0 == pytest.approx(pairs, rel=1e-12)


# LocalSCGDAM.


@NETS
@SIGMOID
def test_without_an_inner_step_and_without_memory_of_h_it_is_localsgdam(net: str, sigmoid: bool) -> None:
    problem, batches = make(net, 0.0, sigmoid), random_rows(13)
    others = [problem]
    if net == "linear":
        others.append(SaddleAUC(problem.features, problem.labels, problem.prior, sigmoid))
    eta, gamma_x, gamma_y, beta_x, beta_y, _ = OPTIONS
    for other in others:
        state: Any = start_of(problem)
        z, momentum = np.concatenate(state[:2]), None
        for r, clients in enumerate([[0, 1, 2], [1], [2, 0], [0, 1, 2]]):
            state = scgdam.localscgdam_round(problem, state, clients, batches, 3, 3 * r, *OPTIONS[:5], 1.0 / eta)
            z, momentum = minimax.localsgdam_round(
                other, z, momentum, clients, batches, 3, 3 * r, eta, gamma_x, gamma_y, beta_x, beta_y
            )
            assert_states(state, (z[:-1], z[-1:], z[:-1], momentum[:-1], momentum[-1:]))


@NETS
def test_without_any_memory_one_device_is_coda(net: str) -> None:
    problem, batches, eta, K = make(net, 0.0), random_rows(13), 0.25, 3
    state: Any = start_of(problem)
    z = np.concatenate(state[:2])
    for r in range(4):
        state = scgdam.localscgdam_round(
            problem, state, [1], batches, K, K * r, eta, 0.3, 0.5, 1.0 / eta, 1.0 / eta, 1.0 / eta
        )
        rows = lambda i, k, r=r: batches(i, K * r + k)  # noqa: E731
        z = minimax.coda_round(problem, z, [1], rows, K, 0.3 * eta, 0.5 * eta, 0.0, np.zeros_like(z))
        np.testing.assert_allclose(np.concatenate(state[:2]), z, rtol=1e-12)
        momentum = problem.gradient(1, z, batches(1, K * (r + 1)))
        assert_states(state, (z[:-1], z[-1:], z[:-1], momentum[:-1], momentum[-1:]))


@NETS
def test_without_any_memory_one_device_is_descent_ascent_through_the_inner_step(net: str) -> None:
    problem, batches, eta = make(net), random_rows(13), 0.25
    state: Any = start_of(problem)
    x, y = state[:2]
    for r in range(3):
        state = scgdam.localscgdam_round(
            problem, state, [2], batches, 3, 3 * r, eta, 0.3, 0.5, 1.0 / eta, 1.0 / eta, 1.0 / eta
        )
        for j in range(3 * r, 3 * r + 3):
            rows = batches(2, j)
            inner = problem.inner(2, x, rows)
            grad_y = complex_step(lambda v, h=inner, rows=rows: saddle(problem, 2, h, v, rows), y)
            grad_x = complex_step(lambda v, y=y, rows=rows: saddle(problem, 2, problem.inner(2, v, rows), y, rows), x)
            x, y = x - 0.3 * eta * grad_x, y + 0.5 * eta * grad_y
        assert_states(state[:2], (x, y), 1e-11)
        assert_states(state[2:3], (problem.inner(2, x, batches(2, 3 * r + 3)),), 1e-11)


def test_two_steps_of_one_device_by_hand() -> None:
    problem = make()
    eta, gamma_x, gamma_y, beta_x, beta_y, alpha = OPTIONS
    x, y, *_ = start_of(problem)
    xi, zeta = random_rows(3), random_rows(3, seed=12)
    state = scgdam.localscgdam_round(problem, (x, y, None, None, None), [1], xi, 2, 0, *OPTIONS, zeta)
    f = lambda x, h, y, j: (  # noqa: E731
        problem.compositional_gradient(1, x, h, y, xi(1, j), zeta(1, j)),
        problem.outer_gradient(1, h, y, zeta(1, j))[1],
    )
    h0 = problem.inner(1, x, xi(1, 0))
    u0, v0 = f(x, h0, y, 0)
    x1, y1 = x - 0.075 * u0, y + 0.125 * v0
    h1 = 0.55 * h0 + 0.45 * problem.inner(1, x1, xi(1, 1))
    a, b = f(x1, h1, y1, 1)
    u1, v1 = 0.65 * u0 + 0.35 * a, 0.45 * v0 + 0.55 * b
    x2, y2 = x1 - 0.075 * u1, y1 + 0.125 * v1
    h2 = 0.55 * h1 + 0.45 * problem.inner(1, x2, xi(1, 2))
    a, b = f(x2, h2, y2, 2)
    u2, v2 = 0.65 * u1 + 0.35 * a, 0.45 * v1 + 0.55 * b
    assert_states(state, (x2, y2, h2, u2, v2))
    assert eta * np.array([gamma_x, gamma_y, beta_x, beta_y, alpha]) == pytest.approx([0.075, 0.125, 0.35, 0.55, 0.45])


def test_batches_are_counted_over_the_run() -> None:
    problem, batches, seconds = make(), random_rows(5), random_rows(5, seed=12)
    asked: list[tuple[str, int, int]] = []

    def recorded(name: str, rows: Rows) -> Rows:
        def ask(i: int, j: int) -> Index | None:
            asked.append((name, i, j))
            return rows(i, j)

        return ask

    xi, zeta = recorded("xi", batches), recorded("zeta", seconds)
    state = scgdam.localscgdam_round(problem, start_of(problem), [0, 2], xi, 2, 0, *OPTIONS, zeta)
    assert sorted(asked) == sorted((name, i, j) for name in ("xi", "zeta") for i in (0, 2) for j in (0, 1, 2))
    asked.clear()
    scgdam.localscgdam_round(problem, state, [1], xi, 2, 2, *OPTIONS)
    assert set(asked) == {("xi", 1, 3), ("xi", 1, 4)}


def test_a_second_batch_serves_the_outer_function_only() -> None:
    problem, batches = make(), random_rows(4)
    start = start_of(problem)
    same = scgdam.localscgdam_round(problem, start, [0, 1], batches, 3, 0, *OPTIONS)
    assert_states(scgdam.localscgdam_round(problem, start, [0, 1], batches, 3, 0, *OPTIONS, batches), same)
    other = scgdam.localscgdam_round(problem, start, [0, 1], batches, 3, 0, *OPTIONS, random_rows(4, seed=12))
    for mine, yours in zip(same, other, strict=True):
        assert np.linalg.norm(mine - yours) > 1e-4


def test_devices_agree_after_a_communication_and_not_between() -> None:
    problem, batches, clients = make(), random_rows(7), [0, 1, 2]
    state: Any = start_of(problem)
    for r in range(3):
        alone = [scgdam.localscgdam_round(problem, state, [i], batches, 2, 2 * r, *OPTIONS) for i in clients]
        for parts in zip(*alone, strict=True):
            for i, j in ((0, 1), (0, 2), (1, 2)):
                assert np.linalg.norm(parts[i] - parts[j]) > 1e-6
        state = scgdam.localscgdam_round(problem, state, clients, batches, 2, 2 * r, *OPTIONS)
        assert_states(state, tuple(sum(parts) / 3.0 for parts in zip(*alone, strict=True)))


def test_with_one_step_between_communications_devices_move_together() -> None:
    problem, batches, clients = make(), random_rows(7), [0, 1, 2]
    eta, gamma_x, gamma_y, *_ = OPTIONS
    state = scgdam.localscgdam_round(problem, start_of(problem), clients, batches, 1, 0, *OPTIONS)
    for t in range(1, 6):
        before = state
        state = scgdam.localscgdam_round(problem, state, clients, batches, 1, t, *OPTIONS)
        assert_states(state[:2], (before.x - gamma_x * eta * before.u, before.y + gamma_y * eta * before.v))
    longer = scgdam.localscgdam_round(problem, start_of(problem), clients, batches, 6, 0, *OPTIONS)
    assert np.linalg.norm(longer.x - state.x) > 1e-5


@pytest.mark.parametrize("K", [1, 2, 6])
@pytest.mark.parametrize("hessian", ["exact", "identity"])
def test_identical_devices_and_batches_are_one_device_for_any_period(K: int, hessian: str) -> None:
    problem, rows, seconds = make(hessian=hessian), shared_rows(7), shared_rows(7, seed=12)
    twins = identical(problem, 3)
    state: Any = start_of(problem)
    one = scgdam.localscgdam_round(problem, state, [0], rows, 6, 0, *OPTIONS, seconds)
    for start in range(0, 6, K):
        state = scgdam.localscgdam_round(twins, state, [0, 1, 2], rows, K, start, *OPTIONS, seconds)
    assert_states(state, one)


def test_one_device_rests_at_the_saddle_of_the_compositional_problem() -> None:
    problem = merged(make("linear", rho=0.2))
    state: Any = start_of(problem)
    for r in range(150):
        state = scgdam.localscgdam_round(problem, state, [0], whole, 8, 8 * r, 0.3, 1.0, 1.0, 3.0, 3.0, 3.0)
    X, labels, p = problem.features[0], problem.labels[0], problem.prior
    np.testing.assert_allclose(state.h, problem.inner(0, state.x), atol=1e-7)
    s = problem.scores(state.h, X)
    assert [state.x[-2], state.x[-1], state.y[0]] == pytest.approx(minimax.best_saddle(s, labels), abs=1e-6)
    pairs = np.mean([(1.0 - a + b) ** 2 for a in s[labels == 1] for b in s[labels == 0]])
    assert problem.outer(0, state.h, state.y) / (p * (1.0 - p)) + 1.0 == pytest.approx(pairs, rel=1e-9)
    positive, negative = X[labels == 1], X[labels == 0]
    gap = positive.mean(axis=0) - negative.mean(axis=0)
    scatter = np.cov(positive.T, bias=True) + np.cov(negative.T, bias=True) + np.outer(gap, gap)
    best = np.linalg.solve(scatter, gap)  # least squares over the pairs
    np.testing.assert_allclose(state.h[:3], best, atol=1e-5)


# Ratio loss.


def test_ratio_weights() -> None:
    np.testing.assert_allclose(scgdam.ratio_weights([90, 10]), [1.0 + 0.1 / 9.0, 1.9], rtol=1e-13)
    np.testing.assert_allclose(scgdam.ratio_weights([20, 30], 0.5, 2.0), [3.5, 0.5 + 4.0 / 3.0], rtol=1e-13)
    np.testing.assert_allclose(scgdam.ratio_weights([7, 7]), [1.1, 1.1], rtol=1e-13)
    np.testing.assert_allclose(scgdam.ratio_weights(np.array([900, 100])), scgdam.ratio_weights([90, 10]), rtol=1e-13)
    np.testing.assert_array_equal(scgdam.ratio_weights([90, 10], 1.0, 0.0), [1.0, 1.0])
    for counts in ([0, 5], [5, 0]):
        with pytest.raises(ValueError, match="both classes"):
            scgdam.ratio_weights(counts)


@NETS
@BATCHES
def test_ratio_loss_and_its_gradient(net: str, rows: Index | None) -> None:
    problem = make(net)
    weights = scgdam.ratio_weights([15, 9], 0.7, 0.6)
    for i in range(3):
        w = weights_of(problem, i)
        chosen = range(8) if rows is None else rows
        losses = [
            (0.7 + 0.6 * (9 / 15, 15 / 9)[problem.labels[i][j]]) * problem.cross_entropy(i, w, [j]) for j in chosen
        ]
        assert scgdam.ratio_loss(problem, i, w, weights, rows) == pytest.approx(sum(losses) / len(losses), rel=1e-12)
        expected = numerical_gradient(lambda v, i=i: scgdam.ratio_loss(problem, i, v, weights, rows), w)
        assert_relative(scgdam.ratio_gradient(problem, i, w, weights, rows), expected)
        ones = np.ones(2)
        assert scgdam.ratio_loss(problem, i, w, ones, rows) == pytest.approx(problem.cross_entropy(i, w, rows))
        np.testing.assert_allclose(
            scgdam.ratio_gradient(problem, i, w, ones, rows), problem.ce_gradient(i, w, rows), rtol=1e-13, atol=1e-16
        )


# Local SGD with momentum.


def descend(problem: CompositionalAUC, i: int, w: Array, rows: Rows, rates: Sequence[float], first: int = 0) -> Array:
    """SGD on the cross-entropy of one client."""
    for k, rate in enumerate(rates):
        w = w - rate * problem.ce_gradient(i, w, rows(i, first + k))
    return w


@NETS
def test_local_sgdm_without_memory_is_local_sgd(net: str) -> None:
    problem, rows, clients = make(net), random_rows(9), [0, 2]
    w, m = weights_of(problem), None
    expected = w
    for r in range(3):
        w, m = scgdam.localsgdm_round(problem, w, m, clients, rows, 3, 3 * r, 0.3, 1.0)
        expected = np.mean([descend(problem, i, expected, rows, [0.3] * 3, 3 * r) for i in clients], axis=0)
        np.testing.assert_allclose(w, expected, rtol=1e-12)


@pytest.mark.parametrize("weights", [None, np.array([1.2, 1.9])])
def test_local_sgdm_momentum_is_a_moving_average_of_the_gradients(weights: Array | None) -> None:
    problem, rows = make(), random_rows(6)
    w, m = weights_of(problem), None
    path, scale = [w], np.ones(2) if weights is None else weights
    for t in range(6):
        w, m = scgdam.localsgdm_round(problem, w, m, [1], rows, 1, t, 0.5, 0.1, weights)
        gradients = [
            numerical_gradient(lambda v, s=s: scgdam.ratio_loss(problem, 1, v, scale, rows(1, s)), path[s])
            for s in range(t + 1)
        ]
        parts = [0.9**t * gradients[0], *(0.1 * 0.9 ** (t - s) * gradients[s] for s in range(1, t + 1))]
        assert_relative(m, sum(parts))
        np.testing.assert_allclose(w, path[-1] - 0.5 * m, rtol=1e-13)
        path.append(w)
    longer = scgdam.localsgdm_round(problem, path[0], None, [1], rows, 6, 0, 0.5, 0.1, weights)
    assert_states(longer, (w, m))


def test_local_sgdm_averages_weights_and_momenta() -> None:
    problem, rows = make(), random_rows(6)
    first = scgdam.localsgdm_round(problem, weights_of(problem), None, [0, 1, 2], rows, 3, 0, 0.5, 0.1)
    alone = [scgdam.localsgdm_round(problem, *first, [i], rows, 3, 3, 0.5, 0.1) for i in (2, 1)]
    both = scgdam.localsgdm_round(problem, *first, [2, 1], rows, 3, 3, 0.5, 0.1)
    assert_states(both, tuple((a + b) / 2.0 for a, b in zip(*alone, strict=True)))
    assert np.linalg.norm(alone[0][1] - alone[1][1]) > 1e-3
    twins = identical(problem, 3)
    many = scgdam.localsgdm_round(twins, *first, [0, 1, 2], shared_rows(6), 3, 3, 0.5, 0.1)
    assert_states(many, scgdam.localsgdm_round(twins, *first, [0], shared_rows(6), 3, 3, 0.5, 0.1))


def test_local_sgdm_with_the_ratio_loss_of_equal_weights_is_a_longer_step() -> None:
    problem, rows = make(), random_rows(6)
    w = weights_of(problem)
    equal = scgdam.ratio_weights([5, 5], 1.0, 0.5)
    found = scgdam.localsgdm_round(problem, w, None, [0, 1], rows, 3, 0, 0.2, 0.1, equal)
    longer = scgdam.localsgdm_round(problem, w, None, [0, 1], rows, 3, 0, 0.3, 0.1)
    np.testing.assert_allclose(found[0], longer[0], rtol=1e-12)
    np.testing.assert_allclose(found[1], 1.5 * longer[1], rtol=1e-11)
    rare = scgdam.localsgdm_round(problem, w, None, [0, 1], rows, 3, 0, 0.2, 0.1, scgdam.ratio_weights([9, 1]))
    assert np.linalg.norm(rare[0] - found[0]) > 1e-3


# SCAFFOLD.


class CrossEntropy:
    """The cross-entropy as a minimax problem without a dual."""

    def __init__(self, problem: CompositionalAUC) -> None:
        self.value, self.gradient = problem.cross_entropy, problem.ce_gradient
        self.primal_dim, self.dual_dim, self.num_clients = problem.num_weights, 0, problem.num_clients


def test_scaffold_with_one_client_is_sgd() -> None:
    problem = merged(make())
    state = scgdam.scaffold_start(problem, weights_of(problem))
    expected = state.w
    for r in range(4):
        rows = random_rows(3, seed=r)
        state = scgdam.scaffold_round(problem, state, [0], rows, 3, [0.4, 0.2, 0.1])
        expected = descend(problem, 0, expected, rows, [0.4, 0.2, 0.1])
        np.testing.assert_allclose(state.w, expected, rtol=1e-12)
        np.testing.assert_allclose(state.controls[0], state.control, rtol=1e-12)


def test_scaffold_with_identical_clients_is_sgd() -> None:
    problem = identical(make(), 3)
    state = scgdam.scaffold_start(problem, weights_of(problem))
    expected = state.w
    for r in range(4):
        rows = shared_rows(3, seed=r)
        state = scgdam.scaffold_round(problem, state, [0, 1, 2], rows, 3, 0.4)
        expected = descend(problem, 0, expected, rows, [0.4] * 3)
        np.testing.assert_allclose(state.w, expected, rtol=1e-12)


@NETS
def test_scaffold_is_codasca_without_a_dual(net: str) -> None:
    problem = make(net)
    wrapped = CrossEntropy(problem)
    state = scgdam.scaffold_start(problem, weights_of(problem))
    other = minimax.codasca_start(wrapped, state.w)
    for r, clients in enumerate([[0, 1], [2], [1, 2, 0], [2, 0]]):
        rows = random_rows(3, seed=r)
        state = scgdam.scaffold_round(problem, state, clients, rows, 3, 0.4, 0.7)
        other = minimax.codasca_round(wrapped, other, clients, rows, 3, 0.4, 0.0, 0.0, other.z, 0.7)
        assert_states(state, other, 1e-11)


def test_scaffold_controls() -> None:
    problem, rates = make(), np.array([0.4, 0.1, 0.3])
    state = scgdam.scaffold_start(problem, weights_of(problem))
    np.testing.assert_array_equal(state.control, np.zeros(11))
    np.testing.assert_array_equal(state.controls, np.zeros((3, 11)))
    for r, clients in enumerate([[0, 1], [1, 2], [2], [0, 1, 2], [0]]):
        rows = random_rows(3, seed=r)
        after = scgdam.scaffold_round(problem, state, clients, rows, 3, rates, 0.7)
        ends = []
        for i in range(3):
            if i not in clients:
                np.testing.assert_array_equal(after.controls[i], state.controls[i])
                continue
            w, total = state.w, np.zeros(11)
            for k in range(3):  # the new control is the mean of the gradients, weighted by the rates
                g = problem.ce_gradient(i, w, rows(i, k))
                total += rates[k] * g
                w = w - rates[k] * (g - state.controls[i] + state.control)
            np.testing.assert_allclose(after.controls[i], total / 0.8, rtol=1e-11, atol=1e-14)
            ends.append(w)
        np.testing.assert_allclose(after.w, 0.3 * state.w + 0.7 * np.mean(ends, axis=0), rtol=1e-12)
        np.testing.assert_allclose(after.control, after.controls.sum(axis=0) / 3.0, rtol=1e-11, atol=1e-14)
        state = after
    assert len({tuple(c) for c in state.controls}) == 3


def test_scaffold_finds_the_minimiser_of_unequal_clients_where_local_sgd_does_not() -> None:
    problem = make("linear", positives=(6, 1, 4))
    state = scgdam.scaffold_start(problem, weights_of(problem))
    w, m = state.w, None
    for r in range(450):
        state = scgdam.scaffold_round(problem, state, [0, 1, 2], whole, 4, 0.4)
        w, m = scgdam.localsgdm_round(problem, w, m, [0, 1, 2], whole, 4, 4 * r, 0.4, 1.0)
    gradient = lambda w: np.mean([problem.ce_gradient(i, w) for i in range(3)], axis=0)  # noqa: E731
    np.testing.assert_allclose(gradient(state.w), 0.0, atol=1e-8)
    np.testing.assert_allclose(state.controls, [problem.ce_gradient(i, state.w) for i in range(3)], atol=1e-7)
    assert np.linalg.norm(gradient(w)) > 1e-3


# FedProx.


def test_fedprox_without_proximal_term_is_local_sgd_weighted_by_samples() -> None:
    problem = make(sizes=(8, 20, 11))
    rows, clients, w = random_rows(3), [2, 0], weights_of(problem)
    ends = {i: descend(problem, i, w, rows, [0.3, 0.2, 0.1]) for i in range(3)}
    found = scgdam.fedprox_round(problem, w, clients, rows, 3, [0.3, 0.2, 0.1], 0.0)
    np.testing.assert_allclose(found, (11 * ends[2] + 8 * ends[0]) / 19, rtol=1e-12)
    found = scgdam.fedprox_round(problem, w, [0, 1, 2], rows, 3, [0.3, 0.2, 0.1], 0.0, [1, 4, 3])
    np.testing.assert_allclose(found, (ends[0] + 4 * ends[1] + 3 * ends[2]) / 8, rtol=1e-12)


def test_fedprox_local_steps() -> None:
    problem, rows, w = make(), random_rows(3), weights_of(make())
    w_k = w
    for k, rate in enumerate([0.3, 0.2, 0.1]):
        proximal = lambda v, k=k: problem.cross_entropy(1, v, rows(1, k)) + 0.35 * np.sum((v - w) ** 2)  # noqa: E731
        w_k = w_k - rate * numerical_gradient(proximal, w_k)
    found = scgdam.fedprox_round(problem, w, [1], rows, 3, [0.3, 0.2, 0.1], 0.7)
    np.testing.assert_allclose(found, w_k, atol=1e-8)


def test_fedprox_with_a_large_proximal_term_stays_near() -> None:
    problem, w = make(), weights_of(make())
    clients = [0, 1, 2]
    free = np.linalg.norm(scgdam.fedprox_round(problem, w, clients, whole, 40, 0.02, 0.0) - w)
    distances = [
        float(np.linalg.norm(scgdam.fedprox_round(problem, w, clients, whole, 40, 0.02, mu) - w)) for mu in (5.0, 40.0)
    ]
    assert free > 2.0 * distances[0] > 8.0 * distances[1]
    largest = max(float(np.linalg.norm(problem.ce_gradient(i, w))) for i in clients)
    assert distances[1] < 1.1 * largest / 40.0


def test_fedprox_of_one_client_rests_where_the_pull_balances_the_gradient() -> None:
    problem, w = make(), weights_of(make())
    found = scgdam.fedprox_round(problem, w, [2], whole, 300, 0.3, 0.8)
    np.testing.assert_allclose(problem.ce_gradient(2, found) + 0.8 * (found - w), 0.0, atol=1e-10)


# All of them at once.


def test_rates_are_one_or_one_a_step() -> None:
    problem, rows, w = make(), random_rows(3), weights_of(make())
    start = scgdam.scaffold_start(problem, w)
    for lr in ([0.2] * 3, np.full(3, 0.2)):
        assert_states(
            scgdam.localsgdm_round(problem, w, None, [0], rows, 3, 0, lr, 0.1),
            scgdam.localsgdm_round(problem, w, None, [0], rows, 3, 0, 0.2, 0.1),
        )
        assert_states(
            scgdam.scaffold_round(problem, start, [0], rows, 3, lr),
            scgdam.scaffold_round(problem, start, [0], rows, 3, 0.2),
        )
        np.testing.assert_array_equal(
            scgdam.fedprox_round(problem, w, [0], rows, 3, lr, 0.1),
            scgdam.fedprox_round(problem, w, [0], rows, 3, 0.2, 0.1),
        )
    with pytest.raises(ValueError, match="shape"):
        scgdam.fedprox_round(problem, w, [0], rows, 3, [0.2, 0.1], 0.1)
    falling = scgdam.localsgdm_round(problem, w, None, [0], rows, 3, 0, [0.3, 0.2, 0.1], 1.0)[0]
    np.testing.assert_allclose(falling, descend(problem, 0, w, rows, [0.3, 0.2, 0.1]), rtol=1e-13)


def test_arguments_are_left_alone() -> None:
    problem, rows = make(), random_rows(6)
    x, y, *_ = start_of(problem)
    state = Scgdam(x, y, vector(13, 1), vector(13, 2), vector(1, 3))
    w, m = weights_of(problem, 4), weights_of(problem, 5)
    scaffold = scgdam.Scaffold(w, m, np.stack([weights_of(problem, 6 + i) for i in range(3)]))
    arrays = [*state, *scaffold, *problem.features]
    copies = [array.copy() for array in arrays]
    scgdam.localscgdam_round(problem, state, [0, 1], rows, 3, 0, *OPTIONS)
    scgdam.localsgdm_round(problem, w, m, [0, 1], rows, 3, 0, 0.3, 0.1)
    scgdam.scaffold_round(problem, scaffold, [0, 1], rows, 3, 0.3)
    scgdam.fedprox_round(problem, w, [0, 1], rows, 3, 0.3, 0.2)
    for array, copy in zip(arrays, copies, strict=True):
        np.testing.assert_array_equal(array, copy)
