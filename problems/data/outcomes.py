"""Labels that are numbers, and offsets: two columns of a table that are not features."""

from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float64

from problems.data.cells import name_cells, numbers
from problems.data.spec import DataError

if TYPE_CHECKING:
    import pandas as pd


def read_numbers(column: "pd.Series[Any]") -> Float64[np.ndarray, "n"]:
    """Return the numbers of a column of labels or offsets.

    Raises:
        DataError: Cells are missing, text, dates or infinite. The error names the column, and quotes no cell.
    """
    missing = column.isna().to_numpy(dtype=bool)
    if missing.any():
        got, hint = name_cells(missing, "missing"), "fill the missing cells, or drop their rows"
        raise DataError(f"column {str(column.name)!r}", got=got, allowed="no missing values", hint=hint)
    return numbers(column)


def check_counts(labels: Float64[np.ndarray, "n"], column: str) -> None:
    """Check that labels can be counts, the outcomes of a Poisson model.

    Args:
        labels: The labels.
        column: The name of their column.

    Raises:
        DataError: A label is below 0. The error quotes no label.
    """
    if (below := labels < 0).any():
        hint = 'set loss to "squared", or correct the labels'
        got, allowed = name_cells(below, "below 0"), "numbers of 0 or more, since loss is 'poisson'"
        raise DataError(f"column {column!r}", got=got, allowed=allowed, hint=hint)


def find_faults(column: "pd.Series[Any]", *, label: bool = False) -> list[DataError]:
    """Return the errors about a column of numbers, in a list; an empty list if all cells are numbers.

    Args:
        column: The column.
        label: Whether the numbers are labels.
    """
    try:
        read_numbers(column)
    except DataError as error:
        classes = f'{error.hint}, or set label-type to "class" if the labels are classes'
        return [DataError.of(error, hint=classes) if label and "text" in error.got else error]
    return []
