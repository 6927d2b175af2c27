"""Tests that the check of shapes in `tests.shapes` notices wrong shapes also after calls that it has passed."""

from dataclasses import dataclass

import numpy as np
import pytest
from jaxtyping import Float64, TypeCheckError

from tests.shapes import check, jaxtyped


@jaxtyped(typechecker=check)
def keep(points: Float64[np.ndarray, "n d"], count: int) -> Float64[np.ndarray, "n d"]:
    return points[:count]


@jaxtyped(typechecker=check)
def repeat(point: Float64[np.ndarray, "d"], count: int) -> Float64[np.ndarray, "{count} d"]:
    return np.tile(point, (min(count, 2), 1))


@jaxtyped(typechecker=check)
@dataclass
class Pair:
    first: Float64[np.ndarray, "n"]
    second: Float64[np.ndarray, "n"]


def test_checked_function_checks_each_new_shape() -> None:
    assert keep(np.ones((3, 2)), 3).shape == keep(np.ones((3, 2)), count=9).shape == (3, 2)
    for points, count in (np.ones((3, 2)), 2), (np.ones(3), 3), (np.ones((3, 2), np.float32), 3), ([[1.0, 2.0]], 1):
        for _ in range(2):
            with pytest.raises(TypeCheckError):
                keep(points, count)


def test_check_of_a_length_that_depends_on_a_value_is_repeated() -> None:
    repeat(np.ones(3), 2)
    with pytest.raises(TypeCheckError):
        repeat(np.ones(3), 3)


def test_fields_of_a_data_class_are_checked() -> None:
    Pair(np.ones(2), np.ones(2))
    for wrong in {"first": np.ones(2), "second": np.ones(3)}, {"first": np.ones((2, 1)), "second": np.ones(2)}:
        with pytest.raises(TypeCheckError):
            Pair(**wrong)
