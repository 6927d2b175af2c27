"""Plain NumPy reference of VFB2, asynchronous vertical federated learning with backward updating, in float64.

Source: "Secure Bilevel Asynchronous Vertical Federated Learning with Backward Updating" (VFB2): problems (13), (14),
(17), (18); Algorithms 1 to 7; Definition 4 and Figure 5 on pairs of trees; AFSVRG-VP as its experiments use it.
Label privacy: randomised response with the unbiased loss of "Learning with noisy labels" (Natarajan et al. 2013).

    f(w) = mean_i L(z_i, y_i) + lambda * sum_j g(w_j),   z = sum_p X_p w_p

    symbol in the paper                        name here
    q parties, l; m active parties             `parties`, p in 0..q-1; `active`, place k is the party active[k]
    lambda, gamma                              `weight`, `step`
    theta = dL/dz; theta_0; table alpha        `theta` (b,); `Party.theta0` (n,); `Party.alpha` (n,)
    T_1, T_2                                   `first`, `second`: the parent of every party, -1 at the root
    xi_1, xi_2; delta                          masked sums and sums of masks; `masks`

Where this differs from the paper's boxes:
- A batch of rows stands for the paper's one index i. Batches come from one permutation an epoch, cut among the active
  parties; see `batches`. The paper draws i with replacement.
- SAGA keeps the loss alone in its table and evaluates the regulariser at the current block. The boxes of Algorithms 6
  and 7 put the regulariser into the table as well; both have the same mean, but not the same iterates.
  `centralised(..., paper_table=True)` is the boxes. For SVRG the regulariser at w^s cancels, so there is one version.

Nothing is random but what the caller draws: batches are addressed by (seed, epoch), logs and labels take a generator.
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from fractions import Fraction
from typing import Literal, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from problems.randomness import stream

Array = NDArray[np.float64]
Index = NDArray[np.int64]
Epoch = Sequence[Sequence[Index]]  # the batches of every place
Rate = TypeVar("Rate", float, Fraction)


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
    paper_table: bool = False,
) -> Array:
    """SGD, SVRG or SAGA by full gradients, (d,); epochs[e][k] the batches of place k. hook(w) follows every update.

    The updates of one round are evaluated at one point and applied in the order of the places; the regulariser is that
    of the point as it is applied. With one place this is the plain algorithm. Columns in `frozen` never change.
    """
    n, d = X.shape
    w = np.zeros(d) if w is None else w.copy()
    free = np.array([j not in frozen for j in range(d)], dtype=np.float64)
    if algorithm not in ("sgd", "svrg", "saga"):
        raise ValueError(f"unknown algorithm {algorithm!r}")
    table = problem.sample_gradients(X, y, w) + paper_table * problem.penalty_slope(w)
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
                    table[B] = new + paper_table * problem.penalty_slope(w)
                w = w - step * free * v
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
    """Party p holds the columns columns[p] of X (n, d) and of w (d,)."""
    start, still = np.zeros(X.shape[1]) if w is None else w, set(frozen)
    return [Party(X[:, c], problem, algorithm, step, start[c], p in still) for p, c in enumerate(columns)]


def whole(parties: Sequence[Party], columns: Sequence[Index]) -> Array:
    """The model (d,) put together again from the blocks."""
    w = np.zeros(sum(len(c) for c in columns))
    for party, c in zip(parties, columns, strict=True):
        w[c] = party.w
    return w


def full_pass(problem: Problem, parties: Sequence[Party], y: Array, places: int) -> Array:
    """Every party remembers the thetas (n,) of the current point; place k computes those of the k-th chunk of rows."""
    chunks = np.array_split(np.arange(len(y)), places)
    theta = np.concatenate([problem.thetas(_sum([p.partial(c) for p in parties]), y[c]) for c in chunks])
    for party in parties:
        party.remember(theta)
    return theta


def split(
    problem: Problem,
    parties: Sequence[Party],
    y: Array,
    epochs: Sequence[Epoch],
    *,
    start: bool = True,
    hook: Callable[[], None] | None = None,
) -> None:
    """`centralised`, with partial sums up and theta down; changes `parties`. hook() follows every update.

    SVRG takes a snapshot before every epoch. SAGA fills its table first if `start`; else it goes on with the table.
    """
    for e, epoch in enumerate(epochs):
        if parties[0].algorithm == "svrg" or (parties[0].algorithm == "saga" and start and e == 0):
            full_pass(problem, parties, y, len(epoch))
        for turn in rounds(epoch):
            thetas = [problem.thetas(_sum([p.partial(B) for p in parties]), y[B]) for _, B in turn]
            for (_, B), theta in zip(turn, thetas, strict=True):
                for party in parties:
                    party.apply(B, theta)
                if hook is not None:
                    hook()


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


class Replay(NamedTuple):
    blocks: list[Array]  # (d_p,) each
    thetas: dict[tuple[int, int], Array]  # (active, update) -> (b,)


def replay(
    problem: Problem,
    parties: Sequence[Party],
    y: Array,
    active: Sequence[int],
    epochs: Sequence[Epoch],
    logs: Logs,
    *,
    start: bool = True,
    rounded: bool = False,
) -> Replay:
    """The run that wrote `logs`, computed again; changes `parties`. The order within each party is all that matters.

    SVRG: every log must finish an epoch before it starts the next; there the snapshot is taken. SAGA as in `split`.
    `rounded`: what the dominator receives is summed in the ring, in fixed point. ValueError: no run can write the log.
    """
    rows, epoch_of = _updates(active, epochs)
    partials: dict[tuple[int, int, int], Array] = {}
    thetas: dict[tuple[int, int], Array] = {}
    applied: set[tuple[int, int, int]] = set()

    def done(p: int, event: Event) -> bool:
        """Executes the event, or returns False where its inputs do not exist yet."""
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
            received = [partials[r, a, t] for r in others]
            add = ring_sum if rounded else _sum
            z = parties[a].partial(B) + (add(received) if received else 0.0)
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
        if algorithm == "svrg" or (algorithm == "saga" and start and number == 0):
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
    return Replay([party.w.copy() for party in parties], thetas)


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
    """The logs cut at the epochs; ValueError where one returns to an earlier epoch."""
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
    """(active, its first update, their number) of every stage: an epoch with a barrier, else all epochs together."""
    if barrier:
        return [[(a, e * c, c) for a, c in zip(active, counts, strict=True)] for e in range(epochs)]
    return [[(a, 0, epochs * c) for a, c in zip(active, counts, strict=True)]]


def synchronous_logs(parties: int, active: Sequence[int], counts: Sequence[int], epochs: int) -> list[list[Event]]:
    """The logs of `split`; counts[k]: the updates of place k an epoch."""
    logs: list[list[Event]] = [[] for _ in range(parties)]
    for stage in _counts(active, counts, epochs, barrier=True):
        for t in range(max(counts)):
            turn = [(a, first + t) for a, first, number in stage if t < number]
            for p in range(parties):
                logs[p] += [Event("theta" if p == a else "partial", a, u) for a, u in turn]
                logs[p] += [Event("apply", a, u) for a, u in turn]
    return logs


def random_logs(
    rng: np.random.Generator,
    parties: int,
    active: Sequence[int],
    counts: Sequence[int],
    epochs: int,
    window: int,
    skew: int,
    barrier: bool,
) -> list[list[Event]]:
    """The logs of a legal asynchronous run with parties of random speeds; `barrier` before every epoch, as SVRG has.

    One dominator's frames keep their order on every link. Window: p sends (a, t) after it has applied (a, t - window).
    Skew: p holds back (a, t) while t - the fewest updates it has applied of an unfinished dominator > skew. With a
    barrier t counts from the barrier and a dominator is finished with its epoch: counts that differ by one would
    otherwise drift apart by one an epoch, and `skew` would stop the run for good.
    """
    logs: list[list[Event]] = [[] for _ in range(parties)]
    speeds = rng.exponential(size=parties) + 0.02
    for stage in _counts(active, counts, epochs, barrier):
        number = {a: c for a, _, c in stage}
        sent = {(p, a): 0 for p in range(parties) for a in active}  # the dominator's own: thetas computed
        applied = dict.fromkeys(sent, 0)
        while True:
            ready = []
            for (p, a), t in sent.items():
                if applied[p, a] < sent[a, a] and p != a:
                    ready.append(("apply", p, a))
                if p == a and t < number[a] and all(sent[r, a] > t for r in range(parties) if r != a):
                    ready.append(("theta", p, a))
                if p != a and may_send(t, a, {b: applied[p, b] for b in active}, number, window, skew):
                    ready.append(("partial", p, a))
            if not ready:
                break
            weights = np.array([speeds[p] for _, p, _ in ready])
            kind, p, a = ready[rng.choice(len(ready), p=weights / weights.sum())]
            first = next(f for b, f, _ in stage if b == a)
            if kind == "apply":
                logs[p].append(Event("apply", a, first + applied[p, a]))
                applied[p, a] += 1
            elif kind == "partial":
                logs[p].append(Event("partial", a, first + sent[p, a]))
                sent[p, a] += 1
            else:  # Algorithm 2, lines 3-7: nothing comes between theta and its own update
                logs[a] += [Event("theta", a, first + sent[a, a]), Event("apply", a, first + sent[a, a])]
                sent[a, a] += 1
                applied[a, a] += 1
    return logs


def may_send(t: int, a: int, applied: Mapping[int, int], number: Mapping[int, int], window: int, skew: int) -> bool:
    """Whether a party that has applied applied[b] of the number[b] updates of every dominator b may send (a, t)."""
    unfinished = [applied[b] for b in applied if applied[b] < number[b]]
    return t < number[a] and t - applied[a] < window and t - min(unfinished) <= skew


def check_logs(
    logs: Logs, active: Sequence[int], counts: Sequence[int], epochs: int, window: int, skew: int, barrier: bool
) -> None:
    """ValueError where a party sent a partial or applied a theta out of order, or sent one outside window or skew."""
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


# Masked sums in Z_2^64, in Python's integers.

MODULUS = 1 << 64
SCALE = 1 << 40


def encode(value: float, limit: float = 2.0**22) -> int:
    """round(value * 2^40) mod 2^64, ties to even; ValueError unless |value| < limit."""
    if not abs(value) < limit:
        raise ValueError(f"{value} is not within ({-limit}, {limit})")
    return round(Fraction(value) * SCALE) % MODULUS


def decode(element: int) -> float:
    """The element as a signed number of 2^-40."""
    return float(Fraction((element + MODULUS // 2) % MODULUS - MODULUS // 2, SCALE))


def ring_sum(vectors: Sequence[Array]) -> Array:
    """The sum of float64 vectors (k,) as a dominator gets it through the ring, masks or not."""
    return np.array([decode(sum(encode(float(v)) for v in column) % MODULUS) for column in zip(*vectors, strict=True)])


def pairwise_masks(parties: int, dominator: int, pads: Mapping[tuple[int, int], int]) -> dict[int, int]:
    """The mask of every collaborator: pads[i, j], i < j, is added by i and taken off by j. They sum to 0."""
    others = [p for p in range(parties) if p != dominator]
    return {
        p: (sum(pads[p, r] for r in others if r > p) - sum(pads[r, p] for r in others if r < p)) % MODULUS
        for p in others
    }


# Two trees.


def subtree(parent: Sequence[int], top: int) -> frozenset[int]:
    """`top` and all below it."""
    below = [subtree(parent, p) for p in range(len(parent)) if parent[p] == top]
    return frozenset({top}).union(*below)


def tree_messages(parent: Sequence[int], values: Sequence[int]) -> dict[int, int]:
    """What every party sends to its parent, mod 2^64; the root's own sum stands under the root."""
    return {p: sum(values[r] for r in subtree(parent, p)) % MODULUS for p in range(len(parent))}


