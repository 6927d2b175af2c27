"""Plain NumPy reference of FedX and of its pairwise baselines, in float64, one function an algorithm.

Source: "FedX: Federated Learning for Compositional Pairwise Risk Optimization". Objective (1), (2) and (6); gradient
estimates (4), (5), (8) and (9); Algorithm 1 (FedX1), Algorithm 2 (FedX2), Algorithm 3 (partial participation, Appendix
G); Appendix A (objectives, (10)-(14)); Appendices E and F (larger buffer).

    symbol in the paper                  name here
    S_1^i, S_2^i                         X1, X2 of `clients[i]` (y2: labels of X2, used by auprc only)
    h(w, z), grad h(w, z)                `score(w, X)`, `jacobian(w, X)`
    l, nabla_1 l, nabla_2 l              `Objective.inner(a, b, y)`: value, d/da, d/db
    f, nabla f                           `Objective.f`, `Objective.grad_f`
    omega_1i, omega_2j                   `omega1[i]`, `omega2[j]`
    H_1 and U (also R_1, B_1, P, C)      `positives`, a `Pool` of scores with u
    H_2 (also R_2, B_2)                  `partners`, a `Pool` of scores with labels
    h_zeta, u_zeta; h_xi                 `a_lazy`, `u_lazy`; `b_lazy`
    G_{i,k,1} + G_{i,k,2}; G_{i,k}       `gradient`; `m_i`, `momentum`
    r, k, K, R                           `r`, `k`, `local_steps`, `rounds`
    eta, gamma, beta, tau                `learning_rate`, `gamma`, `beta`, `tau`
    P^r                                  `participants(r)`

Differences from the boxes: the lazy partner of an active positive comes from the pool of partners, and the lazy partner
of an active partner from the pool of positives (line 12 names them crosswise); the recorded scores come from the
training batches (no second pass, line 14 of Algorithm 2); the first visit sets u to the observed mean loss and the
first momentum is the first gradient (the boxes start both at 0); for auprc f = -u1 / u2; f' takes no stale u below the
lower bound of the exact u (see `chain`). Every moving average is m <- (1 - beta) * m + beta * new.

Nothing is random here: the caller supplies every index,

    batches(client, round, step) -> indices into X1, indices into X2            (no index twice in one batch)
    draws(client, round, step)   -> indices into the positives' pool, into the partners' pool
    participants(round)          -> sorted client indices

with rounds from 1 (round 0 scores and does not step), steps from 0, pools ordered by round, client, step.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Client = tuple[Array, Array, Array]  # X1 (n1, features), X2 (n2, features), y2 (n2,)
Score = Callable[[Array, Array], Array]  # w (d,), X (n, features) -> (n,)
Jacobian = Callable[[Array, Array], Array]  # w (d,), X (n, features) -> (n, d)
Index = Sequence[int] | NDArray[np.int_]
Indices = Callable[[int, int, int], tuple[Index, Index]]  # client, round, step
Pair = tuple[Array, Array, Array]  # value, d/da, d/db


# Pairwise losses: a = positives' scores as a column, b = partners' scores as a row.


def sigmoid(t: Array) -> Array:
    return np.exp(-np.logaddexp(0.0, -t))


def square(a: Array, b: Array, margin: float = 1.0) -> Pair:
    """(1 - a + b)^2; ignores the margin, which the other losses have."""
    t = 1.0 - a + b
    return t**2, -2.0 * t, 2.0 * t


def psm(a: Array, b: Array, margin: float = 1.0) -> Pair:
    """1 / (1 + exp(a - b)); no margin."""
    s = sigmoid(b - a)
    return s, -s * sigmoid(a - b), s * sigmoid(a - b)


def squared_hinge(a: Array, b: Array, margin: float = 1.0) -> Pair:
    """(margin - a + b)_+^2, also the exponent phi of kl-opauc."""
    t = np.maximum(margin - a + b, 0.0)
    return t**2, -2.0 * t, 2.0 * t


def logistic(a: Array, b: Array, margin: float = 1.0) -> Pair:
    """log(1 + exp(b - a)); no margin."""
    return np.logaddexp(0.0, b - a), -sigmoid(b - a), sigmoid(b - a)


LOSSES = {"square": square, "psm": psm, "squared-hinge": squared_hinge, "logistic": logistic}


# Objectives: mean over S1 of f(mean over S2 of l).


class Objective(NamedTuple):
    """l with values in R^m and f on R^m; for kl-opauc also the logarithm of l, and u below means log u."""

    name: str
    m: int
    linear: bool  # f is the identity
    inner: Callable[[Array, Array, Array], Pair]  # a (p,), b (q,), y (q,) -> l, dl/da, dl/db, (p, q, m) each
    f: Callable[[Array], Array]  # u (n, m) -> (n,)
    grad_f: Callable[[Array], Array]  # u (n, m) -> (n, m)
    # kl-opauc: phi / lam, dphi/da, dphi/db, (p, q) each
    exponent: Callable[[Array, Array], Pair] | None = None
    lam: float = 1.0


def objective(
    name: str, margin: float = 1.0, lam: float = 1.0, p: float = 2.0, surrogate: str = "squared-hinge"
) -> Objective:
    """square, psm, squared-hinge, logistic, kl-opauc; auprc and p-norm-push of a surrogate."""
    loss = LOSSES[name] if name in LOSSES else LOSSES[surrogate]

    def scalar(a: Array, b: Array, y: Array) -> Pair:  # m = 1
        value, d1, d2 = loss(a[:, None], b[None, :], margin)
        return value[..., None], d1[..., None], d2[..., None]

    def exponent(a: Array, b: Array) -> Pair:
        phi, d1, d2 = squared_hinge(a[:, None], b[None, :], margin)
        return phi / lam, d1, d2

    def exponential(a: Array, b: Array, y: Array) -> Pair:  # (12)
        power, d1, d2 = exponent(a, b)
        value = np.exp(power)
        return value[..., None], (value * d1 / lam)[..., None], (value * d2 / lam)[..., None]

    def labelled(a: Array, b: Array, y: Array) -> Pair:  # (14): [1(y' = 1) s, s]
        mask = np.stack([y == 1, np.ones(len(b))], axis=-1)  # (q, 2)
        value, d1, d2 = scalar(a, b, y)
        return mask * value, mask * d1, mask * d2

    def grad_minus_ratio(u: Array) -> Array:
        return np.stack([-1.0 / u[:, 1], u[:, 0] / u[:, 1] / u[:, 1]], axis=-1)

    if name in LOSSES:
        return Objective(name, 1, True, scalar, lambda u: u[:, 0], np.ones_like)
    if name == "kl-opauc":
        return Objective(name, 1, False, exponential, lambda u: lam * np.log(u[:, 0]), lambda u: lam / u, exponent, lam)
    if name == "auprc":
        return Objective(name, 2, False, labelled, lambda u: -u[:, 0] / u[:, 1], grad_minus_ratio)
    if name == "p-norm-push":
        return Objective(name, 1, False, scalar, lambda u: u[:, 0] ** p, lambda u: p * u ** (p - 1.0))
    raise ValueError(f"unknown objective {name!r}")


def inner_mean(objective: Objective, a: Array, b: Array, y: Array, weight: Array) -> Array:
    """mean_j weight_j l(a_i, b_j), (|a|, m); its logarithm for kl-opauc."""
    if objective.exponent is None:
        return (weight[:, None] * objective.inner(a, b, y)[0]).mean(axis=1)
    log_l = objective.exponent(a, b)[0] + np.log(weight)
    return np.logaddexp.reduce(log_l, axis=1, keepdims=True) - np.log(len(b))


def track(objective: Objective, u: Array, new: Array, gamma: float) -> Array:
    """(8): u <- (1 - gamma) * u + gamma * new, of logarithms for kl-opauc; u = NaN (no visit) becomes new."""
    if objective.exponent is None:
        moved = (1.0 - gamma) * u + gamma * new
    else:
        with np.errstate(divide="ignore", invalid="ignore"):  # log 0 at gamma = 1; u = NaN
            moved = np.logaddexp(np.log1p(-gamma) + u, np.log(gamma) + new)
    return np.where(np.isnan(u), new, moved)


def chain(objective: Objective, u: Array, a: Array, b: Array, y: Array, bound: float = np.inf) -> tuple[Array, Array]:
    """f'(u_i) . dl(a_i, b_j)/da and f'(u_i) . dl(a_i, b_j)/db, (|a|, |b|).

    `bound` is |S_2|, for the u of the lazy half. The exact u is never below l(a_i, b_j) / |S_2|, and in auprc, where a
    sample is its own partner, u2 is never below l(a, a) / |S_2|. A u from another step can be, down to 0 if a surrogate
    vanishes: kl-opauc then takes l/u = |S_2|, and auprc u2 = l(a, a) / |S_2|. A u that has just observed the pairs at
    hand needs no bound: it is 0 only where all their l are, and their derivatives with them.
    """
    if objective.name == "auprc":
        zero = np.zeros(1)
        own = objective.inner(zero, zero, np.ones(1))[0][0, 0, 1]  # l(a, a)
        floor = max(own / bound, np.finfo(float).tiny)
        u = np.stack([u[:, 0], np.maximum(u[:, 1], floor)], axis=-1)
    if objective.exponent is None:
        _, d1, d2 = objective.inner(a, b, y)
        df = objective.grad_f(u)[:, None, :]
        return (df * d1).sum(axis=-1), (df * d2).sum(axis=-1)
    log_l, d1, d2 = objective.exponent(a, b)
    ratio = np.exp(np.minimum(log_l - u, np.log(bound)))  # lam / u * l / lam
    return ratio * d1, ratio * d2


def union(clients: Sequence[Client]) -> Client:
    X1, X2, y2 = (np.concatenate(parts) for parts in zip(*clients, strict=True))
    return X1, X2, y2


def full_objective(objective: Objective, score: Score, w: Array, clients: Sequence[Client]) -> float:
    """F(w) of (1) on the union of the clients' data."""
    X1, X2, y2 = union(clients)
    u = inner_mean(objective, score(w, X1), score(w, X2), y2, np.ones(len(X2)))
    value = objective.f(u) if objective.exponent is None else objective.lam * u
    return float(value.mean())


