"""Who masks with whom: all with all, or in large groups each with some (J. H. Bell, K. A. Bonawitz, A. Gascon,
T. Lepoint, M. Raykova, "Secure Single-Server Aggregation with (Poly)Logarithmic Overhead", CCS 2020, section 3).

The graph is a ring of the clients in a random order, in which each is joined to the ``degree / 2`` next ones on both
sides. All compute it from the same public seed, so nobody sends it.
"""

from collections.abc import Sequence
from functools import lru_cache
from math import ceil

import numpy as np
from numpy.typing import NDArray

# The shares of clients that may work with the server, and that may fall silent in an exchange, for which the degree
# keeps the chances below that one client is unmasked, or that the sum cannot be unmasked.
CORRUPT, SILENT = 0.2, 0.2
_SECRECY, _SUCCESS = 2.0**-40, 2.0**-20
# The order of the ring follows from all keys. A lying server knows the other keys when its clients choose theirs, and
# chooses who takes part: without any 10 of 1,000 clients there are 2^78 orders, even if all keys were committed to.
# So a number of colluding clients has to be safe in each order that the server can try.
_TRIES = 2.0**64


def neighbours(clients: Sequence[int], degree: int, seed: bytes) -> dict[int, list[int]]:
    """Return each client's neighbours, sorted; the relation is symmetric.

    Args:
        degree: how many each has: all others if it is not below their number, else an even number.
        seed: at least 16 bytes that nobody could choose.
    """
    count = len(clients)
    if degree >= count - 1:
        return {client: [other for other in clients if other != client] for client in clients}
    if degree % 2:
        raise ValueError(f"{degree} neighbours; in a ring they are an even number")
    order = order_ring(count, seed)
    steps = [step for step in range(-degree // 2, degree // 2 + 1) if step]
    return {
        clients[order[place]]: sorted(clients[order[(place + step) % count]] for step in steps)
        for place in range(count)
    }


def order_ring(count: int, seed: bytes) -> NDArray[np.int64]:
    """Return the numbers of (count,) clients in the order of the ring.

    Args:
        count: The number of clients.
        seed: As in `neighbours`.
    """
    return np.random.default_rng(np.frombuffer(seed, np.uint8)).permutation(count)


def threshold_of(share: float, degree: int) -> int:
    """Return how many of a client's neighbours must be left to unmask it; always more than half of them."""
    return max(ceil(round(share * degree, 9)), degree // 2 + 1)


@lru_cache
def smallest_degree(clients: int, share: float) -> int:
    """Return the smallest number of neighbours for which the sum of so many clients is as safe as among all.

    With `CORRUPT` of the clients on the server's side and `SILENT` of them silent, some client has a threshold of
    corrupt neighbours, or only corrupt and silent ones on one side, with a chance below 2^-40; and some client has too
    few neighbours left to be unmasked with a chance below 2^-20.

    Args:
        share: of the neighbours, that must be left to unmask a client.
    """
    others = clients - 1
    degrees = [one for one in range(2, others, 2) if clients * (CORRUPT + SILENT) ** (one / 2) < _SECRECY]
    if not degrees:
        return others
    from scipy.stats import hypergeom  # takes half a second, which every message to a deployed site would cost

    corrupt, left = int(CORRUPT * clients), others - int(SILENT * clients)
    for degree in degrees:
        threshold = threshold_of(share, degree)
        unmasked = hypergeom.sf(threshold - 1, others, corrupt, degree)
        stuck = hypergeom.cdf(threshold - 1, others, left, degree)
        if clients * unmasked < _SECRECY and clients * stuck < _SUCCESS:
            return degree
    return others


def count_tolerated(clients: int, share: float) -> tuple[int, int]:
    """Return how many clients may collude with a server that lies, while no single value is revealed.

    An honest client reveals shares only if ``threshold_of`` its neighbours, with the colluding ones, confirm its view
    of the sum, and each honest client confirms one view. To unmask a client, the server needs the mask key of another
    client that reveals shares. Both need a threshold of the same neighbours, who would have to confirm two views unless
    ``2 * threshold - degree`` of them collude.

    Args:
        clients: The number of clients in the sum.
        share: The share of a client's neighbours that must be left to unmask it.

    Returns:
        The number wherever they are in the ring, and the number for a server that tries 2^64 orders of the ring, with
        a chance below 2^-40 that one of them unmasks a client.
    """
    degree = smallest_degree(clients, share)
    near = max(2 * threshold_of(share, degree) - degree - 1, 0)  # among the neighbours of each client
    if degree == clients - 1:
        return near, near
    from scipy.stats import hypergeom

    numbers = np.arange(near, clients)
    chances = clients * hypergeom.sf(near, clients - 1, numbers, degree)
    return near, int(numbers[np.flatnonzero(chances < _SECRECY / _TRIES)[-1]])
