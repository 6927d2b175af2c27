"""Values that were readable in a run's numbers are not any more; where they still are, that is said."""

import numpy as np

from simulations.attacks import decoding
from simulations.attacks.__main__ import DEMONSTRATIONS


def test_sums_of_known_weights_tell_their_values() -> None:
    sizes = ((2, 3), (4,))
    _, _, held = decoding.customers(sizes, rows=20)
    weights = [np.array([0.5, -0.25, 1.0, 3.0, -2.0]), np.array([0.1, 0.2, 0.4, 0.8])]
    sums = sum(decoding.one_hot(own, columns) @ w for own, columns, w in zip(held, sizes, weights, strict=True))
    found = decoding.decoded(sums, weights, sizes)
    assert decoding.right(found, held) == 1.0
    assert decoding.right([found[0], 3 - found[1]], held) < 1.0
    assert decoding.most_frequent([np.array([[0], [1], [1]]), np.array([[2], [2], [2]])]) == (2 / 3 + 1) / 2


def test_nothing_shown_before_training_tells_a_value() -> None:
    """When the vectors were drawn from the run's seed, all 13,500 values were found."""
    numbers = DEMONSTRATIONS["before-training"]()
    assert numbers["values right, public start vectors"] == 1.0
    assert numbers["error of 10 numeric columns, 12 runs, public start vectors"] < 1e-12
    assert numbers["values right, now"] < numbers["the most frequent value"]
    assert numbers["numbers of rows shown to a passive party, now"] == 0


def test_predictions_tell_values_only_to_who_has_the_blocks() -> None:
    numbers = DEMONSTRATIONS["assembled"]()
    assert numbers["values right, assemble = true"] == 1.0
    assert numbers["values right, the blocks unknown"] < numbers["the most frequent value"]


def test_as_many_full_passes_as_columns_tell_all() -> None:
    numbers = DEMONSTRATIONS["looks"]()
    assert numbers["12 columns, 25 full passes: best explained value"] > 1 - 1e-9
    assert all(value < 0.999 for what, value in numbers.items() if not what.startswith("12 columns, 25 full"))


def test_flips_drawn_anew_are_outvoted_and_kept_ones_are_not() -> None:
    drawn, kept, once = DEMONSTRATIONS["votes"]().values()
    assert drawn > 0.95
    assert abs(kept - once) < 0.04  # 4,000 labels of .73: four deviations of a difference
