"""The objectives' closed forms: F against the reference, slopes against autograd, averages and bounds of u."""

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch

from problems.objectives.pairwise import PAIRWISE_LOSSES, make_objective
from tests.reference import fedx
from tests.reference.fedx import Array

OBJECTIVES = [
    *((name, {"margin": 0.8}) for name in ("square", "psm", "squared-hinge", "logistic")),
    ("kl-opauc", {"margin": 0.7, "temperature": 1.5}),
    *(("auprc", {"surrogate": surrogate}) for surrogate in ("squared-hinge", "logistic", "psm")),
    ("p-norm-push", {"surrogate": "squared-hinge", "power": 3.0}),
    ("p-norm-push", {"surrogate": "logistic", "power": 1.5}),
]


def reference_of(name: str, options: dict) -> fedx.Objective:
    names = {"temperature": "lam", "power": "p"}
    return fedx.objective(name, **{names.get(key, key): value for key, value in options.items()})


def data(name: str, seed: int = 2) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return scores of 7 positives and of the partners (11 negatives; for auprc all), and the partners' labels."""
    rng = np.random.default_rng(seed)
    a, b = rng.normal(0.4, 1.0, 7), rng.normal(-0.4, 1.0, 11)
    if name == "auprc":
        return torch.tensor(a), torch.tensor(np.concatenate([a, b])), torch.tensor(np.repeat([1.0, 0.0], [7, 11]))
    return torch.tensor(a), torch.tensor(b), torch.zeros(11, dtype=torch.float64)


def test_every_loss_is_here() -> None:
    assert {name for name, _ in OBJECTIVES} == set(PAIRWISE_LOSSES)


# f of the mean over a positive's partners, by t = h(positive) - h(partners) and the partners' labels; all margins are 1
DEFINITIONS: dict[str, Callable[[Array, Array], float]] = {
    "square": lambda t, y: np.mean((1 - t) ** 2),
    "psm": lambda t, y: np.mean(1 / (1 + np.exp(t))),
    "squared-hinge": lambda t, y: np.mean(np.maximum(1 - t, 0) ** 2),
    "logistic": lambda t, y: np.mean(np.log(1 + np.exp(-t))),
    "kl-opauc": lambda t, y: 3 * np.log(np.mean(np.exp(np.maximum(1 - t, 0) ** 2 / 3))),
    "auprc": lambda t, y: -np.sum(np.maximum(1 - t[y == 1], 0) ** 2) / np.sum(np.maximum(1 - t, 0) ** 2),
    "p-norm-push": lambda t, y: np.mean(np.maximum(1 - t, 0) ** 2) ** 2,
}


@pytest.mark.parametrize("name", PAIRWISE_LOSSES)
def test_the_risk_is_its_definition(name: str) -> None:
    a, b, y = data(name)
    expected = np.mean([DEFINITIONS[name]((one - b).numpy(), y.numpy()) for one in a])
    assert make_objective(name, temperature=3.0, power=2.0).risk(a, b, y) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("block", [3, 512])
@pytest.mark.parametrize(("name", "options"), OBJECTIVES)
def test_the_risk_is_the_references(name: str, options: dict, block: int) -> None:
    a, b, y = data(name)
    client = (a.numpy()[:, None], b.numpy()[:, None], y.numpy())  # one feature, which is the score
    expected = fedx.full_objective(reference_of(name, options), lambda w, X: X @ w, np.ones(1), [client])
    assert make_objective(name, **options).risk(a, b, y, block) == pytest.approx(expected, rel=1e-13)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(("name", "options"), OBJECTIVES)
def test_slopes_are_autograd_of_the_risk(name: str, options: dict, weighted: bool) -> None:
    """F = mean_i f((1/m) sum_j weight_j l(s_ij)), so dF/ds_ij = weight_j f'(u_i) l'(s_ij) / (n m)."""
    objective = make_objective(name, **options)
    a, b, y = data(name)
    weights = torch.tensor(np.random.default_rng(3).uniform(0.7, 1.3, len(b))) if weighted else None
    s = (b[None, :] - a[:, None]).requires_grad_()
    u = objective.observe(s, y, weights)
    assert u.shape == (7, objective.inner_dim)
    (expected,) = torch.autograd.grad(objective.outer(u).mean(), s)
    slope = objective.slope(s.detach(), y, u.detach(), num_partners=1e6)
    got = slope * (1.0 if weights is None else weights) / s.numel()
    np.testing.assert_allclose(got, expected, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize(("name", "options"), OBJECTIVES)
def test_observations_averages_and_slopes_are_the_references(name: str, options: dict) -> None:
    objective, plain = make_objective(name, **options), reference_of(name, options)
    a, b, y = data(name)
    weights = torch.tensor(np.random.default_rng(3).uniform(0.0, 2.0, len(b)))
    old = objective.observe(b[None, :] - (a + 0.3)[:, None], y, None)
    seen = objective.observe(b[None, :] - a[:, None], y, weights)
    expected = fedx.inner_mean(plain, a.numpy(), b.numpy(), y.numpy(), weights.numpy())
    np.testing.assert_allclose(seen, expected, rtol=1e-12)
    for gamma in (0.2, 1.0):
        u = objective.average(old, seen, gamma)
        np.testing.assert_allclose(u, fedx.track(plain, old.numpy(), expected, gamma), rtol=1e-12)
        if name == "kl-opauc":  # losses whose u are logarithms
            mean = (1 - gamma) * old.exp().numpy() + gamma * np.exp(expected)
            np.testing.assert_allclose(u.exp(), mean, rtol=1e-12)
        slope = objective.slope(b[None, :] - a[:, None], y, u, num_partners=5.0)
        d1, d2 = fedx.chain(plain, u.numpy(), a.numpy(), b.numpy(), y.numpy(), bound=5.0)
        np.testing.assert_allclose(slope, d2, rtol=1e-12, atol=1e-15)
        np.testing.assert_allclose(-slope, d1, rtol=1e-12, atol=1e-15)


def test_kl_opauc_cuts_the_ratio_to_a_stale_u_at_the_number_of_partners() -> None:
    objective = make_objective("kl-opauc", temperature=0.1)
    s, u = torch.tensor([[50.0, -3.0]], dtype=torch.float64), torch.tensor([[0.0]], dtype=torch.float64)
    # 51^2 / 0.1 is far above log 32: l/u = 32, times the hinge's slope 2 * 51; the other pair has no hinge
    np.testing.assert_allclose(objective.slope(s, None, u, 32.0), [[32 * 2 * 51.0, 0.0]], rtol=1e-13)
    exact = torch.tensor([[51.0**2 / 0.1 - math.log(2)]], dtype=torch.float64)
    np.testing.assert_allclose(objective.slope(s, None, exact, 32.0), [[2 * 2 * 51.0, 0.0]], rtol=1e-9)


def test_auprc_raises_a_stale_u2_to_its_own_share() -> None:
    objective = make_objective("auprc", surrogate="logistic")
    s, y = torch.zeros((1, 2), dtype=torch.float64), torch.tensor([1.0, 0.0], dtype=torch.float64)
    slope = objective.slope(s, y, torch.tensor([[0.001, 0.0]], dtype=torch.float64), 20.0)
    floor = math.log(2) / 20  # l(0) / |S_2|
    np.testing.assert_allclose(slope, [[(0.001 / floor - 1) / floor * 0.5, 0.001 / floor**2 * 0.5]], rtol=1e-12)
