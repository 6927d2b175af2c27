"""Plain NumPy reference of the federated minimax algorithms, in float64, one function or small class an algorithm.

Source: "A Federated Learning Framework for Nonconvex-PL Minimax Problems" (FedSGDA). Section 4: Frameworks 1-3, the
estimators MB and STORM, Remark 1 (SPIDER, SVRG); Section 6.1: the synthetic problem; Appendix D.2: the saddle function
(63) of AUC. Baselines: CoDA (local descent ascent with a proximal term, in stages), CODASCA (the same with the control
variates of SCAFFOLD), LocalSGDAM (local descent ascent with momentum).

min_x max_y f(x, y), f = the plain mean over the clients of f_i. Everything works on one flat point z = (x, y) of length
d = primal_dim + dual_dim; dual_dim may be 0. A gradient is (grad_x f_i, grad_y f_i) stacked, (d,), both blocks with the
sign of f; `direction` then descends in x and ascends in y.

    symbol in the paper                        name here
    (x_bar_t, y_bar_t), (x_bar_{t-1}, ...)     `z`, `previous`
    (u_t, v_t); alpha_t = beta_t               `estimate`, the result of `update`; `Storm.alpha(t)`
    mean over S'_t of grad f_i                 `gradient_mean`, see `mean_gradient(problem, clients)`
    S_t, B_{t,i}^(k)                           `clients`, `rows(i, k)`
    eta_t, gamma_t                             `step_primal`, `step_dual`

On sites of unequal sizes the plain mean of plain means over sites is not the AUC objective of the union, and with the
union's tau no saddle function at all: adding c to all scores, a and b changes it by 2 (1 + lam) c (tau - mean of the
sites' shares), so its only saddle has lam = -1, where nothing separates the classes. `SaddleAUC` weighs its sums over
the samples of site i by N n_i / n (N sites, n_i of the n samples), but not the term in lam alone: then the plain mean
over the sites is (63) over all samples, one-class sites included.

Difference from the paper: v_t uses the clients S'_t of u_t (the formulas name S_t), and so does every other estimator,
in both of its halves; all averages over clients are plain.

Nothing is random here: the caller supplies the clients of every round and

    rows(client, k) -> the samples of the batch of that client at local step k of the round; None: all of them

(LocalSGDAM counts k over the whole run). Rounds t and steps k count from 0. No argument is changed in place.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Index = Sequence[int] | NDArray[np.int_]
Rows = Callable[[int, int], Index | None]
GradientMean = Callable[[Array], Array]  # z (d,) -> (d,)


class Problem(Protocol):
    """min_x max_y of the plain mean of f_i over the clients; z = (x, y) (d,); rows=None: all samples of client i."""

    primal_dim: int
    dual_dim: int
    num_clients: int

    def value(self, i: int, z: Array, rows: Index | None = None) -> float:
        """Return f_i(z), the mean over the samples `rows`."""

    def gradient(self, i: int, z: Array, rows: Index | None = None) -> Array:
        """Return (grad_x f_i, grad_y f_i), (d,), the mean over the samples `rows`."""


# Problems.


class SyntheticPL:
    """Section 6.1: data (N, n, 3, p) contains a, b, c of every sample of every client; x, y (p,), z = (x, y) (2p,).

    F = sum_l (1 - exp(-(x_l - a_l)^2 / (2 nu))) + (x - a)^T b b^T (y - c) - mu/2 ||y - c||^2. All clients have the same
    number of samples, so the mean of f_i is the mean over all samples.
    """

    def __init__(self, data: Array, nu: float = 1.0, mu: float = 1.0) -> None:
        self.data = np.asarray(data, dtype=np.float64)
        self.nu, self.mu = nu, mu
        self.num_clients, self.primal_dim = data.shape[0], data.shape[3]
        self.dual_dim = self.primal_dim

    def samples(self, i: int, rows: Index | None = None) -> tuple[Array, Array, Array]:
        """Return a, b, c of the chosen samples, (rows, p) each."""
        chosen = self.data[i] if rows is None else self.data[i][np.asarray(rows, dtype=int)]
        return chosen[:, 0], chosen[:, 1], chosen[:, 2]

    def value(self, i: int, z: Array, rows: Index | None = None) -> float:
        x, y = z[: self.primal_dim], z[self.primal_dim :]
        total, (a, b, c) = 0.0, self.samples(i, rows)
        for a_j, b_j, c_j in zip(a, b, c, strict=True):
            total += np.sum(1.0 - np.exp(-((x - a_j) ** 2) / (2.0 * self.nu)))
            total += ((x - a_j) @ b_j) * (b_j @ (y - c_j)) - self.mu / 2.0 * np.sum((y - c_j) ** 2)
        return float(total / len(a))

    def gradient(self, i: int, z: Array, rows: Index | None = None) -> Array:
        x, y = z[: self.primal_dim], z[self.primal_dim :]
        total, (a, b, c) = np.zeros_like(z), self.samples(i, rows)
        for a_j, b_j, c_j in zip(a, b, c, strict=True):
            bump = np.exp(-((x - a_j) ** 2) / (2.0 * self.nu)) * (x - a_j) / self.nu
            grad_x = bump + b_j * (b_j @ (y - c_j))
            grad_y = b_j * (b_j @ (x - a_j)) - self.mu * (y - c_j)
            total += np.concatenate([grad_x, grad_y])
        return total / len(a)

    def maximiser(self, x: Array) -> Array:
        """y*(x) = mean c + mean b b^T (x - a) / mu, (p,): where grad_y f(x, y) = 0."""
        a, b, c = (self.data[:, :, s].reshape(-1, self.primal_dim) for s in range(3))
        return c.mean(axis=0) + np.mean(b * np.sum(b * (x - a), axis=1, keepdims=True), axis=0) / self.mu


def bounded(score: str, s: Array) -> Array:
    """Apply `score`, one of logit, sigmoid and tanh, to outputs s."""
    if score == "logit":
        return s
    return np.exp(-np.logaddexp(0.0, -s)) if score == "sigmoid" else np.tanh(s)


def bounded_slope(score: str, s: Array) -> Array:
    """Return the derivative of `bounded` at the point where its value is s."""
    if score == "logit":
        return np.ones_like(s)
    return s * (1.0 - s) if score == "sigmoid" else 1.0 - s**2


class SaddleAUC:
    """(63) with a linear score: features[i] (n_i, D), labels[i] (n_i,) in {0, 1}, z = (w (D), bias, a, b, lam).

    tau = `prior`, the share of positives among all samples of all clients, in every batch of every client. The primal
    block is all but lam. `score` selects the score: w.x + bias, or its sigmoid or tanh.
    """

    def __init__(self, features: Sequence[Array], labels: Sequence[Array], prior: float, score: str = "logit") -> None:
        self.features = [np.asarray(X, dtype=np.float64) for X in features]
        self.labels = [np.asarray(y) for y in labels]
        self.prior, self.score = prior, score
        self.num_clients = len(self.features)
        held = [len(y) for y in self.labels]
        self.weights = [self.num_clients * n_i / sum(held) for n_i in held]
        self.primal_dim, self.dual_dim = self.features[0].shape[1] + 3, 1

    def scores(self, z: Array, X: Array) -> Array:
        """Return s (n,) of X (n, D)."""
        s = X @ z[: X.shape[1]] + z[X.shape[1]]
        return bounded(self.score, s)

    def samples(self, i: int, rows: Index | None = None) -> tuple[Array, NDArray[np.int_]]:
        """Return the chosen samples: features (rows, D), labels (rows,)."""
        chosen = slice(None) if rows is None else np.asarray(rows, dtype=int)
        return self.features[i][chosen], self.labels[i][chosen]

    def value(self, i: int, z: Array, rows: Index | None = None) -> float:
        X, labels = self.samples(i, rows)
        tau, (a, b, lam), total = self.prior, z[-3:], 0.0
        for s, label in zip(self.scores(z, X), labels, strict=True):
            if label == 1:
                total += (1.0 - tau) * (s - a) ** 2 - 2.0 * (1.0 + lam) * (1.0 - tau) * s
            else:
                total += tau * (s - b) ** 2 + 2.0 * (1.0 + lam) * tau * s
        return float(self.weights[i] * total / len(labels) - tau * (1.0 - tau) * lam**2)

    def gradient(self, i: int, z: Array, rows: Index | None = None) -> Array:
        X, labels = self.samples(i, rows)
        tau, (a, b, lam), total = self.prior, z[-3:], np.zeros_like(z)
        for x, s, label in zip(X, self.scores(z, X), labels, strict=True):
            if label == 1:
                d_s = 2.0 * (1.0 - tau) * (s - a) - 2.0 * (1.0 + lam) * (1.0 - tau)
                d_a, d_b, d_lam = -2.0 * (1.0 - tau) * (s - a), 0.0, -2.0 * (1.0 - tau) * s
            else:
                d_s = 2.0 * tau * (s - b) + 2.0 * (1.0 + lam) * tau
                d_a, d_b, d_lam = 0.0, -2.0 * tau * (s - b), 2.0 * tau * s
            slope = bounded_slope(self.score, s)
            total += np.concatenate([d_s * slope * x, [d_s * slope, d_a, d_b, d_lam]])
        mean = self.weights[i] * total / len(labels)
        mean[-1] -= 2.0 * tau * (1.0 - tau) * lam
        return mean


def best_saddle(scores: Array, labels: NDArray[np.int_]) -> Array:
    """(a, b, lam), (3,): min over a and b and max over lam of (63) for given scores (n,) and labels (n,) in {0, 1}.

    a = mean score of the positives, b = of the negatives, lam = b - a; tau the share of positives in `labels`.
    """
    a, b = scores[labels == 1].mean(), scores[labels == 0].mean()
    return np.array([a, b, b - a])


# Steps.


def direction(problem: Problem, step_primal: float, step_dual: float) -> Array:
    """(d,): -step_primal on the primal block, +step_dual on the dual block; a step is z + direction * gradient."""
    return blocks(problem, -step_primal, step_dual)


def blocks(problem: Problem, primal: float, dual: float) -> Array:
    """(d,): `primal` on the primal block, `dual` on the dual block."""
    return np.concatenate([np.full(problem.primal_dim, primal), np.full(problem.dual_dim, dual)])


def decayed(c: float, rho: float, t: int) -> float:
    """c / (t + 1)^rho, the step sizes of FedSGDA."""
    return c / (t + 1) ** rho


def storm_alpha(c_alpha: float, rho: float, t: int) -> float:
    """alpha_t = beta_t = min(1, c_alpha / (t + 1)^(2 rho))."""
    return min(1.0, c_alpha / (t + 1) ** (2.0 * rho))


# FedSGDA, gradient collection phase: the estimators.


def mean_gradient(problem: Problem, clients: Sequence[int]) -> GradientMean:
    """z -> the plain mean over `clients` (S'_t) of their full local gradients, (d,); Framework 2."""
    return lambda z: np.mean([problem.gradient(i, z) for i in clients], axis=0)


class Estimator(Protocol):
    """One run's (u_t, v_t). Call `update` once a round, t = 0, 1, ... in order."""

    def update(self, t: int, z: Array, previous: Array, gradient_mean: GradientMean) -> Array:
        """(u_t, v_t), (d,), at z = z_t.

        `previous` is z_{t-1}; at t = 0 it has no effect (z_{-1} = z_0). `gradient_mean` averages over S'_t of this
        very round, at any point; where t % period == 0, S'_t is the large batch of SPIDER and SVRG.
        """


class MiniBatch:
    """FedSGDA-MB: u_t = mean g_i(z_t)."""

    def update(self, t: int, z: Array, previous: Array, gradient_mean: GradientMean) -> Array:
        return gradient_mean(z)


class Storm:
    """FedSGDA-STORM: u_0 = mean g_i(z_0); u_t = (1 - alpha_t) (u_{t-1} - mean g_i(z_{t-1})) + mean g_i(z_t)."""

    def __init__(self, alpha: Callable[[int], float]) -> None:
        self.alpha = alpha
        self.estimate = np.empty(0)

    def update(self, t: int, z: Array, previous: Array, gradient_mean: GradientMean) -> Array:
        if t == 0:
            self.estimate = gradient_mean(z)
        else:
            error = self.estimate - gradient_mean(previous)
            self.estimate = (1.0 - self.alpha(t)) * error + gradient_mean(z)
        return self.estimate


class Spider:
    """Remark 1: u_t = mean g_i(z_t) where t % period == 0, else u_{t-1} + mean (g_i(z_t) - g_i(z_{t-1}))."""

    def __init__(self, period: int) -> None:
        self.period = period
        self.estimate = np.empty(0)

    def update(self, t: int, z: Array, previous: Array, gradient_mean: GradientMean) -> Array:
        if t % self.period == 0:
            self.estimate = gradient_mean(z)
        else:
            self.estimate = self.estimate + gradient_mean(z) - gradient_mean(previous)
        return self.estimate


class Svrg:
    """Remark 1: where t % period == 0, w = z_t and U = u_t = mean g_i(w); else u_t = mean (g_i(z_t) - g_i(w)) + U."""

    def __init__(self, period: int) -> None:
        self.period = period
        self.snapshot = self.anchor = np.empty(0)  # w, U

    def update(self, t: int, z: Array, previous: Array, gradient_mean: GradientMean) -> Array:
        if t % self.period == 0:
            self.snapshot, self.anchor = z.copy(), gradient_mean(z)
            return self.anchor
        return gradient_mean(z) - gradient_mean(self.snapshot) + self.anchor


# FedSGDA, parameter update phase.


def fedsgda_round(
    problem: Problem,
    z: Array,
    estimate: Array,
    clients: Sequence[int],
    rows: Rows,
    K: int,
    step_primal: float,
    step_dual: float,
) -> Array:
    """Framework 3 on every client of S_t, and line 9 of Framework 1: z_t (d,), (u_t, v_t) (d,) -> z_{t+1} (d,)."""
    move = direction(problem, step_primal, step_dual)
    ends = []
    for i in clients:
        z_k = z
        for k in range(K):
            batch = rows(i, k)
            z_k = z_k + move * (problem.gradient(i, z_k, batch) - problem.gradient(i, z, batch) + estimate)
        ends.append(z_k)
    return np.mean(ends, axis=0)


# FedGDA-GT.


def fedgda_gt_round(problem: Problem, z: Array, clients: Sequence[int], rows: Rows, K: int, step: float) -> Array:
    """One round of FedGDA-GT, z (d,) -> (d,): all sites track the gradient, and `clients` take K steps."""
    tracked = mean_gradient(problem, range(problem.num_clients))(z)
    return fedsgda_round(problem, z, tracked, clients, rows, K, step, step)


# CoDA.


def coda_round(
    problem: Problem,
    z: Array,
    clients: Sequence[int],
    rows: Rows,
    K: int,
    step: float,
    dual_step: float,
    proximal: float,
    reference: Array,
    scale_dual: float = 1.0,
) -> Array:
    """One round of CoDA, z (d,) -> (d,). `reference` (d,) or (primal_dim,): its primal block is x_ref.

    The primal step is argmin_v <g_x, v> + ||v - x_k||^2 / (2 step) + proximal / 2 ||v - x_ref||^2, proximal =
    1 / gamma; the dual step is y + dual_step * scale_dual * g_y. Both gradients are taken at z_k.
    """
    p, ends = problem.primal_dim, []
    x_ref = reference[:p]
    for i in clients:
        x, y = z[:p], z[p:]
        for k in range(K):
            g = problem.gradient(i, np.concatenate([x, y]), rows(i, k))
            x = (x + step * proximal * x_ref - step * g[:p]) / (1.0 + step * proximal)
            y = y + dual_step * scale_dual * g[p:]
        ends.append(np.concatenate([x, y]))
    return np.mean(ends, axis=0)


def coda_stage(round_index: int, stage_rounds: int, growth: float, decay: float) -> tuple[int, int, float]:
    """The stage of a round (from 0): its number s (from 0), its first round, the factor decay^-s of the steps.

    Stage s has round(stage_rounds * growth^s) rounds (halves to even); stage_rounds = 0 is one endless stage.
    """
    if stage_rounds == 0:
        return 0, 0, 1.0
    s, first = 0, 0
    while True:
        length = round(stage_rounds * growth**s)
        if length < 1:
            raise ValueError(f"stage {s} has no rounds")
        if round_index < first + length:
            return s, first, float(decay) ** -s
        s, first = s + 1, first + length


# CODASCA.


class Codasca(NamedTuple):
    """The state between two rounds; both kinds of control start at zero, see `codasca_start`."""

    z: Array  # (d,)
    control: Array  # (d,) c, the server's
    controls: Array  # (N, d) c_i, the clients'


def codasca_start(problem: Problem, z: Array) -> Codasca:
    """The state before the first round, z (d,)."""
    return Codasca(z, np.zeros_like(z), np.zeros((problem.num_clients, len(z))))


def codasca_round(
    problem: Problem,
    state: Codasca,
    clients: Sequence[int],
    rows: Rows,
    K: int,
    step: float,
    dual_step: float,
    proximal: float,
    reference: Array,
    server_step: float = 1.0,
    scale_dual: float = 1.0,
) -> Codasca:
    """One round of CODASCA. `reference` (d,) or (primal_dim,): its primal block is x_ref.

    Local step: z_{k+1} = z_k + direction * (g_k - c_i + c), and x_{k+1} also - step * proximal * (x_k - x_ref). Then
    c_i = mean over k of g_k, without the proximal part. g_k is (g_x, scale_dual * g_y) at z_k, so the controls contain
    scaled gradients. The server: z + server_step * (mean z_K - z), and c + |S|/N * mean of the changes of c_i, which
    keeps c the mean of all c_i.
    """
    p = problem.primal_dim
    move, scale = direction(problem, step, dual_step), blocks(problem, 1.0, scale_dual)
    controls = state.controls.copy()
    ends, changes = [], []
    for i in clients:
        z_k, gradients = state.z.copy(), []
        for k in range(K):
            g = scale * problem.gradient(i, z_k, rows(i, k))
            pull = np.concatenate([z_k[:p] - reference[:p], np.zeros(problem.dual_dim)])
            z_k = z_k + move * (g - state.controls[i] + state.control) - step * proximal * pull
            gradients.append(g)
        controls[i] = np.mean(gradients, axis=0)
        changes.append(controls[i] - state.controls[i])
        ends.append(z_k)
    z = state.z + server_step * (np.mean(ends, axis=0) - state.z)
    control = state.control + len(clients) / problem.num_clients * np.mean(changes, axis=0)
    return Codasca(z, control, controls)


# LocalSGDAM.


def localsgdam_round(
    problem: Problem,
    z: Array,
    momentum: Array | None,
    clients: Sequence[int],
    rows: Rows,
    K: int,
    start: int,
    eta: float,
    gamma_x: float,
    gamma_y: float,
    beta_x: float,
    beta_y: float,
    storm: bool = False,
) -> tuple[Array, Array]:
    """One round of LocalSGDAM: z (d,), momentum (u, v) (d,) -> both after averaging over the clients.

    `momentum` None is the very first round: every client starts at g(i, z, rows(i, 0)). `start` is the number of
    local steps of the rounds before. Step k, counted over all rounds, is z + direction(gamma_x eta, gamma_y eta) * m,
    then m <- (1 - beta eta) m + beta eta g at the new z with rows(i, k + 1), beta_x and beta_y by block. `storm`:
    FedSGDA-M, m <- g(new z) + (1 - beta eta) (m - g(old z)).
    """
    move, mix = direction(problem, gamma_x * eta, gamma_y * eta), blocks(problem, beta_x * eta, beta_y * eta)
    ends, momenta = [], []
    for i in clients:
        z_k = z
        m = problem.gradient(i, z, rows(i, 0)) if momentum is None else momentum
        for k in range(start, start + K):
            old, batch = z_k, rows(i, k + 1)
            z_k = z_k + move * m
            new = problem.gradient(i, z_k, batch)
            m = new + (1.0 - mix) * (m - problem.gradient(i, old, batch)) if storm else (1.0 - mix) * m + mix * new
        ends.append(z_k)
        momenta.append(m)
    return np.mean(ends, axis=0), np.mean(momenta, axis=0)
