"""Solution of symmetric linear equations that names the column at fault if they are singular."""

import numpy as np
from jaxtyping import Float64
from scipy.linalg import solve_triangular

# the smallest share of a column's variation that the columns before it may leave unexplained
_TOLERANCE = 1e-11


class SingularError(ValueError):
    """Equations without a unique solution.

    Attributes:
        index: The first column that is a combination of the columns before it.
        partners: The columns of this combination; empty for a column of zeros.
    """

    def __init__(self, index: int, partners: list[int]) -> None:
        super().__init__(f"column {index} is a combination of columns {partners}")
        self.index, self.partners = index, partners


def solve(
    matrix: Float64[np.ndarray, "k k"], right: Float64[np.ndarray, "k"]
) -> tuple[Float64[np.ndarray, "k"], Float64[np.ndarray, "k k"]]:
    """Solve equations whose matrix is symmetric and positive definite.

    Args:
        matrix: The matrix. Columns of very different sizes are scaled first.
        right: The right-hand side.

    Returns:
        The solution, and the inverse of the matrix.

    Raises:
        SingularError: The matrix is singular.
    """
    if fault := find_singular(matrix):
        raise fault
    size = np.sqrt(np.diag(matrix))
    scaled = matrix / np.outer(size, size)
    inverse = np.linalg.inv(scaled)
    inverse = (inverse + inverse.T) / 2
    solution = np.linalg.solve(scaled, right / size)
    solution += np.linalg.solve(scaled, right / size - scaled @ solution)  # one step of refinement
    return solution / size, inverse / np.outer(size, size)


def find_singular(matrix: Float64[np.ndarray, "k k"]) -> SingularError | None:
    """Return the first column that depends linearly on the columns before it; None if there is no such column.

    The last column, the intercept, counts as the first.
    """
    order = np.roll(np.arange(len(matrix)), 1)
    size = np.sqrt(np.maximum(np.diag(matrix), 0))
    if (zeros := np.flatnonzero(~(size > 0))).size:
        return SingularError(int(zeros[0]), [])
    scaled = (matrix / np.outer(size, size))[np.ix_(order, order)]
    factor = np.zeros_like(scaled)
    for index in range(len(scaled)):
        before = factor[:index, :index]
        row = solve_triangular(before, scaled[index, :index], lower=True) if index else np.zeros(0)
        left = scaled[index, index] - row @ row
        if not left > _TOLERANCE:
            combination = solve_triangular(before.T, row) if index else np.zeros(0)
            involved = np.flatnonzero(np.abs(combination) > 1e-6 * np.abs(combination).max(initial=0))
            return SingularError(int(order[index]), [int(order[partner]) for partner in involved])
        factor[index, :index], factor[index, index] = row, np.sqrt(left)
    return None
