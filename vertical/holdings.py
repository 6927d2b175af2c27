"""A digest of a party's training and test rows. A resumed run compares it, to refuse rows that have changed."""

import hashlib
from typing import Any

import numpy as np
from scipy import sparse

from vertical.segment.plan import Holding

DIGEST_BYTES = 16


def digest_holding(holding: Holding) -> bytes:
    """Return a digest of a party's features and labels, in the order of their rows."""
    whole = hashlib.blake2b(digest_size=DIGEST_BYTES)
    for part in (holding.features, holding.test_features, holding.labels, holding.test_labels):
        arrays: list[Any] = [part]
        if sparse.issparse(part):
            rows = sparse.csr_array(part)
            arrays = [rows.data, rows.indices, rows.indptr]
        for array in arrays:
            values = np.empty(0) if array is None else np.ascontiguousarray(array)
            whole.update(f"{array is None} {values.dtype} {values.shape};".encode())
            whole.update(values.tobytes())
    return whole.digest()
