"""Plain NumPy reference of LocalSCGDAM and of four baselines, in float64, one function or small class an algorithm.

Source: "Federated Compositional Deep AUC Maximization" (LocalSCGDAM): the saddle function (1), the compositional
problem (2)-(4), Algorithm 1, Table 2. Baselines on the cross-entropy: local SGD with momentum; the same with the ratio
loss of "Addressing class imbalance in federated learning" (Wang, Xu, Wang, Zhu, AAAI 2021); SCAFFOLD (Karimireddy et
al. 2020, Option II); FedProx (Li et al. 2020). LocalSGDAM, CoDA and CODASCA: see `minimax`.

min_x max_y of the plain mean over the clients of f_i(mean over the clients of g_i(x), y), x = (w, w1, w2), y = lam:

    g(x; rows) = (w - rho * grad CE(w; rows), w1, w2)       f(h, y; rows) = (1) at the weights and the w1, w2 of h

    symbol in the paper                        name here
    w, x, y = w3, flat (x, y)                  `w` (P,), `x` (P + 2,), `y` (1,), `z` (P + 3,)
    h_t, u_t, v_t                              `h` (P + 2,), `u` (P + 2,), `v` (1,)
    K devices, k; communication period p       `clients`, i; `K` local steps a round
    xi_t, zeta_t                               `rows(i, t)`, `rows_outer(i, t)`

The cross-entropy always uses the network's raw output; `score` affects only the scores in (1).

Nothing is random here: the caller supplies the clients of every round and rows(client, j), the samples of a batch of
that client, None for all of them. LocalSCGDAM and momentum SGD count j over the whole run; SCAFFOLD and FedProx count
it from 0 in every round, as `minimax.coda_round` does. LocalSCGDAM's averages over clients are plain. A client's sums
over samples in g have the weight N n_i / n as in f (see `minimax`), so the mean of the g_i is g of the union. The
methods on the cross-entropy weigh clients by their numbers of samples, or equally if `num_samples` are ones. A learning
rate `lr` is one number or one a local step, (K,). No argument is changed in place.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from .minimax import Array, Index, Rows, SaddleAUC, bounded, bounded_slope

Rates = float | Sequence[float] | Array


# Problem.


class CompositionalAUC(SaddleAUC):
    """(2) with a small network: features[i] (n_i, D), labels[i] (n_i,) in {0, 1}; `prior` p the global share of 1s.

    net "linear": s = w.a + bias, w = (weight (D), bias); "tanh": s = o.tanh(W a + b) + c with `hidden` units H,
    w = (W (H, D) row by row, b (H), o (H), c). P is the length of w. `hessian` "identity" takes grad g = I.

    `value(i, z, rows)` and `gradient(i, z, rows)` belong to f at z = (x, y), without g: as a `minimax.Problem` this is
    plain AUC maximisation, z = (w, w1, w2, lam), the primal block all but lam.
    """

    def __init__(
        self,
        features: Sequence[Array],
        labels: Sequence[Array],
        prior: float,
        rho: float,
        score: str = "logit",
        hessian: str = "exact",
        net: str = "linear",
        hidden: int = 3,
    ) -> None:
        super().__init__(features, labels, prior, score)
        if net not in ("linear", "tanh") or hessian not in ("exact", "identity"):
            raise ValueError(f"unknown net {net!r} or hessian {hessian!r}")
        self.rho, self.hessian, self.net, self.hidden = rho, hessian, net, hidden
        self.num_features = self.features[0].shape[1]
        self.num_weights = self.num_features + 1 if net == "linear" else hidden * (self.num_features + 2) + 1
        self.primal_dim = self.num_weights + 2

    # The network.

    def layers(self, w: Array) -> tuple[Array, Array, Array, Array]:
        """W (H, D), b (H,), o (H,), c () of the net "tanh"; w (P,) or longer."""
        H, D = self.hidden, self.num_features
        W, b, o = w[: H * D].reshape(H, D), w[H * D : H * D + H], w[H * D + H : H * D + 2 * H]
        return W, b, o, w[H * D + 2 * H]

    def logits(self, w: Array, X: Array) -> Array:
        """The raw output s (n,) of X (n, D)."""
        if self.net == "linear":
            return X @ w[: self.num_features] + w[self.num_features]
        W, b, o, c = self.layers(w)
        return np.tanh(X @ W.T + b) @ o + c

    def logit_gradients(self, w: Array, X: Array) -> Array:
        """grad_w s of every sample, (n, P)."""
        if self.net == "linear":
            return np.hstack([X, np.ones((len(X), 1))])
        W, b, o, _ = self.layers(w)
        rows = []
        for a in X:
            t = np.tanh(W @ a + b)
            back = o * (1.0 - t**2)
            rows.append(np.concatenate([np.outer(back, a).ravel(), back, t, [1.0]]))
        return np.array(rows)

    def logit_curvatures(self, w: Array, q: Array, X: Array) -> Array:
        """(Hessian of s) q of every sample, (n, P): the derivative of `logit_gradients` along q (P,)."""
        if self.net == "linear":
            return np.zeros((len(X), self.num_weights))
        W, b, o, _ = self.layers(w)
        dW, db, do, _ = self.layers(q)
        rows = []
        for a in X:
            t = np.tanh(W @ a + b)
            dt = (1.0 - t**2) * (dW @ a + db)
            dback = do * (1.0 - t**2) - 2.0 * o * t * dt
            rows.append(np.concatenate([np.outer(dback, a).ravel(), dback, dt, [0.0]]))
        return np.array(rows)

    def scores(self, z: Array, X: Array) -> Array:
        """Return the scores of (1), (n,): `logits` after `score`."""
        s = self.logits(z, X)
        return bounded(self.score, s)

    # The inner function.

    def ce_gradient(self, i: int, w: Array, rows: Index | None = None) -> Array:
        """grad CE(w; rows), (P,)."""
        return self.ce_gradients(i, w, rows).mean(axis=0)

    def ce_gradients(self, i: int, w: Array, rows: Index | None = None) -> Array:
        """The gradient of the cross-entropy of every sample, (rows, P): (sigmoid(s) - label) grad s."""
        X, labels = self.samples(i, rows)
        error = logistic(self.logits(w, X)) - labels
        return error[:, None] * self.logit_gradients(w, X)

    def ce_hessian_vector(self, i: int, w: Array, q: Array, rows: Index | None = None) -> Array:
        """H_CE(w; rows) q, (P,), exact: the derivative of `ce_gradient` along q (P,).

        With r = sigmoid(s), a sample adds r (1 - r) (grad s . q) grad s + (r - label) (Hessian of s) q.
        """
        X, labels = self.samples(i, rows)
        r, grads = logistic(self.logits(w, X)), self.logit_gradients(w, X)
        first = (r * (1.0 - r) * (grads @ q))[:, None] * grads
        second = (r - labels)[:, None] * self.logit_curvatures(w, q, X)
        return np.mean(first + second, axis=0)

    def inner(self, i: int, x: Array, rows: Index | None = None) -> Array:
        """g(x; rows) = (w - rho weight_i grad CE(w; rows), w1, w2), (P + 2,)."""
        w, rest = x[: self.num_weights], x[self.num_weights :]
        return np.concatenate([w - self.rho * self.weights[i] * self.ce_gradient(i, w, rows), rest])

    # The outer function.

    def gradient(self, i: int, z: Array, rows: Index | None = None) -> Array:
        """The gradient of (1) at z = (w, w1, w2, lam), (P + 3,)."""
        X, labels = self.samples(i, rows)
        p, (w1, w2, lam), s = self.prior, z[-3:], self.scores(z, X)
        positive, negative = labels == 1, labels != 1
        d_s = 2.0 * (1.0 - p) * (s - w1 - 1.0 - lam) * positive + 2.0 * p * (s - w2 + 1.0 + lam) * negative
        slope = bounded_slope(self.score, s)
        d_w = np.mean((d_s * slope)[:, None] * self.logit_gradients(z, X), axis=0)
        d_w1 = np.mean(-2.0 * (1.0 - p) * (s - w1) * positive)
        d_w2 = np.mean(-2.0 * p * (s - w2) * negative)
        d_lam = np.mean(2.0 * (p * s * negative - (1.0 - p) * s * positive))
        of_samples = self.weights[i] * np.concatenate([d_w, [d_w1, d_w2, d_lam]])
        of_samples[-1] -= 2.0 * p * (1.0 - p) * lam
        return of_samples

    def outer_gradient(self, i: int, h: Array, y: Array, rows: Index | None = None) -> tuple[Array, Array]:
        """grad_h f (P + 2,) and grad_y f (1,) at (h, y)."""
        gradient = self.gradient(i, np.concatenate([h, y]), rows)
        return gradient[:-1], gradient[-1:]

    def compositional_gradient(
        self, i: int, x: Array, h: Array, y: Array, rows_g: Index | None = None, rows_f: Index | None = None
    ) -> Array:
        """grad g(x; rows_g)^T q, (P + 2,), q = grad_h f(h, y; rows_f): on w, q - rho weight_i H_CE(w; rows_g) q."""
        q, _ = self.outer_gradient(i, h, y, rows_f)
        if self.hessian == "identity":
            return q
        n = self.num_weights
        curved = self.weights[i] * self.ce_hessian_vector(i, x[:n], q[:n], rows_g)
        return np.concatenate([q[:n] - self.rho * curved, q[n:]])


def logistic(s: Array) -> Array:
    """1 / (1 + exp(-s)), written so that nothing overflows."""
    return 0.5 * (1.0 + np.tanh(0.5 * s))


# LocalSCGDAM.


class Scgdam(NamedTuple):
    """The averaged state; h, u and v are None before the first round."""

    x: Array  # (P + 2,)
    y: Array  # (1,)
    h: Array | None = None  # (P + 2,)
    u: Array | None = None  # (P + 2,)
    v: Array | None = None  # (1,)


def localscgdam_round(
    problem: CompositionalAUC,
    state: tuple[Array, Array, Array | None, Array | None, Array | None],
    clients: Sequence[int],
    rows: Rows,
    K: int,
    start: int,
    eta: float,
    gamma_x: float,
    gamma_y: float,
    beta_x: float,
    beta_y: float,
    alpha: float,
    rows_outer: Rows | None = None,
) -> Scgdam:
    """One round of Algorithm 1, K local steps on every client: (x, y, h, u, v) -> the same, averaged.

    `start` is the number of local steps of the rounds before; step k uses batch start + k + 1. h, u, v None is the
    very first round: every client takes them from its batch 0. `rows_outer` None: zeta is the batch of xi.
    """
    outer = rows if rows_outer is None else rows_outer
    ends = []
    for i in clients:
        x, y, h, u, v = state
        if h is None or u is None or v is None:
            xi, zeta = rows(i, 0), outer(i, 0)
            h = problem.inner(i, x, xi)
            u = problem.compositional_gradient(i, x, h, y, xi, zeta)
            v = problem.outer_gradient(i, h, y, zeta)[1]
        for k in range(start, start + K):
            xi, zeta = rows(i, k + 1), outer(i, k + 1)
            x, y = x - gamma_x * eta * u, y + gamma_y * eta * v
            h = (1.0 - alpha * eta) * h + alpha * eta * problem.inner(i, x, xi)
            new_u = problem.compositional_gradient(i, x, h, y, xi, zeta)
            new_v = problem.outer_gradient(i, h, y, zeta)[1]
            u = (1.0 - beta_x * eta) * u + beta_x * eta * new_u
            v = (1.0 - beta_y * eta) * v + beta_y * eta * new_v
        ends.append((x, y, h, u, v))
    return Scgdam(*(np.mean(parts, axis=0) for parts in zip(*ends, strict=True)))


class MultiLevel(NamedTuple):
    """The averaged state with several inner levels; all but x and y are None before the first round."""

    x: Array  # (P + 2,)
    y: Array  # (1,)
    estimates: Array | None = None  # (levels, P + 2), the last is h
    u: Array | None = None  # (P + 2,)
    v: Array | None = None  # (1,)


def multilevel_step(
    problem: CompositionalAUC, i: int, x: Array, y: Array, estimates: Array, xi: Index, zeta: Index, weight: float
) -> tuple[Array, Array, Array]:
    """The new estimates (levels, P + 2), and the gradients in x (P + 2,) and y (1,), pulled back through all levels."""
    new, before = [], x
    for estimate in estimates:
        new.append((1.0 - weight) * estimate + weight * problem.inner(i, before, xi))
        before = new[-1]
    q, of_y = problem.outer_gradient(i, new[-1], y, zeta)
    n = problem.num_weights
    for point in reversed([x, *new[:-1]]):
        curved = problem.ce_hessian_vector(i, point[:n], q[:n], xi) if problem.hessian == "exact" else np.zeros(n)
        q = np.concatenate([q[:n] - problem.rho * problem.weights[i] * curved, q[n:]])
    return np.array(new), q, of_y


def multilevel_round(
    problem: CompositionalAUC,
    state: MultiLevel,
    levels: int,
    clients: Sequence[int],
    rows: Rows,
    K: int,
    start: int,
    eta: float,
    gamma_x: float,
    gamma_y: float,
    beta_x: float,
    beta_y: float,
    alpha: float,
    rows_outer: Rows | None = None,
) -> MultiLevel:
    """`localscgdam_round` with several inner levels."""
    outer = rows if rows_outer is None else rows_outer
    ends = []
    for i in clients:
        x, y, estimates, u, v = state
        if estimates is None or u is None or v is None:
            first = np.tile(x, (levels, 1))
            estimates, u, v = multilevel_step(problem, i, x, y, first, rows(i, 0), outer(i, 0), 1.0)
        for k in range(start, start + K):
            x, y = x - gamma_x * eta * u, y + gamma_y * eta * v
            xi, zeta = rows(i, k + 1), outer(i, k + 1)
            estimates, new_u, new_v = multilevel_step(problem, i, x, y, estimates, xi, zeta, alpha * eta)
            u = (1.0 - beta_x * eta) * u + beta_x * eta * new_u
            v = (1.0 - beta_y * eta) * v + beta_y * eta * new_v
        ends.append((x, y, estimates, u, v))
    return MultiLevel(*(np.mean(parts, axis=0) for parts in zip(*ends, strict=True)))


# Momentum SGD on the cross-entropy and on the ratio loss.


def ratio_weights(counts: ArrayLike, alpha: float = 1.0, beta: float = 0.1) -> Array:
    """The weight of a sample of each class, (2,), at the index of its label: alpha + beta R_c.

    `counts` (2,): the negatives and the positives of all clients together. R_c = samples of the other class over
    samples of class c: the rare class weighs more.
    """
    negatives, positives = np.asarray(counts, dtype=np.float64)
    if negatives <= 0 or positives <= 0:
        raise ValueError("the ratio loss needs samples of both classes")
    return np.array([alpha + beta * positives / negatives, alpha + beta * negatives / positives])


def ratio_gradient(problem: CompositionalAUC, i: int, w: Array, weights: Array, rows: Index | None = None) -> Array:
    """The gradient of the mean over the batch of weights[label] * cross-entropy, (P,): divided by the batch size."""
    _, labels = problem.samples(i, rows)
    return np.mean(weights[labels.astype(int)][:, None] * problem.ce_gradients(i, w, rows), axis=0)


def localsgdm_round(
    problem: CompositionalAUC,
    w: Array,
    momentum: Array | None,
    clients: Sequence[int],
    rows: Rows,
    K: int,
    start: int,
    lr: Rates,
    beta: float,
    weights: Array | None = None,
    num_samples: Sequence[int] | None = None,
) -> tuple[Array, Array]:
    """One round of local SGD with momentum: w (P,), momentum m (P,) -> both averaged over the clients.

    The means have the weights of `fedprox_round`.

    Step t = start + k: the gradient of batch t at w_t enters m <- (1 - beta) m + beta g, then w <- w - lr m. `momentum`
    None is the very first round: m = g in its first step. `weights` (2,) is the ratio loss, None the cross-entropy.
    """
    ends, momenta = [], []
    for i in clients:
        w_k, m = w, momentum
        for k, rate in enumerate(step_rates(lr, K)):
            batch = rows(i, start + k)
            if weights is None:
                g = problem.ce_gradient(i, w_k, batch)
            else:
                g = ratio_gradient(problem, i, w_k, weights, batch)
            m = g if m is None else (1.0 - beta) * m + beta * g
            w_k = w_k - rate * m
        ends.append(w_k)
        momenta.append(m)
    held = samples_held(problem, num_samples)[list(clients)]
    return np.average(ends, axis=0, weights=held), np.average(momenta, axis=0, weights=held)


def samples_held(problem: CompositionalAUC, num_samples: Sequence[int] | None) -> Array:
    """Return (N,) each client's weight in a mean: `num_samples`, or its number of samples."""
    held = [len(labels) for labels in problem.labels] if num_samples is None else num_samples
    return np.array(held, dtype=np.float64)