# A round's results, and the server's state.


class Pool(NamedTuple):
    score: Array  # (P,)
    weight: Array  # (P,)
    extra: Array  # positives: u (P, m), NaN if not yet known, (P, 0) in FedX1; partners: labels (P,)


class Step(NamedTuple):
    w: Array  # (d,) after the step
    momentum: Array | None  # (d,) G; None without momentum
    u: Array | None  # (n1, m) the client's table after the step, NaN = never visited; log u for kl-opauc


class Round(NamedTuple):
    round: int
    participants: list[int]
    w: Array  # (d,) after averaging
    momentum: Array | None  # (d,) after averaging
    steps: dict[int, list[Step]]  # by client
    positives: Pool | None = None  # the server's pool after this round
    partners: Pool | None = None


Entries = tuple[int, Array, Array]  # a client, the scores it recorded in one round by step, their extra


def omegas(clients: Sequence[Client]) -> tuple[Array, Array]:
    """omega_1i = N |S_1^i| / |S_1| and omega_2j = N |S_2^j| / |S_2|."""
    n1, n2 = (np.array([len(client[side]) for client in clients]) for side in (0, 1))
    return len(clients) * n1 / n1.sum(), len(clients) * n2 / n2.sum()


def pool(history: Sequence[Sequence[Entries]], omega: Array) -> Pool:
    """The entries of some rounds, weighted so that the pool's mean equals the mean in (2) and (6):

    the mean over the T rounds of (1 / |P^r|) sum_{j in P^r} omega_j (mean over the n_rj entries of client j).
    """
    total = sum(len(score) for entries in history for _, score, _ in entries)
    weight = [
        np.full(len(score), omega[j] * total / (len(history) * len(entries) * max(len(score), 1)))
        for entries in history
        for j, score, _ in entries
    ]
    scores = [score for entries in history for _, score, _ in entries]
    extras = [extra for entries in history for _, _, extra in entries]
    return Pool(np.concatenate(scores), np.concatenate(weight), np.concatenate(extras))


