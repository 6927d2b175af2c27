"""Plain NumPy reference of composite federated learning and of four other methods, in float64, one function a round.

Source: "Composite Federated Learning with Heterogeneous Data": problem (1), Algorithm 1, problem (6). Other methods:
FedMid and FedDA (Federated Mirror Descent and Federated Dual Averaging of Yuan, Zaheer, Reddi, ICML 2021), Fast-FedDA
(Bao, Crawshaw, Luo, Liu, ICML 2022), FedCanon as derived in methods/fedcanon.py. The data: Synthetic(alpha, beta) of Li
et al. (MLSys 2020), made binary.

min_x f(x) + g(x), f = the mean over the clients of f_i, weighted by `Smooth.shares`, g convex, known by its prox: a
`prox(x, step)` returns P_{step g}(x) = argmin_u step g(u) + ||x - u||^2 / 2 for x (d,).

    symbol in the paper                        name here
    n, m, d; theta_1, theta_2                  `num_clients`, samples a client, `dim`; weight of `l1`, `ridge`
    tau, eta, eta_g, eta~ = eta eta_g tau      `tau`, `eta`, `eta_g`, `Composite.step`
    x_bar^r; P_{eta~ g}(x_bar^r)               `Composite.x_bar`; `composite_point`
    z_hat_{i,t}, z_{i,t}                       `z_hat`, `z`
    c_i^r; mean over t of grad f_i(z_{i,t})    `Composite.corrections`; `Composite.gradients`
    B_{i,t}                                    `rows(i, t)`

Difference from the paper: the ridge of (6) is part of every f_i, so g is the l1 norm alone; eta may change from round
to round.

Nothing is random in the algorithms: the caller supplies rows(client, t), the samples of the batch of that client at
local step t of the round, None for all of them; t counts from 0 in every round. `synthetic` takes its generator.
Averages over clients are weighted as f: plain in the paper, by the numbers of samples here unless these are equal. No
argument is changed in place.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from .minimax import Array, Index, Rows

Prox = Callable[[Array, float], Array]  # x (d,), step -> (d,)


# Problem.


class Smooth:
    """f of (6): features[i] (n_i, d), labels[i] (n_i,); f_i = mean over the samples of the loss + ridge/2 ||x||^2.

    loss "logistic": ln(1 + exp(-b a.x)), b in {-1, +1}; "squared": (a.x - b)^2 / 2.
    """

    def __init__(
        self, features: Sequence[Array], labels: Sequence[Array], ridge: float = 0.0, loss: str = "logistic"
    ) -> None:
        self.features = [np.asarray(A, dtype=np.float64) for A in features]
        self.labels = [np.asarray(b, dtype=np.float64) for b in labels]
        self.ridge, self.loss = ridge, loss
        self.num_clients, self.dim = len(self.features), self.features[0].shape[1]
        self.shares = np.array([len(b) for b in self.labels]) / sum(len(b) for b in self.labels)  # (N,)

    def samples(self, i: int, rows: Index | None = None) -> tuple[Array, Array]:
        """Return the chosen samples: features (rows, d), labels (rows,)."""
        chosen = slice(None) if rows is None else np.asarray(rows, dtype=int)
        return self.features[i][chosen], self.labels[i][chosen]

    def value(self, i: int, x: Array, rows: Index | None = None) -> float:
        """Return f_i(x), the mean over the samples `rows`."""
        A, b = self.samples(i, rows)
        s = A @ x
        losses = np.logaddexp(0.0, -b * s) if self.loss == "logistic" else (s - b) ** 2 / 2.0
        return float(losses.mean() + self.ridge / 2.0 * (x @ x))

    def gradient(self, i: int, x: Array, rows: Index | None = None) -> Array:
        """Return grad f_i(x), (d,)."""
        A, b = self.samples(i, rows)
        s = A @ x
        slopes = -b * (1.0 - np.tanh(b * s / 2.0)) / 2.0 if self.loss == "logistic" else s - b
        return slopes @ A / len(b) + self.ridge * x

    def mean_gradient(self, x: Array) -> Array:
        """Return grad f(x), (d,)."""
        return self.shares @ np.array([self.gradient(i, x) for i in range(self.num_clients)])

    def smoothness(self) -> float:
        """Return L of f: the largest eigenvalue of the clients' mean a a^T, / 4 if logistic."""
        moments = [features.T @ features / len(features) for features in self.features]
        second = np.average(moments, axis=0, weights=self.shares)
        curvature = 0.25 if self.loss == "logistic" else 1.0
        return float(curvature * np.linalg.eigvalsh(second)[-1] + self.ridge)


