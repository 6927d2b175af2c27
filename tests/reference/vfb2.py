"""Plain NumPy reference of VFB2, asynchronous vertical federated learning with backward updating, in float64.

Source: "Secure Bilevel Asynchronous Vertical Federated Learning with Backward Updating" (VFB2): problems (13), (14),
(17), (18); Algorithms 2 to 7; AFSVRG-VP as its experiments use it. Label privacy: randomised response with the unbiased
loss of "Learning with noisy labels" (Natarajan et al. 2013).

    f(w) = mean_i L(z_i, y_i) + lambda * sum_j g(w_j),   z = sum_p X_p w_p

    symbol in the paper                        name here
    q parties, l; m active parties             `parties`, p in 0..q-1; `active`, place k is the party active[k]
    lambda, gamma                              `weight`, `step`
    theta = dL/dz; theta_0; table alpha        `theta` (b,); `Party.theta0` (n,); `Party.alpha` (n,)

Differences from the paper's boxes:
- A batch of rows stands for the paper's one index i. Batches come from one permutation an epoch, cut among the active
  parties; see `batches`. The paper draws i with replacement.
- SAGA keeps the loss alone in its table and evaluates the regulariser at the current block. The boxes of Algorithms 6
  and 7 put the regulariser into the table as well; both have the same mean, but not the same iterates. For SVRG the
  regulariser at w^s cancels, so there is one version.

Only the batches are random; they are addressed by (seed, epoch).
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from problems.randomness import stream

Array = NDArray[np.float64]
Index = NDArray[np.int64]
Epoch = Sequence[Sequence[Index]]  # the batches of every place


# The four problems.


class Problem:
    """`name` logistic (13), nonconvex-logistic (14), ridge (17), robust (18); `weight` is lambda. z, y are (k,)."""

    def __init__(self, name: str, weight: float) -> None:
        if name not in ("logistic", "nonconvex-logistic", "ridge", "robust"):
            raise ValueError(f"unknown problem {name!r}")
        self.name, self.weight = name, weight

    def losses(self, z: Array, y: Array) -> Array:
        if self.name == "ridge":
            return np.square(z - y)
        if self.name == "robust":
            return np.log((y - z) ** 2 / 2 + 1)
        return np.logaddexp(0.0, -y * z)

    def thetas(self, z: Array, y: Array) -> Array:
        if self.name == "ridge":
            return 2 * (z - y)
        if self.name == "robust":
            return (z - y) / ((y - z) ** 2 / 2 + 1)
        return -y * np.exp(-np.logaddexp(0.0, y * z))

    def penalty(self, w: Array) -> float:
        """lambda * sum_j g(w_j)."""
        g = (w**2 / (1 + w**2)) / 2 if self.name == "nonconvex-logistic" else w**2 / 2
        return self.weight * float(np.sum(g))

    def penalty_slope(self, w: Array) -> Array:
        """lambda * g'(w), (d,)."""
        return self.weight * (w / (1 + w**2) ** 2 if self.name == "nonconvex-logistic" else w)

    def value(self, X: Array, y: Array, w: Array) -> float:
        return float(np.mean(self.losses(X @ w, y))) + self.penalty(w)

    def sample_gradients(self, X: Array, y: Array, w: Array) -> Array:
        """theta_i x_i of every row, without the regulariser: (k, d)."""
        return self.thetas(X @ w, y)[:, None] * X

    def gradient(self, X: Array, y: Array, w: Array) -> Array:
        mean: Array = self.sample_gradients(X, y, w).mean(axis=0)
        return mean + self.penalty_slope(w)


class Nonsmooth:
    """R(w) = weight * sum_j |w_j|, or with `together` weight * sum_g sqrt(|g|) ||w_g||, over the columns of group >= 0.

    The proximal SGD, SVRG and SAGA of Duchi & Singer 2009, Xiao & Zhang 2014 and Defazio et al. 2014: each update's
    w - step * v becomes prox_{step R}(w - step * v) = argmin_u step * R(u) + ||u - (w - step * v)||^2 / 2.
    """

    def __init__(self, weight: float, groups: Sequence[int], together: bool) -> None:
        self.weight, self.groups, self.together = weight, np.array(groups), together

    def _parts(self) -> list[Index]:
        numbers = range(len(self.groups)) if not self.together else sorted(set(self.groups.tolist()) - {-1})
        owner = self.groups if self.together else np.where(self.groups < 0, -1, np.arange(len(self.groups)))
        return [np.flatnonzero(owner == number) for number in numbers if (owner == number).any()]

    def value(self, w: Array) -> float:
        return self.weight * sum(float(np.sqrt(len(own)) * np.linalg.norm(w[own])) for own in self._parts())

    def prox(self, w: Array, step: float) -> Array:
        w = w.copy()
        for own in self._parts():
            length, cut = np.linalg.norm(w[own]), step * self.weight * np.sqrt(len(own))
            w[own] = 0.0 if length <= cut else w[own] * (1 - cut / length)
        return w


