"""Linear scores of batches that are not copied: compiled loops read each row from the table of all clients' rows.

The loops add the products of a row and the weights in several partial sums, as PyTorch's products do.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from payloads.record import FloatArray
from problems.kernels import jit
from problems.sampling import Indices


class PickedRows(NamedTuple):
    """Many clients' batches of rows.

    Attributes:
        table: The (n, p) features of all rows, contiguous and on the CPU.
        rows: The (C, b) rows of each client's batch.
    """

    table: Tensor
    rows: Indices

    def score(self, weights: Tensor) -> Tensor:
        """Return the products (C, b) of each client's rows with the first p of its weights (C, d)."""
        scores = np.empty(self.rows.shape, self.table.numpy().dtype)
        _score(self.table.numpy(), self.rows, weights.numpy(), scores)
        return torch.from_numpy(scores)

    def add_up(self, slopes: Tensor, target: Tensor) -> None:
        """Write the sums over each client's rows, multiplied by the slopes (C, b), to the first p columns of (C, d)."""
        _add_up(self.table.numpy(), self.rows, slopes.numpy(), target.numpy())


@jit(fastmath={"reassoc", "contract"})
def _score(table: FloatArray, rows: Indices, weights: FloatArray, scores: FloatArray) -> None:
    zero = scores.dtype.type(0)
    for client in range(rows.shape[0]):
        own = weights[client]
        for place in range(rows.shape[1]):
            row, total = table[rows[client, place]], zero
            for column in range(table.shape[1]):
                total += row[column] * own[column]
            scores[client, place] = total


@jit(fastmath={"contract"})
def _add_up(table: FloatArray, rows: Indices, slopes: FloatArray, target: NDArray[np.floating]) -> None:
    for client in range(rows.shape[0]):
        sums = target[client]
        for column in range(table.shape[1]):
            sums[column] = 0
        for place in range(rows.shape[1]):
            row, slope = table[rows[client, place]], slopes[client, place]
            for column in range(table.shape[1]):
                sums[column] += slope * row[column]
