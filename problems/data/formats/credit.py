"""I-Cheng Yeh, "Default of Credit Card Clients", UCI Machine Learning Repository: 90 features.

The nine categorical columns are one-hot encoded with every code that the published file holds, the
undocumented ones (`EDUCATION` 0, 5, 6; `MARRIAGE` 0; `PAY_*` -2 and 0) included. The codes are written down
here, not read off the rows, so that a site's share of the file gets the same columns. `SEX` has two codes and
so needs one column: that gives the 90 features of the literature. The other 14 columns are scaled to [0, 1]
over the training rows.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from problems.data.formats.inspection import numeric_column
from problems.data.formats.tables import read_table
from problems.data.source import Rows, Source, make_source
from problems.data.spec import DataError

FILES = ("UCI_Credit_Card.csv", "UCI_Credit_Card.csv.gz")
LABELS = ("default.payment.next.month", "default payment next month")

_STATUS = tuple(range(-2, 9))
_LATE_STATUS = tuple(code for code in _STATUS if code != 1)
CODES: dict[str, tuple[int, ...]] = {
    "SEX": (1, 2),
    "EDUCATION": tuple(range(7)),
    "MARRIAGE": tuple(range(4)),
    **{f"PAY_{month}": _STATUS for month in (0, 2, 3, 4)},
    **{f"PAY_{month}": _LATE_STATUS for month in (5, 6)},
}
AMOUNTS = (
    "LIMIT_BAL",
    "AGE",
    *(f"BILL_AMT{month}" for month in range(1, 7)),
    *(f"PAY_AMT{month}" for month in range(1, 7)),
)


def credit(path: Path) -> Source:
    """Return the clients of `path`: features (n, 90), classes "0" and "1".

    Raises:
        DataError: names a column that is missing, not finite, or holds a code that is not in the published file.
    """
    frame = read_table(path)
    label = next((name for name in LABELS if name in frame.columns), None)
    missing = [name for name in (*CODES, *AMOUNTS) if name not in frame.columns]
    if label is None or missing:
        lacking = ", ".join([LABELS[0]] * (label is None) + missing)
        raise DataError(
            path,
            got=f"a table that lacks {lacking}",
            allowed="the UCI credit card file UCI_Credit_Card.csv",
            hint="set data-dir to that file",
        )

    def encode(train_rows: Rows) -> NDArray[np.float32]:
        blocks = []
        for name, codes in CODES.items():
            values = numeric_column(frame[name])
            unknown = np.setdiff1d(values, codes)
            if len(unknown):
                listed = ", ".join(f"{code:g}" for code in unknown[:10])
                raise DataError(
                    f"{path}, column {name!r}",
                    got=f"unknown code {listed}",
                    allowed=", ".join(map(str, codes)),
                    hint="take the file as it is published",
                )
            blocks.append(values[:, None] == (codes[1:] if len(codes) == 2 else codes))
        amounts = np.stack([numeric_column(frame[name]) for name in AMOUNTS], axis=1)
        low, high = amounts[train_rows].min(axis=0), amounts[train_rows].max(axis=0)
        blocks.append((amounts - low) / np.where(high > low, high - low, 1.0))
        return np.concatenate(blocks, axis=1, dtype=np.float32, casting="same_kind")

    return make_source(frame[label].to_numpy(), encode)
