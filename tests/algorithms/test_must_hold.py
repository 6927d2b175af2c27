"""Properties of FedX for any data: full gradients, limits, special cases, bounds and counts."""

from dataclasses import replace
from itertools import combinations
from typing import Any

import numpy as np
import pytest
import torch

from problems.objectives.pairwise import make_objective
from tests.reference import fedx

from .helpers import EQUAL, SCORERS, UNEQUAL, Case, Federation, make_sites, reference_clients

LINEAR = ["square", "psm", "squared-hinge", "logistic"]
NON_LINEAR = [
    ("kl-opauc", {"lambda_": 1.5, "margin": 0.7}),
    ("auprc", {"surrogate": "squared-hinge"}),
    ("auprc", {"surrogate": "psm"}),
    ("p-norm-push", {"surrogate": "logistic", "power": 2.5}),
]


def full(strategy: str, loss: str, scorer: str = "tanh", sizes=UNEQUAL, learning_rate: float = 1.0, **options) -> Case:
    """Return a case with one local step on full local batches, against the whole pool of one round."""
    positives, negatives = np.sum(sizes, axis=0).tolist()
    partners = positives + negatives if loss == "auprc" else negatives
    batches = {"positive_batch_size": positives, "negative_batch_size": partners}
    training = {"local_steps": 1, "learning_rate": learning_rate}
    return Case(strategy, loss, scorer, tuple(sizes), tuple((batches | options).items()), tuple(training.items()))


def first_direction(case: Case) -> np.ndarray:
    """Return the clients' mean of G1 + G2 at the first step: the amount that a round with step 1 subtracts."""
    federation = Federation(case)
    start = federation.w.copy()
    federation.step()
    return start - federation.w


def slope_of_risk(case: Case, sizes: list) -> np.ndarray:
    """Return (d,) grad F on the union of the sites' data at the initial model, by differences of the reference's F."""
    clients, w = reference_clients(make_sites(sizes), case.loss), SCORERS[case.scorer].model().arrays()[0]
    at = lambda v: fedx.full_objective(case.objective, SCORERS[case.scorer].score, v, clients)  # noqa: E731
    return np.array([(at(w + h) - at(w - h)) / 2e-5 for h in 1e-5 * np.eye(len(w))])


FEDERATED = [*(("fedx1", name, {"margin": 0.8}) for name in LINEAR), *(("fedx2", *more) for more in NON_LINEAR)]
# with one site, its pairs are all pairs
ALONE = [*FEDERATED, *(("local-pair", *more) for _, *more in FEDERATED)]


@pytest.mark.parametrize(
    ("strategy", "loss", "options", "sizes"),
    [*((*case, UNEQUAL) for case in FEDERATED), *((*case, [(9, 14)]) for case in ALONE)],
)
def test_1_the_first_direction_is_the_slope_of_the_risk(strategy: str, loss: str, options: dict, sizes: list) -> None:
    case = full(strategy, loss, sizes=sizes, gamma=1.0, beta=1.0, **options)
    expected = slope_of_risk(case, sizes)
    assert np.linalg.norm(expected) > 1e-2
    np.testing.assert_allclose(first_direction(case), expected, atol=1e-8, rtol=0)


def test_2_later_steps_with_the_recorded_u_are_too() -> None:
    """If the model does not move, the pool's u is exact from round 2 on: gamma and beta have no effect."""
    case = full("fedx2", "kl-opauc", learning_rate=1e-13, gamma=0.4, beta=0.3)
    expected = slope_of_risk(case, UNEQUAL)
    federation = Federation(case)
    for _ in range(3):
        federation.step()
        np.testing.assert_allclose(federation.pool.momentum, expected, atol=1e-8, rtol=0)


@pytest.mark.parametrize(
    ("sizes", "options"),
    # use parts of the pool only if all entries weigh 1, since u tends to the mean weight of the draw
    [(UNEQUAL, {}), (EQUAL, {"positive_batch_size": 4, "negative_batch_size": 6, "tau": 2})],
)
def test_3_a_large_lambda_is_fedx1_with_the_squared_hinge(sizes: list, options: dict) -> None:
    sharp = full("fedx2", "kl-opauc", sizes=sizes, learning_rate=0.1, lambda_=1e11, beta=1.0, gamma=0.5, **options)
    linear = full("fedx1", "squared-hinge", sizes=sizes, learning_rate=0.1, **options)
    one, other = Federation(sharp), Federation(linear)
    for _ in range(4):
        before = one.w.copy()
        one.step()
        other.step()
        np.testing.assert_allclose(one.w, other.w, atol=1e-8, rtol=0)
        assert np.linalg.norm(one.w - before) > 1e-3


@pytest.mark.parametrize("loss", ["kl-opauc", "auprc", "p-norm-push"])
@pytest.mark.parametrize("strategy", ["fedx2", "local-pair"])
@pytest.mark.parametrize("scale", [100.0, 1e4])
def test_5_everything_stays_finite_at_any_score(scale: float, strategy: str, loss: str) -> None:
    options = {"lambda_": 0.1, "tau": 2, "gamma": 0.3, "positive_batch_size": 4, "negative_batch_size": 6}
    # the gradient of the squared hinge's square grows as scale^4
    training = {"learning_rate": 1e-3 / scale**4 if loss == "p-norm-push" else 1e-6, "local_steps": 3}
    case = Case(strategy, loss, "linear", tuple(UNEQUAL), tuple(options.items()), tuple(training.items()))
    sites = make_sites(UNEQUAL)
    for site in sites:
        site.features[:, 0] = scale * torch.sign(site.features[:, 0])
    federation = Federation(case, sites, np.array([1.0, 0.0, 0.0, 0.0]))  # the score is the first feature
    if strategy == "fedx2":
        assert set(federation.pool.positive_scores) == set(federation.pool.partner_scores) == {scale, -scale}
    for _ in range(4):
        for reply in federation.step():
            assert all(np.isfinite(value).all() for value in reply.payload.arrays().values())
        assert np.isfinite(federation.w).all()
        for client in federation.clients:
            assert client.state is None or np.isfinite(client.state.u).all()


