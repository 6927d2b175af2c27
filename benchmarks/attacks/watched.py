"""A vertical run in one process, one update at a time, with each party's view, for the attacks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from numpy.typing import NDArray

from privacy.keys import agree
from problems.data import DataSpec
from problems.randomness import stream
from vertical.masking.pairwise import RING, PairwiseMasks, pair_info
from vertical.problem.blocks import make_block
from vertical.problem.data import load_vertical
from vertical.problem.objectives import Objective
from vertical.problem.schedule import Schedule

Array = NDArray[np.float64]
Ring = NDArray[np.uint64]
Numbers = dict[str, float]  # results of a demonstration

KIND = 1  # in the masks' addresses; any fixed number would do


@dataclass(frozen=True)
class Seen:
    """An update: the view of its dominator, party 0, and in `partials` the true partial sums, which no party sees."""

    rows: NDArray[np.int64]  # (b,)
    received: Ring  # (q - 1, b), one masked vector for each collaborator
    theta: Array  # (b,), which goes to all parties
    partials: Array  # (q, b)

    @property
    def others(self) -> Array:
        """(b,) the sum of the collaborators' partials, which the dominator computes."""
        return RING.decode(self.received.sum(axis=0, dtype=np.uint64))


def updates(
    features: Sequence[Array],
    labels: Array,
    objective: Objective,
    *,
    step: float,
    batch_size: int,
    epochs: int,
    seed: int = 0,
) -> Iterator[Seen]:
    """Run SGD from weights 0 with one active party, number 0, one update at a time and with pairwise masks.

    Args:
        features: An (n, d_p) array for each party. Two parties have no masks.
        labels: The (n,) labels of party 0.
        step: gamma.
        batch_size: The number of rows of an update. 0: all rows.

    Yields:
        Each update before the parties apply it.
    """
    parties = len(features)
    blocks = [make_block(own, "sgd", objective, step) for own in features]
    masks = pairwise_masks(parties)[1:] if parties > 2 else []  # two parties have none
    schedule = Schedule(len(labels), 1, batch_size, seed)
    update = 0
    for epoch in range(epochs):
        for rows in schedule.batches(epoch, 0):
            partials = np.stack([block.partials(rows) for block in blocks])
            received = np.stack([RING.encode(value) for value in partials[1:]])
            for elements, mask in zip(received, masks, strict=False):
                elements += mask.mask(KIND, 0, update, len(rows))
            theta = objective.slopes(partials[0] + RING.decode(received.sum(axis=0, dtype=np.uint64)), labels[rows])
            yield Seen(rows, received, theta, partials)
            for block in blocks:
                block.apply(rows, theta)
            update += 1


def pairwise_keys(parties: int) -> list[dict[int, bytes]]:
    """Return for each party the secrets that it shares with each other party, by X25519.

    Returns:
        At index p, for party p: 32 bytes by number of the other party. Each call returns new secrets.
    """
    private = [X25519PrivateKey.generate() for _ in range(parties)]
    public = [key.public_key().public_bytes_raw() for key in private]
    return [
        {peer: agree(key, public[peer], info=pair_info(1, me, peer)) for peer in range(parties) if peer != me}
        for me, key in enumerate(private)
    ]


def pairwise_masks(parties: int) -> list[PairwiseMasks]:
    """Return the masks of each party. Each call uses new keys.

    Raises:
        ValueError: There are fewer than three parties.
    """
    return [PairwiseMasks(me, parties, keys) for me, keys in enumerate(pairwise_keys(parties))]


def patients(columns: Sequence[int], rows: int = 0) -> tuple[list[Array], Array]:
    """Return breast-cancer training rows in a fixed random order, with their columns distributed over parties.

    Args:
        columns: The number d_p of columns of each party, at most 30 in total.
        rows: The number of rows. 0: all rows.

    Returns:
        The (rows, d_p) features of each party, and the (rows,) labels, -1 or 1.
    """
    data = load_vertical(DataSpec("breast-cancer"), 1)
    chosen = stream(0, "patients").permutation(len(data.train_labels))[: rows or None]
    features = np.asarray(data.train_features)[chosen]
    order = stream(0, "columns").permutation(features.shape[1])
    edges = np.cumsum([0, *columns]).tolist()
    return [np.ascontiguousarray(features[:, order[a:b]]) for a, b in pairwise(edges)], data.train_labels[chosen]