def two_trees_sum(first: Sequence[int], second: Sequence[int], values: Sequence[int], masks: Sequence[int]) -> int:
    """Algorithm 1: xi_1 over T_1, xi_2 over T_2, and their difference mod 2^64."""
    xi_1 = tree_messages(first, [v + mask for v, mask in zip(values, masks, strict=True)])[list(first).index(-1)]
    xi_2 = tree_messages(second, masks)[list(second).index(-1)]
    return (xi_1 - xi_2) % MODULUS


def significantly_different(first: Sequence[int], second: Sequence[int]) -> bool:
    """Definition 4: no subtree of T_1 with more than one party, and not all, holds the same parties as one of T_2.

    Figure 5 draws every party's value as a leaf, so leaf(T) is all parties of a subtree. With only its childless
    parties Figure 5 itself would fail: party 4 is below 3 in one tree and below 2 in the other.
    """
    sets = [{subtree(tree, p) for p in range(len(tree))} for tree in (first, second)]
    return not any(1 < len(parties) < len(first) for parties in sets[0] & sets[1])


Row = list[Fraction]


def row_reduce(rows: Iterable[Sequence[int | Fraction]]) -> list[Row]:
    """The reduced row echelon form, exactly, without zero rows."""
    left = [[Fraction(x) for x in row] for row in rows]
    done: list[Row] = []
    for column in range(len(left[0]) if left else 0):
        found = next((row for row in left if row[column]), None)
        if found is None:
            continue
        left.remove(found)
        pivot = [x / found[column] for x in found]
        done = [[x - row[column] * y for x, y in zip(row, pivot, strict=True)] for row in done] + [pivot]
        left = [[x - row[column] * y for x, y in zip(row, pivot, strict=True)] for row in left]
    return done


