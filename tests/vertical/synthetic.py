"""Sparse rows of the shape of news20.binary, for scale: many columns, few entries a row, most columns rare."""

from __future__ import annotations

import numpy as np
from scipy import sparse

from problems.randomness import stream
from vertical.problem.blocks.base import SparseRows, product
from vertical.problem.objectives import Array

_CHUNK = 1000


def sparse_like_news20(rows: int, columns: int, nonzeros: int, seed: int) -> tuple[SparseRows, Array]:
    """Return (rows, columns) CSR features and (rows,) labels, -1 or +1.

    A row draws `nonzeros` columns of density proportional to 1 / (j + 1), as words have, under a random renumbering;
    columns drawn twice count once: of 596, about 455 are left, as in news20. Values are positive, log-normal, of norm 1
    a row. A label is the sign of the row's product with a normal vector, centred over all rows.
    """
    names = stream(seed, "sparse columns").permutation(columns).astype(np.int32)
    parts = []
    for start in range(0, rows, _CHUNK):
        count = min(_CHUNK, rows - start)
        rng = stream(seed, "sparse rows", start)
        ranks = (columns + 1.0) ** rng.random((count, nonzeros)) - 1.0
        places = np.sort(names[np.minimum(ranks.astype(np.int64), columns - 1)], axis=1)
        values = rng.lognormal(size=(count, nonzeros))
        values[:, 1:][places[:, 1:] == places[:, :-1]] = 0.0
        values /= np.linalg.norm(values, axis=1, keepdims=True)
        ends = np.arange(0, count * nonzeros + 1, nonzeros, dtype=np.int32)
        part = sparse.csr_array((values.ravel(), places.ravel(), ends), shape=(count, columns))
        part.sum_duplicates()
        parts.append(part)
    features = sparse.csr_array(sparse.vstack(parts, format="csr"))
    scores = product(features, stream(seed, "sparse labels").standard_normal(columns))
    return features, np.where(scores > np.median(scores), 1.0, -1.0)
