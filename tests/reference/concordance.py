"""Plain NumPy reference of FedX1 and of local pairs with the loss ``concordance``, in float64, with loops over pairs.

Source: F. E. Harrell and others, JAMA 247, 1982, for comparable pairs; FedX, equations (4) and (5) and Algorithm 1, for
the steps. The model is linear with an intercept, h(x) = x w[:-1] + w[-1], or with ``bounded`` its sigmoid. Nothing is
random here: the caller supplies every index, as in `tests.reference.fedx`.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from tests.reference.fedx import LOSSES, Array, sigmoid


class Rows(NamedTuple):
    """A site's rows, or lazy rows of a pool: features or scores, times, and weights in a mean."""

    x: Array
    entry: Array
    exit: Array
    event: Array
    weight: Array

    def take(self, rows: Sequence[int]) -> "Rows":
        return Rows(*(part[np.asarray(rows, int)] for part in self))


def union(parts: Sequence[Rows]) -> Rows:
    return Rows(*map(np.concatenate, zip(*parts, strict=True)))


def comparable(first: Rows, i: int, second: Rows, j: int) -> bool:
    """Is j under observation in the interval of i's event, and without an event up to the events of this interval?"""
    at, leaves = first.exit[i], second.exit[j]
    return bool(second.entry[j] <= at and (leaves > at or (leaves == at and not second.event[j])))


def score(w: Array, x: Array, bounded: bool = False) -> Array:
    z = x @ w[:-1] + w[-1]
    return sigmoid(z) if bounded else z


def jacobian(w: Array, x: Array, bounded: bool = False) -> Array:
    z, rows = x @ w[:-1] + w[-1], np.column_stack([x, np.ones(len(x))])
    return (sigmoid(z) * sigmoid(-z))[:, None] * rows if bounded else rows


def pairs(a: Array, first: Rows, b: Array, second: Rows, loss: Callable) -> tuple[float, Array, Array]:
    """The weighted mean of l over all pairs of events and partners, and its derivatives in both scores."""
    total, to_a, to_b = 0.0, np.zeros(len(a)), np.zeros(len(b))
    for i in range(len(a)):
        for j in range(len(b)):
            if comparable(first, i, second, j):
                share = first.weight[i] * second.weight[j] / (len(a) * len(b))
                value, d1, d2 = loss(a[i], b[j])
                total, to_a[i], to_b[j] = total + share * value, to_a[i] + share * d1, to_b[j] + share * d2
    return total, to_a, to_b


def risk(scores: Array, rows: Rows, loss: Callable) -> float:
    """F over all pairs of rows."""
    own = np.flatnonzero(rows.event)
    return pairs(scores[own], rows.take(own), scores, rows, loss)[0]


def local_pair(
    sites: Sequence[Rows], w: Array, rounds: int, steps: int, eta: float, surrogate: str, batches: Callable
) -> Iterator[list[Array]]:
    """Yield the clients' models after each round."""
    for r in range(1, rounds + 1):
        points = [w.copy() for _ in sites]
        for c, rows in enumerate(sites):
            for k in range(steps):
                p, q = batches(c, r, k)
                first, second = rows.take(np.flatnonzero(rows.event)[p]), rows.take(q)
                a, b = score(points[c], first.x), score(points[c], second.x)
                _, to_a, to_b = pairs(a, first, b, second, LOSSES[surrogate])
                gradient = to_a @ jacobian(points[c], first.x) + to_b @ jacobian(points[c], second.x)
                points[c] -= eta * gradient
        w = np.mean(points, axis=0)
        yield points


def fedx1(
    sites: Sequence[Rows], w: Array, rounds: int, steps: int, eta: float, surrogate: str, batches: Callable,
    draws: Callable, bins: int = 0,
) -> Iterator[list[Array]]:  # fmt: skip
    """Algorithm 1, all clients in every round. Yield the clients' models after each round.

    `draws` also has the lengths of both pools. ``bins`` above 0: histograms of sigmoid scores.
    """
    counts = np.array([[rows.event.sum(), len(rows.x)] for rows in sites])
    omegas = len(sites) * counts / counts.sum(axis=0)
    points, loss = [w] * len(sites), LOSSES[surrogate]
    for r in range(rounds + 1):
        recorded: list[list[list[Rows]]] = [[[] for _ in sites] for _ in range(2)]
        if r and bins:  # all rows in the middle of their bin, without entries
            middles = [
                (np.floor(score(x, rows.x, True) * bins) + 0.5) / bins for x, rows in zip(points, sites, strict=True)
            ]
            partners = union([rows._replace(x=h, entry=0 * rows.entry) for h, rows in zip(middles, sites, strict=True)])
            events = partners.take(np.flatnonzero(partners.event))
        points = [w.copy() for _ in sites]
        for c, rows in enumerate(sites):
            for k in range(steps):
                p, q = batches(c, r, k)
                active = rows.take(np.flatnonzero(rows.event)[p]), rows.take(q)
                a, b = (score(points[c], half.x, bool(bins)) for half in active)
                for side, half, h in zip(recorded, active, (a, b), strict=True):
                    side[c].append(half._replace(x=h))
                if r:
                    sizes = len(events.x), len(partners.x)
                    i, j = map(range, sizes) if bins else draws(c, r, k, *sizes)
                    lazy = events.take(i), partners.take(j)
                    to_a = pairs(a, active[0], lazy[1].x, lazy[1], loss)[1] * omegas[c, 0]
                    to_b = pairs(lazy[0].x, lazy[0], b, active[1], loss)[2] * omegas[c, 1]
                    halves = zip((to_a, to_b), active, strict=True)
                    points[c] -= eta * sum(d @ jacobian(points[c], half.x, bool(bins)) for d, half in halves)
        if not bins:  # weights omega_j P / (N n_j), see `tests.reference.fedx.pool`
            sides = [[union(own) for own in side] for side in recorded]
            sent = [sum(len(own.x) for own in side) for side in sides]
            events, partners = (
                union(
                    [
                        o._replace(weight=np.full(len(o.x), omegas[c, s] * sent[s] / (len(sites) * max(len(o.x), 1))))
                        for c, o in enumerate(side)
                    ]
                )
                for s, side in enumerate(sides)
            )
        if r:
            w = np.mean(points, axis=0)
            yield points