def exposed(first: Sequence[int], second: Sequence[int], dominator: int, coalition: Iterable[int]) -> list[Row]:
    """A basis, as coefficients of the q partials, of what `coalition` can compute beyond what it may know; [] is sound.

    It has its own partials and masks, what its children send in T_1 (partials + masks) and in T_2 (masks), and at the
    dominator the whole sum of a tree with another root. It may know its own partials and, the dominator, the total.
    """
    q, members = len(first), set(coalition)

    def of(parties: Iterable[int]) -> list[int]:
        return [int(p in set(parties)) for p in range(q)]

    zero = [0] * q
    seen = [row for p in sorted(members) for row in (of({p}) + zero, zero + of({p}))]  # (masks, partials)
    for tree, masked in ((first, True), (second, False)):
        for p in range(q):
            if (dominator if tree[p] == -1 else tree[p]) in members:
                seen.append(of(subtree(tree, p)) + (of(subtree(tree, p)) if masked else zero))
    unmasked = [row[q:] for row in row_reduce(seen) if not any(row[:q])]
    allowed: list[Row] = row_reduce([of({p}) for p in members] + ([[1] * q] if dominator in members else []))
    known, beyond = allowed, list[Row]()
    for row in unmasked:
        if len(row_reduce([*known, row])) > len(known):
            known, beyond = [*known, row], [*beyond, row]
    return beyond


def leaks(first: Sequence[int], second: Sequence[int], dominator: int) -> dict[int, list[Row]]:
    """The corrected check, no collusion: every party that learns too much, and what; {} is a sound pair."""
    found = {p: exposed(first, second, dominator, {p}) for p in range(len(first))}
    return {p: rows for p, rows in found.items() if rows}


# Label privacy.


def flip_rate(epsilon: float) -> float:
    """The probability r of a flip that makes one label epsilon-differentially private: (1 - r) / r = e^epsilon."""
    return 1 / (1 + float(np.exp(epsilon)))


def randomised_response(y: Array, epsilon: float, uniform: Array) -> Array:
    """Labels -1/+1, (n,), each flipped where its `uniform` (n,) draw from [0, 1) is below the rate."""
    return np.where(uniform < flip_rate(epsilon), -y, y)


def correction(rate: Rate) -> tuple[Rate, Rate]:
    """The weights of l(z, y) and l(z, -y) in the corrected loss: Natarajan et al., Lemma 1, with equal rates."""
    return (1 - rate) / (1 - 2 * rate), -rate / (1 - 2 * rate)


class Corrected(Problem):
    """A problem with labels -1/+1 whose loss, averaged over the flips of a label, is the true one at the true label."""

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
