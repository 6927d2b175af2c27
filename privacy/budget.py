"""Budgets of differential privacy, for neighbouring data sets that differ in one record which only one of them has.

The accounting is that of ``dp-accounting``. For noise on all records it is the exact one of a Gaussian mechanism
(B. Balle, Y.-X. Wang, "Improving the Gaussian Mechanism for Differential Privacy", ICML 2018, Theorem 8): releases of
the same record, each with noise of deviation s, are together as private as one with noise of deviation
s / sqrt(releases). For noise on random batches it composes privacy loss distributions (V. Doroshenko, B. Ghazi,
P. Kamath, R. Kumar, P. Manurangsi, "Connect the Dots", PETS 2022), rounded to the safe side.
"""

import math
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

# by which privacy losses are rounded up; a tenth of it changes epsilon by less than a thousandth and takes ten times as
# long
_GRID = 1e-3
# whole ones, for which the divergences have a closed form
_ORDERS = [*range(2, 65), 96, 128, 256, 512]


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


@dataclass(frozen=True)
class Releases:
    """Mean gradients of a site's records, clipped to a length of 1, each with Gaussian noise.

    Attributes:
        rate: with which chance a record is in a batch, independently of the others, in (0, 1].
        batches: the number of batches.
        whole: the number of gradients over all records, which have as much noise in their mean as those of a batch.
    """

    rate: float
    batches: int
    whole: int = 0

    def event(self, noise: float) -> Any:
        """Describe the releases to the accountant.

        Args:
            noise: its standard deviation in the sum over a batch.
        """
        import dp_accounting as accounting

        batch = accounting.PoissonSampledDpEvent(self.rate, accounting.GaussianDpEvent(noise))
        events = [accounting.SelfComposedDpEvent(batch, self.batches)] if self.batches else []
        if self.whole:
            # a mean over 1 / rate times as many records
            events.append(accounting.GaussianDpEvent(noise / self.rate / math.sqrt(self.whole)))
        return accounting.ComposedDpEvent(events)


@lru_cache
def noise_of_batches(epsilon: float, delta: float, releases: Releases) -> float:
    """Return the least noise, to within a thousandth, with which all releases together spend a budget.

    Args:
        epsilon: of the budget, above 0.
        delta: of the budget, in (0, 1).
        releases: of which the budget is.

    Returns:
        The standard deviation of the noise in the sum over a batch.
    """
    from dp_accounting import ExplicitBracketInterval, calibrate_dp_mechanism, rdp

    # moments say quickly, and somewhat too high, where to search
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
    """Return the epsilon that releases with some noise spend together.

    Args:
        noise: its standard deviation in the sum over a batch.
        delta: for which epsilon is.
        releases: of which the epsilon is; there may be none.
    """
    if not releases.batches + releases.whole:
        return 0.0
    return float(_accountant().compose(releases.event(noise)).get_epsilon(delta))


def _accountant() -> Any:
    from dp_accounting import pld

    return pld.PLDAccountant(value_discretization_interval=_GRID)
