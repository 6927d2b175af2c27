"""The audit of `privacy.epsilon` by canaries finds a run that breaks its budget, and none that keeps it."""

import numpy as np
import pytest
from scipy.stats import binom

from simulations.attacks.canaries import CANARIES, DELTA, GUESSES, audit, proven_epsilon


def test_right_guesses_prove_what_the_binomial_distribution_says() -> None:
    """Without delta: if each guess is right with chance e / (1 + e), so many are right in one run of twenty."""
    single = 1 / (1 + np.exp(-1.0))
    right = int(binom.isf(0.05, 400, single)) + 1
    assert binom.sf(right - 1, 400, single) <= 0.05 < binom.sf(right - 2, 400, single)
    assert 0.95 < proven_epsilon(right - 1, 400, 0.0, 1000) < 1.0 <= proven_epsilon(right, 400, 0.0, 1000) < 1.05
    assert proven_epsilon(200, 400, 0.0, 1000) == 0.0
    assert 0 < proven_epsilon(right, 400, DELTA, 1000) < proven_epsilon(right, 400, 0.0, 1000)


@pytest.mark.parametrize("epsilon", [1.0, 4.0])
def test_a_run_that_keeps_its_budget_is_found_innocent(epsilon: float) -> None:
    """By theory each of three audits exceeds epsilon in one of 20 runs at most; measured in 60: 0 to .45 of it."""
    found = [audit(epsilon, seed=seed) for seed in range(3)]
    assert max(found) <= epsilon
    assert max(found) > 0.05 * epsilon  # the canaries can be told apart


def test_a_run_with_a_fifth_of_the_noise_is_caught() -> None:
    """Measured in 60: 1.36 to 2.12."""
    assert audit(1.0, share=0.2) > 1.0
    assert CANARIES == 1000
    assert GUESSES < CANARIES
