"""Tests of data frames from a user's function: types of columns, names in errors, and the index of the labels."""

import sys
from types import ModuleType
from typing import Any

import numpy as np
import pandas as pd
import pytest

from problems.data import DataError, DataSpec, load
from problems.data.formats.loaders import call_loader
from tests.refusals import refuses

N = np.arange(40)
Y = pd.Series(N % 2)
X = pd.DataFrame({"a": N / 7, "b": N % 3})


@pytest.fixture
def returns(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return the source of a loader that returns the given data."""

    def make(*found: Any) -> Any:
        module = ModuleType("frames_of_a_user")
        module.loader = lambda: found  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, module.__name__, module)
        return call_loader("frames_of_a_user:loader", "", 0)

    return make


def features(source: Any) -> Any:
    return source.features(np.arange(len(source)))[0]


@pytest.mark.parametrize(
    "dtype", ["bool", "boolean", "Int64", "Float64", "int64[pyarrow]", "bool[pyarrow]", "Sparse[int]"]
)
def test_truths_and_nullable_numbers_are_numbers(returns: Any, dtype: str) -> None:
    found = features(returns(X.assign(c=pd.Series(N % 2).astype(dtype)), Y))
    np.testing.assert_array_equal(found, np.stack([N / 7, N % 3, N % 2], axis=1))


def test_a_frame_of_one_type_is_as_before(returns: Any) -> None:
    pixels = pd.DataFrame(np.arange(80, dtype=np.uint8).reshape(40, 2))
    assert features(returns(pixels, Y)).dtype == np.uint8
    assert features(returns(X.astype(np.float32), Y.to_frame())).dtype == np.float32


@pytest.mark.parametrize(
    ("column", "told"),
    [
        (
            np.where(N % 2, "f", "m"),
            r"columns 'c' \(str\), allowed: columns of numbers, true and false; encode these columns",
        ),
        (pd.Series(N).astype(object), r"columns 'c' \(object\)"),
        (pd.Series(N % 3).astype("category"), r"columns 'c' \(category\)"),
        (pd.Series(N % 2 == 0).astype("category"), r"columns 'c' \(category\)"),
        (pd.date_range("2020-01-01", periods=40), r"columns 'c' \(datetime64"),
        (
            pd.Series([None, *N[1:]], dtype="Int64"),
            r"columns 'c' \(1 of 40 cells missing or infinite, the first in row 1",
        ),
        (pd.Series([np.nan, *N[1:]]), r"columns 'c' \(1 of 40 cells missing or infinite, the first in row 1"),
    ],
)
def test_columns_that_are_not_numbers_are_named(returns: Any, column: Any, told: str) -> None:
    with refuses(DataError, told):
        returns(X.assign(c=column), Y)


def test_labels_have_the_index_of_the_rows(returns: Any) -> None:
    mixed = Y.sample(frac=1, random_state=1)
    with refuses(DataError, r"rows of y in another order than the rows of X.*return y.loc\[X.index\]"):
        returns(X, mixed)
    with refuses(DataError, r"index differs .* \(5 of 40 occur only in y\).*X.reset_index\(drop=True\)"):
        returns(X, Y.set_axis(N + 5))
    with refuses(DataError, "index differs from the rows' index"):
        returns(X.set_axis(np.zeros(40)), Y)
    for labels in (mixed.loc[X.index], mixed.to_numpy(), mixed.tolist()):
        np.testing.assert_array_equal(returns(X, labels).codes, np.asarray(labels))
    np.testing.assert_array_equal(returns(X.loc[mixed.index], mixed).codes, mixed)


def test_test_columns_are_in_the_order_of_the_training_columns(returns: Any) -> None:
    with refuses(DataError, r"X_test with the columns of X in another order.*return X_test\[X.columns\]"):
        returns(X, Y, X[["b", "a"]], Y)
    with refuses(DataError, "columns that only X or only X_test has: 'a', 'c'"):
        returns(X, Y, X.rename(columns={"a": "c"}), Y)
    assert returns(X, Y, X, Y).train_count == 40


def test_labels_of_nullable_types(returns: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert returns(X, Y.astype("Int64")).classes == ("0", "1")
    assert returns(X, (Y == 1).astype("boolean")).classes == ("False", "True")
    with refuses(DataError, "labels: got 1 of 40 missing"):
        returns(X, pd.Series([None, *Y[1:]], dtype="Int64"))
    returns(X.assign(c=Y == 1), Y)
    assert len(load(DataSpec("frames_of_a_user:loader"), 2).train) == 32
