"""Tests of batches' privacy budgets against direct calls of dp-accounting."""

import math

import pytest
from dp_accounting import ComposedDpEvent, DpEvent, GaussianDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent, pld

from privacy.budget import Releases, epsilon_of_batches, noise_of_batches

DELTA = 1e-5


def epsilon_by_hand(event: DpEvent) -> float:
    return float(pld.PLDAccountant().compose(event).get_epsilon(DELTA))


@pytest.mark.parametrize("epsilon", [0.3, 1.0, 8.0])
@pytest.mark.parametrize(("rate", "batches"), [(0.02, 400), (0.3, 100), (1.0, 50)])
def test_the_noise_is_the_least_that_meets_the_budget(epsilon: float, rate: float, batches: int) -> None:
    noise = noise_of_batches(epsilon, DELTA, Releases(rate, batches))

    def by_hand(noise: float) -> float:
        return epsilon_by_hand(SelfComposedDpEvent(PoissonSampledDpEvent(rate, GaussianDpEvent(noise)), batches))

    # the grid of losses here is coarser than the default, and errs on the safe side
    assert 0.99 * epsilon < by_hand(noise) <= epsilon
    assert by_hand(0.99 * noise) > epsilon


def test_a_gradient_over_all_samples_has_the_noise_of_a_batch_in_its_mean() -> None:
    releases = Releases(0.1, 50, whole=20)
    batches = SelfComposedDpEvent(PoissonSampledDpEvent(0.1, GaussianDpEvent(2.0)), 50)
    whole = SelfComposedDpEvent(GaussianDpEvent(2.0 / 0.1), 20)
    by_hand = epsilon_by_hand(ComposedDpEvent([batches, whole]))
    assert epsilon_of_batches(2.0, DELTA, releases) == pytest.approx(by_hand, rel=1e-3)
    assert epsilon_of_batches(2.0, DELTA, Releases(0.1, 0)) == 0.0


def test_whole_gradients_alone_are_a_gaussian_mechanism() -> None:
    event = GaussianDpEvent(3.0 / math.sqrt(4))
    assert epsilon_of_batches(3.0, DELTA, Releases(1.0, 0, 4)) == pytest.approx(epsilon_by_hand(event), rel=1e-3)
