"""The updates of VFB2 at one party, as formulas (Zhang, Gu, Deng, Huang, "Secure Bilevel Asynchronous Vertical
Federated Learning with Backward Updating", AAAI 2021, Algorithms 2 to 7), with batches of rows B in place of one row.

A party holds columns X (n, d) and weights w (d,). The dominator of an update, an active party, turns the sum z (b,) of
all parties' partial sums X_B w into theta (b,), the slopes of the losses there, and sends theta to all others, the
collaborators. Dominator and collaborators then do the same update of their own block (`update_block`):

| algorithm  | boxes    | direction of w, beside weight g'(w)         | remembered before the first update            |
|------------|----------|---------------------------------------------|-----------------------------------------------|
| VFB2-SGD   | 2 and 3  | X_B' theta / b                              | nothing                                       |
| VFB2-SVRG  | 4 and 5  | X_B' (theta - theta0_B) / b + X' theta0 / n | theta0 (n,), the slopes at the epoch's start  |
| VFB2-SAGA  | 6 and 7  | X_B' (theta - alpha_B) / b + X' alpha / n   | alpha (n,), of every row the newest slope     |

The paper keeps gradients, with the regulariser in them. Here one slope is kept for each row, and the regulariser is
taken at the block as it is, which is the same update.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Rows = NDArray[np.int64]


def update_block(
    w: Array,
    features: Array,
    rows: Rows,
    theta: Array,
    step: float,
    penalty_slope: Array,
    table: Array | None = None,
    mean: Array | None = None,
    *,
    keeps: bool = False,
) -> None:
    """Do the update of any party in place: w <- w - step (direction + weight g'(w)).

    Args:
        w: (d,) the party's block of the weights.
        features: (b, d) X_B.
        rows: (b,) B.
        theta: (b,) the slopes at these rows.
        step: gamma.
        penalty_slope: (d,) weight g'(w).
        table: (n,) the slopes that SVRG or SAGA remembers; None of SGD.
        mean: (d,) X' table / n; None of SGD.
        keeps: whether the new slopes replace the remembered ones, as SAGA's do.
    """
    change = theta if table is None else theta - table.take(rows)
    total: Array = change.dot(features)  # (d,) X_B' (theta - table_B)
    direction = total / len(rows)
    if mean is not None:
        direction += mean
    direction += penalty_slope
    w -= step * direction
    if keeps and table is not None and mean is not None:
        mean += total / len(table)
        table[rows] = theta
