"""Plain NumPy reference of a split network in float64, row by row: vertical SGD beyond linear models.

    f(w, v) = mean_i L(z_i, y_i) + lambda * (sum_p sum_j g(w_pj) + sum_j g(v_j))
    o_i = sum_p f_p(x_ip; w_p) in R^k;  z_i = o_i for k = 1, else v[:k] . relu(o_i) + v[k]

f_p has fully connected layers with ReLUs between them; w_p is flat: of each layer the matrix (inputs, outputs), then
the bias. `Part` and `Headed` replace a party and a problem in `tests.reference.vfb2`, whose `replay` then also follows
asynchronous runs.
"""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from .vfb2 import Array, Epoch, Index, Party, Problem, rounds


def layers(sizes: Sequence[int], w: Array) -> list[tuple[Array, Array]]:
    """Return each layer's matrix and bias in w."""
    found, rest = [], w
    for inputs, outputs in pairwise(sizes):
        found.append((rest[: inputs * outputs].reshape(inputs, outputs), rest[inputs * outputs :][:outputs]))
        rest = rest[(inputs + 1) * outputs :]
    assert not len(rest)
    return found


def embed(sizes: Sequence[int], w: Array, x: Array) -> list[Array]:
    """Return the input of each layer for one row x (d,), and f(x; w)."""
    values = [x]
    for number, (matrix, bias) in enumerate(layers(sizes, w)):
        entered = values[-1] if number == 0 else np.where(values[-1] > 0, values[-1], 0.0)
        values = [*values[:-1], entered, entered @ matrix + bias]
    return values


def pull(sizes: Sequence[int], w: Array, x: Array, theta: Array) -> Array:
    """Return J' theta, (p,), for one row."""
    *entered, _ = embed(sizes, w, x)
    parts: list[Array] = []
    for value, (matrix, _) in reversed(list(zip(entered, layers(sizes, w), strict=True))):
        parts = [np.outer(value, theta).ravel(), theta, *parts]
        theta = np.where(value > 0, matrix @ theta, 0.0)
    return np.concatenate(parts)


class Part(Party):
    """A party with a network of layers of these sizes: partials and thetas are (b, k)."""

    def __init__(self, X: Array, problem: Problem, sizes: Sequence[int], step: float, w: Array) -> None:
        super().__init__(X, problem, "sgd", step, w)
        self.sizes = sizes

    def partial(self, B: Index) -> Array:
        return np.array([embed(self.sizes, self.w, self.X[i])[-1] for i in B])

    def apply(self, B: Index, theta: Array) -> None:
        mean = np.mean([pull(self.sizes, self.w, self.X[i], t) for i, t in zip(B, theta, strict=True)], axis=0)
        self.w = self.w - self.step * (mean + self.problem.penalty_slope(self.w))


class Headed(Problem):
    """A problem in o instead of z. `v` (k + 1,) belongs to the head; None: no head, and k = 1."""

    def __init__(self, name: str, weight: float, step: float, v: Array | None) -> None:
        super().__init__(name, weight)
        self.step, self.v = step, v

    def predict(self, o: Array) -> Array:
        return (
            o[:, 0] if self.v is None else np.array([self.v[:-1] @ np.where(row > 0, row, 0) + self.v[-1] for row in o])
        )

    def thetas(self, z: Array, y: Array) -> Array:
        """Return (b, k) slopes in o; the head then takes its own step."""
        slopes = super().thetas(self.predict(z), y)
        if self.v is None:
            return slopes[:, None]
        theta = np.array([slope * self.v[:-1] * (row > 0) for slope, row in zip(slopes, z, strict=True)])
        own = [slope * np.append(np.where(row > 0, row, 0), 1.0) for slope, row in zip(slopes, z, strict=True)]
        self.v = self.v - self.step * (np.mean(own, axis=0) + self.penalty_slope(self.v))
        return theta

    def objective(self, parts: Sequence[Part], B: Index, y: Array) -> float:
        """f, with the mean over the rows B alone."""
        o = np.sum([part.partial(B) for part in parts], axis=0)
        own = 0.0 if self.v is None else self.penalty(self.v)
        return float(np.mean(self.losses(self.predict(o), y[B]))) + own + sum(self.penalty(part.w) for part in parts)


class Softmax(Headed):
    """Several classes, without a head: L(o, y) = log(sum_j exp(o_j)) - o_y, y the index of a class."""

    def __init__(self, weight: float, step: float) -> None:
        super().__init__("logistic", weight, step, None)

    def predict(self, o: Array) -> Array:
        return o

    def losses(self, z: Array, y: Array) -> Array:
        return np.array([np.log(np.sum(np.exp(row))) - row[int(label)] for row, label in zip(z, y, strict=True)])

    def thetas(self, z: Array, y: Array) -> Array:
        chances = [np.exp(row) / np.sum(np.exp(row)) for row in z]
        return np.array([chance - np.eye(len(chance))[int(label)] for chance, label in zip(chances, y, strict=True)])


def central(problem: Headed, parts: Sequence[Part], y: Array, epochs: Sequence[Epoch]) -> None:
    """Train all parts and the head in one place: every batch of a round at one point, then its updates in order."""
    for epoch in epochs:
        for turn in rounds(epoch):
            thetas = [problem.thetas(np.sum([part.partial(B) for part in parts], axis=0), y[B]) for _, B in turn]
            for (_, B), theta in zip(turn, thetas, strict=True):
                for part in parts:
                    part.apply(B, theta)
