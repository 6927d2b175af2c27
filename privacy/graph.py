"""The graph of a secure sum (`privacy.secure_sum`), whose edges are the pairs of clients that share a mask.

In small groups all pairs are neighbours. In large groups each client has only some neighbours (J. H. Bell,
K. A. Bonawitz, A. Gascon, T. Lepoint, M. Raykova, "Secure Single-Server Aggregation with (Poly)Logarithmic Overhead",
CCS 2020, section 3).

The clients form a ring in a random order, and each client is joined to the ``degree / 2`` next clients on both sides.
All clients compute the graph from the same public seed, so it is never sent.
"""

from collections.abc import Sequence
from functools import lru_cache
from math import ceil

import numpy as np
from numpy.typing import NDArray

# The share of clients that may collude with the server, and the share that may stop answering during an exchange.
CORRUPT, SILENT = 0.2, 0.2
# The largest chance that some client is unmasked, and that the sum cannot be unmasked.
_SECRECY, _SUCCESS = 2.0**-40, 2.0**-20
# The order of the ring follows from all keys. A lying server knows the other keys when its own clients choose theirs,
# and it selects the participants: leaving out any 10 of 1,000 clients gives 2^78 orders, even with committed keys.
# So a number of colluding clients has to be safe in each order that the server can try.
_TRIES = 2.0**64


def neighbours(clients: Sequence[int], degree: int, seed: bytes) -> dict[int, list[int]]:
    """Return each client's neighbours, sorted. The relation is symmetric.

    Args:
        degree: The number of neighbours of each client: an even number, or at least the number of the other clients.
        seed: At least 16 bytes that no single client could choose.
    """
    count = len(clients)
    if degree >= count - 1:
        return {client: [peer for peer in clients if peer != client] for client in clients}
    if degree % 2:
        raise ValueError(f"the ring needs an even number of neighbours, got {degree}")
    order = order_ring(count, seed)
    steps = [step for step in range(-degree // 2, degree // 2 + 1) if step]
    return {
        clients[order[position]]: sorted(clients[order[(position + step) % count]] for step in steps)
        for position in range(count)
    }


def order_ring(count: int, seed: bytes) -> NDArray[np.int64]:
    """Return the indices of the clients (count,) in the order of the ring.

    Args:
        count: The number of clients.
        seed: As in `neighbours`.
    """
    return np.random.default_rng(np.frombuffer(seed, np.uint8)).permutation(count)


def threshold_of(share: float, degree: int) -> int:
    """Return the number of a client's neighbours that must stay to unmask it: always more than half of them."""
    return max(ceil(round(share * degree, 9)), degree // 2 + 1)


@lru_cache
def smallest_degree(clients: int, share: float) -> int:
    """Return the smallest number of neighbours that keeps a sum safe and likely to succeed.

    Let a share `CORRUPT` of the clients collude with the server, and a share `SILENT` stop answering. The chance that
    any client has a threshold of corrupt neighbours, or only corrupt and silent neighbours on one side, is below 2^-40.
    The chance that any client has too few neighbours left to be unmasked is below 2^-20.

    Args:
        clients: The number of clients in the sum.
        share: The share of a client's neighbours that must stay to unmask it.
    """
    peers = clients - 1
    degrees = [degree for degree in range(2, peers, 2) if clients * (CORRUPT + SILENT) ** (degree / 2) < _SECRECY]
    if not degrees:
        return peers
    from scipy.stats import hypergeom  # takes half a second, which every message to a deployed site would pay

    corrupt, left = int(CORRUPT * clients), peers - int(SILENT * clients)
    for degree in degrees:
        threshold = threshold_of(share, degree)
        unmasked = hypergeom.sf(threshold - 1, peers, corrupt, degree)
        stuck = hypergeom.cdf(threshold - 1, peers, left, degree)
        if clients * unmasked < _SECRECY and clients * stuck < _SUCCESS:
            return degree
    return peers


def count_tolerated(clients: int, share: float) -> tuple[int, int]:
    """Return the numbers of clients that may collude with a lying server without revealing a single client's value.

    An honest client reveals shares only if ``threshold_of`` its neighbours, including colluding neighbours, confirm its
    view of the sum. Each honest client confirms one view. To unmask a client, the server also needs the mask key of
    one of its neighbours that reveals shares. A threshold of the same neighbours would then have to confirm each of two
    views, which requires at least ``2 * threshold - degree`` colluding neighbours.

    Args:
        clients: The number of clients in the sum.
        share: The share of a client's neighbours that must stay to unmask it.

    Returns:
        The number that is safe at any positions in the ring; and the number that is safe against a server that tries
        2^64 orders of the ring, except with a chance below 2^-40.
    """
    degree = smallest_degree(clients, share)
    near = max(2 * threshold_of(share, degree) - degree - 1, 0)  # among the neighbours of each client
    if degree == clients - 1:
        return near, near
    from scipy.stats import hypergeom

    numbers = np.arange(near, clients)
    chances = clients * hypergeom.sf(near, clients - 1, numbers, degree)
    return near, int(numbers[np.flatnonzero(chances < _SECRECY / _TRIES)[-1]])
