"""Tests of risks over many pairs: within the stated bounds of the risks over all pairs, for all scores."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from problems.objectives.pairwise import PAIRWISE_LOSSES, LinearRisk, Surrogate, make_objective

KINDS = {
    "normal": lambda rng, n: rng.normal(size=n),
    "constant": lambda rng, n: np.full(n, 0.7),
    "ties": lambda rng, n: np.round(rng.normal(size=n), 1),
    "clusters": lambda rng, n: rng.choice([-3.0, 0.0, 40.0], n) + 0.01 * rng.normal(size=n),
    "outliers": lambda rng, n: np.where(rng.random(n) < 0.02, 1e6, 1.0) * rng.normal(size=n),
}
CELLS = 4  # few, so that a few rows are many


@st.composite
def score_sets(draw: st.DrawFn) -> Tensor:
    """Return (n,) scores; up to 36 scores stay exact."""
    kind, size = draw(st.sampled_from(sorted(KINDS))), draw(st.integers(2, 120))
    scale, place = draw(st.sampled_from([1e-3, 1.0, 30.0])), draw(st.sampled_from([0.0, -2.0, 1e3]))
    return torch.tensor(scale * KINDS[kind](np.random.default_rng(draw(st.integers(0, 99))), size) + place)


def cell_width(scores: Tensor) -> float:
    return float(scores.max() - scores.min()) / CELLS * (len(scores) > 9 * CELLS)


@settings(max_examples=100)
@given(
    loss=st.sampled_from(sorted(PAIRWISE_LOSSES)),
    surrogate=st.sampled_from(["squared-hinge", "logistic"]),
    temperature=st.sampled_from([1e-6, 0.1, 3.0, 1e6]),
    positives=score_sets(),
    negatives=score_sets(),
)
def test_risks_are_within_their_bounds(
    loss: str, surrogate: str, temperature: float, positives: Tensor, negatives: Tensor
) -> None:
    objective = make_objective(loss, temperature=temperature, surrogate=surrogate)
    pooled = objective.partners == "all"
    partners = torch.cat([positives, negatives]) if pooled else negatives
    labels = (torch.arange(len(partners)) < len(positives) * pooled).double()

    def risk(moved: float | Tensor = 0.0, direct: int = 10**9) -> float:
        return objective.risk(positives, partners + moved, labels if pooled else None, direct=direct, cells=CELLS)

    exact, found = risk(), risk(direct=0)
    rounding = 1e-10 * abs(exact) + 1e-13 * temperature * (loss == "kl-opauc") + 1e-18
    v, w = cell_width(positives), cell_width(negatives)
    share, x = 1 / CELLS + 1 / 37, max(1 + float(partners.max() - positives.min()), 0.0)
    bounds = {
        "square": 0.0,  # so number, mean and variance of the scores stay
        "psm": (v**3 + w**3) / 768,
        "logistic": (v**3 + w**3) / 768,
        "squared-hinge": (v**2 + w**2) / 4 * share,
        "kl-opauc": min(2 * x * w, (x * w) ** 2 / (2 * temperature) + w**2 / 4) + x * v / 2 * share,
    }
    assert abs(found - exact) <= bounds.get(loss, np.inf) + rounding
    if loss != "square":  # the other losses are monotone
        most = v + torch.where(labels > 0.5, v, w)
        assert risk((2 * labels - 1) * most) - rounding <= found <= risk((1 - 2 * labels) * most) + rounding


# rows that other rows drive apart: more outliers than gaps count, a sparse half-line, five outliers on one side
UNEVEN = {
    "shares": np.concatenate(
        (np.random.default_rng(1).normal(size=1000), 1e6 * np.random.default_rng(3).normal(size=40))
    ),
    "widths": np.concatenate((np.full(1000, 0.3), np.linspace(0, 30, 300))),
    "gaps": np.concatenate((np.random.default_rng(2).normal(size=1000), 10.0 ** np.arange(1, 6))),
}


@pytest.mark.parametrize("border", UNEVEN)
def test_each_kind_of_border_is_needed(border: str) -> None:
    scores, objective = torch.tensor(UNEVEN[border]), make_objective("psm")
    exact = objective.risk(scores + 0.5, scores)
    assert objective.risk(scores + 0.5, scores, direct=0, cells=32) == pytest.approx(exact, rel=1e-5)


@pytest.mark.parametrize(("rows", "most"), [(2048, 2048**2), (10_000, (9 * 256) ** 2)])
def test_few_pairs_are_all_computed_and_many_never(rows: int, most: int) -> None:
    seen: list[int] = []

    def value(s: Tensor) -> Tensor:
        seen.append(s.numel())
        return torch.sigmoid(s)

    scores = torch.linspace(-1, 1, rows)
    assert LinearRisk(Surrogate(value, torch.sigmoid)).risk(scores, scores) == pytest.approx(0.5, rel=1e-12)
    assert most / 4 <= sum(seen) <= most
