"""Budgets of differential privacy, for neighbouring data sets that differ in one record which only one of them has.

The accounting is that of ``dp-accounting``: the exact one of a Gaussian mechanism (B. Balle, Y.-X. Wang, "Improving the
Gaussian Mechanism for Differential Privacy", ICML 2018, Theorem 8). Releases of the same record, each with noise of
deviation s, are together as private as one with noise of deviation s / sqrt(releases).
"""

import math
from functools import lru_cache


@lru_cache
def noise_for(epsilon: float, delta: float, releases: int) -> float:
    """Return the standard deviation of the noise with which so many releases together spend a budget.

    Args:
        epsilon: of the budget, above 0.
        delta: of the budget, in (0, 1).
        releases: of sums in which a record counts 1.
    """
    from dp_accounting import get_sigma_gaussian  # nearly a second, for runs that have a budget

    return math.sqrt(releases) * float(get_sigma_gaussian(epsilon, delta))


def epsilon_of(deviation: float, delta: float, releases: int) -> float:
    """Return the epsilon that releases with noise of a standard deviation spend together, for a delta."""
    from dp_accounting import get_epsilon_gaussian

    return float(get_epsilon_gaussian(deviation / math.sqrt(releases), delta))