def batches(rows: int, places: int, batch_size: int, seed: int, epoch: int) -> list[list[Index]]:
    """The batches of every place in `epoch`: one permutation, a contiguous slice a place; batch_size 0: the slice."""
    permutation = stream(seed, "vertical batches", epoch).permutation(rows)
    result = []
    for part in np.array_split(permutation, places):
        size = batch_size or max(len(part), 1)
        result.append([part[i : i + size].astype(np.int64) for i in range(0, len(part), size)])
    return result


def rounds(epoch: Epoch) -> list[list[tuple[int, Index]]]:
    """The synchronous order: round t has (place, its t-th batch), without the places that have run out."""
    longest = max(len(own) for own in epoch)
    return [[(k, own[t]) for k, own in enumerate(epoch) if t < len(own)] for t in range(longest)]


# All data in one place.


def centralised(
    problem: Problem,
    X: Array,
    y: Array,
    algorithm: str,
    step: float,
    epochs: Sequence[Epoch],
    w: Array | None = None,
    *,
    hook: Callable[[Array], None] | None = None,
    frozen: Sequence[int] = (),
    nonsmooth: Nonsmooth | None = None,
) -> Array:
    """SGD, SVRG or SAGA by full gradients, (d,); epochs[e][k] the batches of place k. hook(w) follows every update.

    The updates of one round are evaluated at one point and applied in the order of the places; the regulariser is taken
    at the point of application. With one place this is the plain algorithm. Columns in `frozen` never change.
    """
    n, d = X.shape
    w = np.zeros(d) if w is None else w.copy()
    free = np.array([j not in frozen for j in range(d)], dtype=np.float64)
    if algorithm not in ("sgd", "svrg", "saga"):
        raise ValueError(f"unknown algorithm {algorithm!r}")
    table = problem.sample_gradients(X, y, w)
    for epoch in epochs:
        anchor = w  # w^s
        for turn in rounds(epoch):
            read = w
            for _, B in turn:
                new = problem.sample_gradients(X[B], y[B], read)  # (b, d)
                v = new.mean(axis=0) + problem.penalty_slope(w)
                if algorithm == "svrg":
                    v = v - problem.gradient(X[B], y[B], anchor) + problem.gradient(X, y, anchor)
                if algorithm == "saga":
                    v = v - table[B].mean(axis=0) + table.sum(axis=0) / n
                    table[B] = new
                w = w - step * free * v
                if nonsmooth is not None:
                    w = nonsmooth.prox(w, step)
                if hook is not None:
                    hook(w.copy())
    return w


# The model split into blocks.


class Party:
    """One party's columns X (n, d_p), its block w and what its algorithm keeps; a frozen party never updates.

    `frozen` makes AFSVRG-VP of SVRG: parties without labels have no way to update there.
    """

    def __init__(
        self, X: Array, problem: Problem, algorithm: str, step: float, w: Array | None = None, frozen: bool = False
    ) -> None:
        self.X, self.problem, self.algorithm, self.step, self.frozen = X, problem, algorithm, step, frozen
        self.w = np.zeros(X.shape[1]) if w is None else w.copy()
        self.theta0, self.alpha = np.zeros(len(X)), np.zeros(len(X))  # the thetas of the snapshot, the table
        self.mean = np.zeros(X.shape[1])  # X^T theta0 / n, or X^T alpha / n

    def partial(self, B: Index) -> Array:
        return self.X[B] @ self.w

    def remember(self, theta: Array) -> None:
        """Algorithms 4 and 5, lines 3-4; Algorithm 6, line 2: the thetas of all rows, (n,)."""
        self.theta0, self.alpha = theta.copy(), theta.copy()
        self.mean = self.X.T @ theta / len(self.X)

    def apply(self, B: Index, theta: Array) -> None:
        """The last lines of Algorithms 2 to 7 on this block."""
        if self.frozen:
            return
        direction = self.problem.penalty_slope(self.w)
        if self.algorithm == "sgd":
            direction = direction + self.X[B].T @ theta / len(B)
        elif self.algorithm == "svrg":
            direction = direction + self.X[B].T @ (theta - self.theta0[B]) / len(B) + self.mean
        elif self.algorithm == "saga":
            change = self.X[B].T @ (theta - self.alpha[B])
            direction = direction + change / len(B) + self.mean
            self.mean = self.mean + change / len(self.X)
            self.alpha[B] = theta
        else:
            raise ValueError(f"unknown algorithm {self.algorithm!r}")
        self.w = self.w - self.step * direction


