"""Check for labels that probably mean the same, but are spelled differently, such as "Yes" and "yes "."""

import unicodedata
from typing import Any

import numpy as np
from numpy.typing import NDArray

from problems.data.cells import is_number
from problems.data.spec import DataError


def check_spellings(labels: NDArray[Any]) -> None:
    """Check that no two labels differ only in case, spaces or the format of a number.

    Args:
        labels: The labels as they were read, (n,).

    Raises:
        DataError: A label has several spellings. The error gives row numbers, since labels may be private.
    """
    if labels.dtype.kind not in "OUS" or labels.ndim != 1:
        return
    texts = labels.astype(str)
    values, first, counts = np.unique(texts, return_index=True, return_counts=True)
    seen: dict[str, int] = {}
    for index, value in enumerate(values.tolist()):
        earlier = seen.setdefault(_canonical(value), index)
        if earlier != index:
            rows = sorted((int(first[position]) + 1, int(counts[position])) for position in (earlier, index))
            rows_text = " and ".join(f"row {row:,} ({count:,} rows)" for row, count in rows)
            got = f"labels that differ only in case, spaces or number format: {rows_text}"
            hint = "correct the labels, or write them the same way"
            raise DataError("labels", got=got, allowed="a single spelling of each label", hint=hint)


def _canonical(text: str) -> str:
    """Return the text in a single case, with single spaces and a standard number format."""
    plain = " ".join(unicodedata.normalize("NFKC", text).split())
    return str(float(plain)) if is_number(plain) else plain.casefold()
