"""Tests that audits of `privacy.epsilon` by canaries detect runs that break their budget, and no others."""

import numpy as np
import pytest
from scipy.stats import binom

from benchmarks.attacks.canaries import DELTA, audit, proven_epsilon


def test_right_guesses_prove_what_the_binomial_distribution_says() -> None:
    """Without delta: if guesses are right with chance e / (1 + e), at least `right` are right in one run of twenty."""
    single = 1 / (1 + np.exp(-1.0))
    right = int(binom.isf(0.05, 400, single)) + 1
    assert binom.sf(right - 1, 400, single) <= 0.05 < binom.sf(right - 2, 400, single)
    assert 0.95 < proven_epsilon(right - 1, 400, 0.0, 1000) < 1.0 <= proven_epsilon(right, 400, 0.0, 1000) < 1.05
    assert proven_epsilon(200, 400, 0.0, 1000) == 0.0
    assert 0 < proven_epsilon(right, 400, DELTA, 1000) < proven_epsilon(right, 400, 0.0, 1000)


@pytest.mark.parametrize("epsilon", [1.0, 4.0])
def test_a_run_that_keeps_its_budget_is_found_innocent(epsilon: float) -> None:
    proven, measured = audit(epsilon)
    assert 0.3 * epsilon < proven < epsilon  # the attack distinguishes the canaries
    assert 0.97 < measured < 1.03  # 20,000 weights: six standard errors


@pytest.mark.parametrize("epsilon", [1.0, 4.0])
def test_a_run_with_half_of_the_noise_is_caught(epsilon: float) -> None:
    proven, measured = audit(epsilon, share=0.5)
    assert proven > epsilon
    assert 0.485 < measured < 0.515