def make_parties(
    problem: Problem,
    X: Array,
    columns: Sequence[Index],
    algorithm: str,
    step: float,
    w: Array | None = None,
    frozen: Iterable[int] = (),
) -> list[Party]:
    """Return the parties; party p has the columns columns[p] of X (n, d) and of w (d,)."""
    start, still = np.zeros(X.shape[1]) if w is None else w, set(frozen)
    return [Party(X[:, c], problem, algorithm, step, start[c], p in still) for p, c in enumerate(columns)]


def full_pass(problem: Problem, parties: Sequence[Party], y: Array, places: int) -> Array:
    """Make every party remember the thetas (n,) of the current point; place k computes the thetas of the k-th chunk of
    rows."""
    chunks = np.array_split(np.arange(len(y)), places)
    theta = np.concatenate([problem.thetas(_sum([p.partial(c) for p in parties]), y[c]) for c in chunks])
    for party in parties:
        party.remember(theta)
    return theta


def _sum(vectors: Sequence[Array]) -> Array:
    total = np.zeros_like(vectors[0])
    for vector in vectors:
        total = total + vector
    return total


# Asynchronous runs: what every party did, in its own order.


class Event(NamedTuple):
    """In the log of party p. "partial": p computed its partial of update (active, update), p != active. "theta": p, the
    dominator `active`, computed its own partial and theta. "apply": p applied that theta, the dominator's own included.

    `active` is a party, not a place; `update` counts from 0 over all epochs of the log.
    """

    kind: Literal["partial", "theta", "apply"]
    active: int
    update: int


Logs = Sequence[Sequence[Event]]  # one log a party


def replay(
    problem: Problem,
    parties: Sequence[Party],
    y: Array,
    active: Sequence[int],
    epochs: Sequence[Epoch],
    logs: Logs,
) -> list[Array]:
    """The blocks, (d_p,) each, of the run that wrote `logs`, computed again; changes `parties`. The order within each
    party is all that matters.

    SVRG: every log must finish an epoch before it starts the next; there the snapshot is taken. SAGA fills its
    table first.
    ValueError: no run can write the log.
    """
    rows, epoch_of = _updates(active, epochs)
    partials: dict[tuple[int, int, int], Array] = {}
    thetas: dict[tuple[int, int], Array] = {}
    applied: set[tuple[int, int, int]] = set()

    def done(p: int, event: Event) -> bool:
        """Execute the event, or return False if its inputs do not exist yet."""
        kind, a, t = event
        if (a, t) not in rows:
            raise ValueError(f"party {p}: {event} is not an update of this schedule")
        key, B, others = (p, a, t), rows[a, t], [r for r in range(len(parties)) if r != a]
        if kind == "partial":
            if p == a or key in partials:
                raise ValueError(f"party {p}: {event} by the dominator, or for the second time")
            partials[key] = parties[p].partial(B)
        elif kind == "theta":
            if p != a or (a, t) in thetas:
                raise ValueError(f"party {p}: {event} by another than the dominator, or for the second time")
            if any((r, a, t) not in partials for r in others):
                return False
            z = _sum([parties[a].partial(B), *(partials[r, a, t] for r in others)])
            thetas[a, t] = problem.thetas(z, y[B])
        elif kind == "apply":
            if key in applied:
                raise ValueError(f"party {p}: {event} for the second time")
            if (a, t) not in thetas:
                return False
            parties[p].apply(B, thetas[a, t])
            applied.add(key)
        else:
            raise ValueError(f"party {p}: unknown event {event}")
        return True

    algorithm = parties[0].algorithm
    for number, stage in enumerate(_stages(logs, epoch_of, len(epochs)) if algorithm == "svrg" else [logs]):
        if algorithm == "svrg" or (algorithm == "saga" and number == 0):
            full_pass(problem, parties, y, len(active))
        queues = [deque(log) for log in stage]
        while any(queues):
            before = sum(map(len, queues))
            for p, queue in enumerate(queues):
                while queue and done(p, queue[0]):
                    queue.popleft()
            if sum(map(len, queues)) == before:
                waiting = {p: queue[0] for p, queue in enumerate(queues) if queue}
                raise ValueError(f"the logs wait for one another: {waiting}")
    missing = [(p, a, t) for p in range(len(parties)) for a, t in rows if (p, a, t) not in applied]
    if missing:
        raise ValueError(f"never applied: {missing[:3]} (party, active, update)")
    return [party.w.copy() for party in parties]