def take(pool: Pool, indices: Index) -> tuple[Array, Array, Array]:
    score, weight, extra = (column[np.asarray(indices, dtype=int)] for column in pool)
    return score, weight, extra


def pick(client: Client, indices: tuple[Index, Index]) -> tuple[Array, Array, Array, NDArray[np.int_]]:
    """Return a client's batch X1, X2, y2, and the batch's indices in X1."""
    i1, i2 = (np.asarray(i, dtype=int) for i in indices)
    X1, X2, y2 = client
    return X1[i1], X2[i2], y2[i2], i1


def scoring_round(
    score: Score, clients: Sequence[Client], w: Array, local_steps: int, batches: Indices, m: int
) -> tuple[list[Entries], list[Entries]]:
    """Lines 3-4: every client scores its K batches with the initial model; no positive has a u yet."""
    entries1, entries2 = [], []
    for i, client in enumerate(clients):
        taken = [pick(client, batches(i, 0, k)) for k in range(local_steps)]
        scores = [(score(w, X1), score(w, X2)) for X1, X2, _, _ in taken]
        a, b = (np.concatenate(side) for side in zip(*scores, strict=True))
        entries1.append((i, a, np.full((len(a), m), np.nan)))
        entries2.append((i, b, np.concatenate([y for _, _, y, _ in taken])))
    return entries1, entries2


