"""Tests of VFB2's problems: plain formulas, differences of values, and the correction for flipped labels."""

import math
import pickle
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.reference.vfb2 import Problem
from vertical.problem.objectives import PROBLEMS, correct_for_flips, make_objective

Array = NDArray[np.float64]


def pairs(name: str, seed: int = 0) -> tuple[Array, Array]:
    """Return (k,) predictions and labels of the problem's kind."""
    rng = np.random.default_rng(seed)
    z = 3.0 * rng.standard_normal(40)
    return z, np.sign(rng.standard_normal(40)) if "logistic" in name else rng.standard_normal(40)


def difference(function: Callable[[Array], Array], at: Array) -> Array:
    """Return the derivative by central differences, accurate to about 1e-9."""
    h = 1e-5
    return (function(at + h) - function(at - h)) / (2 * h)


# the loss of the prediction 0.5 for the label -1, and the penalty of the weights 2 and 0
BY_HAND = {
    "logistic": (math.log(1 + math.exp(0.5)), 2.0),
    "nonconvex-logistic": (math.log(1 + math.exp(0.5)), 0.4),
    "ridge": (2.25, 2.0),
    "robust": (math.log(2.125), 2.0),
}


@pytest.mark.parametrize("name", PROBLEMS)
def test_losses_and_penalty_are_the_papers(name: str) -> None:
    z, y = pairs(name)
    objective, paper = make_objective(name, 0.3), Problem(name, 0.3)
    loss, penalty = BY_HAND[name]
    assert objective.losses(np.array([0.5]), np.array([-1.0])) == pytest.approx(loss, rel=1e-14)
    assert objective.penalty(np.array([2.0, 0.0])) == pytest.approx(0.3 * penalty, rel=1e-14)
    np.testing.assert_allclose(objective.losses(z, y), paper.losses(z, y), rtol=1e-13, atol=1e-15)
    assert objective.penalty(z) == pytest.approx(paper.penalty(z), rel=1e-13)


@pytest.mark.parametrize("name", PROBLEMS)
def test_slopes_and_curvatures_are_derivatives(name: str) -> None:
    z, y = pairs(name)
    objective = make_objective(name, 0.3)
    np.testing.assert_allclose(objective.slopes(z, y), difference(lambda a: objective.losses(a, y), z), atol=1e-8)
    np.testing.assert_allclose(objective.curvatures(z, y), difference(lambda a: objective.slopes(a, y), z), atol=1e-8)
    each = np.vectorize(lambda w: Problem(name, 0.3).penalty(w))
    np.testing.assert_allclose(objective.penalty_slope(z), difference(each, z), atol=1e-8)
    np.testing.assert_allclose(objective.penalty_curvature(z), difference(objective.penalty_slope, z), atol=1e-8)


@pytest.mark.parametrize("name", PROBLEMS)
def test_the_curvature_bound_is_the_supremum(name: str) -> None:
    z = np.linspace(-8.0, 8.0, 1601)
    objective = make_objective(name)
    seen = objective.curvatures(z, np.ones(len(z)))
    assert seen.max() <= objective.curvature_bound * (1 + 1e-15)
    assert seen.max() == pytest.approx(objective.curvature_bound, rel=1e-12)
    assert (seen.min() < 0) == (name == "robust")


def test_large_predictions_do_not_overflow() -> None:
    objective = make_objective("logistic")
    z, y = np.array([-1e4, 1e4, -1e4, 1e4]), np.array([1.0, 1.0, -1.0, -1.0])
    assert objective.losses(z, y).tolist() == [1e4, 0.0, 0.0, 1e4]
    assert objective.slopes(z, y).tolist() == [-1.0, 0.0, 0.0, 1.0]
    assert objective.curvatures(z, y).tolist() == [0.0] * 4


@given(epsilon=st.floats(0.05, 20.0), name=st.sampled_from(PROBLEMS[:2]), seed=st.integers(0, 99))
def test_the_correction_is_the_formula_and_unbiased(epsilon: float, name: str, seed: int) -> None:
    z, y = pairs(name, seed)
    plain = make_objective(name, 0.2)
    fixed = correct_for_flips(plain, epsilon)
    r = 1.0 / (1.0 + math.exp(epsilon))
    scale = 1.0 / (1.0 - 2.0 * r)
    for got, of in ((fixed.losses, plain.losses), (fixed.slopes, plain.slopes), (fixed.curvatures, plain.curvatures)):
        formula = ((1 - r) * of(z, y) - r * of(z, -y)) * scale
        np.testing.assert_allclose(got(z, y), formula, rtol=1e-9, atol=1e-12 * scale)
        mean = (1 - r) * got(z, y) + r * got(z, -y)
        np.testing.assert_allclose(mean, of(z, y), rtol=1e-9, atol=1e-12 * scale)
    assert (fixed.penalty(z), fixed.curvature_bound) == (plain.penalty(z), 0.25)
    assert fixed.linear_decay == plain.linear_decay
    assert pickle.loads(pickle.dumps(fixed)) == fixed


@pytest.mark.parametrize(
    ("name", "labels", "message"),
    [
        ("logistic", [0.0, 1.0, -1.0], "labels of problem 'logistic' must be -1 or \\+1, got 0.0"),
        ("ridge", [1.0, math.nan], "1 of 2 labels are not finite"),
        ("logistic", [1.0, math.inf], "1 of 2 labels are not finite"),
        ("robust", [[1.0]], "labels must be \\(n,\\), got shape \\(1, 1\\)"),
    ],
)
def test_labels_that_do_not_fit(name: str, labels: list[float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_objective(name).check_labels(np.array(labels))
    make_objective(name).check_labels(np.array([1.0, -1.0] if "logistic" in name else [0.3, -7.0]))