def _updates(
    active: Sequence[int], epochs: Sequence[Epoch]
) -> tuple[dict[tuple[int, int], Index], dict[tuple[int, int], int]]:
    """(a, t) -> its rows, and (a, t) -> its epoch; t counts over all epochs."""
    rows: dict[tuple[int, int], Index] = {}
    epoch_of: dict[tuple[int, int], int] = {}
    for k, a in enumerate(active):
        for t, (e, B) in enumerate((e, B) for e, epoch in enumerate(epochs) for B in epoch[k]):
            rows[a, t], epoch_of[a, t] = B, e
    return rows, epoch_of


def _stages(logs: Logs, epoch_of: Mapping[tuple[int, int], int], epochs: int) -> list[list[list[Event]]]:
    """Return the logs cut at the epochs; raise ValueError if one returns to an earlier epoch."""
    stages: list[list[list[Event]]] = [[[] for _ in logs] for _ in range(epochs)]
    for p, log in enumerate(logs):
        latest = 0
        for event in log:
            e = epoch_of.get((event.active, event.update), latest)
            if e < latest:
                raise ValueError(f"party {p}: {event} of epoch {e} after the snapshot of epoch {latest}")
            latest = e
            stages[e][p].append(event)
    return stages


def _counts(
    active: Sequence[int], counts: Sequence[int], epochs: int, barrier: bool
) -> list[list[tuple[int, int, int]]]:
    """Return (active, its first update, their number) of every stage: an epoch with a barrier, else all epochs
    together."""
    if barrier:
        return [[(a, e * c, c) for a, c in zip(active, counts, strict=True)] for e in range(epochs)]
    return [[(a, 0, epochs * c) for a, c in zip(active, counts, strict=True)]]


def may_send(t: int, a: int, applied: Mapping[int, int], number: Mapping[int, int], window: int, skew: int) -> bool:
    """Return whether a party that has applied applied[b] of the number[b] updates of every dominator b may
    send (a, t)."""
    unfinished = [applied[b] for b in applied if applied[b] < number[b]]
    return t < number[a] and t - applied[a] < window and t - min(unfinished) <= skew


def check_logs(
    logs: Logs, active: Sequence[int], counts: Sequence[int], epochs: int, window: int, skew: int, barrier: bool
) -> None:
    """Raise ValueError if a party sent a partial or applied a theta out of order, or sent one outside window or
    skew."""
    for p, log in enumerate(logs):
        events = iter(log)
        for stage in _counts(active, counts, epochs, barrier):
            number, first = {a: c for a, _, c in stage}, {a: f for a, f, _ in stage}
            nexts = {(kind, a): 0 for a in active for kind in ("apply", "theta" if p == a else "partial")}
            for _ in range(2 * sum(number.values())):  # one partial or theta, and one apply, of every update
                event = next(events, None)
                if event is None or event.update - first.get(event.active, 0) != nexts.get((event.kind, event.active)):
                    raise ValueError(f"party {p}: {event} is out of order")
                t, applied = nexts[event.kind, event.active], {a: nexts["apply", a] for a in active}
                if event.kind == "partial" and not may_send(t, event.active, applied, number, window, skew):
                    raise ValueError(f"party {p}: {event} outside window {window}, skew {skew} or its epoch")
                nexts[event.kind, event.active] += 1
        if next(events, None) is not None:
            raise ValueError(f"party {p}: events after the last update")


# Label privacy.


def flip_rate(epsilon: float) -> float:
    """Return the probability r of a flip that makes one label epsilon-differentially private: (1 - r) / r =
    e^epsilon."""
    return 1 / (1 + float(np.exp(epsilon)))


def correction(rate: float) -> tuple[float, float]:
    """Return the weights of l(z, y) and l(z, -y) in the corrected loss: Natarajan et al., Lemma 1, with equal rates."""
    return (1 - rate) / (1 - 2 * rate), -rate / (1 - 2 * rate)


class Corrected(Problem):
    """A problem with labels -1/+1 whose loss, averaged over the flips of a label, equals the true label's loss."""

    def __init__(self, name: str, weight: float, rate: float) -> None:
        super().__init__(name, weight)
        if name not in ("logistic", "nonconvex-logistic") or not 0 <= rate < 0.5:
            raise ValueError(f"no correction of {name!r} at a flip rate of {rate}")
        self.rate = rate

    def losses(self, z: Array, y: Array) -> Array:
        at_label, at_other = correction(self.rate)
        return at_label * super().losses(z, y) + at_other * super().losses(z, -y)

    def thetas(self, z: Array, y: Array) -> Array:
        at_label, at_other = correction(self.rate)
        return at_label * super().thetas(z, y) + at_other * super().thetas(z, -y)
