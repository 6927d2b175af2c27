"""FedGDA-GT: step by step against the NumPy reference, and its exact saddle point on unequal sites."""

from pathlib import Path

import numpy as np
import pytest

from apps.config import Scalar
from methods.fedsgda import GRADIENTS, LocalGradient
from tests.algorithms.watched import CLOSE, EXACT, ROUNDS, SITES, STEPS, Watched
from tests.reference import minimax

KEYS: dict[str, Scalar] = {"strategy": "fedgda-gt", "learning-rate": 0.1}
VARIANTS: dict[str, dict[str, Scalar]] = {
    "base": {},
    "all-samples": {"batch-size": 0},
    "half": {"fraction-train": 0.5},
    "drops": {"lr-decay": 0.5, "lr-decay-every": STEPS},
    "problem": {"dataset": "synthetic-pl", "partition": "natural", "learning-rate": 0.003},
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_it_follows_the_reference(variant: str, data: dict[str, Scalar], tmp_path: Path) -> None:
    one = Watched(tmp_path, {**data, **KEYS, **VARIANTS[variant]})
    problem = one.saddle()
    for r in range(1, ROUNDS + 1):
        z, clients = one.models[r - 1], one.participants(r)

        def draw(i: int, k: int, first: int = (r - 1) * STEPS) -> minimax.Array:
            return one.batch(i, first + k)

        expected = minimax.fedgda_gt_round(problem, z, clients, draw, STEPS, one.rates(r)[0])
        np.testing.assert_allclose(one.models[r], expected, **CLOSE)
        answers = one.returned(r, LocalGradient, GRADIENTS)
        assert list(answers) == list(range(SITES))
        for i, answer in answers.items():
            np.testing.assert_allclose(answer.gradient, problem.gradient(i, z), **CLOSE)


@pytest.mark.parametrize("batch_size", [0, 5])
def test_constant_steps_reach_the_saddle_point_of_unequal_sites(
    batch_size: int, data: dict[str, Scalar], tmp_path: Path
) -> None:
    """Raw scores of a linear model make f quadratic. Descent ascent without tracking ends at another point."""
    common = {
        **data,
        "score": "logit",
        "num-server-rounds": 200,
        "local-steps": 5,
        "learning-rate": 0.2,
        "batch-size": batch_size,
    }
    tracked, plain = (
        Watched(tmp_path, {**common, **keys})
        for keys in ({"strategy": "fedgda-gt"}, {"strategy": "coda", "coda.proximal": 0.0})
    )
    gradient = minimax.mean_gradient(tracked.saddle(), range(SITES))
    assert np.abs(gradient(tracked.saved)).max() < 1e-12
    assert np.abs(gradient(plain.saved)).max() > 1e-3


def test_with_all_clients_it_is_fedsgda_with_the_gradient_of_all_sites(data: dict[str, Scalar], tmp_path: Path) -> None:
    steps = {"fedsgda.primal-step": 0.1, "fedsgda.dual-step": 0.1}
    left, right = (Watched(tmp_path, {**data, **keys}) for keys in (KEYS, {"strategy": "fedsgda-mb", **steps}))
    np.testing.assert_allclose(left.models, right.models, **EXACT)
