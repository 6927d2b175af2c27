"""Leaks of vertical runs with networks: labels from vectors of slopes, and columns from sums of embeddings.

Each party's network maps a row to `vfb2.embedding` numbers, and the label holder receives their sum over parties.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from benchmarks.attacks.watched import Array, Numbers, patients
from vertical.problem.blocks.network import Architecture, Network, NetworkBlock, make_network
from vertical.problem.head import Head
from vertical.problem.objectives import make_objective
from vertical.problem.schedule import Schedule

STEP, BATCH, EPOCHS = 0.1, 32, 20


def networks(width: int = 8) -> Numbers:
    """Read labels from thetas, which all parties receive, and the other parties' columns from the label holder's sums.

    A row's theta is its slope times the head's weights where sums are above 0, so thetas of the two classes have
    opposite directions. The sums come from the evaluation before training, of all rows at one point.

    Args:
        width: The number k of the embedding.
    """
    features, truth = patients((8, 4, 3))
    columns = np.hstack(features[1:])
    found: Numbers = {}
    for model in ("linear", "mlp"):
        made = [make_network(Architecture(model, party), own.shape[1], width) for party, own in enumerate(features)]
        sums = _sum_of(made[1:], features[1:])
        if model == "linear":  # its weights from what it makes of zeros and of one column at a time
            ones = np.eye(7)
            zero, units = (_sum_of(made[1:], np.hsplit(rows, [4])) for rows in (0.0 * ones, ones))
            solved = (sums - zero[0]) @ np.linalg.pinv(units - zero)
            found["error of 7 columns, linear, first weights known"] = float(np.abs(solved - columns).max())
        found[f"worst explained of 7 columns, {model}"] = min(_explain(columns, sums))
        thetas = _thetas(features, truth, made, width)
        sides = np.sign(thetas @ np.linalg.svd(thetas, full_matrices=False)[2][0])
        right = float(np.mean(sides == truth))
        found[f"labels right, up to their names, {model}"] = max(right, float(np.mean(sides == -truth)))
    return found


def _sum_of(networks: Sequence[Network], features: Sequence[Array]) -> Array:
    """Return the (n, k) embeddings of rows, summed over parties."""
    total: Array = np.sum([network.embed(own) for network, own in zip(networks, features, strict=True)], axis=0)
    return total


def _explain(columns: Array, sums: Array) -> list[float]:
    """Return the share of each column's variance that a linear function of (n, k) sums explains."""
    known = np.column_stack([sums, np.ones(len(sums))])
    left = columns - known @ np.linalg.lstsq(known, columns, rcond=None)[0]
    return [float(share) for share in 1.0 - left.var(axis=0) / columns.var(axis=0)]


def _thetas(features: Sequence[Array], labels: Array, networks: Sequence[Network], width: int) -> Array:
    """Train the networks and a head, one update at a time. Return the (n, k) thetas of the last epoch."""
    objective = make_objective("logistic")
    made = zip(features, networks, strict=True)
    blocks = [NetworkBlock(own, network, width, objective, STEP) for own, network in made]
    head, schedule = Head(width, len(networks), objective, STEP), Schedule(len(labels), 1, BATCH, 0)
    thetas = np.empty((len(labels), width))
    for epoch in range(EPOCHS):
        for rows in schedule.batches(epoch, 0):
            sums = np.sum([block.partials(rows) for block in blocks], axis=0).reshape(-1, width)
            thetas[rows] = head.learn(sums, objective.slopes(head.predict(sums), labels[rows]))
            for block in blocks:
                block.apply(rows, thetas[rows].ravel())
    return thetas