# Penalties: each returns its prox. `weight` multiplies g; for a set the prox is the projection, for every step.


def none() -> Prox:
    """g = 0."""
    return lambda x, step: x.copy()


def l1(weight: float) -> Prox:
    """g = weight sum |x_j|."""
    return lambda x, step: np.sign(x) * np.maximum(np.abs(x) - step * weight, 0.0)


def squared_l2(weight: float) -> Prox:
    """g = weight/2 ||x||^2."""
    return lambda x, step: x / (1.0 + step * weight)


def elastic_net(weight: float, ratio: float) -> Prox:
    """g = weight (ratio sum |x_j| + (1 - ratio)/2 ||x||^2)."""
    shrink, scale = l1(weight * ratio), squared_l2(weight * (1.0 - ratio))
    return lambda x, step: scale(shrink(x, step), step)


def group_lasso(weight: float, groups: Sequence[Index]) -> Prox:
    """g = weight sum over the groups of sqrt(size) ||x_group||; the groups are disjoint, other entries are free."""

    def prox(x: Array, step: float) -> Array:
        result = x.copy()
        for group in groups:
            part = x[np.asarray(group, dtype=int)]
            norm, threshold = np.linalg.norm(part), step * weight * np.sqrt(len(part))
            result[np.asarray(group, dtype=int)] = 0.0 if norm <= threshold else (1.0 - threshold / norm) * part
        return result

    return prox


def box(low: float, high: float) -> Prox:
    """g = 0 where low <= x_j <= high for all j."""
    return lambda x, step: np.minimum(np.maximum(x, low), high)


def nonnegative() -> Prox:
    """g = 0 where all x_j >= 0."""
    return lambda x, step: np.maximum(x, 0.0)


def l2_ball(radius: float) -> Prox:
    """g = 0 where ||x|| <= radius."""
    return lambda x, step: x * min(1.0, radius / max(np.linalg.norm(x), radius))


def simplex(total: float = 1.0) -> Prox:
    """g = 0 where all x_j >= 0 and sum x_j = total: max(x - shift, 0), the shift by sorting."""

    def prox(x: Array, step: float) -> Array:
        down = np.sort(x)[::-1]
        shifts = (np.cumsum(down) - total) / np.arange(1, len(x) + 1)
        return np.maximum(x - shifts[np.flatnonzero(down > shifts)[-1]], 0.0)

    return prox


def nuclear_norm(weight: float, shape: tuple[int, int]) -> Prox:
    """g = weight sum of the singular values of x as a matrix of this shape, row by row."""

    def prox(x: Array, step: float) -> Array:
        U, values, V = np.linalg.svd(x.reshape(shape), full_matrices=False)
        return ((U * np.maximum(values - step * weight, 0.0)) @ V).ravel()

    return prox


# Optimum.


def optimum(problem: Smooth, prox: Prox, tolerance: float = 1e-15, limit: int = 100_000) -> Array:
    """Return x*, (d,): accelerated proximal gradient with step 1 / L; the momentum restarts if it points uphill.

    It ends when ||x - P_{g/L}(x - grad f(x)/L)|| <= tolerance max(1, ||x||).
    """
    step = 1.0 / problem.smoothness()
    x = y = np.zeros(problem.dim)
    momentum = 1.0
    for _ in range(limit):
        new = prox(y - step * problem.mean_gradient(y), step)
        if np.linalg.norm(new - y) <= tolerance * max(1.0, float(np.linalg.norm(new))):
            return new
        if (y - new) @ (new - x) > 0.0:
            y, momentum = new, 1.0
        else:
            grown = (1.0 + np.sqrt(1.0 + 4.0 * momentum**2)) / 2.0
            y, momentum = new + (momentum - 1.0) / grown * (new - x), grown
        x = new
    raise RuntimeError("the optimum was not reached")


# Algorithm 1.


