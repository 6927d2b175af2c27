"""Conversion of pandas data from a user's loader to arrays: columns must be numbers, X and y must share an index."""

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from problems.data.cells import is_numeric, name_cells, numbers
from problems.data.spec import DataError

_ENCODE = "encode these columns as numbers, for example with pandas.get_dummies or astype(float), or drop these columns"
_MAX_NAMES = 10


def is_frame(value: Any) -> bool:
    """Return whether a value is a pandas DataFrame."""
    pandas: Any = sys.modules.get("pandas")  # a function that returns a frame has imported it
    return pandas is not None and isinstance(value, pandas.DataFrame)


def is_series(value: Any) -> bool:
    """Return whether a value is a pandas Series."""
    pandas: Any = sys.modules.get("pandas")
    return pandas is not None and isinstance(value, pandas.Series)


def read_frame(origin: str, frame: Any) -> NDArray[Any]:
    """Return the numbers of a DataFrame; true is 1 and false is 0.

    Args:
        origin: The name of the frame's source, for errors.
        frame: The features, a column for each.

    Raises:
        DataError: Columns are not numbers, or have missing or infinite cells; names the columns.
    """
    names, kinds = list(map(str, frame.columns)), list(frame.dtypes)
    columns = [frame.iloc[:, index] for index in range(len(names))]
    if bad := [
        f"{name!r} ({kind})" for name, kind, column in zip(names, kinds, columns, strict=True) if not _fits(column)
    ]:
        raise DataError(origin, got=f"columns {_join(bad)}", allowed="columns of numbers, true and false", hint=_ENCODE)
    if all(isinstance(kind, np.dtype) for kind in kinds) and len({kind.kind == "b" for kind in kinds}) < 2:
        # one type for all columns, so bytes stay pixels
        plain: NDArray[Any] = frame.to_numpy()
    else:
        plain = np.stack([numbers(column) for column in columns], axis=1)
    if plain.dtype.kind == "f":
        pairs = zip(names, ~np.isfinite(plain).T, strict=True)
        if bad := [f"{name!r} ({name_cells(gaps, 'missing or infinite')})" for name, gaps in pairs if gaps.any()]:
            hint = "fill the missing or infinite cells, or drop their rows"
            raise DataError(origin, got=f"columns {_join(bad)}", allowed="columns of finite numbers", hint=hint)
    return plain


def read_series(labels: Any) -> NDArray[Any]:
    """Return the cells of a Series; a missing cell of a nullable type is None."""
    if isinstance(labels.dtype, np.dtype):
        plain: NDArray[Any] = labels.to_numpy()
        return plain
    cells: NDArray[Any] = labels.astype(object).to_numpy(copy=True)
    cells[labels.isna().to_numpy()] = None
    return cells


def check_index(origin: str, features: Any, labels: Any) -> None:
    """Check that features and labels have the same index, if both are pandas objects.

    Args:
        origin: The name of the data's source, for errors.
        features: A DataFrame, or another object, which has no index.
        labels: A Series or DataFrame, or another object.

    Raises:
        DataError: The indices differ.
    """
    if not is_frame(features) or not (is_series(labels) or is_frame(labels)) or len(features) != len(labels):
        return
    index, label_index = features.index, labels.index
    if index.equals(label_index):
        return
    if index.is_unique and label_index.is_unique and index.isin(label_index).all():
        got, hint = "the rows of y in another order than the rows of X", "return y.loc[X.index]"
    else:
        missing = int((~label_index.isin(index)).sum())
        got = f"labels whose index differs from the rows' index ({missing:,} of {len(label_index):,} occur only in y)"
        hint = (
            "align X and y, or return X.reset_index(drop=True) and y.reset_index(drop=True) if their order is the same"
        )
    raise DataError(origin, got=got, allowed="X and y with the same index in the same order", hint=hint)


def check_columns_alike(origin: str, train: Any, test: Any) -> None:
    """Check that two DataFrames have the same columns in the same order.

    Args:
        origin: The name of the data's source, for errors.
        train: The training features; ignored if they are not a DataFrame.
        test: The test features; ignored if they are not a DataFrame.

    Raises:
        DataError: The columns differ.
    """
    if not (is_frame(train) and is_frame(test)) or list(train.columns) == list(test.columns):
        return
    differing = sorted(set(map(str, train.columns)) ^ set(map(str, test.columns)))
    got, hint = "X_test with the columns of X in another order", "return X_test[X.columns]"
    if differing:
        got = f"columns that only X or only X_test has: {_join(list(map(repr, differing)))}"
        hint = "return X and X_test with the same columns"
    raise DataError(origin, got=got, allowed="equal columns in equal order", hint=hint)


def _fits(column: Any) -> bool:
    try:
        return is_numeric(column) and column.dtype != object
    except DataError:
        return False


def _join(names: Sequence[str]) -> str:
    return ", ".join(names[:_MAX_NAMES]) + (f" and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else "")
