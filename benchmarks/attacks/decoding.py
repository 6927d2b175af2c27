"""Attacks that read other parties' categorical columns from the numbers that a party of a vertical run receives.

A row's number is a sum of one weight for each of its values. A party that knows the weights can find all the values,
since a double distinguishes more sums than there are combinations of values. `benchmarks.attacks` prints the results of
these functions. In the example a bank (party 0) has numeric columns and labels of its customers, and two companies have
nine categorical columns of the same customers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import reduce
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import null_space

from apps.parties.flip_memory import FlipMemory
from benchmarks.attacks.watched import Array, Numbers, updates
from problems.randomness import stream
from simulations.engines.addresses import local_addresses, socket_folder
from vertical.masking.pairwise import RING
from vertical.problem.objectives import make_objective
from vertical.segment.dominator import draw_flips
from vertical.segment.party import run_segment
from vertical.segment.plan import Holding, PartyState, SegmentOutcome, SegmentPlan
from vertical.transport.endpoint import Endpoint
from vertical.transport.frames import Frame, Kind
from vertical.transport.identity import Identity

Values = NDArray[np.int64]

# the number of values of each column of party 1 and of party 2
SIZES = ((2, 7, 4, 11), (11, 11, 11, 11, 11))
ROWS = 1500


class Ear:
    """A recorder of the frames that a party of a run receives."""

    def __init__(self) -> None:
        self.frames: list[Frame] = []

    def received(self, peer: int, frame: Frame) -> None:
        self.frames.append(frame)

    def contributed(self, kind: int, active: int, values: Array) -> None:
        """Ignored: the attacks do not use it."""

    def total(self, kind: Kind) -> Array:
        """The sum of the vectors of a kind, in which the masks of the others cancel.

        Args:
            kind: the frames to add, whose vectors have one length.

        Returns:
            (k,) the sum, without the listener's own vector.
        """
        bodies = [np.frombuffer(frame.body, dtype=np.uint64) for frame in self.frames if frame.kind == kind]
        return RING.decode(np.add.reduce(bodies, dtype=np.uint64))


def customers(sizes: Sequence[Sequence[int]] = SIZES, rows: int = ROWS) -> tuple[list[Array], Array, list[Values]]:
    """Draw the customers of the bank and of companies with categorical columns. Each call returns the same customers.

    Args:
        sizes: The number of values of each column, for each party after the bank.

    Returns:
        The (rows, d_p) features of each party: five numbers in [0, 1] at the bank, indicators of the values elsewhere.
        The (rows,) labels: 1 above the median of a linear function of all features, otherwise -1.
        The (rows, columns) values of each party after the bank, counted from 0.
    """
    rng = stream(0, "customers")
    numeric = rng.random((rows, 5))
    held = []
    for columns in sizes:
        shares = [rng.dirichlet(np.full(size, 2.0)) for size in columns]
        held.append(np.column_stack([rng.choice(len(share), rows, p=share) for share in shares]))
    features = [numeric, *(one_hot(values, columns) for values, columns in zip(held, sizes, strict=True))]
    z = sum(own @ rng.normal(size=own.shape[1]) for own in features)
    return features, np.where(z > np.median(z), 1.0, -1.0), held


def one_hot(values: Values, sizes: Sequence[int]) -> Array:
    """Return the (n, sum of sizes) indicators of categorical values, column after column.

    Args:
        values: The (n, columns) values. Column c has values from 0 to ``sizes[c]`` - 1.
        sizes: The number of values of each column.
    """
    return np.hstack([np.eye(size)[column] for column, size in zip(values.T, sizes, strict=True)])


def decode_rows(numbers: Array, weights: Sequence[Array], sizes: Sequence[Sequence[int]] = SIZES) -> list[Values]:
    """Return for each row the (n, columns) values of two parties whose sum of weights is closest to the row's number.

    Args:
        numbers: The (n,) numbers, one for each row.
        weights: The weight of each value, (sum of its sizes,) for each of the two parties, ordered as by `one_hot`.
        sizes: The number of values of each column, for each of the two parties.
    """
    (first, first_values), (second, second_values) = (
        _combinations(own, columns) for own, columns in zip(weights, sizes, strict=True)
    )
    order = np.argsort(second)
    ordered = second[order]
    found = np.empty((2, len(numbers)), dtype=np.int64)
    for row, number in enumerate(numbers):
        places = np.clip(np.searchsorted(ordered, number - first), 1, len(second) - 1)
        errors = np.abs(first + ordered[places - [[0], [1]]] - number)  # (2, combinations of the first)
        side, place = np.unravel_index(np.argmin(errors), errors.shape)
        found[:, row] = place, order[places[place] - side]
    return [first_values[found[0]], second_values[found[1]]]


def _combinations(weights: Array, sizes: Sequence[int]) -> tuple[Array, Values]:
    """Return the sum of each combination of values, and the values (combinations, columns)."""
    parts = np.split(weights, np.cumsum(sizes)[:-1])
    sums = reduce(lambda sofar, part: np.add.outer(sofar, part).ravel(), parts, np.zeros(1))
    return sums, np.column_stack(np.unravel_index(np.arange(len(sums)), tuple(sizes)))


def right(found: Sequence[Values], held: Sequence[Values]) -> float:
    """The share of all values that were found correctly.

    Args:
        found: (n, columns) of each party, as ``held``, which has the true ones.
    """
    return float(np.mean(np.hstack(list(found)) == np.hstack(list(held))))


def most_frequent(held: Sequence[Values]) -> float:
    """Return the share of correct values if each value is guessed to be its column's most frequent value.

    Args:
        held: The (n, columns) true values of each party, counted from 0.
    """
    return float(np.mean([np.bincount(column).max() / len(column) for column in np.hstack(list(held)).T]))


async def overheard(
    features: Sequence[Array], labels: Array, epochs: int = 0
) -> tuple[list[Ear], list[SegmentOutcome]]:
    """Run a segment of VFB2-SGD among three parties, of which only the bank is active, and record the received frames.

    Args:
        features: The (n, d_p) features of each party, starting with the bank.
        labels: The (n,) labels -1 or 1, which only the bank has.
        epochs: The number of epochs. 0: the parties only evaluate the initial model.

    Returns:
        The frames that each party receives, and each party's outcome.
    """
    plan = SegmentPlan(
        algorithm="sgd",
        problem="logistic",
        weight=1e-4,
        step=0.1,
        batch_size=32,
        seed=0,
        parties=3,
        active=(0,),
        window=4,
        skew=16,
        masking="pairwise",
        update_passive=True,
        serial=1,
        segment=0,
        first_epoch=0,
        epochs=epochs,
        synchronous=False,
        evaluate=True,
        label_epsilon=0.0,
        rows=len(labels),
        test_rows=0,
        curvature=True,
    )
    identities = [Identity.create(f"party {party}") for party in range(3)]
    certificates = [identity.certificate for identity in identities]
    ears = [Ear() for _ in features]
    with socket_folder() as folder:
        addresses = local_addresses(3, folder)
        segments = [
            run_segment(
                me,
                plan,
                Holding(own, None, labels if me == 0 else None),
                PartyState(),
                Endpoint(addresses, identities[me], certificates),
                recorder=ears[me],
            )
            for me, own in enumerate(features)
        ]
        return ears, await asyncio.gather(*segments)


def before_training() -> Numbers:
    """Measure the bank's view before round 1: now, and when power iterations started at vectors from the run's seed.

    The sum of X_p v_p over all parties is one number for each row. If a party can draw the v_p, it reads the values off
    this number. A passive party saw this sum scaled to length 1, and found the other party's numeric columns after more
    runs than columns.
    """
    features, labels, held = customers()
    sizes = [own.shape[1:] for own in features]
    drawn = [stream(0, "vertical power iteration", party).standard_normal(size) for party, size in enumerate(sizes)]
    shown = sum(own @ vector for own, vector in zip(features, drawn, strict=True))
    ears, _ = asyncio.run(overheard(features, labels))
    now = ears[0].total(Kind.EVALUATION)
    return {
        "values right, public start vectors": right(decode_rows(shown - features[0] @ drawn[0], drawn[1:]), held),
        "error of 10 numeric columns, 12 runs, public start vectors": _numeric_error(),
        "values right, now": right(decode_rows(now, drawn[1:]), held),
        "the most frequent value": most_frequent(held),
        "numbers of rows shown to a passive party, now": sum(len(frame.body) // 8 for frame in ears[1].frames),
    }


def _numeric_error(runs: int = 12, columns: int = 10) -> float:
    """Return the largest error of another party's columns X, found from u / |u| with u = A a + X x and known A, a, x.

    Let N satisfy x N = 0 for the x of all runs. Then (u - A a) N = 0 are linear equations for the lengths |u|.
    """
    rng = stream(1, "customers")
    own, hidden = rng.random((ROWS, 5)), rng.random((ROWS, columns))
    a, x = rng.standard_normal((5, runs)), rng.standard_normal((columns, runs))
    shown = own @ a + hidden @ x
    shown /= np.linalg.norm(shown, axis=0)
    free = null_space(x)  # (runs, runs - columns)
    left = np.vstack([shown * column for column in free.T])
    lengths = np.linalg.lstsq(left, (own @ a @ free).T.ravel(), rcond=None)[0]
    found = (shown * lengths - own @ a) @ np.linalg.pinv(x)
    return float(np.abs(found - hidden).max())


def votes(rows: int = 4000, runs: int = 25, epsilon: float = 1.0) -> Numbers:
    """Return the share of labels that a vote over many runs' flipped labels gets right. One run's share is expected.

    Args:
        runs: The number of runs that show these labels, flipped.
        epsilon: The epsilon of label privacy: a label is flipped with probability 1 / (1 + e^epsilon).
    """
    anew = [draw_flips(rows, epsilon) for _ in range(runs)]
    with TemporaryDirectory() as folder:
        marks = [str(row) for row in range(rows)]
        kept = [FlipMemory(Path(folder)).recall(marks, epsilon)[0] for _ in range(runs)]
    return {
        f"labels right by a vote of {runs} runs, flips drawn anew": float(np.mean(np.mean(anew, axis=0) < 0.5)),
        f"labels right by a vote of {runs} runs, flips kept": float(np.mean(np.mean(kept, axis=0) < 0.5)),
        "labels right in one run": float(np.mean(~anew[0])),
    }


def assembled() -> Numbers:
    """Measure the values that the bank finds from its customers' predictions, with a server's blocks or alone."""
    features, labels, held = customers()
    ears, outcomes = asyncio.run(overheard(features, labels, epochs=3))
    shown = ears[0].total(Kind.EVALUATION)
    guessed = [stream(1, "guess", party).permutation(outcomes[party].weights) for party in (1, 2)]
    return {
        "values right, assemble = true": right(decode_rows(shown, [outcome.weights for outcome in outcomes[1:]]), held),
        "values right, the blocks unknown": right(decode_rows(shown, guessed), held),
        "the most frequent value": most_frequent(held),
    }


def looks(epochs: int = 25) -> Numbers:
    """Measure how much a party that receives the thetas learns about other parties' values in a run of default length.

    The party has one number for each row and epoch: in SGD at the weights of the row's update, in SVRG's full pass at
    the same weights for all rows. For each value's indicator a linear function of these numbers is fitted to the truth,
    so no linear attack is better. The result is the largest share of an indicator's variance that such a function
    explains.

    Args:
        epochs: The number of the run's epochs, and so of the numbers of each row.
    """
    found: Numbers = {}
    for sizes in (SIZES, ((2, 4), (3, 3))):
        features, labels, _ = customers(sizes)
        others = np.hstack(features[1:])
        updated, passed = np.zeros((2, len(labels), epochs))
        weights, epoch, count = np.zeros(others.shape[1]), -1, 0
        for one in updates(features, labels, make_objective("logistic", 0.0), step=0.1, batch_size=32, epochs=epochs):
            if count % len(labels) == 0:
                epoch += 1
                passed[:, epoch] = others @ weights
            updated[one.rows, epoch] = one.others
            weights -= 0.1 * others[one.rows].T @ one.theta / len(one.rows)
            count += len(one.rows)
        truth = others - others.mean(axis=0)
        for name, seen in (("updates", updated), ("full passes", passed)):
            centred = seen - seen.mean(axis=0)
            left = truth - centred @ np.linalg.lstsq(centred, truth, rcond=1e-12)[0]
            explained = 1.0 - (left**2).sum(axis=0) / (truth**2).sum(axis=0)
            found[f"{others.shape[1]} columns, {epochs} {name}: best explained value"] = float(explained.max())
    return found
