"""Janosi, Steinbrunn, Pfisterer and Detrano, "Heart Disease", UCI Machine Learning Repository, 1988: four hospitals.

Rows, columns and split are those of FLamby (du Terrail et al., NeurIPS 2022): the last three measurements, which most
patients lack, are left out, then every row with a missing value. Two columns hold codes; each code but the lowest gets
a 0/1 column. 66 % of each hospital's rows are for training, drawn by scikit-learn with FLamby's seed. Unlike there,
numbers are standardised over the training rows of all hospitals together, not of each.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from problems.data.columns import Encoded
from problems.data.formats.tables import read_table
from problems.data.source import Rows, Source, make_source
from problems.data.spec import DataError

FILES = tuple(f"processed.{hospital}.data" for hospital in ("cleveland", "hungarian", "switzerland", "va"))
COLUMNS = ("age", "sex", "cp", "trestbps", "chol", "fbs", "restecg", "thalach", "exang", "oldpeak")
CODES: dict[str, tuple[int, ...]] = {"cp": (1, 2, 3, 4), "restecg": (0, 1, 2)}
ALL_COLUMNS = 14  # with slope, ca and thal, which are left out, and the diagnosis
TRAIN_SHARE, TEST_SHARE, SPLIT_SEED = 0.66, 0.34, 43


def heart_disease(paths: Sequence[Path]) -> Source:
    """Return the patients of the hospitals' files: features (n, 13), classes "0" (healthy) to "4".

    Training rows come first, hospital by hospital, then the test rows likewise; the hospitals are the data set's sites.

    Raises:
        DataError: names a file that is not one of the published ones, or a code that those do not hold.
    """
    hospitals = [_read(path) for path in paths]
    splits = [_split(rows[:, -1] > 0) for rows in hospitals]
    train, test = ([rows[split[side]] for rows, split in zip(hospitals, splits, strict=True)] for side in (0, 1))
    patients = np.concatenate([*train, *test])  # (n, 11)
    blocks, names = [], list[str]()
    for place, name in enumerate(COLUMNS):
        column, codes = patients[:, place, None], CODES.get(name, ())[1:]
        blocks.append(column == codes if codes else column)
        names += [f"{name}={code}" for code in codes] or [name]
    encoded = Encoded(np.concatenate(blocks, axis=1), tuple(names), np.array(["=" not in name for name in names]))
    sizes = tuple(map(len, train))
    return make_source(patients[:, -1], lambda rows: encoded, sum(sizes), sizes)


def _read(path: Path) -> NDArray[np.float64]:
    """(n, 11) the complete rows of a hospital's file, the diagnosis last."""
    # Copies in circulation have a header line, X1 to X14.
    frame = read_table(path, header=None, comment="X", na_values=["?"])
    if frame.shape[1] != ALL_COLUMNS or not all(kind.kind in "if" for kind in frame.dtypes):
        raise DataError(
            path,
            got=f"{frame.shape[1]} columns, {sum(kind.kind in 'if' for kind in frame.dtypes)} of them of numbers",
            allowed=f"{ALL_COLUMNS}, all of numbers or ?",
            hint="take the file as it is published",
        )
    values = frame.to_numpy(dtype=np.float64)[:, [*range(len(COLUMNS)), -1]]
    rows: NDArray[np.float64] = values[~(np.isnan(values) | (values == -9)).any(axis=1)]
    for name, codes in CODES.items():
        unknown = np.setdiff1d(rows[:, COLUMNS.index(name)], codes)
        if len(unknown):
            raise DataError(
                f"{path}, column {name!r}",
                got=f"unknown code {', '.join(f'{code:g}' for code in unknown[:10])}",
                allowed=", ".join(map(str, codes)),
                hint="take the file as it is published",
            )
    return rows


def _split(ill: NDArray[np.bool_]) -> tuple[Rows, Rows]:
    """Training and test rows of a hospital, as FLamby draws them: within each class where both have three or more."""
    from sklearn.model_selection import train_test_split

    train, test = train_test_split(
        np.arange(len(ill)),
        test_size=TEST_SHARE,
        train_size=TRAIN_SHARE,
        random_state=SPLIT_SEED,
        stratify=ill if min(ill.sum(), (~ill).sum()) > 2 else None,
    )
    return train, test
