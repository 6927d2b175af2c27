"""FGDRO: whole runs step by step against the NumPy reference, and its dual against a general optimiser."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import expit

from apps.config import Scalar
from methods.fgdro import FGDRO_KL, FGDRODual, FGDROSettings, SiteLevel, solve_cvar, solve_kl, weigh_cvar, weigh_kl
from simulations.results.records import evaluation
from tests.algorithms.watched import CLOSE, DROPS, STEPS, Watched, lost
from tests.reference import fgdro
from tests.reference.fgdro import Array

SOLVERS = {"kl": (solve_kl, weigh_kl), "cvar": (solve_cvar, weigh_cvar)}


def mean_loss(w: Array, features: Array, labels: Array) -> tuple[float, Array]:
    """The cross-entropy of a linear model with an intercept."""
    design = np.column_stack([features, np.ones(len(features))])
    scores = design @ w
    loss = float(np.logaddexp(0.0, np.where(labels == 1, -scores, scores)).mean())
    return loss, design.T @ (expit(scores) - labels) / len(labels)


def assert_follows(one: Watched, kind: str) -> None:
    features, labels = one.shares
    temperature, share = one.settings.temperature, one.settings.share
    sizes = np.array(one.sizes if one.training.by_examples else [1] * one.clients, float)
    memories: list[float | None] = [None] * one.clients
    levels: dict[int, float] = {}
    assert one.told(1, FGDRODual) is None
    for r in range(1, one.rounds + 1):
        dual, largest, ends = None, 1.0, {}
        if levels:
            shares = sizes[sorted(levels)] / sizes[sorted(levels)].sum()
            known = np.array([levels[i] for i in sorted(levels)])
            dual = fgdro.solve_dual(kind, known, shares, temperature, share)
            largest = fgdro.weigh(kind, known.max(), dual, temperature, share)
            np.testing.assert_allclose(one.told(r, FGDRODual).dual, dual, **CLOSE)
            np.testing.assert_allclose(one.told(r, FGDRODual).largest, largest, **CLOSE)
        for i in one.participants(r):
            rows = [one.batch(i, (r - 1) * STEPS + k) for k in range(STEPS)]
            batches = [(features[i][chosen], labels[i][chosen]) for chosen in rows]
            memory, weight = memories[i], 1.0
            if memory is not None and dual is not None:
                weight = min(fgdro.weigh(kind, memory, dual, temperature, share), largest)
            rest = batches, one.rates(r), mean_loss, one.settings.averaging
            ends[i], memories[i] = fgdro.local_steps(one.models[r - 1], memory, weight, *rest)
        answered = one.answered(r)
        levels |= {i: memories[i] for i in answered}  # type: ignore[dict-item]
        np.testing.assert_allclose(
            one.models[r], np.average([ends[i] for i in answered], axis=0, weights=sizes[answered]), **CLOSE
        )
    assert np.abs(one.models[-1] - one.models[0]).max() > 0.05


VARIANTS: dict[str, dict[str, Scalar]] = {
    "base": {},
    "drops": DROPS,
    "equal": {"client-weights": "equal", "fgdro.temperature": 0.02, "fgdro.averaging": 1.0},
    "half": {"fraction-train": 0.5, "num-server-rounds": 8, "fgdro.share": 0.6},
}


@pytest.mark.parametrize("kind", SOLVERS)
@pytest.mark.parametrize("variant", VARIANTS)
def test_it_follows_the_reference(kind: str, variant: str, data: dict[str, Scalar], tmp_path: Path) -> None:
    assert_follows(Watched(tmp_path, {**data, "strategy": f"fgdro-{kind}", **VARIANTS[variant]}), kind)


def test_it_follows_the_reference_if_a_reply_is_lost(data: dict[str, Scalar], tmp_path: Path) -> None:
    one = Watched(tmp_path, {**data, "strategy": "fgdro-kl"}, tamper=lost(2, 1))
    assert [list(line["dropped"]) for line in one.run.lines[1:]] == [[], ["1"], [], [], []]
    assert_follows(one, "kl")


@pytest.mark.parametrize("kind", SOLVERS)
@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(0, 3), min_size=1, max_size=6), st.floats(0.05, 2), st.floats(0.1, 1), st.randoms())
def test_the_dual_gives_the_weights_of_the_worst_case(
    kind: str, levels: list[float], temperature: float, share: float, random: Any
) -> None:
    solve, weigh = SOLVERS[kind]
    u, q = np.array(levels), np.array([random.uniform(0.1, 1) for _ in levels])
    q /= q.sum()
    own = FGDROSettings(temperature=temperature, share=share)
    p = weigh(torch.tensor(u), solve(u, q, own), own).numpy()
    assert (p >= 0).all()
    assert q @ p == pytest.approx(1.0, abs=1e-12)

    def value(weights: Array) -> float:
        safe = np.maximum(weights, 1e-300)
        penalty = safe * np.log(safe) if kind == "kl" else weights**2 / 2
        return float(q @ (weights * u - temperature * penalty))

    best = fgdro.best_weights(kind, u, q, temperature, share)
    assert value(p) >= value(best) - 1e-7


def test_the_worst_site_gets_all_the_weight_at_a_low_temperature() -> None:
    u, q = np.array([0.3, 0.9, 0.5, 0.2]), np.full(4, 0.25)
    cold = FGDROSettings(temperature=1e-4, share=0.5)
    for solve, weigh, expected in ((solve_kl, weigh_kl, [0, 4, 0, 0]), (solve_cvar, weigh_cvar, [0, 2, 2, 0])):
        p = weigh(torch.tensor(u), solve(u, q, cold), cold).numpy()
        np.testing.assert_allclose(p, expected, atol=1e-9)
    warm = FGDROSettings(temperature=1e6, share=0.5)
    np.testing.assert_allclose(weigh_kl(torch.tensor(u), solve_kl(u, q, warm), warm).numpy(), np.ones(4), atol=1e-5)


@pytest.mark.parametrize(("level", "weight"), [(0.5, 1.0), (0.6, np.exp(1.0)), (2.0, 3.0)])
def test_a_weight_is_at_most_the_largest_that_the_server_knows(level: float, weight: float) -> None:
    down, memory = FGDRODual(dual=np.array([0.5]), largest=np.array([3.0])), SiteLevel(level=np.array([level]))
    task: Any = SimpleNamespace(settings=FGDROSettings())
    carry = FGDRO_KL.client.start(torch.zeros(2, dtype=torch.float64), down, memory, task)
    assert float(carry.weight) == pytest.approx(weight, rel=1e-12)


def test_a_client_s_level_may_not_be_infinite(data: dict[str, Scalar], tmp_path: Path) -> None:
    def tamper(exchange: Any) -> Any:
        if (exchange.server_round, exchange.partition) == (2, 1):
            record = SiteLevel(level=np.array([np.inf])).to_record()
            exchange.reply.content["payload"] = record
        return exchange.reply

    one = Watched(tmp_path, {**data, "strategy": "fgdro-cvar"}, tamper=tamper)
    assert list(one.run.lines[2]["dropped"]) == ["1"]
    assert one.run.lines[2]["worst_site_loss"] > 0
    assert evaluation(one.run.lines[2]) == {}  # a round without an evaluation
