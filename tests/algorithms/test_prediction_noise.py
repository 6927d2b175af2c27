"""`fedx.prediction-noise` adds noise to a client's messages, but not to its training."""

import dataclasses

import numpy as np
import pytest
from scipy import stats

import methods.predictions
from methods.predictions import FedXPredictions, add_noise
from payloads.record import PayloadError
from problems.randomness import secret_normal

from .helpers import Case, Federation

BATCHES = (("positive_batch_size", 4), ("negative_batch_size", 6), ("gamma", 0.5), ("beta", 0.5))
CASES = [("fedx1", "psm"), ("fedx2", "kl-opauc"), ("fedx2", "auprc")]
# with squared hinges, p-norm push has degree four and diverges at the cases' step size
OPTIONS = dict.fromkeys(("auprc", "p-norm-push"), (("surrogate", "logistic"),))


def federation(strategy: str, loss: str, deviation: float, *options: tuple[str, object]) -> Federation:
    noise = ("prediction_noise", deviation)
    return Federation(Case(strategy, loss, options=(*BATCHES, *OPTIONS.get(loss, ()), *options, noise)))


def test_the_noise_cannot_be_repeated() -> None:
    np.random.seed(0)
    first = secret_normal(8)
    np.random.seed(0)
    assert not np.isin(first, secret_normal(8)).any()
    one, other = (federation("fedx1", "psm", 1.0).strategy.state for _ in range(2))
    assert not np.isin(one.positive_scores, other.positive_scores).any()


@pytest.mark.parametrize("deviation", [0.1, 3.0])
@pytest.mark.parametrize("kind", ["positive_scores", "partner_scores"])
def test_the_spread_of_what_is_sent(kind: str, deviation: float) -> None:
    scores = np.linspace(0, 1, 20_000)
    exact = FedXPredictions(positive_scores=scores, partner_scores=scores[::-1])
    added = getattr(add_noise(exact, deviation), kind) - getattr(exact, kind)
    assert stats.kstest(added / deviation, "norm").pvalue > 1e-6
    assert abs(np.corrcoef(added, scores)[0, 1]) < 6 / np.sqrt(len(scores))


def test_the_number_type_stays_and_too_much_noise_is_not_finite() -> None:
    exact = FedXPredictions(positive_scores=np.zeros(9, np.float32), partner_scores=np.zeros(9, np.float32))
    assert add_noise(exact, 1.0).positive_scores.dtype == np.float32
    with pytest.raises(PayloadError, match=r"partner_scores|positive_scores"):
        add_noise(exact, 1e300).check()


@pytest.mark.parametrize(("strategy", "loss"), CASES)
def test_the_scoring_round_and_every_round_send_noised_scores(strategy: str, loss: str) -> None:
    exact, noisy = federation(strategy, loss, 0.0), federation(strategy, loss, 1.0)
    scored = [(exact.strategy.state, noisy.strategy.state)]
    noisy.strategy.state = exact.strategy.state
    sent = [(one.payload, other.payload) for one, other in zip(exact.step(), noisy.step(), strict=True)]
    for one, other in [*scored, *sent]:
        for name in ("positive_scores", "partner_scores"):
            difference = getattr(other, name) - getattr(one, name)
            assert len(np.unique(difference)) == len(difference)  # each score has separate noise
            assert (np.abs(difference) > 0).all()
            assert np.abs(difference).max(initial=0) < 9
        if one.partner_labels is not None:
            np.testing.assert_array_equal(one.partner_labels, other.partner_labels)


@pytest.mark.parametrize("options", [(), (("independent_history", True),), (("history_size", 5),)], ids=str)
@pytest.mark.parametrize(("strategy", "loss"), CASES)
def test_a_client_trains_with_its_exact_scores(
    strategy: str, loss: str, options: tuple[tuple[str, object], ...]
) -> None:
    """Given the same pool, the noise does not change a bit of the model, the momentum or the u table."""
    exact, noisy = (federation(strategy, loss, deviation, *options) for deviation in (0.0, 1.0))
    noisy.strategy.state = exact.strategy.state
    for place, (one, other) in enumerate(zip(exact.step(), noisy.step(), strict=True)):
        np.testing.assert_array_equal(one.model[0], other.model[0])
        assert not np.isin(one.payload.partner_scores, other.payload.partner_scores).any()
        if strategy == "fedx2":
            np.testing.assert_array_equal(one.payload.momentum, other.payload.momentum)
            np.testing.assert_array_equal(exact.u(place), noisy.u(place))


@pytest.mark.parametrize("loss", ["kl-opauc", "auprc", "p-norm-push"])
def test_u_stays_at_home(loss: str) -> None:
    """u would reveal the exact score. Lazy positives compute u from the partners drawn with them."""
    exact, noisy = federation("fedx2", loss, 0.0), federation("fedx2", loss, 0.5)
    for _ in range(3):
        assert all(reply.payload.positive_u is not None for reply in exact.step())
        assert all(reply.payload.positive_u is None for reply in noisy.step())
    assert noisy.pool.positive_u is None
    assert not noisy.pool.positive_tracked.any()
    assert np.isfinite(noisy.w).all()


def test_a_u_that_travels_all_the_same_is_refused() -> None:
    noisy = federation("fedx2", "kl-opauc", 0.5)
    payload = noisy.step()[0].payload
    with_u = dataclasses.replace(payload, positive_u=np.zeros((len(payload.positive_scores), 1)))
    noisy.strategy.check_payload(payload)
    with pytest.raises(PayloadError, match=r"positive_u: would undo the noise of fedx\.prediction-noise"):
        noisy.strategy.check_payload(with_u)


@pytest.mark.parametrize(("strategy", "loss"), CASES)
def test_without_noise_nothing_is_drawn(strategy: str, loss: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Deviation 0 is the exact algorithm, which other tests compare with the NumPy reference."""
    monkeypatch.setattr(methods.predictions, "secret_normal", None)
    federation(strategy, loss, 0.0).step()
    with pytest.raises(TypeError):
        federation(strategy, loss, 1e-9)