def fedx1(
    objective: Objective,
    score: Score,
    jacobian: Jacobian,
    clients: Sequence[Client],
    w: Array,
    rounds: int,
    local_steps: int,
    learning_rate: Callable[[int], float],
    batches: Indices,
    draws: Indices,
    participants: Callable[[int], Sequence[int]] | None = None,
    tau: int = 1,
) -> Iterator[Round]:
    """Algorithm 1, f linear. Yields `rounds + 1` records, from round 0 on. No `participants`: all clients."""
    omega1, omega2 = omegas(clients)
    everyone = list(range(len(clients)))
    entries1, entries2 = scoring_round(score, clients, w, local_steps, batches, 0)
    history1, history2 = [entries1], [entries2]
    positives, partners = pool(history1, omega1), pool(history2, omega2)
    yield Round(0, everyone, w, None, {}, positives, partners)
    for r in range(1, rounds + 1):
        chosen = everyone if participants is None else list(participants(r))
        entries1, entries2, steps = [], [], {}
        for i in chosen:
            w_i, steps[i], recorded = w, [], []
            for k in range(local_steps):
                X1, X2, y, _ = pick(clients[i], batches(i, r, k))  # line 11
                i1, i2 = draws(i, r, k)
                a_lazy, weight1, _ = take(positives, i1)  # line 12
                b_lazy, weight2, y_lazy = take(partners, i2)
                a, b = score(w_i, X1), score(w_i, X2)  # line 13
                recorded.append((a, b, y))  # line 14
                gradient = np.zeros_like(w)
                if len(a) and len(b_lazy):  # (4), active positives
                    d1 = objective.inner(a, b_lazy, y_lazy)[1][..., 0]  # (B1, lazy)
                    gradient += omega1[i] * (d1 * weight2).mean(axis=1) @ jacobian(w_i, X1) / len(a)
                if len(b) and len(a_lazy):  # (5), active partners
                    d2 = objective.inner(a_lazy, b, y)[2][..., 0]  # (lazy, B2)
                    gradient += omega2[i] * (weight1 @ d2 / len(a_lazy)) @ jacobian(w_i, X2) / len(b)
                w_i = w_i - learning_rate((r - 1) * local_steps + k) * gradient  # line 16
                steps[i].append(Step(w_i, None, None))
            a, b, y = (np.concatenate(side) for side in zip(*recorded, strict=True))
            entries1.append((i, a, np.empty((len(a), 0))))
            entries2.append((i, b, y))
        history1, history2 = [*history1, entries1][-tau:], [*history2, entries2][-tau:]  # line 23
        positives, partners = pool(history1, omega1), pool(history2, omega2)
        w = np.mean([steps[i][-1].w for i in chosen], axis=0)  # line 26
        yield Round(r, chosen, w, None, steps, positives, partners)