class Composite(NamedTuple):
    """The state between two rounds, see `composite_start`. The server keeps x_bar, client i its rows of the other
    fields."""

    x_bar: Array  # (d,) pre-proximal
    corrections: Array  # (n, d) c_i
    gradients: Array  # (n, d) mean over t of the gradients of the round that produced x_bar
    step: float | None  # eta~ of the round that produced x_bar; None before the first round, whose eta~ then applies


def composite_start(problem: Smooth, x_bar: Array) -> Composite:
    """Return the state before the first round, x_bar (d,)."""
    zeros = np.zeros((problem.num_clients, len(x_bar)))
    return Composite(x_bar, zeros, zeros, None)


def composite_point(state: Composite, prox: Prox) -> Array:
    """Return P_{eta~ g}(x_bar), (d,): the output after a round."""
    if state.step is None:
        raise ValueError("no round was played")
    return prox(state.x_bar, state.step)


def composite_round(
    problem: Smooth, state: Composite, prox: Prox, rows: Rows, tau: int, eta: float, eta_g: float = 1.0
) -> Composite:
    """Return the state after one round of Algorithm 1.

    The round starts at the prox of x_bar with the eta~ of the round that produced it; all else uses this round's eta.
    With one client and tau = 1 that is proximal gradient descent with steps eta eta_g that may change.
    """
    step = eta * eta_g * tau
    start = prox(state.x_bar, step if state.step is None else state.step)
    ends, gradients = [], []
    for i in range(problem.num_clients):
        z_hat, z, seen = start, start, []
        for t in range(tau):
            seen.append(problem.gradient(i, z, rows(i, t)))
            z_hat = z_hat - eta * (seen[-1] + state.corrections[i])
            z = prox(z_hat, (t + 1) * eta)
        ends.append(z_hat)
        gradients.append(np.mean(seen, axis=0))
    x_bar = start + eta_g * (problem.shares @ np.array(ends) - start)
    return Composite(x_bar, (start - x_bar) / step - np.array(gradients), np.array(gradients), step)


# FedMid.


def fedmid_round(
    problem: Smooth,
    x: Array,
    prox: Prox,
    rows: Rows,
    tau: int,
    eta: float,
    eta_g: float = 1.0,
    server: str = "round",
) -> Array:
    """One round of FedMid with the Euclidean distance, x (d,) -> (d,).

    Local step: z <- P_{eta g}(z - eta grad f_i(z)). The server: the prox of x + eta_g (mean z_tau - x) with parameter
    eta_g eta tau; `server` "none" leaves it out.
    """
    ends = []
    for i in range(problem.num_clients):
        z = x
        for t in range(tau):
            z = prox(z - eta * problem.gradient(i, z, rows(i, t)), eta)
        ends.append(z)
    mean = x + eta_g * (problem.shares @ np.array(ends) - x)
    return mean if server == "none" else prox(mean, eta_g * eta * tau)


# FedDA.


class FedDA(NamedTuple):
    """The state between two rounds; it starts at the first point, with step 0."""

    z: Array  # (d,) the dual average: the first point minus all steps
    step: float = 0.0  # sum over the rounds so far of eta_g eta tau


def fedda_point(state: FedDA, prox: Prox) -> Array:
    """Return P_{step g}(z), (d,): the output after a round."""
    return prox(state.z, state.step)


def fedda_round(
    problem: Smooth, state: FedDA, prox: Prox, rows: Rows, tau: int, eta: float, eta_g: float = 1.0
) -> FedDA:
    """One round of FedDA (FedDualAvg) with the Euclidean distance.

    Local step: the gradient is taken at P_{(step + eta t) g}(z_i), then z_i <- z_i - eta gradient. The server:
    z + eta_g (mean z_i - z), and step + eta_g eta tau.
    """
    ends = []
    for i in range(problem.num_clients):
        z = state.z
        for t in range(tau):
            z = z - eta * problem.gradient(i, prox(z, state.step + eta * t), rows(i, t))
        ends.append(z)
    return FedDA(state.z + eta_g * (problem.shares @ np.array(ends) - state.z), state.step + eta_g * eta * tau)


# Fast-FedDA.


class FastFedDA(NamedTuple):
    """The state between two rounds, both sums averaged over the clients, see `fast_fedda_start`."""

    first: Array  # (d,) x_0
    gradients: Array  # (d,) G: the sum of all gradients
    points: Array  # (d,) X: the sum of the points of these gradients
    count: int = 0  # t: the number of gradients