@pytest.mark.parametrize("scale", [100.0, 1e4])
def test_5_the_risk_stays_finite_and_exact_at_any_score(scale: float) -> None:
    a, b = torch.tensor([scale, -scale]), torch.tensor([scale, -scale])
    risk = make_objective("kl-opauc", temperature=0.1).risk(a, b)
    # lambda times the log of a mean of two exponentials, first with the exponents 1 / lambda and 0,
    # then with (1 + 2 scale)^2 / lambda and 1 / lambda
    first, second = 0.1 * np.log((np.exp(10.0) + 1) / 2), (1 + 2 * scale) ** 2 - 0.1 * np.log(2)
    assert risk == pytest.approx((first + second) / 2, rel=1e-12)


def test_6_the_pools_weighted_mean_is_the_mean_over_all_sites_samples() -> None:
    """Six steps are whole epochs, so a history has its site's mean; (1/N) sum_j omega_j mean_j is the mean.

    Sites of 8, 4 and 0 positives send 24, 24 and 0 scores: their entries weigh unequally.
    """
    sizes, training = ((8, 12), (4, 6), (0, 18)), (("local_steps", 6), ("learning_rate", 1e-15))
    federation = Federation(Case("fedx1", "square", "linear", sizes, training=training))
    np.testing.assert_allclose(federation.pool.positive_weights, [4 / 3, 2 / 3], rtol=1e-15)
    X1, X2, _ = fedx.union(reference_clients(federation.sites, "square"))
    expected = [np.mean(X @ federation.w[:-1] + federation.w[-1]) for X in (X1, X2)]

    def means() -> list[float]:
        pool = federation.pool
        weights = np.repeat(pool.positive_weights, pool.positive_lengths)
        others = np.repeat(pool.partner_weights, pool.partner_lengths)
        return [np.mean(pool.positive_scores * weights), np.mean(pool.partner_scores * others)]

    assert means() == pytest.approx(expected, rel=1e-12)
    # if two of three clients take part, the mean over all possible pairs is the same
    found = []
    for pair in combinations(range(3), 2):
        federation.participants = lambda server_round, pair=pair: list(pair)  # type: ignore[method-assign]
        federation.step()
        found.append(means())
    assert np.ptp(found, axis=0).min() > 1e-2
    assert np.mean(found, axis=0) == pytest.approx(expected, rel=1e-11)


def test_a_site_without_pairs_waits() -> None:
    """In `local-pair`, a site of one class has no pair: it returns the model and the momentum that it received."""
    options = (("positive_batch_size", 4), ("negative_batch_size", 6), ("beta", 0.3))
    federation = Federation(Case("local-pair", "kl-opauc", "tanh", options=options))
    start = federation.w.copy()
    replies = federation.step()
    np.testing.assert_array_equal(replies[1].model[0], start)
    momentum = federation.strategy.down(2).momentum
    middle = federation.w.copy()
    replies = federation.step()
    np.testing.assert_array_equal(replies[1].model[0], middle)
    np.testing.assert_array_equal(replies[1].payload.momentum, momentum)


@pytest.mark.parametrize("missing", ["positive", "partner"])
@pytest.mark.parametrize(("strategy", "loss"), [("fedx1", "psm"), ("fedx2", "kl-opauc"), ("fedx2", "auprc")])
def test_a_pool_of_one_class_trains_what_it_can(strategy: str, loss: str, missing: str) -> None:
    """All participants of a round may have the same class. Without partners, no u can be observed.

    FedX2's positives, active and lazy, then wait; only a u that came with the pool can move the model.
    """
    federation = Federation(Case(strategy, loss, options=(("positive_batch_size", 4), ("negative_batch_size", 6))))
    whole, nothing = federation.pool, np.zeros(0)
    none: dict[str, Any] = {f"{missing}_{name}": nothing for name in ("scores", "weights")}
    none |= {f"{missing}_lengths": nothing.astype(int)}
    if missing == "positive":
        none["positive_tracked"] = None
    elif loss == "auprc":
        none["partner_labels"] = nothing.astype(bool)
    pool, start = replace(whole, **none), federation.w.copy()
    federation.round = 1
    for place, client in enumerate(federation.clients):
        reply, (positives, _) = federation.call(place, pool), UNEQUAL[place]
        waiting = strategy == "fedx2" and missing == "partner"
        assert len(reply.payload.positive_scores) == (0 if waiting else 3 * min(4, positives))
        assert len(reply.payload.partner_scores) == 3 * (6 if loss == "auprc" else min(6, UNEQUAL[place][1]))
        assert np.isfinite(reply.model[0]).all()
        if waiting:
            np.testing.assert_array_equal(reply.model[0], start)
            assert not client.state.observed.any()
        if strategy == "fedx2" and missing == "partner" and positives:
            with_u = replace(pool, positive_u=np.ones((len(pool.positive_scores), client.state.u.shape[1])))
            with_u = replace(with_u, positive_tracked=np.ones(len(pool.positive_lengths), bool))
            assert np.abs(federation.call(place, with_u).model[0] - start).max() > 0