def fedx2(
    objective: Objective,
    score: Score,
    jacobian: Jacobian,
    clients: Sequence[Client],
    w: Array,
    rounds: int,
    local_steps: int,
    learning_rate: Callable[[int], float],
    batches: Indices,
    draws: Indices,
    participants: Callable[[int], Sequence[int]] | None = None,
    tau: int = 1,
    gamma: float = 1.0,
    beta: float = 1.0,
) -> Iterator[Round]:
    """Algorithms 2 and 3, f non-linear. Yields `rounds + 1` records, from round 0 on."""
    omega1, omega2 = omegas(clients)
    everyone = list(range(len(clients)))
    size2 = sum(len(X2) for _, X2, _ in clients)  # bounds l/u of the lazy half
    u = [np.full((len(X1), objective.m), np.nan) for X1, _, _ in clients]  # line 2
    entries1, entries2 = scoring_round(score, clients, w, local_steps, batches, objective.m)
    history1, history2 = [entries1], [entries2]
    positives, partners = pool(history1, omega1), pool(history2, omega2)
    momentum = None
    yield Round(0, everyone, w, momentum, {}, positives, partners)
    for r in range(1, rounds + 1):
        chosen = everyone if participants is None else list(participants(r))
        entries1, entries2, steps = [], [], {}
        for i in chosen:
            w_i, m_i, steps[i], recorded = w, momentum, [], []
            for k in range(local_steps):
                X1, X2, y, visited = pick(clients[i], batches(i, r, k))  # line 11
                i1, i2 = draws(i, r, k)
                a_lazy, weight1, u_lazy = take(positives, i1)  # line 12
                b_lazy, weight2, y_lazy = take(partners, i2)
                a, b = score(w_i, X1), score(w_i, X2)  # line 13
                gradient = np.zeros_like(w)
                if len(a) and len(b_lazy):  # active positives
                    observed = inner_mean(objective, a, b_lazy, y_lazy, weight2)
                    u[i][visited] = track(objective, u[i][visited], observed, gamma)  # line 15, (8)
                    d1, _ = chain(objective, u[i][visited], a, b_lazy, y_lazy)  # (B1, lazy), (9)
                    gradient += omega1[i] * (d1 * weight2).mean(axis=1) @ jacobian(w_i, X1) / len(a)
                if len(b) and len(a_lazy):  # active partners
                    unknown = np.isnan(u_lazy[:, 0])  # scored before it had a u
                    if len(b_lazy):
                        u_lazy[unknown] = inner_mean(objective, a_lazy[unknown], b_lazy, y_lazy, weight2)
                    else:  # nothing to estimate its u from: it contributes zero
                        u_lazy[unknown], weight1[unknown] = 1.0, 0.0
                    _, d2 = chain(objective, u_lazy, a_lazy, b, y, bound=size2)  # (lazy, B2), (9)
                    gradient += omega2[i] * (weight1 @ d2 / len(a_lazy)) @ jacobian(w_i, X2) / len(b)
                m_i = gradient if m_i is None else (1.0 - beta) * m_i + beta * gradient  # line 17
                w_i = w_i - learning_rate((r - 1) * local_steps + k) * m_i  # line 18
                recorded.append((a, b, y, u[i][visited]))  # lines 14-15
                steps[i].append(Step(w_i, m_i, u[i].copy()))
            a, b, y, u_recorded = (np.concatenate(side) for side in zip(*recorded, strict=True))
            entries1.append((i, a, u_recorded))
            entries2.append((i, b, y))
        history1, history2 = [*history1, entries1][-tau:], [*history2, entries2][-tau:]  # line 25
        positives, partners = pool(history1, omega1), pool(history2, omega2)
        w = np.mean([steps[i][-1].w for i in chosen], axis=0)  # line 27
        momentum = np.mean([steps[i][-1].momentum for i in chosen], axis=0)
        yield Round(r, chosen, w, momentum, steps, positives, partners)