def step_rates(lr: Rates, K: int) -> list[float]:
    """Return the learning rates of the K local steps."""
    return [float(rate) for rate in np.broadcast_to(lr, (K,))]


# SCAFFOLD.


class Scaffold(NamedTuple):
    """The state between two rounds; both kinds of control start at zero, see `scaffold_start`."""

    w: Array  # (P,)
    control: Array  # (P,) c, the server's
    controls: Array  # (N, P) c_i, the clients'


def scaffold_start(problem: CompositionalAUC, w: Array) -> Scaffold:
    """The state before the first round, w (P,)."""
    return Scaffold(w, np.zeros_like(w), np.zeros((problem.num_clients, len(w))))


def scaffold_round(
    problem: CompositionalAUC,
    state: Scaffold,
    clients: Sequence[int],
    rows: Rows,
    K: int,
    lr: Rates,
    server_lr: float = 1.0,
    num_samples: Sequence[int] | None = None,
) -> Scaffold:
    """One round of SCAFFOLD, Option II, on the cross-entropy; the mean of the w_K weighted as in `fedprox_round`.

    Local step: w_{k+1} = w_k - lr_k (g_k - c_i + c). Then c_i <- c_i - c + (w_0 - w_K) / (sum of the lr_k). The
    server: w + server_lr (mean w_K - w), and c + sum over S of n_i/n times the change of c_i, which keeps c the
    weighted mean of all c_i.
    """
    w, control, controls = state
    rates, after = step_rates(lr, K), controls.copy()
    ends, changes = [], []
    for i in clients:
        w_k = w
        for k, rate in enumerate(rates):
            w_k = w_k - rate * (problem.ce_gradient(i, w_k, rows(i, k)) - controls[i] + control)
        after[i] = controls[i] - control + (w - w_k) / sum(rates)
        changes.append(after[i] - controls[i])
        ends.append(w_k)
    held = samples_held(problem, num_samples)
    shares = (held / held.sum())[list(clients)]
    moved = np.average(ends, axis=0, weights=shares) - w
    return Scaffold(w + server_lr * moved, control + shares @ np.array(changes), after)


# FedProx.


def fedprox_round(
    problem: CompositionalAUC,
    w: Array,
    clients: Sequence[int],
    rows: Rows,
    K: int,
    lr: Rates,
    mu: float,
    num_samples: Sequence[int] | None = None,
) -> Array:
    """One round of FedProx on the cross-entropy, w (P,) -> (P,).

    Local step: w_{k+1} = w_k - lr_k (g_k + mu (w_k - w)), w the server's. The server: the mean of the w_K weighted by
    `num_samples` (N,), one number for every client of the problem; None: its number of samples.
    """
    held = samples_held(problem, num_samples)
    total, weight = np.zeros_like(w), 0.0
    for i in clients:
        w_k = w
        for k, rate in enumerate(step_rates(lr, K)):
            w_k = w_k - rate * (problem.ce_gradient(i, w_k, rows(i, k)) + mu * (w_k - w))
        total = total + held[i] * w_k
        weight += held[i]
    return total / weight