def fast_fedda_start(x: Array) -> FastFedDA:
    """Return the state before the first round, x (d,)."""
    return FastFedDA(x, np.zeros_like(x), np.zeros_like(x))


def fast_fedda_point(state: FastFedDA, prox: Prox, gamma: float, mu: float) -> Array:
    """w_t = argmin_w <G, w> + t g(w) - mu/2 <X, w> + (mu t/2 + gamma)/2 ||w||^2 - gamma <x_0, w>, (d,)."""
    return prox(fast_fedda_dual(state, gamma, mu), state.count / (mu * state.count / 2.0 + gamma))


def fast_fedda_dual(state: FastFedDA, gamma: float, mu: float) -> Array:
    """D/s, (d,), of which w_t is the prox P_{t/s g}: D = gamma x_0 + mu/2 X - G, s = mu t/2 + gamma; 1/s falls.

    It replaces both sums, so one vector each way is enough.
    """
    dual = gamma * state.first + mu / 2.0 * state.points - state.gradients
    return dual / (mu * state.count / 2.0 + gamma)


def fast_fedda_round(
    problem: Smooth, state: FastFedDA, prox: Prox, rows: Rows, tau: int, gamma: float, mu: float
) -> FastFedDA:
    """One round of Fast-FedDA with all weights 1, for mu-strongly convex f.

    Local step: the gradient is taken at w_t; both are added to the client's sums, which begin at the server's. The
    server averages the sums. The usual gamma is 1/eta, the usual mu is the ridge.
    """
    ends = []
    for i in range(problem.num_clients):
        own = state
        for t in range(tau):
            w = fast_fedda_point(own, prox, gamma, mu)
            g = problem.gradient(i, w, rows(i, t))
            own = FastFedDA(own.first, own.gradients + g, own.points + w, own.count + 1)
        ends.append(own)
    return FastFedDA(
        state.first,
        problem.shares @ np.array([end.gradients for end in ends]),
        problem.shares @ np.array([end.points for end in ends]),
        state.count + tau,
    )


# FedCanon.


class FedCanon(NamedTuple):
    """The state between two rounds: the server's x, c and u, and the clients' c_i, see `fedcanon_start`."""

    x: Array  # (d,)
    control: Array  # (d,) c
    subgradient: Array  # (d,) u, a subgradient of g at x
    controls: Array  # (n, d) c_i


def fedcanon_start(problem: Smooth, x: Array) -> FedCanon:
    """Return the state before the first round, x (d,)."""
    return FedCanon(x, np.zeros_like(x), np.zeros_like(x), np.zeros((problem.num_clients, len(x))))


def fedcanon_ends(
    problem: Smooth, state: FedCanon, clients: Sequence[int], rows: Rows, tau: int, eta: float
) -> tuple[dict[int, Array], dict[int, Array]]:
    """Return each client's last point and its new c_i, the mean of its gradients."""
    ends, means = {}, {}
    for i in clients:
        y, seen = state.x, []
        for t in range(tau):
            seen.append(problem.gradient(i, y, rows(i, t)))
            y = y - eta * (seen[-1] - state.controls[i] + state.control + state.subgradient)
        ends[i], means[i] = y, np.mean(seen, axis=0)
    return ends, means


def fedcanon_round(
    problem: Smooth,
    state: FedCanon,
    prox: Prox,
    clients: Sequence[int],
    rows: Rows,
    tau: int,
    eta: float,
    eta_g: float = 1.0,
    answered: Sequence[int] | None = None,
) -> FedCanon:
    """One round in which `clients` train. `answered`: the clients whose replies arrive; all of them by default."""
    _, means = fedcanon_ends(problem, state, clients, rows, tau, eta)
    step, known = eta_g * eta * tau, list(clients if answered is None else answered)
    weights = problem.shares[known]
    change = np.average([means[i] - state.controls[i] for i in known], axis=0, weights=weights)
    pre = state.x - step * (state.control + change)
    x, controls = prox(pre, step), state.controls.copy()
    for i, mean in means.items():
        controls[i] = mean
    return FedCanon(x, state.control + weights.sum() * change, (pre - x) / step, controls)
