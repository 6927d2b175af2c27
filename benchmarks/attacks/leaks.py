"""Leaks between the parties of a vertical run, each demonstrated by an attack.

The parties use the product's own code. An attacker uses only the data that its party receives in a run.
docs/vertical-leaks.md explains the numbers.

Several attacks use the same fact. Training starts at weights 0, so the weights of a party are w = X' c, with the same c
(n,) for all parties. Each party that receives the thetas can compute c: an update multiplies it by 1 - gamma weight,
and subtracts gamma theta / b at the batch's rows. So a party's partial sums are K c with K = X X', the inner products
of its rows, and partial sums at known c are linear equations in K.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Mapping, Sequence
from itertools import combinations

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import orthogonal_procrustes
from scipy.special import expit, logit

from benchmarks.attacks.trees import exposes, significantly_different
from benchmarks.attacks.watched import KIND, Array, Numbers, pairwise_keys, pairwise_masks, patients, updates
from problems.data import DataSpec
from problems.randomness import stream
from tests.reference.vertical import train
from vertical.intersection import TAG_BYTES, Intersection, common_rows
from vertical.masking.pairwise import RING, PairwiseMasks, random_elements
from vertical.masking.trees import Tree, make_pair
from vertical.problem.blocks.base import product
from vertical.problem.data import load_vertical
from vertical.problem.objectives import Objective, correct_for_flips, make_objective

STEP, BATCH = 0.5, 4


def labels(epsilon: float = 1.0) -> Numbers:
    """Read labels and predictions from the thetas of the logistic loss, which each party receives.

    theta = -y sigmoid(-y z): its sign is the label, and |theta| gives z. Under label privacy theta is -y' (sigmoid(-y'
    z) + t) for a label y' that is flipped with probability 1 / (1 + e^epsilon). The sign gives only y', but all parties
    know t, so |theta| still gives z, and z predicts the true label as well as the model does.

    Args:
        epsilon: The epsilon of label privacy in the second of two runs. The first run has no label privacy.
    """
    features, truth = patients((8, 8, 7, 7))
    plain = make_objective("logistic")
    flipped = stream(0, "label flips").random(len(truth)) < expit(-epsilon)
    tilted = correct_for_flips(plain, epsilon)
    private = f", epsilon {epsilon:g}"
    found: Numbers = {}
    for name, objective, used in (("", plain, truth), (private, tilted, np.where(flipped, -truth, truth))):
        theta, truth_z = np.empty_like(truth), np.empty_like(truth)
        for seen in updates(features, used, objective, step=STEP, batch_size=32, epochs=20):
            theta[seen.rows], truth_z[seen.rows] = seen.theta, seen.partials.sum(axis=0)  # in the end: the last epoch's
        guess = -np.sign(theta)
        z = -guess * logit(np.clip(np.abs(theta), 1e-12, 1 - 1e-12))
        found[f"labels right{name}"] = float(np.mean(guess == truth))
        found[f"median error of z{name}"] = float(np.median(np.abs(z - truth_z)))
    z = -guess * logit(np.clip(np.abs(theta) - tilted.tilt, 1e-300, 1))
    return found | {
        "expected: 1 / (1 + exp(-epsilon))": float(expit(epsilon)),
        f"median error of z{private}, t taken off": float(np.median(np.abs(z - truth_z))),
        f"labels right{private}, by the sign of z": float(np.mean(np.sign(z) == truth)),
    }


def label_cost(seeds: int = 3) -> Numbers:
    """Return the cost of label privacy: the mean test accuracy on the breast-cancer data over several draws of flips.

    The corrected loss decreases without bound along a direction that separates the classes. On few rows only the
    regulariser therefore limits the weights.

    Args:
        seeds: The number of draws. A draw's seed also determines the order of the batches.
    """
    data = load_vertical(DataSpec("breast-cancer"), 1)
    found: Numbers = {}
    for weight in (1e-4, 0.1):
        plain = make_objective("logistic", weight)
        for epsilon in (math.inf, 4.0, 2.0, 1.0):
            accuracies = []
            for seed in range(seeds):
                flipped = stream(seed, "label flips").random(len(data.train_labels)) < expit(-epsilon)
                used = np.where(flipped, -data.train_labels, data.train_labels)
                objective = correct_for_flips(plain, epsilon)
                w = train(data.train_features, used, objective, "saga", step=0.1, epochs=60, batch_size=32, seed=seed)
                accuracies.append(np.mean(np.sign(product(data.test_features, w)) == data.test_labels))
            found[f"test accuracy, weight {weight:g}, epsilon {epsilon:g}"] = float(np.mean(accuracies))
    return found


class Equations:
    """The equations that a party with the thetas collects: numbers of rows, and the c at which each was computed."""

    def __init__(self, rows: int, objective: Objective, step: float) -> None:
        self._c = np.zeros(rows)
        self._keep, self._step = 1.0 - step * objective.weight, step
        self._left: list[list[Array]] = [[] for _ in range(rows)]
        self._right: list[list[float]] = [[] for _ in range(rows)]

    def add(self, rows: NDArray[np.int64], values: Array, theta: Array) -> None:
        """Add an update.

        Args:
            rows: The (b,) rows of the update.
            values: The (b,) numbers of these rows before the update.
            theta: The (b,) changes of c by the update.
        """
        for row, value in zip(rows, values, strict=True):
            self._left[row].append(self._c.copy())
            self._right[row].append(value)
        self._c *= self._keep
        self._c[rows] -= self._step * theta / len(rows)

    def solve(self, *, offset: bool = False) -> tuple[Array, Array]:
        """Fit K and o to numbers (K c)_i + o_i by least squares in each row.

        Args:
            offset: Whether o is fitted too. False: o is 0.

        Returns:
            The (n, n) symmetric K, and the (n,) o.
        """
        rows = len(self._c)
        k, o = np.empty((rows, rows)), np.zeros(rows)
        for row, (left, right) in enumerate(zip(self._left, self._right, strict=True)):
            matrix = np.column_stack([left, np.full(len(left), float(offset))])
            solution = np.linalg.lstsq(matrix, np.array(right), rcond=1e-14)[0]
            k[row], o[row] = solution[:-1], solution[-1]
        return (k + k.T) / 2, o


def gram(rows: int = 24, epochs: int = 60) -> Numbers:
    """Compute the inner products of other parties' rows, from the sums at an active party, and from thetas alone.

    Each number is the largest error over all pairs of rows. An active party receives K c summed over all other parties.
    A passive party gets z from theta (logistic loss) and subtracts its own partial sum. For ridge regression theta / 2
    = z - y, and the labels y follow from the same equations.

    Args:
        rows: n, which is also the number of unknowns in each row of K.
        epochs: The number of epochs. Each epoch gives one equation for each row of K.
    """
    features, truth = patients((10, 6, 4), rows)
    found: Numbers = {"rows": rows, "epochs watched": epochs, "largest inner product": 0.0}
    for problem, step in (("logistic", STEP), ("ridge", STEP / 100)):
        objective = make_objective(problem)
        active, passive = Equations(rows, objective, step), Equations(rows, objective, step)
        for seen in updates(features, truth, objective, step=step, batch_size=BATCH, epochs=epochs):
            active.add(seen.rows, seen.others, seen.theta)
            sums = seen.theta / 2 if problem == "ridge" else np.sign(seen.theta) * logit(np.abs(seen.theta))
            passive.add(seen.rows, sums - seen.partials[1], seen.theta)
        seen_by = {"active": (0, active.solve()), "passive": (1, passive.solve(offset=problem == "ridge"))}
        for role, (party, (k, offsets)) in seen_by.items():
            others = np.hstack([own for place, own in enumerate(features) if place != party])
            found["largest inner product"] = max(found["largest inner product"], float(np.abs(others @ others.T).max()))
            found[f"error of inner products, {role} party, {problem}"] = float(np.abs(k - others @ others.T).max())
            if offsets.any():
                found[f"error of labels, {role} party, {problem}"] = float(np.abs(-offsets - truth).max())
    return found


def two_parties(rows: int = 24, epochs: int = 60) -> Numbers:
    """Find the other party's features up to a rotation, since with q = 2 partial sums are not masked.

    Rows with the right inner products are the right rows up to a rotation of the feature space, which changes neither
    lengths nor angles. For one column only its sign remains unknown.

    Args:
        rows: n, which is also the number of unknowns in each row of K.
        epochs: The number of epochs. Each epoch gives one equation for each row of K.
    """
    found: Numbers = {}
    objective = make_objective("logistic")
    for columns in (4, 1):
        features, truth = patients((10, columns), rows)
        equations, worst = Equations(rows, objective, STEP), 0.0
        for seen in updates(features, truth, objective, step=STEP, batch_size=BATCH, epochs=epochs):
            equations.add(seen.rows, seen.others, seen.theta)
            worst = max(worst, float(np.abs(seen.others - seen.partials[1]).max()))
        found["largest error of a partial"] = max(worst, found.get("largest error of a partial", 0.0))
        values, vectors = np.linalg.eigh(equations.solve()[0])
        guess = vectors[:, -columns:] * np.sqrt(values[-columns:])
        rotation, _ = orthogonal_procrustes(guess, features[1])
        word = "up to rotation, 4 columns" if columns > 1 else "up to sign, 1 column"
        found[f"largest error of a feature, {word}"] = float(np.abs(guess @ rotation - features[1]).max())
    return found


def trees(parties: int = 8, length: int = 1000) -> Numbers:
    """Measure pairs of trees that show the gap in Definition 4, and coalitions of parties.

    Two pairs satisfy the definition and expose a partial sum. One pair does not satisfy it and exposes nothing. An
    error is the largest difference between a partial sum and its reconstruction; in the ring of integers errors are at
    most 2^-41. Party k of the paper's Appendix B is number k - 1 here.

    Args:
        parties: The number q of parties in `make_pair`'s trees and of the pairwise masks, at least 5.
        length: The number of partial sums of each party.
    """
    values = stream(0, "partials").normal(size=(parties, length))
    stars = Tree(0, (-1, 0, 0, 0)), Tree(0, (-1, 0, 0, 0))
    child = Tree(0, (-1, 0, 1, 0, 3)), Tree(0, (-1, 0, 1, 1, 0))
    shared = Tree(0, (-1, 0, 0, 1, 3)), Tree(0, (-1, 0, 0, 4, 2))
    appendix = Tree(0, (-1, 0, 0, 2)), Tree(0, (-1, 0, 0, 1))
    ours = make_pair(parties, 0)

    def count_exposed(pair: tuple[Tree, Tree]) -> int:
        return sum(len(exposes(*pair, (party,))) for party in range(pair[0].parties))

    found: Numbers = {
        "two stars: Definition 4 holds": significantly_different(*stars),
        "two stars: error of party 1's partial at party 0": _error_of_unmasking(stars, values, (0,), 1),
        "one child in both: Definition 4 holds": significantly_different(*child),
        "one child in both: error of party 2's partial at party 1": _error_of_unmasking(child, values, (1,), 2),
        "one subtree at two parties: Definition 4 holds": significantly_different(*shared),
        "one subtree at two parties: sums exposed to one": count_exposed(shared),
        "Appendix B: Definition 4 holds": significantly_different(*appendix),
        "Appendix B: sums exposed to one": count_exposed(appendix),
        "Appendix B: error of party 3's partial at parties 1 and 2": _error_of_unmasking(appendix, values, (1, 2), 3),
        f"make_pair({parties}, 0): sums exposed to one": count_exposed(ours),
    }
    for size in (2, 3, parties - 2):
        coalitions = list(combinations(range(parties), size))
        name = f"make_pair({parties}, 0): of {len(coalitions)} coalitions of {size}, those that unmask a sum"
        found[name] = sum(bool(exposes(*ours, coalition)) for coalition in coalitions)
    return {what: float(number) for what, number in (found | _coalitions(parties, values)).items()}


def _error_of_unmasking(pair: tuple[Tree, Tree], values: Array, coalition: Sequence[int], victim: int) -> float:
    """Return the largest error of the victim's values if the coalition receives the masked values and the masks.

    If it does not receive both, the error is infinite.
    """
    masks = np.stack([random_elements(values.shape[1]) for _ in range(pair[0].parties)])
    sent = RING.encode(values[: len(masks)]) + masks, masks
    alone = []
    for tree, elements in zip(pair, sent, strict=True):
        for child in (child for member in coalition for child in tree.children(member)):
            if tree.subtree(child) == {victim}:
                alone.append(elements[victim])
    return float(np.abs(RING.decode(alone[0] - alone[1]) - values[victim]).max()) if len(alone) == 2 else math.inf


def _coalitions(parties: int, values: Array) -> Numbers:
    """Attack pairwise masks with all coalitions of the dominator and q - 3 others.

    The attackers remove the masks that they share with the victim, but can only guess the key between the other two.
    """
    keys, length = pairwise_keys(parties), values.shape[1]
    largest, right = 0.0, 0
    pairs = list(combinations(range(1, parties), 2))
    for victim, other in pairs:
        masked = RING.encode(values[victim]) + PairwiseMasks(victim, parties, keys[victim]).mask(KIND, 0, 0, length)
        left = unmask(masked, victim, keys[victim] | {other: secrets.token_bytes(32)})
        largest = max(largest, abs(float(np.corrcoef(left, values[victim])[0, 1])))
        right += int(np.sum(np.abs(left - values[victim]) < 1.0))
    chance = math.sqrt(2 * math.log(2 * len(pairs) / 0.01) / length)
    return {
        f"pairwise masks: coalitions of {parties - 2}, the dominator among them": len(pairs),
        "pairwise masks: largest correlation with a partial": largest,
        "pairwise masks: what chance stays below, 99 times in 100": chance,
        f"pairwise masks: of {len(pairs) * length} partials, those known to 1": right,
    }


def unmask(masked: NDArray[np.uint64], victim: int, keys: Mapping[int, bytes]) -> Array:
    """Remove the masks from the victim's first masked vector for party 0, with guessed keys.

    Args:
        masked: The (k,) vector as the victim sends it.
        victim: The number of the victim, starting with 1.
        keys: The 32-byte secret that the victim shares with each other party.

    Returns:
        The (k,) values of the vector. If a key other than party 0's is wrong, they are random.
    """
    return RING.decode(masked - PairwiseMasks(victim, len(keys) + 1, keys).mask(KIND, 0, 0, len(masked)))


def float_masks(length: int = 10_000, epochs: int = 100) -> Numbers:
    """Compare Gaussian noise on doubles, the literal reading of Algorithm 1, with uniform elements of a ring.

    Under noise of standard deviation 10 s, the correlation of a number of standard deviation s with its noisy value is
    1 / sqrt(1 + 100). A mean over epochs in which the number hardly changes has a much higher correlation. Wider noise
    costs digits of the sum.

    Args:
        length: The number of numbers of each of the two senders.
        epochs: The number of times that the same numbers are sent, each time with new noise or masks.
    """
    rng = stream(0, "partials")
    values = rng.normal(size=(2, length))
    masks = pairwise_masks(3)
    found: Numbers = {}
    for width in (10.0, 1e6):
        noise = rng.normal(scale=width, size=(epochs, length))
        if width == 10.0:
            found["correlation, noise 10 s"] = _correlation(values[0] + noise[0], values[0])
            averaged = values[0] + noise.mean(axis=0)
            found[f"correlation, noise 10 s, mean of {epochs} epochs"] = _correlation(averaged, values[0])
        total = ((values[0] + noise[0]) + (values[1] + noise[1])) - (noise[0] + noise[1])
        found[f"error of the sum, noise {width:g} s"] = float(np.abs(total - values.sum(axis=0)).max())
    sent = [RING.encode(values[0]) + masks[1].mask(KIND, 0, epoch, length) for epoch in range(epochs)]
    found["correlation, ring"] = _correlation(RING.decode(sent[0]), values[0])
    averaged = np.mean([RING.decode(one) for one in sent], axis=0)
    found[f"correlation, ring, mean of {epochs} epochs"] = _correlation(averaged, values[0])
    found["what chance stays below, 99 times in 100"] = 2.58 / math.sqrt(length)
    total = RING.decode(sent[0] + RING.encode(values[1]) + masks[2].mask(KIND, 0, 0, length))
    found["error of the sum, ring"] = float(np.abs(total - values.sum(axis=0)).max())
    return found


def intersection(common: int = 100, shared: int = 50, own: int = 150) -> Numbers:
    """Measure the information that the search for common rows reveals in addition to them, among three parties.

    Args:
        common: The number of ids that all three parties have.
        shared: For each party except the reporter (party 0), the number of ids that only it and the reporter have.
        own: For each party, the number of ids that only it has.
    """
    every = [f"common {k}" for k in range(common)]
    ids = [every + [f"with {party} {k}" for party in (1, 2) for k in range(shared)] + [f"0 {k}" for k in range(own)]]
    for party in (1, 2):
        ids.append(every + [f"with {party} {k}" for k in range(shared)] + [f"{party} {k}" for k in range(own)])
    sides = [Intersection(names) for names in ids]
    reporter = sides[0]
    matches = {
        party: reporter.pair(mine=sides[party].reblind(reporter.blind()), theirs=reporter.reblind(sides[party].blind()))
        for party in (1, 2)
    }
    rows, places = common_rows(matches)
    known = sides[1].rows(places[1])
    return {
        "rows common to all": len(rows),
        "of the reporter's ids, those it knows party 1 to have": len(matches[1].own),
        "of these, rightly": len({ids[0][row] for row in matches[1].own} & set(ids[1])),
        "of these, not common to all": len(set(matches[1].own.tolist()) - set(rows.tolist())),
        "of party 1's ids, those it knows the reporter to have": len(known),
        "of those, not common to all": len({ids[1][row] for row in known} - {ids[0][row] for row in rows}),
        "party 1's ids, as the reporter counts them": len(sides[1].blind()) // TAG_BYTES,
        "the reporter's ids, as party 1 counts them": len(reporter.blind()) // TAG_BYTES,
    }


def _correlation(one: Array, other: Array) -> float:
    return float(np.corrcoef(one, other)[0, 1])