# Baselines of Tables 1 and 2. Their first record belongs to round 1.


def local_pair(
    objective: Objective,
    score: Score,
    jacobian: Jacobian,
    clients: Sequence[Client],
    w: Array,
    rounds: int,
    local_steps: int,
    learning_rate: Callable[[int], float],
    batches: Indices,
    participants: Callable[[int], Sequence[int]] | None = None,
    gamma: float = 1.0,
    beta: float = 1.0,
) -> Iterator[Round]:
    """The same loss on the pairs inside a client's batch, both sides active; no momentum if f is linear.

    For one client with the union of the data it is SOX, or for a linear f mini-batch SGD on pairs.
    """
    u = [np.full((len(X1), objective.m), np.nan) for X1, _, _ in clients]
    momentum = None
    for r in range(1, rounds + 1):
        chosen = list(range(len(clients))) if participants is None else list(participants(r))
        steps: dict[int, list[Step]] = {}
        for i in chosen:
            w_i, m_i, steps[i] = w, momentum, []
            for k in range(local_steps):
                X1, X2, y, visited = pick(clients[i], batches(i, r, k))
                a, b = score(w_i, X1), score(w_i, X2)
                gradient = np.zeros_like(w)
                if len(a) and len(b):
                    observed = inner_mean(objective, a, b, y, np.ones(len(b)))
                    u[i][visited] = track(objective, u[i][visited], observed, gamma)
                    d1, d2 = chain(objective, u[i][visited], a, b, y)  # (B1, B2) each
                    gradient += d1.mean(axis=1) @ jacobian(w_i, X1) / len(a)
                    gradient += d2.mean(axis=0) @ jacobian(w_i, X2) / len(b)
                m_i = gradient if m_i is None or objective.linear else (1.0 - beta) * m_i + beta * gradient
                w_i = w_i - learning_rate((r - 1) * local_steps + k) * m_i
                steps[i].append(Step(w_i, None if objective.linear else m_i, u[i].copy()))
        w = np.mean([steps[i][-1].w for i in chosen], axis=0)
        if not objective.linear:
            momentum = np.mean([steps[i][-1].momentum for i in chosen], axis=0)
        yield Round(r, chosen, w, momentum, steps)


def local_sgd(
    score: Score,
    jacobian: Jacobian,
    clients: Sequence[tuple[Array, Array]],
    w: Array,
    rounds: int,
    local_steps: int,
    learning_rate: Callable[[int], float],
    batches: Callable[[int, int, int], Index],
    participants: Callable[[int], Sequence[int]] | None = None,
) -> Iterator[Round]:
    """Binary cross-entropy on logits, plain averaging; a client is X (n, features), y (n,) in {0, 1}."""
    for r in range(1, rounds + 1):
        chosen = list(range(len(clients))) if participants is None else list(participants(r))
        steps: dict[int, list[Step]] = {}
        for i in chosen:
            w_i, steps[i] = w, []
            for k in range(local_steps):
                batch = np.asarray(batches(i, r, k), dtype=int)
                X, y = clients[i][0][batch], clients[i][1][batch]
                gradient = (sigmoid(score(w_i, X)) - y) @ jacobian(w_i, X) / max(len(y), 1)
                w_i = w_i - learning_rate((r - 1) * local_steps + k) * gradient
                steps[i].append(Step(w_i, None, None))
        w = np.mean([steps[i][-1].w for i in chosen], axis=0)
        yield Round(r, chosen, w, None, steps)
