"""Budgets of differential privacy: the noise that a budget requires, and the epsilon that noisy releases spend.

Neighbouring data sets differ by the presence of one record.

``dp-accounting`` does the accounting. For noise on all records it is exact (B. Balle, Y.-X. Wang, "Improving the
Gaussian Mechanism for Differential Privacy", ICML 2018, Theorem 8): several releases of the same record with noise of
deviation s are together as private as a single release with noise of deviation s / sqrt(releases). For noise on random
batches it composes privacy loss distributions (V. Doroshenko, B. Ghazi, P. Kamath, R. Kumar, P. Manurangsi, "Connect
the Dots", PETS 2022), rounded to the safe side.
"""

import math
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

# Privacy losses are rounded up to multiples of this. A tenth of it changes epsilon by less than a thousandth, and takes
# ten times as long.
_GRID = 1e-3
# Integer orders only: their divergences have a closed form.
_ORDERS = [*range(2, 65), 96, 128, 256, 512]


@lru_cache
def noise_for(epsilon: float, delta: float, releases: int) -> float:
    """Return the standard deviation of the noise with which a number of releases spends exactly a budget.

    Args:
        epsilon: The budget's epsilon, above 0.
        delta: The budget's delta, in (0, 1).
        releases: The number of released sums. A record changes each of them by at most 1.

    Example:
        >>> noise_for(epsilon=1.0, delta=1e-5, releases=4) / noise_for(epsilon=1.0, delta=1e-5, releases=1)
        2.0
    """
    from dp_accounting import get_sigma_gaussian  # takes nearly a second; only runs with a budget need it

    return math.sqrt(releases) * float(get_sigma_gaussian(epsilon, delta))


def epsilon_of(deviation: float, delta: float, releases: int) -> float:
    """Return the epsilon that a number of releases spends.

    Args:
        deviation: The standard deviation of the noise.
        delta: The budget's delta.
        releases: The number of released sums.
    """
    from dp_accounting import get_epsilon_gaussian

    return float(get_epsilon_gaussian(deviation / math.sqrt(releases), delta))


@dataclass(frozen=True)
class Releases:
    """Mean gradients of a site's records, clipped to a length of 1, each with Gaussian noise.

    Attributes:
        rate: The chance that a record is in a batch, in (0, 1], independent of the other records.
        batches: The number of batches.
        whole: The number of gradients over all records. Their mean has as much noise as the mean of a batch.
    """

    rate: float
    batches: int
    whole: int = 0

    def event(self, noise: float) -> Any:
        """Return the releases as an event of the accountant.

        Args:
            noise: The standard deviation of the noise in the sum over a batch.
        """
        import dp_accounting as accounting

        batch = accounting.PoissonSampledDpEvent(self.rate, accounting.GaussianDpEvent(noise))
        events = [accounting.SelfComposedDpEvent(batch, self.batches)] if self.batches else []
        if self.whole:
            # the mean is over 1 / rate times as many records as a batch has
            events.append(accounting.GaussianDpEvent(noise / self.rate / math.sqrt(self.whole)))
        return accounting.ComposedDpEvent(events)


@lru_cache
def noise_of_batches(epsilon: float, delta: float, releases: Releases) -> float:
    """Return the smallest noise, to within a thousandth, with which all releases stay within a budget.

    Args:
        epsilon: The budget's epsilon, above 0.
        delta: The budget's delta, in (0, 1).
        releases: The releases that share the budget.

    Returns:
        The standard deviation of the noise in the sum over a batch.
    """
    from dp_accounting import ExplicitBracketInterval, calibrate_dp_mechanism, rdp

    # moments give a quick estimate, somewhat too high, from which the exact search starts
    moments = partial(rdp.RdpAccountant, orders=_ORDERS)
    high = low = float(calibrate_dp_mechanism(moments, releases.event, epsilon, delta, tol=1e-2))
    while epsilon_of_batches(high, delta, releases) > epsilon:
        high *= 1.25
    while epsilon_of_batches(low, delta, releases) <= epsilon:
        low *= 0.8
    bracket = ExplicitBracketInterval(low, high)
    return float(calibrate_dp_mechanism(_accountant, releases.event, epsilon, delta, bracket, tol=1e-3 * low))


@lru_cache
def epsilon_of_batches(noise: float, delta: float, releases: Releases) -> float:
    """Return the epsilon that releases spend together.

    Args:
        noise: The standard deviation of the noise in the sum over a batch.
        delta: The budget's delta.
        releases: The releases. Without any, epsilon is 0.
    """
    if not releases.batches + releases.whole:
        return 0.0
    return float(_accountant().compose(releases.event(noise)).get_epsilon(delta))


def _accountant() -> Any:
    from dp_accounting import pld

    return pld.PLDAccountant(value_discretization_interval=_GRID)
