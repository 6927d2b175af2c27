"""Tests of penalties: proximal maps against their definition, distances against proximal maps of a vanishing step."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor

from problems.models import Layout
from problems.penalties import (
    L1,
    PENALTIES,
    Box,
    ElasticNet,
    GroupLasso,
    L2Ball,
    NonNegative,
    NoPenalty,
    NuclearNorm,
    OnParameters,
    Penalty,
    PenaltySettings,
    Simplex,
    SquaredL2,
    make_penalty,
    select_coordinates,
)
from tests.refusals import refuses

DIM = 12
GROUPS = [7, 0, 0, 7, -3, 7, 0, 5, 5, 7, -3, 5]
SETS: dict[str, Penalty] = {
    "box": Box(-0.5, 0.8),
    "half-line": Box(-math.inf, 0.3),
    "one-point-box": Box(0.2, 0.2),
    "nonnegative": NonNegative(),
    "l2-ball": L2Ball(1.3),
    "origin": L2Ball(0),
    "simplex": Simplex(1.5),
}
PENALTIES_BY_NAME: dict[str, Penalty] = SETS | {
    "none": NoPenalty(),
    "l1": L1(0.7),
    "l2": SquaredL2(0.7),
    "elastic-net": ElasticNet(0.7, 0.4),
    "group-lasso": GroupLasso(0.5, GROUPS),
    "nuclear-norm": NuclearNorm(0.5, (3, 4)),
    "nuclear-norm-tall": NuclearNorm(0.5, (6, 1, 2)),
    "parts": OnParameters(
        DIM,
        [
            (slice(6, 9), Simplex(0.5)),
            (torch.tensor([1, 4, 0]), L1(0.4)),
            (slice(9, 12), GroupLasso(0.3, [0, 1, 1])),
        ],
    ),
}


def made(name: str, layout: Layout, **options: Any) -> Penalty:
    return make_penalty(PenaltySettings.model_validate({"penalty": name, **options}), layout)


each_penalty = pytest.mark.parametrize("name", PENALTIES_BY_NAME)
each_set = pytest.mark.parametrize("name", SETS)
each_dtype = pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
seeds = st.integers(0, 2**32 - 1)
scales = st.sampled_from([1e-3, 0.3, 1.0, 30.0, 1e4])
steps = st.floats(0, 5)
positive_steps = st.floats(1e-3, 5)


def vector(seed: int, scale: float = 1.0, dtype: torch.dtype = torch.float64, dim: int = DIM) -> Tensor:
    """Return a random vector with zeros and ties."""
    rng = np.random.default_rng(seed)
    values = scale * rng.normal(size=dim)
    values[rng.random(dim) < 0.2] = 0
    values[rng.random(dim) < 0.2] = values[0]
    return torch.tensor(values, dtype=dtype)


def objective(penalty: Penalty, step: float, x: Tensor, u: Tensor) -> float:
    """Return step g(u) + 1/2 ||u - x||^2, which P minimises."""
    value = penalty.value(u)
    return (value if value == math.inf else step * value) + float((u - x) @ (u - x)) / 2


# The proximal map.


@each_penalty
@settings(max_examples=40)
@given(seed=seeds, scale=scales, step=steps)
def test_prox_minimises_its_definition(name: str, seed: int, scale: float, step: float) -> None:
    penalty, x = PENALTIES_BY_NAME[name], vector(seed, scale)
    u = penalty.prox(x, step)
    least = objective(penalty, step, x, u)
    rounding = 1e-12 * (1 + float(x @ x))
    for other in (seed + 1, seed + 2, seed + 3):
        v = penalty.prox(vector(other, scale), 0.01)  # in the domain, at the kinks of g
        v = u + (0.01 if other % 2 else 1) * (v - u)
        # the objective is 1-strongly convex
        assert objective(penalty, step, x, v) + rounding >= least + float((v - u) @ (v - u)) / 2


@each_penalty
@each_dtype
@settings(max_examples=40)
@given(seed=seeds, scale=scales, step=positive_steps)
def test_prox_is_where_the_distance_vanishes(
    name: str, dtype: torch.dtype, seed: int, scale: float, step: float
) -> None:
    penalty, x = PENALTIES_BY_NAME[name], vector(seed, scale, dtype)
    u = penalty.prox(x, step)
    assert u.dtype is dtype
    eps = torch.finfo(dtype).eps
    if isinstance(penalty, NuclearNorm):  # vectors of small singular values are less precise
        singular = (torch.linalg.svdvals(x.view(penalty.shape)) - step * penalty.weight).clamp(min=0)
        assume(bool(((singular == 0) | (singular > 1e-2 * singular.max())).all()))
        eps *= 100
    assert penalty.distance(u, (u - x) / step) <= 200 * eps * (1 + float(x.norm())) / step


@each_penalty
@each_dtype
def test_prox_returns_a_new_tensor(name: str, dtype: torch.dtype) -> None:
    penalty = PENALTIES_BY_NAME[name]
    for step in (0.0, 0.4):
        x = penalty.prox(vector(1, dtype=dtype), 1.0)
        before = x.clone()
        penalty.prox(x, step).add_(1.0)
        assert torch.equal(x, before)


@each_penalty
def test_nan_stays_nan(name: str) -> None:
    x = vector(3)
    x[7] = math.nan
    assert PENALTIES_BY_NAME[name].prox(x, 0.5)[7].isnan()
    assert not math.isfinite(PENALTIES_BY_NAME[name].value(x)) or name == "none"


# The value.


def test_values() -> None:
    x = torch.tensor([3.0, -4.0, 0.5, 0.0], dtype=torch.float64)
    cases: list[tuple[Penalty, float]] = [
        (NoPenalty(), 0),
        (L1(2), 15),  # 2 (3 + 4 + 0.5)
        (SquaredL2(2), 25.25),  # 9 + 16 + 0.25
        (ElasticNet(2, 0.25), 2 * (0.25 * 7.5 + 0.75 / 2 * 25.25)),
        (GroupLasso(2, [8, 8, 8, 1]), 2 * math.sqrt(3) * math.sqrt(25.25)),
        (NuclearNorm(2, (2, 2)), 2 * np.linalg.norm([[3, -4], [0.5, 0]], "nuc")),
        (OnParameters(4, [(slice(1, 3), L1(2)), (torch.tensor([0]), SquaredL2(4))]), 27),  # 2 * 4.5 + 4 / 2 * 9
        (Box(-4, 3), 0),
        (Box(-4, 2.999), math.inf),
        (Box(-3.999, 3), math.inf),
        (L2Ball(5.025), 0),  # sqrt(25.25) = 5.02494
        (L2Ball(5.024), math.inf),
        (NonNegative(), math.inf),
    ]
    for penalty, expected in cases:
        assert penalty.value(x) == pytest.approx(float(expected), rel=1e-14), penalty
    for entries, value in ([1.0, 2, 0], 0), ([1.0, 2, 0.001], math.inf), ([1.0, 3, -1], math.inf):
        assert Simplex(3).value(torch.tensor(entries)) == value
    assert L2Ball(0).value(torch.tensor([0.0, 1e-30])) == math.inf


@each_set
@each_dtype
@settings(max_examples=40)
@given(seed=seeds, scale=scales)
def test_projections_are_idempotent_and_inside_with_their_mean(
    name: str, dtype: torch.dtype, seed: int, scale: float
) -> None:
    penalty = SETS[name]
    u, v = (penalty.prox(vector(seed + i, scale, dtype), 0.3) for i in range(2))
    eps = torch.finfo(dtype).eps
    assert penalty.value(u) == penalty.value(v) == penalty.value(0.3 * u + 0.7 * v) == 0
    torch.testing.assert_close(penalty.prox(u, 0.3), u, rtol=4 * eps, atol=4 * eps)


# The distance.


@each_penalty
@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("kinks", [True, False])
def test_distance_is_the_limit_of_the_gradient_mapping(name: str, seed: int, kinks: bool) -> None:
    """||x - P_{s g}(x - s v)|| / s grows to dist(0, v + dg(x)) as s falls to 0 (Brezis 1973, proposition 2.6)."""
    penalty, slope = PENALTIES_BY_NAME[name], 2 * vector(seed + 50)
    x = penalty.prox(vector(seed, 0.5 if kinks else 2.0), 1.0 if kinks else 1e-3)
    expected = penalty.distance(x, slope)
    mapping = [float((x - penalty.prox(x - s * slope, s)).norm()) / s for s in (1.0, 1e-2, 1e-6)]
    assert mapping[0] <= mapping[1] + 1e-9 <= mapping[2] + 2e-9 <= expected + 3e-9
    assert mapping[2] == pytest.approx(expected, rel=1e-4, abs=1e-8)


@each_set
def test_outside_of_a_set_the_distance_is_infinite(name: str) -> None:
    outside = torch.tensor([0.9, -0.6, *[0.4] * (DIM - 2)])
    assert SETS[name].value(outside) == math.inf
    assert SETS[name].distance(outside, torch.zeros(DIM)) == math.inf


# Some of the parameters.

LAYOUT = [
    ("stem.conv.weight", (2, 3, 2, 2)),
    ("stem.norm.weight", (2,)),
    ("stem.norm.bias", (2,)),
    ("head.weight", (4, 2)),
    ("head.bias", (4,)),
    ("head_scale", ()),
]
SIZE = 24 + 2 + 2 + 8 + 4 + 1


@pytest.mark.parametrize(
    ("parameters", "expected"),
    [
        ("all", [(0, SIZE)]),
        ("auto", [(0, 24), (28, 36)]),
        (" head.bias ,stem.norm.weight", [(24, 26), (36, 40)]),
        ("stem.norm.,head_scale", [(24, 28), (40, 41)]),
        ("head.,head.bias", [(28, 40)]),
    ],
)
def test_selected(parameters: str, expected: list[tuple[int, int]]) -> None:
    mask = select_coordinates(LAYOUT, parameters)
    assert mask.dtype is torch.bool
    assert mask.shape == (SIZE,)
    assert torch.nonzero(mask).flatten().tolist() == [i for start, stop in expected for i in range(start, stop)]
    x = torch.full((SIZE,), 0.25)
    changed = made("l2", LAYOUT, weight=1.0, parameters=parameters).prox(x, 1.0) != x
    assert torch.equal(changed, mask)


OPTIONS: dict[str, Any] = {"weight": 0.3, "ratio": 0.2, "lower": -0.1, "upper": 0.4, "radius": 0.9}


def test_penalties_by_name() -> None:
    layout = [("weight", (3, 4))]
    expected: dict[str, Penalty] = {
        "none": NoPenalty(),
        "l1": L1(0.3),
        "l2": SquaredL2(0.3),
        "elastic-net": ElasticNet(0.3, 0.2),
        "box": Box(-0.1, 0.4),
        "l2-ball": L2Ball(0.9),
        "simplex": Simplex(0.9),
        "nonnegative": NonNegative(),
    }
    for name, penalty in expected.items():
        assert made(name, layout, **OPTIONS) == penalty
    assert made("none", [("bias", (3,))]) == NoPenalty()  # needs no matrix
    matrices = {"group-lasso": GroupLasso(0.3, [0] * 4 + [1] * 4 + [2] * 4), "nuclear-norm": NuclearNorm(0.3, (3, 4))}
    for name, penalty in matrices.items():
        assert torch.equal(made(name, layout, **OPTIONS).prox(vector(3), 0.7), penalty.prox(vector(3), 0.7))
    assert set(PENALTIES) == {*expected, *matrices}


@pytest.mark.parametrize("parameters", ["auto", "all", "stem.", "head.weight", "head.,head_scale"])
@pytest.mark.parametrize("name", ["l1", "l2", "elastic-net", "box", "l2-ball", "simplex", "nonnegative"])
def test_one_penalty_acts_on_all_selected_parameters_together(name: str, parameters: str) -> None:
    found = made(name, LAYOUT, **OPTIONS, parameters=parameters)
    plain = made(name, [("all", (SIZE,))], **OPTIONS, parameters="all")
    mask, x, slope = select_coordinates(LAYOUT, parameters), vector(4, dim=SIZE), vector(6, dim=SIZE)
    assert isinstance(found, OnParameters) is (parameters != "all")
    u = found.prox(x, 0.7)
    assert torch.equal(u[mask], plain.prox(x[mask], 0.7))
    assert torch.equal(u[~mask], x[~mask])
    assert found.value(u) == pytest.approx(plain.value(u[mask]), rel=1e-14)
    expected = math.hypot(plain.distance(u[mask], slope[mask]), float(slope[~mask].norm()))
    assert found.distance(u, slope) == pytest.approx(expected, rel=1e-14)


def test_groups_are_rows_or_columns_of_each_parameter() -> None:
    x = torch.arange(1.0, SIZE + 1, dtype=torch.float64)
    kernel, head = x[:24].view(2, 3, 4), x[28:36].view(4, 2)
    rows = sum(math.sqrt(12) * kernel[i].norm() for i in range(2)) + sum(math.sqrt(2) * r.norm() for r in head)
    columns = sum(math.sqrt(8) * kernel[:, i].norm() for i in range(3)) + sum(math.sqrt(4) * c.norm() for c in head.T)
    alone = x[24:28].sum() + x[36:].sum()  # a row of a vector is one number
    for groups, parameters, expected in (
        ("rows", "auto", rows),
        ("columns", "auto", columns),
        ("rows", "all", rows + alone),
    ):
        penalty = made("group-lasso", LAYOUT, weight=0.3, groups=groups, parameters=parameters)
        assert penalty.value(x) == pytest.approx(0.3 * float(expected), rel=1e-14)


def test_the_nuclear_norm_acts_on_each_matrix() -> None:
    penalty, x = made("nuclear-norm", LAYOUT, weight=0.3), vector(9, dim=SIZE)
    norms = [np.linalg.norm(part, "nuc") for part in (x[:24].view(2, 12), x[28:36].view(4, 2))]
    assert penalty.value(x) == pytest.approx(0.3 * float(sum(norms)), rel=1e-13)
    assert torch.equal(penalty.prox(x, 1.0)[28:36], NuclearNorm(0.3, (4, 2)).prox(x[28:36], 1.0))


# Rejections.


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: L1(-1), "weight must be >= 0 and finite, got -1"),
        (lambda: ElasticNet(1, 1.1), r"ratio must be in \[0, 1\], got 1.1"),
        (lambda: GroupLasso(1, [0.5, 1]), "groups must be .* got torch.float32"),  # type: ignore[list-item]
        (lambda: GroupLasso(1, [0, 1]).value(torch.zeros(3)), r"2 coordinates, got x of shape \(3,\)"),
        (lambda: NuclearNorm(1, (2, 2)).prox(torch.zeros(5), 1.0), r"4 entries, got x of \(5,\)"),
        (lambda: Box(1, 0), r"lower must be <= upper, got \[1, 0\], an empty set"),
        (lambda: Box(-math.inf, math.inf), "must be finite"),
        (lambda: L2Ball(-1), "radius must be >= 0 .* got -1"),
        (lambda: Simplex(0), "total must be > 0 and finite, got 0"),
        (lambda: L1(1).prox(torch.zeros(2), -0.1), "step must be >= 0 and finite, got -0.1"),
        (lambda: OnParameters(4, [(slice(0, 5), L1(1))]), r"got slice\(0, 5, None\)"),
        (lambda: OnParameters(4, [(torch.tensor([1, 4]), L1(1))]), r"coordinates 1 to 4, allowed: numbers in \[0, 4"),
        (lambda: OnParameters(4, [(slice(0, 2), L1(1)), (torch.tensor([1]), L1(1))]), "coordinate 1 .* in part 1"),
        (lambda: OnParameters(4, []).value(torch.zeros(3)), r"shape \(4,\), got \(3,\)"),
        (lambda: made("l0", LAYOUT), "penalty\n.*'none', 'l1', .* input_value='l0'"),
        (lambda: made("l1", LAYOUT, parameters="head"), "got 'head', allowed .* of: stem.conv.weight,"),
        (lambda: made("l1", LAYOUT, parameters="head.,"), "got ''"),
        (lambda: select_coordinates([("bias", (3,))], "auto"), "parameters='auto' selects only .* bias"),
        (lambda: made("simplex", LAYOUT, radius=0.0), "radius\n.* greater than 0 .* input_value=0.0"),
        (lambda: made("group-lasso", LAYOUT, groups="blocks"), "'rows' or 'columns' .* input_value='blocks'"),
        (lambda: made("group-lasso", LAYOUT, groups="columns", parameters="head."), "'head.bias' of shape"),
        (lambda: made("nuclear-norm", LAYOUT, parameters="all"), "'stem.norm.weight' .* is not a matrix"),
    ],
)
def test_bad_arguments(make: Callable[[], object], message: str) -> None:
    with refuses(ValueError, message):
        make()
